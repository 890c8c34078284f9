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
from specsim.results.folder import ResultsFolder, RunTable, StepsTable, check_same_run, hint
from specsim.results.prometheus import EngineMetrics, Family, page, per_position, request_samples
from specsim.results.timeline import engines_of
from specsim.run.deployment import Deployment
from specsim.run.experiment import Experiment, config_hash

Samples = NDArray[Any]


def load_folder(path: Path) -> tuple[ResultsFolder, Experiment]:
    """Return a run's folder and experiment; a SpecsimError if damaged or not of one run."""
    if not path.is_dir():
        raise ConfigError(f"{path}: is not a folder; give one that `specsim run --out` wrote")
    if not (path / "config.yaml").is_file():
        raise ConfigError(
            f"{path}: holds no config.yaml, so it is not of one run; {hint(path, 'config.yaml')}"
        )
    run = ResultsFolder(path)
    experiment = Experiment.load(path / "config.yaml")
    names = "config.yaml and summary.json"
    check_same_run(path, names, config_hash(run.config), run.own["config_hash"])
    return run, experiment


def vllm_bench_result(run: ResultsFolder) -> dict[str, Any]:
    """Return what ``vllm bench serve --save-result`` would have written.

    Returns:
        ``summary.json`` without specsim's own block, and with vLLM's other fields: ``rtfx`` (about
            audio) and, with details per request (``--save-detailed``), an empty text per answer.
            Where a client's definition differs, it is used: the client begins before the gap until
            the first arrival, no request waits in it, and maxima are those of `_busiest_seconds`,
            which need the details.
    """
    otherwise = {"specsim", "max_output_tokens_per_s", "max_concurrent_requests"}
    result = {name: value for name, value in run.summary.items() if name not in otherwise}
    duration = result["duration"] + float(run.requests["arrived_at"].min())
    rates = (name for name in _RATES if result[name] is not None)
    result |= {name: result[name] * result["duration"] / duration for name in rates}
    result["duration"] = duration
    if "itls" in result:
        num_requests = int(result["completed"])
        result["generated_texts"] = [""] * num_requests
        result["queue_times"] = [0.0] * num_requests
        result |= _busiest_seconds(result)
    result["rtfx"] = 0.0
    return result


_RATES = ("request_throughput", "request_goodput", "output_throughput", "total_token_throughput")


def _busiest_seconds(result: dict[str, Any]) -> dict[str, float]:
    """Return the highest counts in any second since the first arrival, as vLLM's client does.

    A delivery counts as one token; requests count in each second in which they are open (vLLM
    0.33.0 ``benchmarks/serve.py calculate_metrics``).
    """
    starts = np.array(result["start_times"])
    starts -= starts.min()
    firsts = (starts + result["ttfts"]).tolist()
    times = [
        first + np.cumsum([0.0, *gaps]) for first, gaps in zip(firsts, result["itls"], strict=True)
    ]
    opened, closed = starts.astype(int), (starts + result["latencies"]).astype(int)
    changes = np.bincount(opened, minlength=closed.max() + 2)
    changes -= np.bincount(closed + 1, minlength=len(changes))
    return {
        "max_output_tokens_per_s": float(np.bincount(np.concatenate(times).astype(int)).max()),
        "max_concurrent_requests": int(np.cumsum(changes).max()),
    }


def prometheus_text(run: ResultsFolder, experiment: Experiment) -> str:
    """Return a run as Prometheus text, format 0.0.4; a SpecsimError if its files do not match."""
    counted = _counted(run, experiment)
    families: list[tuple[object, Iterable[Family]]] = [
        (replica, each.families()) for replica, each in enumerate(counted)
    ]
    rates = run.summary.get("spec_decode_per_position_acceptance_rates", [])
    drafts = int(run.requests["drafts"].sum())
    if drafts:
        # Recorded for all replicas together, so with several the label engine is missing.
        accepted = per_position([round(rate * drafts) for rate in rates])
        families.append(("all" if len(counted) > 1 else 0, [accepted]))
    model = str(Deployment.of(experiment).engine.model)
    return page(families, model)


