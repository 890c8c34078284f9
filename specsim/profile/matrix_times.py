"""What products of matrices of any size take, looked up in tables of those that were measured.

Between measured sizes times are interpolated linearly, which is exact where they depend on the
product of the sizes. Where a kernel computes in tiles, and a wave of them, one per multiprocessor,
takes the same time however few there are in it, times between measured sizes go by the number of
waves: 336 tiles of an A100's 108 multiprocessors take four waves, 324 would take three.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from specsim.core.columns import grid_of
from specsim.core.errors import ProfileError
from specsim.profile.kernel_tables import DTYPES, MeasuredTable, Values, us_per_byte
from specsim.profile.kernel_times import rising

_TILES = (128, 128), (128, 256)
_MOST_IN_TILES = 4096  # tokens; of more, another tile is less than 3 %
_CLEARLY = 0.9  # tiles count if they bring the error of predicted rows below this share of it
_COMPUTING = 3.0  # times as long as reading takes: what a row takes that tells of computing
_LEAST_OUTPUTS = 1024  # of such rows


class Tiles(NamedTuple):
    """What a multiprocessor computes at once of a product: so many tokens, and outputs."""

    tokens: int
    outputs: int
    multiprocessors: int

    def waves(self, tokens: Values, outputs: Values) -> Values:
        """Return how many tiles the busiest multiprocessor computes one after the other."""
        tiles = np.ceil(tokens / self.tokens) * np.ceil(outputs / self.outputs)
        return np.asarray(np.ceil(tiles / self.multiprocessors))


class MatrixTimes:
    """Times of matrix products of one data type and kernel, by tokens and both sizes.

    Args:
        multiprocessors: Of the GPU; None if not known, and then no tiles are looked for.
    """

    def __init__(
        self, table: MeasuredTable, dtype: str, kernel: str | None, multiprocessors: int | None
    ) -> None:
        own, name = table.where("matrices", gemm_dtype=dtype).of_kernel(kernel)
        *sizes, times = own.columns("m", "n", "k")
        weights = DTYPES[dtype].bytes_per_weight * sizes[1] * sizes[2]
        self.us_per_byte = us_per_byte(weights, times)
        """Which no weights are read faster than; 0 where they were measured from memory."""
        times = np.maximum(times, self.us_per_byte * weights)
        (self._measured, self._outputs, self._inputs), self._grid = grid_of(sizes, times)
        self._tiles = None if multiprocessors is None else self._best_tiles(multiprocessors)
        self.source, self.tokens = f"{table.source} ({name})", self._measured
        if self._tiles is not None:
            self.source = f"{table.source} ({name}, tiles of {self._tiles[0]} x {self._tiles[1]})"
            most = min(_MOST_IN_TILES, self._measured[-1] - 1)
            ends = np.arange(self._tiles.tokens, most + 1, self._tiles.tokens)
            self.tokens = np.unique(np.concatenate([self._measured, ends, ends + 1]))

    def times(self, outputs: int, inputs: int) -> Values:
        """Return what each number of tokens takes, microseconds, shape (tokens,).

        More never take less.
        """
        known = self._measured
        total = self._of_measured(outputs, inputs)
        straight = np.interp(self.tokens, known, total)
        if self._tiles is None:
            return straight
        above = np.clip(np.searchsorted(known, self.tokens), 1, len(known) - 1)
        sides = (known[above - 1], self.tokens, known[above])
        waves = [self._tiles.waves(side, np.array(outputs)) for side in sides]
        ends = total[above - 1], total[above]
        return np.maximum.accumulate(_by_waves(ends, straight, total[0], waves))

    def _of_measured(self, outputs: int, inputs: int) -> Values:
        """Return what each measured number of tokens takes; larger never faster."""
        known, corners = self._measured, _corners(self._outputs, outputs)
        ends = [self._column(row, inputs) for row, _ in corners]
        total = np.sum([w * end for (_, w), end in zip(corners, ends, strict=True)], axis=0)
        if not np.isfinite(total[0]):
            raise ProfileError(
                f"{self.source}: no matrices near {inputs} x {outputs} were measured; choose "
                "another --tp, or use `specsim profile roofline`"
            )
        if self._tiles is not None and len(corners) > 1:
            first, last = (self._outputs[[row]] for row, _ in corners)
            sides = (first, np.array([outputs]), last)
            waves = [self._tiles.waves(known, side) for side in sides]
            total = _by_waves((ends[0], ends[1]), total, total[0], waves)
        return rising(_extended(known, total))

    def _column(self, row: int, inputs: int) -> Values:
        """Return what each measured number of tokens takes with a measured number of outputs."""
        corners = _corners(self._inputs, inputs)
        parts = [weight * self._filled(row, column) for column, weight in corners]
        return np.asarray(np.sum(parts, axis=0))

    def _filled(self, row: int, column: int) -> Values:
        """Return a column of times; where a size was not measured, a smaller one's, scaled."""
        times = self._grid[:, row, column]
        for lower in range(row - 1, -1, -1):
            if np.isfinite(times).any():
                break
            times = self._grid[:, lower, column] * self._outputs[row] / self._outputs[lower]
        return np.asarray(times)

    def _best_tiles(self, multiprocessors: int) -> Tiles | None:
        """Return the tiles that predict rows best from their neighbours; None if lines do."""
        errors: dict[Tiles | None, float] = {None: self._error(None)}
        for sizes in _TILES:
            tiles = Tiles(*sizes, multiprocessors)
            errors[tiles] = self._error(tiles)
        best = min(errors, key=lambda tiles: errors[tiles])
        return best if errors[best] < _CLEARLY * errors[None] else None

    def _error(self, tiles: Tiles | None) -> float:
        """Return how far off rows are that are predicted from both of their neighbours.

        Mean relative error along tokens plus that along outputs, of rows that mostly compute.
        """
        tokens, outputs = np.meshgrid(self._measured, self._outputs, indexing="ij")
        total = 0.0
        for axis, sizes in enumerate((tokens, outputs)):
            first, own, last = _neighbours(sizes, axis)
            low, times, high = _neighbours(self._grid, axis)
            straight = low + ((own - first) / (last - first))[..., None] * (high - low)
            _, reading, _ = _neighbours(np.broadcast_to(self._grid[:1], self._grid.shape), axis)
            guess = straight
            if tiles is not None:
                pairs = zip(_neighbours(tokens, axis), _neighbours(outputs, axis), strict=True)
                waves = [tiles.waves(*pair)[..., None] for pair in pairs]
                guess = _by_waves((low, high), straight, reading, waves)
            tells = (straight > _COMPUTING * reading) & np.isfinite(guess / times)
            tells &= (_neighbours(outputs, axis)[1] >= _LEAST_OUTPUTS)[..., None]
            if tells.any():
                total += float(np.abs(guess / times - 1)[tells].mean())
        return total


