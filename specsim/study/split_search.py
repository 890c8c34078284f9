"""Search: a split of some GPUs, the tensor parallelism of each pool, and a policy.

Each pool is simulated by itself, for every number of replicas that it may have: a prefill pool
alone, a decode pool behind prefill replicas of which each request finds one idle. What requests
meet in two pools together is then put together from both, request by request, and the best pairs
are simulated whole. What this leaves out is that a prefill pool that queues hands over its requests
in another rhythm than they came in.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from time import perf_counter
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from specsim.core.errors import ConfigError, SpecsimError
from specsim.core.processes import LocalProcesses
from specsim.core.resources import find_resource
from specsim.core.runner import Runner
from specsim.policies import Policy
from specsim.results.metrics import latency, latency_statistics, limited, tpot, ttft
from specsim.routing.simple import RoundRobin
from specsim.run.experiment import POOLS, Experiment, PoolsConfig
from specsim.run.summary import summarized
from specsim.run.whole import prefill_requests
from specsim.study.split import (
    Split,
    SplitRow,
    Way,
    at_rate,
    is_beaten,
    judged,
    row_order,
    simulated_rows,
    splits,
)
from specsim.workload.arrivals.patterns import ClosedLoop
from specsim.workload.trace import TraceRequests

T = TypeVar("T")

_IDLE = 64  # prefill replicas before a decode pool that is looked at by itself
_MOST = 16  # splits of each pair of profiles, so that the time does not grow with the GPUs

Columns = dict[str, NDArray[np.float64]]


@dataclass(frozen=True)
class _Piece:
    """What requests meet in a pool by itself; an array by request each, seconds."""

    columns: Columns
    is_overloaded: bool


@dataclass(frozen=True)
class SplitPrediction:
    """What the pools of a way come to together, as far as they can be told apart."""

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
    """What was looked at on the way to the rows of a `Split`."""

    predictions: list[SplitPrediction] = field(default_factory=list)
    """Of all pairs of pools that keep up; the best of each load first, bounds last."""
    left_out: list[str] = field(default_factory=list)  # what could not be run, and why
    pieces: int = 0  # simulations of a pool by itself
    too_small: int = 0
    """Pairs that were left out since the queue of a pool, or of a larger one, kept growing."""
    worst_error: float | None = None
    """Of the mean latencies predicted, over the splits that were simulated whole and are stable."""
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
    """Look for the best way to use some GPUs; the rows are those that were simulated whole.

    A SpecsimError if one of them cannot be run, or there is none.

    Args:
        sizes: Tensor parallelism of a replica, of either pool; by default the experiment's.
        rates: Requests per second in place of the experiment's.
        most: Splits that are simulated whole, of each load; half of them the best, the others
            those that no other beats in both p99 TTFT and mean TPOT, if they are not among the
            best.
        replications: Of those, and of colocated replicas; pools by themselves are run once.
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
            found = simulated_rows(whole, replications, runner)
            _compare(predictions, whole, found, search)
            rows += [judged(row, found) for row in found]
            search.predictions += predictions
    search.seconds = perf_counter() - begun
    return Split(gpus, sorted(rows, key=row_order)), search


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
    """Return some of many splits, the first and the last among them, and say so."""
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
    """Yield the profiles of a model on a GPU in some sizes, as far as there are any."""
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
    """Return what pairs of pools come to of which both keep up, the best first.

    A pool is run with ever fewer replicas until its queue keeps growing: fewer would be no better.
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
    """Return what a pool of a way is simulated by itself as, and how many replicas it has."""
    own = getattr(way.experiment.pools, pool)
    what = way.policy or ""
    if pool == "prefill":
        engine = way.experiment.of_pool("prefill").engine
        what = "drafts" if engine.speculative_config is not None else ""
    return (pool, own.profile, what), own.replicas


def _climb_down(
    task: tuple[str, list[tuple[int, Experiment]]],
) -> tuple[dict[int, _Piece], str | None]:
    """Run a pool by itself with ever fewer replicas; also say why if it cannot be run."""
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
    """Return the best, and what nothing beats in both latencies, in their order."""
    front = []
    for is_bound in (False, True):
        own = [each for each in predictions if each.way.is_bound == is_bound]
        pairs = [(each.p99_ttft_ms, each.mean_tpot_ms) for each in own]
        front += [each for each, pair in zip(own, pairs, strict=True) if not is_beaten(pair, pairs)]
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
