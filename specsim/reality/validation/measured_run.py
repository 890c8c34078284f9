"""A measured run of a load generator: what was served how, and what came of it."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specsim.core.errors import ConfigError
from specsim.core.figures import figures
from specsim.core.settings import load_mapping
from specsim.engine.versions import DEFAULT_VERSION, RULES

LATENCIES = ("ttft", "tpot", "itl", "e2e")
STATISTICS = ("mean", "p50", "p90", "p95", "p99")
TABLE = load_mapping(Path(__file__).with_name("columns.yaml"), ConfigError)
METRICS: tuple[str, ...] = tuple(TABLE["measured"])  # columns that are predicted
DESCRIBED: tuple[str, ...] = tuple(name for names in TABLE["described"].values() for name in names)


@dataclass(frozen=True)
class MeasuredLengths:
    """How long the prompts or answers of a run were, tokens."""

    mean: float
    bounds: tuple[int, int] | None = None  # of a uniform distribution; None: only the mean is known
    shared: int = 0  # leading tokens that all requests have in common
    differ: bool = False  # though it is not known how: evenly from 0.5 to 1.5 of the mean
    median: int | None = None  # of a lognormal distribution, no more than the mean

    @property
    def is_spread(self) -> bool:
        """Whether it is known how they differ."""
        return self.bounds is not None or self.median is not None

    def draw(self, rng: np.random.RandomState, count: int) -> NDArray[np.int64]:
        """Return as many lengths, shape (count,), with that mean; alike unless they differ."""
        lens: NDArray[np.int64]
        if self.bounds is not None:
            lens = rng.randint(self.bounds[0], self.bounds[1] + 1, count)
            return lens
        sums = np.floor(np.arange(count + 1) * self.mean + 1e-6)
        lens = np.diff(sums).astype(np.int64)
        if self.differ or self.median is not None:
            places = (rng.permutation(count) + 0.5) / count
            lens = np.rint(self._quantiles(places)).astype(np.int64)
        return np.maximum(lens, 1)

    def _quantiles(self, places: NDArray[np.float64]) -> NDArray[np.float64]:
        if self.median is None:
            return self.mean * (0.5 + places)
        normal, wanted = np.array([*map(NormalDist().inv_cdf, places)]), math.log(self.mean)
        low, high = 0.0, 64.0  # of so few lengths, a spread of the mean's own would miss the tail
        for _ in range(50):
            spread = (low + high) / 2
            logs = math.log(self.median) + spread * normal
            is_short = np.logaddexp.reduce(logs) - math.log(len(logs)) < wanted
            low, high = (spread, high) if is_short else (low, spread)
        return np.exp(logs)


@dataclass(frozen=True)
class MeasuredRun:
    """One row: what was served how, and what was measured."""

    path: Path
    line: int
    run_id: str
    cells: Mapping[str, str]  # as they stand in the table, by column
    measured: Mapping[str, float]  # by name in `METRICS`; what the row does not have is absent
    engine: Mapping[str, Any]  # options of `specsim.engine.config.EngineConfig` without speculation
    tensor_parallel_size: int
    method: str  # of `specsim.proposers`; empty without speculation
    num_speculative_tokens: int
    """0 without speculation; beside a method, of a server that can draft and never did."""
    rates: tuple[float, ...]  # share of all drafts of which position i was accepted
    acceptance_spread: float | None
    lookup: Mapping[str, float]  # how often and how long one finds; empty: always the full draft
    concurrency: int | None  # clients of a closed loop
    request_rate: float | None  # requests per second; None of a closed loop
    burstiness: float
    num_prompts: int
    num_warmups: int
    is_eager: bool | None  # whether the engine ran without CUDA graphs; None: not said
    graph_tokens: int | None  # of the largest CUDA graph; None: as the engine captures them
    counts_warmups: bool  # whether the server's counters (steps, drafts) include the warm-up
    is_warm: bool  # whether what all prompts have in common was computed before the first request
    prompt: MeasuredLengths | None
    output: MeasuredLengths | None
    max_tokens: int | None  # asked for, where answers end by a stop token; else None
    lengths_seed: int
    notes: tuple[str, ...] = ()  # what was assumed
    gaps: tuple[str, ...] = ()  # of load, speculation or measured values, and what would do
    kv_tokens: int | None = None  # of the KV cache, if logged; `engine` has blocks of one group
    lens: NDArray[np.int64] | None = None  # of single requests, if known; (num_prompts, 2)
    begins_at_once: bool = False
    """Whether the client sends the first of its requests at a rate when it begins, as SGLang's does
    (``bench_serving.py get_request`` at 0033168); vLLM's waits a gap."""

    @property
    def missing(self) -> tuple[str, ...]:
        """What is missing before it can be simulated, and what would do; empty if nothing is."""
        lengths = {"isl": self.prompt, "osl": self.output} if self.lens is None else {}
        return self.gaps + tuple(
            f"{column} = {self.cells.get(column, '')!r} gives no length: give tokens, 'uniform "
            "LOW..HIGH', 'N shared prefix + M suffix', or a file with --requests"
            for column, known in lengths.items()
            if known is None
        )

    @property
    def mean_context(self) -> int:
        """Prompt and half of the answer, which is what a sequence has on average, tokens."""
        lens = (self.prompt.mean if self.prompt else 0, self.output.mean if self.output else 0)
        prompt, output = lens if self.lens is None else self.lens.mean(axis=0).tolist()
        return max(1, round(prompt + output / 2))

    @property
    def place(self) -> str:
        """File, line and name, for messages."""
        return f"{self.path}, line {self.line} ({self.run_id})"

    @property
    def load(self) -> str:
        if self.request_rate is not None:
            return f"{figures(self.request_rate, 6)} requests/s"
        return f"C = {self.concurrency}"


def say_lookup(
    engine: dict[str, Any], speculation: dict[str, Any], *, is_told: bool, on_cpu: bool
) -> None:
    """Put how a server looked n-grams up, which its version and its hardware decide.

    On a GPU ``ngram`` is `ngram_gpu` since 0.32, and then its acceptance counts drafts where
    nothing was found, too. What the first model runner called so, before, was another method; its
    runs are scheduled as those of 0.32.

    Args:
        is_told: Whether the version is known; if not, asynchronous scheduling tells.
    """
    rules = RULES[engine.get("vllm_version", DEFAULT_VERSION)]
    may_be = not on_cpu and (is_told or engine.get("async_scheduling"))
    if speculation["method"] == "ngram" and rules.looks_up_on_gpu and may_be:
        speculation["method"] = "ngram_gpu"
        if engine.get("vllm_version") == "0.32":
            engine.setdefault("async_scheduling", False)
    if speculation["method"] == "ngram_gpu":
        speculation.pop("match_probability", None)
        if not rules.looks_up_on_gpu:
            engine["vllm_version"] = "0.32"
