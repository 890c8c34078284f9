"""Words: the texts that console and page show of a plan's answer."""

from math import inf
from typing import Any

from specsim.core.figures import figures, percent
from specsim.study.capacity.limits import floored, metric_name
from specsim.study.capacity.probe import BACKLOG
from specsim.study.plan.advice import Advice, ApiAdvice, Choice, DayAdvice, DayFleet, WhatIf
from specsim.study.plan.candidates import gpu_name

_LITTLE_MORE, _MUCH_FASTER = 1.05, 1.2


def headline(advice: Advice) -> str:
    """Return the answer in one or two plain sentences."""
    best = advice.best
    if best is None or best.servers is None or best.gpus is None:
        return "None of these GPUs keeps the limits at any load; raise --slo or lower --attainment."
    size = "1 GPU" if best.gpus_per_server == 1 else f"{best.gpus_per_server} GPUs"
    servers = f"1 {best.unit}" if best.servers == 1 else f"{best.servers:,} {best.unit}s"
    if advice.spare_servers:
        servers += f" ({advice.spare_servers:,} in reserve)"
    rent = (
        f"Rent {best.gpus:,} {gpu_name(best.gpu)}: {servers} of {size}, "
        f"{best.cost_per_hour or 0:,.2f} {advice.currency} per hour."
    )
    if best.servers_interval is not None and best.servers_interval[1] > best.servers:
        rent += f" That is on the edge: {best.servers_interval[1]:,} {best.unit}s may be needed."
    if best.pools is not None:
        rent += f" In each unit {best.pools[0]} prefill and {best.pools[1]} decode."
    return f"{rent} {_on_speculation(advice, best)}{_on_day(advice)}"


def _on_day(advice: Advice) -> str:
    if advice.day is None:
        return ""
    costs = [f"{each.cost_per_day:,.2f}" for each in advice.day.fleets]
    if len(set(costs)) == 1:
        return f" A day costs {costs[0]} {advice.currency}, however servers come and go."
    ways = ", ".join(f"{c} {f.way}" for c, f in zip(costs, advice.day.fleets, strict=True))
    return f" A day costs {ways} ({advice.currency})."


def _on_speculation(advice: Advice, best: Choice) -> str:
    if best.policy != "off":
        text = f"Speculation ({best.speculation}) {_effect(best)}"
        if advice.off_from is None:
            return f"{text}."
        return f"{text}; above {figures(advice.off_from, 3)} requests/s per server turn it off."
    tried = [c for c in advice.choices if c.hardware == best.hardware and c.policy != "off"]
    known = [c for c in tried if c.against_none is not None]
    if not known:
        why = "none that was tried keeps the limits there" if tried else "none was tried"
        return f"No speculation: {why}."
    return f"No speculation: {known[0].speculation} {_effect(known[0])}."


def _effect(choice: Choice) -> str:
    """Return "makes answers 1.5 times as fast (95 %: 1.41 to 1.57) at the same cost"."""
    found = choice.against_none
    if found is None:
        return "is what keeps the limits: without it no load does, on servers of this kind"
    about = "" if found.is_searched else "about "
    ratio, low, high = found.times_as_fast, found.low or 0.0, found.high or 0.0
    fast = f"makes answers {about}{ratio:.2f} times as fast"
    if low <= 1 <= high:
        fast = "makes no difference in speed that is shown"
    elif ratio < 1:
        fast = f"makes answers take {about}{1 / ratio:.2f} times as long"
        low, high = high and 1 / high, low and 1 / low
    fast += f" (95 %: {low:.2f} to {high:.2f})" if high else ""
    return f"{fast} at {_cost_words(found.times_the_cost)}"


def _cost_words(ratio: float) -> str:
    if ratio == 1:
        return "the same cost"
    change = f"{figures(100 * abs(1 - ratio), 2)} % {'less' if ratio < 1 else 'more'}"
    return f"{change} cost on servers of the same kind"


def title(advice: Advice) -> str:
    """Return the subject of the question, without the limits."""
    most = "" if advice.day is None else "Up to "
    rate = figures(advice.requests_per_second, 6)
    return f"{most}{rate} requests/s of {advice.traffic} to {advice.model}"


def asked(advice: Advice) -> str:
    """Return the question."""
    return f"{title(advice)}; {advice.limits.words}"


