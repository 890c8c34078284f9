"""The vocabulary of one engine step.

    schedule  ->  target forward (prefill chunks + verification of the last drafts)
              ->  accept  ->  draft for the next step

`StepLoad` is all that a latency model is told; `BatchView`, `DraftView` and `StepOutcome` are all
that a policy is.
"""

from collections.abc import Sequence
from itertools import accumulate
from operator import mul
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

__all__ = ["BatchView", "DraftView", "Pieces", "SeenSequence", "StepLoad", "StepOutcome", "Tree"]


class Pieces(NamedTuple):
    """What each sequence of a step processes; parallel lists in scheduling order."""

    query_lens: list[int]
    """Batched tokens of each sequence: a prefill chunk, or its last token and drafts."""
    context_lens: list[int]
    """KV entries of each sequence when the step starts, tokens."""


class StepLoad(NamedTuple):
    """Size of one forward pass (Liu et al. 2024, "SmartSpec", section 4.3, fig. 6)."""

    context_tokens: int
    """KV entries that exist when the step starts, summed over the scheduled sequences."""
    batched_tokens: int
    """Query tokens of the step: prefill chunks, last tokens and drafts."""
    num_requests: int = 1
    """Sequences in the step."""
    prefill_tokens: int = 0
    """Batched tokens that belong to prefills; 0 in a decode-only step."""
    pieces: Pieces | None = None
    """The same, sequence by sequence; only for a latency model that `uses_pieces`."""


class Tree(NamedTuple):
    """Shape of a draft that holds several candidates per position (Cai et al. 2024, "Medusa").

    Every candidate of a position is linked to every candidate of the next, and all of them are
    batched for verification.
    """

    widths: tuple[int, ...]
    """Candidates per position; the first position that is not drafted ends it."""

    @property
    def num_nodes(self) -> int:
        """Tokens to verify: sum over h of k_1 * ... * k_h (SmartSpec, section 4.3)."""
        return sum(accumulate(self.widths, mul))

    def complete_widths(self, num_nodes: int) -> tuple[int, ...]:
        """Return the widths of the positions of which all candidates are among the first nodes.

        Parameters
        ----------
        num_nodes : int
            Nodes that were batched, position after position.

        Returns
        -------
        tuple of int
        """
        ends = accumulate(accumulate(self.widths, mul))
        return self.widths[: sum(end <= num_nodes for end in ends)]


class SeenSequence(Protocol):
    """What a server knows of a sequence."""

    index: int
    prompt_len: int
    known_len: int
    in_chunk: bool


class BatchView:
    """The sequences of a step as a server sees them when it decides how much to draft or verify.

    Parameters
    ----------
    sequences : sequence of SeenSequence
        In scheduling order.
    load : StepLoad
        Of the step that is running.
    accepted_lens : list of int or None, tokens
        What the step's verification accepted, per sequence; None where the decision precedes it
        (asynchronous scheduling, and drafts that are verified in the same step).
    now : float, seconds
        When the step was scheduled.
    free_slots : int, tokens
        Room for drafts: KV blocks that nobody holds, and the sequences' look-ahead slots.
    drafts : DraftView or None
        What a lookup has found for the next step, at full length. Only for a policy that says
        `uses_confidences`, and only where drafts are real tokens.
    """

    __slots__ = ("_accepted_lens", "_sequences", "drafts", "free_slots", "load", "now")

    def __init__(
        self,
        sequences: Sequence[SeenSequence],
        load: StepLoad,
        accepted_lens: list[int] | None = None,
        *,
        now: float = 0.0,
        free_slots: int = 1 << 40,
        drafts: "DraftView | None" = None,
    ) -> None:
        self._sequences = sequences
        self._accepted_lens = accepted_lens
        self.load = load
        self.now = now
        self.free_slots = free_slots
        self.drafts = drafts

    @property
    def size(self) -> int:
        """Sequences scheduled in the step, prefills included."""
        return len(self._sequences)

    @property
    def requests(self) -> list[int]:
        """Index of the request of each sequence."""
        return [sequence.index for sequence in self._sequences]

    @property
    def in_prefill(self) -> list[bool]:
        """Whether each sequence is still in mid-prefill, so that its draft would be ignored."""
        return [sequence.in_chunk for sequence in self._sequences]

    @property
    def prompt_lens(self) -> list[int]:
        """Prompt tokens of each sequence."""
        return [sequence.prompt_len for sequence in self._sequences]

    @property
    def output_lens(self) -> list[int]:
        """Output tokens of each sequence that are known when its draft is made."""
        return [
            known_len - sequence.prompt_len
            for known_len, sequence in zip(self.known_lens, self._sequences, strict=True)
        ]

    @property
    def known_lens(self) -> list[int]:
        """Prompt and output tokens of each sequence that are known when its draft is made."""
        if self._accepted_lens is None:
            return [sequence.known_len for sequence in self._sequences]
        return [
            sequence.known_len if sequence.in_chunk else sequence.known_len + accepted_len + 1
            for sequence, accepted_len in zip(self._sequences, self._accepted_lens, strict=True)
        ]

    def decode_load(self) -> StepLoad:
        """Return the load of the next step if nothing were drafted, as far as it is known.

        One token of every sequence that is not in mid-prefill: what continues its prefill, is
        admitted or ends cannot be foreseen.
        """
        in_prefill = self.in_prefill
        if True in in_prefill:
            pairs = zip(self.known_lens, in_prefill, strict=True)
            known_lens = [known_len for known_len, prefill in pairs if not prefill]
            size = len(known_lens)
            return StepLoad(sum(known_lens) - size, size, size)
        size = len(self._sequences)
        known_tokens = sum([sequence.known_len for sequence in self._sequences])
        if self._accepted_lens is not None:
            known_tokens += sum(self._accepted_lens) + size
        return StepLoad(known_tokens - size, size, size)


class DraftView(NamedTuple):
    """The drafts of a step; rows in scheduling order."""

    draft_lens: list[int]
    """Draft tokens of each sequence; of a step about to be executed, all in its batch already."""
    confidences: NDArray[np.float32]
    """Shape (sequences, longest draft): the drafter's own probability of each token it drafted;
    0 beyond the end of a draft. Only for a policy that says `uses_confidences`, else empty."""


class StepOutcome(NamedTuple):
    """What became of the drafts of a step; parallel lists in scheduling order."""

    requests: list[int]
    """Index of the request of each sequence that emitted tokens."""
    draft_lens: list[int]
    """Drafts verified, tokens."""
    accepted_lens: list[int]
    """Drafts accepted, tokens, without the bonus token."""
    load: StepLoad = StepLoad(0, 0)
    """What the step verified."""
    output_tokens: int = 0
    """Tokens that it emitted, bonus tokens included."""
    target_time: float = 0.0
    """Seconds of its forward pass."""
    draft_time: float = 0.0
    """Seconds that it took to make its drafts."""
    overhead_time: float = 0.0
    """Seconds of the engine's own work."""
    trees: list[Tree | None] | None = None
    """Shape of each draft, for a policy that drafts trees."""
    drafters: list[int] = []  # noqa: RUF012 - never changed
    """Who made each draft where a lookup has a fallback: 0 the lookup, 1 the fallback."""
    token_ids: list[list[int]] = []  # noqa: RUF012 - never changed
    """Tokens that each sequence emitted, for a policy that uses them."""
