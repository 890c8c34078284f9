"""How far profiles composed of kernels have been off, by what a step consists of.

The spreads are those of servers that were measured: experiments/model-error.
"""

from collections.abc import Mapping
from math import log, sqrt
from pathlib import Path
from typing import Any, NamedTuple

from specsim.core.errors import ConfigError
from specsim.core.settings import load_mapping
from specsim.core.step import StepLoad
from specsim.latency.composed import Composed
from specsim.profile.profile import NOT_MEASURED, Profile, StepCosts

_FACTORS = {
    "compute": ("compute_factor", "prompt_factor"),
    "memory": ("read_factor", "expert_factor", "decode_factor"),
}
_HOST_US = 100.0
TERMS = (*_FACTORS, "host", "drafting")
"""What can be off: computing, reading memory, host time of a step, drafting."""
QUANTILE = 1.2816
"""Standard deviations on each side of an interval of 80 %."""
_STEP = 0.05


class Spreads(NamedTuple):
    """Standard deviations over servers."""

    terms: Mapping[str, float]
    """Of the logarithm of each factor; of host time in units of 0.1 ms."""
    rest: float  # of the logarithm of a row's time, once all terms are known


def known_spreads() -> Spreads:
    """Return what was measured."""
    found = load_mapping(Path(__file__).with_name("model_errors.yaml"), ConfigError)
    return Spreads(found["terms"], found["rest"])


def moved(profile: Profile, term: str, size: float) -> Profile:
    """Return a composed profile with one of `TERMS` moved by so many of its units."""
    target = profile.target
    assert isinstance(target, Composed)
    drafts = profile.drafts
    if term == "host":
        target = target.model_copy(update={"fixed_us": max(0.0, target.fixed_us + size * _HOST_US)})
    elif term == "drafting":
        target = _scaled(target, ("verify_factor",), 1 + size)
        drafts = {
            name: each.model_copy(update={"latency": _slower(each.latency, 1 + size)})
            for name, each in drafts.items()
        }
    else:
        target = _scaled(target, _FACTORS[term], 1 + size)
    return profile.model_copy(update={"target": target, "drafts": drafts})


def _slower(latency: Any, factor: float) -> Any:
    if not isinstance(latency, Composed):
        return latency
    names = (*_FACTORS["compute"], *_FACTORS["memory"], "fixed_us")
    head = latency.head.model_copy(
        update={"times_us": tuple(factor * each for each in latency.head.times_us)}
    )
    return _scaled(latency, names, factor).model_copy(update={"head": head})


def _scaled(part: Composed, names: tuple[str, ...], factor: float) -> Composed:
    return part.model_copy(update={name: factor * getattr(part, name) for name in names})


def time_spread(profile: Profile, load: StepLoad, drafter: str | None, k: int) -> float | None:
    """Return the standard deviation of the logarithm of a step's time; None where nobody knows.

    Of a composed profile that was fitted to runs, what is left once the terms are known.

    Args:
        load: Of the step, drafts included; it stands for those of a run.
        drafter: Who drafts `k` tokens for each sequence; None for nobody.
    """
    if not isinstance(profile.target, Composed):
        return None
    spreads = known_spreads()
    if NOT_MEASURED not in profile.provenance.notes:
        return spreads.rest

    def time_of(changed: Profile) -> float:
        drafts = () if drafter is None else (changed.drafts[drafter],)
        return StepCosts(changed.target, drafts, changed.overhead).step_time(load, k)

    usual = time_of(profile)
    answers = {term: log(time_of(moved(profile, term, _STEP)) / usual) / _STEP for term in TERMS}
    squares = sum((answers[term] * spreads.terms[term]) ** 2 for term in TERMS)
    return sqrt(squares + spreads.rest**2)
