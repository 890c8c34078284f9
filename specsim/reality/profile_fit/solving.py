"""Bounded least squares of the errors of simulated runs, and what each load says of the others."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import log
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from specsim.core.errors import ConfigError
from specsim.profile import Profile
from specsim.reality.profile_fit.parameters import Parameter, changed
from specsim.reality.validation.measured_run import MeasuredRun
from specsim.reality.validation.prediction_errors import OF_TOKENS, measured_of, value_of
from specsim.reality.validation.table_replay import Replayer

Values = NDArray[np.float64]
Flags = NDArray[np.bool_]

DEVIATIONS: Mapping[str, float] = {
    "output_tok_s": 0.02,
    f"{OF_TOKENS}_mean_ms": 0.02,
    "itl_p50_ms": 0.02,
    "ttft_p50_ms": 0.05,
    "e2e_mean_ms": 0.02,
    "engine_steps": 0.02,
}
"""What is fitted: the logarithm of predicted over measured, and by how much it may be off."""
_ALIKE = 1.25  # ratio of mean contexts, up to which runs may be repetitions of one load
_STEP = 0.5  # of finite differences, standard deviations: some 4 to 8 % of a factor
ROUNDS = 2
_MOST_STEPS = 6
_LEAST_SPREAD = 1.7
"""Least spread of errors that is assumed, as a share of `DEVIATIONS`: with as many parameters as
cells a fit leaves no errors. Rows that were not fitted were off by that much (root mean square,
median of nine servers)."""
_ONE_TIME = frozenset({"output_tok_s", f"{OF_TOKENS}_mean_ms", "e2e_mean_ms"})
"""What tells the same of a closed loop, and so counts together as one."""
_MOST_LEFT = 0.5
"""Most that may be left of the errors of loads left out, for a fit to be kept. Chosen by leaving
one machine out of nine servers: ``experiments/gpu-runs/PROTOCOL.md``."""
_LONGEST_STEP = 1.5  # standard deviations
_SHARES = (1.0, 0.5, 0.2)  # of a step that are tried, in turn
_LEAST_GAIN = 0.01
_TINY = 1e-9  # between two bounds


@dataclass(frozen=True)
class LeftOut:
    """How far each load is off by the start, and by what all the other loads together say.

    Mean sizes of errors, as a share of `DEVIATIONS`; repetitions are one load.
    """

    before: tuple[float, ...]
    after: tuple[float, ...]

    @property
    def num_worse(self) -> int:
        """How many loads are no better by the others than by the start."""
        return sum(new >= old for old, new in zip(self.before, self.after, strict=True))

    @property
    def is_better(self) -> bool:
        """Whether none is worse, and all together are half as far off.

        Where one is worse the form is wrong, and not a number in it. What gains less is too little
        to tell from luck: it made other loads of the server worse.
        """
        return not self.num_worse and sum(self.after) <= _MOST_LEFT * sum(self.before)

    def __str__(self) -> str:
        if not self.num_worse:
            share = 1 - sum(self.after) / sum(self.before)
            least = "" if self.is_better else f" (at least {1 - _MOST_LEFT:.0%} is wanted)"
            gain = f"{share:.0%} less off on that one than as built{least}"
            return f"what all loads but one say is {gain}"
        return (
            f"what all loads but one say is no better on that one than as built, of "
            f"{len(self.before)} loads for {self.num_worse}"
        )


def _load_of(run: MeasuredRun) -> tuple[object, ...]:
    """Return what repetitions of a run have in common; lengths and acceptance differ a little."""
    context = round(log(run.mean_context, _ALIKE))
    return (run.cells.get("dataset", ""), context, run.load, run.method, run.num_speculative_tokens)


class Problem:
    """Residuals by the places of the parameters, in standard deviations from the start."""

    def __init__(
        self,
        start: Profile,
        parameters: Sequence[Parameter],
        replayer: Replayer,
        metrics: Sequence[str],
        on_progress: Callable[[int], None] | None,
    ) -> None:
        self.parameters = list(parameters)
        self._start, self._replayer, self._metrics = start, replayer, metrics
        self._on_progress = on_progress
        self._known: dict[bytes, Values] = {}
        self.lowest, self.highest = np.array([each.bounds for each in self.parameters]).T
        self._weights = self._weigh()
        if not len(self._weights):
            raise ConfigError(
                f"{replayer.runs[0].place}: has none of {', '.join(metrics)}; give at least one of "
                "them, or choose others with --metric"
            )

    @property
    def num_evaluations(self) -> int:
        return len(self._known)

    @property
    def num_errors(self) -> float:
        """How many errors there are, repetitions together as one."""
        return float((self._weights**2).sum())

    def profile(self, places: Values) -> Profile:
        pairs = zip(self.parameters, places.tolist(), strict=True)
        return changed(self._start, {each.path: each.value(place) for each, place in pairs})

    def errors(self, places: Values) -> Values:
        """Return log errors over what is expected of them; repetitions weigh as much as one."""
        key = places.tobytes()
        if key not in self._known:
            predictions = self._replayer.predict(self.profile(places))
            self._known[key] = self._weights * np.array(
                [
                    # What never happens in the simulation is as wrong as can be told.
                    np.log(max(predicted, 1e-3 * measured) / measured) / DEVIATIONS[metric]
                    for metric in self._metrics
                    for measured, predicted in (value_of(each, metric) for each in predictions)
                    if measured
                ]
            )
            if self._on_progress is not None:
                self._on_progress(self.num_evaluations)
        return self._known[key]

    def jacobian(self, places: Values, is_free: Flags) -> Values:
        """Return the derivatives, shape (errors, parameters), as far apart as noise demands.

        0 by those that are not free.
        """
        columns = []
        for number, place in enumerate(places):
            if not is_free[number]:
                columns.append(np.zeros(len(self._weights)))
                continue
            sign = 1.0 if place + _STEP <= self.highest[number] else -1.0
            moved = places.copy()
            moved[number] = max(place + sign * _STEP, self.lowest[number])
            change = self.errors(moved) - self.errors(places)
            columns.append(change / (moved[number] - place))
        return np.column_stack(columns)

    @property
    def loads(self) -> list[int]:
        """Number of the load that each error is of; repetitions are of one load."""
        loads = [_load_of(run) for run in self._replayer.runs]
        told = [
            (run, loads.index(load)) for run, load in zip(self._replayer.runs, loads, strict=True)
        ]
        return [n for metric in self._metrics for run, n in told if measured_of(run, metric)]

    def _weigh(self) -> Values:
        keys = self._replayer.keys
        return np.array(
            [
                1 / np.sqrt(keys.count(key) * self._told_as_often(metric, run))
                for metric in self._metrics
                for run, key in zip(self._replayer.runs, keys, strict=True)
                if measured_of(run, metric)
            ]
        )

    def _told_as_often(self, metric: str, run: MeasuredRun) -> int:
        """Return how many metrics of a run tell what this one does."""
        alike = _ONE_TIME & set(self._metrics) if metric in _ONE_TIME else {metric}
        return sum(bool(measured_of(run, each)) for each in alike)


class Solution(NamedTuple):
    """Where the errors are smallest, in standard deviations from the start."""

    places: Values
    spread: float  # of the errors there
    widths: Values  # standard deviations of the places
    slopes: Values  # `Problem.jacobian` there


def solved(
    problem: Problem, is_free: Flags, rounds: int, start: Solution | None = None
) -> Solution:
    """Return the best places of the parameters that are free; the others stay at the start."""
    places, spread = np.zeros(len(problem.parameters)), 1.0
    if start is not None:
        places, spread = np.where(is_free, start.places, 0.0), start.spread
    for _ in range(rounds):
        places = _least_squares(problem, places, spread, is_free)
        slopes = problem.jacobian(places, is_free)
        num_told = len(places) - float(np.trace(_covariance(slopes, spread)))
        freedom = max(problem.num_errors - num_told, 1.0)
        spread = max(float(np.sqrt((problem.errors(places) ** 2).sum() / freedom)), _LEAST_SPREAD)
    widths = np.sqrt(np.diag(_covariance(slopes, spread)))
    if start is not None:
        widths = np.where(is_free, widths, start.widths)
    return Solution(places, spread, widths, slopes)


def left_out(problem: Problem, found: Solution, is_free: Flags) -> LeftOut | None:
    """Leave out each load in turn; None if there is but one.

    Near the solution errors are linear, so that one step leads to what the other loads say.
    """
    loads = np.array(problem.loads)
    count = len(set(loads.tolist()))
    if count < 2:
        return None
    starting = problem.errors(np.zeros(len(found.places)))
    errors, sizes = problem.errors(found.places) / found.spread, []
    for load in set(loads.tolist()):
        rest = loads != load
        slopes = np.vstack([found.slopes[rest] / found.spread, np.eye(len(is_free))])
        step = np.linalg.lstsq(slopes, -np.concatenate([errors[rest], found.places]))[0]
        places = np.clip(found.places + step * is_free, problem.lowest, problem.highest)
        there = problem.errors(places)[~rest]
        sizes.append((float(np.abs(starting[~rest]).mean()), float(np.abs(there).mean())))
    before, after = zip(*sizes, strict=True)
    return LeftOut(before, after)


def _least_squares(problem: Problem, places: Values, spread: float, is_free: Flags) -> Values:
    """Return where errors of a spread and the prior's are smallest together.

    Gauss and Newton's method within bounds: each step solves the linear problem exactly, which
    takes two or three of them; those of `scipy.optimize.least_squares` shrink where many times are
    at their bound of 0, and it stops on the way.
    """
    from scipy.optimize import lsq_linear  # noqa: PLC0415 - scipy takes 0.2 s

    def residuals(places: Values) -> Values:
        return np.concatenate([problem.errors(places) / spread, places])

    here = residuals(places)
    for _ in range(_MOST_STEPS):
        jacobian = problem.jacobian(places, is_free)
        slopes = np.vstack([jacobian / spread, np.eye(len(places))])
        nearest = np.maximum(problem.lowest - places, -_LONGEST_STEP) - _TINY
        farthest = np.minimum(problem.highest - places, _LONGEST_STEP) + _TINY
        step = lsq_linear(slopes, -here, (nearest, farthest)).x
        for share in _SHARES:
            there = np.clip(places + share * step, problem.lowest, problem.highest)
            if (after := residuals(there)) @ after < here @ here:
                break
        else:
            return places
        gain = 1 - after @ after / (here @ here)
        places, here = there, after
        if gain < _LEAST_GAIN:
            break
    return places


def _covariance(slopes: Values, spread: float) -> Values:
    """Return that of the parameters, in units of the prior's, which is part of it."""
    information = slopes.T @ slopes / spread**2 + np.eye(slopes.shape[1])
    return np.asarray(np.linalg.inv(information), dtype=np.float64)
