"""Advice: the one model of a plan's answer, and its words.

``plan.json`` is its dump; console and page show its words, and neither computes anything.
"""

from collections.abc import Iterable
from itertools import pairwise
from math import ceil, exp, log
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from specsim.study.capacity import Found
from specsim.study.paired import speed_up
from specsim.study.plan.candidates import Option, Question
from specsim.study.plan.traffic import NAMES

_MORE, _LESS = 1.2, 0.8  # times the load: where else the answer is looked at


class _Fields(BaseModel):
    model_config = ConfigDict(frozen=True, allow_inf_nan=False, extra="ignore")


class AgainstNone(_Fields):
    """Speculation against none, on the same hardware and for the same traffic."""

    times_as_fast: float  # ratio of mean latencies, each with its own number of servers
    low: float | None  # of the 95 % interval
    high: float | None
    times_the_cost: float
    is_searched: bool  # False where one of the two was seen in short runs alone


class Choice(_Fields):
    """A GPU without speculation, or with the best that was tried, for the load that was asked."""

    gpu: str
    hardware: str  # with its parallel size, as in ``capacity.json``
    policy: str | None  # likewise; None where nothing could be tried
    speculation: str  # in words
    state: Literal["searched", "estimated", "impossible"]  # estimated: by short runs alone
    why: str = ""  # it is impossible
    gpus_per_server: int = 1
    is_measured: bool = True
    servers: int | None = None
    servers_interval: tuple[int, int] | None = None
    gpus: int | None = None
    cost_per_hour: float | None = None
    cost_per_million_tokens: float | None = None  # of output, at the load that was asked
    capacity: float | None = None  # requests/s of one server
    capacity_interval: tuple[float, float] | None = None
    beyond: tuple[float, float] | None = None
    """The smallest load of one server that was not sustained, and the share within the limits."""
    spare: float | None = None  # share of the capacity that is left
    reached_ms: dict[str, float] = {}  # of each limit, its own percentile
    mean_latency_ms: float | None = None
    against_none: AgainstNone | None = None


class Tried(_Fields):
    """An option that was tried, shown or not."""

    hardware: str
    policy: str
    speculation: str
    is_searched: bool
    requests_per_second: float | None
    cost_per_hour: float | None
    mean_e2el_ms: float | None


class Advice(_Fields):
    """What to rent, what else there is, and what the answer hangs on."""

    model: str
    traffic: str
    requests_per_second: float
    attainment: float
    slo: dict[str, float]
    currency: str
    choices: list[Choice]  # of all GPUs that were asked for
    taken: int | None  # place among them
    off_from: float | None
    """Requests/s of one server from which on the taken speculation is slower than none."""
    not_shown_cheaper_than: list[str]
    at_other_loads: list[str]
    assumptions: list[str]
    tried: list[Tried]

    @property
    def best(self) -> Choice | None:
        return None if self.taken is None else self.choices[self.taken]


def gpu_name(gpu: str) -> str:
    """Return ``H100`` for ``h100``."""
    return gpu.upper()


def speculation_words(option: Option) -> str:
    """Return what an option does, in words: ``EAGLE-3, fixed draft length 2``."""
    proposer = option.experiment.engine.speculative_config
    if proposer is None:
        return "no speculation"
    policy = option.experiment.effective_policy
    k = getattr(policy, "k", None)
    how = f"fixed draft length {k}" if policy.kind == "static" else NAMES["policies"].get(
        policy.kind, f"draft length by {policy.kind}"
    )  # fmt: skip
    return f"{NAMES['proposers'].get(proposer.method, proposer.method)}, {how}"


def choice_of(
    option: Option, found: Found, *, is_searched: bool, over: AgainstNone | None
) -> Choice:
    """Return what is known of an option."""
    hardware, probe = found.hardware, found.at_target
    head = {
        "gpu": hardware.profile.gpu,
        "hardware": hardware.label,
        "policy": option.label,
        "speculation": speculation_words(option),
        "gpus_per_server": hardware.gpus_per_replica,
        "is_measured": hardware.is_measured,
    }
    if found.rate is None or found.replicas is None or probe is None:
        lowest = found.probes[0]
        why = f"{lowest.attainment:.0%} within the limits even at {lowest.load:.3g} requests/s"
        return Choice(**head, state="impossible", why=why)
    between = found.interval if is_searched else None
    beyond = found.beyond_capacity
    return Choice(
        **head,
        state="searched" if is_searched else "estimated",
        servers=found.replicas,
        servers_interval=found.replicas_interval if is_searched else None,
        gpus=found.replicas * hardware.gpus_per_replica,
        cost_per_hour=found.cost_per_hour,
        cost_per_million_tokens=found.cost_at_target,
        capacity=found.rate,
        capacity_interval=None if between is None else (between.low, between.high),
        beyond=None if beyond is None else (beyond.load, beyond.attainment),
        spare=1.0 - probe.load / found.rate,
        reached_ms=probe.reached_ms,
        mean_latency_ms=probe.latencies_ms["mean_e2el_ms"],
        against_none=over,
    )


