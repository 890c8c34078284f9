"""Measured times between and beyond the points of a line, or of a grid, in Python."""

from collections.abc import Sequence
from itertools import product

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.float64]


class Line:
    """A piecewise linear function of a whole number, as a list that answers in one look-up.

    Beyond the last point it goes on with the mean slope of the upper half, which one noisy point
    cannot tilt; below the first it is constant.

    Args:
        points, values: Shape (n,). Points at least 0, in any order; of equal ones the mean counts.
    """

    def __init__(self, points: Values, values: Values) -> None:
        xs, places = np.unique(points, return_inverse=True)
        ys = np.bincount(places, values) / np.bincount(places)
        self.last = int(xs[-1])
        self._table: list[float] = np.interp(np.arange(self.last + 1), xs, ys).tolist()
        half = float(np.interp(self.last / 2, xs, ys))
        rise = max(0.0, float(ys[-1]) - half)
        self._slope = rise / (self.last / 2) if self.last else 0.0

    def __call__(self, point: float) -> float:
        """Return the value at a point of at least 0."""
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

    def __init__(self, axes: Sequence[Values], values: Values) -> None:
        self._axes = [axis.tolist() for axis in axes]
        self._axis_arrays = list(axes)
        self._values: list[float] = np.ascontiguousarray(values).ravel().tolist()
        strides = np.cumprod([1, *values.shape[:0:-1]])[::-1]
        self._strides: list[int] = strides.tolist()

    def __call__(self, *point: float) -> float:
        """Return the value at a point, one coordinate per axis."""
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


def grid_of(columns: Sequence[Values], times: Values) -> tuple[list[Values], Values]:
    """Return axes and grid of measured times, NaN where nothing was measured.

    Args:
        columns: Coordinates, shape (rows,) each; the values that occur, rising, are the axes.
        times: Shape (rows,).
    """
    axes = [np.unique(column) for column in columns]
    values = np.full([len(axis) for axis in axes], np.nan)
    places = [np.searchsorted(axis, column) for axis, column in zip(axes, columns, strict=True)]
    values[tuple(places)] = times
    return axes, values


def fill_along(values: Values, axis: int, points: Values, *, extrapolate: bool) -> Values:
    """Return a grid with those gaps, which are NaN, filled for which an axis has neighbours.

    Args:
        points: Coordinates along the axis.
        extrapolate: Whether to go on beyond the outermost neighbours as well, with their slope.
    """

    def fill(row: Values) -> Values:
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

    filled: Values = np.apply_along_axis(fill, axis, values)
    return filled
