"""Metrics: what a server counts, as a page of Prometheus text under vLLM's names.

Names, labels and buckets are those of vLLM 0.32.0, ``v1/metrics/loggers.py``, ``buckets.py`` and
``v1/spec_decode/metrics.py``. Times are simulated seconds.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import accumulate, chain
from typing import Any

from specsim.engine.python_verbs import PythonVerbs
from specsim.engine.view import StepView
from specsim.results.buckets import (
    PER_TOKEN_BUCKETS,
    PREEMPTIONS_BUCKETS,
    REQUEST_BUCKETS,
    TTFT_BUCKETS,
    token_buckets,
)
from specsim.serve.live import Live, LiveAnswer

_STEP_TOKENS = (1, *(2**power for power in range(3, 15)))
_N = (1, 2, 5, 10, 20)
_REASONS = ("stop", "length", "abort", "error", "repetition")

_GAUGES = {
    "num_requests_running": "Requests in execution batches.",
    "num_requests_waiting": "Requests that wait to be processed.",
    "kv_cache_usage_perc": "Share of the KV cache in use; 1 is all of it.",
}
_COUNTERS = {
    "prefix_cache_queries": "Prompt tokens looked up in the prefix cache.",
    "prefix_cache_hits": "Prompt tokens found in the prefix cache.",
    "num_preemptions": "Preemptions.",
    "prompt_tokens": "Prompt tokens processed, cached ones included.",
    "prompt_tokens_cached": "Prompt tokens that were cached.",
    "generation_tokens": "Output tokens.",
}
_DRAFT_COUNTERS = {
    "spec_decode_num_drafts": "Drafts verified.",
    "spec_decode_num_draft_tokens": "Draft tokens verified.",
    "spec_decode_num_accepted_tokens": "Draft tokens accepted.",
}
_PER_POSITION = "spec_decode_num_accepted_tokens_per_pos"
_HISTOGRAMS: dict[str, tuple[str, Sequence[float] | None]] = {
    "request_prompt_tokens": ("Prompt tokens of a request.", None),
    "request_generation_tokens": ("Output tokens of a request.", None),
    "iteration_tokens_total": ("Tokens of a step.", _STEP_TOKENS),
    "request_max_num_generation_tokens": ("Most output tokens of any answer.", None),
    "request_params_n": ("Answers asked for.", _N),
    "request_params_max_tokens": ("max_tokens asked for.", None),
    "time_to_first_token_seconds": ("Time to first token.", TTFT_BUCKETS),
    "inter_token_latency_seconds": ("Time between two deliveries of a request.", PER_TOKEN_BUCKETS),
    "request_time_per_output_token_seconds": (
        "Mean time per output token of a request.",
        PER_TOKEN_BUCKETS,
    ),
    "e2e_request_latency_seconds": ("Time from arrival to the last token.", REQUEST_BUCKETS),
    "request_queue_time_seconds": ("Time waiting.", REQUEST_BUCKETS),
    "request_inference_time_seconds": ("Time running.", REQUEST_BUCKETS),
    "request_prefill_time_seconds": ("Time from admission to the first token.", REQUEST_BUCKETS),
    "request_decode_time_seconds": ("Time from the first token to the last.", REQUEST_BUCKETS),
    "request_num_preemptions": ("Preemptions of a request.", PREEMPTIONS_BUCKETS),
    "request_prefill_kv_computed_tokens": ("Prompt tokens that were not cached.", None),
}
"""What each is, and its buckets; None: those of tokens, up to the longest context."""


_Sample = tuple[str, str, float]
"""Ending of the name, further labels, value."""


class _Histogram:
    """Counts of one engine by bucket."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def add(self, value: float) -> None:
        """Count a value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def samples(self) -> list[_Sample]:
        """Return its samples."""
        names = [*(repr(float(bound)) for bound in self.bounds), "+Inf"]
        seen = list(accumulate(self.counts))
        buckets = [("_bucket", f',le="{at}"', count) for at, count in zip(names, seen, strict=True)]
        return [*buckets, ("_count", "", seen[-1]), ("_sum", "", self.total)]


class _Engine:
    """What one engine has counted."""

    def __init__(self, longest: int, num_positions: int) -> None:
        tokens = token_buckets(longest)
        self.histograms = {
            name: _Histogram(tokens if bounds is None else bounds)
            for name, (_, bounds) in _HISTOGRAMS.items()
        }
        self.counters = dict.fromkeys([*_COUNTERS, *_DRAFT_COUNTERS], 0)
        self.ends = dict.fromkeys(_REASONS, 0)
        self.positions = [0] * num_positions


class LiveMetrics:
    """Counts what a server's engines do; a `Watcher`."""

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
        first = step.rows[has_emitted]
        first = first[sequences["deliveries"][first] == 1]
        if len(first):
            counters["prompt_tokens"] += int(sequences["prompt_len"][first].sum())
            counters["prompt_tokens_cached"] += int(sequences["cached_len"][first].sum())
        admitted = step.rows[step["is_admitted"] == 1]
        if len(admitted):
            counters["prefix_cache_queries"] += int(sequences["prompt_len"][admitted].sum())
            counters["prefix_cache_hits"] += int(sequences["cached_len"][admitted].sum())

    def delivered(self, engine: int, answer: LiveAnswer, gap: float | None) -> None:
        """Count a delivery."""
        histograms = self._engines[engine].histograms
        if gap is not None:
            histograms["inter_token_latency_seconds"].add(gap)
            return
        since = answer.first_token_at - answer.request.arrived_at
        histograms["time_to_first_token_seconds"].add(since)

    def ended(self, engine: int, answer: LiveAnswer) -> None:
        """Count an answer that has come to its end."""
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
        """Count an answer whose client has gone."""
        self._engines[0].ends["abort"] += 1

    def close(self) -> None:
        """Nothing is left to be done."""

    def page(self) -> str:
        """Return the page."""
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
            yield name, "gauge", _GAUGES[name], [("", "", value)]
        for name, text in {**_COUNTERS, **(_DRAFT_COUNTERS if mine.positions else {})}.items():
            yield f"{name}_total", "counter", text, [("", "", mine.counters[name])]
        ends = [("", f',finished_reason="{reason}"', num) for reason, num in mine.ends.items()]
        yield "request_success_total", "counter", "Requests that have ended.", ends
        if mine.positions:
            places = [("", f',position="{at}"', num) for at, num in enumerate(mine.positions)]
            yield f"{_PER_POSITION}_total", "counter", "Accepted, by position.", places
        for name, (text, _) in _HISTOGRAMS.items():
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
            return dict.fromkeys(_GAUGES, 0.0)
        used = 1.0 - int(replica.table.state["num_free"][0]) / self._num_blocks
        return {
            "num_requests_running": float(replica.num_running),
            "num_requests_waiting": float(replica.num_waiting),
            "kv_cache_usage_perc": used,
        }
