"""Probe: work whose duration shows the speed of a CPU; see `specsim.reality.host_speed`.

Other work, in the caches and on the other thread of a core, slows one kind of work more than
another. So the probe is two layers of a model with the shape of the served one. On a shared host,
over windows of 3 s, pass time / probe time varies by 1.6 %; with a matrix product and 120 scalings
as probe by 3 to 6 %, as passes slow down 1.2 to 1.6 times as much as that.
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
_SLOW = 3.0  # times the usual duration; slower means a stall


class Probe:
    """Runs the probe, with the shape of the served model, while the clock stands still."""

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
        """Seconds between probes during a measurement."""
        return self._usual / 0.1  # share of time that probes take

    def run(self) -> tuple[float, float]:
        """Run the probe, again if the CPU was taken away; return instant and duration, s."""
        at = self._clock.now()
        for _ in range(_TRIES):
            seconds = self.work()
            is_stalled = seconds >= _SLOW * self._usual + STALL
            if is_stalled:
                sleep(STALL)  # until the stall has been counted
            self._clock.resume(at)
            if not is_stalled:
                break
        return at, seconds

    def work(self) -> float:
        started_at = perf_counter()
        self._model.next_tokens([self._span])
        return perf_counter() - started_at


_NUM_KERNELS = "8192"  # four matrix shapes times the numbers of tokens in the steps of the plans


def keep_kernels() -> None:
    """Let oneDNN keep all kernels; call this before the first matrix multiplication.

    oneDNN, which multiplies matrices on a CPU, compiles a kernel for every number of tokens. That
    takes some milliseconds, as long as a step; a server that has run for a while has all of them.
    So every number of tokens is run once before anything is measured, and the kernels are kept.
    """
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", _NUM_KERNELS)  # 1024 unless told


class Timing(NamedTuple):
    """Clocks, and the probe of the machine's speed."""

    clock: Clock  # of runs
    timer: Timer  # of the models
    probe: Probe | None  # on the clock of runs; None on a GPU

    @classmethod
    def of(cls, device: torch.device, shape: ModelShape, dtype: torch.dtype) -> "Timing":
        """Return the timing for a device and the model that it runs."""
        if device.type == "cpu":
            clock = MachineClock()
            return cls(clock, Timer(clock), Probe(clock, shape, dtype))
        return cls(Clock(), EventTimer(device), None)
