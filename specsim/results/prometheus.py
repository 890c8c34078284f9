"""Prometheus: the counters of engines as the text of ``/metrics``.

Names, labels and buckets are those of vLLM 0.32.0, ``v1/metrics/loggers.py``, ``buckets.py`` and
``v1/spec_decode/metrics.py``.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, chain
from pathlib import Path
from typing import Any

import numpy as np

from specsim.core.errors import ConfigError
from specsim.core.settings import load_mapping
from specsim.results.metrics import Requests, Seconds, decode_time, latency, queue_time, tpot, ttft

_TABLES = load_mapping(Path(__file__).with_name("prometheus.yaml"), ConfigError)
_CACHE = ("block_size", "enable_prefix_caching", "num_gpu_blocks")

Sample = tuple[str, dict[str, object], float]  # suffix of the name, further labels, value
Family = tuple[str, str, str, Sequence[Sample]]  # name, type, meaning


class _Histogram:
    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def add(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def of(self, values: Seconds) -> "_Histogram":
        """Return a histogram of `values` with the same buckets."""
        found = _Histogram(self.bounds)
        places = np.searchsorted(self.bounds, values)
        found.counts = np.bincount(places, minlength=len(self.counts)).tolist()
        found.total = float(values.sum())
        return found

    def samples(self) -> list[Sample]:
        seen = list(accumulate(self.counts))
        names = [*(repr(float(bound)) for bound in self.bounds), "+Inf"]
        found: list[Sample] = [
            ("_bucket", {"le": bound}, count) for bound, count in zip(names, seen, strict=True)
        ]
        return [*found, ("_count", {}, seen[-1]), ("_sum", {}, self.total)]


def request_samples(requests: Requests) -> dict[str, Seconds]:
    """Return the samples of each histogram, by its name, from requests that have ended."""
    return {
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
        "request_prefill_kv_computed_tokens": requests["prompt_len"] - requests["cached_len"],
    }


class EngineMetrics:
    """The counters of one engine.

    Args:
        config: Fields of `specsim.engine.config.EngineConfig`, with every default filled in.
        num_positions: Longest draft, tokens; with 0, metrics of speculation are left out.
    """

    def __init__(self, config: Any, num_positions: int) -> None:
        self._cache: dict[str, object] = {name: getattr(config, name) for name in _CACHE}
        longest = config.max_model_len
        digits = (each * 10**power for power in range(len(str(longest))) for each in (1, 2, 5))
        tokens = [float(bound) for bound in digits if bound <= longest]
        self.histograms = {
            name: _Histogram(_TABLES["buckets"].get(buckets, tokens))
            for name, (_, buckets) in _TABLES["histograms"].items()
        }
        self.gauges = dict.fromkeys(_TABLES["gauges"], 0.0)
        drafts = _TABLES["draft_counters"] if num_positions else ()
        self.counters = dict.fromkeys([*_TABLES["counters"], *drafts], 0)
        self.ends = dict.fromkeys(("stop", "length", "abort", "error", "repetition"), 0)
        self.positions = [0] * num_positions

    def families(self) -> Iterator[Family]:
        for name, value in self.gauges.items():
            yield name, "gauge", _TABLES["gauges"][name], [("", {}, value)]
        texts = {**_TABLES["counters"], **_TABLES["draft_counters"]}
        for name, count in self.counters.items():
            yield f"{name}_total", "counter", texts[name], [("", {}, count)]
        ends: list[Sample] = [("", {"finished_reason": r}, n) for r, n in self.ends.items()]
        yield "request_success_total", "counter", "Requests that have ended.", ends
        if self.positions:
            yield per_position(self.positions)
        for name, found in self.histograms.items():
            yield name, "histogram", _TABLES["histograms"][name][0], found.samples()
        yield "cache_config_info", "gauge", "The KV cache's options.", [("", self._cache, 1)]


def per_position(counts: Sequence[int]) -> Family:
    """Return the drafts accepted at each position, as a metric."""
    name = "spec_decode_num_accepted_tokens_per_pos_total"
    places: list[Sample] = [("", {"position": at}, count) for at, count in enumerate(counts)]
    return name, "counter", "Accepted, by position.", places


def page(engines: Iterable[tuple[object, Iterable[Family]]], model: str) -> str:
    """Return the metrics of engines, given (label, metrics) pairs, as text of format 0.0.4."""
    lines: dict[str, list[str]] = {}
    for engine, families in engines:
        own = {"engine": engine, "model_name": model}
        for short, kind, text, samples in families:
            name = f"vllm:{short}"
            about = [f"# HELP {name} {text}", f"# TYPE {name} {kind}"]
            lines.setdefault(name, about).extend(
                f"{name}{suffix}{{{_labels({**own, **more})}}} {float(value)!r}"
                for suffix, more, value in samples
            )
    return "\n".join(chain.from_iterable(lines.values())) + "\n"


def _labels(labels: dict[str, object]) -> str:
    escapes = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})
    return ",".join(f'{key}="{str(text).translate(escapes)}"' for key, text in labels.items())