def against(none: Found, found: Found, *, is_searched: bool) -> AgainstNone | None:
    """Return speculation against none on one hardware; None if either serves no load."""
    one, other = none.at_target, found.at_target
    costs = none.cost_per_hour, found.cost_per_hour
    if one is None or other is None or costs[0] is None or costs[1] is None:
        return None
    # Of runs of the same requests; where one of them was searched and the other was not, of the
    # first replications of both.
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


def slower_from(none: Found, found: Found) -> float | None:
    """Return the requests/s of one server from which on speculation is slower than none.

    Between loads that were tried, the logarithm of the mean latency is taken to be a line; None if
    it is not slower at any load that both serve within the limits.
    """
    curves = [
        [(p.load, log(p.latencies_ms["mean_e2el_ms"])) for p in each.probes]
        for each in (none, found)
    ]
    low, high = max(c[0][0] for c in curves), min(c[-1][0] for c in curves)
    loads = sorted({x for c in curves for x, _ in c if low <= x <= high})
    gaps = [(x, _at(curves[1], x) - _at(curves[0], x)) for x in loads]
    for (before, left), (after, right) in pairwise(gaps):
        if left <= 0 < right and after <= (found.rate or 0):
            return exp(log(before) + log(after / before) * left / (left - right))
    return None


def _at(curve: list[tuple[float, float]], x: float) -> float:
    for (before, left), (after, right) in pairwise(curve):
        if before <= x <= after:
            return left + (right - left) * log(x / before) / log(after / before)
    return curve[0][1]


def at_other_load(
    question: Question, factor: float, found: Iterable[tuple[Option, Found]]
) -> str | None:
    """Return what would be rented at so many times the load, by the capacities that were found."""
    rate = question.rate * factor
    costs = [
        (ceil(rate / each.rate) * each.hardware.gpus_per_replica * each.price, option, each)
        for option, each in found
        if each.rate is not None and each.price is not None
    ]
    if not costs:
        return None
    cost, option, each = min(costs, key=lambda known: (known[0], known[1].needs_a_policy))
    gpus = ceil(rate / (each.rate or rate)) * each.hardware.gpus_per_replica
    return (
        f"at {rate:g} requests/s ({factor - 1:+.0%}): {gpus} {gpu_name(each.hardware.profile.gpu)},"
        f" {speculation_words(option)}, {cost:,.2f} {question.prices.currency} per hour"
    )


def other_loads(question: Question, found: list[tuple[Option, Found]]) -> list[str]:
    """Return what would be rented for a fifth less and more traffic."""
    texts = [at_other_load(question, factor, found) for factor in (_LESS, _MORE)]
    return [text for text in texts if text is not None]


def headline(advice: Advice) -> str:
    """Return the answer in one or two plain sentences."""
    best = advice.best
    if best is None or best.servers is None or best.gpus is None:
        return "None of these GPUs keeps the limits at any load; raise --slo or lower --attainment."
    size = "1 GPU" if best.gpus_per_server == 1 else f"{best.gpus_per_server} GPUs"
    servers = "1 server" if best.servers == 1 else f"{best.servers:,} servers"
    rent = (
        f"Rent {best.gpus:,} {gpu_name(best.gpu)}: {servers} of {size}, "
        f"{best.cost_per_hour or 0:,.2f} {advice.currency} per hour."
    )
    return f"{rent} {_on_speculation(advice, best)}"


def _on_speculation(advice: Advice, best: Choice) -> str:
    if best.policy != "off":
        text = f"Speculation ({best.speculation}) {_effect(best)}"
        if advice.off_from is None:
            return f"{text}."
        return f"{text}; above {advice.off_from:.3g} requests/s per server turn it off."
    tried = [c for c in advice.choices if c.hardware == best.hardware and c.policy != "off"]
    known = [c for c in tried if c.against_none is not None]
    if not known:
        return "No speculation: none that was tried keeps the limits there."
    return f"No speculation: {known[0].speculation} {_effect(known[0])}."


def _effect(choice: Choice) -> str:
    """Return "makes answers 1.5 times as fast (95 %: 1.41 to 1.57) at the same cost"."""
    found = choice.against_none
    if found is None:
        return "is what keeps the limits: without it no load does, on the same GPU"
    about = "" if found.is_searched else "about "
    fast = f"makes answers {about}{found.times_as_fast:.2f} times as fast"
    if found.low is not None and found.high is not None:
        if found.low <= 1 <= found.high:
            fast = "makes no difference in speed that is shown"
        fast += f" (95 %: {found.low:.2f} to {found.high:.2f})"
    return f"{fast} at {_cost_words(found.times_the_cost)}"


def _cost_words(ratio: float) -> str:
    if ratio == 1:
        return "the same cost"
    return f"{abs(1 - ratio):.0%} {'less' if ratio < 1 else 'more'} cost on the same GPU"


