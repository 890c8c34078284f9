"""Plans: what a calibration measures and runs, and about how long that takes."""

from dataclasses import dataclass
from typing import Any

from specsim.reality.calibration.grid import Grid

_FEWEST = 20

__all__ = ["CPU", "CUDA", "QUICK", "Load", "Plan"]


@dataclass(frozen=True)
class Load:
    """How much traffic a run gets."""

    name: str
    share: float
    """Arrival rate as a share of what the server gets done without speculation when it is never
    idle."""
    seconds: float
    """For so long requests arrive."""

    def num_requests(self, rate: float) -> int:
        """Return how many requests that makes; a few at least."""
        return max(_FEWEST, round(self.seconds * rate))


@dataclass(frozen=True)
class Plan:
    """One calibration."""

    grid: Grid
    loads: tuple[Load, ...]
    max_num_seqs: int
    max_model_len: int
    prompt_lens: tuple[int, int]
    """Least and most, drawn uniformly; likewise `output_lens`."""
    output_lens: tuple[int, int]
    repetitions: int
    """How often each real run is made; their spread is the noise floor."""
    minutes: int
    """About how long it takes: a slower machine gets fewer requests, not more time."""
    cases_per_round: int
    """After so many cases the grid is measured once more: a machine that gets slower meanwhile does
    so for what is fitted, too."""
    real_loads: tuple[str, ...]
    """Loads at which acceptance is real, too; synthetic it is at all of them."""
    max_draft_len: int = 5
    policies: tuple[str, ...] = ("off", "static:k=1", "static:k=3", "static:k=5", "goodput")
    synthetic_rates: tuple[float, ...] = (0.75, 0.7, 0.65, 0.6, 0.55)
    """P(draft token j accepted | all before it were) where acceptance is synthetic."""

    @property
    def engine(self) -> dict[str, Any]:
        """The engine's options, in vLLM's names."""
        # Twice what all sequences can hold, so that no load runs out of blocks.
        tokens = 2 * self.max_num_seqs * (self.max_model_len + self.max_draft_len)
        return {
            "max_num_seqs": self.max_num_seqs,
            "max_num_batched_tokens": self.grid.max_batched_tokens,
            "max_model_len": self.max_model_len,
            "block_size": 16,
            "num_gpu_blocks": tokens // 16,
            "enable_prefix_caching": False,
            "async_scheduling": False,
        }


QUICK = Plan(
    grid=Grid(
        num_decodes=(1, 2, 4, 8, 16),
        draft_lens=(0, 1, 3, 5),
        context_lens=(32, 96, 192),
        chunk_lens=(16, 64, 128, 192),
        chunk_decodes=(0, 4, 10),
        max_batched_tokens=256,
        rounds=4,
    ),
    loads=(Load("low", 0.25, 3.0), Load("medium", 0.6, 3.0), Load("saturated", 2.0, 1.0)),
    max_num_seqs=16,
    max_model_len=256,
    prompt_lens=(16, 128),
    output_lens=(16, 96),
    repetitions=4,
    minutes=8,
    cases_per_round=4,
    real_loads=("medium",),
)
"""A small model on two CPU cores."""

CPU = Plan(
    grid=Grid(
        num_decodes=(1, 2, 4, 8, 16),
        draft_lens=(0, 1, 3, 5),
        context_lens=(32, 128, 256, 384),
        chunk_lens=(16, 64, 128, 224),
        chunk_decodes=(0, 4, 10),
        max_batched_tokens=256,
        rounds=8,
    ),
    loads=(Load("low", 0.25, 20.0), Load("medium", 0.6, 20.0), Load("saturated", 2.0, 7.0)),
    max_num_seqs=16,
    max_model_len=512,
    prompt_lens=(16, 256),
    output_lens=(16, 160),
    repetitions=3,
    minutes=50,
    cases_per_round=2,
    real_loads=("low", "medium", "saturated"),
)
"""The same with more of everything."""

CUDA = Plan(
    grid=Grid(
        num_decodes=(1, 2, 4, 8, 16, 32, 64),
        draft_lens=(0, 1, 3, 5),
        context_lens=(128, 512, 1024, 1800),
        chunk_lens=(64, 256, 1024, 1800),
        chunk_decodes=(0, 8, 32),
        max_batched_tokens=2048,
        rounds=5,
    ),
    loads=(Load("low", 0.25, 60.0), Load("medium", 0.6, 60.0), Load("saturated", 2.0, 20.0)),
    max_num_seqs=64,
    max_model_len=2048,
    prompt_lens=(64, 1024),
    output_lens=(32, 512),
    repetitions=2,
    minutes=60,
    cases_per_round=5,
    real_loads=("low", "medium", "saturated"),
)
"""A model of some billion weights on one GPU; not yet run on one."""
