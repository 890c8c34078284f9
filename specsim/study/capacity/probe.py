"""Probes: one load of one server, simulated several times; what two say of the capacity."""

from collections.abc import Callable
from dataclasses import dataclass
from math import exp, inf, log
from statistics import fmean
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from specsim.profile import Profile
from specsim.profile.model_error import UsualStep
from specsim.results.metrics import Slo, latency, limited, most_at_once
from specsim.results.records import PoolTables
from specsim.results.stability import Balance, together, warm_up_of
from specsim.results.tables import RunTables
from specsim.run.deployment import Deployment
from specsim.run.summary import Summary, summarized
from specsim.run.validity import Beyond
from specsim.study.capacity.choices import Goal
from specsim.study.capacity.limits import ALL, Promise
from specsim.study.loads import Trial, steady_window
from specsim.study.paired import mean_and_half_width
from specsim.workload.arrivals import Arrivals
from specsim.workload.arrivals.patterns import ClosedLoop

_LONGEST = 0.25  # mean latency, as a share of the time in which requests arrive
_DRAINING = 10  # the last tenth of the requests, which meet a server that empties
_LEAST = 1e-9  # share of the requests that may miss a limit that all must keep
_FULL = 0.9  # of the KV cache, at the largest step
_EMPTYING = 0.75  # share of the requests, all given at once, after whose end a server empties
_INSTANT = 1e-9  # seconds

BACKLOG = "backlog"


class Task(NamedTuple):
    """One simulation, and the goal whose limits its requests are held against."""

    load: float
    trial: Trial
    profile: Profile
    goal: Goal


@dataclass(frozen=True)
class LoadRun:
    """One simulation at a load. Of its requests, those that meet a steady server are looked at."""

    load: float  # requests/s or clients
    num_requests: int
    num_steady: int  # requests after the warm-up and before the last tenth
    missed: float  # share of the steady requests that missed a limit
    missed_by: dict[str, float]
    """Share that missed each limit: ``ttft_ms``, ``tpot_ms``, ``e2el_ms``."""
    promises: dict[str, Promise]
    """By limit, and `ALL` for those together that have no share of their own."""
    reached_ms: dict[str, float]
    """Of each limited metric, the quantile at the share that must keep the limit."""
    balance: Balance
    is_too_short: bool
    """Whether requests took more than a quarter of the time in which they arrived: then the server
    may hold a backlog that has had no time to show."""
    requests_per_second: float
    """Answered while requests arrived and the server was full; where all came at once, see
    `_full_rate`."""
    mean_output_len: float  # tokens per request
    latencies_ms: dict[str, float]  # ``mean_e2el_ms``, ``p99_ttft_ms`` and so on
    most_running: int  # most requests at once that had begun and not ended
    resource: str
    """What a waiting request waits for: ``max_num_seqs``, ``max_loras``, ``kv_memory`` or
    ``step_time``; with pools, where it queues longest: ``prefill_pool``, ``link`` or
    ``decode_pool``."""
    beyond: Beyond  # steps beyond the profile's valid range
    usual_step: UsualStep | None = None


