"""Gate: whether a revision made any scenario of a fixed suite worse.

A baseline keeps, per scenario, metric and seed, what a run came to. The same scenarios are run
again with the same seeds, so that an unchanged revision gives the same numbers, and a changed one
meets the same requests and the same luck.
"""

from collections.abc import Callable

from specsim.core.blame import fault
from specsim.core.errors import ConfigError, CrashError, SpecsimError
from specsim.core.processes import LocalProcesses
from specsim.core.runner import Runner
from specsim.core.version import __version__
from specsim.run.experiment import Experiment
from specsim.run.simulate import simulate
from specsim.run.summary import Summary
from specsim.study.gate.suite import GateResults, ScenarioResults, Suite, Tolerances, without_seed
from specsim.study.gate.verdict import GateVerdict, MetricChange, check_same_suite, judge
from specsim.study.inputs import inputs_of
from specsim.study.paired import replicated

__all__ = [
    "GateResults", "GateVerdict", "MetricChange", "Suite", "check_same_suite", "judge",
    "run_suite",
]  # fmt: skip

Task = tuple[str, Experiment, tuple[str, ...]]
"""A scenario, its experiment with the seed, and the metrics to keep."""


def run_suite(
    suite: Suite,
    tolerances: Tolerances,
    *,
    workers: int = 1,
    date: str | None = None,
    on_progress: Callable[[int], None] | None = None,
) -> GateResults:
    """Run every scenario of a suite with all its seeds.

    Args:
        tolerances: Their metrics are kept.
        workers: Processes; the results do not depend on their number.
        date: ISO date to be kept with the results.
        on_progress: Told the number of runs that have ended.

    Raises:
        SpecsimError: A scenario cannot be run, or has no such metric.
    """
    metrics = tuple(tolerances)
    experiments = {name: suite.experiment(name) for name in suite.scenarios}
    tasks: list[list[Task]] = [
        [(name, run, metrics) for run in replicated(experiment, suite.replications)]
        for name, experiment in experiments.items()
    ]
    with Runner(LocalProcesses(workers), on_progress) as runner:
        found = runner.run(_run_one, tasks)
    scenarios = {
        name: ScenarioResults(
            config_hash=experiment.hash,
            config=without_seed(experiment),
            inputs=inputs_of(experiment),
            seeds=suite.seeds(name),
            metrics={metric: [row[metric] for row in rows] for metric in metrics},
        )
        for (name, experiment), rows in zip(experiments.items(), found, strict=True)
    }
    return GateResults(
        specsim_version=__version__, date=date, tolerances=tolerances, scenarios=scenarios
    )


def _run_one(task: Task) -> dict[str, float]:
    name, experiment, metrics = task
    try:
        data = Summary(simulate(experiment, keeps_steps=False)).data
    except SpecsimError as error:
        raise type(error)(f"scenario '{name}': {error}") from error
    except Exception as error:  # a bug
        raise CrashError(f"scenario '{name}': {fault(error)}") from error
    known = {**data["specsim"], **data}
    for metric in metrics:
        if known[metric] is None:
            raise ConfigError(
                f"scenario '{name}': has no {metric} without limits; add slo to the experiment or "
                "leave the metric out"
            )
    return {metric: float(known[metric]) for metric in metrics}
