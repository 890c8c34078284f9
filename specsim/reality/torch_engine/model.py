"""Llama-like models with random weights, and their forward pass over a KV cache.

Decode passes are recorded, and run as CUDA graphs where that is faster. A pass of a small batch is
hundreds of kernels of a few microseconds, and launching each costs the host as much. A graph is
launched once, but its shapes are fixed; so a pass is padded to the next recorded shape with spans
of a spare row of the KV cache.
"""

import logging
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from specsim.core.errors import CapacityError, ConfigError
from specsim.hardware import ModelShape
from specsim.reality.clock import Clock
from specsim.reality.torch_engine.attention import (
    Batch,
    Span,
    attend_flash,
    choose_attention,
    make_batch,
    pack,
    unpack,
)

Run = Callable[[], Tensor]
Record = Callable[[Run], Run]  # records work on fixed tensors; returns a function that repeats it

_VOCABULARY = 64  # number of token ids of every model
_REPEATS = 5
_AGREED = 0.5  # share of equal tokens: in 16 bits another batch size may change some, not most

log = logging.getLogger(__name__)


class Timer:
    """Times one operation after another by the host's clock: a CPU's calls return when done."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._started_at = 0.0

    def start(self) -> None:
        """Begin, after all that was launched before has ended."""
        self._started_at = self._clock.now()

    def stop(self) -> float:
        """Return the seconds since `start`, after all that was launched has ended."""
        return self._clock.now() - self._started_at


class EventTimer(Timer):
    """Times by events on a GPU, which takes the time itself."""

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.current_stream(device)
        self._started, self._stopped = (torch.cuda.Event(enable_timing=True) for _ in range(2))

    def start(self) -> None:
        self._started.record(self._stream)

    def stop(self) -> float:
        self._stopped.record(self._stream)
        self._stopped.synchronize()
        return float(self._started.elapsed_time(self._stopped)) / 1e3


class PassShape(NamedTuple):
    """A pass of spans of equal shape."""

    num_spans: int
    span_len: int  # tokens of each span
    num_asked: int  # tokens of each span whose next tokens are wanted


class _RecordedPass(NamedTuple):
    shape: PassShape
    inputs: Tensor  # as made by `pack`
    run: Run


class Recordings:
    """Recorded passes of one model, each returning the wanted next tokens, (asked,).

    No sequence uses the spare slot of the KV cache.
    """

    def __init__(
        self, run: Callable[[Batch], Tensor], slot_len: int, spare_slot: int, device: torch.device
    ) -> None:
        self._run = run
        self._slot_len, self._spare_slot, self._device = slot_len, spare_slot, device
        self._kept: dict[tuple[int, int], list[_RecordedPass]] = {}

    @property
    def num_kept(self) -> int:
        """Number of shapes that use their recording."""
        return sum(len(each) for each in self._kept.values())

    def add(self, shapes: Sequence[PassShape], record: Record, timer: Timer) -> None:
        """Record passes, and keep those that are right and faster than unrecorded ones.

        Smaller numbers of spans come first. Each is compared at the smallest batch that would use
        it, where padding costs most.
        """
        fewest: dict[tuple[int, int], int] = {}
        for shape in shapes:
            kind = shape[1:]
            recording = self._recorded(shape, record)
            if self._is_better(recording, fewest.get(kind, 0) + 1, timer):
                self._kept.setdefault(kind, []).append(recording)
                fewest[kind] = shape.num_spans

    def next_tokens(self, spans: Sequence[Span]) -> Tensor | None:
        """Read spans and return the wanted next tokens; None if no recording fits."""
        kinds = {(len(span.token_ids), len(span.asked)) for span in spans}
        if len(kinds) > 1:
            return None
        mine = self._kept.get(kinds.pop(), [])
        place = bisect_left(mine, len(spans), key=lambda each: each.shape.num_spans)
        return self._replayed(mine[place], spans) if place < len(mine) else None

    def _recorded(self, shape: PassShape, record: Record) -> _RecordedPass:
        spans = self._filling(shape, shape.num_spans)
        inputs = torch.from_numpy(pack(spans, self._slot_len)).to(self._device)
        return _RecordedPass(shape, inputs, record(lambda: self._run(unpack(inputs, spans))))

    def _filling(self, shape: PassShape, num: int) -> list[Span]:
        nothing = np.zeros(shape.span_len, np.int64)
        return [Span(self._spare_slot, 0, nothing, range(shape.num_asked))] * num

    def _replayed(self, recording: _RecordedPass, spans: Sequence[Span]) -> Tensor:
        shape = recording.shape
        filled = [*spans, *self._filling(shape, shape.num_spans - len(spans))]
        recording.inputs.copy_(torch.from_numpy(pack(filled, self._slot_len)))
        return recording.run()[: len(spans) * shape.num_asked]

    def _is_better(self, recording: _RecordedPass, num_spans: int, timer: Timer) -> bool:
        shape = recording.shape
        _, span_len, num_asked = shape
        rng = np.random.default_rng(0)
        start = (self._slot_len - span_len) // 2
        spans = [
            Span(slot, start, rng.integers(0, _VOCABULARY, span_len), range(num_asked))
            for slot in range(num_spans)
        ]
        runs: tuple[Run, Run] = (
            lambda: self._replayed(recording, spans),
            lambda: self._run(make_batch(spans, self._slot_len, self._device)),
        )
        mine, theirs = (run().tolist() for run in runs)
        if mine and np.mean(np.equal(mine, theirs)) < _AGREED:
            log.warning("recorded, a pass of %s says something else; it is not used", shape)
            return False
        seconds = np.array([[timed(timer, run) for run in runs] for _ in range(_REPEATS)])
        recorded, unrecorded = np.median(seconds, axis=0)
        return bool(recorded < unrecorded)


def timed(timer: Timer, run: Run) -> float:
    """Return the time until the result of some work is on the host, seconds."""
    timer.start()
    run().tolist()
    return timer.stop()


def batch_sizes(most: int) -> list[int]:
    """Return the numbers of spans to record: 1, 2, 4, multiples of 8, and the most there are."""
    return sorted({num for num in (1, 2, 4, *range(8, most, 8)) if num < most} | {most})


def cuda_graphs(device: torch.device) -> Record:
    """Return a recorder of CUDA graphs that share memory; a RuntimeError if that fails."""
    pool, stream = torch.cuda.graph_pool_handle(), torch.cuda.Stream(device)

    def record(run: Run) -> Run:
        stream.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(stream):
            run()  # libraries choose kernels and allocate, which must not happen in a recording
        torch.cuda.current_stream(device).wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool):
            found = run()

        def replay() -> Tensor:
            graph.replay()
            return found

        return replay

    return record


@contextmanager
def out_of_memory(what: str, device: torch.device) -> Iterator[None]:
    """Turn PyTorch's out-of-memory errors into a one-line error about `what`."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        is_known = isinstance(error, (torch.OutOfMemoryError, MemoryError))
        # The error of a CPU's allocator has no class of its own.
        if not is_known and "alloc" not in str(error).lower():
            raise
        lines = str(error).splitlines() or [type(error).__name__]
        raise CapacityError(
            f"{what}: more than the memory of {device} has left ({lines[0][:120]}); choose a "
            "smaller model (--model)"
        ) from error


