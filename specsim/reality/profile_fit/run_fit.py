"""Fitting a composed profile to measured runs of one server, as a load generator reports them.

Bounded least squares of the errors of simulated runs, and cross-validation between loads.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from specsim.core.errors import ConfigError, ProfileError
from specsim.core.figures import percent
from specsim.core.settings import load_mapping
from specsim.latency.composed import Composed
from specsim.profile import Profile
from specsim.profile.profile import NOT_MEASURED
from specsim.reality.validation.measured_run import MeasuredRun
from specsim.reality.validation.prediction_errors import OF_TOKENS, errors_of, measured_of, value_of
from specsim.reality.validation.table_replay import DEFAULT_SPREAD, Prediction, Replayer, check_same

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
"""Fitted metrics, and the expected deviation of log(predicted / measured)."""
_ALIKE = 1.25  # ratio of mean contexts up to which runs may be repetitions of one load
_STEP = 0.5  # of finite differences, standard deviations: about 4 to 8 % of a factor
_ONE_TIME = frozenset({"output_tok_s", f"{OF_TOKENS}_mean_ms", "e2e_mean_ms"})
"""Metrics that say the same in a closed loop, and so count together as one."""


@dataclass(frozen=True)
class Parameter:
    """A number in a profile, in standard deviations of its prior.

    The prior is normal around the value in the start profile: for a factor in its logarithm, for a
    time in its unit; for times of drafting it is wider farther away.
    """

    path: tuple[str, ...]
    about: str
    start: float
    scale: float  # standard deviation of the prior
    lowest: float
    highest: float
    is_factor: bool = False
    may_be_far: bool = False
    """Whether the prior has long tails, by the inverse hyperbolic sine."""

    @property
    def name(self) -> str:
        return ".".join(self.path)

    def value(self, place: float) -> float:
        """Return the value that is `place` standard deviations from the start."""
        moved = place * self.scale if not self.may_be_far else math.sinh(place) * self.scale
        value = self.start * math.exp(moved) if self.is_factor else self.start + moved
        return min(max(value, self.lowest), self.highest)

    @property
    def bounds(self) -> tuple[float, float]:
        """The lowest and the highest value, in standard deviations from the start."""
        low, high = (self._place(value) for value in (self.lowest, self.highest))
        return low, high

    def _place(self, value: float) -> float:
        moved = math.log(value / self.start) if self.is_factor else value - self.start
        place = moved / self.scale
        return math.asinh(place) if self.may_be_far else place


_FACTORS, _TIMES, _OF_DRAFTS = load_mapping(
    Path(__file__).with_name("parameters.yaml"), ConfigError
).values()


def parameters_of(profile: Profile, runs: Sequence[MeasuredRun]) -> list[Parameter]:
    """Return the parameters of a profile that some runs may change.

    Parameters of drafting are left out without runs that draft; the host time of each pass is left
    out without a run that does not draft, which separates it from drafting. Raises a ProfileError
    if the profile is not composed, or lacks a drafter of the runs.
    """
    if not isinstance(profile.target, Composed):
        raise ProfileError(
            f"--start: its target is of kind '{profile.target.kind}', must be composed; make one "
            f"with `specsim profile build --model {profile.model} --gpu {profile.gpu} --out START`"
        )
    speculating = [run for run in runs if run.num_speculative_tokens]
    has_experts = len(set(profile.target.read_us)) > 1
    untold = {"verify_factor": not speculating, "expert_factor": not has_experts}
    found = [
        _parameter(profile.target, ("target", name), kind, is_factor=True)
        for name, kind in _FACTORS.items()
        if not untold.get(name)
    ]
    for name, kind in _TIMES.items():
        if name != "fixed_us":
            found.append(_parameter(profile.overhead, ("overhead", name), kind))
        elif len(speculating) < len(runs):
            found.append(_parameter(profile.target, ("target", name), kind))
    for method, run in {run.method: run for run in speculating}.items():
        cost = profile.drafts.get(method)
        if cost is None:
            raise ProfileError(
                f"{run.place}: method = '{method}', but --start has no cost of it (it has: "
                f"{', '.join(profile.drafts) or 'none'}); build it with --draft {method}=MODEL"
            )
        for name, kind in _OF_DRAFTS.items():
            path = name.split(".")
            part = cost if len(path) == 1 else cost.latency
            if hasattr(part, path[-1]):
                found.append(_parameter(part, ("drafts", method, *path), kind, may_be_far=True))
    return found


def _parameter(part: Any, path: tuple[str, ...], kind: list[Any], **options: bool) -> Parameter:
    about, scale, lowest, highest = kind
    start = float(getattr(part, path[-1]))
    return Parameter(path, about, start, scale, min(lowest, start), max(highest, start), **options)


def changed(profile: Profile, values: Mapping[tuple[str, ...], Any]) -> Profile:
    """Return a profile with other values, by path; each is checked as in a file."""
    for path, value in values.items():
        profile = _replaced(profile, path, value)
    return profile


def _replaced(part: Any, path: tuple[str, ...], value: Any) -> Any:
    name, *rest = path
    fields = (
        part if isinstance(part, dict) else {n: getattr(part, n) for n in type(part).model_fields}
    )
    inner = _replaced(fields[name], tuple(rest), value) if rest else value
    made = {**fields, name: inner}
    return made if isinstance(part, dict) else type(part).model_validate(made)


def _load_of(run: MeasuredRun) -> tuple[object, ...]:
    """Return what repetitions of a run share; lengths and acceptance may differ a little."""
    context = round(math.log(run.mean_context, _ALIKE))
    return (run.cells.get("dataset", ""), context, run.load, run.method, run.num_speculative_tokens)


class Problem:
    """Residuals as a function of the parameters, in standard deviations from the start."""

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
        keys, loads = replayer.keys, [_load_of(run) for run in replayer.runs]
        rows = list(zip(replayer.runs, keys, map(loads.index, loads), strict=True))
        told = [(name, row) for name in metrics for row in rows if measured_of(row[0], name)]
        self.loads = [load for _, (_, _, load) in told]
        """Load of each error; repetitions share one."""
        self._weights = np.array(
            [
                1 / np.sqrt(keys.count(key) * self._told_as_often(name, run))
                for name, (run, key, _) in told
            ]
        )
        if not told:
            raise ConfigError(
                f"{replayer.runs[0].place}: has none of {', '.join(metrics)}; give at least one of "
                "them, or choose others with --metric"
            )

    @property
    def num_evaluations(self) -> int:
        return len(self._known)

    @property
    def num_errors(self) -> float:
        """Number of errors, with repetitions counted as one."""
        return float((self._weights**2).sum())

    def profile(self, places: Values) -> Profile:
        pairs = zip(self.parameters, places.tolist(), strict=True)
        return changed(self._start, {each.path: each.value(place) for each, place in pairs})

    def errors(self, places: Values) -> Values:
        """Return log errors / expected deviations; repetitions together weigh as one."""
        key = places.tobytes()
        if key not in self._known:
            predictions = self._replayer.predict(self.profile(places))
            self._known[key] = self._weights * np.array(
                [
                    # What never happens in the simulation counts as the largest error.
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
        """Return the derivatives, shape (errors, parameters), by differences above the noise.

        Derivatives of parameters that are not free are 0.
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

    def _told_as_often(self, metric: str, run: MeasuredRun) -> int:
        """Return how many metrics of a run say the same as this one."""
        alike = _ONE_TIME & set(self._metrics) if metric in _ONE_TIME else {metric}
        return sum(bool(measured_of(run, each)) for each in alike)