def table(advice: Advice) -> tuple[list[str], list[list[str]]]:
    """Return heads and rows of all choices, as text."""
    percentile_of = advice.limits.percentile_of
    limits = [f"{metric_name(name)} {percentile_of(name)}, ms" for name in advice.slo]
    per_million = f"{advice.currency} per 1 M output tokens"
    if advice.day is not None:  # the table of the day has the costs
        per_million += " at the highest load"
    heads = [
        "GPU", "speculation", "GPUs", f"{advice.currency} per hour", per_million, *limits,
        "mean latency, ms", "times as fast", "to spare", "how sure",
    ]  # fmt: skip
    return heads, [_row(advice, place) for place in range(len(advice.choices))]


def day_table(advice: Advice) -> tuple[list[str], list[list[str]]]:
    """Return heads and rows of the costs of a day, as text; no rows without a day."""
    heads = ["servers", "what is rented", "how many", "GPU hours", f"{advice.currency} per day",
             "less than fixed"]  # fmt: skip
    if advice.day is None:
        return heads, []
    fixed = advice.day.fleets[0].cost_per_day
    return heads, [_day_row(fleet, fixed) for fleet in advice.day.fleets]


def _day_row(fleet: DayFleet, fixed: float) -> list[str]:
    least, most = fleet.least_servers, fleet.most_servers
    return [
        fleet.way,
        fleet.rented + ("" if fleet.is_searched else " (estimated)"),
        f"{most:,}" if least == most else f"{least:,} to {most:,}",
        f"{fleet.gpu_hours:,.0f}",
        _number(fleet.cost_per_day, 2),
        percent(1 - fleet.cost_per_day / fixed, 0),
    ]


def _day_notes(day: DayAdvice) -> list[str]:
    start = f"{figures(day.start_up_seconds, 6)} s"
    lowest, highest = (figures(end(day.rates), 6) for end in (min, max))
    return [
        f"The day has {day.requests:,.0f} requests, {lowest} to {highest} per "
        f"second. By schedule servers start {start} before their hour. Autoscaled, Kubernetes' HPA "
        f"keeps {day.requests_per_server:,.0f} requests in each, which leaves room for "
        f"{day.headroom:.2f} times the load while others start ({start}). Bursts are not in it."
    ]


def _row(advice: Advice, place: int) -> list[str]:
    choice = advice.choices[place]
    name = choice.place + ("" if choice.is_measured else " (roofline)")
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
        percent(choice.spare or 0, 0),
        choice.state,
    ]


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:,.{digits}f}"


def _milliseconds(value: float | None) -> str:
    return "-" if value is None else figures(value, 3)


def notes(advice: Advice) -> list[str]:
    """Return what the answer depends on, one sentence each."""
    found = [] if advice.best is None else _on_best(advice, advice.best)
    found += _on_more_servers(advice)
    found += _none_elsewhere(advice)
    found += _faster_for_little(advice)
    if advice.not_shown_cheaper_than:
        found.append(f"Not shown to be cheaper than {' or '.join(advice.not_shown_cheaper_than)}.")
    found += [] if advice.api is None else [_on_api(advice, advice.api)]
    found += [] if advice.day is None else _day_notes(advice.day)
    found += _what_if_notes(advice)
    if any(choice.state == "estimated" for choice in advice.choices):
        found.append("Estimated: by short runs of each load, which may be 15 % off.")
    found += [f"Impossible: {c.refusal}." for c in advice.choices if c.state == "impossible"]
    return [*found, *(f"Assumed: {text}." for text in advice.assumptions)]


def _on_best(advice: Advice, best: Choice) -> list[str]:
    said = []
    if best.capacity is not None and best.servers is not None:
        each = advice.requests_per_second / best.servers
        said.append(
            f"One {best.unit} takes up to {figures(best.capacity)} requests/s within the limits"
            f"{_between(best.capacity_interval)}; each gets {figures(each)}{_count(best)}."
        )
    said += _cliff(advice, best)
    if best.servers == 1 and not advice.spare_servers:
        said.append(
            f"One {best.unit} carries all, and none is in reserve (--redundancy n+1 adds one)."
        )
    return said


