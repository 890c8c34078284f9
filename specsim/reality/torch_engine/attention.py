"""Batches of spans of tokens, and attention over a KV cache with a row per sequence."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from specsim.core.figures import percent

flash = torch.ops.aten._flash_attention_forward

log = logging.getLogger(__name__)


class Span(NamedTuple):
    """Consecutive tokens of one sequence."""

    slot: int  # row of the sequence in the KV cache
    start: int  # position of the first token; all earlier ones are in the cache
    token_ids: NDArray[np.int64]
    asked: range  # places in the span of the tokens whose next tokens are wanted


@dataclass(frozen=True)
class Batch:
    """Several spans, end to end."""

    spans: Sequence[Span]
    token_ids: Tensor  # shape (tokens,)
    positions: Tensor  # shape (tokens,)
    cache_rows: Tensor  # shape (tokens,): slot times slot length plus position
    logit_rows: Tensor  # shape (logits,): the tokens whose next tokens are wanted
    query_starts: Tensor  # starts of the spans in the batch, and the last end, (spans + 1,), int32
    key_starts: Tensor  # starts of their sequences in the cache, and a 0, (spans + 1,), int32
    key_lens: Tensor  # lengths of their sequences, with these spans, (spans,), int32

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
    """Return the parts of a packed tensor as a batch of views."""
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


Attend = Callable[[Tensor, Tensor, Batch], Tensor]  # takes queries, cache and batch


def causal_mask(num_positions: int, num_shared: int, like: Tensor) -> Tensor:
    """Return the mask to add to the scores, 0 or -inf, with device and dtype of `like`.

    Shape (num_positions * num_shared, num_positions): a row per query head that shares the keys.
    """
    sees = like.new_ones((num_positions, num_positions), dtype=torch.bool).tril()
    mask = like.new_zeros((num_positions, num_positions)).masked_fill(~sees, -torch.inf)
    return mask.repeat_interleave(num_shared, dim=0)


def attend_each(queries: Tensor, cache: Tensor, batch: Batch, *, mask: Tensor) -> Tensor:
    """Attend sequence by sequence, without padding or copies; best on a CPU.

    Query heads that share keys and values are put one after another like more tokens, so that keys
    and values are read once for all. Queries and the result have shape (tokens, heads, head_dim),
    the cache, which includes this batch, (2, slots, slot_len, kv_heads, head_dim).
    """
    found = torch.empty_like(queries)
    kv_heads = cache.shape[3]
    num_shared = queries.shape[1] // kv_heads
    row = 0
    for span in batch.spans:
        num, start = len(span.token_ids), span.start
        end = start + num
        keys, values = (part[span.slot, :end].transpose(0, 1).unsqueeze(0) for part in cache)
        mine = queries[row : row + num].view(num, kv_heads, num_shared, -1)
        attended = functional.scaled_dot_product_attention(
            mine.transpose(0, 1).reshape(1, kv_heads, num * num_shared, -1),
            keys,
            values,
            attn_mask=None if num == 1 else mask[start * num_shared : end * num_shared, :end],
        )
        by_token = attended.view(kv_heads, num, num_shared, -1).transpose(0, 1)
        found[row : row + num] = by_token.reshape(num, kv_heads * num_shared, -1)
        row += num
    return found


def attend_flash(queries: Tensor, cache: Tensor, batch: Batch) -> Tensor:
    """Attend to all sequences in one kernel, each to its own length; best on a GPU.

    FlashAttention 2 (Dao 2023) as in PyTorch: with the number of used keys per sequence
    (``seqused_k``) the rows of the cache need neither be full nor copied. So the cost follows the
    context that is read, as in a simulation, and not the longest sequence. Arguments as for
    `attend_each`; on a GPU, of 16 bits.
    """
    keys, values = cache.flatten(1, 2)
    # The last token of a span sees all its keys: causal masks are aligned to the end.
    attended: Tensor = flash(
        queries,
        keys,
        values,
        batch.query_starts,
        batch.key_starts,
        batch.longest,
        cache.shape[2],
        0.0,  # dropout
        True,  # causal
        False,
        seqused_k=batch.key_lens,
    )[0]
    return attended


def choose_attention(cache: Tensor, num_heads: int) -> Attend:
    """Return the fastest attention of a device that gives right results.

    A GPU without the kernel, or with one of other results, attends sequence by sequence, with a
    warning. The cache, of one layer, is overwritten.
    """
    slot_len, kv_heads = cache.shape[2:4]
    each = partial(attend_each, mask=causal_mask(slot_len, num_heads // kv_heads, cache))
    if cache.device.type == "cpu":
        return each
    problem = disagreement(attend_flash, each, cache, num_heads)
    if problem is None:
        return attend_flash
    log.warning("FlashAttention is not used on %s (%s): slower", cache.device, problem)
    return each


def disagreement(one: Attend, other: Attend, cache: Tensor, num_heads: int) -> str | None:
    """Compare two attentions on steps of every kind; return what is wrong, or None."""
    slots, slot_len, _, width = cache.shape[1:]
    cache.normal_()
    try:
        for lens in ((600, 1, 4, 1), (1, 1, 1, 1), (4, 4, 4)):  # spans: prefill, decode, verify
            spans = _checked_spans([min(num, slot_len) for num in lens], slots, slot_len)
            batch = make_batch(spans, slot_len, cache.device)
            queries = cache.new_empty((len(batch.token_ids), num_heads, width)).normal_()
            mine, theirs = (attend(queries, cache, batch).float() for attend in (one, other))
            # Token by token: long contexts average many values, and are small.
            sizes = theirs.norm(dim=(1, 2))
            difference = float(((mine - theirs).norm(dim=(1, 2)) / sizes).max())
            if not difference < 0.05:  # of a token's norm; bfloat16 has eight bits
                return f"{percent(difference, 0)} away from plain attention, spans of {lens} tokens"
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        return (str(error).splitlines() or [type(error).__name__])[0][:120]
    finally:
        cache.zero_()
    return None


def _checked_spans(lens: list[int], slots: int, slot_len: int) -> list[Span]:
    """Return spans of very different sequences: the first short, the last full."""
    most = max(len(lens) - 1, 1)
    return [
        Span(place % slots, (slot_len - num) * place // most, np.zeros(num, np.int64), range(1))
        for place, num in enumerate(lens)
    ]
