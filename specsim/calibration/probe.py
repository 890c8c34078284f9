"""Probe: the piece of work whose duration says how fast a CPU is; see `specsim.host_speed`.

Of the kind that a small model's decode is made of: one matrix too large for the caches next to the
core, and operators so small that calling them is most of it.
"""

import torch
from torch.nn import functional

from specsim.calibration.clock import MachineClock

__all__ = ["PROBE_EVERY", "Probe"]

PROBE_EVERY = 0.02
"""Seconds from one to the next while something is measured; each takes about two milliseconds."""
_ROWS, _COLUMNS = 4096, 1024  # 8 MiB in bfloat16
_SMALL_OPERATORS = 120


class Probe:
    """Does the work on this machine's CPU."""

    def __init__(self) -> None:
        self._weight = torch.ones(_ROWS, _COLUMNS, dtype=torch.bfloat16, device="cpu")
        self._hidden = torch.ones(1, _COLUMNS, dtype=torch.bfloat16, device="cpu")
        self.run(MachineClock())  # the first call chooses a kernel

    def run(self, clock: MachineClock) -> tuple[float, float]:
        """Do it once, and let the clock stand still for it.

        Parameters
        ----------
        clock : MachineClock

        Returns
        -------
        float, seconds
            When it was done, on that clock.
        float, seconds
            How long it took.
        """
        started_at = clock.now()
        with torch.inference_mode():
            functional.linear(self._hidden, self._weight)
            scaled = self._hidden
            for _ in range(_SMALL_OPERATORS):
                scaled = scaled * 1.0
        seconds = clock.now() - started_at
        clock.stop(seconds)
        return started_at, seconds
