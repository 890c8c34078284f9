"""Split: the best use of a number of GPUs: colocated replicas, or prefill and decode pools.

Every split, and colocated replicas, meet the same requests on the same luck. A search also varies
the tensor parallelism of each pool and the policies. It first simulates each pool by itself, for
every number of replicas that it may have: a prefill pool alone, a decode pool behind so many
prefill replicas that each request finds one idle. It predicts each pair of pools from both, request
by request, and simulates the best pairs as a whole. The prediction leaves out that a prefill pool
with a queue hands over requests in another rhythm than they came in.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from operator import lt
from pathlib import Path
from statistics import fmean
from time import perf_counter
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from specsim.core.atomic import new_folder
from specsim.core.errors import ConfigError, SpecsimError
from specsim.core.processes import LocalProcesses
from specsim.core.resources import find_resource
from specsim.core.runner import Runner
from specsim.core.version import __version__
from specsim.policies import Policy, is_bound
from specsim.profile import load_profile
from specsim.results.folder import write_json
from specsim.results.metrics import latency, latency_statistics, limited, tpot, ttft
from specsim.results.stability import Stability, stability_of, together
from specsim.routing.simple import RoundRobin
from specsim.run.experiment import POOLS, Experiment, PoolsConfig
from specsim.run.summary import summarized
from specsim.run.whole import prefill_requests
from specsim.study.paired import replicated
from specsim.workload import WorkloadConfig
from specsim.workload.arrivals.patterns import ClosedLoop, TraceReplay
from specsim.workload.trace import TraceRequests

T = TypeVar("T")
Columns = dict[str, NDArray[np.float64]]

_IDLE = 64  # prefill replicas before a decode pool that is simulated by itself
_MOST = 16  # splits per pair of profiles, so that the time does not grow with the number of GPUs

COLUMNS = (
    "request_throughput", "slo_attainment", "mean_ttft_ms", "p99_ttft_ms", "mean_tpot_ms",
    "p99_tpot_ms", "mean_e2el_ms", "mean_transfer_ms",
)  # fmt: skip


@dataclass(frozen=True)
class Way:
    """One way to use the GPUs, as an experiment."""

    label: str  # ``colocated``, or the replicas of the pools: ``2p + 6d``
    gpus: int  # in use; some are left over if replicas need several each
    experiment: Experiment
    policy: str | None = None  # short form, if policies are searched

    @property
    def is_bound(self) -> bool:
        """Whether its policy uses what no server can know."""
        return is_bound(self.experiment.effective_policy)


@dataclass(frozen=True)
class SplitRow:
    """The results of one way to use the GPUs at one load; means over the replications."""

    label: str
    rate: float | None  # requests/s; None if the experiment has no rate
    prefill_replicas: int  # 0 if replicas are colocated
    decode_replicas: int
    gpus: int
    values: dict[str, float | None]  # by the names in `COLUMNS`
    stability: Stability
    is_efficient: bool = True
    """Whether no other way has both a lower p99 TTFT and a lower mean TPOT at this load. Always
    False for bounds, which do not count against other ways either."""
    policy: str | None = None
    is_bound: bool = False  # no server can run its policy

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
    """The results of all ways to use the GPUs, by load and then the best first; bounds last."""

    gpus: int
    rows: list[SplitRow]

    def save(self, folder: Path | str, **more: Any) -> None:
        """Write ``split.json`` with more fields; a ConfigError if it cannot be written."""
        rows = [row.to_dict() for row in self.rows]
        data = {"gpus": self.gpus, "rows": rows, **more, "specsim_version": __version__}
        with new_folder(Path(folder), ["split.json"]) as unfinished:
            write_json(data, unfinished / "split.json")


def splits(experiment: Experiment, gpus: int) -> Iterator[Way]:
    """Yield the ways to use some GPUs, colocated replicas first.

    Pools have the settings of the experiment's pools, if it has any. Raises a ConfigError if there
    are too few GPUs for any way.
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
    """Run every way to use some GPUs, at the experiment's load or at several rates, requests/s."""
    loads: list[float | None] = list(dict.fromkeys(rates)) if rates else [None]
    ways = [way for rate in loads for way in splits(at_rate(experiment, rate), gpus)]
    if all(way.label == "colocated" for way in ways):
        raise ConfigError(f"--gpus {gpus}: too few for two pools of a replica each; name more")
    with Runner(LocalProcesses(workers), on_progress) as runner:
        rows = _simulated_rows(ways, replications, runner)
    rows = [_judged(row, rows) for row in rows]
    return Split(gpus, sorted(rows, key=_row_order))


