"""Tunings: the runs of every k at several loads, read as a study."""

from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from specsim.core.errors import ConfigError
from specsim.core.figures import figures
from specsim.core.settings import Settings, as_yaml, load_mapping, validated
from specsim.results.stability import Stability, as_flags
from specsim.show.report.axes import axis_of, check_version, single_axes
from specsim.show.report.configs import WrittenConfig
from specsim.show.study import HARDWARE, LOAD, POLICY, Point, Study

_LOADS = {"requests/s": "workload.arrivals.rate", "clients": "workload.arrivals.concurrency"}


class _TunedRuns(Settings):
    """The runs of one policy at one load, by replication."""

    policy: str
    load: float
    mean_e2el_ms: list[float]
    output_throughput: list[float]
    stability: list[Stability]


class _TuningDocument(Settings):
    """What a report draws of ``tune.json``."""

    runs: list[_TunedRuns]
    load_unit: Literal["requests/s", "clients"]
    config: dict[str, Any]
    config_hash: str
    seeds: list[int]
    recommended: dict[str, Any] | None
    warnings: list[str]
    specsim_version: str


def load_tuning(folder: Path) -> Study:
    """Return a tuning; a ConfigError if it is damaged or of another version."""
    path, remedy = folder / "tune.json", "run specsim tune again"
    data = load_mapping(path, ConfigError)
    check_version(path, data.get("specsim_version"), f"use that version or {remedy}")
    known = {name: data[name] for name in _TuningDocument.model_fields if name in data}
    with validated(f"{path} ({remedy})", ConfigError):
        tuning = _TuningDocument.model_validate(known)
    config = WrittenConfig(tuning.config)
    hardware = single_axes(config)[HARDWARE]
    policies = list(dict.fromkeys(each.policy for each in tuning.runs))
    loads = sorted({each.load for each in tuning.runs})
    places = [(policies.index(each.policy), loads.index(each.load)) for each in tuning.runs]
    points = [
        replace(point, number=number)
        for number, point in enumerate(
            point
            for own, each in zip(places, tuning.runs, strict=True)
            for point in _points(tuning, each, own)
        )
    ]
    return Study(
        kind="tuning",
        title=f"{config.title(hardware.labels)}: use {_in_words(tuning.recommended)}",
        axes=[
            hardware,
            axis_of(POLICY, "policy", policies, [""] * len(policies)),
            axis_of(LOAD, _LOADS[tuning.load_unit], [figures(load) for load in loads], loads),
        ],
        slo=config.slo,
        points=points,
        num_expected=len(points),
        draft_lens=[
            WrittenConfig({**tuning.config, "policy": each}).draft_len for each in policies
        ],
        profiles=[config.profile],
        config=as_yaml(tuning.config),
        version=tuning.specsim_version,
        warnings=tuning.warnings,
    )


def _in_words(best: dict[str, Any] | None) -> str:
    if best is None:
        return "no speculation"
    ranges = best.get("num_speculative_tokens_per_batch_size")
    if ranges is None:
        return f"k = {best['num_speculative_tokens']}"
    return "k = " + ", ".join(f"{k} in batches of {first} to {last}" for first, last, k in ranges)


def _points(tuning: _TuningDocument, runs: _TunedRuns, own: tuple[int, int]) -> list[Point]:
    config, engine = tuning.config, tuning.config.get("engine") or {}
    engines = config.get("replicas", 1) * (engine.get("data_parallel_size") or 1)
    fleet = WrittenConfig({**config, "policy": runs.policy}).fleet({"replicas": engines})
    measured = zip(
        tuning.seeds, runs.mean_e2el_ms, runs.output_throughput, runs.stability, strict=True
    )
    return [
        Point(
            number=0,
            places=(0, *own),
            replication=replication,
            seed=seed,
            config_hash=tuning.config_hash,
            metrics={"mean_e2el_ms": latency, "output_throughput": rate, **as_flags(stability)},
            fleet=fleet.engines,
            fleet_kind=fleet.kind,
        )
        for replication, (seed, latency, rate, stability) in enumerate(measured)
    ]
