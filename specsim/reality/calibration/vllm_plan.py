"""Plans for a local vLLM: which loads it serves, in which order, and with which speculation."""

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import ceil
from pathlib import Path
from typing import Any

from specsim.reality.calibration.results import Load
from specsim.reality.vllm.launch import VllmRun

ORDER = (
    "fit-low",
    "low",
    "fit-high",
    "high",
    "fit-low-2",
    "low-2",
    "fit-high-2",
    "high-2",
    "fit-low-3",
)
"""Runs of one engine. A machine may drift, so each run that is compared stands between two that are
fitted to, one of either load."""
FITTED = tuple(name for name in ORDER if name.startswith("fit"))
COMPARED = tuple(name for name in ORDER if name not in FITTED)


def load_of(run: str) -> str:
    """Return the load of a run or of its repetition: ``low`` of ``low-2``."""
    return run.rstrip("-0123456789")


@dataclass(frozen=True)
class VllmSpeculation:
    """How an engine speculates."""

    name: str
    """For folders."""
    draft_len: int = 0
    config: Mapping[str, Any] | None = None
    """vLLM's ``speculative_config``; None if it does not."""

    @property
    def policy(self) -> str:
        """As for ``specsim compare --policies``."""
        return f"static:k={self.draft_len}" if self.config else "off"

    @classmethod
    def draft_model(cls, folder: Path, draft_len: int) -> "VllmSpeculation":
        """Return speculation by a draft model."""
        config = {
            "method": "draft_model",
            "model": str(folder.resolve()),
            "num_speculative_tokens": draft_len,
        }
        return cls(f"draft-{draft_len}", draft_len, config)

    @classmethod
    def ngram(cls, draft_len: int) -> "VllmSpeculation":
        """Return speculation by prompt lookup."""
        config = {
            "method": "ngram",
            "num_speculative_tokens": draft_len,
            "prompt_lookup_min": 2,
            "prompt_lookup_max": 4,
        }
        return cls(f"ngram-{draft_len}", draft_len, config)


@dataclass(frozen=True)
class VllmPlan:
    """One calibration of a local vLLM."""

    loads: tuple[Load, ...]
    """Of `ORDER`: fit-low, low, fit-high, high."""
    prompt_lens: tuple[int, int]
    """Least and most, drawn uniformly; likewise `output_lens`."""
    output_lens: tuple[int, int]
    engine: Mapping[str, Any]
    """Options of ``vllm.LLM``."""
    environment: Mapping[str, str] = field(default_factory=dict)
    start_seconds: float = 40.0
    """About how long an engine takes to start and to warm up."""

    def load(self, name: str) -> Load:
        """Return a load by its name."""
        return next(load for load in self.loads if load.name == name)

    def minutes(self, num_parts: int) -> int:
        """Return about how long it takes to measure so many engines; small machines take longer."""
        serving = sum(self.load(load_of(name)).seconds for name in ORDER)
        # Answers end after the last arrival, and the fits take a moment, too.
        per_part = self.start_seconds + 1.2 * serving + 10.0
        return ceil((2 * self.start_seconds + num_parts * per_part) / 60)

    def runs(
        self, folder: Path, rates: Mapping[str, float], vocab_size: int, seed: int
    ) -> list[VllmRun]:
        """Return what one engine is asked to serve, in the order of `ORDER`.

        Made-up requests, arriving by a Poisson process; a repetition has those of the first run.

        Args:
            folder: Each run gets a folder of its own in there.
            rates: Requests per second of every load.
        """
        loads = {name: self.load(load_of(name)) for name in ORDER}
        return [
            self._requests(
                folder / name,
                rates[load.name],
                load.num_requests(rates[load.name]),
                vocab_size,
                seed + 1 + self.loads.index(load),
            )
            for name, load in loads.items()
        ]

    def rush(self, folder: Path, vocab_size: int, seed: int) -> VllmRun:
        """Return requests that all come at once, twice as many as are served at a time."""
        num_requests = 2 * int(self.engine["max_num_seqs"])
        return self._requests(folder, 1e6, num_requests, vocab_size, seed)

    def _requests(
        self, folder: Path, rate: float, num_requests: int, vocab_size: int, seed: int
    ) -> VllmRun:
        draw, now = random.Random(seed), 0.0
        arrivals, prompts, output_lens = [], [], []
        for _ in range(num_requests):
            now += draw.expovariate(rate)
            arrivals.append(now)
            prompt_len = draw.randint(*self.prompt_lens)
            prompts.append([draw.randrange(2, vocab_size) for _ in range(prompt_len)])
            output_lens.append(draw.randint(*self.output_lens))
        return VllmRun(folder, arrivals, prompts, output_lens)


def plan_for(device: str, *, quick: bool = False, threads: int = 1) -> VllmPlan:
    """Return the plan for a device, ``cpu`` or ``cuda``; threads are for a CPU."""
    full_s, quick_s = (20.0, 6.0) if device == "cpu" else (40.0, 10.0)
    seconds = quick_s if quick else full_s
    shares = {"fit-low": 0.2, "low": 0.35, "fit-high": 0.7, "high": 0.55}
    loads = tuple(Load(name, share, seconds) for name, share in shares.items())
    if device == "cuda":
        return VllmPlan(
            loads,
            prompt_lens=(64, 1024),
            output_lens=(32, 512),
            engine={"max_num_seqs": 64, "max_num_batched_tokens": 2048, "max_model_len": 2048},
            start_seconds=120.0,
        )
    return VllmPlan(
        loads,
        prompt_lens=(20, 300),
        output_lens=(10, 100),
        engine={
            "enforce_eager": True,
            "max_num_seqs": 32,
            "max_num_batched_tokens": 256,
            "max_model_len": 512,
            "block_size": 32,
            "num_gpu_blocks_override": 32 * 512 // 32,  # no load runs out of them
        },
        environment={"OMP_NUM_THREADS": str(threads), "NUMBA_NUM_THREADS": str(threads)},
    )
