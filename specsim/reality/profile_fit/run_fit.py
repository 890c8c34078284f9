"""Fitting a composed profile to measured runs of one server: what a load generator printed."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import date
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specsim.core.errors import ConfigError
from specsim.profile import Profile
from specsim.profile.profile import NOT_MEASURED
from specsim.reality.profile_fit.parameters import Parameter, changed, parameters_of
from specsim.reality.validation.measured_run import MeasuredRun
from specsim.reality.validation.prediction_errors import OF_TOKENS, errors_of, measured_of, value_of
from specsim.reality.validation.table_replay import DEFAULT_SPREAD, Prediction, Replayer, check_same

Values = NDArray[np.float64]
Runs = Sequence[MeasuredRun]

DEVIATIONS: Mapping[str, float] = {
    "output_tok_s": 0.02,
    f"{OF_TOKENS}_mean_ms": 0.02,
    "itl_p50_ms": 0.02,
    "ttft_p50_ms": 0.05,
    "e2e_mean_ms": 0.02,
    "engine_steps": 0.02,
}
"""What is fitted: the logarithm of predicted over measured, and by how much it may be off."""
UNTOLD = 0.7  # width, as a share of the prior's, from which on the data say nothing of a parameter
_SAME = ("model", "gpu", "engine", "engine_version", "quantisation")
_STEP = 0.5  # of finite differences, standard deviations: some 4 to 8 % of a factor
_ROUNDS = 2
_MOST_STEPS = 6
_LEAST_SPREAD = 1.7  # as a share of `DEVIATIONS`: as many parameters as cells can always agree,
# and so much were rows off that were not fitted (root mean square, median of nine servers)
_ONE_TIME = frozenset({"output_tok_s", f"{OF_TOKENS}_mean_ms", "e2e_mean_ms"})
"""What tells the same of a closed loop, and so counts together as one."""
_WIDTH_95 = 1.96
_LONGEST_STEP = 1.5  # standard deviations
_SHARES = (1.0, 0.5, 0.2)  # of a step that are tried, in turn
_LEAST_GAIN = 0.01
_TINY = 1e-9  # between two bounds
_AT_BOUND = 0.02  # standard deviations


@dataclass(frozen=True)
class Estimate:
    """A parameter after the fit; all in its own unit."""

    name: str
    about: str
    start: float
    value: float
    low: float
    """Of the interval that holds it with 95 %: from the Jacobian, the spread of the residuals, and
    the prior."""
    high: float
    is_told: bool  # whether the data say more of it than the prior
    at_bound: bool


@dataclass(frozen=True)
class RunFit:
    """A profile fitted to runs, and how far it and its start are off."""

    profile: Profile
    estimates: list[Estimate]
    fitted: tuple[list[Prediction], list[Prediction]]
    """Of the rows that were fitted, before and after."""
    held_out: tuple[list[Prediction], list[Prediction]]
    """Of the others, likewise; empty if there are none."""
    spread: float  # of the residuals, as a share of `DEVIATIONS`
    num_evaluations: int

    def to_dict(self) -> dict[str, Any]:
        pairs = {"fitted": self.fitted, "held_out": self.held_out}
        return {
            "parameters": [asdict(each) for each in self.estimates],
            "spread": self.spread,
            "num_evaluations": self.num_evaluations,
            "errors": {
                name: {
                    when: [asdict(each) for each in errors_of(found, DEVIATIONS)]
                    for when, found in zip(("before", "after"), pair, strict=True)
                }
                for name, pair in pairs.items()
            },
        }


def fit_runs(  # noqa: PLR0913 - only the start and rows need be given
    start: Profile,
    fitted: Runs,
    held_out: Runs = (),
    *,
    metrics: Sequence[str] = tuple(DEVIATIONS),
    seed: int = 0,
    spread: float = DEFAULT_SPREAD,
    processes: int = 1,
    on_progress: Callable[[int], None] | None = None,
) -> RunFit:
    """Fit the few parameters of a composed profile to measured runs, with any draft lengths.

    Bounded least squares of log errors, with a prior around the start. Once the residuals are
    known, they are weighed by their own spread and fitted again. A SpecsimError if the profile is
    not composed, the runs are of several servers or not of the profile's, a row says too little, or
    has nothing that could be fitted.

    Args:
        start: Such as `specsim profile build` makes.
        fitted, held_out: Of one server; repetitions of a run count together as one.
        metrics: Of `DEVIATIONS`, those that count.
        seed, spread, processes: As of `Replayer`.
        on_progress: Told the number of profiles that have been tried.
    """
    check_one_server([*fitted, *held_out])
    check_same([*fitted, *held_out], start)
    wrong = next((name for name in metrics if name not in DEVIATIONS), None)
    if wrong is not None:
        raise ConfigError(f"--metric {wrong}: must be one of {', '.join(DEVIATIONS)}")
    parameters = parameters_of(start, fitted)
    options: dict[str, Any] = {"seed": seed, "spread": spread, "processes": processes}
    with Replayer(fitted, **options) as replayer, Replayer(held_out, **options) as others:
        problem = _Problem(start, parameters, replayer, metrics, on_progress)
        unseen_before = others.predict(start)
        places, noise, widths = _solved(problem)
        estimates = _estimates(parameters, places, widths)
        pairs = zip(parameters, estimates, strict=True)
        found = changed(start, {each.path: estimate.value for each, estimate in pairs})
        return RunFit(
            profile=_with_provenance(found, estimates, fitted, held_out),
            estimates=estimates,
            fitted=(replayer.predict(start), replayer.predict(found)),
            held_out=(unseen_before, others.predict(found)),
            spread=noise,
            num_evaluations=problem.num_evaluations,
        )


def check_one_server(runs: Runs) -> None:
    """Raise unless all runs are of one server, and draft with one model.

    A ConfigError if there is none, or it names the first row that differs, and in what.
    """
    if not runs:
        raise ConfigError("no row to fit to; choose others with --rows and --fit-rows")
    groups = [(column, list(runs)) for column in (*_SAME, "tp")]
    groups.append(("draft_model", [run for run in runs if run.num_speculative_tokens]))
    for column, alike in groups:
        for run in alike:
            cell, first = (each.cells.get(column, "") for each in (run, alike[0]))
            if cell and first and cell != first:
                raise ConfigError(
                    f"{run.place}: {column} = {cell!r}, but {alike[0].place} has {first!r}: a "
                    f"profile is of one server; keep the rows of one (--rows '{column}={first}')"
                )


class _Problem:
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

    def jacobian(self, places: Values) -> Values:
        """Return the derivatives, shape (errors, parameters), as far apart as noise demands."""
        columns = []
        for number, place in enumerate(places):
            sign = 1.0 if place + _STEP <= self.highest[number] else -1.0
            moved = places.copy()
            moved[number] = max(place + sign * _STEP, self.lowest[number])
            change = self.errors(moved) - self.errors(places)
            columns.append(change / (moved[number] - place))
        return np.column_stack(columns)

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


def _solved(problem: _Problem) -> tuple[Values, float, Values]:
    """Return the best places, the spread of the errors there, and their standard deviations."""
    places, spread = np.zeros(len(problem.parameters)), 1.0
    for _ in range(_ROUNDS):
        places = _least_squares(problem, places, spread)
        slopes = problem.jacobian(places)
        num_told = len(places) - float(np.trace(_covariance(slopes, spread)))
        freedom = max(problem.num_errors - num_told, 1.0)
        spread = max(float(np.sqrt((problem.errors(places) ** 2).sum() / freedom)), _LEAST_SPREAD)
    return places, spread, np.sqrt(np.diag(_covariance(slopes, spread)))


def _least_squares(problem: _Problem, places: Values, spread: float) -> Values:
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
        slopes = np.vstack([problem.jacobian(places) / spread, np.eye(len(places))])
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


def _estimates(parameters: Sequence[Parameter], places: Values, widths: Values) -> list[Estimate]:
    found = []
    for each, place, width in zip(parameters, places.tolist(), widths.tolist(), strict=True):
        low, high = (each.value(place + sign * _WIDTH_95 * width) for sign in (-1, 1))
        nearest = min(each.bounds, key=lambda bound: abs(bound - place))
        at_bound = abs(nearest - place) < _AT_BOUND
        value = float(f"{each.value(nearest if at_bound else place):.4g}")
        told = width < UNTOLD
        found.append(Estimate(each.name, each.about, each.start, value, low, high, told, at_bound))
    return found


def _with_provenance(
    profile: Profile, fit: Sequence[Estimate], fitted: Runs, held_out: Runs
) -> Profile:
    """Return a fitted profile that says what was fitted to what."""
    known, run = profile.provenance, fitted[0]
    server = " ".join(filter(None, (run.cells.get("engine", ""), run.cells.get("engine_version"))))
    files = ", ".join(dict.fromkeys(str(each.path.name) for each in fitted))
    lens = ", ".join(map(str, sorted({each.num_speculative_tokens for each in fitted})))
    told = ", ".join(f"{each.name} {each.value:.4g}" for each in fit if each.is_told)
    untold = ", ".join(each.name for each in fit if not each.is_told)
    before = known.notes.replace(NOT_MEASURED, "").strip()
    notes = (
        f"{before} Fitted by `specsim profile fit` to {len(fitted)} rows of {files} (k = "
        f"{lens}), {len(held_out)} held out: {told or 'nothing told'}."
    )
    update = {
        "engine": f"{known.engine}; fitted to runs of {server}" if server else known.engine,
        "source": f"{known.source}; fitted to {len(fitted)} rows of {files}",
        "date": date.today().isoformat(),
        "notes": notes.strip() + (f" The runs do not tell {untold}." if untold else ""),
        "status": None,
        "stated_error": None,
    }
    return changed(profile, {("provenance", name): value for name, value in update.items()})
