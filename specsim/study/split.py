"""Split: what becomes of a number of GPUs if some of them prefill and the others decode.

Every split, and colocated replicas, meet the same requests on the same luck.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from operator import lt
from pathlib import Path
from statistics import fmean
from typing import Any

from specsim.core.errors import ConfigError
from specsim.core.processes import LocalProcesses
from specsim.core.runner import Runner
from specsim.core.version import __version__
from specsim.policies import is_bound
from specsim.profile import load_profile
from specsim.results.folder import write_json
from specsim.results.stability import Stability, stability_of, together
from specsim.run.experiment import Experiment, PoolsConfig
from specsim.run.summary import summarized
from specsim.study.paired import replicated
from specsim.workload import WorkloadConfig
from specsim.workload.arrivals.patterns import TraceReplay

COLUMNS = (
    "request_throughput", "slo_attainment", "mean_ttft_ms", "p99_ttft_ms", "mean_tpot_ms",
    "p99_tpot_ms", "mean_e2el_ms", "mean_transfer_ms",
)  # fmt: skip


@dataclass(frozen=True)
class Way:
    """One way to use the GPUs."""

    label: str  # ``colocated``, or replicas of the pools, ``2p + 6d``
    gpus: int  # in use: a replica may need several, so that some may be left over
    experiment: Experiment
    policy: str | None = None  # where policies are searched, too

    @property
    def is_bound(self) -> bool:
        """Whether its policy knows what no server does."""
        return is_bound(self.experiment.effective_policy)


@dataclass(frozen=True)
class SplitRow:
    """One way to use the GPUs, at one load; means over the replications."""

    label: str
    rate: float | None  # requests per second; None where the experiment has no rate
    prefill_replicas: int  # none of them where replicas are colocated
    decode_replicas: int
    gpus: int
    values: dict[str, float | None]  # by `COLUMNS`
    stability: Stability
    is_efficient: bool = True
    """Whether no other way has both a lower p99 TTFT and a lower mean TPOT at that load. A bound
    never is, and beats nobody."""
    policy: str | None = None
    is_bound: bool = False  # nobody can run its policy

    def to_dict(self) -> dict[str, Any]:
        return {
            "label": self.label,
            "rate": self.rate,
            "prefill_replicas": self.prefill_replicas,
            "decode_replicas": self.decode_replicas,
            "gpus": self.gpus,
            **({} if self.policy is None else {"policy": self.policy}),
            **self.values,
            "stability": self.stability,
            "efficient": self.is_efficient,
            **({"bound": True} if self.is_bound else {}),
        }


@dataclass(frozen=True)
class Split:
    """All ways to use the GPUs, the best of each load first, bounds last."""

    gpus: int
    rows: list[SplitRow]

    def save(self, folder: Path | str, **more: Any) -> None:
        rows = [row.to_dict() for row in self.rows]
        data = {"gpus": self.gpus, "rows": rows, **more, "specsim_version": __version__}
        write_json(data, Path(folder, "split.json"))


def splits(experiment: Experiment, gpus: int) -> Iterator[Way]:
    """Yield the ways to use some GPUs.

    First colocated replicas. Pools are as in the experiment, if it has them. A ConfigError if
    there are too few GPUs for any.
    """
    if experiment.scalers:
        raise ConfigError("autoscaling: split compares pools of fixed size; leave it out")
    if experiment.incidents:
        raise ConfigError(
            "incidents: are of replicas that only one way to divide the GPUs has; leave them out "
            "(--set incidents=null) and run the split that is found with them afterwards"
        )
    if (ranks := experiment.engine.data_parallel_size or 1) > 1:
        raise ConfigError(
            f"engine.data_parallel_size = {ranks}: split compares replicas without ranks; leave it "
            "out"
        )
    plain = experiment.replace("split", pools=None)
    pools = experiment.pools or PoolsConfig()
    both = (pools.prefill, pools.decode)
    size, *sizes = (
        load_profile(name or plain.profile).num_gpus
        for name in ("", *(pool.profile for pool in both))
    )
    if gpus < max(size, 1):
        raise ConfigError(f"--gpus {gpus}: a replica of profile {plain.profile} takes {size}")
    replicas = gpus // size
    yield Way("colocated", replicas * size, plain.replace("split", replicas=replicas))
    for prefill in range(1, gpus // sizes[0] + 1):
        decode = (gpus - prefill * sizes[0]) // sizes[1]
        if not decode:
            return
        changed = pools.with_each("replicas", prefill, decode)
        used = prefill * sizes[0] + decode * sizes[1]
        apart = plain.replace("split", replicas=1, pools=changed)
        yield Way(f"{prefill}p + {decode}d", used, apart)


def compare_splits(
    experiment: Experiment,
    gpus: int,
    *,
    rates: list[float] | None = None,
    replications: int = 1,
    workers: int = 1,
    on_progress: Callable[[int], None] | None = None,
) -> Split:
    """Run every way to use some GPUs, at the experiment's load or several rates, requests/s."""
    loads: list[float | None] = list(dict.fromkeys(rates)) if rates else [None]
    ways = [way for rate in loads for way in splits(at_rate(experiment, rate), gpus)]
    if all(way.label == "colocated" for way in ways):
        raise ConfigError(f"--gpus {gpus}: too few for two pools of a replica each; name more")
    with Runner(LocalProcesses(workers), on_progress) as runner:
        rows = simulated_rows(ways, replications, runner)
    rows = [judged(row, rows) for row in rows]
    return Split(gpus, sorted(rows, key=row_order))