@dataclass(frozen=True)
class Layer:
    """Matrices of one layer, shape (outputs, inputs)."""

    qkv: Tensor  # queries, keys and values, stacked
    out: Tensor
    gate_up: Tensor  # gate and up projections, stacked
    down: Tensor


@dataclass(frozen=True)
class Weights:
    """A decoder-only transformer whose norms have no weights.

    The first layers are its draft model, with the same vocabulary matrices.
    """

    embedding: Tensor  # shape (vocabulary, hidden)
    layers: tuple[Layer, ...]
    lm_head: Tensor  # shape (vocabulary, hidden)


@dataclass(frozen=True)
class Recipe:
    """How weights are drawn."""

    num_draft_layers: int = 2
    """Layers of the draft model, the first of the target; later layers write less into the residual
    stream."""
    deep_scale: float = 0.15
    """The factor by which later layers write less. 0: the first layers decide, and the draft model
    is always right; 1: all layers are alike, and it is right by chance."""
    seed: int = 0


def random_weights(
    shape: ModelShape, recipe: Recipe, device: torch.device, dtype: torch.dtype
) -> Weights:
    """Return random weights whose first layers predict almost what all layers predict.

    Raises a ConfigError if the engine does not support a part of the model; a CapacityError if the
    weights do not fit into memory.
    """
    check_shape(shape)
    generator = torch.Generator(device=device).manual_seed(recipe.seed)
    hidden, width = shape.hidden_size, shape.intermediate_size
    heads, kv_heads = shape.num_attention_heads, shape.num_key_value_heads
    head_dim = shape.head_dim

    def matrix(outputs: int, inputs: int, scale: float = 1.0) -> Tensor:
        drawn = torch.empty(outputs, inputs, device=device, dtype=dtype)
        # About three times the usual initialisation: with less, greedy answers repeat.
        return drawn.normal_(0.0, scale * 1.4 * inputs**-0.5, generator=generator)

    def layer(number: int) -> Layer:
        scale = 1.0 if number < recipe.num_draft_layers else recipe.deep_scale
        return Layer(
            qkv=matrix((heads + 2 * kv_heads) * head_dim, hidden),
            out=matrix(hidden, heads * head_dim, scale),
            gate_up=matrix(2 * width, hidden),
            down=matrix(hidden, width, scale),
        )

    with out_of_memory(f"the {shape.num_parameters / 1e9:.2f} billion weights", device):
        embedding = matrix(shape.vocab_size, hidden) * hidden**0.5
        layers = tuple(layer(number) for number in range(shape.num_hidden_layers))
        tied = shape.tie_word_embeddings
        return Weights(embedding, layers, embedding if tied else matrix(shape.vocab_size, hidden))


