"""Validation: measured runs of real engines, replayed."""

from specsim.reality.validation.compose import Replaced, Replay, compose, composed_profile
from specsim.reality.validation.measured_run import STATISTICS, MeasuredLengths, MeasuredRun
from specsim.reality.validation.prediction_errors import TableErrors
from specsim.reality.validation.run_folder import RunFolder, load_run
from specsim.reality.validation.table import read_table, select_rows, with_lengths
from specsim.reality.validation.table_replay import Prediction, Replayer, predict
from specsim.reality.validation.validation import (
    METRICS,
    Statistic,
    Validation,
    replay,
    validate,
)

__all__ = [
    "METRICS", "STATISTICS", "MeasuredLengths", "MeasuredRun", "Prediction", "Replaced", "Replay",
    "Replayer", "RunFolder", "Statistic", "TableErrors", "Validation", "compose",
    "composed_profile", "load_run", "predict", "read_table", "replay", "select_rows", "validate",
    "with_lengths",
]  # fmt: skip
