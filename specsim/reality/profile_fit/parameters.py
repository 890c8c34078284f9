"""What a fit to measured runs may change in a composed profile, and what is believed beforehand."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from specsim.core.errors import ConfigError, ProfileError
from specsim.core.settings import load_mapping
from specsim.latency.composed import Composed
from specsim.profile import DraftCost, Profile
from specsim.reality.validation.measured_run import MeasuredRun


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


class _Kind(NamedTuple):
    about: str
    scale: float
    lowest: float
    highest: float


_FACTORS, _TIMES, _OF_DRAFTS = (
    {name: _Kind(*row) for name, row in rows.items()}
    for rows in load_mapping(Path(__file__).with_name("parameters.yaml"), ConfigError).values()
)


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
    return list(_parameters(profile, runs))


def _parameters(profile: Profile, runs: Sequence[MeasuredRun]) -> Iterator[Parameter]:
    speculating = [run for run in runs if run.num_speculative_tokens]
    assert isinstance(profile.target, Composed)
    has_experts = len(set(profile.target.read_us)) > 1
    untold = {"verify_factor": not speculating, "expert_factor": not has_experts}
    for name, kind in _FACTORS.items():
        if not untold.get(name):
            yield _parameter(profile.target, ("target", name), kind, is_factor=True)
    for name, kind in _TIMES.items():
        if name != "fixed_us":
            yield _parameter(profile.overhead, ("overhead", name), kind)
        elif len(speculating) < len(runs):
            yield _parameter(profile.target, ("target", name), kind)
    for method, run in {run.method: run for run in speculating}.items():
        cost = profile.drafts.get(method)
        if cost is None:
            raise ProfileError(
                f"{run.place}: method = '{method}', but --start has no cost of it (it has: "
                f"{', '.join(profile.drafts) or 'none'}); build it with --draft {method}=MODEL"
            )
        yield from _of_drafter(cost, method)


def _of_drafter(cost: DraftCost, method: str) -> Iterator[Parameter]:
    for name, kind in _OF_DRAFTS.items():
        path = name.split(".")
        part = cost if len(path) == 1 else cost.latency
        if hasattr(part, path[-1]):
            yield _parameter(part, ("drafts", method, *path), kind, may_be_far=True)


def _parameter(part: Any, path: tuple[str, ...], kind: _Kind, **options: bool) -> Parameter:
    start = float(getattr(part, path[-1]))
    lowest, highest = min(kind.lowest, start), max(kind.highest, start)
    return Parameter(path, kind.about, start, kind.scale, lowest, highest, **options)


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
