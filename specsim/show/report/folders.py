"""Reading the folders that a report may be made of: each becomes a `Study`."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from specsim.core.atomic import MARK
from specsim.core.errors import ConfigError
from specsim.core.figures import figures
from specsim.core.settings import Settings, as_yaml, load_mapping, validated
from specsim.core.version import __version__
from specsim.results.folder import ResultsFolder, own_block
from specsim.results.metrics import distributions
from specsim.results.stability import Stability, as_flags
from specsim.results.timeline import over_time
from specsim.show.report.axes import (
    WrittenConfig,
    axis_of,
    check_version,
    load_sweep,
    of_sessions,
    single_axes,
)
from specsim.show.study import COST, HARDWARE, LOAD, POLICY, Axis, Point, Study
from specsim.study.capacity.findings import CapacityDocument, TriedLoad
from specsim.study.capacity.limits import binding_words
from specsim.study.compare import folder_name
from specsim.study.plan.advice import Advice
from specsim.study.plan.words import page_words, title
from specsim.study.sweep import flat_metrics


def load_study(folder: Path) -> Study:
    """Return the study in the folder of a sweep, finished or not, or of a command's ``--out``.

    Raises a ConfigError if it is neither, of another version, or damaged.
    """
    for name, read in _READERS.items():
        if (folder / name).is_file():
            return read(folder)
    if not folder.is_dir():
        what = "is a file" if folder.exists() else "does not exist"
        raise ConfigError(
            f"{folder}: {what}; give the folder of a sweep, a comparison, a run or another study"
        )
    raise ConfigError(
        f"{folder}: holds none of {', '.join(_READERS)}, so it is no results folder; give one that "
        "`specsim sweep`, or `run`, `compare`, `capacity` or `tune` with --out, wrote"
    )


def _load_run(folder: Path) -> Study:
    run = ResultsFolder(folder)
    own = _of_this_version(folder / "summary.json", run.summary)
    points = [_point(run, 0, (0, 0, 0), 0, run.summary, run.config)]
    study = _of_one_server("run", [run.config], points, run.summary.get("model_id"))
    return replace(study, warnings=[str(text) for text in own.get("warnings", [])])


def _of_one_server(
    kind: str, configs: list[dict[str, Any]], points: list[Point], model_id: Any
) -> Study:
    """Return runs at one load that differ in their policy only."""
    written = [WrittenConfig(each) for each in configs]
    first, axes = written[0], single_axes(written[0])
    return Study(
        kind=kind,
        title=first.title(axes[HARDWARE].labels, model_id),
        axes=[axes[HARDWARE], axes[POLICY], of_sessions(axes[LOAD], written, points)],
        slo=first.slo,
        points=points,
        num_expected=len(points),
        draft_lens=[each.draft_len for each in written],
        profiles=[first.profile],
        config=as_yaml(configs[0]),
        version=__version__,
    )


def _load_comparison(folder: Path) -> Study:
    """Read a comparison; distributions and timelines are those of the first replication."""
    path, remedy = folder / "comparison.json", "give a folder that `specsim compare --out` wrote"
    comparison = load_mapping(path, ConfigError)
    comparison.pop(MARK, None)
    points: list[Point] = []
    configs: list[dict[str, Any]] = []
    warnings: dict[str, None] = {}
    model_id: Any = None
    for place, (label, result) in enumerate(comparison.items()):
        summaries = result.get("summaries") if isinstance(result, dict) else None
        if not isinstance(summaries, list) or not summaries:
            raise ConfigError(f"{path}: '{label}' has no summaries; {remedy}")
        own = ResultsFolder(folder / folder_name(label))
        configs.append(own.config)
        warnings.update(dict.fromkeys(map(str, result.get("warnings", []))))
        for replication, summary in enumerate(summaries):
            _of_this_version(path, summary)
            model_id = summary.get("model_id")
            source = own if replication == 0 else None
            where = (len(points), (0, place, 0), replication)
            points.append(_point(source, *where, summary, own.config))
    if not points:
        raise ConfigError(f"{path}: compares no policies; {remedy}")
    study = _of_one_server("comparison", configs, points, model_id)
    hardware, _, load = study.axes
    policy = axis_of(POLICY, "policy", list(comparison), [""] * len(comparison))
    common = as_yaml({name: value for name, value in configs[0].items() if name != "policy"})
    return replace(study, axes=[hardware, policy, load], config=common, warnings=list(warnings))


def _of_this_version(path: Path, summary: object) -> dict[str, Any]:
    """Return specsim's own block of a summary; a ConfigError if of another version."""
    own = own_block(path, summary)
    check_version(path, own["specsim_version"], "use that version or run the experiment again")
    return own