class LoadProbe:
    """A load that was tried, in runs with different seeds, and what these come to in the mean."""

    def __init__(self, runs: tuple[LoadRun, ...]) -> None:
        first, self.runs = runs[0], runs
        self.load, self.num_requests = first.load, first.num_requests  # requests/s or clients
        self.attainment = 1.0 - self.mean(lambda run: run.missed)
        """Share of the steady requests that kept all limits."""
        self.requests_per_second = self.mean(lambda run: run.requests_per_second)
        self.mean_output_len = self.mean(lambda run: run.mean_output_len)  # tokens per request
        self.latencies_ms = self._means(lambda run: run.latencies_ms)
        self.reached_ms = self._means(lambda run: run.reached_ms)
        missed = self._means(lambda run: {n: each.missed for n, each in run.promises.items()})
        self.promises = {n: Promise(each, first.promises[n].share) for n, each in missed.items()}
        self.keeps_promises = all(each.is_kept for each in self.promises.values())
        self.stability = together(run.balance.stability for run in runs)
        self.is_overloaded = self.stability == "overloaded"
        self.is_too_short = any(run.is_too_short for run in runs)
        waited_for = sorted(run.resource for run in runs)
        self.resource = max(waited_for, key=waited_for.count)  # in most runs

    @property
    def is_undecided(self) -> bool:
        """Whether nothing is against the load but that runs were too short to be sure of it."""
        return self.is_too_short and self.keeps_promises and not self.is_overloaded

    @property
    def held(self) -> int:
        """Most requests that the server held at once, in any of the runs."""
        return max(run.most_running for run in self.runs)

    def without(self, number: int) -> "LoadProbe":
        return LoadProbe(self.runs[:number] + self.runs[number + 1 :])

    def mean(self, value: Callable[[LoadRun], float]) -> float:
        return fmean(map(value, self.runs))

    def _means(self, values: Callable[[LoadRun], dict[str, float]]) -> dict[str, float]:
        each = [values(run) for run in self.runs]
        return {name: fmean(one[name] for one in each) for name in each[0]}

    @property
    def beyond(self) -> Beyond:
        return Beyond.over([run.beyond for run in self.runs])

    @property
    def binds(self) -> str:
        """The limit that is missed most beyond its promise; ``backlog`` if enough keep all."""
        if self.keeps_promises:
            return BACKLOG
        misses = self._means(lambda run: run.missed_by)
        own = {name: self.promises.get(name) or self.promises[ALL] for name in misses}
        return max(misses, key=lambda name: misses[name] / max(1.0 - own[name].share, _LEAST))

    @property
    def is_sustained(self) -> bool:
        """Whether enough requests kept their limits and no overload was seen."""
        return self.keeps_promises and not (self.is_overloaded or self.is_too_short)

    def margins(self, slo: Slo) -> dict[str, float]:
        """Return how far each limited metric is from its limit, as a share of that."""
        limits = slo.model_dump(exclude_none=True)
        return {name: 1.0 - self.reached_ms[name] / limit for name, limit in limits.items()}


def measure(task: Task) -> LoadRun:
    """Run a simulation and return what is kept of it."""
    trial = task.trial
    summary = summarized(trial.experiment, requests=trial.requests(), profile=task.profile)
    tables, pools = summary.tables, summary.pools
    requests, arrivals = tables.requests, trial.experiment.workload.arrivals
    clients = arrivals.concurrency if isinstance(arrivals, ClosedLoop) else None
    steady = _steady(requests, clients)
    lasts_long = float(latency(requests).mean()) > _LONGEST * float(np.ptp(requests["arrived_at"]))
    reached = limited(steady, task.goal.slo)
    missed = {name: values > limit for name, (values, limit) in reached.items()}
    limits = task.goal.limits
    most_running, resource = _waited_for(tables, summary.run.deployment)
    if _wait_for_adapters(summary):
        resource = "max_loras"
    if pools is not None:
        resource = _pool_of(pools, missed, 1.0 - limits.share_of("tpot_ms"))
    return LoadRun(
        load=task.load,
        num_requests=len(requests),
        num_steady=len(steady),
        missed=float(np.any(list(missed.values()), axis=0).mean()),
        missed_by={name: float(each.mean()) for name, each in missed.items()},
        promises=limits.promises(missed),
        reached_ms={
            name: float(np.quantile(values, limits.share_of(name)))
            for name, (values, _) in reached.items()
        },
        balance=summary.balance,
        is_too_short=lasts_long and clients is None,  # a closed loop is never overloaded
        requests_per_second=_answered_per_second(requests, arrivals),
        mean_output_len=float(requests["output_len"].mean()),
        latencies_ms=_statistics(steady),
        most_running=most_running,
        resource=resource,
        beyond=summary.beyond,
        usual_step=summary.usual_step,
    )


