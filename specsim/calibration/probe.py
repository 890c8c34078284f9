"""Probe: the piece of work whose duration says how fast a CPU is; see `specsim.host_speed`.

Of the kind that a small model's decode is made of: one matrix too large for the caches next to the
core, and operators so small that calling them is most of it.
"""

from time import perf_counter, sleep

import torch
from torch.nn import functional

from specsim.calibration.clock import STALL, MachineClock

__all__ = ["PROBE_EVERY", "Probe"]

PROBE_EVERY = 0.02
"""Seconds from one to the next while something is measured; each takes about two milliseconds."""
_ROWS, _COLUMNS = 4096, 1024  # 8 MiB in bfloat16
_SMALL_OPERATORS = 120


class Probe:
    """Does the work on this machine's CPU.

    Parameters
    ----------
    clock : MachineClock
        Stands still meanwhile.
    """

    def __init__(self, clock: MachineClock) -> None:
        self._clock = clock
        self._weight = torch.ones(_ROWS, _COLUMNS, dtype=torch.bfloat16, device="cpu")
        self._hidden = torch.ones(1, _COLUMNS, dtype=torch.bfloat16, device="cpu")
        self._work()  # the first call chooses a kernel

    def run(self) -> tuple[float, float]:
        """Do it, and let the clock stand still for it; again if the CPU was taken away meanwhile.

        Returns
        -------
        float, seconds
            When it was done, by the clock.
        float, seconds
            How long it took.
        """
        while True:
            at = self._clock.now()
            started_at = perf_counter()
            self._work()
            seconds = perf_counter() - started_at
            if seconds >= STALL:
                sleep(STALL)  # until that has been counted
            self._clock.resume(at)
            if seconds < STALL:
                return at, seconds

    def _work(self) -> None:
        with torch.inference_mode():
            functional.linear(self._hidden, self._weight)
            scaled = self._hidden
            for _ in range(_SMALL_OPERATORS):
                scaled = scaled * 1.0
