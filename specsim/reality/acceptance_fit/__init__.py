"""Fitting acceptance models to recorded acceptance, and measuring how well they do.

Read `replay` (what decoding a record step by step gives), then `distance` (how far two replays are
apart), `estimate` and `simulated` (the fits), and `study` (all of it, on one half and the other).
"""

from specsim.reality.acceptance_fit.distance import Distances
from specsim.reality.acceptance_fit.records import Records, load_records
from specsim.reality.acceptance_fit.replay import Replay, Twin, replay
from specsim.reality.acceptance_fit.report import FitRun, fields
from specsim.reality.acceptance_fit.study import FITS, Candidate, Study, run_study, split_halves

__all__ = [
    "FITS",
    "Candidate",
    "Distances",
    "FitRun",
    "Records",
    "Replay",
    "Study",
    "Twin",
    "fields",
    "load_records",
    "replay",
    "run_study",
    "split_halves",
]
