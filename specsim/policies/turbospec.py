"""TurboSpec: goodput with a verification length of its own, and draft prefills left out."""

from math import inf
from typing import Literal, NamedTuple, Protocol, final

import numpy as np
from pydantic import Field

from specsim.core.compiled import Rows, inner
from specsim.core.desk import Ints
from specsim.decisions.loops import LoopMemory, Loops, View, row_of
from specsim.decisions.policy import LoopPolicy, ServerView
from specsim.policies.parts.estimate import alpha_of, best_common_len, longest_of, note_trials
from specsim.policies.parts.everybody import ask_all, let_go_of
from specsim.policies.parts.trials import Known, ask_in_common, gives_up, learn, no_trials
from specsim.profile.step_time import priced, put_load


class TurboState(Known, Protocol):
    """And from which batch on it does not."""

    by_model: int  # whether a model drafts
    disable_size: float  # batch size at which nothing was proposed any more
    num_skips: int
    reset_steps: int  # of the policy


class Turbo(NamedTuple):
    """What it remembers."""

    known: Rows[TurboState]  # one row
    ring: Ints  # accepted tokens, and drafts cut short, of its last steps


def decide(view: View, memory: Turbo) -> None:
    """Propose the longest draft where a lookup drafts, else that of highest goodput."""
    step, known = view.step[0], memory.known[0]
    if known.by_model:
        k = best_common_len(view, alpha_of(known))
        if k == 0 and step.num_decodes:
            known.disable_size = step.num_rows
        ask_in_common(view, known, memory.ring, k)
    else:
        ask_all(view, step.max_draft_len)
    step.alpha, step.may_drop = alpha_of(known), gives_up(known) or known.disable_size < inf


@inner
def best_verified_len(view: View, alpha: float) -> int:
    """Return how long drafts are to be verified at most for the highest goodput.

    Only sequences with a match have anything to verify; the rest is there in any case, and so is
    the drafting, whatever is verified of it.
    """
    step, pricing, drafted = view.step[0], view.pricing, 0
    for row in range(step.num_rows):
        drafted += view.draft_lens[row]
    tokens, expected, gain = step.batched_tokens - drafted, float(step.num_decodes), 1.0
    put_load(pricing, step.context_tokens, tokens, step.num_requests, step.prefill_tokens)
    best_k, best_rate = 0, 0.0
    for k in range(longest_of(view) + 1):
        longer = 0
        for row in range(step.num_rows if k else 0):
            longer += 1 if view.draft_lens[row] >= k else 0
        gain *= alpha if k else 1.0
        tokens, expected = tokens + longer, expected + longer * gain
        rate = expected / priced(pricing, tokens, step.max_draft_len)
        if rate > best_rate:
            best_k, best_rate = k, rate
    return best_k


def verify(view: View, memory: Turbo) -> None:
    """Verify all of a model's draft, or as goodput says."""
    step, known = view.step[0], memory.known[0]
    most = step.max_draft_len if known.by_model else best_verified_len(view, alpha_of(known))
    for row in range(step.num_rows):
        view.lens[row] = min(view.draft_lens[row], most)


def observe(view: View, memory: Turbo) -> None:
    """Learn from what was accepted, and what prompts take to be read by the drafter."""
    known = memory.known[0]
    learn(view, known, note_trials(view, known, memory.ring))
    view.step[0].may_drop = gives_up(known) or known.disable_size < inf


def drop(view: View, memory: Turbo) -> None:
    """Let go of whom is new, where the batch is too large for speculation to be worth preparing.

    Of everybody where the drafter is given up.
    """
    step, known, lets_all_go = view.step[0], memory.known[0], gives_up(memory.known[0])
    skips = not lets_all_go and step.num_admitted > 0 and step.num_running > known.disable_size
    if skips:
        known.num_skips += 1
        if known.num_skips % known.reset_steps == 0:
            known.disable_size = inf
    let_go_of(view, lets_all_go, skips)


@final
class TurboSpec(LoopPolicy):
    """Proposed length and verification length by goodput, each where it is free to move.

    Liu et al. (2025), "TurboSpec", arXiv 2406.14066v3, section 4.2, listings 1 and 2. A draft model
    or head is asked for the k of highest goodput and all of it is verified. A method that only
    looks up is always asked for the longest draft, since length costs it nothing, and goodput
    decides how many of the tokens found are verified.

    Whenever k = 0 is chosen, the batch size is remembered: prefills in a larger batch leave out the
    drafter's prefill, and such a request is never drafted for; every `reset_steps` times the
    threshold is forgotten. The batch is what decodes once the prompts have been read: the listing's
    own step of prompts alone is of a few requests, and would never exceed a threshold in decoding
    ones. As in `goodput`, k = 0 is a candidate.

    What their code has beyond the paper is not taken (LiuXiaoxuanPKU/vllm ``vllm/spec_decode/dsd.py
    DSD`` at 647244c). There lengths are chosen every 20 steps, no draft counts for 1.1 times its
    goodput, the search ends with the first length that is worse. Alpha is smoothed by 0.15 a step,
    and a lookup is asked for 8 tokens up to 32 sequences, then for none.
    """

    kind: Literal["turbospec"] = "turbospec"
    window: int = Field(default=50, ge=1)
    """Steps that the moving average of alpha goes over."""
    prior: float = Field(default=0.7, ge=0, le=1)
    """alpha before anything has been seen."""
    reset_steps: int = Field(default=100, ge=1)
    """Skipped prefills after which the threshold is forgotten (listing 1, RESETSTEPS)."""

    loops = Loops(Turbo, decide=decide, verify=verify, observe=observe, drop=drop)

    def start(self, server: ServerView) -> LoopMemory:
        new = {"by_model": server.drafts_by_model, "disable_size": inf}
        known = row_of(TurboState, self, **new, **no_trials(self.window))
        return self.remember(server, known=known, ring=np.zeros(2 * self.window, dtype=np.int64))
