"""Attention over a KV cache in which every sequence has a row of its own.

Query heads that share keys and values lie behind each other as if they were more tokens, so that
keys and values are read once for all of them.
"""

import torch
from torch import Tensor
from torch.nn import functional

from specsim.calibration.torch_engine.batch import Batch

__all__ = ["attend_each", "attend_groups", "causal_mask"]


def causal_mask(num_positions: int, num_shared: int, dtype: torch.dtype) -> Tensor:
    """Return which position sees which, as what is added to the scores.

    Parameters
    ----------
    num_positions : int
    num_shared : int
        Query heads that share keys and values; each position has so many rows.
    dtype : torch.dtype

    Returns
    -------
    Tensor, shape (num_positions * num_shared, num_positions)
        0 where it does, minus infinity where it does not.
    """
    sees = torch.ones(num_positions, num_positions, dtype=torch.bool).tril()
    mask = torch.zeros(num_positions, num_positions, dtype=dtype).masked_fill(~sees, -torch.inf)
    return mask.repeat_interleave(num_shared, dim=0)


def attend_each(queries: Tensor, cache: Tensor, batch: Batch, mask: Tensor) -> Tensor:
    """Attend sequence by sequence: no padding, nothing copied; what a CPU does best.

    Parameters
    ----------
    queries : Tensor, shape (tokens, heads, head_dim)
    cache : Tensor, shape (2, slots, slot_len, kv_heads, head_dim)
        Keys and values, those of this batch included.
    batch : Batch
    mask : Tensor
        From `causal_mask`.

    Returns
    -------
    Tensor, shape (tokens, heads, head_dim)
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


def attend_groups(queries: Tensor, cache: Tensor, batch: Batch) -> Tensor:
    """Attend to all sequences of the same span length at once, padded to the longest of them.

    What a GPU does best, which would starve on one small kernel per sequence.

    Parameters
    ----------
    queries : Tensor, shape (tokens, heads, head_dim)
    cache : Tensor, shape (2, slots, slot_len, kv_heads, head_dim)
    batch : Batch

    Returns
    -------
    Tensor, shape (tokens, heads, head_dim)
    """
    found = torch.empty_like(queries)
    kv_heads = cache.shape[3]
    num_shared = queries.shape[1] // kv_heads
    for slots, rows, positions, end in batch.groups:
        keys, values = (part[slots, :end].transpose(1, 2) for part in cache)
        # (members, length, heads, width) to (members, kv_heads, length * num_shared, width)
        mine = queries[rows].unflatten(2, (kv_heads, num_shared)).transpose(1, 2).flatten(2, 3)
        known = positions.repeat_interleave(num_shared, dim=1)
        sees = torch.arange(end, device=queries.device) <= known[:, :, None]
        attended = functional.scaled_dot_product_attention(
            mine, keys, values, attn_mask=sees[:, None]
        )
        by_token = attended.unflatten(2, (rows.shape[1], num_shared)).transpose(1, 2)
        found[rows] = by_token.flatten(2, 3)
    return found