def title(advice: Advice) -> str:
    """Return what is asked for, without the limits."""
    return f"{advice.requests_per_second:g} requests/s of {advice.traffic} to {advice.model}"


def asked(advice: Advice) -> str:
    """Return the question."""
    share = f"{100 * advice.attainment:.4g} % of the requests"
    return f"{title(advice)}; {share} within {limits_words(advice.slo)}"


def limits_words(slo: dict[str, float]) -> str:
    """Return ``TTFT 800 ms and TPOT 50 ms``."""
    return " and ".join(f"{_metric(name)} {limit:g} ms" for name, limit in slo.items())


def _metric(name: str) -> str:
    return name.removesuffix("_ms").upper()


def table(advice: Advice) -> tuple[list[str], list[list[str]]]:
    """Return heads and rows of all choices, in words."""
    percentile = f"p{100 * advice.attainment:g}"
    limits = [f"{_metric(name)} {percentile}, ms" for name in advice.slo]
    heads = [
        "GPU", "speculation", "GPUs", f"{advice.currency} per hour",
        f"{advice.currency} per 1 M tokens", *limits, "mean latency, ms", "times as fast",
        "to spare", "how sure",
    ]  # fmt: skip
    return heads, [_row(advice, place) for place in range(len(advice.choices))]


def _row(advice: Advice, place: int) -> list[str]:
    choice = advice.choices[place]
    name = gpu_name(choice.gpu) + ("" if choice.is_measured else " (roofline)")
    head = [name + (" (taken)" if place == advice.taken else ""), choice.speculation]
    if choice.servers is None:
        return [*head, *["-"] * (len(advice.slo) + 6), choice.state]
    found = choice.against_none
    about = "" if found is None or found.is_searched else "about "
    return [
        *head,
        f"{choice.gpus:,} ({choice.servers:,} x {choice.gpus_per_server})",
        _number(choice.cost_per_hour, 2),
        _number(choice.cost_per_million_tokens, 2),
        *(_milliseconds(choice.reached_ms.get(name)) for name in advice.slo),
        _milliseconds(choice.mean_latency_ms),
        "-" if found is None else f"{about}{found.times_as_fast:.2f}",
        f"{choice.spare or 0:.0%}",
        choice.state,
    ]


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:,.{digits}f}"


def _milliseconds(value: float | None) -> str:
    return _number(value, 0 if value is None or value >= 100 else 1)


def notes(advice: Advice) -> list[str]:
    """Return what the answer hangs on, one sentence each."""
    best = advice.best
    found = []
    if best is not None and best.capacity is not None and best.servers is not None:
        each = advice.requests_per_second / best.servers
        found.append(
            f"One server takes up to {best.capacity:.4g} requests/s within the limits"
            f"{_between(best.capacity_interval)}; each gets {each:.4g}{_count(best)}."
        )
    if best is not None:
        found += _cliff(best)
    if advice.not_shown_cheaper_than:
        found.append(f"Not shown to be cheaper than {', '.join(advice.not_shown_cheaper_than)}.")
    if advice.at_other_loads:
        found.append(f"Another load: {'; '.join(advice.at_other_loads)}.")
    if any(choice.state == "estimated" for choice in advice.choices):
        found.append("Estimated: by two short runs of each load, which may be 15 % off.")
    found += [f"Impossible: {_refusal(c)}." for c in advice.choices if c.state == "impossible"]
    return [*found, *(f"Assumed: {text}." for text in advice.assumptions)]


def _cliff(best: Choice) -> list[str]:
    """Return how fast the limits are lost beyond the capacity, and up to where they are safe."""
    said = []
    if best.beyond is not None:
        load, share = best.beyond
        said.append(f"Beyond: at {load:.4g} requests/s {share:.1%} of the requests are within.")
    if best.capacity_interval is not None:
        low = best.capacity_interval[0]
        said.append(
            f"Plan for at most {low:.4g} requests/s per server: the lower end of the interval, a "
            "risk of 2.5 % by sampling alone, without the errors of step times and acceptance."
        )
    return said


def _refusal(choice: Choice) -> str:
    if choice.policy is None:
        return choice.why
    return f"{gpu_name(choice.hardware)}, {choice.speculation}: {choice.why}"


def _count(best: Choice) -> str:
    if best.servers_interval is None or best.servers_interval[0] == best.servers_interval[1]:
        return ""
    fewest, most = best.servers_interval
    return f"; {fewest} to {most} servers may be needed"


def _between(ends: tuple[float, float] | None) -> str:
    return "" if ends is None else f" (95 %: {ends[0]:.4g} to {ends[1]:.4g})"


def page_words(advice: Advice) -> dict[str, Any]:
    """Return what a page shows of the answer."""
    heads, rows = table(advice)
    return {
        "headline": headline(advice),
        "asked": f"{asked(advice)}.",
        "heads": heads,
        "rows": rows,
        "notes": notes(advice),
        "taken": advice.taken,
    }
