"""TensorRT-LLM: k by batch size, and an end to speculation where a small share is accepted."""

from typing import Literal, NamedTuple, final

import numpy as np
from pydantic import Field

from specsim.core.compiled import Rows
from specsim.core.desk import Floats, Ints
from specsim.decisions.loops import LoopMemory, Loops, View, row_of
from specsim.decisions.policy import LoopPolicy, ServerView
from specsim.policies.parts.everybody import ask_all, let_go_of
from specsim.policies.parts.recent import Gate, count
from specsim.policies.parts.tiers_by_size import LensUpTo, lens_up_to


class RateGated(NamedTuple):
    """The policy's memory."""

    gate: Rows[Gate]  # one row
    lens: Ints  # draft length by batch size; the last is for all larger batches
    rates: Floats  # ring: share of draft tokens accepted in each of the last steps with drafts


def decide(view: View, memory: RateGated) -> None:
    """Draft as the schedule says; nothing once the gate is shut."""
    step, is_shut = view.step[0], memory.gate[0].is_shut
    step.may_drop = is_shut
    k = memory.lens[min(step.num_rows, len(memory.lens) - 1)]
    ask_all(view, 0 if is_shut else k)


def drop(view: View, memory: RateGated) -> None:
    """Let go of everybody once the gate is shut: the drafter runs no more."""
    let_go_of(view, memory.gate[0].is_shut != 0, False)


def observe(view: View, memory: RateGated) -> None:
    """Count the share of the step's draft tokens that was accepted, if it had any."""
    drafted, accepted = 0, 0
    for row in range(view.step[0].num_rows):
        if view.draft_lens[row]:
            drafted += view.draft_lens[row]
            accepted += view.accepted_lens[row]
    if drafted:
        count(memory.gate[0], memory.rates, accepted / drafted)


@final
class AcceptanceRateGate(LoopPolicy):
    """k by batch size; for good none once too small a share of the last steps' drafts was accepted.

    TensorRT-LLM's ``draft_len_schedule`` (``_torch/speculative/utils.py
    get_draft_len_for_batch_size``) and its gate of ``acceptance_rate_window_size`` and
    ``acceptance_rate_threshold`` (``speculation_gate.py SpeculationGate
    record_acceptance_rate``, ``pyexecutor/py_executor.py _update_batch_acceptance_rate``), since
    pull request 12905; neither is set by default. Each step that verified drafts counts as one
    number, accepted / drafted tokens of its whole batch. Cost plays no part. The earlier gate of
    TensorRT-LLM is `acceptance_gate`.
    """

    kind: Literal["acceptance_rate_gate"] = "acceptance_rate_gate"
    examples = (
        {"draft_len_schedule": {4: 4, 8: 2, 32: 1}},
        {"acceptance_rate_window_size": 4, "acceptance_rate_threshold": 0.5},
    )
    draft_len_schedule: LensUpTo | None = None
    """Draft length by the largest batch size it is for; by default the longest for every size."""
    acceptance_rate_window_size: int = Field(default=0, ge=0)
    """Number of steps to average over; 0: speculation never ends."""
    acceptance_rate_threshold: float = Field(default=0.0, ge=0, le=1)
    """Mean share of a step's draft tokens accepted, below which speculation ends for good."""

    loops = Loops(RateGated, decide=decide, observe=observe, drop=drop)

    def start(self, server: ServerView) -> LoopMemory:
        window, threshold = self.acceptance_rate_window_size, self.acceptance_rate_threshold
        gate = row_of(Gate, window=window, threshold=threshold)
        lens = lens_up_to(self.draft_len_schedule, server.max_draft_len)
        return self.remember(server, gate=gate, lens=lens, rates=np.zeros(window + 1))
