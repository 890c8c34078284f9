"""Tables of a capacity plan."""

from rich.markup import escape
from rich.table import Table

from specsim.show.render.tables import new_table
from specsim.study.capacity import Capacity, Found

__all__ = ["capacity_tables"]


def capacity_tables(capacity: Capacity, name: str) -> list[Table]:
    """Return what each hardware sustains under each policy, and the front of latency and cost.

    Args:
        name: Of the experiment.

    Returns:
        The front is left out if no load that has a price is sustained.
    """
    fronts = [_front(capacity)] if capacity.front else []
    return [_sustained(capacity, name), *fronts]


def _sustained(capacity: Capacity, name: str) -> Table:
    goal, currency = capacity.goal, capacity.prices.currency
    limits = ", ".join(
        f"{metric.removesuffix('_ms').upper()} {limit:g} ms"
        for metric, limit in goal.slo.model_dump(exclude_none=True).items()
    )
    columns = [
        "hardware", "policy", *(["clients"] if goal.is_closed else []), "requests/s",
        "within limits", "TTFT p99, ms", "TPOT p99, ms", "output tokens/s", "GPU-hours / 1 M",
        f"{currency} / 1 M",
    ]  # fmt: skip
    if goal.target_rate is not None:
        columns += ["replicas", "GPUs", f"{currency} / h", f"{currency} / 1 M then"]
    title = f"{name}: the most that one replica sustains with {goal.attainment:.4g} within {limits}"
    table = new_table(title, columns)
    for found in capacity.found:
        table.add_row(*_row(found))
    return table


def _row(found: Found) -> list[str]:
    goal, probe, rate = found.goal, found.at_capacity, found.rate
    head = [escape(found.hardware.label), escape(found.policy)]
    if probe is None or rate is None:
        lowest = found.probes[0]
        at = f"{lowest.attainment:.2%} at {lowest.load:.3g}"
        return [*head, *(["none"] if goal.is_closed else []), "none", at]
    offer, latencies = found.offer(probe), probe.latencies_ms
    clients = [f"{probe.load:.0f}"] if goal.is_closed else []
    row = [
        *head,
        *clients,
        f"{rate:.4g}",
        f"{probe.attainment:.2%}",
        f"{latencies['p99_ttft_ms']:,.1f}",
        f"{latencies['p99_tpot_ms']:,.2f}",
        f"{rate * probe.mean_output_len:,.0f}",
        f"{offer.gpu_hours:.4f}",
        _money(offer.cost),
    ]
    if goal.target_rate is not None and found.replicas is not None:
        gpus = found.replicas * found.hardware.gpus_per_replica
        row += [
            f"{found.replicas:,}",
            f"{gpus:,}",
            _money(found.cost_per_hour),
            _money(found.cost_at_target),
        ]
    return row


def _front(capacity: Capacity) -> Table:
    currency = capacity.prices.currency
    columns = [f"{currency} / 1 M", "mean latency, ms", "hardware", "policy", "requests/s"]
    table = new_table("no load on one replica is both cheaper and faster than these", columns)
    for offer in capacity.front:
        latency = offer.probe.latencies_ms["mean_e2el_ms"]
        table.add_row(
            _money(offer.cost),
            f"{latency:,.1f}",
            escape(offer.hardware),
            escape(offer.policy),
            f"{offer.rate:.4g}",
        )
    return table


def _money(amount: float | None) -> str:
    return "-" if amount is None else f"{amount:,.3f}"
