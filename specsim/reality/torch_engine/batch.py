"""Batch: what one forward pass reads, and where in the KV cache it writes."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

__all__ = ["Batch", "Span", "Text", "make_batch", "pack", "unpack"]


class Span(NamedTuple):
    """Consecutive tokens of one sequence."""

    slot: int
    """Row of the KV cache that the sequence has."""
    start: int
    """Position of the first token; all before it are in the cache."""
    token_ids: NDArray[np.int64]
    asked: range
    """Places in the span of the tokens whose successors are asked for."""


@dataclass(frozen=True)
class Batch:
    """Several spans, end to end."""

    spans: Sequence[Span]
    token_ids: Tensor
    """Shape (tokens,)."""
    positions: Tensor
    """Shape (tokens,)."""
    cache_rows: Tensor
    """Shape (tokens,): slot times slot length plus position."""
    logit_rows: Tensor
    """Shape (logits,): the tokens whose successors are asked for."""
    query_starts: Tensor
    """Of the spans in the batch, and the end of the last, shape (spans + 1,), int32."""
    key_starts: Tensor
    """Of their sequences in the cache, and an unused 0, shape (spans + 1,), int32."""
    key_lens: Tensor
    """Of their sequences, these spans included, shape (spans,), int32."""

    @property
    def longest(self) -> int:
        """Tokens of the longest span."""
        return max(len(span.token_ids) for span in self.spans)


def make_batch(spans: Sequence[Span], slot_len: int, device: torch.device) -> Batch:
    """Lay spans, at least one, end to end."""
    return unpack(torch.from_numpy(pack(spans, slot_len)).to(device), spans)


def pack(spans: Sequence[Span], slot_len: int) -> NDArray[np.int64]:
    """Return the tensors of a `Batch`, in their order, end to end: one transfer to the device."""
    lens = np.array([len(span.token_ids) for span in spans])
    slots, starts = np.array([span[:2] for span in spans]).T
    ends = np.cumsum(lens)
    offsets = np.arange(ends[-1]) - np.repeat(ends - lens, lens)
    positions = np.repeat(starts, lens) + offsets
    return np.concatenate(
        [
            *(span.token_ids for span in spans),
            positions,
            np.repeat(slots * slot_len, lens) + positions,
            *(
                np.arange(span.asked.start, span.asked.stop) + first
                for span, first in zip(spans, ends - lens, strict=True)
            ),
            [0],
            ends,
            slots * slot_len,
            [0],
            starts + lens,
        ]
    )


def unpack(packed: Tensor, spans: Sequence[Span]) -> Batch:
    """Take apart what `pack` has packed; later changes of the tensor are changes of the batch.

    Args:
        spans: Only how many there are, how long they are and how much they ask for matters.
    """
    num, asked = (
        sum(len(each) for each in column)
        for column in ((span.token_ids for span in spans), (span.asked for span in spans))
    )
    tokens, rest = packed[: 3 * num].view(3, num), packed[3 * num :]
    reads = rest[asked:].int()
    edge = len(spans) + 1
    return Batch(
        spans,
        tokens[0],
        tokens[1],
        tokens[2],
        rest[:asked],
        reads[:edge],
        reads[edge : 2 * edge],
        reads[2 * edge :],
    )


class Text:
    """Prompt, output so far, and behind them the drafts that wait to be verified."""

    def __init__(self, prompt: NDArray[np.int64], slot_len: int) -> None:
        self.token_ids = np.zeros(slot_len + 1, dtype=np.int64)
        self.token_ids[: len(prompt)] = prompt
        self.slot: int | None = None
        """Row of the KV caches; None while it does not run."""
        self.draft_read_len = 0
        """Tokens in the draft model's KV cache."""

    def span(self, start: int, end: int, asked: range) -> Span:
        """Return the tokens from one position up to another, to be read."""
        assert self.slot is not None
        return Span(self.slot, start, self.token_ids[start:end], asked)

    def write(self, position: int, token_ids: list[int]) -> None:
        """Put tokens at a position, over whatever stood there."""
        self.token_ids[position : position + len(token_ids)] = token_ids
