"""The vocabulary of one engine step.

    schedule  ->  target forward (prefill chunks + verification of the last drafts)
              ->  accept  ->  draft for the next step

`StepLoad` is all that a latency model is told; `BatchView`, `DraftView` and `StepOutcome` are all
that a policy is.
"""

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from specsim.core.trees import Candidates, Path, Tree

Ints = NDArray[np.int64]


class Pieces(NamedTuple):
    """What each sequence of a step processes; parallel lists in scheduling order."""

    query_lens: list[int]
    """Batched tokens of each sequence: a prefill chunk, or its last token and drafts."""
    context_lens: list[int]  # KV entries of each sequence when the step starts, tokens


class StepLoad(NamedTuple):
    """Size of one forward pass (Liu et al. 2024, "SmartSpec", section 4.3, fig. 6)."""

    context_tokens: int
    """KV entries that exist when the step starts, summed over the scheduled sequences."""
    batched_tokens: int  # query tokens of the step: prefill chunks, last tokens and drafts
    num_requests: int = 1  # sequences in the step
    prefill_tokens: int = 0  # batched tokens that belong to prefills; 0 in a decode-only step
    pieces: Pieces | None = None
    """The same, sequence by sequence; only for a latency model that `uses_pieces`."""


@dataclass(slots=True, eq=False)
class BatchView:
    """The sequences of a step as a server sees them when it decides how much to draft or verify.

    Its columns are arrays of shape (size,), in scheduling order; they are the policy's own copies.
    """

    requests: Ints  # index of the request of each sequence
    prompt_lens: Ints
    known_lens: Ints
    """Prompt and output tokens that are known when the draft is made: those that the running step's
    verification accepts are among them, unless the decision precedes it (asynchronous scheduling,
    and drafts that are verified in the same step)."""
    in_prefill: NDArray[np.bool_]
    """Whether each sequence is still in mid-prefill, so that its draft would be ignored."""
    load: StepLoad  # of the step that is running
    _: KW_ONLY
    now: float = 0.0  # when the step was scheduled, seconds
    free_slots: int = 1 << 40
    """Room for drafts: KV blocks that nobody holds, and the sequences' look-ahead slots, tokens."""
    num_running: int = 0
    """Sequences that run, those included that the step leaves out: under prefill first it holds
    prompts alone, or decodes alone."""
    draft_lens: Ints | None = None  # drafts of each sequence in the step, tokens; None: not known
    is_undrafted: NDArray[np.bool_] | None = None
    """Whether the drafter has left each sequence out, so that it is never drafted for; None: it
    serves all of them."""
    is_admitted: NDArray[np.bool_] | None = None
    """Whether the step admits each sequence for the first time; None: nobody."""
    drafts: "DraftView | None" = None
    """What a lookup that knows confidences has found for the next step, at full length. Only for a
    policy that says `uses_confidences`."""
    candidates: Candidates | None = None
    """What the drafter would say of the tokens after any path. Only for a policy that extends
    `DraftsTrees` and has `num_candidates`."""
    decodes: StepLoad | None = None
    """What `decode_load` returns, where that is known; None: it is added up."""

    @property
    def size(self) -> int:
        return len(self.requests)

    @property
    def output_lens(self) -> Ints:
        """Output tokens of each sequence that are known when its draft is made."""
        return self.known_lens - self.prompt_lens

    def decode_load(self) -> StepLoad:
        """Return the load of the next step if nothing were drafted, as far as it is known.

        One token of every sequence that is not in mid-prefill: what continues its prefill, is
        admitted or ends cannot be foreseen.
        """
        if self.decodes is not None:
            return self.decodes
        known_lens = self.known_lens
        if np.count_nonzero(self.in_prefill):
            known_lens = known_lens[~self.in_prefill]
        size = len(known_lens)
        return StepLoad(int(np.add.reduce(known_lens)) - size, size, size)


class DraftView(NamedTuple):
    """The drafts of a step; rows in scheduling order."""

    draft_lens: Ints
    """Draft tokens of each sequence; of a step about to be executed, all in its batch already."""
    confidences: NDArray[np.float32]
    """Shape (sequences, longest draft): the drafter's own probability of each token it drafted;
    0 beyond the end of a draft. Only for a policy that says `uses_confidences`, else empty."""


class StepOutcome(NamedTuple):
    """What became of the drafts of a step; columns of shape (n,) in scheduling order."""

    requests: Ints  # index of the request of each sequence that emitted tokens
    draft_lens: Ints  # drafts verified, tokens
    accepted_lens: Ints  # drafts accepted, tokens, without the bonus token
    load: StepLoad = StepLoad(0, 0)  # what the step verified
    output_tokens: int = 0  # tokens that it emitted, bonus tokens included
    target_time: float = 0.0  # seconds of its forward pass
    draft_time: float = 0.0  # seconds that it took to make its drafts
    overhead_time: float = 0.0  # seconds of the engine's own work for which the GPU waited
    trees: list[Tree | None] | None = None  # shape of each draft, for a policy that drafts trees
    paths: Sequence[Path] = ()
    """Ranks of the tokens accepted of each draft, for a policy that drafts trees."""
    drafters: Ints = np.zeros(0, dtype=np.int64)
    """Who made each draft where a lookup has a fallback: 0 the lookup, 1 the fallback."""
    token_ids: Sequence[list[int]] = ()
    """Tokens that each sequence emitted, for a policy that uses them."""
