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
from specsim.run import simulate as _simulate
from specsim.run.experiment import Experiment
from specsim.run.simulate import Run
from specsim.run.summary import Summary
from specsim.study import capacity as _capacity
from specsim.study import compare as _compare
from specsim.study import plan as _plan
from specsim.study import sweep as _sweep
from specsim.study import tune as _tune
from specsim.study.gate import verdict as _verdict
from specsim.study.in_python import in_python
from specsim.workload.readers import read_trace
from specsim.workload.trace import Trace

__all__ = [
    "Acceptance", "BatchView", "DraftView", "DraftsTrees", "Experiment", "Floats", "Ints",
    "LatencyModel", "LoopMemory", "LoopPolicy", "Loops", "OraclePolicy", "PerRequest", "Policy",
    "Profile", "Request", "Rows", "Run", "ServerView", "StepLoad", "StepOutcome", "Summary",
    "Trace", "Tree", "View", "capacity", "compare", "gate", "inner", "load_profile",
    "parse_policies", "plan", "read_trace", "row_of", "simulate", "sweep", "tune",
]  # fmt: skip

capacity = in_python(_capacity.capacity)
compare = in_python(_compare.compare)
gate = in_python(_verdict.gate)
parse_policies = in_python(_compare.parse_policies)
plan = in_python(_plan.plan, _plan.question_of)
simulate = in_python(_simulate.simulate)
sweep = in_python(_sweep.sweep)
tune = in_python(_tune.tune)
