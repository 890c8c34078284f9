"""Gate: whether a revision made any scenario of a fixed suite worse.

A baseline keeps, per scenario, metric and seed, what a run came to. The same scenarios are run
again with the same seeds, so that an unchanged revision gives the same numbers, and a changed one
meets the same requests and the same luck.
"""

from specsim.study.gate.results import GateResults
from specsim.study.gate.run import run_suite
from specsim.study.gate.suite import Suite
from specsim.study.gate.verdict import Comparison, Judgement, check_same_suite, judge

__all__ = [
    "Comparison",
    "GateResults",
    "Judgement",
    "Suite",
    "check_same_suite",
    "judge",
    "run_suite",
]
