"""What it takes to serve a load: capacities, splits of GPUs, and the plan in ten lines."""

from typing import TYPE_CHECKING

from rich.markup import escape
from rich.table import Table

from specsim.results.stability import STABILITY_MARKS
from specsim.show.render import new_table

if TYPE_CHECKING:
    from specsim.results.metrics import Slo
    from specsim.study.capacity import Capacity, Found
    from specsim.study.capacity.findings import Ranking
    from specsim.study.plan import Plan
    from specsim.study.plan.answer import CostPoint
    from specsim.study.split import Split, SplitRow
    from specsim.study.split_search import Search


def capacity_tables(capacity: "Capacity", name: str) -> list[Table]:
    """Return what each hardware sustains by policy, and the front of latency and cost, if any."""
    fronts = [_front(capacity)] if capacity.front else []
    return [_sustained(capacity, name), *fronts]


def _sustained(capacity: "Capacity", name: str) -> Table:
    goal, currency = capacity.goal, capacity.prices.currency
    columns = [
        "hardware", "policy", *(["clients"] if goal.is_closed else []), "requests/s",
        "95 % interval", "what binds", "within limits", "TTFT p99, ms", "TPOT p99, ms",
        "output tokens/s", "GPU-hours / 1 M", f"{currency} / 1 M",
    ]  # fmt: skip
    if goal.target_rate is not None:
        columns += [f"{capacity.unit}s", "GPUs", f"{currency} / h", f"{currency} / 1 M then"]
    within = f"{goal.attainment:.4g} within {_limits(goal.slo)}"
    what = f"the most that one {capacity.unit} sustains with {within}"
    return new_table(f"{name}: {what}", columns, map(_sustained_row, capacity.found))


def _sustained_row(found: "Found") -> list[str]:
    goal, probe, rate = found.goal, found.at_capacity, found.rate
    head = [escape(found.hardware.label), escape(found.policy)]
    if probe is None or rate is None:
        lowest = found.probes[0]
        at = f"{lowest.attainment:.2%} at {lowest.load:.3g}"
        return [*head, *(["none"] if goal.is_closed else []), "none", "", "", at]
    offer, latencies, between = found.offer(probe), probe.latencies_ms, found.interval
    row = [
        *head,
        *([f"{probe.load:.0f}"] if goal.is_closed else []),
        f"{rate:.4g}",
        "-" if between is None else f"{between.low:.4g} - {between.high:.4g}",
        binding(found),
        f"{probe.attainment:.2%}",
        f"{latencies['p99_ttft_ms']:,.1f}",
        f"{latencies['p99_tpot_ms']:,.2f}",
        f"{rate * probe.mean_output_len:,.0f}",
        f"{offer.gpu_hours:.4f}",
        _money(offer.cost),
    ]
    if goal.target_rate is not None and found.replicas is not None:
        gpus = found.replicas * found.hardware.gpus_per_replica
        row += [f"{found.replicas:,}", f"{gpus:,}"]
        row += [_money(found.cost_per_hour), _money(found.cost_at_target)]
    return row


_SAID = {"kv_memory": "KV memory", "step_time": "steps"}


def binding(found: "Found") -> str:
    """Return what is missed first beyond the capacity, and what requests wait for there."""
    if found.binds is None:
        return "-"
    resource = found.resource or "step_time"
    if resource != "max_num_seqs":  # a name of vLLM's
        resource = _SAID.get(resource, resource.replace("_", " "))
    return f"{_metric(found.binds)} ({resource})"


def _metric(name: str) -> str:
    return name if name == "backlog" else name.removesuffix("_ms").upper()


def _limits(slo: "Slo") -> str:
    limits = slo.model_dump(exclude_none=True).items()
    return ", ".join(f"{_metric(name)} {limit:g} ms" for name, limit in limits)


