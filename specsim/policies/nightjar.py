"""Nightjar: a bandit over draft lengths, none included, for each size of batch."""

from math import inf
from typing import ClassVar, Literal, NamedTuple, Protocol, final

import numpy as np
from pydantic import Field

from specsim.core.compiled import Rows, inner
from specsim.core.desk import FloatRows, Floats
from specsim.decisions.loops import LoopMemory, Loops, View, row_of
from specsim.decisions.policy import LoopPolicy, ServerView
from specsim.policies.parts import ROOMS
from specsim.policies.parts.arms import next_draw, note_reward, played_k, rate_of

MOST = 1024  # sequences beyond which batches are alike


class Bins(Protocol):
    """Of batches of one size."""

    arm: int  # played in the bin
    steps_left: int  # of the bin
    number: int  # of the bin in its block, from 1
    block_len: int  # bins


class NightjarState(Protocol):
    """What moves, and the policy's numbers."""

    arm: int  # played last
    bin_steps: int
    switch_time: float  # seconds
    by_model: int  # whether drafts tell which arm was played


class NightjarMemory(NamedTuple):
    """What it remembers."""

    state: Rows[NightjarState]
    """One row."""
    bins: Rows[Bins]
    """By the number of sequences in the batch; so are tokens per second,"""
    rates: FloatRows
    """mean over the steps of each k = 0, 1, ...,"""
    plays: FloatRows
    """and how many these were."""
    draws: Floats
    """Of `next_draw`."""


@inner
def cheapest(memory: NightjarMemory, size: int, longest: int) -> int:
    """Return the k of least time per token, eq. 4, of those that have been played; -1: none."""
    state, best, least = memory.state[0], -1, inf
    for k in range(longest + 1):
        if memory.plays[size, k]:
            loss = 1.0 / memory.rates[size, k]
            loss += state.switch_time / k if k and not state.arm else 0.0
            if loss < least:
                best, least = k, loss
    return best


def decide(view: View, memory: NightjarMemory) -> None:
    """Play the arm of the bin of such a batch; of the b-th of a block any, at times."""
    step, state, size = view.step[0], memory.state[0], min(view.step[0].num_decodes, MOST)
    if size:
        its = memory.bins[size]
        if not its.steps_left:
            its.arm = cheapest(memory, size, step.max_draft_len)
            if its.arm < 0 or next_draw(memory.draws) * its.number < 1.0:
                its.arm = int(next_draw(memory.draws) * (step.max_draft_len + 1))
            its.steps_left, its.number = state.bin_steps, its.number + 1
            if its.number > its.block_len:
                its.number, its.block_len = 1, 2 * its.block_len
        its.steps_left -= 1
        state.arm = its.arm
    for row in range(step.num_rows):
        view.lens[row] = state.arm if size else 0


def observe(view: View, memory: NightjarMemory) -> None:
    """Note what the step yielded with the arm that it verified, unless it read prompts."""
    step, state, k = view.step[0], memory.state[0], played_k(view)
    if not state.by_model and step.num_rows and not step.prefill_tokens:
        k = state.arm
    if k >= 0:
        size = min(step.num_rows, MOST)
        note_reward(memory.rates[size], memory.plays[size], k, rate_of(view))


@final
class Nightjar(LoopPolicy):
    """One k of 0 to V for the batch, of least time per token at its size, kept for some steps.

    Li et al. (2025), "Nightjar: Dynamic Adaptive Speculative Decoding for Large Language Models
    Serving", arXiv 2512.22420: ADA-BINGREEDY by size of batch. Of a block of 1, 2, 4, ... bins the
    b-th explores with probability 1 / b, else least 1 / (tokens per second) is taken, plus C / k
    where drafts begin anew (eq. 4). Chosen here: the length of a bin, and that unknown arms are
    found by exploring alone. C, there 18 to 102 ms, is what rebuilding the drafter's cache takes;
    here the drafter reads along, and keeps its memory, so that it is 0 unless set.
    """

    kind: Literal["nightjar"] = "nightjar"
    bin_steps: int = Field(default=10, ge=1)
    """Steps of one size of batch before its arm is chosen anew."""
    switch_ms: float = Field(default=0.0, ge=0)
    """C."""

    loops: ClassVar[Loops] = Loops(NightjarMemory, decide=decide, observe=observe, rooms=ROOMS)

    def start(self, server: ServerView) -> LoopMemory:
        """Return arms that have never been played."""
        shape, bins = (MOST + 1, server.max_draft_len + 1), row_of(Bins, number=1, block_len=1)
        numbers = {"bin_steps": self.bin_steps, "switch_time": self.switch_ms * 1e-3}
        state = row_of(NightjarState, by_model=server.drafts_by_model, **numbers)
        means = {"rates": np.zeros(shape), "plays": np.zeros(shape)}
        draws, bins = server.rng.random(4096), np.repeat(bins, MOST + 1)
        return self.remember(server, state=state, bins=bins, draws=draws, **means)
