"""Watchers of a server: what it counts, as Prometheus text, and what it logs of each request.

Names, labels and buckets are those of vLLM 0.32.0, ``v1/metrics/loggers.py``, ``buckets.py`` and
``v1/spec_decode/metrics.py``. Times are simulated seconds, of the engine: what a client sees comes
later by the way to it.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import accumulate, chain
from pathlib import Path
from typing import Any

from specsim.core.errors import ConfigError
from specsim.core.settings import load_mapping
from specsim.engine.python_verbs import PythonVerbs
from specsim.engine.view import StepView
from specsim.reality.run_writer import RequestRow, RunWriter
from specsim.results.metrics import (
    PER_TOKEN_BUCKETS,
    PREEMPTIONS_BUCKETS,
    REQUEST_BUCKETS,
    TTFT_BUCKETS,
    token_buckets,
)
from specsim.serve.live import Live, LiveAnswer, Watcher

_REASONS = ("stop", "length", "abort", "error", "repetition")
_TABLES = load_mapping(Path(__file__).with_name("watchers.yaml"), ConfigError)
_BUCKETS: dict[str, Sequence[float]] = {
    "time_to_first_token": TTFT_BUCKETS,
    "time_per_token": PER_TOKEN_BUCKETS,
    "request_time": REQUEST_BUCKETS,
    "preemptions": PREEMPTIONS_BUCKETS,
    "step_tokens": (1, *(2**power for power in range(3, 15))),
    "answers": (1, 2, 5, 10, 20),
}
"""Besides those of tokens, up to the longest context."""
_PER_POSITION = "spec_decode_num_accepted_tokens_per_pos"

_Sample = tuple[str, str, float]  # ending of the name, further labels, value


class _Histogram:
    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def add(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def samples(self) -> list[_Sample]:
        names = [*(repr(float(bound)) for bound in self.bounds), "+Inf"]
        seen = list(accumulate(self.counts))
        buckets = [("_bucket", f',le="{at}"', count) for at, count in zip(names, seen, strict=True)]
        return [*buckets, ("_count", "", seen[-1]), ("_sum", "", self.total)]


class _Engine:
    def __init__(self, longest: int, num_positions: int) -> None:
        tokens = token_buckets(longest)
        self.histograms = {
            name: _Histogram(_BUCKETS.get(buckets, tokens))
            for name, (_, buckets) in _TABLES["histograms"].items()
        }
        self.counters = dict.fromkeys([*_TABLES["counters"], *_TABLES["draft_counters"]], 0)
        self.ends = dict.fromkeys(_REASONS, 0)
        self.positions = [0] * num_positions


class LiveMetrics(Watcher):
    """Counts what a server's engines do."""

    def __init__(self, live: Live, model: str) -> None:
        self._live, self._model = live, model
        deployment = live.deployment
        longest = deployment.engine.max_model_len
        assert longest is not None
        self._num_positions = deployment.max_draft_len
        self._num_blocks = deployment.setup.num_usable_blocks
        self._engines = [
            _Engine(longest, self._num_positions) for _ in range(live.experiment.num_engines)
        ]

    def stepped(self, engine: int, replica: PythonVerbs, step: StepView) -> None:
        """Count a step's tokens, its drafts, and what it has found in the cache."""
        mine, emitted = self._engines[engine], step["emitted_len"]
        has_emitted = emitted > 0
        counters = mine.counters
        output = int(emitted.sum())
        counters["generation_tokens"] += output
        counters["num_preemptions"] += int(step.record["preemptions"])
        mine.histograms["iteration_tokens_total"].add(int(step.record["prefill_tokens"]) + output)
        verified, accepted = step["verified_len"] * has_emitted, step["accepted_len"]
        if self._num_positions and verified.any():
            counters["spec_decode_num_drafts"] += int((verified > 0).sum())
            counters["spec_decode_num_draft_tokens"] += int(verified.sum())
            taken = accepted[verified > 0]
            counters["spec_decode_num_accepted_tokens"] += int(taken.sum())
            for position in range(int(taken.max(initial=0))):
                mine.positions[position] += int((taken > position).sum())
        sequences: Any = replica.table.sequences
        rows = step.rows[has_emitted]
        for these, names in (
            (rows[sequences["deliveries"][rows] == 1], ("prompt_tokens", "prompt_tokens_cached")),
            (step.rows[step["is_admitted"] == 1], ("prefix_cache_queries", "prefix_cache_hits")),
        ):
            if len(these):
                counters[names[0]] += int(sequences["prompt_len"][these].sum())
                counters[names[1]] += int(sequences["cached_len"][these].sum())

    def delivered(self, engine: int, answer: LiveAnswer, gap: float | None) -> None:
        histograms = self._engines[engine].histograms
        if gap is not None:
            histograms["inter_token_latency_seconds"].add(gap)
            return
        since = answer.first_token_at - answer.request.arrived_at
        histograms["time_to_first_token_seconds"].add(since)

    def ended(self, engine: int, answer: LiveAnswer) -> None:
        mine, row, request = self._engines[engine], answer.row, answer.request
        prompt_len, cached_len = request.prompt_len, int(row["cached_len"])
        mine.ends[answer.finish] += 1
        first, last = answer.first_token_at, answer.last_token_at
        scheduled_at, length = float(row["first_scheduled_at"]), answer.sent_len
        for name, value in (
            ("request_prompt_tokens", prompt_len),
            ("request_generation_tokens", length),
            ("request_params_max_tokens", request.max_tokens or length),
            ("request_time_per_output_token_seconds", (last - first) / max(1, length - 1)),
            ("e2e_request_latency_seconds", last - request.arrived_at),
            ("request_queue_time_seconds", scheduled_at - float(row["arrived_at"])),
            ("request_inference_time_seconds", last - scheduled_at),
            ("request_prefill_time_seconds", first - scheduled_at),
            ("request_decode_time_seconds", last - first),
            ("request_num_preemptions", int(row["preemptions"])),
            ("request_prefill_kv_computed_tokens", prompt_len - cached_len),
        ):
            mine.histograms[name].add(value)

    def answered(self, lens: list[int]) -> None:
        """Count a request that asked for so many answers, and got them; their lengths, tokens."""
        histograms = self._engines[0].histograms
        histograms["request_params_n"].add(len(lens))
        histograms["request_max_num_generation_tokens"].add(max(lens))

    def broken_off(self, answer: LiveAnswer, why: str) -> None:
        self._engines[0].ends["abort"] += 1

    def page(self) -> str:
        model = self._model.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
        families: dict[str, list[str]] = {}
        for number in range(len(self._engines)):
            labels = f'engine="{number}",model_name="{model}"'
            for short, kind, text, samples in self._families(number):
                name = f"vllm:{short}"
                about = [f"# HELP {name} {text}", f"# TYPE {name} {kind}"]
                families.setdefault(name, about).extend(
                    f"{name}{suffix}{{{labels}{extra}}} {float(value)!r}"
                    for suffix, extra, value in samples
                )
        return "\n".join(chain.from_iterable(families.values())) + "\n"

    def _families(self, number: int) -> Iterator[tuple[str, str, str, Sequence[_Sample]]]:
        """Yield name, type, meaning and samples of what one engine has counted."""
        mine, engine = self._engines[number], self._live.deployment.engine
        for name, value in self._gauges(number).items():
            yield name, "gauge", _TABLES["gauges"][name], [("", "", value)]
        drafts = _TABLES["draft_counters"] if mine.positions else {}
        for name, text in {**_TABLES["counters"], **drafts}.items():
            yield f"{name}_total", "counter", text, [("", "", mine.counters[name])]
        ends = [("", f',finished_reason="{reason}"', num) for reason, num in mine.ends.items()]
        yield "request_success_total", "counter", "Requests that have ended.", ends
        if mine.positions:
            places = [("", f',position="{at}"', num) for at, num in enumerate(mine.positions)]
            yield f"{_PER_POSITION}_total", "counter", "Accepted, by position.", places
        for name, (text, _) in _TABLES["histograms"].items():
            yield name, "histogram", text, mine.histograms[name].samples()
        options = {
            "block_size": engine.block_size,
            "enable_prefix_caching": engine.enable_prefix_caching,
            "num_gpu_blocks": self._num_blocks + 1,
        }
        extra = "".join(f',{name}="{value}"' for name, value in options.items())
        yield "cache_config_info", "gauge", "The KV cache's options.", [("", extra, 1)]

    def _gauges(self, number: int) -> dict[str, float]:
        replica = self._live.replicas[number]
        if not replica.is_up:
            return dict.fromkeys(_TABLES["gauges"], 0.0)
        used = 1.0 - int(replica.table.state["num_free"][0]) / self._num_blocks
        return {
            "num_requests_running": float(replica.num_running),
            "num_requests_waiting": float(replica.num_waiting),
            "kv_cache_usage_perc": used,
        }