def capacity_verdict(capacity: "Capacity") -> list[str]:
    """Return in words what is most and what is cheapest, where that is shown, and the margins."""
    target, currency = capacity.goal.target_rate, capacity.prices.currency
    at = "at full load" if target is None else f"for {target:g} requests/s"
    unit = f"{currency} per million output tokens" if target is None else f"{currency} per hour"
    lines = [_leaders(f"most per {capacity.unit}", capacity.most, "requests/s")]
    lines.append(_leaders(f"cheapest {at}", capacity.cheapest, unit))
    lines += [
        f"margins of {found.hardware.label} {found.policy}: "
        + ", ".join(f"{_metric(name)} {share:.0%}" for name, share in found.margins.items())
        for found in capacity.found
        if found.margins
    ]
    return [line for line in lines if line]


def _leaders(what: str, ranking: "Ranking", unit: str) -> str:
    names = [f"{each.hardware} {each.policy}" for each in ranking.leaders]
    if len(ranking.leaders) + len(ranking.others) < 2:
        return ""
    if len(names) == 1:
        return f"{what}: {names[0]}, {ranking.leaders[0].value:.4g} {unit}"
    return f"{what}: no difference shown between {', '.join(names[:-1])} and {names[-1]}"


def _front(capacity: "Capacity") -> Table:
    currency = capacity.prices.currency
    target = capacity.goal.target_rate
    unit = f"{currency} / 1 M" if target is None else f"{currency} / 1 M at {target:g}/s"
    columns = [unit, "mean latency, ms", "hardware", "policy", "requests/s"]
    rows = (
        [
            _money(offer.compared_cost),
            f"{offer.probe.latencies_ms['mean_e2el_ms']:,.1f}",
            escape(offer.hardware),
            escape(offer.policy),
            f"{offer.rate:.4g}",
        ]
        for offer in capacity.front
    )
    title = f"no load on one {capacity.unit} is both cheaper and faster than these"
    return new_table(title, columns, rows)


def _money(amount: float | None) -> str:
    return "-" if amount is None else f"{amount:,.3f}"


def split_table(found: "Split", title: str) -> Table:
    """Return the ways to use the GPUs, the best of each load first."""
    columns = [
        "", "rate/s", "GPUs", "req/s", "SLO", "TTFT ms", "p99", "TPOT ms", "p99", "transfer ms", "",
    ]  # fmt: skip
    has_policies = any(row.policy is not None for row in found.rows)
    rows = [_cells(row) for row in found.rows]
    if has_policies:
        columns.insert(1, "policy")
        for row, cells in zip(found.rows, rows, strict=True):
            cells.insert(1, row.policy or "-")
    return new_table(f"{title}: {found.gpus} GPUs, p prefill and d decode", columns, rows)


def _cells(row: "SplitRow") -> list[str]:
    values = row.values
    attainment = values["slo_attainment"]
    notes = (STABILITY_MARKS[row.stability], "efficient" if row.is_efficient else "")
    return [
        row.label,
        "-" if row.rate is None else f"{row.rate:g}",
        str(row.gpus),
        f"{values['request_throughput']:.2f}",
        "-" if attainment is None else f"{attainment:.1%}",
        *(
            f"{values[name]:,.1f}"
            for name in ("mean_ttft_ms", "p99_ttft_ms", "mean_tpot_ms", "p99_tpot_ms")
        ),
        "-" if values["mean_transfer_ms"] is None else f"{values['mean_transfer_ms']:,.1f}",
        ", ".join(filter(None, notes)),
    ]


def search_lines(search: "Search") -> list[str]:
    """Return what was looked at on the way, and how exact that was."""
    worst = search.worst_error
    error = "" if worst is None else f"; their mean latency was predicted within {worst:.1%}"
    return [
        f"{len(search.predictions) + search.too_small} splits in {search.seconds:.0f} s: "
        f"{search.pieces} pools simulated by themselves, {search.too_small} splits left out "
        f"because a queue kept growing, the most promising simulated whole (the table){error}",
        *(f"left out: {each}" for each in search.left_out),
    ]


_WIDTH = 24