def _neighbours(values: Values, axis: int) -> list[Values]:
    """Return along an axis, for each value but the ends, the one before, itself, and the next.

    That axis becomes the first.
    """
    moved = np.moveaxis(values, axis, 0)
    return [moved[:-2], moved[1:-1], moved[2:]]


def _by_waves(
    ends: tuple[Values, Values], straight: Values, reading: Values, waves: Sequence[Values]
) -> Values:
    """Return what a product takes, by its waves where it computes twice as long as it reads.

    Args:
        ends: Times of a smaller and a larger one.
        straight: Its own, by its size.
        reading: What reading its weights takes.
        waves: Of the smaller one, of it, of the larger one.
    """
    rise = waves[2] - waves[0]
    stairs = ends[0] + (waves[1] - waves[0]) / np.maximum(rise, 1) * (ends[1] - ends[0])
    computing = np.where(rise > 0, np.clip(straight / reading - 1, 0, 1), 0)
    return np.asarray(straight + computing * (stairs - straight))


def _corners(axis: Values, value: float) -> list[tuple[int, float]]:
    """Return places on a rising axis and their weights; beyond its end, the last one scaled."""
    if value >= axis[-1]:
        return [(len(axis) - 1, value / axis[-1])]
    above = int(np.searchsorted(axis, value))
    if axis[above] == value or above == 0:
        return [(above, 1.0)]
    share = (value - axis[above - 1]) / (axis[above] - axis[above - 1])
    return [(above - 1, 1.0 - share), (above, share)]


def _extended(tokens: Values, times: Values) -> Values:
    """Return times with those filled in that were not measured, by the largest that was."""
    known = np.isfinite(times)
    filled = np.interp(tokens, tokens[known], times[known])
    last = np.flatnonzero(known)[-1]
    beyond = tokens > tokens[last]
    filled[beyond] = times[last] * tokens[beyond] / tokens[last]
    return filled
