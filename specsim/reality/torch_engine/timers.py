"""Timers: how long a model works, by the clock of what it runs on."""

from typing import Protocol

import torch

from specsim.reality.calibration.clock import Clock

__all__ = ["EventTimer", "HostTimer", "Timer"]


class Timer(Protocol):
    """Times one thing after the other."""

    def start(self) -> None:
        """Begin; all that was launched before has ended."""

    def stop(self) -> float:
        """Return the seconds since then, once all that was launched has ended."""


class HostTimer:
    """By the host's clock: a CPU has ended when a call returns."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._started_at = 0.0

    def start(self) -> None:
        """Begin."""
        self._started_at = self._clock.now()

    def stop(self) -> float:
        """Return the seconds since then."""
        return self._clock.now() - self._started_at


class EventTimer:
    """By events on a GPU, between which it counts the time itself."""

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.current_stream(device)
        self._started, self._stopped = (torch.cuda.Event(enable_timing=True) for _ in range(2))

    def start(self) -> None:
        """Begin; the GPU is idle."""
        self._started.record(self._stream)

    def stop(self) -> float:
        """Return the seconds since then, once all that was launched has ended."""
        self._stopped.record(self._stream)
        self._stopped.synchronize()
        return float(self._started.elapsed_time(self._stopped)) / 1e3
