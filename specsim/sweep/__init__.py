"""Sweeps: one experiment along several axes, point by point, resumable."""

from specsim.sweep.folder import SweepFolder
from specsim.sweep.plan import Point, Sweep
from specsim.sweep.run import Backend, LocalProcesses, run_sweep

__all__ = ["Backend", "LocalProcesses", "Point", "Sweep", "SweepFolder", "run_sweep"]
