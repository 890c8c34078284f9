"""Probe: the piece of work whose duration says how fast a CPU is; see `specsim.reality.host_speed`.

Other work beside it, in the caches and on the other thread of a core, slows one kind of work more
than another. So the probe is two layers of a model of the very shape that is served. Measured on a
shared host, over windows of 3 s: what a pass takes beyond what such a probe says changes by 1.6 %,
and by 3 to 6 % with a matrix product and 120 scalings in its place, which such passes change 1.2 to
1.6 times as much as.
"""

import os
from time import perf_counter, sleep
from typing import NamedTuple

import numpy as np
import torch

from specsim.hardware import ModelShape
from specsim.reality.clock import STALL, Clock, MachineClock
from specsim.reality.torch_engine.attention import Span
from specsim.reality.torch_engine.model import EventTimer, Llama, Recipe, Timer, random_weights

_KEPT = (  # of the model's shape
    *("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads"),
    *("head_dim", "max_position_embeddings"),
)
_LAYERS = 2
_CONTEXT = 96  # tokens
_CALLS = 9
_TRIES = 5
_SLOW = 3.0  # times as long as usual; what is slower by more than a stall was one


class Probe:
    """Does the work, of the shape of the model that is served, while the clock stands still."""

    def __init__(self, clock: MachineClock, shape: ModelShape, dtype: torch.dtype) -> None:
        self._clock = clock
        layers = ModelShape(
            name="probe",
            num_hidden_layers=_LAYERS,
            vocab_size=1,
            source="a probe",
            **{name: getattr(shape, name) for name in _KEPT},
        )
        weights = random_weights(layers, Recipe(_LAYERS), torch.device("cpu"), dtype)
        self._model = Llama(layers, weights, num_slots=1, slot_len=_CONTEXT + 1)
        self._span = Span(0, _CONTEXT, np.zeros(1, np.int64), range(0))
        self._usual = sorted(self.work() for _ in range(_CALLS))[_CALLS // 2]

    @property
    def every(self) -> float:
        """Seconds from one to the next while something is measured."""
        return self._usual / 0.1  # of the time that probes take

    def run(self) -> tuple[float, float]:
        """Do it, some times again if the CPU was taken away; return when and for how long, s."""
        at = self._clock.now()
        for _ in range(_TRIES):
            seconds = self.work()
            is_stalled = seconds >= _SLOW * self._usual + STALL
            if is_stalled:
                sleep(STALL)  # until that has been counted
            self._clock.resume(at)
            if not is_stalled:
                break
        return at, seconds

    def work(self) -> float:
        started_at = perf_counter()
        self._model.next_tokens([self._span])
        return perf_counter() - started_at


_NUM_KERNELS = "8192"  # four matrix shapes times as many tokens as the steps of our plans have


def keep_kernels() -> None:
    """Have oneDNN keep all kernels; call this before the first matrix is multiplied.

    oneDNN, which multiplies matrices on a CPU, compiles a kernel for every number of tokens. That
    takes some milliseconds each time, as long as the step itself; a server that has run for a
    while has them all. So every number of tokens is run once before anything is measured, and the
    kernels are kept.
    """
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", _NUM_KERNELS)  # 1024 unless told


class Timing(NamedTuple):
    """Clocks, and how fast the machine is."""

    clock: Clock  # of runs
    timer: Timer  # of the models
    probe: Probe | None  # of the speed of a CPU, by that clock

    @classmethod
    def of(cls, device: torch.device, shape: ModelShape, dtype: torch.dtype) -> "Timing":
        """Return what suits a device and the model that it runs."""
        if device.type == "cpu":
            clock = MachineClock()
            return cls(clock, Timer(clock), Probe(clock, shape, dtype))
        return cls(Clock(), EventTimer(device), None)
