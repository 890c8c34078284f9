"""Findings: what each hardware and policy sustains, what that costs, and which to choose.

``capacity.json`` is written and read by one model, `CapacityDocument`.
"""

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from functools import cached_property
from math import exp, inf, log
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
from pydantic import BaseModel, SerializerFunctionWrapHandler, model_serializer, model_validator

from specsim.core.atomic import new_folder
from specsim.core.settings import Settings
from specsim.profile.model_error import QUANTILE, time_error
from specsim.results.folder import write_groups, write_json
from specsim.results.stability import Stability
from specsim.run.experiment import Experiment
from specsim.study.capacity.choices import Goal, Hardware, Prices
from specsim.study.capacity.limits import LatencyLimits
from specsim.study.capacity.probe import Interval, LoadProbe
from specsim.study.capacity.search import Answer


class _WithLatencies(BaseModel):
    """Base of models whose `latencies_ms` are written as fields beside the others."""

    model_config = Settings.model_config

    @model_validator(mode="before")
    @classmethod
    def _gather(cls, data: Any) -> Any:
        if not isinstance(data, dict) or "latencies_ms" in data:
            return data
        latencies = {name: value for name, value in data.items() if name.endswith("_ms")}
        others = {name: value for name, value in data.items() if name not in latencies}
        return {**others, "latencies_ms": latencies}

    @model_serializer(mode="wrap")
    def _spread(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name, value in dump(self).items():
            found |= value if name == "latencies_ms" else {name: value}
        return found


class TriedLoad(_WithLatencies):
    """A load that was simulated on one hardware under one policy."""

    hardware: str
    policy: str
    load: float  # requests/s or clients
    requests_per_second: float
    is_sustained: bool
    keeps_limits: bool  # whether enough requests keep the limits
    stability: Stability
    num_requests: int
    replications: int
    attainment: float
    mean_output_len: float
    beyond_valid_range: float  # share of the steps beyond the profile's valid range
    latencies_ms: dict[str, float]
    """Per limit the percentile that is compared with it, and other statistics: ``p90_ttft_ms``."""
    gpu_hours_per_million_tokens: float
    """GPU hours per million output tokens."""
    cost_per_million_tokens: float | None
    """Cost per million output tokens; None without a price."""
    cost_per_million_tokens_at_target: float | None
    """The same if whole replicas, each at this load at most, serve the target rate; None without
    one."""

    @property
    def mean_e2el_ms(self) -> float:
        return self.latencies_ms["mean_e2el_ms"]

    @property
    def compared_cost(self) -> float | None:
        """The cost by which loads are compared: at the target rate if there is one."""
        at_target = self.cost_per_million_tokens_at_target
        return self.cost_per_million_tokens if at_target is None else at_target


class Sustained(_WithLatencies):
    """What one hardware sustains under one policy; if no load, without the fields of a load."""

    hardware: str
    gpu: str
    gpus_per_replica: int
    is_measured: bool
    step_times: str
    policy: str
    sustained: float | None
    exceeded: float | None
    requests_per_second: float | None
    requests_per_second_interval: tuple[float, float] | None
    requests_per_second_model_interval: tuple[float, float] | None
    is_settled: bool
    longest_runs: int
    binds: str | None
    resource: str | None
    margins: dict[str, float]
    attainment: float | None = None
    mean_output_len: float | None = None
    beyond_valid_range: float | None = None
    latencies_ms: dict[str, float]
    gpu_hours_per_million_tokens: float | None = None
    cost_per_million_tokens: float | None = None
    cost_per_million_tokens_at_target: float | None = None
    replicas: int | None
    replicas_interval: tuple[int, int] | None
    cost_per_hour: float | None
    cost_per_hour_interval: tuple[float, float] | None
    probes: list[TriedLoad]


class BestLoad(Settings):
    """A load on the Pareto front."""

    hardware: str
    policy: str
    load: float
    requests_per_second: float
    mean_e2el_ms: float
    gpu_hours_per_million_tokens: float
    cost_per_million_tokens: float | None
    cost_per_million_tokens_at_target: float | None


class Leader(Settings):
    """One of the best hardware and policies."""

    hardware: str
    policy: str
    value: float


class Leaders(Settings):
    """The best hardware and policies, as far as intervals tell them apart."""

    is_shown: bool  # whether a single one is best
    leaders: list[Leader]


class CapacityDocument(Settings):
    """The content of ``capacity.json``."""

    config_hash: str
    seed: int
    specsim_version: str
    slo: dict[str, float]
    limit_shares: dict[str, float]
    drive: Literal["rate", "concurrency"]
    attainment: float
    tolerance: float
    target_rate: float | None
    replications: int
    num_requests: int
    max_requests: int | None
    spare_replicas: int = 0
    prices: Prices
    experiment: dict[str, Any]
    results: list[Sustained]
    pareto_front: list[BestLoad]
    most: Leaders
    cheapest: Leaders
    notes: list[str]

    @property
    def limits(self) -> LatencyLimits:
        return LatencyLimits(self.slo, self.attainment, self.limit_shares)

    def to_dict(self) -> dict[str, Any]:
        return self.model_dump(mode="json", exclude_unset=True)


T = TypeVar("T")


@dataclass(frozen=True)
class Ranked:
    """One hardware and policy with the number by which it is ranked."""

    hardware: str
    policy: str
    value: float
    badness: float  # the value with its sign such that less is better
    between: tuple[float, float] | None
    """The 95 % interval of `badness`; None if not known."""


@dataclass(frozen=True)
class Ranking:
    """The best, and the others."""

    leaders: list[Ranked]
    """The best and all whose interval overlaps with that of the best, by rising badness."""
    others: list[Ranked]  # clearly worse ones

    @property
    def is_shown(self) -> bool:
        return len(self.leaders) == 1


def best(ranked: list[Ranked]) -> Ranking:
    """Return a ranking; intervals that overlap, or are not known, count as no difference."""
    rising = sorted(ranked, key=lambda each: each.badness)
    limit = rising[0].between[1] if rising and rising[0].between else inf
    worse = [each for each in rising if each.between is not None and each.between[0] > limit]
    return Ranking([each for each in rising if each not in worse], worse)


@dataclass(eq=False)
class Found:
    """What one hardware sustains under one policy, with costs and intervals."""

    hardware: Hardware
    policy: str
    answer: Answer
    goal: Goal
    is_bound: bool = False  # whether no server can run the policy
    mean_output_len: float | None = None
    """Tokens per request at the target rate, the same for all that are compared, because each run
    draws its own requests. None: as in the runs of each load."""

    def __post_init__(self) -> None:
        goal, between, load = self.goal, self.answer.interval, self.answer.bracket.sustained
        self.bracket, self.probes = self.answer.bracket, self.answer.probes
        self.at_capacity = self.answer.at(load)
        """The probe of the largest sustained load; None if there is none."""
        self.beyond_capacity = self.answer.at(self.bracket.exceeded)
        """The probe of the smallest load that was not sustained; None if there is none."""
        self.rate: float | None = None
        """Requests per second that one replica sustains; None if it sustains no load."""
        self.interval: Interval | None = None
        """The 95 % interval of `rate`, requests per second; None if not known."""
        self.replicas: int | None = None
        """Replicas for the target rate; None without one, or if no load is sustained."""
        self.price = goal.prices.per_gpu_of(self.hardware.gpus)
        """Price per GPU and hour; the mean if pools have different GPUs. None if not known."""
        self.at_target: LoadProbe | None = None
        """The probe of the load per replica at the target rate; None if it was not simulated."""
        if self.at_capacity is None or load is None:
            return
        self.rate = self.rate_of(self.at_capacity)
        # In a closed loop the rate follows from the clients, and grows no faster than they do.
        self.interval = between and between.times(self.rate / load)
        self.replicas = goal.replicas_for(self.rate)
        if goal.target_rate is not None and self.replicas is not None:
            self.at_target = self.answer.at(goal.target_rate / self.replicas)

    @property
    def name(self) -> str:
        return f"{self.hardware.label} {self.policy}"

    @property
    def is_limited_by_length(self) -> bool:
        """Whether the smallest load not sustained failed only because runs were too short."""
        return self.beyond_capacity is not None and self.beyond_capacity.is_undecided

    @property
    def is_unsettled(self) -> bool:
        """Whether runs grew to their limit before the answer stopped moving."""
        is_found = self.rate is not None and self.bracket.exceeded is not None
        may_grow = self.goal.max_requests is not None and not self.goal.is_rough
        return is_found and may_grow and not self.answer.is_settled

    @property
    def binds(self) -> str | None:
        """What is missed first beyond the capacity: ``ttft_ms`` and so on, or ``backlog``."""
        if self.beyond_capacity is None or self.is_limited_by_length:
            return None
        return self.beyond_capacity.binds

    @property
    def resource(self) -> str | None:
        return None if self.beyond_capacity is None else self.beyond_capacity.resource

    @property
    def margins(self) -> dict[str, float]:
        """Distance of each latency from its limit at the capacity, as a share of the limit."""
        return {} if self.at_capacity is None else self.at_capacity.margins(self.goal.slo)

    def rate_of(self, probe: LoadProbe) -> float:
        return probe.requests_per_second if self.goal.is_closed else probe.load

    def _replicas_at(self, rate: float) -> int | None:
        """Return the replicas for the target rate if each takes at most `rate` requests/s."""
        count = self.goal.replicas_for(rate)
        if count is None or self.replicas is None or rate > (self.rate or 0.0):
            return count
        # Spare replicas have their share of the load, too.
        return max(self.replicas, count - self.goal.spare_replicas)

    def tried(self, probe: LoadProbe) -> TriedLoad:
        """Return a probe as a load of one replica, with costs; at the target rate of whole ones."""
        rate, target = self.rate_of(probe), self.goal.target_rate
        tokens_per_hour = rate * probe.mean_output_len * 3600
        gpu_hours = self.hardware.gpus_per_replica * 1e6 / tokens_per_hour
        cost = None if self.price is None else gpu_hours * self.price
        hourly, at_target = self._cost_per_hour(self._replicas_at(rate) or 0), None
        if hourly is not None and target is not None:
            length = self.mean_output_len or probe.mean_output_len
            at_target = 1e6 * hourly / (target * length * 3600)
        percentile_of = self.goal.limits.percentile_of
        reached = {f"{percentile_of(name)}_{name}": ms for name, ms in probe.reached_ms.items()}
        return TriedLoad(
            hardware=self.hardware.label,
            policy=self.policy,
            load=probe.load,
            requests_per_second=rate,
            is_sustained=probe.is_sustained,
            keeps_limits=probe.keeps_promises,
            stability=probe.stability,
            num_requests=probe.num_requests,
            replications=len(probe.runs),
            attainment=probe.attainment,
            mean_output_len=probe.mean_output_len,
            beyond_valid_range=probe.beyond.share,
            latencies_ms=reached | probe.latencies_ms,
            gpu_hours_per_million_tokens=gpu_hours,
            cost_per_million_tokens=cost,
            cost_per_million_tokens_at_target=at_target,
        )

    @cached_property
    def loads(self) -> list[TriedLoad]:
        """Return all loads that were simulated, ascending."""
        return [self.tried(probe) for probe in self.probes]

    @property
    def offers(self) -> list[TriedLoad]:
        """The loads at which one may choose to run."""
        highest, most = max(self.goal.looked_at(self.bracket.sustained or 1.0)), self.at_capacity
        return [
            each
            for each in self.loads
            if (each.is_sustained and each.load <= highest) or (most and each.load == most.load)
        ]

    @property
    def replicas_interval(self) -> tuple[int, int] | None:
        """Fewest and most replicas for the target rate, by the interval of `rate`."""
        between = self.interval
        return None if between is None else self.goal.replicas_between(between.low, between.high)

    @cached_property
    def time_spread(self) -> float | None:
        """Standard deviation of the log of the error of step times; None if not known.

        See `specsim.profile.model_error`.
        """
        profiles = self.hardware.profiles
        if self.at_capacity is None or len(profiles) > 1:
            return None
        step = self.at_capacity.runs[0].usual_step
        if step is None:
            return None
        # `rate_if` accounts for the growth of latencies in an open loop
        found = time_error(profiles[0], step._replace(is_open=False))
        return None if found is None else found.spread

    @cached_property
    def model_interval(self) -> tuple[float, float] | None:
        """`rate` if step times are off as on four in five measured servers, either way."""
        spread = self.time_spread
        if spread is None or self.rate is None:
            return None
        low, high = (self.rate_if(exp(sign * QUANTILE * spread)) for sign in (1, -1))
        return low, high

    def rate_if(self, slower: float) -> float:
        """Return the rate that one replica sustains if all its steps take `slower` times as long.

        Units of time are free: that is the rate under limits `slower` times as strict, divided by
        `slower`; interpolated between the logarithms of the probes.
        """
        assert self.rate is not None
        stricter = self._rate_within(log(slower)) / self._rate_within(0.0)
        return self.rate * stricter / slower

    def _rate_within(self, stricter: float) -> float:
        """Return the rate that keeps all limits times exp(-`stricter`) without a growing queue."""
        keeping = [each for each in self.probes if not (each.is_overloaded or each.is_too_short)]
        rates = np.log([self.rate_of(each) for each in keeping])
        least = (min(each.margins(self.goal.slo).values()) for each in keeping)
        # The largest log(latency / limit) of each probe.
        misses = np.maximum.accumulate([log(max(1.0 - margin, 1e-9)) for margin in least])
        known = np.unique(misses)
        highest = rates[np.searchsorted(misses, known, side="right") - 1]
        found = float(np.interp(-stricter, known, highest))
        if -stricter < known[0] and len(known) > 1:  # extrapolate from the two lowest
            rise = (highest[1] - highest[0]) / (known[1] - known[0])
            found = float(highest[0] + max(rise, 0.0) * (-stricter - known[0]))
        return exp(found)

    def cost_if(self, factor: float) -> float | None:
        """Return the cost per hour for the target rate if capacity were `factor` times as high."""
        replicas = None if self.rate is None else self.goal.replicas_for(self.rate * factor)
        return None if replicas is None else self._cost_per_hour(replicas)

    @property
    def cost_per_hour(self) -> float | None:
        return self.cost_if(1.0)

    @property
    def cost_interval(self) -> tuple[float, float] | None:
        """Lowest and highest cost per hour for the target rate, by the interval of `rate`."""
        if self.replicas_interval is None:
            return None
        costs = [self._cost_per_hour(count) for count in self.replicas_interval]
        return None if costs[0] is None or costs[1] is None else (costs[0], costs[1])

    def _cost_per_hour(self, replicas: int) -> float | None:
        gpus = replicas * self.hardware.gpus_per_replica
        return None if self.price is None else gpus * self.price

    @property
    def cost_at_target(self) -> float | None:
        """Cost per million output tokens, with the replicas for the target rate."""
        most = self.at_capacity
        return None if most is None else self.tried(most).cost_per_million_tokens_at_target


def _cost_of(found: Found) -> tuple[float | None, tuple[float, float] | None]:
    """Return the cost per hour for the target rate, or else per million output tokens."""
    if found.goal.target_rate is not None:
        return found.cost_per_hour, found.cost_interval
    if found.at_capacity is None or found.rate is None:
        return None, None
    cost, between = found.tried(found.at_capacity).cost_per_million_tokens, found.interval
    if cost is None or between is None:
        return cost, None
    return cost, (cost * found.rate / between.high, cost * found.rate / between.low)


_TOLD = (
    "attainment", "tolerance", "target_rate", "replications", "num_requests", "max_requests",
    "spare_replicas",
)  # fmt: skip
"""Fields of the goal that are written."""


@dataclass(frozen=True)
class Capacity:
    """All findings of a capacity search, with the goal they answer."""

    experiment: Experiment
    goal: Goal
    found: list[Found]
    notes: list[str] = field(default_factory=list)
    """What to know before trusting the numbers."""

    @property
    def unit(self) -> str:
        """What is loaded and counted: a ``server``, or a ``unit`` of both pools."""
        return "server" if self.experiment.pools is None else "unit"

    @property
    def _for_rent(self) -> list[Found]:
        """The findings that may be ranked: all but bounds, unless there are only bounds."""
        return [each for each in self.found if not each.is_bound] or self.found

    @cached_property
    def most(self) -> Ranking:
        """Ranking by the requests per second of one server or unit."""
        ranked = []
        for f in self._for_rent:
            if f.rate is not None:
                turned = None if f.interval is None else (-f.interval.high, -f.interval.low)
                ranked.append(Ranked(f.hardware.label, f.policy, f.rate, -f.rate, turned))
        return best(ranked)

    @cached_property
    def cheapest(self) -> Ranking:
        """Ranking by the cost of the target rate, or at full load without a target rate."""
        costs = [(f, *_cost_of(f)) for f in self._for_rent]
        return best(
            [
                Ranked(f.hardware.label, f.policy, cost, cost, between)
                for f, cost, between in costs
                if cost is not None
            ]
        )

    @cached_property
    def front(self) -> list[TriedLoad]:
        """The loads that no other beats in both cost and mean latency, by rising cost."""
        return pareto_front(offer for each in self._for_rent for offer in each.offers)

    def to_dict(self) -> dict[str, Any]:
        goal = self.goal
        document = {
            **self.experiment.provenance,
            "slo": goal.slo.model_dump(exclude_none=True),
            "limit_shares": dict(goal.limit_shares),
            "drive": "concurrency" if goal.is_closed else "rate",
            **{name: getattr(goal, name) for name in _TOLD},
            "prices": goal.prices.model_dump(),
            "experiment": self.experiment.to_dict(),
            "results": [_result(found) for found in self.found],
            "pareto_front": self.front,
            "most": self.most,
            "cheapest": self.cheapest,
            "notes": self.notes,
        }
        return CapacityDocument.model_validate(document, from_attributes=True).to_dict()

    def save(self, folder: Path | str) -> None:
        """Write ``capacity.json``, and ``capacity.parquet`` with one row per simulated load.

        Raises a ConfigError if the folder cannot be written to.
        """
        on_front = set(map(id, self.front))
        rows = [
            {**each.model_dump(), "on_front": id(each) in on_front}
            for found in self.found
            for each in found.loads
        ]
        columns = {name: np.array([row[name] for row in rows]) for name in rows[0]}
        with new_folder(Path(folder), ["capacity.json", "capacity.parquet"]) as unfinished:
            write_json(self.to_dict(), unfinished / "capacity.json")
            provenance = self.experiment.provenance
            write_groups([columns], provenance, unfinished / "capacity.parquet")


def pareto_front(offers: Iterable[TriedLoad]) -> list[TriedLoad]:
    """Return the loads with a price that no other beats in price and mean latency, by price."""
    priced = [offer for offer in offers if offer.compared_cost is not None]
    return lower_front(priced, lambda each: (each.compared_cost or 0.0, each.mean_e2el_ms))


def lower_front(items: Iterable[T], numbers: Callable[[T], tuple[float, float]]) -> list[T]:
    """Return the items that no other beats in both of two numbers, by the first number."""
    front, lowest = list[T](), inf
    for item in sorted(items, key=numbers):
        if numbers(item)[1] < lowest:
            front.append(item)
            lowest = numbers(item)[1]
    return front


_OF_A_LOAD = {"load", "is_sustained", "keeps_limits", "stability", "num_requests", "replications"}
"""Fields of a simulated load that are not repeated for the largest sustained load."""


def _result(found: Found) -> dict[str, Any]:
    most, between = found.at_capacity, found.interval
    return {
        **({} if most is None else found.tried(most).model_dump(exclude=_OF_A_LOAD)),
        "hardware": found.hardware.label,
        "gpu": " + ".join(found.hardware.gpus),
        "gpus_per_replica": found.hardware.gpus_per_replica,
        "is_measured": found.hardware.is_measured,
        "step_times": found.hardware.step_times,
        "policy": found.policy,
        **asdict(found.bracket),
        "requests_per_second": found.rate,
        "requests_per_second_interval": between and (between.low, between.high),
        "requests_per_second_model_interval": found.model_interval,
        "is_settled": found.answer.is_settled,
        "longest_runs": found.answer.num_requests,
        "binds": found.binds,
        "resource": found.resource,
        "margins": found.margins,
        "replicas": found.replicas,
        "replicas_interval": found.replicas_interval,
        "cost_per_hour": found.cost_per_hour,
        "cost_per_hour_interval": found.cost_interval,
        "probes": found.loads,
    }