Runs = Sequence[MeasuredRun]

UNTOLD = 0.7  # share of the prior's width from which on the data do not determine a parameter
_SAME = ("model", "gpu", "engine", "engine_version", "quantisation")
_WIDTH_95 = 1.96
_AT_BOUND = 0.02  # standard deviations
ROUNDS = 2
_MOST_STEPS = 6
_LEAST_SPREAD = 1.7
"""Least assumed spread of errors, as a share of `DEVIATIONS`, because a fit with as many
parameters as cells has no errors. Held-out rows were off by this (root mean square, median of
nine servers)."""
_MOST_LEFT = 0.5
"""Largest share of the errors of loads left out that may remain for a fit to be kept. Chosen by
leaving one machine out of nine servers: ``experiments/gpu-runs/PROTOCOL.md``."""
_LONGEST_STEP = 1.5  # standard deviations
_SHARES = (1.0, 0.5, 0.2)  # shares of a step, tried in turn
_LEAST_GAIN = 0.01
_TINY = 1e-9  # least distance of two bounds


class Solution(NamedTuple):
    """The place of the smallest errors, in standard deviations from the start."""

    places: Values
    spread: float  # of the errors there
    widths: Values  # standard deviations of the places
    slopes: Values  # `Problem.jacobian` there


@dataclass(frozen=True)
class LeftOut:
    """Errors on each load of the start profile, and of a fit to all other loads.

    Mean absolute errors, as a share of `DEVIATIONS`; repetitions are one load.
    """

    before: tuple[float, ...]
    after: tuple[float, ...]

    @property
    def num_worse(self) -> int:
        """Number of loads that the fit to the others does not predict better than the start."""
        return sum(new >= old for old, new in zip(self.before, self.after, strict=True))

    @property
    def is_better(self) -> bool:
        """Whether no load is worse, and the errors together are halved.

        If a load is worse, the form is wrong, and not a number in it. A smaller gain cannot be told
        from luck: it made other loads of the server worse.
        """
        return not self.num_worse and sum(self.after) <= _MOST_LEFT * sum(self.before)

    def __str__(self) -> str:
        if not self.num_worse:
            share = 1 - sum(self.after) / sum(self.before)
            least = "" if self.is_better else f" (at least {percent(1 - _MOST_LEFT, 0)} is wanted)"
            gain = f"{percent(share, 0)} less off on that one than as built{least}"
            return f"what all loads but one say is {gain}"
        return (
            f"what all loads but one say is no better on that one than as built, of "
            f"{len(self.before)} loads for {self.num_worse}"
        )


