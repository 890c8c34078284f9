"""A run in the words of vLLM: what its ``/metrics`` would say, and its benchmark's result file.

Names, labels and buckets of the metrics are those of vLLM 0.32 (``v1/metrics/loggers.py``), one
engine per replica. Gauges have their values after the last request: nothing runs any more.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specsim.core.errors import ConfigError
from specsim.results.folder import ResultsFolder
from specsim.results.metrics import (
    PER_TOKEN_BUCKETS,
    PREEMPTIONS_BUCKETS,
    REQUEST_BUCKETS,
    TTFT_BUCKETS,
    decode_time,
    latency,
    queue_time,
    tpot,
    ttft,
)
from specsim.run.deployment import Deployment
from specsim.run.experiment import Experiment

Labels = dict[str, object]
Samples = NDArray[Any]


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


class _Page:
    """The samples of a run, by engine."""

    def __init__(self, run: ResultsFolder, experiment: Experiment) -> None:
        self._run = run
        self._engines = range(experiment.num_engines)
        self._engine = Deployment.of(experiment).engine
        self._model = str(self._engine.model)

    def lines(self) -> Iterator[str]:
        """Yield the lines of the page."""
        yield from self._speculation()
        for name, help_text in (
            ("num_requests_running", "Number of requests in model execution batches."),
            ("num_requests_waiting", "Number of requests waiting to be processed."),
            ("kv_cache_usage_perc", "KV-cache usage. 1 means 100 percent usage."),
        ):
            yield from self._per_engine(name, "gauge", help_text, lambda mine: 0)
        yield from self._counters()
        yield from self._histograms()
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
        drafts = int(self._requests("drafts").sum())
        if not drafts:
            return
        for name, column in (
            ("num_drafts", "drafts"),
            ("num_draft_tokens", "draft_tokens"),
            ("num_accepted_tokens", "accepted_tokens"),
        ):
            help_text = f"Speculative decoding: {column.replace('_', ' ')}."
            yield from self._sums(f"spec_decode_{name}_total", help_text, column)
        name = "spec_decode_num_accepted_tokens_per_pos_total"
        yield from _head(name, "counter", "Accepted tokens by position in the draft, all engines.")
        # Recorded of all replicas together: of several, the label engine can name none.
        engine = "all" if len(self._engines) > 1 else 0
        rates = self._run.summary.get("spec_decode_per_position_acceptance_rates", [])
        for position, rate in enumerate(rates):
            labels: Labels = {"engine": engine, "model_name": self._model, "position": position}
            yield _sample(name, labels, round(rate * drafts))

    def _counters(self) -> Iterator[str]:
        if self._engine.enable_prefix_caching:
            yield from self._sums(
                "prefix_cache_queries_total", "Prompt tokens looked up.", "prompt_len"
            )
            yield from self._sums(
                "prefix_cache_hits_total", "Prompt tokens found in the cache.", "cached_len"
            )
        yield from self._sums("num_preemptions_total", "Preemptions.", "preemptions")
        yield from self._sums("prompt_tokens_total", "Prefill tokens processed.", "prompt_len")
        yield from self._sums("generation_tokens_total", "Output tokens.", "output_len")
        yield from _head("request_success_total", "counter", "Requests that were answered.")
        for engine in self._engines:
            labels = {"engine": engine, "finished_reason": "length", "model_name": self._model}
            number = int((self._requests("replica") == engine).sum())
            yield _sample("request_success_total", labels, number)

    def _histograms(self) -> Iterator[str]:
        requests = self._run.requests
        running = requests["ended_at"] - requests["scheduled_at"]
        prefill = requests["first_token_at"] - requests["scheduled_at"]
        per_token = tpot(requests, of_one_token=0.0)
        lengths = tuple(_one_two_five(self._engine.max_model_len or 1))
        for name, buckets, samples, help_text in (
            ("time_to_first_token_seconds", TTFT_BUCKETS, ttft(requests), "Time to first token."),
            (
                "request_time_per_output_token_seconds",
                PER_TOKEN_BUCKETS,
                per_token,
                "Time per output token after the first.",
            ),
            (
                "e2e_request_latency_seconds",
                REQUEST_BUCKETS,
                latency(requests),
                "End-to-end latency.",
            ),
            ("request_queue_time_seconds", REQUEST_BUCKETS, queue_time(requests), "Time waiting."),
            ("request_inference_time_seconds", REQUEST_BUCKETS, running, "Time running."),
            ("request_prefill_time_seconds", REQUEST_BUCKETS, prefill, "Time in prefill."),
            (
                "request_decode_time_seconds",
                REQUEST_BUCKETS,
                decode_time(requests),
                "Time in decode.",
            ),
            ("request_prompt_tokens", lengths, requests["prompt_len"], "Prompt lengths."),
            ("request_generation_tokens", lengths, requests["output_len"], "Output lengths."),
            (
                "request_num_preemptions",
                PREEMPTIONS_BUCKETS,
                requests["preemptions"],
                "Preemptions of a request.",
            ),
        ):
            yield from self._histogram(name, help_text, buckets, self._by_engine(samples))
        gaps = self._gaps()
        name, help_text = "inter_token_latency_seconds", "Time between two deliveries."
        yield from self._histogram(name, help_text, PER_TOKEN_BUCKETS, gaps)

    def _requests(self, name: str) -> Samples:
        return self._run.requests[name]

    def _by_engine(self, samples: Samples) -> list[Samples]:
        return [samples[self._requests("replica") == engine] for engine in self._engines]

    def _gaps(self) -> list[Samples]:
        """Return the gaps between deliveries, seconds, per engine."""
        itls = self._run.summary.get("itls")
        if itls is None:
            raise ConfigError(
                f"{self._run.path / 'summary.json'}: holds no itls; it was written with "
                "--no-details; run the experiment again without that"
            )
        if not isinstance(itls, list) or len(itls) != len(self._run.requests):
            raise ConfigError(
                f"{self._run.path / 'summary.json'}: itls must be one list per request; run the "
                "experiment again"
            )
        owners = np.repeat(self._requests("replica"), [len(gaps) for gaps in itls])
        flat = np.array([gap for gaps in itls for gap in gaps], dtype=np.float64)
        return [flat[owners == engine] for engine in self._engines]

    def _sums(self, name: str, help_text: str, column: str) -> Iterator[str]:
        values = self._requests(column)
        return self._per_engine(name, "counter", help_text, lambda mine: int(values[mine].sum()))

    def _per_engine(
        self, name: str, kind: str, help_text: str, value: Callable[[Samples], float]
    ) -> Iterator[str]:
        yield from _head(name, kind, help_text)
        for engine in self._engines:
            labels = {"engine": engine, "model_name": self._model}
            yield _sample(name, labels, value(self._requests("replica") == engine))

    def _histogram(
        self, name: str, help_text: str, buckets: Sequence[float], samples: list[Samples]
    ) -> Iterator[str]:
        yield from _head(name, "histogram", help_text)
        for engine, mine in zip(self._engines, samples, strict=True):
            labels = {"engine": engine, "model_name": self._model}
            counts = np.searchsorted(np.sort(mine), buckets, side="right").tolist()
            for bound, count in zip(buckets, counts, strict=True):
                text = str(float(bound))
                yield _sample(f"{name}_bucket", {**labels, "le": text}, count)
            yield _sample(f"{name}_bucket", {**labels, "le": "+Inf"}, len(mine))
            yield _sample(f"{name}_count", labels, len(mine))
            yield _sample(f"{name}_sum", labels, float(mine.sum()))


def _one_two_five(largest: int) -> Iterator[float]:
    """Yield 1, 2, 5, 10, 20, 50, ... up to a length."""
    power = 1
    while True:
        for digit in (1, 2, 5):
            if digit * power > largest:
                return
            yield float(digit * power)
        power *= 10


def _head(name: str, kind: str, help_text: str) -> Iterator[str]:
    yield f"# HELP vllm:{name} {help_text}"
    yield f"# TYPE vllm:{name} {kind}"


def _sample(name: str, labels: Labels, value: float) -> str:
    pairs = ",".join(f'{key}="{_escaped(str(text))}"' for key, text in labels.items())
    return f"vllm:{name}{{{pairs}}} {float(value)!r}"


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
