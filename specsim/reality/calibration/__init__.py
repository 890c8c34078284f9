"""A calibration of any engine from beginning to end: measure, fit, simulate, judge."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from specsim.core.atomic import new_file
from specsim.core.errors import ConfigError, SpecsimError
from specsim.core.version import __version__
from specsim.profile import Profile
from specsim.reality.validation import Statistic, compare_runs, mean_error, spread
from specsim.results.metrics import Requests

JUDGED = ("tpot", "latency")  # metrics whose means must be within the stated error

Tell = Callable[[str], None]


@dataclass(frozen=True)
class Load:
    """The traffic of a run."""

    name: str
    share: float
    """Arrival rate, as a share of the throughput of a never idle server without speculation."""
    seconds: float  # duration of the arrivals

    def num_requests(self, rate: float) -> int:
        return max(20, round(self.seconds * rate))  # requests of a case


@dataclass(frozen=True)
class Label:
    """The labels of a case."""

    acceptance: str
    """``synthetic``, ``real``, or ``recorded`` if the simulation uses the real run's acceptance."""
    load: Load
    policy: str
    rate: float  # requests per second

    @property
    def is_synthetic(self) -> bool:
        """Whether acceptance is drawn by luck that the simulation shares."""
        return self.acceptance == "synthetic"

    @property
    def name(self) -> str:
        return f"{self.acceptance}-{self.load.name}-{self.policy.replace(':', '-')}"


@dataclass(frozen=True)
class CaseResult:
    """One case: real runs and their simulations."""

    case: Label
    runs: Sequence[Requests]  # the repetitions
    statistics: list[Statistic]  # means over the repetitions, and over their simulations
    slowness: list[float]
    """Mean slowness of the machine in each repetition, by its probes, relative to the fitted
    measurements; empty without probes."""
    at_speed: list[Statistic]
    """As `statistics`, but with the speed of the machine in each repetition simulated, per quarter
    of a second."""

    @classmethod
    def of(
        cls,
        case: Label,
        runs: Sequence[Requests],
        simulated: Sequence[Requests],
        slowness: list[float],
        at_speed: Sequence[Requests],
    ) -> "CaseResult":
        return cls(case, runs, _means(runs, simulated), slowness, _means(runs, at_speed))

    def statistic(self, metric: str, name: str) -> Statistic:
        return next(s for s in self.statistics if (s.metric, s.name) == (metric, name))

    def mean_at_speed(self, metric: str) -> Statistic:
        """Return a mean, with the machine's speed simulated."""
        return next(s for s in self.at_speed if (s.metric, s.name) == (metric, "mean"))

    @property
    def mean_error(self) -> float:
        return mean_error(self.statistics)

    @property
    def mean_error_at_speed(self) -> float:
        return mean_error(self.at_speed)

    @property
    def mean_spread(self) -> float:
        return float(np.mean([each.spread or 0.0 for each in self.statistics]))

    def to_dict(self) -> dict[str, Any]:
        """Return all fields as plain values: milliseconds, and shares of 1."""
        return {
            "case": self.case.name,
            "acceptance": self.case.acceptance,
            "load": self.case.load.name,
            "policy": self.case.policy,
            "rate": self.case.rate,
            "num_requests": len(self.runs[0]["arrived_at"]),
            "num_runs": len(self.runs),
            "mean_abs_error": self.mean_error,
            "mean_spread": self.mean_spread,
            "slowness": self.slowness,
            "error_at_speed": {metric: self.mean_at_speed(metric).error for metric in JUDGED},
            "mean_abs_error_at_speed": self.mean_error_at_speed,
            "statistics": [each.to_dict() for each in self.statistics],
        }


def _means(runs: Sequence[Requests], simulated: Sequence[Requests]) -> list[Statistic]:
    """Return every statistic, averaged over the repetitions, with their spread."""
    tables = [compare_runs([run], ours) for run, ours in zip(runs, simulated, strict=True)]
    statistics = []
    for row in zip(*tables, strict=True):
        values = [each.measured for each in row]
        ours = float(np.mean([each.simulated for each in row]))
        mean = float(np.mean(values))
        statistics.append(Statistic(row[0].metric, row[0].name, mean, ours, spread(values)))
    return statistics


