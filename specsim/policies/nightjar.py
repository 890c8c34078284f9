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

NUM_SIZES = 12  # classes of batch sizes: pairs of sizes, and all beyond 22


class NightjarState(Protocol):
    """The last arm, and parameters of the policy."""

    arm: int  # played last
    switch_time: float  # C, seconds
    by_model: int  # whether a model drafts, so that draft lengths tell which arm was played


class NightjarMemory(NamedTuple):
    """The policy's memory."""

    state: Rows[NightjarState]  # one row
    bins: Rows[Bins]  # one for each class of batch sizes
    rates: FloatRows  # mean tokens per second and sequence, by class of sizes and k = 0, 1, ...
    plays: FloatRows  # steps that these are means of
    draws: Floats  # random numbers, for `next_draw`


@inner
def place_of(size: int) -> int:
    """Return the class of a batch size of at least 1, from 0 to NUM_SIZES - 1."""
    return min((size - 1) // 2, NUM_SIZES - 1)


@inner
def cheapest(memory: NightjarMemory, place: int, longest: int) -> int:
    """Return the k of least time per token (eq. 4) among those played; -1 if none was."""
    state, best, least = memory.state[0], -1, inf
    for k in range(longest + 1):
        if memory.plays[place, k]:
            loss = 1.0 / memory.rates[place, k]
            loss += state.switch_time / k if k and not state.arm else 0.0
            if loss < least:
                best, least = k, loss
    return best


def decide(view: View, memory: NightjarMemory) -> None:
    """Play the arm of the current bin; the b-th bin of a block explores with chance 1 / b."""
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
    """Note the tokens per second of the arm that the step verified, unless it read prompts."""
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
    with probability 1 / b, else the k of least 1 / (tokens per second) is taken, plus C / k where
    drafting starts again (eq. 4). Sizes and bins are those of their code,
    lihuahua123/vllm_speculative (``vllm/core/spec_scheduler.py ADABinGreedy``): pairs of sizes, one
    class beyond 22; blocks of 1, 2, 4, ... steps, bins of the root of that; tokens are those of one
    sequence. Not taken are its odds of 1 / sqrt(b), a draw at every step, its prior and its rule
    that ends drafts of more than 20 sequences. C, there 18 to 102 ms, is the time to rebuild the
    drafter's cache; here the drafter keeps its cache up to date, so that C is 0 unless set.
    """

    kind: Literal["nightjar"] = "nightjar"
    switch_ms: float = Field(default=0.0, ge=0)
    """C, the time to start drafting again."""

    loops = Loops(NightjarMemory, decide=decide, observe=observe)

    def start(self, server: ServerView) -> LoopMemory:
        """Return a memory in which no arm has been played."""
        shape = (NUM_SIZES, server.max_draft_len + 1)
        bins = np.repeat(row_of(Bins, bin_len=1, block_len=1), NUM_SIZES)
        by_model = server.drafts_by_model
        state = row_of(NightjarState, by_model=by_model, switch_time=self.switch_ms * 1e-3)
        means = {"rates": np.zeros(shape), "plays": np.zeros(shape)}
        draws = server.rng.random(4096)
        return self.remember(server, state=state, bins=bins, draws=draws, **means)
