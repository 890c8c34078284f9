"""One token more after a success, one less after a failure."""

from dataclasses import dataclass
from typing import ClassVar, Literal, final

import numpy as np
from pydantic import Field

from specsim.core.step import BatchView, Ints, StepOutcome
from specsim.policies._desk import PerRequest
from specsim.policies.base import Policy, ServerView


@dataclass(frozen=True, slots=True)
class _Memory:
    k_max: int
    lens: PerRequest


@final
class StepController(Policy):
    """Per request: any rejection takes one token off its draft, full acceptance adds one.

    A saturating counter as in branch prediction, blind to cost. A draft of length 0 has nothing to
    reject, so a request climbs back from it; a step that verified nothing although the counter
    stands higher, such as a request's prefill, says nothing. "A Drop-in Solution for On-the-fly
    Adaptation of Speculative Decoding", section 4.2, which calls it a finite state machine.
    """

    kind: Literal["step_controller"] = "step_controller"
    aliases: ClassVar[tuple[str, ...]] = ("fsm",)
    k_start: int | None = Field(default=None, ge=0)
    """First draft length of a request, tokens; by default the longest."""

    def start(self, server: ServerView) -> _Memory:
        """Return the draft lengths of all requests, none of them known yet."""
        k_max = server.max_draft_len
        start = k_max if self.k_start is None else min(self.k_start, k_max)
        return _Memory(k_max, PerRequest(start, dtype=np.int64))

    def draft_lens(self, batch: BatchView, memory: _Memory) -> Ints:
        """Return the counter of each request."""
        return memory.lens.of(batch.requests)

    def observe(self, outcome: StepOutcome, memory: _Memory) -> None:
        """Count each request up or down."""
        all_lens, requests = memory.lens.up_to(outcome.requests), outcome.requests
        lens, drafted = all_lens[requests], outcome.draft_lens
        moved = lens + np.where(outcome.accepted_lens == drafted, 1, -1)
        np.minimum(np.maximum(moved, 0, out=moved), memory.k_max, out=moved)
        all_lens[requests] = np.where((drafted > 0) | (lens == 0), moved, lens)
