"""Llama: the forward pass of a Llama-like model over its own KV cache."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from specsim.hardware import ModelShape
from specsim.reality.torch_engine.attention import attend_flash, choose_attention
from specsim.reality.torch_engine.batch import Batch, Span, make_batch
from specsim.reality.torch_engine.memory import out_of_memory
from specsim.reality.torch_engine.recordings import PassShape, Record, Recordings
from specsim.reality.torch_engine.timers import Timer
from specsim.reality.torch_engine.weights import Layer, Weights

__all__ = ["Llama"]

_ROPE_BASE = 10_000.0
_NORM_EPS = 1e-5


class Llama:
    """A model, and the KV cache of the sequences that it reads.

    Args:
        shape: Of its layers; how many there are the weights know.
        num_slots: Sequences that the cache holds.
        slot_len: Of each of them, in tokens.

    Raises:
        CapacityError: The cache does not fit into memory.
    """

    def __init__(
        self, shape: ModelShape, weights: Weights, *, num_slots: int, slot_len: int
    ) -> None:
        self._shape, self._weights = shape, weights
        self._slot_len = slot_len
        self.device = weights.embedding.device
        dtype = weights.embedding.dtype
        # One row more than sequences: for what fills up a recorded pass.
        size = (2, num_slots + 1, slot_len, shape.num_key_value_heads, shape.head_dim)
        what = f"a KV cache of {num_slots} x {slot_len} tokens, {len(weights.layers)} layers"
        with out_of_memory(what, self.device):
            self._caches = [
                torch.zeros(size, device=self.device, dtype=dtype) for _ in weights.layers
            ]
        self._attend = choose_attention(self._caches[0], shape.num_attention_heads)
        self._turns = _rotations(shape.head_dim, slot_len).to(self.device)
        self.recordings = Recordings(self._successors, slot_len, num_slots, self.device)

    @property
    def can_be_recorded(self) -> bool:
        """Whether all that a pass depends on is on the device."""
        return self._attend is attend_flash

    def record(self, shapes: Sequence[PassShape], record: Record, timer: Timer) -> None:
        """Record passes; see `Recordings.add`."""
        with torch.inference_mode():
            self.recordings.add(shapes, record, timer)

    def next_tokens(self, spans: list[Span]) -> list[int]:
        """Read some spans and return the most likely successors that are asked for.

        Args:
            spans: At least one.

        Returns:
            As many as each span asks for, end to end. They are on the host, so all work is done;
            where none is asked for, a GPU may still be at it.
        """
        with torch.inference_mode():
            found = self.recordings.next_tokens(spans)
            if found is None:
                found = self._successors(make_batch(spans, self._slot_len, self.device))
            tokens: list[int] = found.tolist()
        return tokens

    def _successors(self, batch: Batch) -> Tensor:
        hidden = self._read(batch)
        if not len(batch.logit_rows):
            return batch.logit_rows
        return self._head(hidden, batch).argmax(dim=-1)

    def logits(self, batch: Batch) -> Tensor:
        """Read a batch and return the logits that it asks for, shape (asked, vocabulary)."""
        return self._head(self._read(batch), batch)

    def _head(self, hidden: Tensor, batch: Batch) -> Tensor:
        return functional.linear(_normed(hidden[batch.logit_rows]), self._weights.lm_head)

    def _read(self, batch: Batch) -> Tensor:
        """Run all layers; what is asked for or not, the KV cache gets it."""
        hidden = self._weights.embedding[batch.token_ids]
        turns = self._turns[batch.positions].unsqueeze(1)
        for layer, cache in zip(self._weights.layers, self._caches, strict=True):
            hidden = hidden + self._attention(_normed(hidden), layer, cache, batch, turns)
            gate, up = functional.linear(_normed(hidden), layer.gate_up).chunk(2, dim=-1)
            hidden = hidden + functional.linear(functional.silu(gate) * up, layer.down)
        return hidden

    def _attention(
        self, hidden: Tensor, layer: Layer, cache: Tensor, batch: Batch, turns: Tensor
    ) -> Tensor:
        shape = self._shape
        heads, kv_heads = shape.num_attention_heads, shape.num_key_value_heads
        qkv = functional.linear(hidden, layer.qkv).view(
            len(hidden), heads + 2 * kv_heads, shape.head_dim
        )
        turned = _turned(qkv[:, : heads + kv_heads], turns)
        queries, keys = turned[:, :heads], turned[:, heads:]
        rows = cache.view(2, -1, kv_heads, shape.head_dim)
        rows[0].index_copy_(0, batch.cache_rows, keys)
        rows[1].index_copy_(0, batch.cache_rows, qkv[:, heads + kv_heads :])
        attended = self._attend(queries, cache, batch)
        return functional.linear(attended.reshape(len(hidden), -1), layer.out)


def _normed(hidden: Tensor) -> Tensor:
    return functional.rms_norm(hidden, (hidden.shape[-1],), eps=_NORM_EPS)


def _rotations(head_dim: int, num_positions: int) -> Tensor:
    """Return the rotary embedding of every position as unit complex numbers.

    Su et al. (2021), "RoFormer": pair i turns by position / base^(2 i / head_dim).
    """
    rates = _ROPE_BASE ** -(torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim)
    angles = torch.outer(torch.arange(num_positions, dtype=torch.float32), rates)
    return torch.polar(torch.ones_like(angles), angles)


def _turned(heads: Tensor, turns: Tensor) -> Tensor:
    pairs = torch.view_as_complex(heads.float().unflatten(-1, (-1, 2)))
    return torch.view_as_real(pairs * turns).flatten(-2).to(heads.dtype)
