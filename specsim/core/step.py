"""The data types of one engine step.

    schedule  ->  target forward (prefill chunks + verification of the last drafts)
              ->  accept  ->  draft for the next step

A latency model is told a `StepLoad` and nothing else; a policy is shown a `BatchView`, a
`DraftView` and a `StepOutcome`.
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
    """Batched tokens of each sequence: a prefill chunk, or the last token and the drafts."""
    context_lens: list[int]  # KV entries of each sequence when the step starts, tokens


class StepLoad(NamedTuple):
    """Size of one forward pass (Liu et al. 2024, "SmartSpec", section 4.3, fig. 6)."""

    context_tokens: int
    """KV entries that exist when the step starts, summed over the scheduled sequences."""
    batched_tokens: int  # query tokens of the step: prefill chunks, last tokens and drafts
    num_requests: int = 1  # sequences in the step
    prefill_tokens: int = 0  # batched tokens that belong to prefills; 0 in a decode-only step
    pieces: Pieces | None = None
    """The load of each sequence; None unless the latency model sets `uses_pieces`."""


@dataclass(slots=True, eq=False)
class BatchView:
    """The sequences of a step, as the policy sees them when it decides draft or verify lengths.

    The arrays have shape (size,), in scheduling order, and are copies that the policy may change.
    """

    requests: Ints  # index of the request of each sequence
    prompt_lens: Ints
    known_lens: Ints
    """Prompt and output tokens that are known at the time of the decision. They include the tokens
    that the running step accepts, unless the decision precedes its verification, as in
    `Policy.verify_lens` and under asynchronous scheduling."""
    in_prefill: NDArray[np.bool_]
    """Whether part of the prompt is still unread after this step; a draft would be ignored."""
    load: StepLoad  # of the step that is running
    _: KW_ONLY
    now: float = 0.0  # when the step was scheduled, seconds
    free_slots: int = 1 << 40
    """Room for drafts: free KV blocks plus the sequences' look-ahead slots, tokens."""
    num_running: int = 0
    """Running sequences, including those that are not in this step (``prefill_first`` makes steps
    of prompts alone and of decodes alone)."""
    draft_lens: Ints | None = None  # drafts of each sequence in the step, tokens; None: not known
    is_undrafted: NDArray[np.bool_] | None = None
    """Whether the drafter no longer serves each sequence (`Policy.drops`); None: it serves all."""
    is_admitted: NDArray[np.bool_] | None = None
    """Whether the step admits each sequence for the first time; None: it admits none."""
    drafts: "DraftView | None" = None
    """Drafts that a lookup with confidences has found for the next step, at full length. Only for a
    policy that sets `uses_confidences`."""
    candidates: Candidates | None = None
    """The drafter's candidates for the token after any path of draft tokens. Only for a policy that
    extends `DraftsTrees` and has `num_candidates`."""
    decodes: StepLoad | None = None
    """The result of `decode_load` where the engine has it already; None: it is computed."""

    @property
    def size(self) -> int:
        return len(self.requests)

    @property
    def output_lens(self) -> Ints:
        """Output tokens of each sequence that are known at the time of the decision."""
        return self.known_lens - self.prompt_lens

    def decode_load(self) -> StepLoad:
        """Return the load of the next step if nothing were drafted, as far as it is known.

        It counts one token for each sequence that is not in mid-prefill. Prefill chunks, admissions
        and requests that end cannot be foreseen.
        """
        if self.decodes is not None:
            return self.decodes
        known_lens = self.known_lens
        if np.count_nonzero(self.in_prefill):
            known_lens = known_lens[~self.in_prefill]
        size = len(known_lens)
        return StepLoad(int(np.add.reduce(known_lens)) - size, size, size)


class DraftView(NamedTuple):
    """The drafts of a step, one row per sequence in scheduling order."""

    draft_lens: Ints
    """Draft tokens of each sequence, shape (n,); in `verify_lens`, part of the step's load."""
    confidences: NDArray[np.float32]
    """Shape (n, longest draft): the drafter's own probability of each token that it drafted; 0
    beyond the end of a draft. Empty unless the policy sets `uses_confidences`."""


class StepOutcome(NamedTuple):
    """What became of the drafts of a step; columns of shape (n,) in scheduling order."""

    requests: Ints  # index of the request of each sequence that emitted tokens
    draft_lens: Ints  # draft tokens verified
    accepted_lens: Ints  # draft tokens accepted, without the bonus token
    load: StepLoad = StepLoad(0, 0)  # of the forward pass that verified the drafts
    output_tokens: int = 0  # tokens that the step emitted, bonus tokens included
    target_time: float = 0.0  # seconds of the forward pass
    draft_time: float = 0.0  # seconds spent on making the drafts that the step verified
    overhead_time: float = 0.0  # seconds of the engine's own work for which the GPU waited
    trees: list[Tree | None] | None = None  # shape of each draft, for a policy that drafts trees
    paths: Sequence[Path] = ()
    """Accepted path in each tree, as the rank of each token; for a policy that drafts trees."""
    drafters: Ints = np.zeros(0, dtype=np.int64)
    """Who made each draft where a lookup has a fallback: 0 the lookup, 1 the fallback."""
    token_ids: Sequence[list[int]] = ()
    """Tokens that each sequence emitted; for a policy that sets `uses_tokens`."""
