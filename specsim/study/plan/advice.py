"""Advice: the one model of a plan's answer.

``plan.json`` is its dump; console and page show its words, and compute nothing.
"""

from typing import Literal

from pydantic import BaseModel, ConfigDict

from specsim.core.figures import figures
from specsim.study.capacity import Found
from specsim.study.capacity.limits import LatencyLimits
from specsim.study.paired import speed_up
from specsim.study.plan.candidates import place_words


class _Fields(BaseModel):
    model_config = ConfigDict(frozen=True, allow_inf_nan=False, extra="ignore")


class AgainstNone(_Fields):
    """Speculation compared with no speculation, on the same hardware and for the same traffic."""

    times_as_fast: float  # ratio of mean latencies, each with its own number of servers
    low: float | None  # of the 95 % interval
    high: float | None
    times_the_cost: float
    is_searched: bool  # False if one of the two had short runs only


class Choice(_Fields):
    """A GPU without speculation, or with its best speculation, at the target load."""

    gpu: str
    hardware: str  # with its parallel size, as in ``capacity.json``
    policy: str | None  # likewise; None if no option could be tried
    speculation: str  # in words
    state: Literal["searched", "estimated", "impossible"]  # estimated: by short runs
    why: str = ""  # reason if impossible
    gpus_per_server: int = 1  # with pools, of all servers of a unit
    pools: tuple[int, int] | None = None  # servers of a unit for prefill and for decode
    ranks: int = 1  # data-parallel ranks of a server, which share experts
    is_measured: bool = True
    servers: int | None = None
    servers_interval: tuple[int, int] | None = None
    gpus: int | None = None
    cost_per_hour: float | None = None
    cost_per_million_tokens: float | None = None  # of output tokens, at the target load
    capacity: float | None = None  # requests/s of one server
    capacity_interval: tuple[float, float] | None = None
    capacity_by_model: tuple[float, float] | None = None
    """Capacity if step times are off as on four in five measured servers; None if that is not
    known."""
    servers_by_model: tuple[int, int] | None = None
    beyond: tuple[float, float] | None = None
    """The smallest load of one server that was not sustained, and the share within the limits
    there."""
    binds: str | None = None
    """The limit that is missed most there (``ttft_ms``), or ``backlog`` if the queue grows."""
    beyond_kept: dict[str, float] = {}
    """If limits have shares of their own: the share within each of them there, and within the
    others together (`all`)."""
    spare: float | None = None  # share of the capacity that is left
    reached_ms: dict[str, float] = {}  # percentile of each latency that its limit is compared with
    mean_latency_ms: float | None = None
    against_none: AgainstNone | None = None

    @property
    def place(self) -> str:
        """Its GPU as text, with pools or ranks."""
        return place_words(self.gpu, self.pools, self.ranks)

    @property
    def refusal(self) -> str:
        return self.why if self.policy is None else f"{self.place}, {self.speculation}: {self.why}"

    @property
    def unit(self) -> str:
        """What is rented in several copies: a server or a unit."""
        return "server" if self.pools is None else "unit"


class Tried(_Fields):
    """An option that was tried, shown or not."""

    hardware: str
    policy: str
    speculation: str
    is_searched: bool
    requests_per_second: float | None
    cost_per_hour: float | None
    mean_e2el_ms: float | None


class WhatIf(_Fields):
    """What would be rented if one assumption were different."""

    kind: Literal["load", "step times", "acceptance"]
    what: str  # the assumption, as text
    hardware: str | None = None  # None if nothing keeps the limits
    policy: str | None = None
    rented: str = "nothing keeps the limits"  # GPUs and speculation, as text
    gpus: int | None = None
    cost_per_hour: float | None = None
    is_searched: bool = False  # False if it had short runs only
    is_other: bool = True  # whether hardware or speculation differ from the answer
    times_as_fast: float | None = None  # as no speculation on this hardware under this assumption


class OtherPrice(_Fields):
    """The price of a GPU below which it would cost less than the answer."""

    gpu: str
    speculation: str
    cheaper_below: float  # per GPU and hour
    now: float  # likewise


class DayFleet(_Fields):
    """The servers of a day for one way of changing their number."""

    way: str
    hardware: str
    policy: str
    rented: str  # in words: GPU and speculation
    least_servers: int
    most_servers: int
    gpu_hours: float  # per day
    cost_per_day: float
    is_searched: bool  # False if the capacity is from short runs only


class DayAdvice(_Fields):
    """A day of changing load; `Advice.requests_per_second` is its maximum."""

    hours: list[float]
    rates: list[float]  # requests per second; linear between the hours
    requests: float
    start_up_seconds: float  # from the start of a server until it serves
    headroom: float
    """Factor of the load for which an autoscaler keeps servers of the rented GPU."""
    requests_per_server: float  # concurrency of a server at the load that leaves that headroom
    fleets: list[DayFleet]  # the cheapest for each way of scaling


class ApiAdvice(_Fields):
    """The same load on an API that charges by the token."""

    per_million: tuple[float, float]  # prompt and output tokens
    mean_lens: tuple[float, float]  # tokens of a prompt and of an answer
    cost_per_hour: float
    cost_per_day: float | None
    same_cost_at: float | None  # requests per second at which it costs what is rented


class Advice(_Fields):
    """What to rent, the alternatives, and what the answer depends on."""

    model: str
    traffic: str
    requests_per_second: float
    attainment: float
    spare_servers: int
    slo: dict[str, float]
    limit_shares: dict[str, float] = {}  # shares with own limits, in place of `attainment`
    currency: str
    choices: list[Choice]  # of all GPUs in the question
    taken: int | None  # index in `choices`
    off_from: float | None
    """Rate of one server from which on the chosen speculation is slower than none, requests/s."""
    not_shown_cheaper_than: list[str]
    what_ifs: list[WhatIf]
    other_prices: list[OtherPrice]
    day: DayAdvice | None = None
    api: ApiAdvice | None = None
    assumptions: list[str]
    tried: list[Tried]
    warnings: list[str] = []  # what is not simulated, or not as asked

    @property
    def limits(self) -> LatencyLimits:
        return LatencyLimits(self.slo, self.attainment, self.limit_shares)

    @property
    def best(self) -> Choice | None:
        return None if self.taken is None else self.choices[self.taken]


def why_not(found: Found) -> str:
    """Return why the lowest load that was tried was not sustained."""
    lowest, goal = found.probes[0], found.goal
    missed = {n: 1 - each.missed for n, each in lowest.promises.items() if not each.is_kept}
    why = goal.limits.kept_words(missed)
    if not missed:
        why = "the queue grows" if lowest.is_overloaded else "runs were too short to tell"
    return f"{why} even at {figures(lowest.load, 3)} requests/s"


def against(none: Found, found: Found, *, is_searched: bool) -> AgainstNone | None:
    """Return speculation compared with none on one hardware; None if either sustains no load."""
    one, other = none.at_target, found.at_target
    costs = none.cost_per_hour, found.cost_per_hour
    if one is None or other is None or costs[0] is None or costs[1] is None:
        return None
    # Of runs of the same requests; if only one of the two was searched, of the first replications
    # of both.
    mine, theirs = (
        [run.latencies_ms["mean_e2el_ms"] for run in probe.runs] for probe in (other, one)
    )
    common = min(len(mine), len(theirs))
    ratio = speed_up(theirs[:common], mine[:common])
    ends = (ratio.low, ratio.high) if is_searched else (None, None)
    return AgainstNone(
        times_as_fast=ratio.mean,
        low=ends[0],
        high=ends[1],
        times_the_cost=costs[1] / costs[0],
        is_searched=is_searched,
    )