def _point(
    run: ResultsFolder | None,
    number: int,
    places: tuple[int, ...],
    replication: int,
    summary: dict[str, Any],
    config: dict[str, Any],
) -> Point:
    own, metrics = summary["specsim"], flat_metrics(summary)
    fleet = WrittenConfig(config).fleet(metrics)
    details: dict[str, Any] = {}
    if run is not None:
        details = over_time(run.steps, own, run.requests)
        details["distributions"] = distributions(run.requests)
    return Point(
        number=number,
        places=places,
        replication=replication,
        seed=own["seed"],
        config_hash=own["config_hash"],
        metrics=metrics,
        fleet=fleet.engines,
        fleet_kind=fleet.kind,
        **details,
    )


def _metrics(probe: TriedLoad) -> dict[str, float]:
    """Return the measurements at a load, by the names of a summary."""
    cost = probe.compared_cost
    return {
        **probe.latencies_ms,
        **({} if cost is None else {COST: cost}),
        "slo_attainment": probe.attainment,
        "output_throughput": probe.requests_per_second * probe.mean_output_len,
        **as_flags(probe.stability),
    }


def _load_capacity(folder: Path) -> Study:
    """Read a capacity plan, with one point per load that was simulated."""
    plan, advice = _load_plan(folder / "capacity.json"), _load_advice(folder / "plan.json")
    words = {} if advice is None else {each.policy: each.speculation for each in advice.tried}
    hardware = list(dict.fromkeys(result.hardware for result in plan.results))
    policies = list(dict.fromkeys(result.policy for result in plan.results))
    loads = sorted({probe.load for result in plan.results for probe in result.probes})
    places = [
        (hardware.index(result.hardware), policies.index(result.policy)) for result in plan.results
    ]
    points = _tried_points(plan, places, loads)
    first, choices, load = _axes(
        axis_of(HARDWARE, "profile", hardware, [""] * len(hardware)),
        _in_words(policies, words),
        f"workload.arrivals.{plan.drive}",
        loads,
    )
    return Study(
        kind="capacity",
        title=WrittenConfig(plan.experiment).title(hardware) if advice is None else title(advice),
        slo=plan.slo,
        gpus={result.hardware: result.gpus_per_replica for result in plan.results},
        step_times={result.hardware: result.step_times for result in plan.results},
        axes=[first, replace(choices, title="Speculation") if words else choices, load],
        points=points,
        num_expected=len(points),
        draft_lens=_draft_lens(plan.experiment, policies),
        profiles=hardware,
        config=as_yaml(plan.experiment),
        version=plan.specsim_version,
        currency=plan.prices.currency,
        price_date=plan.prices.date,
        warnings=plan.notes if advice is None else advice.warnings,
        capacity=_told(plan, places),
        plan=None if advice is None else page_words(advice),
    )


def _tried_points(
    plan: CapacityDocument, places: list[tuple[int, int]], loads: list[float]
) -> list[Point]:
    """Return one point per simulated load, at the places of its hardware and policy."""
    points = list[Point]()
    for own, result in zip(places, plan.results, strict=True):
        for probe in result.probes:
            run = plan.seed, plan.config_hash
            place, told = (*own, loads.index(probe.load)), _metrics(probe)
            kept = probe.keeps_limits
            points.append(Point(len(points), place, 0, *run, metrics=told, keeps_limits=kept))
    return points


def _load_advice(path: Path) -> Advice | None:
    """Return the answer of `specsim plan`; None for `specsim capacity`."""
    if not path.is_file():
        return None
    with validated(f"{path} (run specsim plan again)", ConfigError):
        return Advice.model_validate(load_mapping(path, ConfigError))


def _in_words(policies: list[str], words: dict[str, str]) -> list[str]:
    named = [words.get(policy, policy) for policy in policies]
    return named if len(set(named)) == len(named) else policies


_TOLD = (
    "gpus_per_replica", "step_times", "sustained", "exceeded", "requests_per_second", "replicas",
    "replicas_interval", "cost_per_hour", "cost_per_hour_interval", "cost_per_million_tokens",
    "cost_per_million_tokens_at_target", "requests_per_second_interval", "binds",
    "margins",
)  # fmt: skip
"""Fields to show of what one hardware sustains under one policy."""


