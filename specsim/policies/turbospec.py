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
from specsim.policies.parts.everybody import ask_all, let_go_of, shown_tokens
from specsim.policies.parts.trials import Known, ask_in_common, gives_up, learn, no_trials
from specsim.profile.step_time import priced, put_load


class TurboState(Known, Protocol):
    """`Known`, and the batch size above which new requests are not drafted for."""

    by_model: int  # whether a model drafts
    disable_size: float  # batch size at which k = 0 was chosen
    num_skips: int
    reset_steps: int  # field of the policy


class Turbo(NamedTuple):
    """The policy's memory."""

    known: Rows[TurboState]  # one row
    ring: Ints  # accepted tokens and drafts cut short of each step in the window


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
    """Return the verification length of highest goodput, with drafting at full length paid."""
    step, pricing, expected, gain = view.step[0], view.pricing, float(view.step[0].num_decodes), 1.0
    tokens = step.batched_tokens - shown_tokens(view)
    put_load(pricing, step.context_tokens, tokens, step.num_requests, step.prefill_tokens)
    best_k, best_rate = 0, expected / priced(pricing, tokens, step.max_draft_len)
    for k in range(1, longest_of(view) + 1):
        gain, longer = gain * alpha, 0
        for row in range(step.num_rows):
            longer += 1 if view.draft_lens[row] >= k else 0
        tokens, expected = tokens + longer, expected + longer * gain
        rate = expected / priced(pricing, tokens, step.max_draft_len)
        if rate > best_rate:
            best_k, best_rate = k, rate
    return best_k


def verify(view: View, memory: Turbo) -> None:
    """Verify all of a model's drafts; of a lookup's, the length of highest goodput."""
    step, known = view.step[0], memory.known[0]
    most = step.max_draft_len if known.by_model else best_verified_len(view, alpha_of(known))
    for row in range(step.num_rows):
        view.lens[row] = min(view.draft_lens[row], most)


def observe(view: View, memory: Turbo) -> None:
    """Learn the acceptance rate, and how long the drafter takes to read prompts."""
    known = memory.known[0]
    learn(view, known, note_trials(view, known, memory.ring))
    view.step[0].may_drop = gives_up(known) or known.disable_size < inf


def drop(view: View, memory: Turbo) -> None:
    """Let go of all if the drafter is given up; of new sequences if the batch is too large."""
    step, known = view.step[0], memory.known[0]
    skips = step.num_admitted > 0 and step.num_running > known.disable_size
    let_go_of(view, gives_up(known), skips)
    if skips and not gives_up(known):
        known.num_skips += 1
        if known.num_skips % known.reset_steps == 0:
            known.disable_size = inf


@final
class TurboSpec(LoopPolicy):
    """Proposed length and verification length by goodput, each where it is free to move.

    Liu et al. (2025), "TurboSpec", arXiv 2406.14066v3, section 4.2, listings 1 and 2. A model or
    head drafts the k of highest goodput, and all of it is verified; a lookup drafts the longest,
    which costs nothing, and goodput sets the verification length. Requests admitted while more
    sequences run than the step had in which k = 0 was chosen are never drafted for; after
    `reset_steps` such steps that size is forgotten. Not taken is what the code has beyond the paper
    (LiuXiaoxuanPKU/vllm ``vllm/spec_decode/dsd.py DSD`` at 647244c): a choice every 20 steps,
    goodput of k = 0 times 1.1, a search that ends at the first worse length, alpha smoothed by
    0.15, lookups of 8 tokens up to 32 sequences and none beyond.
    """

    kind: Literal["turbospec"] = "turbospec"
    window: int = Field(default=50, ge=1)
    """Steps of the moving average of alpha."""
    prior: float = Field(default=0.7, ge=0, le=1)
    """alpha before any draft has been verified."""
    reset_steps: int = Field(default=100, ge=1)
    """Steps with skipped draft prefills after which that size is forgotten (there, RESETSTEPS)."""

    loops = Loops(Turbo, decide=decide, verify=verify, observe=observe, drop=drop)

    def start(self, server: ServerView) -> LoopMemory:
        new = {"by_model": server.drafts_by_model, "disable_size": inf}
        known = row_of(TurboState, self, **new, **no_trials(self.window))
        return self.remember(server, known=known, ring=np.zeros(2 * self.window, dtype=np.int64))
