"""Where time and memory of a run went, as stacks."""

from pathlib import Path

import numpy as np
from matplotlib import pyplot as plt
from matplotlib.axes import Axes

from specsim.hardware import GIB
from specsim.results.time_use import PARTS
from specsim.show.breakdown import Breakdown
from specsim.show.plots.save import save

__all__ = ["plot_breakdown"]


def plot_breakdown(breakdown: Breakdown, path: Path, title: str) -> None:
    """Draw where time went, by batch size, and where memory went.

    Args:
        path: ``.png``, ``.svg`` or ``.pdf``.
    """
    figure, axes = plt.subplots(1, 2, figsize=(13, 4), constrained_layout=True)
    figure.suptitle(title)
    rows = [breakdown.time.overall, *breakdown.time.rows]
    names = ["all", *(row.label for row in breakdown.time.rows)]
    _stack(axes[0], names, {part: [row.parts[part] for row in rows] for part in PARTS})
    axes[0].set_xlabel("batch size, requests")
    axes[0].set_ylabel("share of the time")
    _stack(axes[1], ["one GPU", "KV cache in use"], _memory_stack(breakdown))
    axes[1].set_ylabel("memory, GiB")
    save(figure, path)


def _memory_stack(breakdown: Breakdown) -> dict[str, list[float]]:
    """Return GiB of one GPU, and of its KV cache, by what they are for."""
    # More blocks than fit leave a negative rest, which a stack cannot show.
    parts = {name: max(0.0, size) / GIB for name, size in breakdown.memory_parts.items()}
    kv, memory = breakdown.kv, breakdown.memory
    block_gib = (memory.block_bytes + memory.draft_block_bytes) / GIB
    use = {
        "used, mean": kv.mean_used,
        "used at the peak": kv.peak_used - kv.mean_used,
        "never used": kv.num_usable - kv.peak_used,
    }
    return {
        **{name.replace("_", " "): [size, 0.0] for name, size in parts.items()},
        **{name: [0.0, blocks * block_gib] for name, blocks in use.items()},
    }


def _stack(axis: Axes, names: list[str], parts: dict[str, list[float]]) -> None:
    bottom = np.zeros(len(names))
    for label, heights in parts.items():
        axis.bar(names, heights, bottom=bottom, label=label)
        bottom += heights
    axis.legend(fontsize="small", bbox_to_anchor=(1, 1), loc="upper left", reverse=True)
