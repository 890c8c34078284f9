"""vLLM's adaptive k for DFlash: the common length of most tokens per second, never longer again."""

from typing import Literal, NamedTuple, Protocol, final

import numpy as np
from pydantic import Field

from specsim.core.compiled import Rows, inner
from specsim.core.desk import Floats, Ints
from specsim.decisions.loops import LoopMemory, Loops, View, row_of
from specsim.decisions.policy import LoopPolicy, ServerView
from specsim.policies.parts.estimate import put_decodes, time_of_k
from specsim.policies.parts.everybody import ask_all, let_go_of
from specsim.policies.parts.recent import smooth_shares
from specsim.policies.parts.tiers_by_size import power_of
from specsim.profile.step_time import priced_plain

BUCKETS = 32


class Shortened(Protocol):
    """The cap on k, which only falls, and three parameters of the policy."""

    cap: int  # longest draft from now on, tokens
    history_weight: float
    decision_interval: int
    least_size: int


class Shorter(NamedTuple):
    """The policy's memory."""

    known: Rows[Shortened]  # one row
    survival: Floats  # smoothed share of drafts accepted up to each position
    chosen: Ints  # the k chosen last for each bucket of batch sizes (up to powers of two)
    uses: Ints  # steps that have used that k; 0 if none has been chosen


@inner
def best_k(view: View, memory: Shorter, num: int) -> int:
    """Return the candidate 0, 1, 3, 7, ..., longest of most expected tokens per second."""
    step, tokens = view.step[0], 1.0
    if num < memory.known[0].least_size:
        return int(step.max_draft_len)
    best, best_rate, candidate = 0, 0.0, 0
    put_decodes(view)
    for k in range(step.max_draft_len + 1):
        tokens += memory.survival[k - 1] if k else 0.0
        if k not in (candidate, step.max_draft_len):
            continue
        candidate = 2 * k + 1
        time = time_of_k(view, k) if k else priced_plain(view.pricing, num)
        if tokens / time > best_rate:
            best, best_rate = k, tokens / time
    return best


def decide(view: View, memory: Shorter) -> None:
    """Draft the k of the batch's bucket; choose it anew after an interval, never longer."""
    step, known, num = view.step[0], memory.known[0], view.step[0].num_decodes
    bucket = power_of(num)
    if num and known.cap:
        if not memory.uses[bucket] or memory.uses[bucket] >= known.decision_interval:
            known.cap = min(known.cap, best_k(view, memory, num))
            memory.chosen[bucket], memory.uses[bucket] = known.cap, 0
        memory.uses[bucket] += 1
    step.may_drop = known.cap == 0
    ask_all(view, min(known.cap, memory.chosen[bucket]) if num else known.cap)


def drop(view: View, memory: Shorter) -> None:
    """Let go of all sequences once nothing will be drafted any more."""
    let_go_of(view, memory.known[0].cap == 0, False)


def observe(view: View, memory: Shorter) -> None:
    """Smooth the share of drafts that were accepted up to each position."""
    smooth_shares(view, memory.survival, memory.known[0].history_weight)


@final
class AdaptiveK(LoopPolicy):
    """One k for all that maximises expected tokens over step time; once shortened it stays so.

    vLLM's ``v1/worker/gpu/spec_decode/dflash/adaptive_k.py DFlashAdaptiveKPolicy,
    DFlashAdaptiveKManager`` at b1171c8, which is in no release up to 0.33.0. Candidates are 0, 1,
    3, 7, ... and the longest; batches of fewer than 16 always take the longest. The share of drafts
    accepted up to each position is smoothed, starting at 1. Once k is 0 the drafter never runs
    again. vLLM takes verification times from curves measured at start-up and corrected as it runs,
    and drafting times that do not depend on k; here both come from the profile.
    """

    kind: Literal["adaptive_k"] = "adaptive_k"
    history_weight: float = Field(default=0.2, gt=0, le=1)
    """Weight of the newest step in the smoothed shares."""
    decision_interval: int = Field(default=2, ge=1)
    """Steps of a batch-size bucket after which k is chosen anew."""
    least_size: int = Field(default=16, ge=1)
    """Smallest batch for which k is chosen; smaller ones draft the longest."""

    loops = Loops(Shorter, decide=decide, observe=observe, drop=drop)

    def start(self, server: ServerView) -> LoopMemory:
        """Return a memory that starts with the longest k, all of it expected to be accepted."""
        known = row_of(Shortened, self, cap=server.max_draft_len)
        survival = np.ones(server.max_draft_len + 1)
        chosen, uses = np.zeros((2, BUCKETS), dtype=np.int64)
        return self.remember(server, known=known, survival=survival, chosen=chosen, uses=uses)
