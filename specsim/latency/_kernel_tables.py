"""Measured times of kernels: those that depend on sums, added up, and attention on a grid."""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path

import numpy as np

from specsim.core.columns import Numbers, find_table, grid_of, read_columns
from specsim.core.errors import ProfileError
from specsim.core.settings import load_mapping
from specsim.core.step import Pieces


class Line:
    """A piecewise linear function of a whole number, as a list that answers in one look-up.

    Beyond the last point it goes on with the mean slope of the upper half, which one noisy point
    cannot tilt; below the first it is constant.

    Args:
        points, values: Shape (n,). Points at least 0, in any order; of equal ones the mean counts.
    """

    def __init__(self, points: Numbers, values: Numbers) -> None:
        xs, places = np.unique(points, return_inverse=True)
        ys = np.bincount(places, values) / np.bincount(places)
        self.last = int(xs[-1])
        self._table: list[float] = np.interp(np.arange(self.last + 1), xs, ys).tolist()
        half = float(np.interp(self.last / 2, xs, ys))
        rise = max(0.0, float(ys[-1]) - half)
        self._slope = rise / (self.last / 2) if self.last else 0.0

    def __call__(self, point: float) -> float:
        last = self.last
        if point >= last:
            return self._table[last] + (point - last) * self._slope
        below = int(point)
        value = self._table[below]
        if below == point:
            return value
        return value + (point - below) * (self._table[below + 1] - value)


class Grid:
    """Linear interpolation in each axis of a complete grid.

    Beyond its last point an axis goes on with the slope of its last cell; below the first it is
    constant.

    Args:
        axes: Rising.
        values: One dimension per axis, no NaN.
    """

    def __init__(self, axes: Sequence[Numbers], values: Numbers) -> None:
        self._axes = [axis.tolist() for axis in axes]
        self._axis_arrays = list(axes)
        self._values: list[float] = np.ascontiguousarray(values).ravel().tolist()
        strides = np.cumprod([1, *values.shape[:0:-1]])[::-1]
        self._strides: list[int] = strides.tolist()

    def __call__(self, *point: float) -> float:
        offset = 0
        cells: list[tuple[int, float]] = []  # stride and share of the upper neighbour
        for axis, array, stride, at in zip(
            self._axes, self._axis_arrays, self._strides, point, strict=True
        ):
            if len(axis) == 1 or at <= axis[0]:
                continue
            below = min(int(array.searchsorted(at, "right")) - 1, len(axis) - 2)
            offset += below * stride
            low = axis[below]
            if at != low:
                cells.append((stride, (at - low) / (axis[below + 1] - low)))
        values = self._values
        if not cells:
            return values[offset]
        total = 0.0
        for corner in product((0, 1), repeat=len(cells)):
            weight, place = 1.0, offset
            for upper, (stride, share) in zip(corner, cells, strict=True):
                weight *= share if upper else 1.0 - share
                place += stride if upper else 0
            total += weight * values[place]
        return total


def fill_along(values: Numbers, axis: int, points: Numbers, *, extrapolate: bool) -> Numbers:
    """Return a grid with those gaps, which are NaN, filled for which an axis has neighbours.

    Args:
        points: Coordinates along the axis.
        extrapolate: Whether to go on beyond the outermost neighbours as well, with their slope.
    """

    def fill(row: Numbers) -> Numbers:
        known = np.flatnonzero(np.isfinite(row))
        if len(known) < 2 or len(known) == len(row):
            return row
        inside = np.interp(points, points[known], row[known], left=np.nan, right=np.nan)
        if extrapolate:
            for end, (near, far), side in (
                (known[-1], known[-1:-3:-1], slice(known[-1] + 1, None)),
                (known[0], known[:2], slice(None, known[0])),
            ):
                slope = (row[near] - row[far]) / (points[near] - points[far])
                inside[side] = np.maximum(0.0, row[end] + slope * (points[side] - points[end]))
        return inside

    filled: Numbers = np.apply_along_axis(fill, axis, values)
    return filled


_ONCE = ("embedding", "final_layernorm")
_TWICE = ("layernorm",)
_ATTENTION_LAYERS = ("qkv_proj", "rotary_emb", "o_proj")
_MLP_LAYERS = ("gate_up_proj", "act_fn", "down_proj")
_EXPERTS = ("tokens", "activated_experts")
_ATTENTION = ("prefill_chunk", "kv_prefill", "n_decode", "kv_decode")
_SKEW = ("n", "kv_mean", "kv_big", "t_mean_us", "t_max_us", "t_skew_us")


