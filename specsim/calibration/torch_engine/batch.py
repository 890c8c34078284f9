"""Batch: what one forward pass reads, and where in the KV cache it writes."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

__all__ = ["Batch", "Group", "Span", "make_batch"]


class Span(NamedTuple):
    """Consecutive tokens of one sequence."""

    slot: int
    """Row of the KV cache that the sequence has."""
    start: int
    """Position of the first token; all before it are in the cache."""
    token_ids: NDArray[np.int64]
    asked: range
    """Places in the span of the tokens whose successors are asked for."""


class Group(NamedTuple):
    """Spans of the same length, to attend to all at once."""

    slots: Tensor
    """Shape (members,)."""
    rows: Tensor
    """Where their tokens are in the batch, shape (members, length)."""
    positions: Tensor
    """Of their tokens, shape (members, length)."""
    end: int
    """Behind the last position of all, tokens."""


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

    @cached_property
    def groups(self) -> list[Group]:
        """The spans by their length; made once for all layers, since a GPU would wait each time."""
        members = defaultdict(list)
        row = 0
        for span in self.spans:
            members[len(span.token_ids)].append((span.slot, span.start, row))
            row += len(span.token_ids)
        found = []
        for num, mine in members.items():
            slots, starts, firsts = torch.tensor(mine, device=self.positions.device).T
            offsets = torch.arange(num, device=self.positions.device)
            end = max(start for _, start, _ in mine) + num
            found.append(Group(slots, firsts[:, None] + offsets, starts[:, None] + offsets, end))
        return found


def make_batch(spans: Sequence[Span], slot_len: int, device: torch.device) -> Batch:
    """Lay spans end to end.

    Parameters
    ----------
    spans : sequence of Span
    slot_len : int, tokens
        Length of each row of the KV cache.
    device : torch.device

    Returns
    -------
    Batch
    """
    lens = [len(span.token_ids) for span in spans]
    ends = np.cumsum(lens)
    positions = np.concatenate(
        [np.arange(span.start, span.start + num) for span, num in zip(spans, lens, strict=True)]
    )
    slots = np.repeat([span.slot for span in spans], lens)
    logit_rows = np.concatenate(
        [
            np.arange(span.asked.start, span.asked.stop) + end - num
            for span, num, end in zip(spans, lens, ends, strict=True)
        ]
    )
    packed = np.concatenate(
        [
            np.concatenate([span.token_ids for span in spans]),
            positions,
            slots * slot_len + positions,
        ]
    )
    # One transfer for everything: on a GPU each of its own would wait for the driver.
    on_device = torch.from_numpy(packed).to(device)
    token_ids, at, cache_rows = on_device.view(3, -1)
    return Batch(spans, token_ids, at, cache_rows, torch.from_numpy(logit_rows).to(device))
