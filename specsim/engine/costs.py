"""What a step costs an engine, and what it costs while the replica is slow."""

from dataclasses import dataclass
from typing import Protocol

from specsim.step import StepLoad

__all__ = ["Costs", "SlowedCosts"]


class Costs(Protocol):
    """What a step costs, in the unit of the clock; see `specsim.profile.StepCosts`."""

    @property
    def uses_pieces(self) -> bool:
        """Whether the forward pass has to be told what each sequence of the step processes."""

    def target_time(self, load: StepLoad) -> float:
        """Return the duration of the target's forward pass."""

    def draft_time(
        self, load: StepLoad, draft_lens: int | list[int], target_time: float, drafter: int
    ) -> float:
        """Return the duration of one drafter's work after such a step."""

    def overhead_time(self, num_requests: int) -> float:
        """Return the engine's own time per step."""


@dataclass(frozen=True, slots=True)
class SlowedCosts:
    """The costs of a replica of which everything takes longer."""

    usual: Costs
    factor: float
    """How many times as long."""

    @property
    def uses_pieces(self) -> bool:
        """Whether the forward pass has to be told what each sequence of the step processes."""
        return self.usual.uses_pieces

    def target_time(self, load: StepLoad) -> float:
        """Return the duration of the target's forward pass."""
        return self.factor * self.usual.target_time(load)

    def draft_time(
        self, load: StepLoad, draft_lens: int | list[int], target_time: float, drafter: int
    ) -> float:
        """Return the duration of one drafter's work after such a step, itself slowed."""
        usual_time = target_time / self.factor
        return self.factor * self.usual.draft_time(load, draft_lens, usual_time, drafter)

    def overhead_time(self, num_requests: int) -> float:
        """Return the engine's own time per step."""
        return self.factor * self.usual.overhead_time(num_requests)