def _counted(run: ResultsFolder, experiment: Experiment) -> list[EngineMetrics]:
    """Return the counters of each replica; its gauges are 0, because nothing runs any more."""
    engine, requests = Deployment.of(experiment).engine, _with_found_len(run.requests)
    sums = {**_SUMS, **(_DRAFT_SUMS if requests["drafts"].any() else {})}
    sums |= _PREFIX_SUMS if engine.enable_prefix_caching else {}
    samples, (owners, gaps) = request_samples(requests), _gaps(run)
    samples["request_prefill_kv_computed_tokens"] = requests["prompt_len"] - requests["found_len"]
    found, limit = [], experiment.workload.max_tokens
    ends = requests["prompt_len"] + requests["output_len"]
    stops = (requests["output_len"] < (limit or 0)) & (ends < engine.max_model_len)  # by a token
    pools = experiment.pools  # requests are counted where they ended
    for replica in range(experiment.num_engines if pools is None else pools.decode.slots):
        mine = requests["replica"] == replica
        counted = EngineMetrics(engine, 0)
        counted.counters = {name: int(requests[col][mine].sum()) for name, col in sums.items()}
        ended = int((stops & mine).sum())
        counted.ends = {"stop": ended, "length": int(mine.sum()) - ended}
        own = {name: values[mine] for name, values in samples.items()}
        own["inter_token_latency_seconds"] = gaps[owners == replica]
        counted.histograms = {name: counted.histograms[name].of(each) for name, each in own.items()}
        found.append(counted)
    return found


def _with_found_len(requests: RunTable) -> RunTable:
    """Return the requests with all cached tokens of their prompts: vLLM's "local + external"."""
    found = (requests.columns.get(name, 0) for name in ("cached_len", "host_len", "disk_len"))
    return RunTable({**requests.columns, "found_len": np.asarray(sum(found))}, requests.provenance)


_SUMS = {
    "num_preemptions": "preemptions", "prompt_tokens": "prompt_len",
    "prompt_tokens_cached": "found_len", "generation_tokens": "output_len",
}  # fmt: skip
"""Columns of requests.parquet whose sums are counters, and those that only some runs have."""
_PREFIX_SUMS = {"prefix_cache_queries": "prompt_len", "prefix_cache_hits": "cached_len"}
_DRAFT_SUMS = {
    f"spec_decode_num_{column}": column for column in ("drafts", "draft_tokens", "accepted_tokens")
}


def _gaps(run: ResultsFolder) -> tuple[Samples, Samples]:
    """Return the replica, and the length in seconds, of each gap between two deliveries."""
    itls, path = run.summary.get("itls"), run.path / "summary.json"
    if itls is None:
        raise ConfigError(
            f"{path}: holds no itls; run the experiment again without --no-details, or from Python "
            "with simulate(..., keeps_deliveries=True)"
        )
    if not isinstance(itls, list) or len(itls) != len(run.requests):
        raise ConfigError(f"{path}: itls must be one list per request; run the experiment again")
    owners = np.repeat(run.requests["replica"], [len(gaps) for gaps in itls])
    return owners, np.array([gap for gaps in itls for gap in gaps], dtype=np.float64)


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
    """Write the part of a run in a window, seconds, as a trace; return the number of events."""
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
    engines = [
        (number, each) for each in engines_of(run.own, run.steps.span[0]) for number in each.numbers
    ]
    for replica, (_, usable, _, shares) in engines:
        pid = replica + 1
        yield from _name(pid, 0, "process", f"replica {replica}")
        yield from _name(pid, _STEPS_TRACK, "thread", "steps")
        for stage in range(len(shares)):
            name = f"GPU, stage {stage + 1}" if len(shares) > 1 else "GPU"
            yield from _name(pid, _GPU_TRACK + stage, "thread", name)
        if replica in run.steps.replicas:
            steps = run.steps.of_replica(replica)
            touches = (steps["ended_at"] >= window[0]) & (steps["scheduled_at"] < window[1])
            spans, ends = _stage_spans(steps, shares)[..., touches], _ends(steps)[:, touches]
            yield from _step_events(steps.where(touches), pid, usable, spans, ends)
        yield from _request_events(run.requests, replica, window, len(shares))


def _name(pid: int, tid: int, kind: str, name: str) -> Iterator[Event]:
    """Yield the events that name a process or track, and sort it by its number."""
    place = pid if kind == "process" else tid
    for event, args in (("name", {"name": name}), ("sort_index", {"sort_index": place})):
        yield {"ph": "M", "pid": pid, "tid": tid, "name": f"{kind}_{event}", "args": args}


def _nanoseconds(seconds: NDArray[Any]) -> list[int]:
    """Return times as whole nanoseconds, whose sums are exact, so that spans nest."""
    found: list[int] = np.round(np.asarray(seconds, np.float64) * 1e9).astype(np.int64).tolist()
    return found


def _span(track: tuple[int, int], name: str, start: int, end: int, **args: Any) -> Event:
    pid, tid = track
    event = {"ph": "X", "pid": pid, "tid": tid, "name": name, "ts": start / 1e3}
    return {**event, "dur": (end - start) / 1e3, **({"args": args} if args else {})}


