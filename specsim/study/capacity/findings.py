"""Findings: what each hardware and policy sustains, what that costs, and which to take."""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from functools import cached_property
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np

from specsim.core.version import __version__
from specsim.results.export import write_parquet
from specsim.run.experiment import Experiment
from specsim.study.capacity.choices import Goal, Hardware, Prices
from specsim.study.capacity.search import SHARES, Bracket, LoadProbe


@dataclass(frozen=True)
class Offer:
    """A load on one replica, with what it costs."""

    hardware: str
    policy: str
    probe: LoadProbe
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
    probes: list[LoadProbe]
    """All loads that were tried, rising."""
    price: float | None
    """Per GPU and hour."""
    goal: Goal

    @cached_property
    def at_capacity(self) -> LoadProbe | None:
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

    def rate_of(self, probe: LoadProbe) -> float:
        """Return the requests per second of a load."""
        return probe.requests_per_second if self.goal.is_closed else probe.load

    def offer(self, probe: LoadProbe) -> Offer:
        """Return what a load costs."""
        tokens_per_hour = self.rate_of(probe) * probe.mean_output_len * 3600
        gpu_hours = self.hardware.gpus_per_replica * 1e6 / tokens_per_hour
        cost = None if self.price is None else gpu_hours * self.price
        return Offer(self.hardware.label, self.policy, probe, self.rate_of(probe), gpu_hours, cost)

    @property
    def offers(self) -> list[Offer]:
        """The capacity and loads well below it, with what they cost."""
        highest = max(SHARES) * (self.bracket.sustained or 0.0)
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

    def to_dict(self) -> dict[str, Any]:
        """Return the answer as plain values, with its provenance."""
        goal = self.goal
        return {
            **self._provenance,
            "slo": goal.slo.model_dump(exclude_none=True),
            "attainment": goal.attainment,
            "drive": "concurrency" if goal.is_closed else "rate",
            "tolerance": goal.tolerance,
            "target_rate": goal.target_rate,
            "replications": goal.replications,
            "num_requests": goal.num_requests,
            "prices": self.prices.model_dump(),
            "experiment": self.experiment.to_dict(),
            "results": [_result(found) for found in self.found],
            "pareto_front": [_offer(offer) for offer in self.front],
            "notes": self.notes,
        }

    def save(self, folder: Path) -> None:
        """Write ``capacity.json``, and ``capacity.parquet`` with a row per load that was tried."""
        text = json.dumps(self.to_dict(), indent=1, allow_nan=False) + "\n"
        (folder / "capacity.json").write_text(text, encoding="utf-8")
        on_front = {id(offer.probe) for offer in self.front}
        rows = [
            {**_row(found, probe), "on_front": id(probe) in on_front}
            for found in self.found
            for probe in found.probes
        ]
        columns = {name: np.array([row[name] for row in rows]) for name in rows[0]}
        write_parquet(columns, self._provenance, folder / "capacity.parquet")

    @property
    def _provenance(self) -> dict[str, object]:
        return {
            "config_hash": self.experiment.hash,
            "seed": self.experiment.seed,
            "specsim_version": __version__,
        }


def pareto_front(offers: Iterable[Offer]) -> list[Offer]:
    """Return the offers with a price that none beats in price and mean latency, by rising price."""
    priced = [(offer.cost, _latency(offer), offer) for offer in offers if offer.cost is not None]
    front: list[Offer] = []
    for _, latency, offer in sorted(priced, key=lambda each: each[:2]):
        if not front or latency < _latency(front[-1]):
            front.append(offer)
    return front


def _latency(offer: Offer) -> float:
    return offer.probe.latencies_ms["mean_e2el_ms"]


def _result(found: Found) -> dict[str, Any]:
    probe = found.at_capacity
    return {
        "hardware": found.hardware.label,
        "gpu": found.hardware.profile.gpu,
        "gpus_per_replica": found.hardware.gpus_per_replica,
        "is_measured": found.hardware.is_measured,
        "policy": found.policy,
        **asdict(found.bracket),
        "requests_per_second": found.rate,
        **({} if probe is None else _at_load(probe)),
        **({} if probe is None else _costs(found.offer(probe))),
        "replicas": found.replicas,
        "cost_per_hour": found.cost_per_hour,
        "cost_per_million_tokens_at_target": found.cost_at_target,
        "probes": [_row(found, each) for each in found.probes],
    }


def _row(found: Found, probe: LoadProbe) -> dict[str, Any]:
    return {
        "hardware": found.hardware.label,
        "policy": found.policy,
        "load": probe.load,
        "requests_per_second": found.rate_of(probe),
        "is_sustained": probe.is_sustained(found.goal.attainment),
        "is_unstable": probe.is_unstable,
        **_at_load(probe),
        **_costs(found.offer(probe)),
    }


def _at_load(probe: LoadProbe) -> dict[str, Any]:
    return {
        "attainment": probe.attainment,
        "mean_output_len": probe.mean_output_len,
        **probe.latencies_ms,
    }


def _costs(offer: Offer) -> dict[str, float | None]:
    return {"gpu_hours_per_million_tokens": offer.gpu_hours, "cost_per_million_tokens": offer.cost}


def _offer(offer: Offer) -> dict[str, Any]:
    return {
        "hardware": offer.hardware,
        "policy": offer.policy,
        "load": offer.probe.load,
        "requests_per_second": offer.rate,
        "mean_e2el_ms": offer.probe.latencies_ms["mean_e2el_ms"],
        **_costs(offer),
    }
