"""Sweeps: one experiment along several axes, point by point, resumable."""

from specsim.study.sweep.folder import SweepFolder
from specsim.study.sweep.plan import Point, Sweep
from specsim.study.sweep.run import Backend, LocalProcesses, run_sweep

__all__ = ["Backend", "LocalProcesses", "Point", "Sweep", "SweepFolder", "run_sweep"]