class Log(Watcher):
    """Writes a line per request, when it ends; a ConfigError if the folder cannot be written to."""

    def __init__(self, live: Live, folder: Path) -> None:
        engine = live.deployment.engine.model_dump(mode="json", exclude_none=True)
        meta = {
            "engine": "specsim serve",
            "model": live.deployment.profile.model,
            "engine_kwargs": engine,
            "kv_cache": {name: engine.get(name) for name in ("num_gpu_blocks", "block_size")},
            "speed": live.speed,
            "seed": live.experiment.seed,
        }
        self._has_ids = bool(live.deployment.engine.enable_prefix_caching)
        count = live.experiment.num_engines
        folders = [folder] if count == 1 else [folder / f"replica-{n}" for n in range(count)]
        self._writers = [RunWriter(each, meta) for each in folders]

    def ended(self, engine: int, answer: LiveAnswer) -> None:
        row = self._row(answer)
        row["scheduled_ts"] = float(answer.row["first_scheduled_at"])
        row["preemptions"] = int(answer.row["preemptions"])
        request = answer.request
        if self._has_ids and request.prompt_token_ids is not None:
            assert request.output_token_ids is not None
            row["input_tok_ids"] = request.prompt_token_ids.tolist()
            row["output_tok_ids"] = request.output_token_ids.tolist()
        self._writers[engine].add_request(row)

    def broken_off(self, answer: LiveAnswer, why: str) -> None:
        self._writers[0].add_request({**self._row(answer), "error": why})

    def close(self) -> None:
        for writer in self._writers:
            writer.close()

    def _row(self, answer: LiveAnswer) -> RequestRow:
        request, has_begun = answer.request, answer.sent_len > 0
        return {
            "request_id": f"request-{request.index}",
            "number": request.index,
            "input_toks": request.prompt_len,
            "output_toks": answer.sent_len,
            "arrival_time": request.arrived_at,
            "queued_ts": request.arrived_at,
            "scheduled_ts": None,
            "first_token_ts": answer.first_token_at if has_begun else None,
            "last_token_ts": answer.last_token_at if has_begun else None,
            "deliveries": answer.deliveries,
            "accepted": answer.drafts,
        }
