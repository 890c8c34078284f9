"""Capacity: what each hardware sustains under each policy, and what is shown by that."""

from typing import TYPE_CHECKING

from rich.markup import escape
from rich.table import Table

from specsim.show.render import new_table

if TYPE_CHECKING:
    from specsim.study.capacity import Capacity, Found
    from specsim.study.capacity.findings import Ranking


def capacity_tables(capacity: "Capacity", name: str) -> list[Table]:
    """Return what each hardware sustains by policy, and the front of latency and cost, if any."""
    fronts = [_front(capacity)] if capacity.front else []
    return [_sustained(capacity, name), *fronts]


def _sustained(capacity: "Capacity", name: str) -> Table:
    goal, currency = capacity.goal, capacity.prices.currency
    limits = ", ".join(
        f"{metric.removesuffix('_ms').upper()} {limit:g} ms"
        for metric, limit in goal.slo.model_dump(exclude_none=True).items()
    )
    columns = [
        "hardware", "policy", *(["clients"] if goal.is_closed else []), "requests/s",
        "95 % interval", "what binds", "within limits", "TTFT p99, ms", "TPOT p99, ms",
        "output tokens/s", "GPU-hours / 1 M", f"{currency} / 1 M",
    ]  # fmt: skip
    if goal.target_rate is not None:
        columns += [f"{capacity.unit}s", "GPUs", f"{currency} / h", f"{currency} / 1 M then"]
    what = f"the most that one {capacity.unit} sustains with {goal.attainment:.4g} within {limits}"
    return new_table(f"{name}: {what}", columns, map(_sustained_row, capacity.found))


def _sustained_row(found: "Found") -> list[str]:
    goal, probe, rate = found.goal, found.at_capacity, found.rate
    head = [escape(found.hardware.label), escape(found.policy)]
    if probe is None or rate is None:
        lowest = found.probes[0]
        at = f"{lowest.attainment:.2%} at {lowest.load:.3g}"
        return [*head, *(["none"] if goal.is_closed else []), "none", "", "", at]
    offer, latencies = found.offer(probe), probe.latencies_ms
    row = [
        *head,
        *([f"{probe.load:.0f}"] if goal.is_closed else []),
        f"{rate:.4g}",
        _interval(found),
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


def _interval(found: "Found") -> str:
    between = found.interval
    return "-" if between is None else f"{between.low:.4g} - {between.high:.4g}"


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
