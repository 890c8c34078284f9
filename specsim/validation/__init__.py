"""Validation: measured runs of real engines, replayed."""

from specsim.validation.compare import METRICS, STATISTICS, Statistic, Validation, replay, validate
from specsim.validation.compose import Replaced, Replay, compose, composed_profile
from specsim.validation.run_folder import Measured, RunFolder, load_run

__all__ = [
    "METRICS",
    "STATISTICS",
    "Measured",
    "Replaced",
    "Replay",
    "RunFolder",
    "Statistic",
    "Validation",
    "compose",
    "composed_profile",
    "load_run",
    "replay",
    "validate",
]
