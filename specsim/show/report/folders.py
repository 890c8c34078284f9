"""Reading whatever folder a report is asked for: each becomes a `Study`."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from specsim.core.atomic import MARK
from specsim.core.errors import ConfigError
from specsim.core.settings import as_yaml, load_mapping, validated
from specsim.core.version import __version__
from specsim.results.folder import ResultsFolder, own_block
from specsim.results.metrics import distributions
from specsim.results.stability import Stability, as_flags
from specsim.results.timeline import over_time
from specsim.show.report.axes import (
    axis_of,
    check_version,
    draft_len,
    drafter_of,
    load_sweep,
    pools_of,
    single_axes,
    slo_of,
    title_of,
)
from specsim.show.study import COST, HARDWARE, LOAD, POLICY, Point, Study
from specsim.study.capacity.choices import percentile, promise_words
from specsim.study.compare import folder_name
from specsim.study.plan.advice import Advice
from specsim.study.plan.words import page_words, title
from specsim.study.sweep import flat_metrics


def load_study(folder: Path) -> Study:
    """Return what a folder holds that a sweep, finished or not, or ``--out`` of a command wrote.

    A ConfigError if it is none of these, of another version, or damaged.
    """
    for name, read in _READERS.items():
        if (folder / name).is_file():
            return read(folder)
    if not folder.is_dir():
        what = "is a file" if folder.exists() else "does not exist"
        raise ConfigError(f"{folder}: {what}; give the folder of a sweep, a comparison or a run")
    raise ConfigError(
        f"{folder}: holds none of {', '.join(_READERS)}, so it is no results folder; give one that "
        "`specsim sweep`, or `run`, `compare` or `capacity` with --out, wrote"
    )


def _load_run(folder: Path) -> Study:
    run = ResultsFolder(folder)
    own = _of_this_version(folder / "summary.json", run.summary)
    axes = single_axes(run.config)
    return Study(
        kind="run",
        title=title_of(run.config, axes[HARDWARE].labels, run.summary.get("model_id")),
        axes=[axes[role] for role in (HARDWARE, POLICY, LOAD)],
        slo=slo_of(run.config),
        points=[_point(run, 0, (0, 0, 0), 0, run.summary, run.config)],
        num_expected=1,
        draft_lens=[draft_len(run.config)],
        profiles=[str(run.config.get("profile"))],
        config=as_yaml(run.config),
        version=own["specsim_version"],
        warnings=[str(text) for text in own.get("warnings", [])],
    )


def _load_comparison(folder: Path) -> Study:
    """Read a comparison; distributions and what happened over time are of the first replication."""
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
    axes = single_axes(configs[0])
    policy = axis_of(POLICY, "policy", list(comparison), [""] * len(comparison))
    return Study(
        kind="comparison",
        title=title_of(configs[0], axes[HARDWARE].labels, model_id),
        slo=slo_of(configs[0]),
        axes=[axes[HARDWARE], policy, axes[LOAD]],
        points=points,
        num_expected=len(points),
        draft_lens=[draft_len(config) for config in configs],
        profiles=[str(configs[0].get("profile"))],
        config=as_yaml({name: value for name, value in configs[0].items() if name != "policy"}),
        version=__version__,
        warnings=list(warnings),
    )


def _of_this_version(path: Path, summary: object) -> dict[str, Any]:
    """Return what only specsim writes into a summary, once its version is known to be ours."""
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
    own = summary["specsim"]
    details: dict[str, Any] = {}
    if run is not None:
        details = over_time(run.steps, own["num_gpu_blocks"] - 1, own, run.requests)
        details["distributions"] = distributions(run.requests)
    return Point(
        number=number,
        places=places,
        replication=replication,
        seed=own["seed"],
        config_hash=own["config_hash"],
        metrics=flat_metrics(summary),
        pools=pools_of(config),
        drafter=drafter_of(config),
        **details,
    )


_LOAD_FIELDS = {"rate": "workload.arrivals.rate", "concurrency": "workload.arrivals.concurrency"}


class _Probe(BaseModel):
    """A load that was tried."""

    model_config = ConfigDict(allow_inf_nan=False, extra="allow")
    __pydantic_extra__: dict[str, Any]

    load: float
    requests_per_second: float
    is_unstable: bool = False  # of older plans
    stability: Stability | None = None
    attainment: float
    keeps_limits: bool | None = None  # not said by older plans
    mean_output_len: float
    cost_per_million_tokens: float | None
    cost_per_million_tokens_at_target: float | None = None

    @property
    def metrics(self) -> dict[str, float]:
        """What was measured, under the names of a summary."""
        latencies = {
            name: float(value)
            for name, value in self.__pydantic_extra__.items()
            if name.endswith("_ms") and isinstance(value, int | float)
        }
        cost = self.cost_per_million_tokens_at_target or self.cost_per_million_tokens
        return {
            **latencies,
            **({} if cost is None else {COST: cost}),
            "slo_attainment": self.attainment,
            "output_throughput": self.requests_per_second * self.mean_output_len,
            **as_flags(self.stability or ("overloaded" if self.is_unstable else "stable")),
        }


class _Result(BaseModel):
    """What one hardware sustains under one policy."""

    model_config = ConfigDict(allow_inf_nan=False)

    hardware: str
    policy: str
    gpus_per_replica: int
    step_times: str = ""
    sustained: float | None
    exceeded: float | None
    requests_per_second: float | None
    replicas: int | None
    replicas_interval: tuple[int, int] | None = None
    cost_per_hour: float | None
    cost_per_hour_interval: tuple[float, float] | None = None
    cost_per_million_tokens: float | None = None
    cost_per_million_tokens_at_target: float | None
    requests_per_second_interval: tuple[float, float] | None = None
    binds: str | None = None
    resource: str | None = None
    margins: dict[str, float] = {}
    probes: list[_Probe]


class _Leader(BaseModel):
    """One of those that are best."""

    hardware: str
    policy: str
    value: float


class _Ranking(BaseModel):
    """What is best, as far as intervals show."""

    leaders: list[_Leader] = []


class _Plan(BaseModel):
    """What a capacity plan holds."""

    model_config = ConfigDict(allow_inf_nan=False)

    config_hash: str
    seed: int
    specsim_version: str
    slo: dict[str, float]
    attainment: float
    limit_shares: dict[str, float] = {}
    drive: str
    target_rate: float | None
    prices: dict[str, Any]
    experiment: dict[str, Any]
    results: list[_Result]
    most: _Ranking = _Ranking()
    cheapest: _Ranking = _Ranking()
    notes: list[str]

    def kept_at(self, probe: _Probe) -> bool:
        """Return whether as many requests as were asked kept their limits."""
        known = probe.keeps_limits
        return probe.attainment >= self.attainment if known is None else known

    @property
    def percentiles(self) -> dict[str, str]:
        """Of each limit, the one that is held against it."""
        return {n: percentile(self.limit_shares.get(n, self.attainment)) for n in self.slo}


def _load_capacity(folder: Path) -> Study:
    """Read a capacity plan: each load that was tried is a point."""
    plan, advice = _load_plan(folder / "capacity.json"), _load_advice(folder / "plan.json")
    words = {} if advice is None else {each.policy: each.speculation for each in advice.tried}
    hardware = list(dict.fromkeys(result.hardware for result in plan.results))
    policies = list(dict.fromkeys(result.policy for result in plan.results))
    loads = sorted({probe.load for result in plan.results for probe in result.probes})
    places = [
        (hardware.index(result.hardware), policies.index(result.policy)) for result in plan.results
    ]
    tried = [
        ((*own, loads.index(probe.load)), probe)
        for own, result in zip(places, plan.results, strict=True)
        for probe in result.probes
    ]
    points = [
        Point(
            number,
            place,
            0,
            plan.seed,
            plan.config_hash,
            metrics=probe.metrics,
            keeps_limits=plan.kept_at(probe),
        )
        for number, (place, probe) in enumerate(tried)
    ]
    return Study(
        kind="capacity",
        title=title_of(plan.experiment, hardware) if advice is None else title(advice),
        slo=plan.slo,
        gpus={result.hardware: result.gpus_per_replica for result in plan.results},
        step_times={result.hardware: result.step_times for result in plan.results},
        axes=[
            axis_of(HARDWARE, "profile", hardware, [""] * len(hardware)),
            axis_of(POLICY, "policy", _in_words(policies, words), [""] * len(policies)),
            axis_of(LOAD, _LOAD_FIELDS[plan.drive], [f"{load:.4g}" for load in loads], loads),
        ],
        points=points,
        num_expected=len(points),
        draft_lens=[draft_len({**plan.experiment, "policy": label}) for label in policies],
        profiles=hardware,
        config=as_yaml(plan.experiment),
        version=plan.specsim_version,
        currency=str(plan.prices.get("currency", "USD")),
        price_date=str(plan.prices.get("date", "")),
        warnings=plan.notes,
        capacity=_told(plan, places),
        plan=None if advice is None else page_words(advice),
    )


def _load_advice(path: Path) -> Advice | None:
    """Return the answer of `specsim plan`; None of `specsim capacity`, or of an older specsim."""
    data = load_mapping(path, ConfigError) if path.is_file() else {}
    if "choices" not in data:
        return None
    with validated(f"{path} (run specsim plan again)", ConfigError):
        return Advice.model_validate(data)


def _in_words(policies: list[str], words: dict[str, str]) -> list[str]:
    named = [words.get(policy, policy) for policy in policies]
    return named if len(set(named)) == len(named) else policies


def _told(plan: _Plan, places: list[tuple[int, int]]) -> dict[str, Any]:
    unused = {"hardware", "policy", "probes"}
    return {
        "unit": "unit" if plan.experiment.get("pools") else "replica",
        **{name: getattr(plan, name) for name in ("percentiles", "slo", "target_rate")},
        "promise": promise_words(plan.slo, plan.attainment, plan.limit_shares),
        "most": [each.model_dump() for each in plan.most.leaders],
        "cheapest": [each.model_dump() for each in plan.cheapest.leaders],
        "results": [
            {**result.model_dump(exclude=unused), "places": list(own)}
            for own, result in zip(places, plan.results, strict=True)
        ],
    }


def _load_plan(path: Path) -> _Plan:
    data = load_mapping(path, ConfigError)
    check_version(path, data.get("specsim_version"), "use that version or plan again")
    with validated(f"{path} (run specsim capacity again)", ConfigError):
        plan = _Plan.model_validate(data)
    if not any(result.probes for result in plan.results) or plan.drive not in _LOAD_FIELDS:
        raise ConfigError(f"{path}: holds no load that was tried; run specsim capacity again")
    return plan


_READERS: dict[str, Callable[[Path], Study]] = {
    "sweep.yaml": load_sweep,
    "comparison.json": _load_comparison,
    "capacity.json": _load_capacity,
    "summary.json": _load_run,
}
"""By the file that tells what a folder is."""
