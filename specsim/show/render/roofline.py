"""A roofline profile in a few numbers."""

from rich.table import Table

from specsim.hardware import GIB
from specsim.profile.from_roofline import RooflineProfile
from specsim.show.render.tables import new_table

__all__ = ["roofline_table"]

_BATCH_SIZES = (1, 8, 64, 256)


def roofline_table(made: RooflineProfile, context_len: int) -> Table:
    """Return what memory holds and how long decode steps take.

    Args:
        context_len: Of each sequence of a step, in tokens.
    """
    roofline, memory = made.roofline, made.memory
    size = roofline.tensor_parallel_size
    gpus = f"{size} x {roofline.gpu}" if size > 1 else roofline.gpu
    table = new_table(f"{roofline.model} on {gpus}, per GPU", ("", "value"))
    table.add_row("weights, GiB", f"{memory.weight_bytes / GIB:,.2f}")
    if memory.draft_weight_bytes:
        table.add_row("weights of drafters, GiB", f"{memory.draft_weight_bytes / GIB:,.2f}")
    block_bytes = memory.block_bytes + memory.draft_block_bytes
    table.add_row("KV cache, bytes per token", f"{block_bytes / made.block_size:,.0f}")
    table.add_row(f"KV blocks of {made.block_size} tokens that fit", f"{made.num_blocks:,}")
    for batch_size in _BATCH_SIZES:
        label = f"step at batch {batch_size}, {context_len:,} tokens of context each, ms"
        # A batch that does not fit never runs at once; its time would only mislead.
        fits = batch_size * (context_len + 1) <= made.capacity
        time = f"{made.decode_time(batch_size, context_len) * 1e3:.2f}" if fits else "does not fit"
        table.add_row(label, time)
    budget = roofline.free_budget()
    shown = "no limit" if budget is None else f"{budget:,.0f}"
    table.add_row("free budget, batch size x (k + 1)", shown)
    return table
