"""Attention time of one layer, interpolated on a measured grid."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from specsim.core.columns import find_table, read_columns
from specsim.core.errors import ProfileError
from specsim.core.step import Pieces
from specsim.latency._grid import Grid, Line, fill_along, grid_of

__all__ = ["AXES", "Attention"]

AXES = ("prefill_chunk", "kv_prefill", "n_decode", "kv_decode")
_SKEW = ("n", "t_mean_us", "t_max_us", "t_skew_us")


class Attention:
    """Time of the attention kernel of one layer, microseconds.

    Linear interpolation in four axes: tokens of the prefill chunk, its KV entries, number of
    decoding sequences, and their mean KV length. Several prefills in one step count as one chunk of
    as many tokens and as much work, the sum of c * kv + c^2 / 2 over them.

    Args:
        folder: With ``attention.csv``, and ``skew.csv`` if that was measured.
        applies_skew: Whether the lengths' differing counts, by ``skew.csv``.

    Raises:
        ProfileError
    """

    def __init__(self, folder: Path, *, applies_skew: bool = True) -> None:
        path = find_table(folder, "attention")
        if path is None:
            raise ProfileError(
                f"{folder}: has no attention.csv or attention.csv.gz; it must have the columns "
                f"{', '.join(AXES)}, time_us"
            )
        columns, _ = read_columns(path, [*AXES, "time_us"])
        axes, values = grid_of([columns[name] for name in AXES], columns["time_us"])
        self._time = Grid(axes, _filled(values, axes, path))
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
        share = self._skew[chunk > 0](size)
        return mean_time + share * (self._at(chunk, kv_prefill, size, kv_max) - mean_time)

    def _at(self, chunk: float, kv_prefill: float, size: float, kv_decode: float) -> float:
        if kv_prefill >= 0:
            return self._time(chunk, kv_prefill, size, kv_decode)
        # Several short prompts: less work than one prompt of their total length, by as much as
        # that one would have more if it had so many tokens before it.
        full = self._time(chunk, 0.0, size, kv_decode)
        more = self._time(chunk, -kv_prefill, size, kv_decode) - full
        return max(full - more, 0.1 * full)


def _filled(
    values: NDArray[np.float64], axes: list[NDArray[np.float64]], path: Path
) -> NDArray[np.float64]:
    """Complete the grid: some cells were left out because they make no sense or do not fit."""
    no_chunk, no_decode = axes[0][0] == 0, axes[2][0] == 0
    if no_chunk and no_decode:
        values[0, :, 0, :] = 0.0
    if no_chunk and axes[1][0] == 0:
        values[0] = values[0, :1]
    if no_decode and axes[3][0] == 0:
        values[:, :, 0, :] = values[:, :, 0, :1]
    for extrapolate in (False, True):
        for axis in (3, 1, 0, 2):
            values = fill_along(values, axis, axes[axis], extrapolate=extrapolate)
    if not np.isfinite(values).all():
        raise ProfileError(
            f"{path}: is not a grid of {', '.join(AXES)}: too few combinations were measured to "
            "interpolate between them; measure at least two values of each"
        )
    return values


def _skew(folder: Path) -> tuple[Callable[[float], float], Callable[[float], float]]:
    """Return the share of (longest - mean) that a step without and with prefill takes, by size.

    Per measured batch size, the least squares of relative errors over all points; linear between.
    """
    path = find_table(folder, "skew")
    if path is None:
        return _none, _none
    columns, words = read_columns(path, _SKEW, ["regime"])
    is_pure = np.array([regime == "pure" for regime in words["regime"]])
    lines: list[Callable[[float], float]] = []
    for rows in (is_pure, ~is_pure):
        n, mean, longest, skewed = (columns[name][rows] for name in _SKEW)
        room, rise = (longest - mean) / mean, (skewed - mean) / mean
        sizes = np.unique(n)
        if not len(sizes):
            lines.append(_none)
            continue
        shares = [
            float(np.clip((rise @ (room * (n == size))) / ((room**2) @ (n == size)), 0, 1))
            for size in sizes
        ]
        lines.append(Line(sizes, np.array(shares)))
    return lines[0], lines[1]


def _none(size: float) -> float:
    """Where nothing was measured, the mean length counts."""
    return 0.0
