"""Export: a run in the formats of other tools.

The result file of ``vllm bench serve``, vLLM's metrics for Prometheus, and a trace for Perfetto.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from heapq import heappop, heappush
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from specsim.core.errors import ConfigError
from specsim.core.settings import load_mapping
from specsim.results.folder import ResultsFolder, RunTable, StepsTable, check_same_run
from specsim.results.metrics import (
    PER_TOKEN_BUCKETS,
    PREEMPTIONS_BUCKETS,
    REQUEST_BUCKETS,
    TTFT_BUCKETS,
    decode_time,
    latency,
    queue_time,
    token_buckets,
    tpot,
    ttft,
)
from specsim.run.deployment import Deployment
from specsim.run.experiment import Experiment

Labels = dict[str, object]
Samples = NDArray[Any]


def load_folder(path: Path) -> tuple[ResultsFolder, Experiment]:
    """Return a run's folder and experiment; a SpecsimError if they are damaged or do not match."""
    if not path.is_dir():
        raise ConfigError(f"{path}: is not a folder; give one that `specsim run --out` wrote")
    if not (path / "config.yaml").is_file():
        raise ConfigError(
            f"{path}: holds no config.yaml, so it is not of one run; give a folder that `specsim "
            "run --out` wrote, or one of the folders that `specsim compare --out` made"
        )
    experiment, run = Experiment.load(path / "config.yaml"), ResultsFolder(path)
    names = "config.yaml and summary.json"
    check_same_run(path, names, experiment.hash, run.own["config_hash"])
    return run, experiment


def vllm_bench_result(run: ResultsFolder) -> dict[str, Any]:
    """Return what ``vllm bench serve --save-result`` would have written.

    Returns:
        ``summary.json`` without what is specsim's own, and with what vLLM has besides: a text per
        answer, which a simulation leaves empty, where there are details per request
        (``--save-detailed``), and ``rtfx``, which is about audio.
    """
    result = {name: value for name, value in run.summary.items() if name != "specsim"}
    if "itls" in result:
        result["generated_texts"] = [""] * int(result["completed"])
    result["rtfx"] = 0.0
    return result


def prometheus_text(run: ResultsFolder, experiment: Experiment) -> str:
    """Return a run as Prometheus text, format 0.0.4; a SpecsimError if files do not fit."""
    return "".join(f"{line}\n" for line in _Page(run, experiment).lines())


_TABLES = load_mapping(Path(__file__).with_name("export.yaml"), ConfigError)
_BUCKETS = {
    "time_to_first_token": TTFT_BUCKETS,
    "time_per_token": PER_TOKEN_BUCKETS,
    "request_time": REQUEST_BUCKETS,
    "preemptions": PREEMPTIONS_BUCKETS,
}