def _stage_spans(steps: StepsTable, shares: Sequence[float]) -> NDArray[np.int64]:
    """Return when each step enters and leaves each pipeline stage, ns, shape (stages, 2, steps).

    Stages work one after another, and a step waits for the previous one in each; the last stage
    also drafts.
    """
    drafted = steps["started_at"] + steps["target_time"] + steps["draft_time"]
    ends = [
        *(
            _nanoseconds(steps["started_at"] + share * steps["target_time"])
            for share in (0.0, *np.cumsum(shares[:-1]))
        ),
        _nanoseconds(drafted),
    ]
    comes, spans = np.array(ends[0]), []
    for taken in np.diff(ends, axis=0):
        before = np.cumsum(taken) - taken
        enters = before + np.maximum.accumulate(comes - before)
        comes = enters + taken
        spans.append([enters, comes])
    return np.array(spans)


def _ends(steps: StepsTable) -> NDArray[np.int64]:
    """Return the end of each step of a replica, ns, and whether it is idle then; (2, steps)."""
    scheduled, until = _nanoseconds(steps["scheduled_at"]), _nanoseconds(steps.held_until)
    idles = [end < later for end, later in zip(until[:-1], scheduled[1:], strict=True)]
    return np.array([until, [*idles, True]])


def _step_events(
    steps: StepsTable, pid: int, usable: int, spans: NDArray[np.int64], ends: NDArray[np.int64]
) -> Iterator[Event]:
    scheduled, (until, idles) = _nanoseconds(steps["scheduled_at"]), ends.tolist()
    verified = steps["started_at"] + steps["target_time"]
    drafting = np.array(_nanoseconds(verified + steps["draft_time"])) - _nanoseconds(verified)
    drafts = spans[-1, 1] - drafting
    stages, last = spans.tolist(), len(spans) - 1
    args = {name: steps[name].tolist() for name in _STEP_ARGS}
    prefill, batched = steps["prefill_tokens"], steps["batched_tokens"]
    kinds = np.select([prefill == 0, prefill == batched], ["decode", "prefill"], "mixed").tolist()
    preemptions = steps["preemptions"].tolist()
    for row, start in enumerate(scheduled):
        values = {name: column[row] for name, column in args.items()}
        yield _span((pid, _STEPS_TRACK), kinds[row], start, until[row], **values)
        for stage, (enters, leaves) in enumerate(stages):
            end = leaves[row] if stage < last else int(drafts[row])
            yield _span((pid, _GPU_TRACK + stage), "target", enters[row], end)
        if drafting[row]:
            yield _span((pid, _GPU_TRACK + last), "draft", int(drafts[row]), stages[-1][1][row])
        if preemptions[row]:
            yield {
                "ph": "i", "s": "t", "pid": pid, "tid": _STEPS_TRACK, "name": "preemption",
                "ts": start / 1e3, "args": {"requests": preemptions[row]},
            }  # fmt: skip
    yield from _counters(steps, pid, usable, (scheduled, until, idles))


def _counters(
    steps: StepsTable, pid: int, usable: int, times: tuple[list[int], list[int], list[int]]
) -> Iterator[Event]:
    """Yield each counter where it changes; it is 0 between busy periods.

    Args:
        times: Begin and end of steps, and whether the replica is idle after them.
    """
    series: dict[str, dict[str, list[float]]] = {
        "requests": {
            "running": steps["num_running"].tolist(),
            "waiting": steps["num_waiting"].tolist(),
        },
        "KV blocks": {"used": (usable - steps["free_blocks"].astype(np.int64)).tolist()},
        "draft length": {"asked": steps["asked_draft_len"].astype(float).round(3).tolist()},
    }
    for name, columns in series.items():
        shown: dict[str, float] = {}
        for row, (start, end, idles) in enumerate(zip(*times, strict=True)):
            now = {key: values[row] for key, values in columns.items()}
            if now != shown:
                yield _counter(pid, name, start, now)
            shown = now
            if idles:
                shown = dict.fromkeys(columns, 0)
                yield _counter(pid, name, end, shown)


def _counter(pid: int, name: str, at: int, values: dict[str, float]) -> Event:
    return {"ph": "C", "pid": pid, "tid": 0, "name": name, "ts": at / 1e3, "args": values}


def _request_events(
    requests: RunTable, replica: int, window: Window, num_stages: int
) -> Iterator[Event]:
    pid, first_track = replica + 1, _FIRST_REQUEST_TRACK + num_stages - 1
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
        yield from _name(pid, first_track + lane, "thread", f"requests {lane}")
    for row, lane, *stamps in zip(rows.tolist(), lanes, *times, strict=True):
        arrived, scheduled, first, ended = stamps
        track = (pid, first_track + lane)
        args = {name: int(requests[name][row]) for name in _REQUEST_ARGS}
        yield _span(track, f"request {int(requests['request'][row])}", arrived, ended, **args)
        yield _span(track, "queued", arrived, scheduled)
        yield _span(track, "prefill", scheduled, first)
        yield _span(track, "decode", first, ended)


def _lanes(starts: Iterable[int], ends: Iterable[int]) -> Iterator[int]:
    """Yield, for each request in order of arrival, the lowest free track."""
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
