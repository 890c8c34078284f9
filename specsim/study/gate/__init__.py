"""Gate: whether a revision made any scenario of a fixed suite worse.

A baseline holds the value of each metric per scenario and seed. The same scenarios are run again
with the same seeds, so that an unchanged revision gives the same numbers, and a changed one meets
the same requests and luck.
"""

import datetime
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, field_validator, model_validator

from specsim.core.atomic import new_file
from specsim.core.blame import fault
from specsim.core.errors import ConfigError, CrashError, SpecsimError
from specsim.core.processes import LocalProcesses
from specsim.core.reading import number_in
from specsim.core.runner import Runner
from specsim.core.settings import (
    Settings,
    check_used,
    listed,
    load_mapping,
    nearest,
    overridden,
    set_field,
    validated,
)
from specsim.core.version import __version__
from specsim.run.experiment import Experiment
from specsim.run.summary import summarized
from specsim.study.inputs import Input, inputs_of, load_with_base
from specsim.study.paired import MOST_REPLICATIONS


def _named(text: str) -> str:
    if not re.fullmatch(r"\w[\w .,=/+-]{0,79}", text):
        raise ValueError(
            f"'{text}' is no name of a scenario; at most 80 letters, digits, spaces and _.,=/+-, "
            "the first a letter or digit"
        )
    return text


Name = Annotated[str, AfterValidator(_named)]
"""Name of a scenario, fit for XML, annotations and tables."""


def _as_share(value: object) -> object:
    number = number_in(value, is_share=True) if isinstance(value, str) else None
    return value if number is None else number


Tolerances = dict[str, Annotated[float, BeforeValidator(_as_share), Field(ge=0, lt=10)]]
"""How much worse each metric may get, as a share of the baseline: 0.02, or 2 %."""

METRICS: dict[str, bool] = {
    **{
        f"{statistic}_{latency}_ms": False
        for latency in ("ttft", "tpot", "itl", "e2el")
        for statistic in ("mean", "median", "p90", "p95", "p99")
    },
    "request_throughput": True,
    "output_throughput": True,
    "total_token_throughput": True,
    "request_goodput": True,
    "tokens_per_step": True,
}
"""Metrics that can be gated, and whether more is better."""

DEFAULT_TOLERANCES: Tolerances = {
    "mean_ttft_ms": 0.02,
    "p99_ttft_ms": 0.05,
    "mean_tpot_ms": 0.02,
    "p99_tpot_ms": 0.05,
    "mean_e2el_ms": 0.02,
    "p99_e2el_ms": 0.05,
    "output_throughput": 0.02,
}
_ONLY = "experiment"  # name of the single scenario of a plain experiment


def check_metrics(tolerances: Tolerances) -> Tolerances:
    """Return the tolerances if every metric in them is known."""
    for metric in tolerances:
        if metric not in METRICS:
            raise ValueError(f"no metric '{metric}'; {nearest(metric, list(METRICS))}")
    if not tolerances:
        raise ValueError("gates nothing; name at least one metric, or leave it out for the usual")
    return tolerances


class Suite(Settings):
    """A base experiment and what each scenario changes in it."""

    base: dict[str, Any]
    """The experiment as in its YAML file; in a file also the path of one, relative to that file's
    folder."""
    scenarios: dict[Name, dict[str, Any]] = Field(min_length=1)
    """Per scenario, the fields of the base that it replaces, by dotted name."""
    replications: int = Field(default=10, ge=1, le=MOST_REPLICATIONS)
    """Runs per scenario; run i has the scenario's seed plus i."""
    tolerances: Tolerances | None = None
    """Of the metrics to gate; by default 2 % for means and throughput, 5 % for p99."""

    @field_validator("tolerances")
    @classmethod
    def _check_metrics(cls, tolerances: Tolerances | None) -> Tolerances | None:
        return None if tolerances is None else check_metrics(tolerances)

    @classmethod
    def load(cls, path: Path, overrides: Iterable[str] | Mapping[str, object] = ()) -> Self:
        """Return the suite in a YAML file, or an experiment as a suite of one scenario.

        Raises a ConfigError if it cannot be read, a scenario is no valid experiment, or an override
        is of a field that every scenario replaces.
        """
        data = load_with_base(path)
        if "workload" in data:
            data = {"base": data, "scenarios": {_ONLY: {}}}
        with validated(str(path), ConfigError):
            suite = cls.model_validate(data)
        overrides = listed(overrides)
        replaced = set.intersection(*(set(changes) for changes in suite.scenarios.values()))
        check_used(overrides, sorted(replaced), "every scenario sets")
        suite = suite.model_copy(update={"base": overridden(suite.base, overrides)})
        for name in suite.scenarios:
            suite.experiment(name, str(path))
        return suite

    def experiment(self, name: str, source: str = "suite") -> Experiment:
        """Return the experiment of a scenario; a ConfigError from `source` if it is wrong."""
        where = f"{source}: scenario '{name}'"
        config = overridden(self.base, ())
        for field, value in self.scenarios[name].items():
            set_field(config, field, value, f"{where}: {field}")
        return Experiment.parse(config, where)

    def seeds(self, name: str) -> list[int]:
        first = self.experiment(name).seed
        return list(range(first, first + self.replications))