class _Page:
    """The samples of a run, by engine: one per replica.

    Names, labels and buckets of the metrics are those of vLLM 0.32 (``v1/metrics/loggers.py``).
    Gauges have their values after the last request: nothing runs any more.
    """

    def __init__(self, run: ResultsFolder, experiment: Experiment) -> None:
        self._run = run
        self._engines = range(experiment.num_engines)
        self._engine = Deployment.of(experiment).engine
        self._model = str(self._engine.model)

    def lines(self) -> Iterator[str]:
        yield from self._speculation()
        for name, help_text in _TABLES["gauges"].items():
            yield from self._per_engine(name, "gauge", help_text, [0 for _ in self._engines])
        yield from self._counters()
        lengths = token_buckets(self._engine.max_model_len or 1)
        for name, samples in self._samples().items():
            buckets, help_text = _TABLES["histograms"][name]
            yield from _head(name, "histogram", help_text)
            for engine, mine in zip(self._engines, samples, strict=True):
                labels: Labels = {"engine": engine, "model_name": self._model}
                yield from _histogram(name, labels, _BUCKETS.get(buckets, lengths), mine)
        yield from _head("cache_config_info", "gauge", "The KV cache of the engine.")
        for engine in self._engines:
            config: Labels = {
                "block_size": self._engine.block_size,
                "enable_prefix_caching": self._engine.enable_prefix_caching,
                "engine": engine,
                "num_gpu_blocks": self._engine.num_gpu_blocks,
            }
            yield _sample("cache_config_info", config, 1)

    def _speculation(self) -> Iterator[str]:
        drafts = int(self._run.requests["drafts"].sum())
        if not drafts:
            return
        for column in ("drafts", "draft_tokens", "accepted_tokens"):
            help_text = f"Speculative decoding: {column.replace('_', ' ')}."
            yield from self._sums(f"spec_decode_num_{column}", column, help_text)
        name = "spec_decode_num_accepted_tokens_per_pos_total"
        yield from _head(name, "counter", "Accepted tokens by position in the draft, all engines.")
        # Recorded of all replicas together: of several, the label engine can name none.
        engine = "all" if len(self._engines) > 1 else 0
        rates = self._run.summary.get("spec_decode_per_position_acceptance_rates", [])
        for position, rate in enumerate(rates):
            labels: Labels = {"engine": engine, "model_name": self._model, "position": position}
            yield _sample(name, labels, round(rate * drafts))

    def _counters(self) -> Iterator[str]:
        for name, (column, help_text) in _TABLES["sums"].items():
            if self._engine.enable_prefix_caching or not name.startswith("prefix_cache"):
                yield from self._sums(name, column, help_text)
        name, help_text = "request_success_total", "Requests that were answered."
        ended = map(len, self._by_engine(self._run.requests["request"]))
        yield from self._per_engine(name, "counter", help_text, ended, finished_reason="length")

    def _samples(self) -> dict[str, list[Samples]]:
        requests = self._run.requests
        found: dict[str, Samples] = {
            "time_to_first_token_seconds": ttft(requests),
            "request_time_per_output_token_seconds": tpot(requests, of_one_token=0.0),
            "e2e_request_latency_seconds": latency(requests),
            "request_queue_time_seconds": queue_time(requests),
            "request_inference_time_seconds": requests["ended_at"] - requests["scheduled_at"],
            "request_prefill_time_seconds": requests["first_token_at"] - requests["scheduled_at"],
            "request_decode_time_seconds": decode_time(requests),
            "request_prompt_tokens": requests["prompt_len"],
            "request_generation_tokens": requests["output_len"],
            "request_num_preemptions": requests["preemptions"],
        }
        by_engine = {name: self._by_engine(samples) for name, samples in found.items()}
        return {**by_engine, "inter_token_latency_seconds": self._gaps()}

    def _by_engine(self, samples: Samples) -> list[Samples]:
        return [samples[self._run.requests["replica"] == engine] for engine in self._engines]

    def _gaps(self) -> list[Samples]:
        itls, path = self._run.summary.get("itls"), self._run.path / "summary.json"
        if itls is None:
            raise ConfigError(
                f"{path}: holds no itls; it was written with --no-details; run the experiment "
                "again without that"
            )
        if not isinstance(itls, list) or len(itls) != len(self._run.requests):
            raise ConfigError(
                f"{path}: itls must be one list per request; run the experiment again"
            )
        owners = np.repeat(self._run.requests["replica"], [len(gaps) for gaps in itls])
        flat = np.array([gap for gaps in itls for gap in gaps], dtype=np.float64)
        return [flat[owners == engine] for engine in self._engines]

    def _sums(self, name: str, column: str, help_text: str) -> Iterator[str]:
        sums = (int(mine.sum()) for mine in self._by_engine(self._run.requests[column]))
        return self._per_engine(f"{name}_total", "counter", help_text, sums)

    def _per_engine(
        self, name: str, kind: str, help_text: str, values: Iterable[float], **labels: str
    ) -> Iterator[str]:
        yield from _head(name, kind, help_text)
        for engine, value in zip(self._engines, values, strict=True):
            yield _sample(name, {"engine": engine, **labels, "model_name": self._model}, value)


def _histogram(
    name: str, labels: Labels, buckets: Sequence[float], samples: Samples
) -> Iterator[str]:
    counts = np.searchsorted(np.sort(samples), buckets, side="right").tolist()
    bounds = [*(str(float(bound)) for bound in buckets), "+Inf"]
    for bound, count in zip(bounds, [*counts, len(samples)], strict=True):
        yield _sample(f"{name}_bucket", {**labels, "le": bound}, count)
    yield _sample(f"{name}_count", labels, len(samples))
    yield _sample(f"{name}_sum", labels, float(samples.sum()))


