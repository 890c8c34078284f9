"""What a profile says: what fits into memory, and how long typical steps take."""

from dataclasses import dataclass

from specsim.core.errors import CapacityError
from specsim.core.step import StepLoad
from specsim.engine.config import EngineConfig
from specsim.hardware import GpuSpec, MemoryPlan, ModelShape, load_gpu, load_model
from specsim.profile import Profile, StepCosts, default_layout, memory_plan


@dataclass(frozen=True)
class StepTime:
    seconds: float
    fits: bool  # whether the KV cache holds its sequences at once
    in_range: bool  # whether the profile was fitted on steps as large as this


@dataclass(frozen=True)
class Overview:
    """A profile on its GPU, under vLLM's defaults."""

    profile: Profile
    model: ModelShape
    gpu: GpuSpec
    engine: EngineConfig

    @classmethod
    def of(cls, profile: Profile) -> "Overview":
        """Find model and GPU of a profile; a ProfileError if one of them is not known."""
        return cls(profile, load_model(profile.model), load_gpu(profile.gpu), EngineConfig())

    @property
    def methods(self) -> list[str | None]:
        """Methods of the proposers whose costs are known; of a profile without any, [None]."""
        return [*self.profile.drafts] or [None]

    def memory(self, method: str | None = None) -> MemoryPlan:
        """Return what the memory of one GPU is for, with the proposer of a method or without."""
        drafts = () if method is None else (self.profile.drafts[method],)
        return memory_plan(self.profile, self.model, self.gpu, drafts)

    def num_blocks(self, method: str | None = None) -> int:
        """Return how many KV blocks fit beside a drafter, vLLM's null block included; or 0."""
        try:
            return self.memory(method).num_blocks()
        except CapacityError:  # a profile that only lacks memory is still worth a look
            return 0

    def capacity(self, method: str | None, length: int, in_flight_tokens: int = 0) -> int:
        """Return how many tokens the KV cache holds beside a drafter, in such sequences."""
        drafts = () if method is None else (self.profile.drafts[method],)
        layout = default_layout(self.profile, self.model, drafts, self.engine.block_size)
        return layout.capacity(self.num_blocks(method), length, in_flight_tokens)

    def decode_time(
        self, batch_size: int, context_len: int, draft_len: int, method: str | None = None
    ) -> StepTime:
        """Return how long a decode step takes; lengths in tokens of each sequence.

        So many drafts are verified and made anew. Without a method, drafting costs nothing.
        """
        tokens = batch_size * (draft_len + 1)
        load = StepLoad(batch_size * context_len, tokens, batch_size)
        # Without speculation there is no drafter, whose first pass would cost something.
        return self._step_time(load, draft_len, method if draft_len else None)

    def prefill_time(self, prompt_len: int) -> StepTime:
        """Return how long a step takes that reads a whole prompt and nothing else."""
        return self._step_time(StepLoad(0, prompt_len, 1, prompt_len), 0, None)

    def _step_time(self, load: StepLoad, draft_len: int, method: str | None) -> StepTime:
        profile = self.profile
        drafts = () if method is None else (profile.drafts[method],)
        costs = StepCosts(profile.target, drafts, profile.overhead)
        valid = profile.valid_range
        size = load.num_requests
        capacity = self.capacity(
            method, (load.context_tokens + load.batched_tokens) // size, load.batched_tokens // size
        )
        return StepTime(
            seconds=float(costs.step_time(load, draft_len)),
            fits=load.context_tokens + load.batched_tokens <= capacity,
            in_range=load.context_tokens <= valid.context_tokens
            and load.batched_tokens <= valid.batched_tokens,
        )
