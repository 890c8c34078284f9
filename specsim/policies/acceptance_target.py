"""Hold an acceptance rate, whatever it costs: the control that must lose under load."""

from collections import deque
from dataclasses import dataclass, field
from typing import Literal, final

from pydantic import Field

from specsim.core.step import BatchView, StepOutcome
from specsim.decisions.policy import Policy, ServerView


@dataclass(slots=True)
class _Memory:
    k_max: int
    k: int
    steps: deque[tuple[int, int]] = field(default_factory=deque)
    """Drafted and accepted tokens of each step of the current window."""


@final
class AcceptanceTarget(Policy[_Memory]):
    """One k for all: up while more of the drafts is accepted than wanted, down while less.

    The rule that users ask engines for (the discussion of vLLM's pull request 26504). It looks at
    acceptance alone, so under load it keeps speculating where speculation no longer pays.
    """

    kind: Literal["acceptance_target"] = "acceptance_target"
    target: float = Field(default=0.6, ge=0, le=1)
    """Share of the draft tokens that should be accepted."""
    window: int = Field(default=20, ge=1)
    """Steps over which the rate is taken; k moves by one after each window."""

    def start(self, server: ServerView) -> _Memory:
        return _Memory(server.max_draft_len, server.max_draft_len)

    def draft_lens(self, batch: BatchView, memory: _Memory) -> int:
        return memory.k

    def observe(self, outcome: StepOutcome, memory: _Memory) -> None:
        """At the end of a window, move k by one."""
        drafted = int(outcome.draft_lens.sum())
        if not drafted:
            return
        memory.steps.append((drafted, int(outcome.accepted_lens.sum())))
        if len(memory.steps) == self.window:
            rate = sum(a for _, a in memory.steps) / sum(d for d, _ in memory.steps)
            moved = memory.k + (1 if rate > self.target else -1)
            memory.k = min(max(moved, 1), memory.k_max)
            memory.steps.clear()