def _on_more_servers(advice: Advice) -> list[str]:
    """Return the speculation that has more servers than none has, which alone speeds answers up."""
    more = [
        f"{each.place}, {each.speculation}, has "
        f"{each.servers:,} where no speculation has "
        f"{each.servers / each.against_none.times_the_cost:,.0f}"
        for each in advice.choices
        if each.servers is not None and each.against_none is not None
        if each.against_none.times_the_cost > 1
    ]
    said = "Times as fast is with the servers of the row, and more of them alone make it faster"
    return [f"{said}: {'; '.join(more)}."] if more else []


def _none_elsewhere(advice: Advice) -> list[str]:
    """Return where no speculation is cheaper on other servers than those in its row.

    Without drafts a model may need larger servers, or smaller ones.
    """
    if advice.best is None or advice.best.policy == "off":
        return []
    beside = [each.cost_per_hour for each in advice.choices if each.policy == "off"]
    tried = [each for each in advice.tried if each.policy == "off" and each.cost_per_hour]
    none = min(tried, key=lambda each: each.cost_per_hour or inf, default=None)
    if none is None or none.cost_per_hour is None:
        return []
    if none.cost_per_hour >= min((cost for cost in beside if cost), default=inf):
        return []
    about = "" if none.is_searched else "about "
    return [
        f"Without speculation servers of {none.hardware} are the cheapest: {about}"
        f"{none.cost_per_hour:,.2f} {advice.currency} per hour."
    ]


def _faster_for_little(advice: Advice) -> list[str]:
    """Return options that answer much faster than the chosen one at almost the same cost."""
    own = advice.best
    if own is None or own.cost_per_hour is None or own.mean_latency_ms is None:
        return []
    most, longest = _LITTLE_MORE * own.cost_per_hour, own.mean_latency_ms / _MUCH_FASTER
    found = [
        (each.mean_latency_ms, each.cost_per_hour / own.cost_per_hour - 1, each)
        for each in advice.choices
        if each.cost_per_hour is not None and each.cost_per_hour <= most
        if each.mean_latency_ms is not None and each.mean_latency_ms <= longest
    ]
    if not found:
        return []
    latency, more, best = min(found, key=lambda each: each[:2])
    about = "" if best.state == "searched" else "about "
    return [
        f"{best.gpus:,} {best.place}, {best.speculation}, answer {about}"
        f"{own.mean_latency_ms / latency:.2f} times as fast for {percent(more)} more."
    ]


def _on_api(advice: Advice, api: ApiAdvice) -> str:
    """Return the cost of the same load on an API, and the load at which costs are equal."""
    prices = [figures(each, 6) for each in api.per_million]
    lens = [f"{n:,.0f}" for n in api.mean_lens]
    own, day, rented = advice.best and advice.best.cost_per_hour, "", "what is rented"
    times = api.cost_per_hour / own if own else None
    if advice.day is not None and api.cost_per_day is not None:
        day = f" at the highest load, {api.cost_per_day:,.2f} a day"
        # An API is paid for each hour's load, servers for the highest.
        least = min(fleet.cost_per_day for fleet in advice.day.fleets)
        times, rented = api.cost_per_day / least, "the cheapest day of servers"
    return (
        f"An API at {prices[0]} {advice.currency} per million prompt tokens and {prices[1]} per "
        f"million output tokens costs {api.cost_per_hour:,.2f} per hour{day}, with {lens[0]} and "
        f"{lens[1]} tokens per request, none of them cheaper for being cached"
        + (f": {figures(times, 2)} times {rented}" if times else "")
        + (
            f", and as much as {'that' if not day else 'what is rented for the highest load'} at "
            f"{figures(api.same_cost_at, 3)} requests/s"
            if api.same_cost_at
            else ""
        )
        + "."
    )


def _what_if_notes(advice: Advice) -> list[str]:
    """Return under which assumptions the answer stays or changes, and other prices."""
    best, said = advice.best, []
    gpus = best and best.gpus
    same = [each for each in advice.what_ifs if not each.is_other and each.gpus == gpus]
    if same:
        said.append(f"The same answer with {in_words([_in_world(each) for each in same])}.")
    said += [
        f"With {each.what}: {_rented(each, advice.currency)}{_slower(each)}."
        for each in advice.what_ifs
        if each not in same
    ]
    said += [
        f"{gpu_name(each.gpu)}, {each.speculation}, is cheaper below {each.cheaper_below:.2f} "
        f"{advice.currency} per GPU and hour ({each.now:.2f} now)."
        for each in advice.other_prices
    ]
    return said


