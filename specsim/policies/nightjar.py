"""Nightjar: a bandit over draft lengths, none included, for each size of batch."""

from math import inf
from typing import Literal, NamedTuple, Protocol, final

import numpy as np
from pydantic import Field

from specsim.core.compiled import Rows, inner
from specsim.core.desk import FloatRows, Floats
from specsim.decisions.loops import LoopMemory, Loops, View, row_of
from specsim.decisions.policy import LoopPolicy, ServerView
from specsim.policies.parts.arms import Bins, begin_bin, next_draw, note_reward, played_k, rate_of
from specsim.policies.parts.everybody import ask_all

NUM_SIZES = 12  # two sizes of batch are alike, and all beyond 22


class NightjarState(Protocol):
    """What moves, and the policy's numbers."""

    arm: int  # played last
    switch_time: float  # seconds
    by_model: int  # whether drafts tell which arm was played


class NightjarMemory(NamedTuple):
    """What it remembers."""

    state: Rows[NightjarState]  # one row
    bins: Rows[Bins]  # by size of batch; so are tokens per second and sequence,
    rates: FloatRows  # mean over the steps of each k = 0, 1, ...,
    plays: FloatRows  # and how many these were
    draws: Floats  # of `next_draw`


@inner
def place_of(size: int) -> int:
    """Return where batches of a size stand; at least one sequence."""
    return min((size - 1) // 2, NUM_SIZES - 1)


@inner
def cheapest(memory: NightjarMemory, place: int, longest: int) -> int:
    """Return the k of least time per token, eq. 4, of those that have been played; -1: none."""
    state, best, least = memory.state[0], -1, inf
    for k in range(longest + 1):
        if memory.plays[place, k]:
            loss = 1.0 / memory.rates[place, k]
            loss += state.switch_time / k if k and not state.arm else 0.0
            if loss < least:
                best, least = k, loss
    return best


def decide(view: View, memory: NightjarMemory) -> None:
    """Play the arm of the bin of such a batch; of the b-th of a block any, at times."""
    step, state, size = view.step[0], memory.state[0], view.step[0].num_decodes
    if size:
        its = memory.bins[place_of(size)]
        if not its.steps_left:
            begin_bin(its)
            its.arm = cheapest(memory, place_of(size), step.max_draft_len)
            if its.arm < 0 or next_draw(memory.draws) * its.number < 1.0:
                its.arm = int(next_draw(memory.draws) * (step.max_draft_len + 1))
        its.steps_left -= 1
        state.arm = its.arm
    ask_all(view, state.arm if size else 0)


def observe(view: View, memory: NightjarMemory) -> None:
    """Note what the step yielded with the arm that it verified, unless it read prompts."""
    step, state, k = view.step[0], memory.state[0], played_k(view)
    if not state.by_model and step.num_rows and not step.prefill_tokens:
        k = state.arm
    if k >= 0:
        place = place_of(step.num_rows)
        reward = rate_of(view) / step.num_rows
        note_reward(memory.rates[place], memory.plays[place], k, reward)


@final
class Nightjar(LoopPolicy):
    """One k of 0 to V for the batch, of least time per token at its size, kept for some steps.

    Li et al. (2025), "Nightjar: Dynamic Adaptive Speculative Decoding for Large Language Models
    Serving", arXiv 2512.22420: ADA-BINGREEDY by size of batch. Of a block the b-th bin explores
    with probability 1 / b, else least 1 / (tokens per second) is taken, plus C / k where drafts
    begin anew (eq. 4). Sizes and bins are those of their code, lihuahua123/vllm_speculative
    (``vllm/core/spec_scheduler.py ADABinGreedy``): sizes in pairs, all beyond 22 alike; blocks of
    1, 2, 4, ... steps in bins of the root of that; tokens are those of one sequence.

    Not taken are its odds of 1 / sqrt(b), a draw at every step, its prior and its rule that ends
    drafts of more than 20 sequences. C, there 18 to 102 ms, is what rebuilding the drafter's cache
    takes; here the drafter reads along, and keeps its memory, so that it is 0 unless set.
    """

    kind: Literal["nightjar"] = "nightjar"
    switch_ms: float = Field(default=0.0, ge=0)
    """C."""

    loops = Loops(NightjarMemory, decide=decide, observe=observe)

    def start(self, server: ServerView) -> LoopMemory:
        """Return arms that have never been played."""
        shape = (NUM_SIZES, server.max_draft_len + 1)
        bins = np.repeat(row_of(Bins, bin_len=1, block_len=1), NUM_SIZES)
        by_model = server.drafts_by_model
        state = row_of(NightjarState, by_model=by_model, switch_time=self.switch_ms * 1e-3)
        means = {"rates": np.zeros(shape), "plays": np.zeros(shape)}
        draws = server.rng.random(4096)
        return self.remember(server, state=state, bins=bins, draws=draws, **means)
