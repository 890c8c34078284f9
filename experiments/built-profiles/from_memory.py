"""Attention of composed profiles against LLMServingSim's own kernel tables of an RTX PRO 6000.

python experiments/built-profiles/from_memory.py     # needs the extra `tables`, and SPECSIM_DATA

It measured layer by layer, so that keys and values come from memory. The same kernel in the tables
of aiconfigurator-core was run over and over, and found them in the GPU's cache. Prints the median
error by the bytes that are read, of these tables as they are and as profiles have them.
"""

import os
from itertools import pairwise
from pathlib import Path

import numpy as np
from scipy.interpolate import RegularGridInterpolator

from specsim.core.columns import read_columns
from specsim.profile.attention_tables import from_memory
from specsim.profile.kernel_tables import GpuTables, MeasuredTable, Values, tables_folder
from specsim.profile.kernel_times import HeadTimes

MEASURED = {
    "Llama-3.1-8B": ("RTXPRO6000-llama-3.1-8b/profile", 32, 8),
    "Qwen3-30B-A3B": ("RTXPRO6000-qwen3-30b-a3b-dp2-ep2/profile/tp1", 32, 4),
    "Qwen3-30B-A3B, half": ("RTXPRO6000-qwen3-30b-a3b-dp2-ep2/profile/tp2", 16, 2),
}
"""Folder, heads and key-value heads of each, 128 numbers wide."""
BYTES = (0, 8e6, 32e6, 64e6, 160e6, 256e6, 1e12)


def times_at(table: MeasuredTable, heads: int, keys: int, points: Values) -> Values:
    """Return what decodes take at contexts and sequences, shape (n, 2), microseconds."""
    sizes = {"head_dim": 128, "window_size": 0, "num_heads": heads, "num_key_value_heads": keys}
    batch, isl, step, times = table.where("attention", **sizes).columns("batch_size", "isl", "step")
    contexts, sequences, grid = HeadTimes(batch, isl + step, times).grid()
    look_up = RegularGridInterpolator(
        (contexts, sequences), grid, bounds_error=False, fill_value=None
    )
    found: Values = look_up(points)
    return found


def main() -> None:
    table = GpuTables(tables_folder(), "rtx-pro-6000").table(
        "attention", "generation_attention_perf"
    )
    table = table.where("attention", kv_cache_dtype="bfloat16")
    folder = Path(os.environ["SPECSIM_DATA"]) / "real-runs"
    for name, (place, heads, keys) in MEASURED.items():
        columns, _ = read_columns(
            folder / place / "attention.csv.gz",
            ["prefill_chunk", "n_decode", "kv_decode", "time_us"],
        )
        chunk, sequences, contexts, measured = columns.values()
        decodes = (chunk == 0) & (sequences > 0)
        points = np.stack([contexts, sequences], axis=1)[decodes]
        moved = points.prod(axis=1) * keys * 128 * 4
        errors = [
            times_at(each, heads, keys, points) / measured[decodes] - 1
            for each in (table, from_memory(table, "bfloat16"))
        ]
        for low, high in pairwise(BYTES):
            here = (low < moved) & (moved <= high)
            before, after = (np.median(each[here]) for each in errors)
            print(f"{name}, {low / 1e6:.0f} to {high / 1e6:.0f} MB, {here.sum()} points: "
                  f"{before:+.1%} -> {after:+.1%}")  # fmt: skip


if __name__ == "__main__":
    main()