def _told(plan: CapacityDocument, places: list[tuple[int, int]]) -> dict[str, Any]:
    return {
        "unit": "unit" if plan.experiment.get("pools") else "server",
        "percentiles": {name: plan.limits.percentile_of(name) for name in plan.slo},
        "slo": plan.slo,
        "target_rate": plan.target_rate,
        "promise": plan.limits.words,
        "most": [each.model_dump() for each in plan.most.leaders],
        "cheapest": [each.model_dump() for each in plan.cheapest.leaders],
        "results": [
            {
                **{name: getattr(result, name) for name in _TOLD},
                "what_binds": binding_words(result.binds, result.resource),
                "places": list(own),
            }
            for own, result in zip(places, plan.results, strict=True)
        ],
    }


def _load_plan(path: Path) -> CapacityDocument:
    data = load_mapping(path, ConfigError)
    check_version(path, data.get("specsim_version"), "use that version or plan again")
    with validated(f"{path} (run specsim capacity again)", ConfigError):
        plan = CapacityDocument.model_validate(data)
    if not any(result.probes for result in plan.results):
        raise ConfigError(f"{path}: holds no load that was tried; run specsim capacity again")
    return plan


class _TunedRuns(Settings):
    """The runs of one policy at one load, by replication."""

    policy: str
    load: float
    mean_e2el_ms: list[float]
    output_throughput: list[float]
    stability: list[Stability]


class _TuningDocument(Settings):
    """The fields of ``tune.json`` that a report draws."""

    runs: list[_TunedRuns]
    load_unit: Literal["requests/s", "clients"]
    config: dict[str, Any]
    config_hash: str
    seeds: list[int]
    recommended: dict[str, Any] | None
    warnings: list[str]
    specsim_version: str


_LOADS = {"requests/s": "workload.arrivals.rate", "clients": "workload.arrivals.concurrency"}


def _load_tuning(folder: Path) -> Study:
    """Read a tuning: the runs of every k at several loads."""
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
    points = _tuned_points(tuning, policies, loads)
    return Study(
        kind="tuning",
        title=f"{config.title(hardware.labels)}: use {_recommended(tuning.recommended)}",
        axes=_axes(hardware, policies, _LOADS[tuning.load_unit], loads),
        slo=config.slo,
        points=points,
        num_expected=len(points),
        draft_lens=_draft_lens(tuning.config, policies),
        profiles=[config.profile],
        config=as_yaml(tuning.config),
        version=tuning.specsim_version,
        warnings=tuning.warnings,
    )


def _tuned_points(tuning: _TuningDocument, policies: list[str], loads: list[float]) -> list[Point]:
    config, points = tuning.config, list[Point]()
    ranks = (config.get("engine") or {}).get("data_parallel_size") or 1
    for runs in tuning.runs:
        engines = {"replicas": config.get("replicas", 1) * ranks}
        fleet = WrittenConfig({**config, "policy": runs.policy}).fleet(engines)
        columns = tuning.seeds, runs.mean_e2el_ms, runs.output_throughput, runs.stability
        for replication, (seed, latency, rate, stable) in enumerate(zip(*columns, strict=True)):
            point = Point(
                number=len(points),
                places=(0, policies.index(runs.policy), loads.index(runs.load)),
                replication=replication,
                seed=seed,
                config_hash=tuning.config_hash,
                metrics={"mean_e2el_ms": latency, "output_throughput": rate, **as_flags(stable)},
                fleet=fleet.engines,
                fleet_kind=fleet.kind,
            )
            points.append(point)
    return points


def _recommended(best: dict[str, Any] | None) -> str:
    if best is None:
        return "no speculation"
    ranges = best.get("num_speculative_tokens_per_batch_size")
    if ranges is None:
        return f"k = {best['num_speculative_tokens']}"
    return "k = " + ", ".join(f"{k} in batches of {first} to {last}" for first, last, k in ranges)


def _axes(hardware: Axis, policies: list[str], field: str, loads: list[float]) -> list[Axis]:
    """Return the axes of a study that chose its loads itself, through the field `field`."""
    return [
        hardware,
        axis_of(POLICY, "policy", policies, [""] * len(policies)),
        axis_of(LOAD, field, [figures(load) for load in loads], loads),
    ]


def _draft_lens(config: dict[str, Any], policies: list[str]) -> list[int | None]:
    return [WrittenConfig({**config, "policy": policy}).draft_len for policy in policies]


_READERS: dict[str, Callable[[Path], Study]] = {
    "sweep.yaml": load_sweep,
    "comparison.json": _load_comparison,
    "capacity.json": _load_capacity,
    "tune.json": _load_tuning,
    "summary.json": _load_run,
}
"""Readers by the file that identifies a folder."""