def _head(name: str, kind: str, help_text: str) -> Iterator[str]:
    yield f"# HELP vllm:{name} {help_text}"
    yield f"# TYPE vllm:{name} {kind}"


def _sample(name: str, labels: Labels, value: float) -> str:
    pairs = ",".join(f'{key}="{_escaped(str(text))}"' for key, text in labels.items())
    return f"vllm:{name}{{{pairs}}} {float(value)!r}"


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


_STEPS_TRACK, _GPU_TRACK, _FIRST_REQUEST_TRACK = 1, 2, 10
_STEP_ARGS = (
    "num_requests", "batched_tokens", "context_tokens", "prefill_tokens", "draft_tokens",
    "accepted_tokens", "output_tokens",
)  # fmt: skip
_REQUEST_ARGS = (
    "prompt_len", "output_len", "cached_len", "preemptions", "drafts", "draft_tokens",
    "accepted_tokens",
)  # fmt: skip

Window = tuple[float, float]
Event = dict[str, Any]


def write_chrome_trace(
    run: ResultsFolder, stream: IO[str], window: Window = (0.0, float("inf"))
) -> int:
    """Write what touches a window of a run, seconds, as a trace; return the number of events."""
    count = 0
    head = {"displayTimeUnit": "ms", "otherData": {"source": "specsim", **run.provenance}}
    stream.write(json.dumps(head)[:-1] + ', "traceEvents": [')
    for event in _events(run, window):
        stream.write(",\n" if count else "\n")
        stream.write(json.dumps(event, separators=(",", ":")))
        count += 1
    stream.write("\n]}\n")
    return count


def _events(run: ResultsFolder, window: Window) -> Iterator[Event]:
    usable = int(run.own["num_gpu_blocks"]) - 1  # vLLM's null block holds nothing
    for replica in range(int(run.own["replicas"])):
        pid = replica + 1
        yield from _name(pid, 0, "process", f"replica {replica}")
        yield from _name(pid, _STEPS_TRACK, "thread", "steps")
        yield from _name(pid, _GPU_TRACK, "thread", "GPU")
        if replica in run.steps.replicas:
            steps = run.steps.of_replica(replica)
            touches = (steps["ended_at"] >= window[0]) & (steps["scheduled_at"] < window[1])
            yield from _step_events(steps.where(touches), pid, usable)
        yield from _request_events(run.requests, replica, window)


def _name(pid: int, tid: int, kind: str, name: str) -> Iterator[Event]:
    """Name a process or a track, and let it stand where its number says."""
    place = pid if kind == "process" else tid
    for event, args in (("name", {"name": name}), ("sort_index", {"sort_index": place})):
        yield {"ph": "M", "pid": pid, "tid": tid, "name": f"{kind}_{event}", "args": args}


def _nanoseconds(seconds: NDArray[Any]) -> list[int]:
    """Return times as whole nanoseconds: sums of them are exact, so that spans nest."""
    whole = np.round(np.asarray(seconds, dtype=np.float64) * 1e9).astype(np.int64)
    return list(map(int, whole))


def _span(track: tuple[int, int], name: str, start: int, end: int, **args: Any) -> Event:
    pid, tid = track
    event = {"ph": "X", "pid": pid, "tid": tid, "name": name, "ts": start / 1e3}
    return {**event, "dur": (end - start) / 1e3, **({"args": args} if args else {})}