def plan_lines(plan: "Plan") -> list[str]:
    """Return the answer, what it rests on, and a chart of cost and latency."""
    question = plan.question
    head = (
        f"{question.rate:g} requests/s of {question.traffic.name} to {question.command.model}, "
        f"{question.attainment:.4g} within {_limits(question.slo)}"
    )
    return [head, *_answers(plan), f"assumes  {'; '.join(plan.assumptions)}", *_chart(plan)]


def _answers(plan: "Plan") -> list[str]:
    taken = plan.taken
    if taken is None:
        return ["none: no option keeps the limits at any load; raise --slo or lower --attainment"]
    found, between = plan.found[taken], plan.found[taken].interval
    lines = [f"take     {_offer(plan, taken)}"]
    for title, is_off in (("without", True), ("with", False)):
        name = plan.best(is_off=is_off)
        said = "no such option keeps the limits" if name is None else _offer(plan, name)
        lines.append(f"{title:8} {said}{_latencies(plan, name)}")
    lines.append(
        f"binds    {binding(found)} beyond {found.rate:.4g} requests/s per replica; each gets "
        f"{plan.question.rate / (found.replicas or 1):.4g}"
    )
    if between is None or found.replicas_interval is None:
        sure = "one replication says nothing about that"
    else:
        fewest, most = found.replicas_interval
        count = f"{fewest}" if fewest == most else f"{fewest} to {most}"
        per_replica = f"{between.low:.4g} - {between.high:.4g} requests/s per replica (95 %)"
        sure = f"{per_replica}: {count} replicas"
    if plan.ties:
        sure += f"; not shown to be cheaper than {', '.join(plan.ties)}"
    return [*lines, f"sure     {sure}"]


def _offer(plan: "Plan", name: str) -> str:
    found, option = plan.found[name], plan.options[name]
    size, gpu = found.hardware.gpus_per_replica, found.hardware.profile.gpu
    replicas, cost = found.replicas or 0, found.cost_per_hour or 0.0
    drafts = "no speculation" if option.is_off else _drafts(plan, name)
    roofline = "" if found.hardware.is_measured else " (roofline)"
    return (
        f"{replicas * size} {gpu}{roofline} ({replicas} x tp {size}), "
        f"{cost:,.2f} {plan.capacity.prices.currency}/h, {drafts}"
    )


def _drafts(plan: "Plan", name: str) -> str:
    option = plan.options[name]
    proposer = option.experiment.engine.speculative_config
    assert proposer is not None
    policy = option.label.removeprefix(f"{proposer.method} ").removeprefix("static:")
    return f"{proposer.method} {policy}"


def _latencies(plan: "Plan", name: str | None) -> str:
    probe = None if name is None else plan.found[name].at_target
    if probe is None:
        return ""
    ms, gain = probe.latencies_ms, plan.gain
    said = (
        f"; TTFT p99 {ms['p99_ttft_ms']:,.0f} ms, TPOT p99 {ms['p99_tpot_ms']:,.1f} ms, "
        f"mean latency {ms['mean_e2el_ms']:,.0f} ms"
    )
    if name != plan.best(is_off=False) or gain is None or gain.low is None or gain.high is None:
        return said
    if gain.low < 1 < gain.high:
        return f"{said}, no difference shown"
    return f"{said}, {gain.mean:.2f} times as fast ({gain.low:.2f} - {gain.high:.2f})"


def _chart(plan: "Plan") -> list[str]:
    front = plan.front[:3]
    if not front:
        return []
    longest = max(point.latency_ms for point in front)
    currency = plan.capacity.prices.currency
    lines = [f"{currency + '/h':>9}  mean latency at that cost; none cheaper is as fast"]
    return [*lines, *(_bar(point, longest) for point in front)]


def _bar(point: "CostPoint", longest: float) -> str:
    bar = "#" * max(1, round(_WIDTH * point.latency_ms / longest))
    about = "" if point.is_sure else "~"
    return (
        f"{about + format(point.cost, ',.2f'):>9}  {bar:{_WIDTH}} {point.latency_ms:,.0f} ms  "
        f"{point.gpus} GPUs: {point.replicas} x {point.name}"
    )
