"""A measured run of a load generator: the server, the load, and the measurements."""

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
    """Lengths of the prompts or answers of a run, tokens."""

    mean: float
    bounds: tuple[int, int] | None = None  # of a uniform distribution; None if only means are known
    shared: int = 0  # leading tokens that all requests share
    differ: bool = False  # lengths differ in an unknown way: evenly from 0.5 to 1.5 of the mean
    median: int | None = None  # of a lognormal distribution, at most the mean

    @property
    def is_spread(self) -> bool:
        """Whether the distribution of lengths is known."""
        return self.bounds is not None or self.median is not None

    def draw(self, rng: np.random.RandomState, count: int) -> NDArray[np.int64]:
        """Return lengths with this mean, shape (count,); all equal unless they differ."""
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
        low, high = 0.0, 64.0  # with so few, the distribution's own spread would miss the tail
        for _ in range(50):
            spread = (low + high) / 2
            logs = math.log(self.median) + spread * normal
            is_short = np.logaddexp.reduce(logs) - math.log(len(logs)) < wanted
            low, high = (spread, high) if is_short else (low, spread)
        return np.exp(logs)


@dataclass(frozen=True)
class MeasuredRun:
    """One row of a table: the server, the load, and what was measured."""

    path: Path
    line: int
    run_id: str
    cells: Mapping[str, str]  # texts of the table, by column
    measured: Mapping[str, float]  # by names in `METRICS`; without those that the row lacks
    engine: Mapping[str, Any]  # options of `specsim.engine.config.EngineConfig` without speculation
    tensor_parallel_size: int
    method: str  # of `specsim.proposers`; empty without speculation
    num_speculative_tokens: int
    """0 without speculation; with a method, of a server that can draft but did not."""
    rates: tuple[float, ...]  # share of all drafts whose position i was accepted
    acceptance_spread: float | None
    lookup: Mapping[str, float]  # how often, how long drafts are found; empty: always in full
    concurrency: int | None  # clients of a closed loop
    request_rate: float | None  # requests per second; None in a closed loop
    burstiness: float
    num_prompts: int
    num_warmups: int
    is_eager: bool | None  # whether the engine ran without CUDA graphs; None if not known
    graph_tokens: int | None  # of the largest CUDA graph; None: as the engine captures them
    counts_warmups: bool  # whether the server's counters (steps, drafts) include the warm-up
    is_warm: bool  # whether the common prefix was cached before the first request
    prompt: MeasuredLengths | None
    output: MeasuredLengths | None
    max_tokens: int | None  # limit where answers end by a stop token; else None
    lengths_seed: int
    notes: tuple[str, ...] = ()  # what was assumed
    gaps: tuple[str, ...] = ()  # missing load, speculation or measurements, and how to give them
    kv_tokens: int | None = None  # of the KV cache, if logged; `engine` has the blocks of one group
    lens: NDArray[np.int64] | None = None  # lengths of each request, if known; (num_prompts, 2)
    begins_at_once: bool = False
    """Whether the client sends the first of its requests at a rate at once, as SGLang's does
    (``bench_serving.py get_request`` at 0033168), instead of after one gap, as vLLM's does."""

    @property
    def missing(self) -> tuple[str, ...]:
        """What is missing for a simulation, and how to give it; empty if nothing is missing."""
        lengths = {"isl": self.prompt, "osl": self.output} if self.lens is None else {}
        return self.gaps + tuple(
            f"{column} = {self.cells.get(column, '')!r} gives no length: give tokens, 'uniform "
            "LOW..HIGH', 'N shared prefix + M suffix', or a file with --requests"
            for column, known in lengths.items()
            if known is None
        )

    @property
    def mean_context(self) -> int:
        """Mean context of a sequence, the prompt and half of the answer, tokens."""
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
    """Set the method of n-gram lookup, which depends on the server's version and hardware.

    On a GPU ``ngram`` is `ngram_gpu` since 0.32, whose acceptance also counts drafts where nothing
    was found. The ``ngram_gpu`` of the first model runner was another method; its runs are
    scheduled as those of 0.32.

    Args:
        is_told: Whether the version is known; if not, asynchronous scheduling decides.
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
