"""What a capacity plan leaves: ``capacity.json`` and ``capacity.parquet``."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from specsim.core.version import __version__
from specsim.results.export import write_parquet
from specsim.study.capacity.plan import Capacity, Found, Offer
from specsim.study.capacity.probe import Probe

__all__ = ["save", "to_dict"]


def to_dict(capacity: Capacity) -> dict[str, Any]:
    """Return a plan as plain values."""
    goal = capacity.goal
    return {
        **_provenance(capacity),
        "slo": goal.slo.model_dump(exclude_none=True),
        "attainment": goal.attainment,
        "drive": "concurrency" if goal.is_closed else "rate",
        "tolerance": goal.tolerance,
        "target_rate": goal.target_rate,
        "replications": goal.replications,
        "num_requests": goal.num_requests,
        "prices": capacity.prices.model_dump(),
        "experiment": capacity.experiment.to_dict(),
        "results": [_result(found) for found in capacity.found],
        "pareto_front": [_offer(offer) for offer in capacity.front],
        "notes": capacity.notes,
    }


def save(capacity: Capacity, folder: Path) -> None:
    """Write a plan, and one row per load that was tried."""
    text = json.dumps(to_dict(capacity), indent=1, allow_nan=False) + "\n"
    (folder / "capacity.json").write_text(text, encoding="utf-8")
    on_front = {id(offer.probe) for offer in capacity.front}
    rows = [
        {**_row(found, probe), "on_front": id(probe) in on_front}
        for found in capacity.found
        for probe in found.probes
    ]
    columns = {name: np.array([row[name] for row in rows]) for name in rows[0]}
    write_parquet(columns, _provenance(capacity), folder / "capacity.parquet")


def _provenance(capacity: Capacity) -> dict[str, object]:
    experiment = capacity.experiment
    return {
        "config_hash": experiment.hash,
        "seed": experiment.seed,
        "specsim_version": __version__,
    }


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


def _row(found: Found, probe: Probe) -> dict[str, Any]:
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


def _at_load(probe: Probe) -> dict[str, Any]:
    return {
        "attainment": probe.attainment,
        "mean_output_len": probe.mean_output_len,
        **probe.latencies_ms,
    }


def _costs(offer: Offer) -> dict[str, float | None]:
    return {
        "gpu_hours_per_million_tokens": offer.gpu_hours,
        "cost_per_million_tokens": offer.cost,
    }


def _offer(offer: Offer) -> dict[str, Any]:
    return {
        "hardware": offer.hardware,
        "policy": offer.policy,
        "load": offer.probe.load,
        "requests_per_second": offer.rate,
        "mean_e2el_ms": offer.probe.latencies_ms["mean_e2el_ms"],
        **_costs(offer),
    }
