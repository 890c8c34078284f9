"""Breakdown: how the time and the memory of a run divide, from its results folder."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from specsim.core.errors import ConfigError
from specsim.hardware import GIB, MemoryPlan
from specsim.results.folder import StepsTable
from specsim.results.timeline import (
    EnginesOfKind,
    TimeUse,
    engines_of,
    integrals,
    stages_of,
    time_use,
)
from specsim.run.deployment import Deployment
from specsim.show.export import load_folder


@dataclass(frozen=True)
class KVUse:
    """The KV blocks of one replica, and how many were in use."""

    num_blocks: int  # allocated, vLLM's null block included
    num_usable: int
    peak_used: int  # highest of all replicas and steps
    mean_used: float  # over the time of all replicas; 0 while a replica is idle
    peak_lookahead: float
    """Most blocks that running requests held for slots ahead of their tokens, for drafting; part of
    the used blocks."""
    mean_lookahead: float


@dataclass(frozen=True)
class EngineMemory:
    """How the memory of replicas of one kind divides."""

    memory: MemoryPlan
    kv: KVUse
    called: str  # ``server``, or ``rank`` if several form a server

    @property
    def memory_parts(self) -> dict[str, float]:
        """Bytes of one GPU by purpose; they add up to its memory.

        The entries up to ``unused`` add up to what gpu_memory_utilization allows; ``unused`` is
        negative if num_gpu_blocks is more than fits.
        """
        memory, blocks = self.memory, self.kv.num_blocks
        parts = {
            "target_weights": memory.weight_bytes,
            "draft_weights": memory.draft_weight_bytes,
            "reserved": memory.reserved_bytes,
            "target_kv": blocks * memory.block_bytes,
            "draft_kv": blocks * memory.draft_block_bytes,
        }
        return {
            **parts,
            "unused": memory.usable_bytes - sum(parts.values()),
            "beyond_limit": memory.total_bytes - memory.usable_bytes,
        }

    @property
    def warnings(self) -> list[str]:
        lacking = -self.memory_parts["unused"]
        if lacking <= 0:
            return []
        return [
            f"engine.num_gpu_blocks = {self.kv.num_blocks} takes {lacking / GIB:.1f} GiB more than "
            "gpu_memory_utilization leaves: a real server would not start"
        ]

    def to_dict(self) -> dict[str, Any]:
        """Return plain values; memory in GiB per GPU."""
        return {
            "memory_gib": {name: size / GIB for name, size in self.memory_parts.items()},
            "kv_blocks": {
                **asdict(self.kv),
                "target_block_gib": self.memory.block_bytes / GIB,
                "draft_block_gib": self.memory.draft_block_bytes / GIB,
            },
            "warnings": self.warnings,
        }


@dataclass(frozen=True)
class Breakdown(EngineMemory):
    """How time and memory divide; with pools, the memory is that of decode replicas."""

    time: TimeUse
    provenance: dict[str, object]
    prefill: EngineMemory | None  # of the prefill pool; None without pools

    @property
    def engines(self) -> dict[str, EngineMemory]:
        """The memory by pool; under an empty name without pools."""
        return {"": self} if self.prefill is None else {"decode": self, "prefill": self.prefill}

    def to_dict(self) -> dict[str, Any]:
        """Return plain values; memory in GiB per GPU, times as shares."""
        found = {**self.provenance, "time": asdict(self.time), **super().to_dict()}
        return found if self.prefill is None else {**found, "prefill": self.prefill.to_dict()}


def break_down(folder: Path) -> Breakdown:
    """Return the breakdown of the run in a results folder.

    Raises a SpecsimError if a file is missing, cut short, not of specsim, or of another run.
    """
    results, experiment = load_folder(folder)
    deployment, steps, prefill = Deployment.of(experiment), results.steps, None
    own, *others = engines_of(results.own, steps.span[0])
    called = "rank" if (experiment.engine.data_parallel_size or 1) > 1 else "server"
    if others:
        first = Deployment.of(experiment.of_pool("prefill"))
        prefill = EngineMemory(first.memory, _kv_use(steps, first, *others), called)
    return Breakdown(
        memory=deployment.memory,
        kv=_kv_use(steps, deployment, own),
        called=called,
        time=time_use(steps, *stages_of([own, *others])),
        provenance=steps.provenance,
        prefill=prefill,
    )


def _kv_use(every: StepsTable, deployment: Deployment, engines: EnginesOfKind) -> KVUse:
    setup, steps = deployment.setup, every.where(np.isin(every["replica"], engines.numbers))
    num_usable = setup.num_usable_blocks
    used = num_usable - steps["free_blocks"].astype(np.int64)
    if used.min(initial=0) < 0:
        raise ConfigError(
            f"steps.parquet: free_blocks = {num_usable - used.min()}, but only {num_usable} blocks "
            "fit: the profile has changed since the run; run the experiment again"
        )
    ahead = sum(setup.limits["lookahead_len"] / group.block_size for group in setup.kv.groups)
    lookahead = steps["num_running"] * ahead
    start, end = every.span
    edges, time = np.array([start, end]), engines.mean * (end - start)

    def mean(values: np.ndarray) -> float:
        areas = (
            integrals(steps.of_replica(number), values[steps["replica"] == number], edges)
            for number in steps.replicas
        )
        return float(sum(area[0] for area in areas)) / time

    return KVUse(
        num_blocks=setup.limits["num_blocks"],
        num_usable=num_usable,
        peak_used=int(used.max(initial=0)),
        mean_used=mean(used),
        peak_lookahead=float(lookahead.max(initial=0)),
        mean_lookahead=mean(lookahead),
    )