def simulated_rows(ways: list[Way], replications: int, runner: Runner) -> list[SplitRow]:
    """Simulate ways to use the GPUs."""
    tasks = [replicated(way.experiment, replications, "split") for way in ways]
    return [*map(_row, ways, runner.run(_run_one, tasks))]


def at_rate(experiment: Experiment, rate: float | None) -> Experiment:
    """Return an experiment at another rate, requests/s; a ConfigError if its arrivals have none."""
    if rate is None:
        return experiment
    workload = experiment.workload
    if "rate" not in type(workload.arrivals).model_fields:
        raise ConfigError(
            f"--rates: arrivals of kind {workload.arrivals.kind} have no rate; leave --rates out"
        )
    scale = {"time_scale": 1.0} if isinstance(workload.arrivals, TraceReplay) else {}
    starts = rate / _turns(workload)  # per second, of sessions
    arrivals = workload.arrivals.model_copy(update={"rate": starts, **scale})
    return experiment.replace(
        "--rates", workload=workload.model_copy(update={"arrivals": arrivals})
    )


def _turns(workload: WorkloadConfig) -> float:
    """Return how many requests an arrival brings in the mean."""
    return 1.0 if workload.lengths is None else workload.lengths.mean_turns


def _run_one(experiment: Experiment) -> dict[str, Any]:
    return summarized(experiment).data


def _row(way: Way, group: list[dict[str, Any]]) -> SplitRow:
    values: dict[str, float | None] = {}
    for name in COLUMNS:
        found = [value for data in group if (value := _value(data, name)) is not None]
        values[name] = fmean(found) if len(found) == len(group) else None
    arm, pools = way.experiment, way.experiment.pools
    rate: float | None = getattr(arm.workload.arrivals, "rate", None)
    return SplitRow(
        label=way.label,
        rate=None if rate is None else rate * _turns(arm.workload),
        prefill_replicas=pools.prefill.replicas if pools else 0,
        decode_replicas=pools.decode.replicas if pools else arm.replicas,
        gpus=way.gpus,
        values=values,
        stability=together(stability_of(data["specsim"]) for data in group),
        policy=way.policy,
        is_bound=way.is_bound,
    )


def _value(data: dict[str, Any], name: str) -> float | None:
    goodput = data["request_goodput"]
    found: dict[str, float | None] = {
        **data,
        "mean_transfer_ms": data["specsim"].get("pools", {}).get("mean_transfer_ms"),
        "slo_attainment": None if goodput is None else goodput / data["request_throughput"],
    }
    return found[name]


def row_order(row: SplitRow) -> tuple[float, ...]:
    """Order rows of a load: by attainment where there are limits, then by latency; bounds last."""
    attainment, latency = row.values["slo_attainment"], row.values["mean_e2el_ms"]
    return (row.rate or 0.0, row.is_bound, -round(attainment or 0.0, 6), latency or 0.0)


def judged(row: SplitRow, rows: list[SplitRow]) -> SplitRow:
    """Return a row with whether any other row of its load beats it."""
    own, *others = (
        [each.values[name] or 0.0 for name in ("p99_ttft_ms", "mean_tpot_ms")]
        for each in (row, *(each for each in rows if each.rate == row.rate and not each.is_bound))
    )
    return replace(row, is_efficient=not (row.is_bound or is_beaten(own, others)))


def is_beaten(own: Iterable[float], others: Iterable[Iterable[float]]) -> bool:
    """Return whether each of some numbers is lower in one of the others."""
    return any(all(map(lt, other, own)) for other in others)