def _steady(requests: NDArray[np.void], clients: int | None) -> NDArray[np.void]:
    """Return the requests that meet a steady server, in the order of arrival.

    In a closed loop: from when each client has been answered twice on average.
    """
    count = len(requests)
    first = warm_up_of(requests) if clients is None else min(2 * clients, count // 2)
    in_order = np.argsort(requests["arrived_at"], kind="stable")
    return requests[in_order[first : count - count // _DRAINING]]


def _answered_per_second(requests: NDArray[np.void], arrivals: Arrivals) -> float:
    if isinstance(arrivals, ClosedLoop) and arrivals.concurrency == len(requests):
        return _full_rate(requests)
    start, end = steady_window(requests, arrivals)
    ended_at = requests["ended_at"]
    return float(((ended_at > start) & (ended_at <= end)).sum() / (end - start))


def _full_rate(requests: NDArray[np.void]) -> float:
    """Return how many requests/s a server answers that was given all of them at once.

    By the tokens that it had answered when three of four requests had ended, for then it empties.
    """
    began_at, first_at, ended_at, output_len = (
        requests[name] for name in ("arrived_at", "first_token_at", "ended_at", "output_len")
    )
    until = np.quantile(ended_at, _EMPTYING)
    took = np.maximum(ended_at - first_at, _INSTANT)
    answered = np.clip((until - first_at) / took, 0.0, 1.0) * (output_len - 1) + (first_at <= until)
    mean_len, seconds = output_len.mean(), until - began_at.min()
    return float(answered.sum() / mean_len / seconds)


def _statistics(requests: NDArray[np.void]) -> dict[str, float]:
    """Return statistics of latencies, milliseconds; the TPOT of a single token is 0."""
    samples = limited(requests, Slo(ttft_ms=1, tpot_ms=1, e2el_ms=1))
    means = {f"mean_{name}": float(values.mean()) for name, (values, _) in samples.items()}
    return means | {
        f"p{percentile}_{name}": float(np.percentile(values, percentile))
        for name, (values, _) in samples.items()
        for percentile in (50, 99)
    }


def _pool_of(pools: PoolTables, missed: dict[str, NDArray[np.bool_]], may_miss: float) -> str:
    """Return where requests queue longest on average: for a pool's blocks and steps, or the link.

    Where too many miss the limit of TPOT, and more than any other, it is the decode pool, for time
    per token begins after the first one.
    """
    shares = {name: float(each.mean()) for name, each in missed.items()}
    if max(shares, key=lambda name: shares[name]) == "tpot_ms" and shares["tpot_ms"] > may_miss:
        return "decode_pool"
    prefills, transfers = pools.prefills, pools.transfers
    had_transfer = np.isfinite(transfers["transfer_ended_at"])
    loaded_at = np.where(had_transfer, transfers["transfer_ended_at"], transfers["prefilled_at"])
    began_at = np.where(had_transfer, transfers["transfer_began_at"], loaded_at)
    waits = {
        "prefill_pool": prefills["scheduled_at"] - prefills["arrived_at"],
        "link": loaded_at - began_at,
        "decode_pool": began_at - transfers["prefilled_at"] + pools.decode_scheduled_at - loaded_at,
    }
    # Less what the quickest take, such as the latency of a transfer, which is no queue.
    return max(waits, key=lambda name: float(waits[name].mean() - waits[name].min()))


def _waited_for(tables: RunTables, deployment: Deployment) -> tuple[int, str]:
    """Return the most requests that ran at once, and what those that waited were waiting for."""
    requests = tables.requests
    most = most_at_once(requests["scheduled_at"], requests["ended_at"])
    ranks = deployment.engine.data_parallel_size or 1
    slots = deployment.setup.limits["max_num_running"] * ranks
    if most >= slots:
        return most, "max_num_seqs"
    length = int((requests["prompt_len"] + requests["output_len"]).mean())
    held, stages = int(tables.totals["context_tokens"]), len(deployment.profile.stage_shares)
    if stages > 1:  # each stage is at another step, and a sequence in one of them
        own_lens = requests["prompt_len"] + requests["output_len"] / 2
        held = min(stages * held, int(most * own_lens.mean()))
    share = held / deployment.kv_capacity(max(length, 1))
    is_full = share > _FULL or requests["preemptions"].any()
    return most, "kv_memory" if is_full else "step_time"


def _wait_for_adapters(summary: Summary) -> bool:
    """Return whether requests wait mostly while adapters of others have all LoRA slots."""
    lora, columns = summary.run.deployment.engine.lora_config, summary.request_columns
    if lora is None or "adapter" not in columns:
        return False
    began_at, ended_at = columns["scheduled_at"], columns["ended_at"]
    times = np.unique(np.concatenate([began_at, ended_at]))
    owners = {
        number: columns["adapter"] == number for number in np.unique(columns["adapter"]) if number
    }
    runs = {
        number: np.searchsorted(np.sort(began_at[own]), times, side="right")
        > np.searchsorted(np.sort(ended_at[own]), times, side="right")
        for number, own in owners.items()
    }
    is_full = np.sum([*runs.values()], axis=0) >= lora.max_loras
    waited = 0.0
    for number, own in owners.items():
        lost = np.append(0.0, np.cumsum((is_full & ~runs[number])[:-1] * np.diff(times)))
        until, since = (
            np.interp(columns[n][own], times, lost) for n in ("scheduled_at", "arrived_at")
        )
        waited += float((until - since).sum())
    return waited > float((began_at - columns["arrived_at"]).sum()) / 2


_UNKNOWN_BETWEEN = 1 / 4  # of the width of the bracket: so far at least the lines may be off
_REACH = 4  # times the width of the bracket: as far as the lines are believed beyond it


@dataclass(frozen=True)
class Interval:
    """A capacity, with its 95 % confidence interval."""

    estimate: float
    low: float
    high: float

    @property
    def half_width(self) -> float:
        """Half the width, as a share of the estimate."""
        return log(self.high / self.low) / 2

    def times(self, factor: float) -> "Interval":
        """Return the interval in another unit."""
        return Interval(self.estimate * factor, self.low * factor, self.high * factor)

    def around(self, load: float) -> "Interval":
        """Return the interval, made to hold a load that was confirmed."""
        return Interval(self.estimate, min(self.low, load), max(self.high, load))

    def moved_from(self, before: float, left: float) -> "Interval":
        """Return the interval, longer on the side to which the estimate has moved.

        From `before`, of shorter runs; the share `left` of the movement may be still to come.
        """
        moved = (self.estimate / before) ** left
        return Interval(self.estimate, self.low * min(1.0, moved), self.high * max(1.0, moved))


def interval_between(low: LoadProbe, high: LoadProbe) -> Interval | None:
    """Return where between a sustained load and one that is not the capacity lies.

    Between two loads close together, the logarithm of the share of requests that miss a limit, and
    the excess of the balance, are taken to be lines over the logarithm of the load. Where the first
    of them passes what is allowed is the capacity. The jackknife over replications, which have the
    same seeds, turns that into an interval, at least half as wide as the two loads are apart, for
    between them nothing was tried (Tukey 1958, "Bias and confidence in not quite large samples";
    Miller 1974, "The jackknife - a review", for pseudo-values and Student's t).

    None with a single replication of either, which says nothing about spread, and where `high`
    failed by nothing that can be told by how much.
    """
    pairs = zip(_scores(low), _scores(high), strict=True)
    # By how much each score rises from one load to the other; 0 if none is missed there.
    slopes = tuple(above - below if above > 0 else 0.0 for below, above in pairs)
    count = min(len(low.runs), len(high.runs))
    if count < 2 or all(slope <= 0 for slope in slopes):
        return None
    whole = _root(low, high, slopes)
    others = (_root(low.without(number), high.without(number), slopes) for number in range(count))
    _, half_width = mean_and_half_width([count * whole - (count - 1) * each for each in others])
    assert half_width is not None
    half_width = max(half_width, _UNKNOWN_BETWEEN * log(high.load / low.load))
    return Interval(exp(whole), exp(whole - half_width), exp(whole + half_width))


def _scores(probe: LoadProbe) -> list[float]:
    """Return by how much promises, and what the server can do, are missed; 0 is just allowed."""
    requests = sum(run.num_steady for run in probe.runs)
    least = 0.5 / max(requests, 1)  # of no request that was seen to miss, half a one is assumed
    over = [
        log(max(1.0 - (1.0 - each.missed), least) / max(1.0 - each.share, least))
        for each in probe.promises.values()
    ]
    return [*over, probe.mean(lambda run: run.balance.excess())]


def _root(low: LoadProbe, high: LoadProbe, slopes: tuple[float, ...]) -> float:
    """Return the logarithm of the load at which the first score passes 0."""
    middle, width = log(low.load * high.load) / 2, log(high.load / low.load)
    roots = [inf]
    for below, above, slope in zip(_scores(low), _scores(high), slopes, strict=True):
        if slope > 0:
            roots.append(middle - (below + above) / 2 / slope * width)
    return min(max(min(roots), middle - _REACH * width), middle + _REACH * width)
