"""Parity: a recorded schedule of the real vLLM scheduler, replayed by specsim's engine.

A scenario scripts everything but the scheduler: arrivals, step times in whole nanoseconds, which
drafts survive, how many are offered. The engine, event clock and scheduler are those of every
other run. The log is compared field by field.

Source of the recordings: vLLM 0.32.0 ``v1/core/sched/scheduler.py`` and ``async_scheduler.py``.
"""

from specsim.reality.parity.log import Difference, compare_logs, load_log
from specsim.reality.parity.scenario import Scenario, load_scenario, run_scenario

__all__ = [
    "Difference", "Scenario", "compare_logs", "load_log", "load_scenario", "run_scenario",
]  # fmt: skip
