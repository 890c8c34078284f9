"""How far profiles composed of kernels have been off, by what a step consists of.

It is a statement over servers, since a server's loads are off alike: of 27 that were measured, each
by what others were off by, 22 were within in the median of their loads (experiments/model-error).
"""

from collections.abc import Mapping
from itertools import chain
from math import hypot, log
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeGuard

from specsim.core.errors import ConfigError
from specsim.core.settings import load_mapping
from specsim.core.step import StepLoad
from specsim.profile.costs import DraftCost, StepCosts
from specsim.profile.profile import NOT_MEASURED, Profile
from specsim.profile.step_time import NO_BLOCK, BlockPass

if TYPE_CHECKING:
    from specsim.latency.composed import Composed

_FACTORS = {
    "compute": ("compute_factor",),
    "memory": ("read_factor", "expert_factor"),
    "attention": ("prompt_factor", "decode_factor"),
}
_HOST_US = 100.0
TERMS = (*_FACTORS, "host", "drafting")
"""What can be off: computing, reading weights, attention, host time of a step, drafting."""
QUANTILE = 1.2816
"""Spreads on each side of an interval: it held what four in five servers were typically off by."""
_STEP = 0.05
_LARGER = 2  # steps, and as much smaller ones, to find how times grow: they go up stairs
_MOST_SLOPE = 0.9  # at 1 the server is saturated, and its latency says nothing


class Spreads(NamedTuple):
    """Standard deviations over servers, scaled to what `QUANTILE` says."""

    terms: Mapping[str, float]  # of the logarithm of each factor; of host time in units of 0.1 ms
    rest: float  # of the logarithm of a row's time, once all terms are known


def known_spreads() -> Spreads:
    """Return what was measured."""
    found = _measured()
    return Spreads(found["terms"], found["rest"])


def inside_of(engine: str) -> tuple[int, int]:
    """Return how many servers of another engine were within these spreads, and of how many."""
    found = _measured()["others"][engine]
    return found["inside"], found["servers"]


def _measured() -> dict[str, Any]:
    return load_mapping(Path(__file__).with_name("model_errors.yaml"), ConfigError)


def moved(profile: Profile, term: str, size: float) -> Profile:
    """Return a composed profile with one of `TERMS` moved by so many of its units."""
    target = profile.target
    assert _is_composed(target)
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


def _is_composed(latency: Any) -> "TypeGuard[Composed]":
    return getattr(latency, "kind", None) == "composed"


def _slower(latency: Any, factor: float) -> Any:
    if not _is_composed(latency):
        return latency
    names = (*chain(*_FACTORS.values()), "fixed_us")
    head = latency.head.model_copy(
        update={"times_us": tuple(factor * each for each in latency.head.times_us)}
    )
    return _scaled(latency, names, factor).model_copy(update={"head": head})


def _scaled(part: "Composed", names: tuple[str, ...], factor: float) -> "Composed":
    return part.model_copy(update={name: factor * getattr(part, name) for name in names})


class UsualStep(NamedTuple):
    """A step of a run on average; it stands for all of them."""

    load: StepLoad  # drafts included
    context_len: float  # of a sequence, mean over the requests
    drafters: tuple[str, ...]  # names of their costs in the profile; empty: nobody drafts
    draft_len: int
    is_open: bool  # whether requests arrive whatever the server does: slower steps are larger, too
    block: BlockPass = NO_BLOCK
    own_cost: DraftCost | None = None  # of a drafter on GPUs of its own, which no profile has
    overlaps: bool = False  # whether that one drafts while the target verifies
    is_async: bool = True  # whether the engine's own time passes while the GPU is at work

    def priced(self, profile: Profile) -> Profile:
        """Return a profile with the cost of a drafter on GPUs of its own."""
        if self.own_cost is None:
            return profile
        own = dict.fromkeys(self.drafters, self.own_cost)
        return profile.model_copy(update={"drafts": {**profile.drafts, **own}})

    def time(self, profile: Profile, size: float = 1.0) -> float:
        """Return what it takes by a profile, so many times as large; seconds.

        What the host takes to launch steps with prompts is left out: an average step has a few of
        their tokens, most steps have none, and would answer to nothing else.
        """
        context, batched, count, prompts = (round(size * each) for each in self.load[:4])
        load = StepLoad(context, max(batched, 1), max(count, 1), prompts)
        drafts = tuple(filter(None, map(profile.draft_cost, self.drafters)))
        target = profile.target
        if _is_composed(target) and target.prompts_at_least_us:
            target = target.model_copy(update={"prompts_at_least_us": 0.0})
        costs = StepCosts(
            target,
            drafts,
            profile.overhead.of_engine(is_async=self.is_async),
            overlaps=self.overlaps,
            hides_overhead=self.is_async,
            block=self.block,
        )
        return costs.step_time(load, self.draft_len)

    def growth(self, profile: Profile) -> float:
        """Return by how much time grows in all with what makes a step of the same size slower.

        Where requests arrive at a rate, the size of a step is in proportion to its time (Little
        1961, "A proof for the queuing formula L = lambda W"), and the time grows with the size.
        """
        if not self.is_open:
            return 1.0
        smaller, larger = (self.time(profile, size) for size in (1 / _LARGER, _LARGER))
        slope = log(larger / smaller) / (2 * log(_LARGER))
        return 1 / (1 - min(max(slope, 0.0), _MOST_SLOPE))


class TimeError(NamedTuple):
    """Standard deviations of the logarithm of how far a run's times are off."""

    terms: tuple[float, ...]
    """By each of `TERMS`, with its sign: the same for all runs by one profile."""
    rest: float  # of each run by itself

    @property
    def spread(self) -> float:
        return hypot(*self.terms, self.rest)

    def spread_against(self, other: "TimeError") -> float:
        """Return that of the ratio of two runs by one profile; 0 where their steps are alike."""
        if self == other:
            return 0.0
        terms = (mine - theirs for mine, theirs in zip(self.terms, other.terms, strict=True))
        return hypot(*terms, self.rest, other.rest)


def answers_of(profile: Profile, step: UsualStep) -> tuple[float, ...]:
    """Return by how much a step's time answers to each of `TERMS`: derivatives of its logarithm."""
    usual = step.time(profile)
    return tuple(log(step.time(moved(profile, term, _STEP)) / usual) / _STEP for term in TERMS)


def time_error(profile: Profile, step: UsualStep) -> TimeError | None:
    """Return how far times of runs are off whose steps are like one; None where nobody knows.

    Of a composed profile that was fitted to runs, what is left once the terms are known, and
    nothing at contexts that those runs did not have. It is linear in the terms.
    """
    is_known = profile.valid_range.is_known(step.context_len)
    if not (_is_composed(profile.target) and is_known):
        return None
    profile = step.priced(profile)
    spreads, growth = known_spreads(), step.growth(profile)
    if NOT_MEASURED not in profile.provenance.notes:
        return TimeError((0.0,) * len(TERMS), growth * spreads.rest)
    pairs = zip(answers_of(profile, step), TERMS, strict=True)
    terms = tuple(growth * answer * spreads.terms[term] for answer, term in pairs)
    return TimeError(terms, growth * spreads.rest)
