"""Recordings: decode passes of a model, launched at once as CUDA graphs where that is faster.

A pass of a small batch is hundreds of kernels of a few microseconds, and launching each of them
costs the host as much. A graph is launched once, but its shapes are fixed: so a pass is filled up
to the next shape that was recorded, with spans of a row of the KV cache that no sequence has.
"""

import logging
from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from specsim.reality.clock import Clock
from specsim.reality.torch_engine.attention import Batch, Span, make_batch, pack, unpack

Run = Callable[[], Tensor]
Record = Callable[[Run], Run]  # of work on tensors that stay where they are; does it again

_VOCABULARY = 64  # token ids that every model has
_REPEATS = 5
_AGREED = 0.5  # of the tokens: in 16 bits another batch size may change some, not most

log = logging.getLogger(__name__)


class Timer:
    """Times one thing after the other, by the host's clock: a CPU has ended when a call returns."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._started_at = 0.0

    def start(self) -> None:
        """Begin; all that was launched before has ended."""
        self._started_at = self._clock.now()

    def stop(self) -> float:
        """Return the seconds since then, once all that was launched has ended."""
        return self._clock.now() - self._started_at


class EventTimer(Timer):
    """By events on a GPU, between which it counts the time itself."""

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
    """A pass of spans that are all alike."""

    num_spans: int
    span_len: int  # tokens of each span
    num_asked: int  # successors that are asked for, of each span


class _RecordedPass(NamedTuple):
    shape: PassShape
    inputs: Tensor  # as `pack` makes them
    run: Run


class Recordings:
    """Recorded passes of one model, which returns the successors that a batch asks for, (asked,).

    No sequence has the spare slot of the KV cache.
    """

    def __init__(
        self, run: Callable[[Batch], Tensor], slot_len: int, spare_slot: int, device: torch.device
    ) -> None:
        self._run = run
        self._slot_len, self._spare_slot, self._device = slot_len, spare_slot, device
        self._kept: dict[tuple[int, int], list[_RecordedPass]] = {}

    @property
    def num_kept(self) -> int:
        """Shapes that run as recorded."""
        return sum(len(each) for each in self._kept.values())

    def add(self, shapes: Sequence[PassShape], record: Record, timer: Timer) -> None:
        """Record passes, and keep those that are right and faster than unrecorded ones.

        Smaller numbers of spans come first. Each is compared at the smallest batch that it would be
        used for, where filling it up costs most.
        """
        fewest: dict[tuple[int, int], int] = {}
        for shape in shapes:
            kind = shape[1:]
            recording = self._recorded(shape, record)
            if self._is_better(recording, fewest.get(kind, 0) + 1, timer):
                self._kept.setdefault(kind, []).append(recording)
                fewest[kind] = shape.num_spans

    def next_tokens(self, spans: Sequence[Span]) -> Tensor | None:
        """Read spans and return the successors asked for; None if no recording fits."""
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
    """Return how long it takes until the result of some work is on the host, seconds."""
    timer.start()
    run().tolist()
    return timer.stop()


def batch_sizes(most: int) -> list[int]:
    """Return the numbers of spans to record: 1, 2, 4, multiples of 8, and the most there are."""
    return sorted({num for num in (1, 2, 4, *range(8, most, 8)) if num < most} | {most})


def cuda_graphs(device: torch.device) -> Record:
    """Return what records CUDA graphs that share their memory; a RuntimeError if it fails."""
    pool, stream = torch.cuda.graph_pool_handle(), torch.cuda.Stream(device)

    def record(run: Run) -> Run:
        stream.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(stream):
            run()  # libraries choose kernels and take memory, which a recording must not do
        torch.cuda.current_stream(device).wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool):
            found = run()

        def replay() -> Tensor:
            graph.replay()
            return found

        return replay

    return record