def _in_world(each: WhatIf) -> str:
    if each.kind != "acceptance" or each.times_as_fast is None or each.times_as_fast < 1:
        return f"{each.what}{_slower(each)}"
    return f"{each.what} (then {each.times_as_fast:.2f} times as fast)"


def _slower(each: WhatIf) -> str:
    if each.times_as_fast is None or each.times_as_fast >= 1:
        return ""
    return f" (then {percent(1 / each.times_as_fast - 1)} slower than without speculation)"


def in_words(texts: list[str]) -> str:
    """Return ``a, b and c``."""
    return " and ".join([", ".join(texts[:-1]), texts[-1]] if len(texts) > 1 else texts)


def _rented(each: WhatIf, currency: str) -> str:
    if each.cost_per_hour is None:
        return each.rented
    about = "" if each.is_searched else ", estimated"
    return f"{each.rented}, {each.cost_per_hour:,.2f} {currency} per hour{about}"


def _cliff(advice: Advice, best: Choice) -> list[str]:
    """Return how fast the limits are lost beyond the capacity, and the safe load."""
    said = []
    if best.beyond is not None:
        load, share = best.beyond
        kept = advice.limits.kept_words(best.beyond_kept)
        if kept and best.binds == BACKLOG:
            kept += _missed(best.binds)
        kept = (
            kept
            or f"{figures(100 * floored(share))} % of the requests are within{_missed(best.binds)}"
        )
        said.append(f"Beyond: at {figures(load)} requests/s {kept}.")
    if best.capacity_interval is not None:
        low = best.capacity_interval[0]
        said.append(
            f"Plan for at most {figures(low)} requests/s per {best.unit}: the lower end of the "
            "interval, a risk of 2.5 % by sampling alone, without the errors of step times and "
            "acceptance."
        )
    if best.capacity_by_model is None:
        said.append("How far such step times are off, nobody has measured.")
    else:
        said.append(_model_error(best, best.capacity_by_model))
    return said


def _missed(binds: str | None) -> str:
    if binds is None:
        return ""
    return ", and the queue grows" if binds == BACKLOG else f"; {metric_name(binds)} is missed most"


def _model_error(best: Choice, between: tuple[float, float]) -> str:
    fewest, most = best.servers_by_model or (0, 0)
    servers = "the same number of servers"
    if fewest != most:
        servers = f"{fewest:,} to {most:,} servers"
    return (
        f"With step times as far off as on four in five servers measured: {figures(between[0])} to "
        f"{figures(between[1])} requests/s per server, {servers}."
    )


def _count(best: Choice) -> str:
    if best.servers_interval is None or best.servers_interval[0] == best.servers_interval[1]:
        return ""
    fewest, most = best.servers_interval
    return f"; {fewest} to {most} {best.unit}s may be needed"


def _between(ends: tuple[float, float] | None) -> str:
    return "" if ends is None else f" (95 %: {figures(ends[0])} to {figures(ends[1])})"


def what_if_rows(advice: Advice) -> list[dict[str, Any]]:
    """Return the rows of the chart of assumptions; the first is the answer."""
    best = advice.best
    if best is None or best.cost_per_hour is None:
        return []
    as_asked = f"{best.gpus:,} {gpu_name(best.gpu)}, {best.speculation}"
    as_asked += f", {best.cost_per_hour:,.2f} {advice.currency} per hour"
    rows = [{"what": "as asked", "rented": as_asked, "cost": best.cost_per_hour, "change": "same"}]
    return rows + [
        {
            "what": each.what,
            "rented": _rented(each, advice.currency),
            "cost": each.cost_per_hour or 0.0,
            "change": "other" if each.is_other else "same",
        }
        for each in advice.what_ifs
    ]


def page_words(advice: Advice) -> dict[str, Any]:
    """Return the texts and numbers that a page shows of the answer."""
    heads, rows = table(advice)
    day_heads, day_rows = day_table(advice)
    return {
        "headline": headline(advice),
        "asked": f"{asked(advice)}.",
        "heads": heads,
        "rows": rows,
        "day_heads": day_heads,
        "day_rows": day_rows,
        "notes": notes(advice),
        "taken": advice.taken,
        "what_ifs": what_if_rows(advice),
    }
