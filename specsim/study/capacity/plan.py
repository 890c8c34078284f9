"""Capacity: what each hardware and policy sustains, what that costs, and which to take."""

from collections.abc import Generator, Iterable
from dataclasses import dataclass, field
from functools import cached_property
from math import ceil

from specsim.policies import Policy
from specsim.results.slo import Slo
from specsim.run.experiment import Experiment
from specsim.study.capacity.hardware import Hardware
from specsim.study.capacity.prices import Prices
from specsim.study.capacity.probe import Probe
from specsim.study.capacity.search import Bracket, largest_sustained

__all__ = ["Capacity", "Choices", "Found", "Goal", "explore", "pareto_front"]

_SHARES = (0.25, 0.5, 0.75)
"""Of the capacity: where else latency and cost are looked at."""


@dataclass(frozen=True)
class Goal:
    """What is asked for."""

    slo: Slo
    attainment: float
    """Share of the requests that must keep all limits."""
    tolerance: float
    """Ratio, less 1, of the loads between which the capacity is known to lie."""
    is_closed: bool
    """Whether the load is a number of clients, not a rate."""
    target_rate: float | None
    """Requests per second to buy GPUs for; None if there is no such number."""
    replications: int
    """Runs of each load; run i has the seed of the experiment plus i, and all loads, policies and
    hardware meet the same requests."""
    num_requests: int
    """Of each run."""


@dataclass(frozen=True)
class Choices:
    """What there is to choose from."""

    hardware: list[Hardware]
    policies: dict[str, Policy]
    """By label."""
    prices: Prices


@dataclass(frozen=True)
class Offer:
    """A load on one replica, with what it costs."""

    hardware: str
    policy: str
    probe: Probe
    rate: float
    """Requests per second."""
    gpu_hours: float
    """Per million output tokens."""
    cost: float | None
    """Per million output tokens; None where no price is known."""


@dataclass(frozen=True)
class Found:
    """What one hardware sustains under one policy."""

    hardware: Hardware
    policy: str
    bracket: Bracket
    probes: list[Probe]
    """All loads that were tried, rising."""
    price: float | None
    """Per GPU and hour."""
    goal: Goal

    @cached_property
    def at_capacity(self) -> Probe | None:
        """The largest sustained load; None if there is none."""
        return next((p for p in self.probes if p.load == self.bracket.sustained), None)

    @property
    def is_limited_by_length(self) -> bool:
        """Whether the smallest load that was not sustained failed by too short a run alone."""
        at_limit = next((p for p in self.probes if p.load == self.bracket.exceeded), None)
        if at_limit is None or at_limit.is_unstable:
            return False
        return at_limit.is_too_short and at_limit.attainment >= self.goal.attainment

    @property
    def rate(self) -> float | None:
        """Requests per second that one replica sustains; None if it sustains no load."""
        if self.at_capacity is None:
            return None
        return self.rate_of(self.at_capacity)

    def rate_of(self, probe: Probe) -> float:
        """Return the requests per second of a load."""
        return probe.requests_per_second if self.goal.is_closed else probe.load

    def offer(self, probe: Probe) -> Offer:
        """Return what a load costs."""
        tokens_per_hour = self.rate_of(probe) * probe.mean_output_len * 3600
        gpu_hours = self.hardware.gpus_per_replica * 1e6 / tokens_per_hour
        cost = None if self.price is None else gpu_hours * self.price
        return Offer(self.hardware.label, self.policy, probe, self.rate_of(probe), gpu_hours, cost)

    @property
    def offers(self) -> list[Offer]:
        """The capacity and loads well below it, with what they cost."""
        highest = max(_SHARES) * (self.bracket.sustained or 0.0)
        return [
            self.offer(probe)
            for probe in self.probes
            if probe is self.at_capacity
            or (probe.load <= highest and probe.is_sustained(self.goal.attainment))
        ]

    @property
    def replicas(self) -> int | None:
        """Replicas for the target rate; None without one, or if no load is sustained."""
        if self.goal.target_rate is None or self.rate is None:
            return None
        return ceil(self.goal.target_rate / self.rate)

    @property
    def cost_per_hour(self) -> float | None:
        """Of the replicas for the target rate."""
        if self.replicas is None or self.price is None:
            return None
        return self.replicas * self.hardware.gpus_per_replica * self.price

    @property
    def cost_at_target(self) -> float | None:
        """Per million output tokens, with the replicas for the target rate."""
        if self.cost_per_hour is None or self.at_capacity is None or not self.goal.target_rate:
            return None
        tokens_per_hour = self.goal.target_rate * self.at_capacity.mean_output_len * 3600
        return self.cost_per_hour * 1e6 / tokens_per_hour


@dataclass(frozen=True)
class Capacity:
    """The answer."""

    experiment: Experiment
    goal: Goal
    prices: Prices
    found: list[Found]
    notes: list[str] = field(default_factory=list)
    """What a user should know before believing the numbers."""

    @cached_property
    def front(self) -> list[Offer]:
        """The loads than which none is both cheaper and faster, by rising cost."""
        return pareto_front(offer for each in self.found for offer in each.offers)


def pareto_front(offers: Iterable[Offer]) -> list[Offer]:
    """Return the offers than which none is both cheaper and of lower mean end-to-end latency.

    Args:
        offers: Those without a price are left out.

    Returns:
        By rising cost, and so by falling latency.
    """
    priced = [(offer.cost, _latency(offer), offer) for offer in offers if offer.cost is not None]
    front: list[Offer] = []
    for _, latency, offer in sorted(priced, key=lambda each: each[:2]):
        if not front or latency < _latency(front[-1]):
            front.append(offer)
    return front


def _latency(offer: Offer) -> float:
    return offer.probe.latencies_ms["mean_e2el_ms"]


Exploration = Generator[float, Probe, tuple[Bracket, list[Probe]]]


def explore(start: float, goal: Goal) -> Exploration:
    """Look for the capacity of one replica, and at some loads below it.

    Args:
        start: A load near saturation.

    Yields:
        A load to try; to be answered by its probe.

    Returns:
        Bracket
        list of Probe: All loads that were tried, rising.
    """
    probes: dict[float, Probe] = {}
    search = largest_sustained(start, goal.tolerance, is_whole=goal.is_closed)
    load = next(search)
    while True:
        probes[load] = yield load
        try:
            load = search.send(probes[load].is_sustained(goal.attainment))
        except StopIteration as stop:
            bracket: Bracket = stop.value
            break
    for share in _SHARES if bracket.sustained else ():
        load = share * (bracket.sustained or 0.0)
        if goal.is_closed:
            load = float(max(1, round(load)))
        if load not in probes:
            probes[load] = yield load
    return bracket, [probes[load] for load in sorted(probes)]
