"""The public names of specsim.

from pathlib import Path
from specsim.api import Experiment, Summary, simulate

experiment = Experiment.load(Path("experiment.yaml"), ["policy.k=3"])
summary = Summary(simulate(experiment, keeps_deliveries=True))  # for vLLM's lists per request
print(summary.data["mean_tpot_ms"])
summary.save(Path("results"))

Errors of studies name options of the command line (``--num-requests``); the functions here replace
each option by the name of its argument (``num_requests``).
"""

import re
from collections.abc import Callable
from functools import wraps
from inspect import signature
from typing import ParamSpec, TypeVar

from specsim.acceptance.base import Acceptance
from specsim.core.compiled import Rows, inner
from specsim.core.desk import Floats, Ints, PerRequest
from specsim.core.errors import ConfigError, SpecsimError
from specsim.core.reading import short
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
from specsim.run.experiment import ALLOWS_LARGE, Experiment
from specsim.run.simulate import Run
from specsim.run.summary import Summary
from specsim.study import capacity as _capacity
from specsim.study import compare as _compare
from specsim.study import plan as _plan
from specsim.study import sweep as _sweep
from specsim.study import tune as _tune
from specsim.study.gate import verdict as _verdict
from specsim.workload.readers import read_trace
from specsim.workload.trace import Trace

__all__ = [
    "Acceptance", "BatchView", "DraftView", "DraftsTrees", "Experiment", "Floats", "Ints",
    "LatencyModel", "LoopMemory", "LoopPolicy", "Loops", "OraclePolicy", "PerRequest", "Policy",
    "Profile", "Request", "Rows", "Run", "ServerView", "StepLoad", "StepOutcome", "Summary",
    "Trace", "Tree", "View", "capacity", "compare", "gate", "inner", "load_profile",
    "parse_policies", "plan", "read_trace", "row_of", "simulate", "sweep", "tune",
]  # fmt: skip

P = ParamSpec("P")
R = TypeVar("R")

_OTHERS = {"--set": "overrides", "--tolerance": "tolerances", "--drive concurrency": "is_closed"}
"""Arguments whose name differs from that of their option."""
_WITHOUT_AN_ARGUMENT = {
    "`specsim --large` before the command": f"{ALLOWS_LARGE}=1 in the environment"
}
_MISSING = object()
_OPTION = re.compile(
    "|".join(map(re.escape, _OTHERS | _WITHOUT_AN_ARGUMENT)) + r"|`[^`]*`|(?<![\w-])--[a-z][a-z-]*"
)


def _in_python(
    function: Callable[P, R], takes: Callable[..., object] | None = None
) -> Callable[P, R]:
    """Return a study whose errors name its arguments, and those of `takes` that it passes on."""
    whole = signature(function)
    if takes is not None:
        own = [p for p in whole.parameters.values() if p.kind != p.VAR_KEYWORD]
        whole = whole.replace(parameters=[*own, *signature(takes).parameters.values()])
    known = whole.parameters

    def argument(option: re.Match[str]) -> str:
        """Return the argument that replaces an option in a message; keep shell commands."""
        alike = option[0].removeprefix("--").replace("-", "_")
        name = alike if alike in known else _OTHERS.get(option[0], "")
        if name in known:
            return f"{name}=True" if isinstance(known[name].default, bool) else name
        return _WITHOUT_AN_ARGUMENT.get(option[0], option[0])

    @wraps(function)
    def told(*args: P.args, **kwargs: P.kwargs) -> R:
        if takes is not None and (unknown := kwargs.keys() - known):
            text = f"{function.__name__}() got an unexpected keyword argument '{min(unknown)}'"
            raise TypeError(text)
        given = args[0] if args else kwargs.get("experiment", _MISSING)
        is_one = isinstance(given, Experiment) or given is _MISSING
        if "experiment" in known and not is_one:
            raise ConfigError(
                f"experiment = {short(given)}: should be an Experiment; Experiment.load(PATH) "
                "reads a file, Experiment.parse(MAPPING, NAME) takes a mapping"
            )
        try:
            return function(*args, **kwargs)
        except SpecsimError as error:
            error.args = (_OPTION.sub(argument, str(error)),)
            raise

    vars(told)["__signature__"] = whole
    told.__module__ = __name__  # so that worker processes can import it
    return told


capacity = _in_python(_capacity.capacity)
compare = _in_python(_compare.compare)
gate = _in_python(_verdict.gate)
parse_policies = _in_python(_compare.parse_policies)
plan = _in_python(_plan.plan, _plan.question_of)
simulate = _in_python(_simulate.simulate)
sweep = _in_python(_sweep.sweep)
tune = _in_python(_tune.tune)