def judged(result: CaseResult, stated_error: float) -> bool:
    """Return whether mean TPOT and mean latency are within the stated error, a share.

    Or within twice the spread of the real repetitions if that is larger, since a prediction cannot
    be better than the repeatability. The machine's speed is simulated where it was probed.
    """
    means = [result.mean_at_speed(metric) for metric in JUDGED]
    return all(abs(each.error) <= max(stated_error, 2 * (each.spread or 0.0)) for each in means)


def tells(result: CaseResult, stated_error: float) -> bool:
    """Return whether a case within the stated error is evidence for the profile.

    It is if the real repetitions differ by no more than that error; within twice a larger spread
    shows nothing. It is also if the cause of the spread is known: with the machine's speed
    simulated, the errors are within the stated one.
    """
    spreads = [result.statistic(metric, "mean").spread for metric in JUDGED]
    if all((spread or 0.0) <= stated_error for spread in spreads):
        return True
    told = [abs(result.mean_at_speed(metric).error) for metric in JUDGED]
    return bool(result.slowness) and all(error <= stated_error for error in told)


@dataclass(frozen=True)
class Swap:
    """Two values of k that the simulation puts in the wrong order by mean latency."""

    acceptance: str
    load: str
    faster: str  # of the real runs
    slower: str


def swaps(results: Sequence[CaseResult]) -> list[Swap]:
    """Return the wrong orders of two fixed k that differ by more than the real spreads."""
    fixed = [each for each in results if each.case.policy.startswith(("off", "static"))]
    found = []
    for one, two in combinations(fixed, 2):
        place = (one.case.acceptance, one.case.load.name)
        if place != (two.case.acceptance, two.case.load.name):
            continue
        first, second = (each.mean_at_speed("latency") for each in (one, two))
        noise = sum(each.measured * (each.spread or 0.0) for each in (first, second))
        difference = second.measured - first.measured
        if abs(difference) <= noise or difference * (second.simulated - first.simulated) > 0:
            continue
        faster, slower = (one, two) if difference > 0 else (two, one)
        found.append(Swap(*place, faster.case.policy, slower.case.policy))
    return found


@dataclass(frozen=True)
class Part:
    """A profile, and the cases in which it is tested."""

    name: str  # empty if it is the only one
    profile: Profile
    results: list[CaseResult]


@dataclass
class Calibration:
    """The results of a calibration, and whether its cases are within the stated error."""

    stated_error: float  # of mean TPOT and mean latency, as a share
    results: list[CaseResult]
    capacity: float = 0.0  # requests per second without speculation, never idle
    rates: dict[str, float] = field(default_factory=dict)  # arrival rate of each load, requests/s
    parts: list[Part] = field(default_factory=list)
    findings: dict[str, Any] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)  # measured but not judged, and why

    @property
    def swaps(self) -> list[Swap]:
        return swaps(self.results)

    @property
    def failed(self) -> list[CaseResult]:
        return [each for each in self.results if not judged(each, self.stated_error)]

    @property
    def is_kept(self) -> bool:
        """Whether all cases are within the stated error, as far as real runs can tell."""
        return not (self.failed or self.swaps or self.left_out)

    @property
    def is_validated(self) -> bool:
        """Whether all cases are within the stated error, and each is evidence for the profile."""
        return self.is_kept and all(tells(each, self.stated_error) for each in self.results)

    @property
    def statuses(self) -> dict[str, str]:
        return {each.name: str(each.profile.provenance.status) for each in self.parts}

    @property
    def status(self) -> str:
        return ", ".join(f"{name} {status}".strip() for name, status in self.statuses.items())

    def validates(self, part: Part) -> bool:
        """Return whether one part is right in error and order, with each case as evidence."""
        policies = {each.case.policy for each in part.results}
        return all(
            judged(each, self.stated_error) and tells(each, self.stated_error)
            for each in part.results
        ) and not any({swap.faster, swap.slower} & policies for swap in self.swaps)

    def to_dict(self) -> dict[str, Any]:
        return {
            "specsim_version": __version__,
            "status": self.statuses if self.parts[0].name else self.status,
            "stated_error": self.stated_error,
            "failed": [each.case.name for each in self.failed],
            "swaps": [vars(each) for each in self.swaps],
            **self.findings,
            "cases": [each.to_dict() for each in self.results],
        }