def _simulated_rows(ways: list[Way], replications: int, runner: Runner) -> list[SplitRow]:
    """Simulate ways to use the GPUs."""
    tasks = [replicated(way.experiment, replications, "split") for way in ways]
    return [*map(_row, ways, runner.run(_run_one, tasks))]


def at_rate(experiment: Experiment, rate: float | None) -> Experiment:
    """Return an experiment at another rate, requests/s; a ConfigError if it has no rate."""
    if rate is None:
        return experiment
    workload = experiment.workload
    if "rate" not in type(workload.arrivals).model_fields:
        raise ConfigError(
            f"--rates: arrivals of kind {workload.arrivals.kind} have no rate; leave --rates out"
        )
    scale = {"time_scale": 1.0} if isinstance(workload.arrivals, TraceReplay) else {}
    starts = rate / _turns(workload)  # sessions per second
    arrivals = workload.arrivals.model_copy(update={"rate": starts, **scale})
    return experiment.replace(
        "--rates", workload=workload.model_copy(update={"arrivals": arrivals})
    )


def _turns(workload: WorkloadConfig) -> float:
    """Return the mean number of requests per arrival."""
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


def _row_order(row: SplitRow) -> tuple[float, ...]:
    """Return the sort key of a row: SLO attainment if there are limits, latency; bounds last."""
    attainment, latency = row.values["slo_attainment"], row.values["mean_e2el_ms"]
    return (row.rate or 0.0, row.is_bound, -round(attainment or 0.0, 6), latency or 0.0)


def _judged(row: SplitRow, rows: list[SplitRow]) -> SplitRow:
    """Return a row with `is_efficient` set, given all rows of its load."""
    own, *others = (
        [each.values[name] or 0.0 for name in ("p99_ttft_ms", "mean_tpot_ms")]
        for each in (row, *(each for each in rows if each.rate == row.rate and not each.is_bound))
    )
    return replace(row, is_efficient=not (row.is_bound or _is_beaten(own, others)))


def _is_beaten(own: Iterable[float], others: Iterable[Iterable[float]]) -> bool:
    """Return whether one of the others is lower in every number."""
    return any(all(map(lt, other, own)) for other in others)


@dataclass(frozen=True)
class _Piece:
    """What requests meet in a pool that is simulated alone; arrays of shape (n,), seconds."""

    columns: Columns
    is_overloaded: bool


@dataclass(frozen=True)
class SplitPrediction:
    """The predicted results of a pair of pools, put together from both."""

    way: Way
    attainment: float | None
    mean_e2el_ms: float
    p99_ttft_ms: float
    mean_tpot_ms: float

    @property
    def order(self) -> tuple[float, ...]:
        return self.way.is_bound, -round(self.attainment or 0.0, 6), self.mean_e2el_ms

    def to_dict(self) -> dict[str, Any]:
        names = ("attainment", "mean_e2el_ms", "p99_ttft_ms", "mean_tpot_ms")
        own = {name: getattr(self, name) for name in names}
        return {"label": self.way.label, "policy": self.way.policy, **own}


@dataclass
class Search:
    """What a search looked at, besides the rows of its `Split`."""

    predictions: list[SplitPrediction] = field(default_factory=list)
    """All pairs of pools that keep up, by load and then the best first; bounds last."""
    left_out: list[str] = field(default_factory=list)  # what could not be run, and why
    pieces: int = 0  # simulations of a pool by itself
    too_small: int = 0
    """Pairs that were left out because the queue of one of their pools kept growing."""
    worst_error: float | None = None
    """Largest error of a predicted mean latency, over stable splits that were simulated whole."""
    seconds: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        names = ("pieces", "too_small", "worst_error", "left_out")
        own = {name: getattr(self, name) for name in names}
        return {**own, "predictions": [each.to_dict() for each in self.predictions]}


