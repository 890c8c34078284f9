"""The folder of ``specsim capacity``, as a study: each load that was tried is a point."""

from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict

from specsim.core.errors import ConfigError
from specsim.core.settings import load_mapping, validated
from specsim.core.version import __version__
from specsim.show.report.axes import axis_of, draft_len
from specsim.show.report.measures import COST
from specsim.show.report.study import HARDWARE, LOAD, POLICY, Point, Study

__all__ = ["load_capacity"]

_FIELDS = {"rate": "workload.arrivals.rate", "concurrency": "workload.arrivals.concurrency"}


class _Probe(BaseModel):
    """A load that was tried."""

    model_config = ConfigDict(allow_inf_nan=False, extra="allow")
    __pydantic_extra__: dict[str, Any]

    load: float
    requests_per_second: float
    is_unstable: bool
    attainment: float
    mean_output_len: float
    cost_per_million_tokens: float | None


class _Result(BaseModel):
    """What one hardware sustains under one policy."""

    model_config = ConfigDict(allow_inf_nan=False)

    hardware: str
    policy: str
    gpus_per_replica: int
    is_measured: bool
    sustained: float | None
    exceeded: float | None
    requests_per_second: float | None
    replicas: int | None
    cost_per_hour: float | None
    cost_per_million_tokens: float | None = None
    cost_per_million_tokens_at_target: float | None
    probes: list[_Probe]


class _Plan(BaseModel):
    """What a capacity plan holds."""

    model_config = ConfigDict(allow_inf_nan=False)

    config_hash: str
    seed: int
    specsim_version: str
    slo: dict[str, float]
    attainment: float
    drive: str
    target_rate: float | None
    prices: dict[str, Any]
    experiment: dict[str, Any]
    results: list[_Result]
    notes: list[str]


def load_capacity(folder: Path) -> Study:
    """Return a capacity plan.

    Args:
        folder: As ``specsim capacity --out`` wrote it.

    Raises:
        ConfigError: It is none, of another version, or damaged.
    """
    plan = _load_plan(folder / "capacity.json")
    results = plan.results
    hardware = list(dict.fromkeys(result.hardware for result in results))
    policies = list(dict.fromkeys(result.policy for result in results))
    loads = sorted({probe.load for result in results for probe in result.probes})
    tried = [(result, probe) for result in results for probe in result.probes]
    points = [
        Point(
            number=number,
            places=(
                hardware.index(result.hardware),
                policies.index(result.policy),
                loads.index(probe.load),
            ),
            replication=0,
            seed=plan.seed,
            config_hash=plan.config_hash,
            metrics=_metrics(probe),
        )
        for number, (result, probe) in enumerate(tried)
    ]
    return Study(
        kind="capacity",
        title=folder.resolve().name,
        axes=[
            axis_of(HARDWARE, "profile", hardware, [""] * len(hardware)),
            axis_of(POLICY, "policy", policies, [""] * len(policies)),
            axis_of(LOAD, _FIELDS[plan.drive], [f"{load:.4g}" for load in loads], list(loads)),
        ],
        points=points,
        num_expected=len(points),
        draft_lens=[draft_len({**plan.experiment, "policy": label}) for label in policies],
        profiles=hardware,
        config=yaml.safe_dump(plan.experiment, sort_keys=False, allow_unicode=True),
        version=plan.specsim_version,
        currency=str(plan.prices.get("currency", "USD")),
        price_date=str(plan.prices.get("date", "")),
        warnings=plan.notes,
        capacity={
            "attainment": plan.attainment,
            "slo": plan.slo,
            "target_rate": plan.target_rate,
            "results": [
                {
                    **result.model_dump(exclude={"hardware", "policy", "probes"}),
                    "places": [hardware.index(result.hardware), policies.index(result.policy)],
                }
                for result in results
            ],
        },
    )


def _load_plan(path: Path) -> _Plan:
    data = load_mapping(path, ConfigError)
    version = data.get("specsim_version")
    if version != __version__:
        raise ConfigError(
            f"{path}: was written by specsim {version}, and this is {__version__}; use that "
            "version or plan again"
        )
    with validated(f"{path} (run specsim capacity again)", ConfigError):
        plan = _Plan.model_validate(data)
    if not any(result.probes for result in plan.results) or plan.drive not in _FIELDS:
        raise ConfigError(f"{path}: holds no load that was tried; run specsim capacity again")
    return plan


def _metrics(probe: _Probe) -> dict[str, float]:
    """Return what a probe measured under the names of a summary."""
    latencies = {
        name: float(value)
        for name, value in probe.__pydantic_extra__.items()
        if name.endswith("_ms") and isinstance(value, int | float)
    }
    cost = probe.cost_per_million_tokens
    return {
        **latencies,
        **({} if cost is None else {COST: cost}),
        "slo_attainment": probe.attainment,
        "output_throughput": probe.requests_per_second * probe.mean_output_len,
        "unstable": float(probe.is_unstable),
    }
