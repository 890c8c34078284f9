"""Running a suite."""

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

from specsim.core.errors import ConfigError, SpecsimError
from specsim.core.processes import worker_pool
from specsim.core.version import __version__
from specsim.run.experiment import Experiment
from specsim.run.simulate import simulate
from specsim.run.summary import Summary
from specsim.study.gate.results import GateResults, ScenarioResults
from specsim.study.gate.suite import Suite, Tolerances

__all__ = ["run_suite"]

Task = tuple[str, dict[str, Any], tuple[str, ...]]
"""A scenario, its configuration with the seed, and the metrics to keep."""


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
    configs = {name: suite.experiment(name).to_dict() for name in suite.scenarios}
    tasks = [
        (name, {**configs[name], "seed": seed}, metrics)
        for name in suite.scenarios
        for seed in suite.seeds(name)
    ]
    found: list[dict[str, float]] = []
    for values in _run_all(tasks, workers):
        found.append(values)
        if on_progress is not None:
            on_progress(len(found))
    left = iter(found)
    scenarios = {}
    for name, config in configs.items():
        rows = list(islice(left, suite.replications))
        scenarios[name] = ScenarioResults(
            config_hash=suite.experiment(name).hash,
            config={field: value for field, value in config.items() if field != "seed"},
            seeds=suite.seeds(name),
            metrics={metric: [row[metric] for row in rows] for metric in metrics},
        )
    return GateResults(
        specsim_version=__version__, date=date, tolerances=tolerances, scenarios=scenarios
    )


def _run_all(tasks: list[Task], workers: int) -> Iterator[dict[str, float]]:
    if min(workers, len(tasks)) <= 1:
        yield from map(_run_one, tasks)
        return
    with worker_pool(min(workers, len(tasks))) as pool:
        yield from pool.map(_run_one, tasks)


def _run_one(task: Task) -> dict[str, float]:
    name, config, metrics = task
    experiment = Experiment.parse(config, f"scenario '{name}'")
    try:
        data = Summary(simulate(experiment, keeps_steps=False)).data
    except SpecsimError as error:
        raise type(error)(f"scenario '{name}': {error}") from error
    known = {**data["specsim"], **data}
    for metric in metrics:
        if known[metric] is None:
            raise ConfigError(
                f"scenario '{name}': has no {metric} without limits; add slo to the experiment or "
                "leave the metric out"
            )
    return {metric: float(known[metric]) for metric in metrics}
