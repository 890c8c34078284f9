"""What a calibration found: measured against simulated, case by case, and whether that is kept."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

import numpy as np

from specsim.reality.validation import Statistic
from specsim.reality.validation.validation import compare_runs, mean_error, spread
from specsim.results.metrics import Requests

JUDGED = ("tpot", "latency")
"""Metrics whose mean has to keep to the stated error."""
_FEWEST = 20


@dataclass(frozen=True)
class Load:
    """How much traffic a run gets."""

    name: str
    share: float
    """Arrival rate as a share of what the server gets done without speculation when it is never
    idle."""
    seconds: float
    """For so long requests arrive."""

    def num_requests(self, rate: float) -> int:
        """Return how many requests that makes; a few at least."""
        return max(_FEWEST, round(self.seconds * rate))


@dataclass(frozen=True)
class Label:
    """What tells one case from another."""

    acceptance: str
    """``synthetic``, ``real``, or ``recorded`` where the simulation is given the real run's."""
    load: Load
    policy: str
    rate: float
    """Requests per second."""

    @property
    def is_synthetic(self) -> bool:
        """Whether acceptance is decided by luck that the simulation shares."""
        return self.acceptance == "synthetic"

    @property
    def name(self) -> str:
        """For folders and tables."""
        return f"{self.acceptance}-{self.load.name}-{self.policy.replace(':', '-')}"


@dataclass(frozen=True)
class CaseResult:
    """One case: real runs and their simulation."""

    case: Label
    runs: Sequence[Requests]
    """The repetitions."""
    statistics: list[Statistic]
    """``measured`` is the mean of the repetitions' statistics, ``simulated`` that of their
    simulations'."""
    slowness: list[float]
    """How slow the machine was on average in each repetition, by its probes, relative to its mean
    while what the profile is fitted to was measured; empty if it was not probed."""
    at_speed: list[Statistic]
    """As `statistics`, the simulation being told how fast the machine was in each repetition, from
    one quarter of a second to the next."""

    @classmethod
    def of(
        cls,
        case: Label,
        runs: Sequence[Requests],
        simulated: Sequence[Requests],
        slowness: list[float],
        at_speed: Sequence[Requests],
    ) -> "CaseResult":
        """Compare runs with their simulations, and with those told the machine's speed."""
        return cls(case, runs, _means(runs, simulated), slowness, _means(runs, at_speed))

    def statistic(self, metric: str, name: str) -> Statistic:
        """Return one of the statistics."""
        return next(s for s in self.statistics if (s.metric, s.name) == (metric, name))

    def mean_at_speed(self, metric: str) -> Statistic:
        """Return a mean, the simulation being told how fast the machine was."""
        return next(s for s in self.at_speed if (s.metric, s.name) == (metric, "mean"))

    @property
    def mean_error(self) -> float:
        """Mean size of the errors of all statistics."""
        return mean_error(self.statistics)

    @property
    def mean_error_at_speed(self) -> float:
        """The same, where the simulation is told how slow the machine was."""
        return mean_error(self.at_speed)

    @property
    def mean_spread(self) -> float:
        """Mean spread of all statistics between the repetitions."""
        return float(np.mean([each.spread or 0.0 for each in self.statistics]))

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain values: milliseconds, and shares of 1."""
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
    """Return every statistic, averaged over the repetitions, and how far these lie apart."""
    tables = [compare_runs([run], ours) for run, ours in zip(runs, simulated, strict=True)]
    statistics = []
    for row in zip(*tables, strict=True):
        values = [each.measured for each in row]
        ours = float(np.mean([each.simulated for each in row]))
        mean = float(np.mean(values))
        statistics.append(Statistic(row[0].metric, row[0].name, mean, ours, spread(values)))
    return statistics


def judged(result: CaseResult, stated_error: float) -> bool:
    """Return whether mean TPOT and mean latency keep to the stated error, a share.

    Or to twice the spread of the real repetitions, where that is larger: nothing can be predicted
    better than it repeats. The simulation is told how fast the machine was, where that was probed.
    """
    means = [result.mean_at_speed(metric) for metric in JUDGED]
    return all(abs(each.error) <= max(stated_error, 2 * (each.spread or 0.0)) for each in means)


def tells(result: CaseResult, stated_error: float) -> bool:
    """Return whether a case that keeps to the stated error says something about the profile.

    Either the real repetitions lie apart by no more than that; if not, keeping to twice their
    spread shows nothing. Or what set them apart is known: a simulation that is told how fast the
    machine was keeps to the stated error by itself.
    """
    spreads = [result.statistic(metric, "mean").spread for metric in JUDGED]
    if all((spread or 0.0) <= stated_error for spread in spreads):
        return True
    told = [abs(result.mean_at_speed(metric).error) for metric in JUDGED]
    return bool(result.slowness) and all(error <= stated_error for error in told)


@dataclass(frozen=True)
class Swap:
    """Two values of k whose order by mean latency the simulation gets wrong."""

    acceptance: str
    load: str
    faster: str
    """In the real runs."""
    slower: str


def swaps(results: Sequence[CaseResult]) -> list[Swap]:
    """Return where the simulation swaps two fixed k that differ by more than real spreads."""
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


@dataclass
class Judgement:
    """All cases of a calibration, and whether they keep to what was stated."""

    stated_error: float
    """Of mean TPOT and mean latency, as a share."""
    results: list[CaseResult]
    left_out: dict[str, str] = field(default_factory=dict, kw_only=True)
    """What could be measured but not judged, and why."""

    @property
    def swaps(self) -> list[Swap]:
        """Where the order of k is wrong."""
        return swaps(self.results)

    @property
    def failed(self) -> list[CaseResult]:
        """Cases that do not keep to the stated error."""
        return [each for each in self.results if not judged(each, self.stated_error)]

    @property
    def is_kept(self) -> bool:
        """Whether everything is as stated, as far as the real runs can tell."""
        return not (self.failed or self.swaps or self.left_out)

    @property
    def is_validated(self) -> bool:
        """Whether everything is as stated, and every case says something about the profile."""
        return self.is_kept and all(tells(each, self.stated_error) for each in self.results)

    @property
    def status(self) -> str:
        """Of the profile, or of each."""
        return "validated" if self.is_validated else "candidate"
