"""TensorRT-LLM: k by batch size, and an end to speculation where little is accepted."""

from typing import Literal, NamedTuple, final

import numpy as np
from pydantic import Field

from specsim.core.compiled import Rows, inner
from specsim.core.desk import Floats, Ints, PerRequest
from specsim.decisions.loops import LoopMemory, Loops, View, row_of
from specsim.decisions.policy import LoopPolicy, ServerView
from specsim.policies.parts.everybody import ask_all, let_go_of
from specsim.policies.parts.leavers import PresentPart, find_leavers, nobody_present
from specsim.policies.parts.recent import Gate, count
from specsim.policies.parts.tiers_by_size import LensUpTo, lens_up_to


class Gated(NamedTuple):
    """The policy's memory."""

    gate: Rows[Gate]  # one row
    lens: Ints  # draft length by batch size; the last is for all larger batches
    means: Floats  # ring: accepted tokens per step of each of the last requests that ended
    steps: Floats  # per request: steps in which it emitted tokens; -1 once it has ended
    accepted: Floats  # per request: draft tokens accepted in these steps
    present: PresentPart


@inner
def count_ended(memory: Gated, request: int) -> None:
    """Count the mean accepted length of a request that has ended."""
    if memory.steps[request] > 0.0:
        count(memory.gate[0], memory.means, memory.accepted[request] / memory.steps[request])
        memory.steps[request] = -1.0


def decide(view: View, memory: Gated) -> None:
    """Draft as the schedule says; nothing once the gate is shut."""
    step, gate = view.step[0], memory.gate[0]
    if gate.window:
        for place in range(find_leavers(view, memory.present)):
            count_ended(memory, memory.present.left[place])
    step.may_drop = gate.is_shut
    k = memory.lens[min(step.num_rows, len(memory.lens) - 1)]
    ask_all(view, 0 if gate.is_shut else k)


def drop(view: View, memory: Gated) -> None:
    """Let go of everybody once the gate is shut: the drafter runs no more."""
    let_go_of(view, memory.gate[0].is_shut != 0, False)


def observe(view: View, memory: Gated) -> None:
    """Add up the steps and accepted tokens of each request."""
    for row in range(view.step[0].num_rows):
        request = view.requests[row]
        if memory.steps[request] >= 0.0:
            memory.steps[request] += 1.0
            memory.accepted[request] += view.accepted_lens[row]


@final
class AcceptanceGate(LoopPolicy):
    """k by batch size; for good none once the last requests had too little accepted per step.

    TensorRT-LLM's ``draft_len_schedule`` (``llmapi/llm_args.py``: each length up to a batch size,
    none beyond the last) and its gate of ``acceptance_window`` and ``acceptance_length_threshold``
    (``_torch/speculative/speculation_gate.py SpeculationGate`` at 41080dc), neither of which it
    sets by default. A request that is missing from a step counts as ended, and so, once, does one
    that is preempted. Since pull request 12905 (April 2026) TensorRT-LLM has the gate of
    `acceptance_rate_gate` instead.
    """

    kind: Literal["acceptance_gate"] = "acceptance_gate"
    examples = (
        {"draft_len_schedule": {4: 4, 8: 2, 32: 1}},
        {"acceptance_window": 4, "acceptance_length_threshold": 2.0},
    )
    draft_len_schedule: LensUpTo | None = None
    """Draft length by the largest batch size it is for; by default the longest for every size."""
    acceptance_window: int = Field(default=0, ge=0)
    """Number of ended requests to average over; 0: speculation never ends."""
    acceptance_length_threshold: float = Field(default=0.0, ge=0)
    """Mean accepted tokens per step and request below which speculation ends for good."""

    loops = Loops(Gated, decide=decide, observe=observe, drop=drop)

    def start(self, server: ServerView) -> LoopMemory:
        window, threshold = self.acceptance_window, self.acceptance_length_threshold
        gate = row_of(Gate, window=window, threshold=threshold)
        lens = lens_up_to(self.draft_len_schedule, server.max_draft_len)
        seen = {"steps": PerRequest(0.0), "accepted": PerRequest(0.0), "present": nobody_present()}
        return self.remember(server, gate=gate, lens=lens, means=np.zeros(window + 1), **seen)
