"""The vocabulary of one engine step.

    schedule  ->  target forward (prefill chunks + verification of the last drafts)
              ->  accept  ->  draft for the next step

`StepLoad` is all that a latency model is told, `BatchView` and `StepOutcome` all that a policy is.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

__all__ = ["BatchView", "SeenSequence", "StepLoad", "StepOutcome"]


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


class SeenSequence(Protocol):
    """What a server knows of a sequence."""

    index: int
    prompt_len: int
    known_len: int
    in_chunk: bool


class BatchView:
    """The sequences of a step as a server sees them when it decides how much to draft.

    Parameters
    ----------
    sequences : sequence of SeenSequence
        In scheduling order.
    load : StepLoad
        Of the step that is running.
    accepted_lens : list of int or None, tokens
        What the step's verification accepted, per sequence; None where the decision precedes it
        (asynchronous scheduling, and drafts that are verified in the same step).
    """

    __slots__ = ("_accepted_lens", "_sequences", "load")

    def __init__(
        self,
        sequences: Sequence[SeenSequence],
        load: StepLoad,
        accepted_lens: list[int] | None = None,
    ) -> None:
        self._sequences = sequences
        self._accepted_lens = accepted_lens
        self.load = load

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


class StepOutcome(NamedTuple):
    """What became of the drafts of a step; parallel lists in scheduling order."""

    requests: list[int]
    """Index of the request of each sequence."""
    draft_lens: list[int]
    """Drafts verified, tokens."""
    accepted_lens: list[int]
    """Drafts accepted, tokens, without the bonus token."""
