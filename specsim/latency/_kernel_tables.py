"""Measured times of the kernels other than attention, added up."""

from pathlib import Path

import numpy as np

from specsim.core.columns import find_table, read_columns
from specsim.core.errors import ProfileError
from specsim.latency._grid import Grid, Line, fill_along, grid_of

__all__ = ["KernelTables"]

_ONCE = ("embedding", "final_layernorm")
_TWICE = ("layernorm",)
_ATTENTION_LAYERS = ("qkv_proj", "rotary_emb", "o_proj")
_MLP_LAYERS = ("gate_up_proj", "act_fn", "down_proj")


class KernelTables:
    """Times of a model's kernels by number of tokens or sequences, microseconds.

    Raises:
        ProfileError: A table or one of the kernels that every model has is missing.
    """

    def __init__(self, folder: Path) -> None:
        if not folder.is_dir():
            raise ProfileError(f"{folder}: is not a folder; name the one that holds dense.csv")
        self.moe = _moe(folder)
        lines = _lines(folder, "dense", "tokens")
        needed = [*_ONCE, *_TWICE, *_ATTENTION_LAYERS, *(() if self.moe else _MLP_LAYERS)]
        missing = [name for name in needed if name not in lines]
        if missing:
            raise ProfileError(
                f"{folder}: dense.csv has no layer {', '.join(missing)} (found: "
                f"{', '.join(lines)}); measure it, or add moe.csv if the model has experts"
            )
        self.per_layer = _total(
            {name: line for name, line in lines.items() if name not in _ONCE}, _TWICE
        )
        self.once = _total({name: lines[name] for name in _ONCE})
        self.per_sequence = _total(_lines(folder, "per_sequence", "sequences"))


def _lines(folder: Path, name: str, count: str) -> dict[str, Line]:
    path = find_table(folder, name)
    if path is None:
        raise ProfileError(
            f"{folder}: has no {name}.csv; it must have the columns layer, {count}, time_us"
        )
    columns, words = read_columns(path, [count, "time_us"], ["layer"])
    layers = np.array(words["layer"])
    return {
        str(layer): Line(columns[count][layers == layer], columns["time_us"][layers == layer])
        for layer in dict.fromkeys(words["layer"])
    }


def _total(lines: dict[str, Line], twice: tuple[str, ...] = ()) -> Line:
    """Return the sum of several kernels as one function."""
    last = max(line.last for line in lines.values())
    points = np.arange(2 * last + 1, dtype=np.float64)
    total = np.zeros(len(points))
    for name, line in lines.items():
        times = np.array([line(point) for point in points])
        total += 2 * times if name in twice else times
    return Line(points, total)


def _moe(folder: Path) -> Grid | None:
    path = find_table(folder, "moe")
    if path is None:
        return None
    names = ["tokens", "activated_experts"]
    columns, _ = read_columns(path, [*names, "time_us"])
    axes, values = grid_of([columns[name] for name in names], columns["time_us"])
    for extrapolate in (False, True):
        for axis in (1, 0):
            values = fill_along(values, axis, axes[axis], extrapolate=extrapolate)
    if not np.isfinite(values).all():
        raise ProfileError(
            f"{path}: is not a grid of {' x '.join(names)}: too few combinations were measured"
        )
    return Grid(axes, values)