@dataclass(frozen=True)
class Estimate:
    """A parameter after the fit, in its own unit."""

    name: str
    about: str
    start: float
    value: float
    low: float
    """Ends of the 95 % interval, from the Jacobian, the spread of the residuals, and the prior."""
    high: float
    is_told: bool  # whether the data narrow it beyond the prior
    at_bound: bool


@dataclass(frozen=True)
class RunFit:
    """A profile fitted to runs, with its errors and those of the start.

    It is the start profile if fits to all loads but one do not predict that one better.
    """

    profile: Profile
    estimates: list[Estimate]
    left_out: LeftOut | None  # None for a single load, which cannot be tested
    fitted: tuple[list[Prediction], list[Prediction]]
    """Predictions of the fitted rows, before and after."""
    held_out: tuple[list[Prediction], list[Prediction]]
    """Predictions of the other rows, before and after; empty if there are none."""
    spread: float  # of the residuals, as a share of `DEVIATIONS`
    num_evaluations: int

    @property
    def is_kept(self) -> bool:
        """Whether the profile is the fitted one, not the start."""
        return self.left_out is None or self.left_out.is_better

    def to_dict(self) -> dict[str, Any]:
        pairs = {"fitted": self.fitted, "held_out": self.held_out}
        return {
            "parameters": [asdict(each) for each in self.estimates],
            "left_out": self.left_out and asdict(self.left_out),
            "is_kept": self.is_kept,
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


def fit_runs(
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

    Bounded least squares of log errors, with a prior around the start. Then the residuals are
    weighted by their own spread and fitted again; parameters that the runs do not determine keep
    their values. Raises a SpecsimError if the profile is not composed, the runs are of several
    servers or not of the profile's, or a row lacks data or fitted metrics.

    Args:
        start: A profile such as `specsim profile build` makes.
        fitted, held_out: Runs of one server; repetitions of a run count together as one.
        metrics: The metrics of `DEVIATIONS` to fit.
        seed, spread, processes: See `Replayer`.
        on_progress: Called with the number of profiles that have been tried.
    """
    check_one_server([*fitted, *held_out])
    check_same([*fitted, *held_out], start)
    wrong = next((name for name in metrics if name not in DEVIATIONS), None)
    if wrong is not None:
        raise ConfigError(f"--metric {wrong}: must be one of {', '.join(DEVIATIONS)}")
    parameters = parameters_of(start, fitted)
    options: dict[str, Any] = {"seed": seed, "spread": spread, "processes": processes}
    with Replayer(fitted, **options) as replayer, Replayer(held_out, **options) as others:
        problem = Problem(start, parameters, replayer, metrics, on_progress)
        unseen_before = others.predict(start)
        best = solved(problem, np.ones(len(parameters), dtype=bool), ROUNDS)
        is_told = best.widths < UNTOLD
        if is_told.any() and not is_told.all():  # the others restart, these are refitted
            best = solved(problem, is_told, 1, best)
        best = best._replace(places=np.where(is_told, best.places, 0.0))
        columns = (each.tolist() for each in (best.places, best.widths, is_told))
        estimates = [_estimate(*each) for each in zip(parameters, *columns, strict=True)]
        check = left_out(problem, best, is_told)
        values = {each.path: one.value for each, one in zip(parameters, estimates, strict=True)}
        found = changed(start, values) if check is None or check.is_better else start
        return RunFit(
            profile=_with_provenance(found, estimates, fitted, held_out, check),
            estimates=estimates,
            left_out=check,
            fitted=(replayer.predict(start), replayer.predict(found)),
            held_out=(unseen_before, others.predict(found)),
            spread=best.spread,
            num_evaluations=problem.num_evaluations,
        )


def check_one_server(runs: Runs) -> None:
    """Raise unless all runs are of one server, and draft with one model.

    A ConfigError if there is no run; else it names the first row that differs, and its difference.
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


def _estimate(each: Parameter, place: float, width: float, is_told: bool) -> Estimate:
    low, high = (each.value(place + sign * _WIDTH_95 * width) for sign in (-1, 1))
    nearest = min(each.bounds, key=lambda bound: abs(bound - place))
    at_bound = is_told and abs(nearest - place) < _AT_BOUND
    value = float(f"{each.value(nearest if at_bound else place):.4g}") if is_told else each.start
    return Estimate(each.name, each.about, each.start, value, low, high, is_told, at_bound)


def _with_provenance(
    profile: Profile, fit: Sequence[Estimate], fitted: Runs, held_out: Runs, check: LeftOut | None
) -> Profile:
    """Return a fitted profile with its provenance, or the reason why it is as built."""
    known, run = profile.provenance, fitted[0]
    files = ", ".join(dict.fromkeys(str(each.path.name) for each in fitted))
    lens = ", ".join(map(str, sorted({each.num_speculative_tokens for each in fitted})))
    rows = f"{len(fitted)} rows of {files} (k = {lens}), {len(held_out)} held out"
    if check is not None and not check.is_better:
        notes = f"{known.notes} Not fitted to {rows}: {check}."
        return changed(profile, {("provenance", "notes"): notes})
    server = " ".join(filter(None, (run.cells.get("engine", ""), run.cells.get("engine_version"))))
    told = ", ".join(f"{each.name} {each.value:.4g}" for each in fit if each.is_told)
    untold = ", ".join(each.name for each in fit if not each.is_told)
    parts = [
        known.notes.replace(NOT_MEASURED, "").strip(),
        f"Fitted by `specsim profile fit` to {rows}: {told or 'nothing told'}.",
        f"The runs do not tell {untold}." if untold else "",
        f"Checked: {check}." if check else "A single load: nothing says that others gain.",
    ]
    update = {
        "engine": f"{known.engine}; fitted to runs of {server}" if server else known.engine,
        "source": f"{known.source}; fitted to {len(fitted)} rows of {files}",
        "date": date.today().isoformat(),
        "notes": " ".join(filter(None, parts)),
        "status": None,
        "stated_error": None,
    }
    contexts = [run.mean_context for run in fitted]
    values: dict[tuple[str, ...], Any] = {
        ("provenance", name): text for name, text in update.items()
    }
    values["valid_range", "context_lens"] = (min(contexts), max(contexts))
    return changed(profile, values)


def solved(
    problem: Problem, is_free: Flags, rounds: int, start: Solution | None = None
) -> Solution:
    """Return the best places of the free parameters; the others stay at the start."""
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
    """Leave out each load in turn; None if there is only one.

    Near the solution errors are linear, so a single step gives the fit to the other loads.
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
    """Return the place of the least sum of errors, of a given spread, and prior.

    Gauss-Newton within bounds: each step solves the linear problem exactly, and two or three
    suffice; steps of `scipy.optimize.least_squares` shrink where many times are at their bound of
    0.
    """
    from scipy.optimize import lsq_linear

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
    """Return the covariance of the parameters in units of the prior, which is included."""
    information = slopes.T @ slopes / spread**2 + np.eye(slopes.shape[1])
    return np.asarray(np.linalg.inv(information), dtype=np.float64)
