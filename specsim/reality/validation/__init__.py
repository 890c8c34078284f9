"""Validation: measured runs of real engines, replayed."""

from specsim.reality.validation.compose import Replaced, Replay, compose, composed_profile
from specsim.reality.validation.run_folder import RunFolder, load_run
from specsim.reality.validation.validation import (
    METRICS,
    STATISTICS,
    Statistic,
    Validation,
    replay,
    validate,
)

__all__ = [
    "METRICS", "STATISTICS", "Replaced", "Replay", "RunFolder", "Statistic", "Validation",
    "compose", "composed_profile", "load_run", "replay", "validate",
]  # fmt: skip
