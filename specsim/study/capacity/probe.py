"""Probes: one load on one server in several simulations; and the capacity between two probes."""

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
_LEAST = 1e-9  # share of the requests that may miss a limit which all must keep
_FULL = 0.9  # of the KV cache, at its fullest step
_EMPTYING = 0.75  # share of requests that came at once, after whose end the server empties
_INSTANT = 1e-9  # seconds

BACKLOG = "backlog"


class Task(NamedTuple):
    """One simulation, and the goal with the limits for its requests."""

    load: float
    trial: Trial
    profile: Profile
    goal: Goal


@dataclass(frozen=True)
class LoadRun:
    """One simulation at a load; shares and latencies are of the requests in a steady server."""

    load: float  # requests/s or clients
    num_requests: int
    num_steady: int  # requests after the warm-up and before the last tenth
    missed: float  # share of the steady requests that missed a limit
    missed_by: dict[str, float]
    """Share of the steady requests that missed each limit: ``ttft_ms``, ``tpot_ms``,
    ``e2el_ms``."""
    promises: dict[str, Promise]
    """By limit; `ALL` is for the limits without a share of their own, together."""
    reached_ms: dict[str, float]
    """Quantile of each limited latency at the share that must keep the limit, ms."""
    balance: Balance
    is_too_short: bool
    """Whether latencies exceed a quarter of the time of arrivals, so that a backlog may not show
    yet."""
    requests_per_second: float
    """Requests answered per second while requests arrived and the server was full; see `_full_rate`
    for requests that came at once."""
    mean_output_len: float  # tokens per request
    latencies_ms: dict[str, float]  # ``mean_e2el_ms``, ``p99_ttft_ms`` and so on
    most_running: int  # most requests that had begun and not ended at one time
    resource: str
    """What waiting requests wait for: ``max_num_seqs``, ``max_loras``, ``kv_memory`` or
    ``step_time``; with pools, where requests queue longest: ``prefill_pool``, ``link`` or
    ``decode_pool``."""
    beyond: Beyond  # steps beyond the profile's valid range
    usual_step: UsualStep | None = None


class LoadProbe:
    """A load that was simulated with several seeds, and the means of these runs."""

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
        self.resource = max(waited_for, key=waited_for.count)  # of most runs

    @property
    def is_undecided(self) -> bool:
        """Whether the load only failed because runs were too short."""
        return self.is_too_short and self.keeps_promises and not self.is_overloaded

    @property
    def held(self) -> int:
        """Most requests that the server held at once in any run."""
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
        """The limit that exceeds its promise most; ``backlog`` if no promise is broken."""
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
        """Return the distance of each limited latency from its limit, as a share of the limit."""
        limits = slo.model_dump(exclude_none=True)
        return {name: 1.0 - self.reached_ms[name] / limit for name, limit in limits.items()}


def measure(task: Task) -> LoadRun:
    """Run a simulation and return the results that a search needs."""
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
    """Return the requests in a steady server, in the order of arrival.

    In a closed loop it is steady once each client has had two answers on average.
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
    """Return the throughput of a server that was given all requests at once, requests/s.

    It is taken from the tokens answered until three of four requests had ended, since then the
    server empties.
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

    If the TPOT limit is missed too often, and most of all, that is the decode pool, because TPOT
    begins after the first token.
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
    # Less the shortest time, such as the latency of a transfer, which is no queue.
    return max(waits, key=lambda name: float(waits[name].mean() - waits[name].min()))


def _waited_for(tables: RunTables, deployment: Deployment) -> tuple[int, str]:
    """Return the most requests that ran at once, and the resource that waiting requests lacked."""
    requests = tables.requests
    most = most_at_once(requests["scheduled_at"], requests["ended_at"])
    ranks = deployment.engine.data_parallel_size or 1
    slots = deployment.setup.limits["max_num_running"] * ranks
    if most >= slots:
        return most, "max_num_seqs"
    length = int((requests["prompt_len"] + requests["output_len"]).mean())
    held, stages = int(tables.totals["context_tokens"]), len(deployment.profile.stage_shares)
    if stages > 1:  # a sequence is in the step of one stage at a time
        own_lens = requests["prompt_len"] + requests["output_len"] / 2
        held = min(stages * held, int(most * own_lens.mean()))
    share = held / deployment.kv_capacity(max(length, 1))
    is_full = share > _FULL or requests["preemptions"].any()
    return most, "kv_memory" if is_full else "step_time"


def _wait_for_adapters(summary: Summary) -> bool:
    """Return whether requests wait mostly because other adapters have all LoRA slots."""
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


_UNKNOWN_BETWEEN = 1 / 4  # of the bracket's width: the least error of the interpolation
_REACH = 4  # times the bracket's width: how far outside lines are trusted


@dataclass(frozen=True)
class Interval:
    """A capacity estimate with its 95 % confidence interval."""

    estimate: float
    low: float
    high: float

    @property
    def half_width(self) -> float:
        """Half the width of the interval, as a share of the estimate."""
        return log(self.high / self.low) / 2

    def times(self, factor: float) -> "Interval":
        """Return the interval multiplied by a factor, for another unit."""
        return Interval(self.estimate * factor, self.low * factor, self.high * factor)

    def around(self, load: float) -> "Interval":
        """Return the interval, widened to include a load that was confirmed."""
        return Interval(self.estimate, min(self.low, load), max(self.high, load))

    def moved_from(self, before: float, left: float) -> "Interval":
        """Return the interval, widened on the side to which the estimate moved.

        It moved from `before`, of shorter runs, and may still move by the share `left` of that.
        """
        moved = (self.estimate / before) ** left
        return Interval(self.estimate, self.low * min(1.0, moved), self.high * max(1.0, moved))


def interval_between(low: LoadProbe, high: LoadProbe) -> Interval | None:
    """Return the interval of the capacity between a sustained load and one that is not.

    Between two close loads, the logarithm of the share of requests that miss a limit, and the
    excess of the balance, are taken to be linear in the logarithm of the load; the capacity is
    where the first of them exceeds what is allowed. The jackknife over replications, which have the
    same seeds, gives the interval, at least half as wide as the loads are apart, since nothing was
    simulated between them (Tukey 1958, "Bias and confidence in not quite large samples"; Miller
    1974, "The jackknife - a review", for pseudo-values and Student's t).

    None with a single replication of either, and if `high` failed by something without a degree.
    """
    pairs = zip(_scores(low), _scores(high), strict=True)
    # The rise of each score from one load to the other; 0 if none is missed there.
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
    """Return how far promises and the server's capacity are exceeded; 0 is just allowed."""
    requests = sum(run.num_steady for run in probe.runs)
    least = 0.5 / max(requests, 1)  # if no request missed, assume half a request did
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
