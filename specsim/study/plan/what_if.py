"""What if: what would be rented if load, step times, acceptance or a price were different.

It uses the searches behind the answer, and short runs with acceptance moved; no other simulation.
"""

from collections.abc import Callable
from itertools import pairwise
from math import exp, log
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from specsim.core.figures import figures, percent
from specsim.profile.model_error import QUANTILE
from specsim.study.capacity import Found
from specsim.study.plan.advice import DayAdvice, DayFleet, OtherPrice, WhatIf
from specsim.study.plan.day import START_UP, Day

if TYPE_CHECKING:
    from specsim.study.plan.answer import Plan

MOVED = (-0.1, 0.1)
"""Changes of the chance of each draft token."""
WORTH = 1.5
"""Factor on its capacity with which an option must compete to be run with acceptance moved."""
_LOADS = (0.8, 1.2)  # times the target load
_NO_FASTER = 1.05  # ratio of latencies that is no reason to leave the answer at equal cost


class _World(NamedTuple):
    kind: Literal["load", "step times", "acceptance"]
    what: str
    load: float = 1.0  # factor
    sign: int = 0  # of the error of step times
    moved: float = 0.0  # change of acceptance


class _Offer(NamedTuple):
    cost: float
    needs_a_policy: bool
    latency: float
    name: str
    gpus: int


def _candidates(plan: "Plan") -> list[str]:
    """Return, by hardware and drafts or none, the options with long runs, or else all tried."""
    kinds = {name: (option.hardware.label, option.is_off) for name, option in plan.options.items()}
    known = {kinds[name] for name in plan.searched}
    return [name for name, kind in kinds.items() if name in plan.searched or kind not in known]


def what_ifs(plan: "Plan") -> list[WhatIf]:
    """Return what would be rented under each assumption."""
    if plan.taken is None:
        return []
    return [_what_if(plan, plan.taken, world) for world in _worlds(plan, plan.taken)]


def _worlds(plan: "Plan", taken: str) -> list[_World]:
    rate = plan.question.rate
    found = [
        _World(
            "load",
            f"{figures(rate * load, 6)} requests/s ({percent(load - 1, 0, sign=True)})",
            load=load,
        )
        for load in _LOADS
    ]
    spread = plan.known(taken).time_spread
    for sign in (-1, 1) if spread is not None else ():
        off_by = exp(sign * QUANTILE * (spread or 0.0)) - 1
        what = f"steps {percent(abs(off_by), 0)} {'slower' if off_by > 0 else 'faster'}"
        found.append(_World("step times", what, sign=sign))
    for change in (change for change, own in plan.moved.items() if own):
        what = f"acceptance {abs(change):g} {'higher' if change > 0 else 'lower'}"
        found.append(_World("acceptance", what, moved=change))
    return found


def _what_if(plan: "Plan", taken: str, world: _World) -> WhatIf:
    offers = [offer for name in _candidates(plan) if (offer := _offer(plan, world, name))]
    if not offers:
        return WhatIf(kind=world.kind, what=world.what)
    best = _best(offers, taken)
    option = plan.options[best.name]
    none = next((each for each in offers if each.name == f"{option.hardware.label} off"), None)
    return WhatIf(
        kind=world.kind,
        what=world.what,
        hardware=option.hardware.label,
        policy=option.label,
        rented=f"{best.gpus:,} {option.words}",
        gpus=best.gpus,
        cost_per_hour=best.cost,
        is_searched=best.name in plan.searched,
        is_other=best.name != taken,
        times_as_fast=None if none is None or option.is_off else none.latency / best.latency,
    )


def _best(offers: list[_Offer], taken: str) -> _Offer:
    """Return the cheapest offer; of several the current answer, unless another is faster."""
    least = min(offer.cost for offer in offers)
    cheapest = [offer for offer in offers if offer.cost == least]
    fastest = min(cheapest, key=lambda each: (each.latency, each.name))
    for offer in cheapest:
        if offer.name == taken and offer.latency <= _NO_FASTER * fastest.latency:
            return offer
    # At equal cost and speed, a policy of vLLM's own comes first.
    fast = [each for each in cheapest if each.latency <= _NO_FASTER * fastest.latency]
    return min(fast, key=lambda each: (each.needs_a_policy, each.latency, each.name))


def _offer(plan: "Plan", world: _World, name: str) -> _Offer | None:
    """Return the cost of an option in a world; None if it keeps the limits at no load there."""
    option, found = plan.options[name], plan.known(name)
    rate, latency_of = _moved(plan, world.moved, name, found)
    if rate is None or found.price is None:
        return None
    slower = 1.0
    if world.sign and found.time_spread is not None and found.rate is not None:
        slower = exp(world.sign * QUANTILE * found.time_spread)
        rate *= found.rate_if(slower) / found.rate
    servers = found.goal.replicas_for(rate / world.load)
    assert servers is not None  # a plan has a target rate
    gpus = servers * found.hardware.gpus_per_replica
    latency = slower * latency_of(plan.question.rate * world.load / servers)
    return _Offer(gpus * found.price, option.needs_a_policy, latency, name, gpus)