def search_splits(
    experiment: Experiment,
    gpus: int,
    *,
    policies: dict[str, Policy],
    sizes: Sequence[int] | None = None,
    rates: list[float] | None = None,
    most: int = 8,
    replications: int = 1,
    workers: int = 1,
    on_progress: Callable[[int], None] | None = None,
) -> tuple[Split, Search]:
    """Search for the best way to use some GPUs; the rows are those that were simulated whole.

    Raises a SpecsimError if one of them cannot be run, or there is none.

    Args:
        sizes: Tensor parallelism of a replica in either pool; by default the experiment's.
        rates: Requests per second, in place of the experiment's.
        most: Splits to simulate whole, per load: half of them the best, half those that no other
            beats in both p99 TTFT and mean TPOT.
        replications: Of splits that are simulated whole, and of colocated replicas; pools by
            themselves are run once.
    """
    if isinstance(experiment.workload.arrivals, ClosedLoop):
        raise ConfigError(
            "--tp and --policies: clients of a closed loop wait for both pools, which cannot be "
            "looked at one by one; use arrivals with a rate, or leave these options out"
        )
    begun, search, rows = perf_counter(), Search(), list[SplitRow]()
    loads: list[float | None] = list(dict.fromkeys(rates)) if rates else [None]
    with Runner(LocalProcesses(workers), on_progress) as runner:
        for rate in loads:
            loaded = at_rate(experiment, rate)
            ways = list(_ways(loaded, gpus, sizes, policies, search.left_out))
            pairs = [way for way in ways if way.experiment.pools is not None]
            predictions = _predicted(pairs, runner, search)
            chosen = [each.way for each in _finalists(predictions, most)]
            whole = [way for way in ways if way.experiment.pools is None] + chosen
            found = _simulated_rows(whole, replications, runner)
            _compare(predictions, whole, found, search)
            rows += [_judged(row, found) for row in found]
            search.predictions += predictions
    search.seconds = perf_counter() - begun
    return Split(gpus, sorted(rows, key=_row_order)), search


def _ways(
    experiment: Experiment,
    gpus: int,
    sizes: Sequence[int] | None,
    policies: dict[str, Policy],
    left_out: list[str],
) -> Iterator[Way]:
    pools = experiment.pools or PoolsConfig()
    prefills, decodes, both = (
        list(_of_sizes(name or experiment.profile, sizes, gpus, left_out))
        for name in (pools.prefill.profile, pools.decode.profile, None)
    )
    is_any = False
    for label, policy in policies.items():
        plain = experiment.replace("--policies", policy=policy)
        for profile in both:
            size = f" {_size(profile)}" if sizes else ""
            whole = next(splits(plain.replace("--tp", profile=profile), gpus))
            yield replace(whole, label=whole.label + size, policy=label)
        for prefill, decode in product(prefills, decodes):
            apart = pools.with_each("profile", prefill, decode)
            changed = plain.replace("--tp", profile=decode, pools=apart, replicas=1)
            ends = f" {_size(prefill)}/{_size(decode)}" if sizes else ""
            for way in thinned(list(splits(changed, gpus))[1:], ends, left_out):
                is_any = True
                yield replace(way, label=way.label + ends, policy=label)
    if not is_any:
        raise ConfigError(f"--gpus {gpus}: too few for two pools; {'; '.join(left_out) or 'add'}")


def thinned(found: list[T], what: str, left_out: list[str]) -> list[T]:
    """Return a part of many splits, the first and last included; note it in `left_out`."""
    places = np.unique(np.linspace(0, len(found) - 1, min(len(found), _MOST)).round().astype(int))
    note = f"{len(found) - len(places)} of {len(found)} splits{what}, between those looked at"
    if len(places) < len(found) and note not in left_out:
        left_out.append(note)
    return [found[place] for place in places]


def _size(profile: str) -> str:
    found = re.search(r"-(tp\d+)$", profile.removesuffix(".yaml"))
    return found[1] if found else "tp1"


def _of_sizes(
    profile: str, sizes: Sequence[int] | None, gpus: int, left_out: list[str]
) -> Iterator[str]:
    """Yield the profiles of a model on a GPU in some sizes, if they exist."""
    if sizes is None:
        yield profile
        return
    is_file = profile.endswith(".yaml")
    stem = re.sub(r"-tp\d+$", "", profile.removesuffix(".yaml"))
    for size in sizes:
        name = stem + (f"-tp{size}" if size > 1 else "") + (".yaml" if is_file else "")
        is_there = Path(name).is_file() if is_file else find_resource("profiles", f"{name}.yaml")
        why = "" if is_there else "no such profile; make one by `specsim profile build`"
        if size > gpus:
            why = f"more than {gpus} GPUs"
        if not why:
            yield name
        elif f"{name}: {why}" not in left_out:
            left_out.append(f"{name}: {why}")


def _predicted(ways: list[Way], runner: Runner, search: Search) -> list[SplitPrediction]:
    """Return predictions for pairs of pools that both keep up, the best first.

    A pool is run with ever fewer replicas until its queue keeps growing; still fewer would not
    help.
    """
    ladders: dict[tuple[str, ...], dict[int, Experiment]] = {}
    for way in ways:
        for pool in POOLS:
            piece, replicas = _piece_of(way, pool)
            ladders.setdefault(piece, {})[replicas] = way.experiment
    tasks = [(key[0], sorted(steps.items(), reverse=True)) for key, steps in ladders.items()]
    groups = runner.run(_climb_down, [[task] for task in tasks])
    found = {key: one for key, [one] in zip(ladders, groups, strict=True)}
    for key, (pieces, why) in found.items():
        search.pieces += len(pieces)
        if why is not None:
            search.left_out.append(f"{' '.join(key).strip()}: {why}")
    predictions = []
    for way in ways:
        needed = [_piece_of(way, pool) for pool in POOLS]
        parts = [found[piece][0].get(replicas) for piece, replicas in needed]
        known = [part for part in parts if part is not None and not part.is_overloaded]
        if len(known) == len(POOLS):
            predictions.append(_together(way, *known))
    search.too_small += len(ways) - len(predictions)
    return sorted(predictions, key=lambda each: each.order)