def tolerances_of(suite: Suite) -> Tolerances:
    """Return the tolerances of a suite; the default ones if it has none."""
    return DEFAULT_TOLERANCES if suite.tolerances is None else suite.tolerances


def parse_tolerances(texts: Iterable[str]) -> Tolerances:
    """Return tolerances from texts like ``mean_e2el_ms=2%``; a ConfigError if one is wrong."""
    found: Tolerances = {}
    for text in texts:
        name, _, value = text.partition("=")
        number = number_in(value, is_share=True)
        if number is None or not 0 <= number < 10:
            raise ConfigError(f"--tolerance {text}: expected METRIC=SHARE, such as {name}=2%")
        if name in found:
            raise ConfigError(f"--tolerance {text}: '{name}' is given twice; leave one")
        found[name] = number
        try:
            check_metrics(found)
        except ValueError as error:
            raise ConfigError(f"--tolerance {text}: {error}") from error
    return found


_FORMAT = "specsim gate 1"
_REMEDY = "write one with `specsim gate --update`"


class ScenarioResults(Settings):
    """The results of one scenario, per seed."""

    config_hash: str
    """Hash of the experiment without its seed."""
    config: dict[str, Any]
    """The resolved experiment, without its seed."""
    inputs: dict[str, Input] = Field(default_factory=dict)
    """The files that its runs read, by the field that names them."""
    seeds: list[int] = Field(min_length=1)
    metrics: dict[str, list[float]]
    """One value per seed, by metric."""

    @model_validator(mode="after")
    def _check_lengths(self) -> Self:
        if len(set(self.seeds)) != len(self.seeds):
            raise ValueError("seeds: one of them is there twice")
        for name, values in self.metrics.items():
            if len(values) != len(self.seeds):
                raise ValueError(
                    f"metrics.{name}: {len(values)} values for {len(self.seeds)} seeds"
                )
        return self


class GateResults(Settings):
    """The results of a suite, with their provenance."""

    format: Literal["specsim gate 1"] = "specsim gate 1"
    specsim_version: str
    date: str | None = None
    """As the user gave it, so that the same revision gives the same bytes on every day."""
    tolerances: Tolerances
    scenarios: dict[Name, ScenarioResults] = Field(min_length=1)

    @model_validator(mode="after")
    def _check_metrics(self) -> Self:
        check_metrics(self.tolerances)
        for name, scenario in self.scenarios.items():
            for metric in self.tolerances:
                if metric not in scenario.metrics:
                    raise ValueError(f"scenarios.{name}: lacks the metric '{metric}'")
        return self

    @classmethod
    def load(cls, path: Path) -> Self:
        """Return what ``specsim gate --update`` wrote; a ConfigError if there is no such file."""
        if not path.exists():
            raise ConfigError(f"{path}: does not exist; {_REMEDY}")
        data = load_mapping(path, ConfigError)
        if data.get("format") != _FORMAT:
            raise ConfigError(f"{path}: is not a baseline of this version of specsim; {_REMEDY}")
        with validated(str(path), ConfigError):
            return cls.model_validate(data)


@contextmanager
def baseline_file(path: Path) -> Iterator[Path]:
    """Yield a file that becomes the baseline if the block succeeds; a ConfigError if it cannot."""
    if path.is_file():
        try:
            is_ours = load_mapping(path, ConfigError).get("format") == _FORMAT
        except ConfigError:
            is_ours = False
        if not is_ours:
            raise ConfigError(f"{path}: holds no baseline, so it is left alone; name another file")
    with new_file(path, is_own=True) as temporary:
        yield temporary


def checked_date(text: str) -> str:
    """Return an ISO date, or raise a ConfigError."""
    try:
        return datetime.date.fromisoformat(text).isoformat()
    except ValueError as error:
        raise ConfigError(f"--date {text}: must be a day, such as 2026-11-21") from error


Task = tuple[str, Experiment, tuple[str, ...]]
"""(name of the scenario, its experiment with the seed, metrics to keep)."""


def run_suite(
    suite: Suite,
    tolerances: Tolerances,
    *,
    baseline: GateResults | None = None,
    workers: int = 1,
    date: str | None = None,
    on_progress: Callable[[int], None] | None = None,
) -> GateResults:
    """Run every scenario of a suite, and keep the metrics that have a tolerance.

    Raises a SpecsimError if a scenario cannot be run, or lacks such a metric.

    Args:
        baseline: The scenarios are run with its seeds, in place of the suite's.
    """
    metrics = tuple(tolerances)
    experiments = {name: suite.experiment(name) for name in suite.scenarios}
    before = {} if baseline is None else baseline.scenarios
    seeds = {name: before[name].seeds if before else suite.seeds(name) for name in experiments}
    tasks: list[list[Task]] = [
        [(name, experiment.replace(seed=seed), metrics) for seed in seeds[name]]
        for name, experiment in experiments.items()
    ]
    with Runner(LocalProcesses(workers), on_progress) as runner:
        found = runner.run(_run_one, tasks)
    scenarios = {
        name: ScenarioResults(
            config_hash=experiment.hash,
            config=experiment.without_seed(),
            inputs=inputs_of(experiment),
            seeds=seeds[name],
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
        data = summarized(experiment).data
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
