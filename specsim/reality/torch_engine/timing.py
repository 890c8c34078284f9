"""Timing: all that an engine is timed by."""

from typing import NamedTuple

import torch

from specsim.hardware import ModelShape
from specsim.reality.calibration.clock import Clock, MachineClock
from specsim.reality.calibration.probe import Probe
from specsim.reality.torch_engine.timers import EventTimer, HostTimer, Timer

__all__ = ["Timing"]


class Timing(NamedTuple):
    """Clocks, and how fast the machine is."""

    clock: Clock
    """Of runs."""
    timer: Timer
    """Of the models."""
    probe: Probe | None
    """Of the speed of a CPU, by that clock."""

    @classmethod
    def of(cls, device: torch.device, shape: ModelShape, dtype: torch.dtype) -> "Timing":
        """Return what suits a device and the model that it runs."""
        if device.type == "cpu":
            clock = MachineClock()
            return cls(clock, HostTimer(clock), Probe(clock, shape, dtype))
        return cls(Clock(), EventTimer(device), None)