class KernelTables:
    """Times of a model's kernels by number of tokens or sequences, microseconds.

    A ProfileError if a table or one of the kernels that every model has is missing.
    """

    def __init__(self, folder: Path) -> None:
        if not folder.is_dir():
            raise ProfileError(f"{folder}: is not a folder; name the one that holds dense.csv")
        self.moe = moe_grid(folder)
        lines = _lines(folder, "dense", "tokens")
        self.has_mlp = any(name in lines for name in _MLP_LAYERS)
        shards = folder.parent.glob("tp*")  # of other tensor parallelism
        has_experts = self.moe or (
            not self.has_mlp and any(find_table(shard, "moe") for shard in shards)
        )
        needed = [*_ONCE, *_TWICE, *_ATTENTION_LAYERS, *(() if has_experts else _MLP_LAYERS)]
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


def moe_grid(folder: Path) -> Grid | None:
    """Return the time of a layer's experts by tokens and activated experts; None if not measured.

    A ProfileError if ``moe.csv`` is not a grid.
    """
    path = find_table(folder, "moe")
    if path is None:
        return None
    columns, _ = read_columns(path, [*_EXPERTS, "time_us"])
    axes, values = grid_of([columns[name] for name in _EXPERTS], columns["time_us"])
    return _complete(
        axes, values, (1, 0), f"{path}: is not a grid of {' x '.join(_EXPERTS)}: too few "
        "combinations were measured",
    )  # fmt: skip


def _complete(axes: list[Numbers], values: Numbers, order: Sequence[int], complaint: str) -> Grid:
    """Fill the gaps of a grid, between neighbours before beyond them, and axis after axis."""
    for extrapolate in (False, True):
        for axis in order:
            values = fill_along(values, axis, axes[axis], extrapolate=extrapolate)
    if not np.isfinite(values).all():
        raise ProfileError(complaint)
    return Grid(axes, values)


def shard_folder(path: Path, size: int) -> Path:
    """Return the folder with the tables of a GPU that shares its layers with `size` - 1 others.

    A ProfileError if the tables are of another number of GPUs.
    """
    own = path / f"tp{size}"
    if own.is_dir():
        return own
    others = sorted(folder.name for folder in path.glob("tp*") if folder.is_dir())
    if not others and (size == 1 or size in _measured_sizes(path)):
        return path
    there = ", ".join(others) or "tables of one GPU"
    raise ProfileError(
        f"{path}: has no folder tp{size} with the kernels of one of {size} GPUs that share every "
        f"layer (found: {there}); measure them, or run with what was measured"
    )


def _measured_sizes(path: Path) -> list[int]:
    """Return the tensor parallelism that ``meta.yaml`` states for tables without ``tp<N>``."""
    meta = path / "meta.yaml"
    said = load_mapping(meta, ProfileError) if meta.is_file() else {}
    sizes = said.get("tp_degrees", [said.get("tensor_parallel_size")])
    return sizes if isinstance(sizes, list) and len(sizes) == 1 else []


