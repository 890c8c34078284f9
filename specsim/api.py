"""The public names of specsim.

from pathlib import Path
from specsim.api import Experiment, Summary, simulate

experiment = Experiment.load(Path("experiment.yaml"), ["policy.k=3"])
summary = Summary(simulate(experiment, keeps_deliveries=True))  # for vLLM's lists per request
print(summary.data["mean_tpot_ms"])
summary.save(Path("results"))
"""

from specsim.acceptance.base import Acceptance
from specsim.core.compiled import Rows, inner
from specsim.core.desk import Floats, Ints, PerRequest
from specsim.core.request import Request
from specsim.core.step import BatchView, DraftView, StepLoad, StepOutcome
from specsim.core.trees import Tree
from specsim.decisions.loops import LoopMemory
from specsim.latency import LatencyModel
from specsim.policies import (
    DraftsTrees,
    LoopPolicy,
    Loops,
    OraclePolicy,
    Policy,
    ServerView,
    View,
    row_of,
)
from specsim.profile import Profile, load_profile
from specsim.run.experiment import Experiment
from specsim.run.simulate import Run, simulate
from specsim.run.summary import Summary
from specsim.study.capacity import capacity
from specsim.study.compare import compare, parse_policies
from specsim.study.gate.verdict import gate
from specsim.study.plan import plan
from specsim.study.sweep import sweep
from specsim.study.tune import tune
from specsim.workload.readers import read_trace
from specsim.workload.trace import Trace

__all__ = [
    "Acceptance", "BatchView", "DraftView", "DraftsTrees", "Experiment", "Floats", "Ints",
    "LatencyModel", "LoopMemory", "LoopPolicy", "Loops", "OraclePolicy", "PerRequest", "Policy",
    "Profile", "Request", "Rows", "Run", "ServerView", "StepLoad", "StepOutcome", "Summary",
    "Trace", "Tree", "View", "capacity", "compare", "gate", "inner", "load_profile",
    "parse_policies", "plan", "read_trace", "row_of", "simulate", "sweep", "tune",
]  # fmt: skip