def check_shape(shape: ModelShape) -> None:
    """Raise a ConfigError if a model has a part that Llama has not."""
    unknown = {
        "experts": shape.num_experts > 0,
        "an MLP without gate": not shape.has_gated_mlp,
        "fused inputs": shape.num_fused_inputs > 0,
        "layers of several shapes": not shape.is_uniform,
        "sparse or gated attention": shape.index_topk > 0 or shape.attn_output_gate,
    }
    for part, is_there in unknown.items():
        if is_there:
            raise ConfigError(
                f"model {shape.name} has {part}, which the torch engine does not run; choose a "
                "Llama-like one, or --engine vllm"
            )


class Llama:
    """A model with a KV cache of `num_slots` sequences of `slot_len` tokens each.

    `shape` describes its layers; the weights determine their number. Raises a CapacityError if the
    cache does not fit into memory.
    """

    def __init__(
        self, shape: ModelShape, weights: Weights, *, num_slots: int, slot_len: int
    ) -> None:
        self._shape, self._weights = shape, weights
        self._slot_len = slot_len
        self.device = weights.embedding.device
        dtype = weights.embedding.dtype
        # One spare row, for the padding of recorded passes.
        size = (2, num_slots + 1, slot_len, shape.num_key_value_heads, shape.head_dim)
        what = f"a KV cache of {num_slots} x {slot_len} tokens, {len(weights.layers)} layers"
        with out_of_memory(what, self.device):
            self._caches = [
                torch.zeros(size, device=self.device, dtype=dtype) for _ in weights.layers
            ]
        self.attend = choose_attention(self._caches[0], shape.num_attention_heads)
        self._turns = _rotations(shape.head_dim, slot_len).to(self.device)
        self.recordings = Recordings(self._successors, slot_len, num_slots, self.device)

    @property
    def can_be_recorded(self) -> bool:
        """Whether all inputs of a pass are on the device."""
        return self.attend is attend_flash

    def record(self, shapes: Sequence[PassShape], record: Record, timer: Timer) -> None:
        with torch.inference_mode():
            self.recordings.add(shapes, record, timer)

    def next_tokens(self, spans: list[Span]) -> list[int]:
        """Read spans, at least one, and return the wanted most likely next tokens.

        They are on the host, so all work is done; if none is wanted, a GPU may still be busy.
        """
        with torch.inference_mode():
            found = self.recordings.next_tokens(spans)
            if found is None:
                found = self._successors(make_batch(spans, self._slot_len, self.device))
            tokens: list[int] = found.tolist()
        return tokens

    def _successors(self, batch: Batch) -> Tensor:
        return self.logits(batch).argmax(dim=-1)

    def logits(self, batch: Batch) -> Tensor:
        """Read a batch and return the wanted logits, shape (asked, vocabulary)."""
        asked = self._read(batch)[batch.logit_rows]
        return functional.linear(_normed(asked), self._weights.lm_head)

    def _read(self, batch: Batch) -> Tensor:
        """Run all layers; the KV cache gets the entries of all tokens."""
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
        attended = self.attend(queries, cache, batch)
        return functional.linear(attended.reshape(len(hidden), -1), layer.out)


def _normed(hidden: Tensor) -> Tensor:
    return functional.rms_norm(hidden, (hidden.shape[-1],), eps=1e-5)


def _rotations(head_dim: int, num_positions: int) -> Tensor:
    """Return the rotary embedding of every position as unit complex numbers.

    Su et al. (2021), "RoFormer": pair i turns by position / base^(2 i / head_dim).
    """
    rates = 10_000.0 ** -(torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim)
    angles = torch.outer(torch.arange(num_positions, dtype=torch.float32), rates)
    return torch.polar(torch.ones_like(angles), angles)


def _turned(heads: Tensor, turns: Tensor) -> Tensor:
    pairs = torch.view_as_complex(heads.float().unflatten(-1, (-1, 2)))
    return torch.view_as_real(pairs * turns).flatten(-2).to(heads.dtype)