class Subject(Protocol):
    """An engine to calibrate, and how; methods in the order of their calls."""

    @property
    def description(self) -> dict[str, Any]:
        """Description of the engine for ``meta.json``."""

    @property
    def loads(self) -> Sequence[Load]:
        """All loads, lightest first."""

    @property
    def stated_error(self) -> float:
        """The error that its profiles promise, of mean TPOT and mean latency, as a share."""

    @property
    def profiles(self) -> Mapping[str, str]:
        """File of the profile per part of the calibration; the part without speculation first."""

    def start(self, folder: Path, tell: Tell) -> tuple[float, dict[str, Any]]:
        """Measure all that comes before the cases, into the folder of the calibration.

        Returns the throughput without speculation of a never idle engine, requests/s, and more
        fields of ``meta.json``.
        """

    def run(self, part: str, rates: dict[str, float], tell: Tell) -> None:
        """Run and record the cases of one part; `rates` are requests/s by load."""

    def compare(self, part: str) -> Part:
        """Fit a candidate profile to the measurements, and simulate the same cases."""

    def findings(self, found: Calibration) -> dict[str, Any]:
        """Return more fields of ``calibration.json``, as plain values."""


def calibrate(subject: Subject, folder: Path, tell: Tell) -> Calibration:
    """Calibrate an engine; `tell` gets lines about the progress.

    The folder, new or empty, fills meanwhile; until the end ``meta.json`` says that it is
    incomplete. Raises a SpecsimError if something cannot be measured, fitted or written; earlier
    measurements stay.
    """
    check_folder(folder)
    meta = {**subject.description, "specsim_version": __version__}
    _write_json(folder / "meta.json", {**meta, "complete": False})
    capacity, more = subject.start(folder, tell)
    meta |= more
    _write_json(folder / "meta.json", {**meta, "complete": False})
    rates = {load.name: load.share * capacity for load in subject.loads}
    found = Calibration(subject.stated_error, [], capacity, rates)
    for name in subject.profiles:
        subject.run(name, rates, tell)
        try:
            part = subject.compare(name)
        except SpecsimError as error:
            if not found.parts:
                raise
            found.left_out[name] = str(error)
            tell(f"{name} is left out: {error}")
            continue
        found.parts.append(part)
        found.results += part.results
        if len(subject.profiles) > 1:
            _write_results(found, subject, folder, complete=False)
    _conclude(found, subject, folder)
    _write_results(found, subject, folder, complete=True)
    _write_json(folder / "meta.json", {**meta, "complete": True})
    return found


def _conclude(found: Calibration, subject: Subject, folder: Path) -> None:
    for place, part in enumerate(found.parts):
        profile = with_status(
            part.profile, is_validated=found.validates(part), stated_error=found.stated_error
        )
        write_profile(profile, folder / subject.profiles[part.name])
        found.parts[place] = replace(part, profile=profile)
    names = [load.name for load in subject.loads]
    kinds = list(dict.fromkeys(each.case.acceptance for each in found.results))
    found.results.sort(
        key=lambda each: (kinds.index(each.case.acceptance), names.index(each.case.load.name))
    )


def _write_results(found: Calibration, subject: Subject, folder: Path, *, complete: bool) -> None:
    found.findings = subject.findings(found)
    ending = {"complete": complete} if len(subject.profiles) > 1 else {}
    _write_json(folder / "calibration.json", {**found.to_dict(), **ending})


def with_status(
    profile: Profile, *, is_validated: bool, stated_error: float, **known: str
) -> Profile:
    """Return a profile with its validation status and other provenance."""
    update = {"status": "validated" if is_validated else "candidate", "stated_error": stated_error}
    provenance = profile.provenance.model_copy(update={**update, **known})
    return profile.model_copy(update={"provenance": provenance})


def check_folder(folder: Path) -> None:
    """Raise an error if results in this folder would be lost."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"{folder}: is there already and not empty; name a new folder (--out)")


def _write_json(path: Path, content: dict[str, Any]) -> None:
    with new_file(path) as temporary:
        temporary.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def write_profile(profile: Profile, path: Path) -> None:
    """Write a profile as YAML, in the form that `load_profile` reads."""
    with new_file(path) as temporary:
        temporary.write_text(profile.to_yaml(), encoding="utf-8")
