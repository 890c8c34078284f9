"""What it takes to serve a load: capacities, splits of GPUs, and the plan in ten lines."""

from typing import TYPE_CHECKING

from rich import box
from rich.markup import escape
from rich.table import Table

from specsim.results.stability import STABILITY_MARKS
from specsim.show.render import new_table
from specsim.study.capacity.choices import metric_name, promise_words
from specsim.study.plan.words import asked, day_table, headline, table

if TYPE_CHECKING:
    from specsim.study.capacity import Capacity, Found
    from specsim.study.capacity.findings import Ranking
    from specsim.study.plan import Plan
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
    limits = goal.slo.model_dump(exclude_none=True)
    within = promise_words(limits, goal.attainment, goal.limit_shares)
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
    return name if name == "backlog" else metric_name(name)


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


def plan_lines(plan: "Plan") -> list[str]:
    """Return the question, and the answer in plain sentences."""
    return [asked(plan.advice), headline(plan.advice)]


def plan_tables(plan: "Plan") -> list[Table]:
    """Return all GPUs that were asked for, and, if a day was, what it costs."""
    return [_worded(*each) for each in (table(plan.advice), day_table(plan.advice)) if each[1]]


def _worded(heads: list[str], rows: list[list[str]]) -> Table:
    found = Table(box=box.SIMPLE_HEAD, header_style="bold", padding=(0, 1, 0, 0))
    for place, head in enumerate(heads):
        words = [word for row in rows for word in row[place].split()]
        is_text = place < 2 or head == "how sure"
        widest = max(map(len, words), default=0)
        found.add_column(head, justify="left" if is_text else "right", min_width=widest)
    for row in rows:
        found.add_row(*map(escape, row))
    return found
