"""What the parts of a layer take, looked up in tables of those that were measured.

Times are microseconds, and of larger sizes never shorter. Between measured sizes of matrices they
are interpolated linearly, which is exact where they depend on the product of the sizes. Where a
kernel computes in tiles, and a wave of them, one per multiprocessor, takes the same time however
few there are in it, times between measured sizes go by the number of waves: 336 tiles of an A100's
108 multiprocessors take four waves, 324 would take three.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from specsim.core.columns import grid_of
from specsim.core.errors import ProfileError
from specsim.hardware import ModelShape, load_gpu
from specsim.profile.kernel_tables import (
    DTYPES,
    GpuTables,
    MeasuredTable,
    TableOptions,
    Values,
    us_per_byte,
)

_BESIDE_EXPERTS_US = 38.0
"""Of a layer's experts beside reading and computing, whatever their size: what Marlin takes for one
token where gpt-oss's are split among 8 GPUs or more, median of 28 splits on L40S and RTX PRO 6000
(27 to 50)."""

LAUNCH_US = 1.5  # of a kernel within a CUDA graph, besides what it does
_SMALL_READ, _SMALL_FIXED_US = 0.83, 11.5
_SMALL_COMPUTE = 1.58, 1.44  # in one tile, and in many
_SMALL_TILES = (16, 32, 48, 64), (0.0, 0.3, 0.6, 1.0)
_MOST_WHOLE = 256  # tokens of a step that is likely to fill its tiles

_GUESS = 1e-6  # what a time that was not measured weighs, against one that was

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
        sizes = self._lens[is_whole], self._batch[is_whole]
        (lens, batches), grid = grid_of(sizes, self._times[is_whole])
        return lens, batches, _completed(grid, lens, batches)

    def prompts(self) -> tuple[Values, Values]:
        """Return lengths of whole prompts, and what one of each takes."""
        single = self._batch == 1
        return _line(self._lens[single], self._times[single])

    def chosen_prompts(self, topk: int) -> tuple[Values, Values, Values]:
        """Return lengths of prompts, attention to `topk` tokens, and the scan that chooses them.

        Beyond so many tokens attention rises with the length and the scan with its square, by which
        they are told apart; shorter prompts read all of their tokens, by other kernels.
        """
        from scipy.optimize import nnls

        lens, times = self.prompts()
        at, us = lens[lens > topk], times[lens > topk]
        terms = np.stack([np.ones(len(at)), at, at**2], axis=1) / us[:, None]
        scanned = nnls(terms, np.ones(len(at)))[0][2] * lens**2 if len(at) > 1 else 0.0 * lens
        return lens, rising(np.maximum(times - scanned, times[0])), scanned


def _completed(grid: Values, lens: Values, batches: Values) -> Values:
    """Return the grid without gaps.

    Between contexts that were measured of as many sequences times lie on lines. Beyond, where
    memory ended, a longer context adds what it adds for fewer sequences, by the tokens that are
    read; what does not grow with these stays. One sequence, and the shortest context, go on with
    their last slope. Where a larger one would be faster, what was not measured gives way.
    """
    weights = np.where(np.isnan(grid), _GUESS, 1.0)
    for times in grid.T:
        known = np.flatnonzero(~np.isnan(times))
        if len(known):
            inner = slice(known[0], known[-1] + 1)
            times[inner] = np.interp(lens[inner], lens[known], times[known])
    for line, axis in ((grid[0], batches), (grid[:, 0], lens)):
        known = np.flatnonzero(~np.isnan(line))
        line[:] = along(axis, axis[known], line[known])
    for row, column in zip(*np.nonzero(np.isnan(grid)), strict=True):
        longer = max(0.0, grid[row, column - 1] - grid[row - 1, column - 1])
        more = batches[column] / batches[column - 1]
        grid[row, column] = grid[row - 1, column] + more * longer
    return np.maximum.accumulate(rising(rising(grid.T, weights.T).T, weights))


def skewed(table: MeasuredTable) -> MeasuredTable:
    """Return the rows of experts that tokens choose unevenly, as they do."""
    there = set(table.values("distribution"))
    skew = next(name for name in (*_SKEWS, *sorted(there)) if name in there)
    return table.where("experts", distribution=skew)


class ExpertTimes(NamedTuple):
    """The experts of a layer."""

    hidden_size: int
    inter_size: int
    number: int
    chosen: int  # of these, how many each token visits

    def rows_of(
        self, part: MeasuredTable, table: MeasuredTable, kernel: str | None
    ) -> tuple[MeasuredTable, str]:
        """Return the rows of these experts, or of others that are carried over to them.

        That is of a kernel that is named and was not run on these, or of the most alike where none
        was. A ProfileError where these were measured, but in other numbers of parts.

        Args:
            part: The rows of one data type and number of parts.
        """
        sizes, name = self._sizes, None
        if kernel is not None:
            part, name = part.of_kernel(kernel)
            part = part._replace(source=f"{table.source}, {name}")
        try:
            found = part.where("experts", **sizes)
            return (found, name) if name else found.of_kernel(None)
        except ProfileError:
            if name is None and self._is_measured(table, part.values("moe_dtype")[0]):
                raise
        other = {column: part.values(column)[0] for column in sizes}
        if name is None:
            other = self._most_alike(part)
        sizes_of_other = f"{other['hidden_size']} x {other['inter_size']}"
        found = part.where("experts", **other)
        if name is None:
            found, name = found.of_kernel(None)
        return found, f"{name}, carried over from {sizes_of_other}"

    @property
    def _sizes(self) -> dict[str, int]:
        return dict(zip(_EXPERT_SIZES, self, strict=True))

    def measured(self, table: MeasuredTable) -> MeasuredTable:
        """Return the rows of these experts, of all data types; a ProfileError if there is none."""
        return table.where("experts", **self._sizes)

    def _is_measured(self, table: MeasuredTable, dtype: str) -> bool:
        try:
            return dtype in self.measured(table).values("moe_dtype")
        except ProfileError:
            return False

    def _most_alike(self, table: MeasuredTable) -> dict[str, int]:
        known = sorted(set(zip(*(table.values(name) for name in _EXPERT_SIZES), strict=True)))
        away = [np.abs(np.log(np.array(each) / np.array(self))).sum() for each in known]
        return dict(zip(_EXPERT_SIZES, known[int(np.argmin(away))], strict=True))

    def times(self, table: MeasuredTable, tokens: Values) -> Values:
        """Return what a layer takes, microseconds.

        From experts of another size by the time of a weight that is read, or multiplied, at as many
        tokens per expert; what a kernel takes beside that is the same for all sizes.
        """
        points, times = line_of(table, "num_tokens")
        hidden, inter, number, chosen_of = (table.values(name)[0] for name in _EXPERT_SIZES)
        if (hidden, inter, number, chosen_of) == self:
            return along(tokens, points, times)
        first, fourth = np.interp([1, 4], points, times)
        times = times - (first - (fourth - first) / 3)  # four tokens read four times as much
        width = self.hidden_size * self.inter_size / (hidden * inter)
        alike = tokens * self.chosen / self.number * number / chosen_of
        scaled = along(alike, points, times) * self.number / number
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


def line_of(table: MeasuredTable, axis: str) -> tuple[Values, Values]:
    """Return an axis and times along it, of equal points the mean; larger never faster.

    A ProfileError if there is one point only.
    """
    points, times = _line(*table.columns(axis))
    if len(points) == 1:
        raise ProfileError(
            f"{table.source}: was measured with {axis} {points[0]:g} only, which says nothing of "
            "others; choose another version by --table"
        )
    return points, times


def along(at: Values, points: Values, times: Values) -> Values:
    """Return times between points that were measured; beyond the last, on as they rose there."""
    inside = np.interp(at, points, times)
    if len(points) == 1:
        return inside
    slope = max(0.0, (times[-1] - times[-2]) / (points[-1] - points[-2]))
    return np.asarray(inside + slope * np.maximum(0.0, at - points[-1]))


def _line(at: Values, times: Values) -> tuple[Values, Values]:
    points, places = np.unique(at, return_inverse=True)
    means = np.bincount(places, times) / np.bincount(places)
    return points, rising(means)


def rising(times: Values, weights: Values | None = None) -> Values:
    """Return the nearest times of which none is longer than a later one, along the last axis.

    Measured once, some sizes took longer than larger ones; an engine that pads does not.
    """
    from scipy.optimize import isotonic_regression

    rows = np.log(np.atleast_2d(times))
    counts = np.ones(rows.shape) if weights is None else weights
    pairs = zip(rows, counts, strict=True)
    fitted = [np.exp(isotonic_regression(row, weights=count).x) for row, count in pairs]
    return np.array(fitted).reshape(times.shape)


_CHUNK = 256  # tokens that a prompt's scan computes at once, between which it keeps states
_COMPUTE, _MEMORY = 0.7, 0.8  # efficiencies, as a roofline's
_KERNELS = 2  # a convolution, and what updates the state
_BATCHES: Values = np.array([2.0**power for power in range(11)])
_LENS: Values = np.array([2.0**power for power in range(4, 16)])
_SOME_CONTEXTS = np.array([1.0, 2.0])  # which do not matter


class StateTimes:
    """Times of one layer that keeps a state in place of keys and values: delta nets and Mamba2.

    A decode reads and writes the state of each sequence, whatever the length of its context; a
    prompt takes as long per token. As measured, or where no table has the kernels, by data sheet.

    Args:
        note: Told of tables and kernels that were used.
    """

    def __init__(
        self,
        shape: ModelShape,
        options: TableOptions,
        tables: GpuTables,
        note: Callable[[str], None],
    ) -> None:
        self._shape, self._options = shape, options
        self._tables, self._note = tables, note
        self._rows = self._measured()

    def _measured(self) -> dict[int, MeasuredTable] | None:
        """Return rows by the number of heads: these, or fewer and more; None if there are none."""
        try:
            rows = self._delta_nets()
        except ProfileError as error:
            self._note(f"layers with a state by roofline ({error})")
            return None
        self._note(next(iter(rows.values())).source)
        if len(rows) > 1:
            self._note(f"{self._heads} heads with states between {' and '.join(map(str, rows))}")
        return rows

    @property
    def _heads(self) -> int:
        return self._shape.linear_num_value_heads // self._options.tensor_parallel_size

    def _delta_nets(self) -> dict[int, MeasuredTable]:
        """Return the rows of these heads; a ProfileError if there are none.

        Kimi's heads are as many of keys as of values, and what lies between two numbers of them
        was measured nowhere.
        """
        shape, heads = self._shape, self._heads
        if any(each.kind in ("mamba", "hybrid") for each in shape.layers):
            raise ProfileError("no table has what updates the states of Mamba")
        sizes = {"head_k_dim": shape.linear_key_head_dim, "head_v_dim": shape.linear_value_head_dim}
        if not shape.linear_decay_rank:
            table = self._tables.table("linear_attention", "gdn_perf")
            keys = -(-shape.linear_num_key_heads // self._options.tensor_parallel_size)
            return {heads: table.where("delta nets", num_k_heads=keys, num_v_heads=heads, **sizes)}
        table = self._tables.table("kda", "kda_perf").where("delta nets", **sizes)
        known = sorted(set(table.values("num_v_heads")))
        ends = [
            [each for each in known if each <= heads][-1:],
            [n for n in known if n >= heads][:1],
        ]
        found = [*ends[0], *ends[1]] if all(ends) else [heads]
        return {each: table.where("delta nets", num_v_heads=each) for each in found}

    def decodes(self) -> tuple[Values, Values, Values]:
        """Return some contexts, sequences, and the times, which are the same for all contexts."""
        sequences, times = self._line("generation", "batch_size")
        return _SOME_CONTEXTS, sequences, np.stack([times, times])

    def prompts(self) -> tuple[Values, Values]:
        return self._line("context", "seq_len")

    def _line(self, phase: str, axis: str) -> tuple[Values, Values]:
        if self._rows is None:
            return self._by_data_sheet(phase)
        lines = [self._sum(rows, phase, axis) for rows in self._rows.values()]
        if len(lines) == 1:
            return lines[0]
        fewer, more = self._rows
        (at, times), (points, longer) = lines
        share = (self._heads - fewer) / (more - fewer)
        return at, times + share * (along(at, points, longer) - times)

    def _sum(self, rows: MeasuredTable, phase: str, axis: str) -> tuple[Values, Values]:
        """Return the sum of the kernels, at what was measured of the one with the fewest points."""
        rows = rows.where("delta nets", phase=phase)
        if axis == "seq_len":
            rows = rows._replace(source="prompts").where("delta nets", batch_size=1)
        kernels = sorted(set(rows.values("kernel_source")))
        # One that vLLM takes in place of the others where it is built (``kimi_k3/nvidia/kda.py``).
        kernels = [name for name in kernels if name == "fused_kda_decode"] or kernels
        parts = [rows.where("delta nets", kernel_source=name) for name in kernels]
        # Prompts of one token run as decodes do.
        parts = [each for each in parts if len(set(each.values(axis))) > 1] or parts
        lines = [line_of(each, axis) for each in parts]
        at = min((points for points, _ in lines), key=len)
        return at, np.sum([along(at, *line) for line in lines], axis=0)

    def _by_data_sheet(self, phase: str) -> tuple[Values, Values]:
        shape, size = self._shape, self._options.tensor_parallel_size
        gpu = load_gpu(self._options.tables_of or self._options.gpu)
        peak = gpu.peak_tflops.get("bfloat16")
        if gpu.memory_gb_per_s is None or peak is None:
            raise ProfileError(
                f"GPU '{self._options.gpu}' lacks memory_gb_per_s or peak_tflops of bfloat16, by "
                "which layers with a state are reckoned; add them to its file"
            )
        state = shape.state_bytes(size) / shape.state_layers
        heads = shape.linear_num_value_heads / size
        keys, values = shape.linear_key_head_dim, shape.linear_value_head_dim
        if phase == "generation":
            at, moved, operations = _BATCHES, 2 * state, 4.0 * heads * keys * values
        else:
            at = _LENS
            moved = 2 * state / _CHUNK + 4 * shape.convolved / size * shape.bytes_per_weight
            operations = heads * (4.0 * keys * values + _CHUNK * (keys + values))
        each = np.maximum(
            moved / (gpu.memory_gb_per_s * _MEMORY * 1e3), operations / (peak * _COMPUTE * 1e6)
        )
        return at, np.asarray(_KERNELS * LAUNCH_US + each * at)


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
