"""What a fit to measured runs may change in a composed profile, and how far off runs then are."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specsim.core.errors import ConfigError, ProfileError
from specsim.core.settings import load_mapping
from specsim.latency.composed import Composed
from specsim.profile import Profile
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
_ONE_TIME = frozenset({"output_tok_s", f"{OF_TOKENS}_mean_ms", "e2e_mean_ms"})
"""What tells the same of a closed loop, and so counts together as one."""


@dataclass(frozen=True)
class Parameter:
    """A number in a profile, as the fit sees it: in standard deviations of the prior.

    The prior is normal around the value that the profile starts with: of a factor in its logarithm,
    of a time in its own unit, of drafting's times the farther off the wider.
    """

    path: tuple[str, ...]
    about: str
    start: float
    scale: float  # standard deviation of the prior
    lowest: float
    highest: float
    is_factor: bool = False
    may_be_far: bool = False
    """Whether the prior has long tails: the place is that of the inverse hyperbolic sine."""

    @property
    def name(self) -> str:
        return ".".join(self.path)

    def value(self, place: float) -> float:
        """Return the value so many standard deviations from the start."""
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
    """Return what some runs may change in a profile.

    What only runs with drafts can tell is left alone if there is none; so is, without a run that
    does not draft, the host time of each pass, which only such a run tells from that of drafting. A
    ProfileError if the profile is not composed, or does not know a drafter of the runs.
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
    """Return a profile with other values, by their paths; each is checked as in a file."""
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
    """Return what repetitions of a run have in common; lengths and acceptance differ a little."""
    context = round(math.log(run.mean_context, _ALIKE))
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
        keys, loads = replayer.keys, [_load_of(run) for run in replayer.runs]
        rows = list(zip(replayer.runs, keys, map(loads.index, loads), strict=True))
        told = [(name, row) for name in metrics for row in rows if measured_of(row[0], name)]
        self.loads = [load for _, (_, _, load) in told]
        """Number of the load that each error is of; repetitions are of one load."""
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

    def _told_as_often(self, metric: str, run: MeasuredRun) -> int:
        """Return how many metrics of a run tell what this one does."""
        alike = _ONE_TIME & set(self._metrics) if metric in _ONE_TIME else {metric}
        return sum(bool(measured_of(run, each)) for each in alike)