def _step_events(steps: StepsTable, pid: int, usable: int) -> Iterator[Event]:
    if not len(steps):
        return
    scheduled, until = _nanoseconds(steps["scheduled_at"]), _nanoseconds(steps.held_until)
    started = _nanoseconds(steps["started_at"])
    verified = _nanoseconds(steps["started_at"] + steps["target_time"])
    drafted = _nanoseconds(steps["started_at"] + steps["target_time"] + steps["draft_time"])
    args = {name: steps[name].tolist() for name in _STEP_ARGS}
    kinds = _kinds(steps)
    preemptions = steps["preemptions"].tolist()
    for row, start in enumerate(scheduled):
        values = {name: column[row] for name, column in args.items()}
        yield _span((pid, _STEPS_TRACK), kinds[row], start, until[row], **values)
        yield _span((pid, _GPU_TRACK), "target", started[row], verified[row])
        if drafted[row] > verified[row]:
            yield _span((pid, _GPU_TRACK), "draft", verified[row], drafted[row])
        if preemptions[row]:
            yield {
                "ph": "i", "s": "t", "pid": pid, "tid": _STEPS_TRACK, "name": "preemption",
                "ts": start / 1e3, "args": {"requests": preemptions[row]},
            }  # fmt: skip
    yield from _counters(steps, pid, usable, scheduled, until)


def _kinds(steps: StepsTable) -> list[str]:
    prefill, batched = steps["prefill_tokens"], steps["batched_tokens"]
    kinds = np.select([prefill == 0, prefill == batched], ["decode", "prefill"], "mixed")
    return list(map(str, kinds))


def _counters(
    steps: StepsTable, pid: int, usable: int, scheduled: list[int], until: list[int]
) -> Iterator[Event]:
    """Yield each counter where it changes; between busy periods nothing runs or waits."""
    series: dict[str, dict[str, list[float]]] = {
        "requests": {
            "running": steps["num_running"].tolist(),
            "waiting": steps["num_waiting"].tolist(),
        },
        "KV blocks": {"used": (usable - steps["free_blocks"].astype(np.int64)).tolist()},
        "draft length": {"asked": steps["asked_draft_len"].astype(float).round(3).tolist()},
    }
    idle_after = [end < later for end, later in zip(until[:-1], scheduled[1:], strict=True)]
    for name, columns in series.items():
        shown: dict[str, float] = {}
        for row, (start, idles) in enumerate(zip(scheduled, [*idle_after, True], strict=True)):
            now = {key: values[row] for key, values in columns.items()}
            if now != shown:
                yield _counter(pid, name, start, now)
            shown = now
            if idles:
                shown = dict.fromkeys(columns, 0)
                yield _counter(pid, name, until[row], shown)


def _counter(pid: int, name: str, at: int, values: dict[str, float]) -> Event:
    return {"ph": "C", "pid": pid, "tid": 0, "name": name, "ts": at / 1e3, "args": values}


def _request_events(requests: RunTable, replica: int, window: Window) -> Iterator[Event]:
    pid = replica + 1
    is_mine = requests["replica"] == replica
    is_mine &= (requests["ended_at"] >= window[0]) & (requests["arrived_at"] < window[1])
    rows = np.flatnonzero(is_mine)
    rows = rows[np.argsort(requests["arrived_at"][rows], kind="stable")]
    times = [
        _nanoseconds(requests[name][rows])
        for name in ("arrived_at", "scheduled_at", "first_token_at", "ended_at")
    ]
    lanes = list(_lanes(times[0], times[3]))
    for lane in range(max(lanes, default=-1) + 1):
        yield from _name(pid, _FIRST_REQUEST_TRACK + lane, "thread", f"requests {lane}")
    for row, lane, *stamps in zip(rows.tolist(), lanes, *times, strict=True):
        arrived, scheduled, first, ended = stamps
        track = (pid, _FIRST_REQUEST_TRACK + lane)
        args = {name: int(requests[name][row]) for name in _REQUEST_ARGS}
        yield _span(track, f"request {int(requests['request'][row])}", arrived, ended, **args)
        yield _span(track, "queued", arrived, scheduled)
        yield _span(track, "prefill", scheduled, first)
        yield _span(track, "decode", first, ended)


def _lanes(starts: Iterable[int], ends: Iterable[int]) -> Iterator[int]:
    """Yield for each request, in order of arrival, the lowest track that is free."""
    free: list[int] = []
    busy: list[tuple[int, int]] = []
    count = 0
    for start, end in zip(starts, ends, strict=True):
        while busy and busy[0][0] <= start:
            heappush(free, heappop(busy)[1])
        if not free:
            heappush(free, count)
            count += 1
        lane = heappop(free)
        heappush(busy, (end, lane))
        yield lane