class Attention:
    """Time of the attention kernel of one layer, microseconds.

    Linear interpolation in four axes: tokens of the prefill chunk, its KV entries, number of
    decoding sequences, and their mean KV length. Several prefills in one step count as one chunk of
    as many tokens and as much work, the sum of c * kv + c^2 / 2 over them. A ProfileError if
    ``attention.csv`` is missing, or is not a grid.

    Args:
        folder: With ``attention.csv``, and ``skew.csv`` if that was measured.
        applies_skew: Whether the lengths' differing counts, by ``skew.csv``.
    """

    def __init__(self, folder: Path, *, applies_skew: bool = True) -> None:
        path = find_table(folder, "attention")
        if path is None:
            raise ProfileError(
                f"{folder}: has no attention.csv or attention.csv.gz; it must have the columns "
                f"{', '.join(_ATTENTION)}, time_us"
            )
        columns, _ = read_columns(path, [*_ATTENTION, "time_us"])
        axes, values = grid_of([columns[name] for name in _ATTENTION], columns["time_us"])
        _fill_senseless(axes, values)
        self._time = _complete(
            axes, values, (3, 1, 0, 2),
            f"{path}: is not a grid of {', '.join(_ATTENTION)}: too few combinations were measured "
            "to interpolate between them; measure at least two values of each",
        )  # fmt: skip
        self._skew = _skew(folder) if applies_skew else (_none, _none)
        self._first_chunk = float(next((chunk for chunk in axes[0] if chunk > 1), 2.0))

    def time_of(self, pieces: Pieces) -> float:
        """Return the attention time of a step, given what each of its sequences processes.

        A few tokens at the end of a long context, such as a last token with its drafts, are read
        in one tile as a single token is; pieces shorter than the smallest measured chunk therefore
        count as decodes.
        """
        chunk, work = 0, 0.0
        contexts: list[int] = []
        for query_len, context_len in zip(*pieces, strict=True):
            if query_len < self._first_chunk:
                contexts.append(context_len + query_len)
            else:
                chunk += query_len
                work += query_len * (context_len + 0.5 * query_len)
        kv_prefill = (work - 0.5 * chunk * chunk) / chunk if chunk else 0.0
        if not contexts:
            return self._at(chunk, kv_prefill, 0, 0.0)
        size = len(contexts)
        return self.time(chunk, kv_prefill, size, sum(contexts) / size, max(contexts))

    def time(
        self, chunk: float, kv_prefill: float, size: float, kv_mean: float, kv_max: float
    ) -> float:
        """Return the attention time of a step of one prefill and so many decodes.

        Where their lengths differ, it lies between that of their mean and that of their maximum
        (``skew.csv``).
        """
        mean_time = self._at(chunk, kv_prefill, size, kv_mean)
        if kv_max <= kv_mean:
            return mean_time
        share = self._skew[chunk > 0](size, 1 - kv_mean / kv_max)
        return mean_time + share * (self._at(chunk, kv_prefill, size, kv_max) - mean_time)

    def _at(self, chunk: float, kv_prefill: float, size: float, kv_decode: float) -> float:
        if kv_prefill >= 0:
            return self._time(chunk, kv_prefill, size, kv_decode)
        # Several short prompts: less work than one prompt of their total length, by as much as
        # that one would have more if it had so many tokens before it.
        full = self._time(chunk, 0.0, size, kv_decode)
        more = self._time(chunk, -kv_prefill, size, kv_decode) - full
        return max(full - more, 0.1 * full)


def _fill_senseless(axes: list[Numbers], values: Numbers) -> None:
    """Fill the cells of no chunk, or no decodes, of some length, which nobody measures."""
    no_chunk, no_decode = axes[0][0] == 0, axes[2][0] == 0
    if no_chunk and no_decode:
        values[0, :, 0, :] = 0.0
    if no_chunk and axes[1][0] == 0:
        values[0] = values[0, :1]
    if no_decode and axes[3][0] == 0:
        values[:, :, 0, :] = values[:, :, 0, :1]


_Shares = Callable[[float, float], float]


def _skew(folder: Path) -> tuple[_Shares, _Shares]:
    """Return the share of (longest - mean) that a step without and with prefill takes.

    It depends on how many sequences there are, and how far the longest is above their mean, as a
    share of the longest: where few are long, the step waits for those alone; where most are, as
    for all. Per such pair, the least squares of relative errors over all points; linear between.
    """
    path = find_table(folder, "skew")
    if path is None:
        return _none, _none
    columns, words = read_columns(path, _SKEW, ["regime"])
    is_pure = np.array([regime == "pure" for regime in words["regime"]])
    of_pure, of_mixed = (
        _shares(*(columns[name][rows] for name in _SKEW)) if rows.any() else _none
        for rows in (is_pure, ~is_pure)
    )
    return of_pure, of_mixed


def _shares(
    n: Numbers, kv_mean: Numbers, kv_big: Numbers, mean: Numbers, longest: Numbers, skewed: Numbers
) -> _Shares:
    room, rise, above = (longest - mean) / mean, (skewed - mean) / mean, 1 - kv_mean / kv_big
    sizes, axis = np.unique(n), np.unique(np.round(above, 6))
    rows = []
    for size in sizes:
        own = np.unique(np.round(above[n == size], 6))
        alike = [(n == size) & (np.abs(above - each) < 1e-6) for each in own]
        told = [(rise @ (room * at)) / max((room**2) @ at, 1e-300) for at in alike]
        rows.append(np.interp(axis, own, np.clip(told, 0, 1)))
    lines = [Line(sizes, shares) for shares in np.transpose(rows)]
    points: list[float] = axis.tolist()

    def share(size: float, above: float) -> float:
        place = bisect_left(points, above)
        if place in (0, len(points)):
            return lines[max(place - 1, 0)](size)
        low, high = points[place - 1 : place + 1]
        below, beyond = lines[place - 1](size), lines[place](size)
        return below + (above - low) / (high - low) * (beyond - below)

    return share


def _none(size: float, above: float) -> float:
    """Where nothing was measured, the mean length counts."""
    return 0.0
