"""Where time and memory of a run went."""

from rich.table import Table

from specsim.hardware import GIB
from specsim.results.time_use import PARTS
from specsim.show.breakdown import Breakdown
from specsim.show.render.tables import new_table

__all__ = ["breakdown_tables"]


def breakdown_tables(breakdown: Breakdown, title: str) -> list[Table]:
    """Return the tables of ``specsim breakdown``: time, memory, and use of the KV cache."""
    time, names = breakdown.time, ["batch size", "steps", "of the time", *PARTS]
    times = new_table(f"{title}: time of all replicas", names)
    for label, row in [*((row.label, row) for row in time.rows), ("all", time.overall)]:
        if row is time.overall:
            times.add_section()
        shares = (f"{100 * share:.1f} %" for share in (row.share, *row.parts.values()))
        times.add_row(label, f"{row.num_steps:,}", *shares)
    if time.hidden_overhead_share > 0:
        times.caption = f"and {100 * time.hidden_overhead_share:.1f} % overhead hidden by the GPU"
    return [times, _memory_table(breakdown), _kv_table(breakdown)]


def _memory_table(breakdown: Breakdown) -> Table:
    parts, memory = breakdown.memory_parts, breakdown.memory
    limit = memory.usable_bytes / memory.total_bytes
    table = new_table("memory of one GPU", ["", "GiB", "of the GPU"])
    for name, label in (
        ("target_weights", "weights of the target"),
        ("draft_weights", "weights of the drafter"),
        ("reserved", "activations, CUDA graphs"),
        ("target_kv", "KV blocks of the target"),
        ("draft_kv", "KV blocks of the drafter"),
        ("unused", "left over"),
    ):
        table.add_row(label, *_gib(parts[name], memory.total_bytes))
    table.add_section()
    label = f"gpu_memory_utilization {limit:.2f}"
    table.add_row(label, *_gib(memory.usable_bytes, memory.total_bytes))
    table.add_row("the GPU", *_gib(memory.total_bytes, memory.total_bytes))
    return table


def _kv_table(breakdown: Breakdown) -> Table:
    kv, memory = breakdown.kv, breakdown.memory
    block_bytes = memory.block_bytes + memory.draft_block_bytes
    table = new_table("KV cache of one replica", ["", "blocks", "GiB per GPU", "of the cache"])
    for label, blocks in (
        ("used, mean over time", kv.mean_used),
        ("used, peak", kv.peak_used),
        ("free, mean over time", kv.num_usable - kv.mean_used),
        ("free at the peak", kv.num_usable - kv.peak_used),
        ("look-ahead slots, mean", kv.mean_lookahead),
        ("look-ahead slots, peak", kv.peak_lookahead),
    ):
        sizes = _gib(blocks * block_bytes, kv.num_usable * block_bytes)
        table.add_row(label, f"{blocks:,.1f}", *sizes)
    return table


def _gib(size: float, whole: float) -> tuple[str, str]:
    return f"{size / GIB:,.2f}", f"{100 * size / whole:.1f} %"