def _moved(
    plan: "Plan", change: float, name: str, found: Found
) -> tuple[float | None, Callable[[float], float]]:
    """Return capacity and latency of an option with acceptance moved, by short runs.

    More acceptance does not lower the capacity; where runs say so, it is chance.
    """
    other, short = plan.moved.get(change, {}).get(name), plan.screened.get(name)
    if other is None or short is None or short.rate is None or found.rate is None:
        return found.rate, lambda load: latency_at(found, load)
    if other.rate is None:
        return None, lambda load: latency_at(found, load)
    bound = max if change > 0 else min
    rate, both = found.rate * bound(1.0, other.rate / short.rate), (other, short)

    def latency_of(load: float) -> float:
        # The change is interpolated between loads that both tried, and constant beyond.
        first, last = zip(
            *((each.probes[0].load, each.probes[-1].load) for each in both), strict=True
        )
        near = min(max(load, *first), *last)
        return latency_at(found, load) * latency_at(other, near) / latency_at(short, near)

    return rate, latency_of


def slower_from(none: Found, found: Found) -> float | None:
    """Return the requests/s of one server from which on speculation is slower than none.

    The log of the mean latency is interpolated between loads; None if speculation is not slower at
    any load that both serve within the limits.
    """
    tried = [[probe.load for probe in each.probes] for each in (none, found)]
    low, high = max(each[0] for each in tried), min(each[-1] for each in tried)
    loads = sorted({load for each in tried for load in each if low <= load <= high})
    gaps = [(load, log(latency_at(found, load) / latency_at(none, load))) for load in loads]
    for (before, left), (after, right) in pairwise(gaps):
        if left <= 0 < right and after <= (found.rate or 0):
            return exp(log(before) + log(after / before) * left / (left - right))
    return None


def latency_at(found: Found, load: float) -> float:
    """Return the mean latency at a load, ms, interpolated between logarithms of probes."""
    loads = [log(probe.load) for probe in found.probes]
    latencies = [log(probe.latencies_ms["mean_e2el_ms"]) for probe in found.probes]
    return exp(float(np.interp(log(load), loads, latencies)))


def other_prices(plan: "Plan") -> list[OtherPrice]:
    """Return, for each other GPU, the price below which it would cost less than the answer."""
    if plan.taken is None:
        return []
    own = plan.options[plan.taken].hardware.profile.gpu
    world = _World("load", "")
    offers: dict[str, _Offer] = {}
    for name in _candidates(plan):
        gpu = plan.options[name].hardware.profile.gpu
        offer = _offer(plan, world, name)
        if offer is None or gpu == own:
            continue
        if gpu not in offers or offer[:3] < offers[gpu][:3]:
            offers[gpu] = offer
    cost = plan.cost(plan.taken)
    found = []
    for gpu, offer in offers.items():
        option, each = plan.options[offer.name], plan.known(offer.name)
        if offer.cost > cost and each.price is not None:
            found.append(
                OtherPrice(
                    gpu=gpu,
                    speculation=option.speculation_words,
                    cheaper_below=cost / offer.gpus,
                    now=each.price,
                )
            )
    return found


def day_advice(plan: "Plan") -> DayAdvice | None:
    """Return the cost of a day with fixed, scheduled and autoscaled servers, each the cheapest."""
    day = plan.question.day
    if day is None or plan.taken is None:
        return None
    fleets: dict[str, DayFleet] = {}
    # At equal cost, the answer for the highest load comes first.
    names = sorted(_candidates(plan), key=lambda name: name != plan.taken)
    for name in names:
        for fleet in _fleets(plan, day, name):
            if fleet.way not in fleets or fleet.cost_per_day < fleets[fleet.way].cost_per_day:
                fleets[fleet.way] = fleet
    scaled = fleets["autoscaled"]
    found = plan.known(f"{scaled.hardware} {scaled.policy}")
    assert found.rate is not None
    headroom = day.headroom(found.rate)
    return DayAdvice(
        hours=list(day.hours),
        rates=list(day.rates),
        requests=day.requests,
        start_up_seconds=START_UP,
        headroom=headroom,
        requests_per_server=_kept_in_each(found, found.rate / headroom, scaled.most_servers),
        fleets=list(fleets.values()),
    )


def _kept_in_each(found: Found, load: float, most: int) -> float:
    """Return the concurrency per server at which an autoscaler has one server per `load`.

    By Little's law, but low enough that removing a server is not wanted before it could take the
    load: with more servers, answers are faster and fewer requests are in them.
    """
    loads = [load * fewer / (fewer + 1) for fewer in range(1, most)]
    inside = [each * latency_at(found, each) / 1e3 for each in (load, *loads)]
    return min([inside[0], *((n + 1) / n * each for n, each in enumerate(inside[1:], start=1))])


def _fleets(plan: "Plan", day: Day, name: str) -> list[DayFleet]:
    option, found = plan.options[name], plan.known(name)
    if found.rate is None or found.price is None:
        return []
    gpus = found.hardware.gpus_per_replica
    return [
        DayFleet(
            way=fleet.way,
            hardware=option.hardware.label,
            policy=option.label,
            rented=option.words,
            least_servers=fleet.least,
            most_servers=fleet.most,
            gpu_hours=fleet.server_hours * gpus,
            cost_per_day=fleet.server_hours * gpus * found.price,
            is_searched=name in plan.searched,
        )
        for fleet in day.fleets(found.rate, plan.question.spare_servers)
    ]
