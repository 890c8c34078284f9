"""Scenarios: what is scripted around the scheduler, as recorded from the real vLLM 0.32.0."""

from pathlib import Path
from typing import Literal

from pydantic import Field

from specsim.core.errors import TraceError
from specsim.core.settings import Settings, load_mapping, validated
from specsim.engine.config import EngineConfig

__all__ = ["Scenario", "load_scenario"]


class SpecScript(Settings):
    """How drafts are made."""

    method: str
    k: int = Field(ge=1)
    per_batch_size: tuple[tuple[int, int, int], ...] | None = None


class EngineScript(Settings):
    """The engine, under the names of the recordings."""

    block_size: int
    num_blocks: int
    max_model_len: int
    max_num_batched_tokens: int
    max_num_seqs: int
    max_num_active_seqs: int | None = None
    enable_chunked_prefill: bool = True
    enable_prefix_caching: bool = False
    policy: Literal["fcfs", "priority"] = "fcfs"
    long_prefill_token_threshold: int = 0
    long_prefill_token_threshold_adaptive: bool = False
    scheduler_reserve_full_isl: bool = True
    watermark: float = 0.0
    async_scheduling: bool = False
    spec: SpecScript | None = None

    def to_config(self) -> EngineConfig:
        """Return the same settings under the names of an experiment."""
        renamed = {"num_blocks", "policy", "spec"}
        return EngineConfig(
            **self.model_dump(exclude=renamed),
            num_gpu_blocks=self.num_blocks,
            scheduling_policy=self.policy,
        )


class CostScript(Settings):
    """Step times: base, per batched token, per context and batched token, nanoseconds."""

    base_ns: int
    per_token_ns: int
    per_ctx_ns: int


class AcceptanceScript(Settings):
    """Which drafts survive."""

    alpha: float = Field(ge=0, le=1)


class DraftScript(Settings):
    """How many drafts are offered."""

    mode: Literal["full", "ngram"]
    p_zero: float = 0.0


class RequestScript(Settings):
    """One request; where it has no token ids, they are scripted too."""

    id: str
    arrival_ns: int = Field(ge=0)
    prompt_len: int = Field(gt=0)
    max_tokens: int = Field(gt=0)
    priority: int = 0
    alpha: float | None = None
    prompt_token_ids: tuple[int, ...] | None = None


class Scenario(Settings):
    """A workload, an engine, and everything that the real scheduler did not decide."""

    name: str
    kind: str = ""
    seed: int
    engine: EngineScript
    cost: CostScript
    acceptance: AcceptanceScript
    drafts: DraftScript
    requests: tuple[RequestScript, ...] = Field(min_length=1)


def load_scenario(path: Path) -> Scenario:
    """Return a scenario from its JSON file.

    Raises:
        TraceError: The file is missing or is not a scenario.
    """
    with validated(str(path), TraceError):
        return Scenario.model_validate(load_mapping(path, TraceError))