def _piece_of(way: Way, pool: str) -> tuple[tuple[str, ...], int]:
    """Return the key of a way's pool as simulated by itself, and its number of replicas."""
    own = getattr(way.experiment.pools, pool)
    what = way.policy or ""
    if pool == "prefill":
        engine = way.experiment.of_pool("prefill").engine
        what = "drafts" if engine.speculative_config is not None else ""
    return (pool, own.profile, what), own.replicas


def _climb_down(
    task: tuple[str, list[tuple[int, Experiment]]],
) -> tuple[dict[int, _Piece], str | None]:
    """Run a pool by itself with ever fewer replicas; also return why if it cannot be run."""
    pool, steps = task
    found: dict[int, _Piece] = {}
    for replicas, experiment in steps:
        try:
            found[replicas] = _prefills(experiment) if pool == "prefill" else _decodes(experiment)
        except SpecsimError as error:
            return found, str(error)
        if found[replicas].is_overloaded:
            break
    return found, None


def _prefills(experiment: Experiment) -> _Piece:
    requests = prefill_requests(list(TraceRequests(experiment.workload.build(experiment.seed))))
    summary = summarized(experiment.of_pool("prefill"), requests=requests)
    rows = summary.tables.requests
    return _Piece({"prefill": rows["ended_at"] - rows["arrived_at"]}, summary.is_overloaded)


def _decodes(experiment: Experiment) -> _Piece:
    pools = experiment.pools
    assert pools is not None
    idle = {"replicas": _IDLE, "profile": pools.decode.profile, "routing": RoundRobin()}
    before = pools.prefill.model_copy(update=idle)
    alone = experiment.replace("split", pools=pools.model_copy(update={"prefill": before}))
    summary = summarized(alone)
    rows, moved = summary.tables.requests, summary.pools
    assert moved is not None
    columns = {
        "until_first": rows["first_token_at"] - moved.transfers["prefilled_at"],
        "after_first": rows["ended_at"] - rows["first_token_at"],
        "output_len": rows["output_len"].astype(np.float64),
    }
    return _Piece(columns, summary.is_overloaded)


def _together(way: Way, prefill: _Piece, decode: _Piece) -> SplitPrediction:
    columns = {**prefill.columns, **decode.columns}
    first = columns["prefill"] + columns["until_first"]
    requests = {
        "arrived_at": np.zeros(len(first)),
        "first_token_at": first,
        "ended_at": first + columns["after_first"],
        "output_len": columns["output_len"],
    }
    limits = limited(requests, way.experiment.slo).values() if way.experiment.slo else ()
    kept = [samples <= limit for samples, limit in limits]
    return SplitPrediction(
        way,
        float(np.all(kept, axis=0).mean()) if kept else None,
        mean_e2el_ms=latency_statistics(latency(requests))["mean"],
        p99_ttft_ms=latency_statistics(ttft(requests))["p99"],
        mean_tpot_ms=latency_statistics(tpot(requests))["mean"],
    )


def _finalists(predictions: list[SplitPrediction], most: int) -> list[SplitPrediction]:
    """Return the best predictions and those that no other beats in both latencies, in order."""
    front = []
    for bound in (False, True):
        own = [each for each in predictions if each.way.is_bound == bound]
        pairs = [(each.p99_ttft_ms, each.mean_tpot_ms) for each in own]
        front += [
            each for each, pair in zip(own, pairs, strict=True) if not _is_beaten(pair, pairs)
        ]
    chosen = predictions[: -(-most // 2)]
    chosen += [each for each in front if each not in chosen][: most - len(chosen)]
    chosen += [each for each in predictions if each not in chosen][: most - len(chosen)]
    return chosen


def _compare(
    predictions: list[SplitPrediction], whole: list[Way], rows: list[SplitRow], search: Search
) -> None:
    expected = {id(each.way): each.mean_e2el_ms for each in predictions}
    errors = [
        abs(expected[id(way)] / latency - 1)
        for way, row in zip(whole, rows, strict=True)
        if id(way) in expected
        and row.stability != "overloaded"
        and (latency := row.values["mean_e2el_ms"])
    ]
    search.worst_error = max([*errors, search.worst_error or 0.0]) if errors else search.worst_error
