"""What attention, experts and small weights take, looked up in tables of those that were measured.

Times are microseconds, and of larger sizes never shorter; of matrices see
`specsim.profile.matrix_times`.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import isotonic_regression

from specsim.core.errors import ProfileError
from specsim.profile.kernel_tables import MeasuredTable, chosen, columns

Values = NDArray[np.float64]

_BESIDE_EXPERTS_US = 38.0
"""Of a layer's experts beside reading and computing, whatever their size: what Marlin takes for one
token where gpt-oss's are split among 8 GPUs or more, median of 28 splits on L40S and RTX PRO 6000
(27 to 50)."""

LAUNCH_US = 1.5  # of a kernel within a CUDA graph, besides what it does
_SMALL_READ, _SMALL_FIXED_US = 0.83, 11.5
_SMALL_COMPUTE = 1.58, 1.44  # in one tile, and in many
_SMALL_TILES = (16, 32, 48, 64), (0.0, 0.3, 0.6, 1.0)
_MOST_WHOLE = 256  # tokens of a step that is likely to fill its tiles

_EXPERT_SIZES = ("hidden_size", "inter_size", "num_experts", "topk")
_SKEWS = ("power_law_1.2", "power_law_1.01", "balanced")


class HeadTimes:
    """Attention of a number of heads; times in microseconds."""

    def __init__(self, batch: Values, lens: Values, times: Values) -> None:
        self._batch, self._lens, self._times = batch, lens, times

    def of_more_heads(self, parts: int) -> "HeadTimes":
        """Return the times of so many times as many heads, which are as of more sequences."""
        if parts == 1:
            return self
        found = []
        for length in np.unique(self._lens):
            here = self._lens == length
            order = np.argsort(self._batch[here])
            sizes, times = self._batch[here][order], self._times[here][order]
            fewer = sizes[parts * sizes <= sizes[-1]]
            lens = np.full(len(fewer), length)
            found.append(np.stack([fewer, lens, np.interp(parts * fewer, sizes, times)]))
        return HeadTimes(*np.concatenate(found, axis=1))

    def towards(self, other: "HeadTimes", share: float) -> "HeadTimes":
        """Return the times that lie between these and others, where both were measured.

        A ProfileError if that is nowhere.
        """
        ours, theirs = (
            dict(zip(zip(each._batch, each._lens, strict=True), each._times, strict=True))
            for each in (self, other)
        )
        both = [
            (*point, time + share * (theirs[point] - time))
            for point, time in ours.items()
            if point in theirs
        ]
        if not both:
            raise ProfileError(
                "attention: the next smaller and larger numbers of heads were measured at no batch "
                "and length alike; choose another --tp, or use `specsim profile roofline`"
            )
        return HeadTimes(*np.array(both).T)

    @property
    def fewest(self) -> float:
        """Of the fewest sequences with the shortest context."""
        return float(self._times[np.lexsort((self._lens, self._batch))[0]])

    def grid(self) -> tuple[Values, Values, Values]:
        """Return context lengths, sequences, and the times of decodes; larger never faster."""
        is_whole = self._batch >= 1
        lens, batches = np.unique(self._lens[is_whole]), np.unique(self._batch[is_whole])
        grid = np.full((len(lens), len(batches)), np.nan)
        places = np.searchsorted(lens, self._lens[is_whole])
        grid[places, np.searchsorted(batches, self._batch[is_whole])] = self._times[is_whole]
        return lens, batches, _completed(grid, lens, batches)

    def prompts(self) -> tuple[Values, Values]:
        """Return lengths of whole prompts, and what one of each takes."""
        single = self._batch == 1
        return _line(self._lens[single], self._times[single])


def _completed(grid: Values, lens: Values, batches: Values) -> Values:
    """Return the grid without gaps: where memory ended, tokens read take as long as before.

    What is missing of the shortest context and the fewest sequences takes as long as the next more.
    """
    measured = np.flatnonzero(~np.isnan(grid[0]))
    grid[0, : measured[0]] = grid[0, measured[0]]
    for row in range(grid.shape[0]):
        for column in range(grid.shape[1]):
            if np.isnan(grid[row, column]):
                by_len = grid[row - 1, column] * lens[row] / lens[row - 1] if row else np.nan
                grid[row, column] = (
                    by_len
                    if column == 0
                    else grid[row, column - 1] * batches[column] / batches[column - 1]
                )
    return rising(rising(grid.T).T)


def skewed(rows: Any, table: MeasuredTable) -> Any:
    """Return the rows of experts that tokens choose unevenly, as they do."""
    there = set(rows["distribution"].to_pylist())
    skew = next(name for name in (*_SKEWS, *sorted(there)) if name in there)
    return chosen(MeasuredTable(rows, table.source), "experts", distribution=skew)


class ExpertTimes(NamedTuple):
    """The experts of a layer."""

    hidden_size: int
    inter_size: int
    number: int
    chosen: int  # of these, how many each token visits

    def rows_of(self, rows: Any, table: MeasuredTable, kernel: str | None) -> tuple[Any, str]:
        """Return the rows of these experts, or of others that are carried over to them.

        That is of a kernel that is named and was not run on these, or of the most alike where none
        was. A ProfileError where these were measured, but in other numbers of parts.

        Args:
            rows: Of one data type and number of parts.
        """
        sizes, name, of = self._sizes, None, table
        if kernel is not None:
            rows, name = one_kernel(rows, table, kernel)
            of = MeasuredTable(rows, f"{table.source}, {name}")
        try:
            found = chosen(MeasuredTable(rows, of.source), "experts", **sizes)
            return (found, name) if name else one_kernel(found, table, None)
        except ProfileError:
            if name is None and self._is_measured(table, rows["moe_dtype"][0].as_py()):
                raise
        other = {column: rows[column][0].as_py() for column in sizes}
        if name is None:
            other = self._most_alike(rows)
        sizes_of_other = f"{other['hidden_size']} x {other['inter_size']}"
        found = chosen(MeasuredTable(rows, of.source), "experts", **other)
        if name is None:
            found, name = one_kernel(found, table, None)
        return found, f"{name}, carried over from {sizes_of_other}"

    @property
    def _sizes(self) -> dict[str, int]:
        return dict(zip(_EXPERT_SIZES, self, strict=True))

    def measured(self, table: MeasuredTable) -> Any:
        """Return the rows of these experts, of all data types; a ProfileError if there is none."""
        return chosen(table, "experts", **self._sizes)

    def _is_measured(self, table: MeasuredTable, dtype: str) -> bool:
        try:
            return dtype in self.measured(table)["moe_dtype"].to_pylist()
        except ProfileError:
            return False

    def _most_alike(self, rows: Any) -> dict[str, int]:
        known = sorted(set(zip(*(rows[name].to_pylist() for name in _EXPERT_SIZES), strict=True)))
        away = [np.abs(np.log(np.array(each) / np.array(self))).sum() for each in known]
        return dict(zip(_EXPERT_SIZES, known[int(np.argmin(away))], strict=True))

    def times(self, rows: Any, tokens: Values) -> Values:
        """Return what a layer takes, microseconds.

        From experts of another size by the time of a weight that is read, or multiplied, at as many
        tokens per expert; what a kernel takes beside that is the same for all sizes.
        """
        points, times = line_of(rows, "num_tokens")
        number, chosen_of, hidden, inter = (
            rows[name][0].as_py() for name in ("num_experts", "topk", "hidden_size", "inter_size")
        )
        if (number, chosen_of, hidden, inter) == (self.number, self.chosen, *self[:2]):
            return np.interp(tokens, points, times)
        first, fourth = np.interp([1, 4], points, times)
        times = times - (first - (fourth - first) / 3)  # four tokens read four times as much
        width = self.hidden_size * self.inter_size / (hidden * inter)
        alike = tokens * self.chosen / self.number * number / chosen_of
        scaled = np.interp(alike, points, times) * self.number / number
        active, fewest = (self.number * (1 - (1 - self.chosen / self.number) ** tokens), chosen_of)
        each = np.where(alike < 1, times[0] * active / fewest, scaled)
        return np.asarray(_BESIDE_EXPERTS_US + width * each)


def small_weights(tokens: Values, times: Values, share: float) -> Values:
    """Return times for weights of 4 bits from those of 16, which the tables have.

    A small share of the memory is read, and unpacking makes computing longer. Marlin multiplies
    tiles of up to 64 tokens: in one of 16 reading hides computing, a full one takes as long as
    computing. Mixtral's experts in SGLang's table of an A100 say so: reading one more takes
    `_SMALL_READ` of what its share would, tiles of 32, 48 and 64 tokens take 1.5, 1.9 and 2.6 times
    that. What it takes beside in each matrix, and computes in many tiles, was fitted once to steps
    and prompts of one client on an A100.
    """
    sizes, filled = _SMALL_TILES
    read, rate = _SMALL_READ * share * times[0], times[-1] / tokens[-1]
    whole = sizes[-1] * np.ceil(tokens / sizes[-1])
    padded = np.where(tokens > _MOST_WHOLE, tokens + sizes[-1] / 2, whole)
    computing = rate * padded * np.where(tokens > sizes[-1], *_SMALL_COMPUTE[::-1])
    hidden = read + np.interp(tokens, sizes, filled) * np.maximum(0, computing - read)
    return np.asarray(_SMALL_FIXED_US + hidden)


def one_kernel(rows: Any, table: MeasuredTable, wanted: str | None) -> tuple[Any, str]:
    """Return rows of which no two are of the same shape, and the kernel of most of them.

    Where an engine takes another kernel for other shapes, so does the table. Where several were
    measured for the same shape, it is the one that is asked for, or the one with most rows.
    """
    names = rows["kernel_source"].to_pylist()
    counts = {name: names.count(name) for name in sorted(set(names))}
    fitting = {name: count for name, count in counts.items() if (wanted or "") in name}
    if not fitting:
        raise ProfileError(
            f"{table.source}: no kernel '{wanted}'; choose one of those that were measured: "
            f"{', '.join(counts)}"
        )
    name = max(fitting, key=lambda name: fitting[name])
    shapes = rows.drop_columns(["latency", "kernel_source"])
    if wanted is None and shapes.group_by(shapes.column_names).aggregate([]).num_rows == len(names):
        return rows, name
    return chosen(MeasuredTable(rows, table.source), "kernel", kernel_source=name), name


def line_of(rows: Any, axis: str) -> tuple[Values, Values]:
    """Return an axis and times along it, of equal points the mean; larger never faster."""
    return _line(*columns(rows, axis))


def _line(at: Values, times: Values) -> tuple[Values, Values]:
    points, places = np.unique(at, return_inverse=True)
    means = np.bincount(places, times) / np.bincount(places)
    return points, rising(means)


def rising(times: Values) -> Values:
    """Return the nearest times of which none is longer than a later one, along the last axis.

    Measured once, some sizes took longer than larger ones; an engine that pads does not.
    """
    fitted = [np.exp(isotonic_regression(row).x) for row in np.log(np.atleast_2d(times))]
    return np.array(fitted).reshape(times.shape)
