"""Stability: whether the server of a run keeps up with what arrives.

A server that is offered more than it can do is *overloaded*: its queue grows for as long as
requests arrive, and latencies say how long that was. One that keeps up is *stable*. Both begin
empty and fill up, and a run of 1,000 requests may end while they still do, so growth alone does
not tell one from the other. What does is how fast the server works when it is busiest.

**The rule.** The time of the arrivals is cut into 40 equal periods. Work is counted in tokens,
those of prompts at a fifth, and is done evenly from a request's first step to its first token and
from there to its last. Periods are busy that have at least 0.7 of the most requests in the system.
*Offered* is the work that arrives per second over the work that is done per second in busy periods;
its standard error comes from how these differ, and from how requests and their gaps differ.

- ``overloaded``: offered is more than 1 beyond doubt, and those that wait became more. Of a server
  that only fills up, those that run become more.
- ``stable``: offered is less than 1 beyond doubt. Or next to nothing waits, the number in the
  system has stopped growing, and offered is not clearly more than 1: there is room for more.
- ``undecided``: neither, as close to the capacity, or where a run ends before its server is full.
  Or nothing is done in busy periods, as in an outage that lasts until the last arrival.

A configured rate of arrivals counts as it is, not as the sample has it, which is off by 3 % in
1,000 requests of a Poisson process. Where the rate changes, its mean counts: a peak that is worked
off later is no overload. Of sessions, only the first turns come from outside. Replicas are taken
together; if one of them is overloaded by itself, the run is. Nothing overloads a server whose
clients wait for their answers.

``benchmarks/stability.py`` has how often this is right, and on what the constants were chosen.

The warm-up is found by MSER-5 on the number of requests in the system that each arrival meets:
White (1997), "An effective truncation heuristic for bias reduction in simulation output"; White,
Cobb, Spratt (2000), "A comparison of five steady-state truncation heuristics for simulation".
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from specsim.results.metrics import Requests

Stability = Literal["stable", "overloaded", "undecided"]
Floats = NDArray[np.float64]
Spans = tuple[Floats, Floats]
"""Begin and end of some state of each request, seconds."""

_PERIODS = 40
_BUSY = 0.7  # of the largest number of requests in the system in any period
_LEAST_BUSY = 4  # periods
_PROMPT = 0.2  # work of a prompt token, in output tokens
_DOUBT = 1.2  # standard errors that count as beyond doubt
_LEAST = 0.02  # least difference of `offered` from 1 that counts, since tokens measure work roughly
_GROWTH = 0.41  # divided by sqrt(number of requests): 1.3 % of 1,000 arrivals counts
_CALM = 3.0  # times that growth of the requests in the system counts as calm
_FEW = 0.06  # of the requests in the system: with no more waiting, next to nothing waits
_ONE_OF_MANY = 2.5  # times the doubt for one of several replicas, any of which may look bad
_MIN_REQUESTS = 40
_NOTHING = 1e-6  # of all work: less than this done while requests arrive is only rounding


@dataclass(frozen=True)
class Balance:
    """What arrives at a server, compared with what it can do."""

    offered: float  # work that arrives per second / work done per second in busy periods
    error: float  # standard error of `offered`
    growth: float
    """Requests added to the system per arrival, in the second half of the arrivals."""
    queue_growth: float  # waiting requests added per arrival, over all arrivals
    least_growth: float  # the least `queue_growth` that counts, requests per arrival
    waiting: float  # share of the requests in the system that wait, in busy periods

    def excess(self, times: float = 1.0) -> float:
        """Return by how much `offered` exceeds 1 and `times` the doubt; negative if it does not."""
        return min(self.offered - 1 - times * self._doubt, self.queue_growth - self.least_growth)

    @property
    def _doubt(self) -> float:
        return max(_LEAST, _DOUBT * self.error)

    @property
    def _has_room(self) -> bool:
        has_filled_up = self.growth < _CALM * self.least_growth
        return has_filled_up and self.waiting < _FEW and self.offered < 1 + self._doubt

    @property
    def stability(self) -> Stability:
        if self.excess() > 0:
            return "overloaded"
        return "stable" if self.offered < 1 - self._doubt or self._has_room else "undecided"


KEEPS_UP = Balance(0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
"""The balance of a closed loop or a burst, which cannot overload a server."""
UNKNOWN = Balance(
    offered=1.0, error=1.0, growth=0.0, queue_growth=0.0, least_growth=1.0, waiting=1.0
)
"""The balance of too few requests to tell."""


def together(answers: Iterable[Stability]) -> Stability:
    """Return the common answer of several runs of one setting; ``undecided`` if they disagree.

    This is safer than the rule above applied to means, whose errors shrink with the number of runs:
    that a server is still filling up happens in every run alike.
    """
    said = set(answers) - {"undecided"}
    return said.pop() if len(said) == 1 else "undecided"


def stability_of(own: Mapping[str, Any]) -> Stability:
    """Return the stability in the block ``specsim`` of a summary."""
    found: Stability = own["stability"]
    if found not in get_args(Stability):
        raise ValueError(f"stability = {found!r} is none of {', '.join(get_args(Stability))}")
    return found


def as_flags(answer: Stability) -> dict[str, int]:
    """Return the stability as the two 0/1 columns of tables of metrics."""
    return {name: int(answer == name) for name in ("overloaded", "undecided")}


def stability_in(metrics: Mapping[str, float]) -> Stability:
    """Return the stability from the 0/1 columns in a row of metrics."""
    if metrics.get("overloaded"):
        return "overloaded"
    return "undecided" if metrics.get("undecided") else "stable"


STABILITY_MARKS = {"stable": "", "overloaded": "OVERLOADED", "undecided": "undecided"}
"""How tables mark a result by its stability."""


@dataclass(frozen=True)
class Demand:
    """The requests of a run, with what is known of how they arrive and wait."""

    requests: Requests  # columns of `specsim.results.tables.TABLE_FIELDS`
    rate: float | None = None  # configured rate of requests from outside, requests/s
    is_outside: NDArray[np.bool_] | None = None  # which requests did not follow an answer
    decode_waits: Spans | None = None  # with pools: when each waited for the link or a decode step

    @property
    def waits(self) -> list[Spans]:
        own = (self.requests["arrived_at"], self.requests["scheduled_at"])
        return [own] if self.decode_waits is None else [own, self.decode_waits]

    @property
    def outside(self) -> Floats:
        """When requests arrived from outside, ascending, seconds."""
        arrived_at = self.requests["arrived_at"]
        return np.sort(arrived_at if self.is_outside is None else arrived_at[self.is_outside])

    def of(self, mine: NDArray[np.int64]) -> "Demand":
        """Return the demand of some requests, whose rate is estimated from their own arrivals."""
        columns = {name: self.requests[name][mine] for name in _COLUMNS}
        is_outside = None if self.is_outside is None else self.is_outside[mine]
        return Demand(columns, None, is_outside)


_COLUMNS = ("arrived_at", "scheduled_at", "first_token_at", "ended_at", "prompt_len", "output_len")


def balance(demand: Demand, replicas: NDArray[np.int32] | None = None) -> Balance:
    """Return the balance of all replicas; or of one of them if that one is overloaded by itself.

    Args:
        replicas: The replica that answered each request; None if not to be told apart.
    """
    whole = _balance(demand)
    if replicas is None or whole.excess() > 0:
        return whole
    rows = np.split(np.argsort(replicas, kind="stable"), np.cumsum(np.bincount(replicas))[:-1])
    # Most replicas have no queue, and need no closer look.
    each = [_balance(part) for part in map(demand.of, rows) if _queue_grows(part)]
    worst = max(each, key=lambda found: found.excess(_ONE_OF_MANY), default=whole)
    return worst if worst.excess(_ONE_OF_MANY) > 0 else whole


def _balance(demand: Demand) -> Balance:
    outside, requests = demand.outside, demand.requests
    if _proves_nothing(outside):
        return UNKNOWN
    at = np.linspace(outside[0], outside[-1], _PERIODS + 1)
    present = _mean_inside((requests["arrived_at"], requests["ended_at"]), at)
    waiting = _waiting(demand, at)
    is_busy = present >= min(_BUSY * present.max(), np.sort(present)[-_LEAST_BUSY])
    prompts, outputs = _PROMPT * requests["prompt_len"], 1.0 * requests["output_len"]
    # Where pools do the two kinds of work, the one that is further behind counts.
    parts = [(prompts, outputs)]
    if demand.decode_waits is not None:
        parts = [(prompts, 0.0 * outputs), (0.0 * prompts, outputs)]
    offered, error = max(_offered(demand, *part, at, is_busy) for part in parts)
    half = _PERIODS // 2
    return Balance(
        offered=offered,
        error=error,
        growth=_rise(present[half:]) / (len(outside) / 2),
        queue_growth=_rise(waiting) / len(outside),
        least_growth=_GROWTH / len(outside) ** 0.5,
        waiting=float(waiting[is_busy].sum() / present[is_busy].sum()),
    )


def _proves_nothing(outside: Floats) -> bool:
    return len(outside) < _MIN_REQUESTS or bool(outside[0] == outside[-1])


def _queue_grows(demand: Demand) -> bool:
    """Return whether waiting requests became more, without which nothing is overloaded."""
    outside = demand.outside
    if _proves_nothing(outside):
        return False
    waiting = _waiting(demand, np.linspace(outside[0], outside[-1], _PERIODS + 1))
    return bool(_rise(waiting) / len(outside) > _GROWTH / len(outside) ** 0.5)


def _waiting(demand: Demand, at: Floats) -> Floats:
    """Return how many requests wait, as the mean of each period between the instants `at`."""
    waiting: Floats = np.sum([_mean_inside(spans, at) for spans in demand.waits], axis=0)
    return waiting


def _offered(
    demand: Demand, prompts: Floats, outputs: Floats, at: Floats, is_busy: NDArray[np.bool_]
) -> tuple[float, float]:
    """Return work arriving / work done in busy periods, and the standard error of this ratio."""
    outside, requests = demand.outside, demand.requests
    gaps, work = np.diff(outside), prompts + outputs
    gap, spread = float(gaps.mean()), float(gaps.std() / gaps.mean())
    if demand.rate is not None:
        gap, spread = 1 / demand.rate, 0.0
    done = _done((requests["scheduled_at"], requests["first_token_at"]), prompts, at)
    done = done + _done((requests["first_token_at"], requests["ended_at"]), outputs, at)
    paces = (np.diff(done) / np.diff(at))[is_busy]
    if paces.sum() < _NOTHING * work.sum() / (at[-1] - at[0]):
        return UNKNOWN.offered, UNKNOWN.error
    offered = float(work.sum() / len(outside) / gap / paces.mean())
    errors = (
        work.std() / work.mean() / np.sqrt(len(work)),
        spread / np.sqrt(len(gaps)),
        paces.std(ddof=1) / paces.mean() / np.sqrt(len(paces)),
    )
    return offered, offered * float(np.hypot.reduce(errors))


def _rise(values: Floats) -> float:
    """Return the rise of a fitted line from the first value to the last."""
    return float(np.polyfit(np.linspace(-0.5, 0.5, len(values)), values, 1)[0])


def _done(spans: Spans, work: Floats, at: Floats) -> Floats:
    """Return the work done until each instant; the work of a span is done evenly over it."""
    begin, end = spans
    end = np.maximum(end, begin + 1e-5 * (at[-1] - at[0]))  # so that sums keep their digits
    pace = work / (end - begin)
    return _ramps(begin, pace, at) - _ramps(end, pace, at)


def _mean_inside(spans: Spans, at: Floats) -> Floats:
    """Return how many spans are open, as the mean of each period between the instants `at`."""
    one = np.ones(len(spans[0]))
    inside = _ramps(spans[0], one, at) - _ramps(spans[1], one, at)
    return np.diff(inside) / np.diff(at)


def _ramps(begin: Floats, slopes: Floats, at: Floats) -> Floats:
    """Return the sum of ramps at each instant; each is 0 until `begin`, then rises."""
    order = np.argsort(begin, kind="stable")  # already next to in order
    begin, slopes = begin[order], slopes[order]
    del order  # freed early: memory peaks here with a million requests
    places = np.searchsorted(begin, at)
    found: Floats = _sums(slopes)[places] * at
    slopes *= begin
    return found - _sums(slopes)[places]


def _sums(values: Floats) -> Floats:
    """Return the sums of the first 0, 1, ... n values, shape (n + 1,)."""
    sums = np.zeros(len(values) + 1)
    np.cumsum(values, out=sums[1:])
    return sums


_BATCH = 5  # values that MSER-5 averages into one


def warm_up_len(series: Floats) -> int:
    """Return how many values at the beginning of a series are warm-up, by MSER-5.

    The values are averaged in groups of five, and cut where the standard error of the remaining
    mean is smallest, but at half at most: such a series may be too short to become steady.
    """
    count = len(series) // _BATCH
    if count < 2:
        return 0
    means = series[: count * _BATCH].reshape(count, _BATCH).mean(axis=1)
    means = means - means.mean()  # so that sums of squares keep their digits
    left = np.arange(count, 0, -1)
    sums, squares = (np.cumsum(values[::-1])[::-1] for values in (means, means**2))
    errors = (squares - sums**2 / left) / left**2
    return int(np.argmin(errors[: count // 2 + 1])) * _BATCH


def warm_up_of(requests: Requests) -> int:
    """Return how many requests, in the order of arrival, belong to the warm-up of a run."""
    arrived_at = np.sort(requests["arrived_at"])
    ended = np.searchsorted(np.sort(requests["ended_at"]), arrived_at, side="right")
    return warm_up_len((np.arange(len(arrived_at)) - ended).astype(np.float64))
