"""A designed grid of steps: which are measured, in which order, and the costs that fit them.

    T_target = f(batched tokens) + alpha * context tokens + rho * sequences

with f piecewise linear and rising, one f and alpha for decode-only steps and one for steps with
prefill, and one rho for both. A CPU's and a small GPU's matrix kernels are not linear in the batch,
so that three coefficients (SmartSpec, eq. 7) would be wrong by 10 % and more at small batches; and
an engine that attends sequence by sequence pays for each of them.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from specsim.core.errors import ProfileError
from specsim.core.step import StepLoad
from specsim.latency.measured import Tabulated, TimeTable
from specsim.profile import DraftCost
from specsim.profile.costs import draft_load
from specsim.profile.step_time import HAS_DRAFTER, HAS_LATENCY, NUM_COSTS, draft_time
from specsim.reality.host_speed import HostSpeed
from specsim.reality.profile_fit import DISTURBED
from specsim.reality.profile_fit.points import robust_fit

Seconds = NDArray[np.float64]

_OF_PASSES = [float(place in (HAS_DRAFTER, HAS_LATENCY)) for place in range(NUM_COSTS)]
"""Coefficients of a drafter whose cost is that of its passes."""


class GridPoint(NamedTuple):
    """A step: decoding sequences, possibly a prompt chunk, and a draft at its end."""

    num_decodes: int
    draft_len: int  # draft length of every decode, verified and drafted anew, tokens
    context_len: int  # of every decode, tokens
    chunk_len: int = 0  # prompt tokens in the same step; 0 in a decode-only step

    @property
    def load(self) -> StepLoad:
        """The size of the target's forward pass."""
        return StepLoad(
            self.num_decodes * self.context_len,
            self.num_decodes * (self.draft_len + 1) + self.chunk_len,
            self.num_decodes + (self.chunk_len > 0),
            self.chunk_len,
        )


class Sample(NamedTuple):
    """A measured step."""

    point: GridPoint
    target_seconds: float
    draft_seconds: float
    probed_at: float = 0.0  # instant of the probe before the step, on one clock for all
    probe_seconds: float = 0.0  # duration of that probe; 0 without one


@dataclass(frozen=True)
class StepGrid:
    """All combinations of sizes that a server with these limits can run."""

    num_decodes: tuple[int, ...]
    draft_lens: tuple[int, ...]
    context_lens: tuple[int, ...]
    chunk_lens: tuple[int, ...]  # of steps with prefill
    chunk_decodes: tuple[int, ...]  # decodes beside a chunk
    max_batched_tokens: int
    rounds: int  # measurements of every point before the first case is run

    @property
    def points(self) -> list[GridPoint]:
        """Decode-only steps, then steps with prefill, each once."""
        middle = self.context_lens[len(self.context_lens) // 2]
        decodes = product(self.num_decodes, self.draft_lens, self.context_lens)
        mixed = product(self.chunk_lens, self.chunk_decodes, self.draft_lens)
        points = [GridPoint(*each) for each in decodes]
        points += [GridPoint(num, draft, middle, chunk) for chunk, num, draft in mixed]
        fitting = (each for each in points if each.load.batched_tokens <= self.max_batched_tokens)
        return list(dict.fromkeys(fitting))

    def schedule(self, seed: int) -> Iterator[list[GridPoint]]:
        """Yield rounds without end, each with all points in another order.

        So a machine that slows down meanwhile does so for all points alike.
        """
        rng = np.random.default_rng(seed)
        points = self.points
        while True:
            yield [points[place] for place in rng.permutation(len(points))]


@dataclass(frozen=True)
class Medians:
    """The median time of each point over its rounds, scaled to their mean.

    If the machine's speed was probed, times are at its mean speed.
    """

    points: list[GridPoint]
    target_seconds: Seconds  # shape (points,)
    draft_seconds: Seconds
    drift: float  # relative increase of all times in the second half of the rounds
    levels: NDArray[np.float64]  # relative time of each round over all points, (rounds,); about 1

    def scaled(self, target: float, draft: float) -> "Medians":
        return replace(
            self,
            target_seconds=self.target_seconds * target,
            draft_seconds=self.draft_seconds * draft,
        )

    def table(self) -> str:
        """Return the grid as CSV that ``specsim profile fit`` reads."""
        names = "context_tokens,batched_tokens,num_requests,prefill_tokens,seconds"
        lines = [f"{names},draft_len,draft_seconds"]
        for point, target, draft in zip(
            self.points, self.target_seconds, self.draft_seconds, strict=True
        ):
            load = ",".join(map(str, point.load[:4]))
            lines.append(f"{load},{target:.6f},{point.draft_len},{draft:.6f}")
        return "\n".join(lines) + "\n"


@dataclass(frozen=True)
class Costs:
    """The fitted costs."""

    target: Tabulated
    request_us: float  # of the target's forward pass, per sequence
    draft: DraftCost
    target_errors: Seconds  # relative errors of the points, shape (points,)
    draft_errors: Seconds


def medians(rounds: Sequence[Sequence[Sample]]) -> Medians:
    """Return the median time of every point over rounds, at least one, each with all points."""
    if not rounds:
        raise ProfileError("no step was measured; run the calibration again")
    points = sorted({sample.point for sample in rounds[0]})
    tables = np.array(
        [[sample[1:] for sample in sorted(each, key=lambda s: s.point)] for each in rounds]
    )
    probed_at, probes = tables[:, :, 2].ravel(), tables[:, :, 3].ravel()
    if mean_probe := float(probes.mean()):
        speed = HostSpeed.of(zip(probed_at, probes, strict=True))
        slowness = speed.slowness(probed_at, mean_probe)
        tables[:, :, :2] /= slowness.reshape(len(rounds), -1, 1)
    # Speed of each round beyond what probes show, from all points together: removed before the
    # medians, which determine relative costs. A round that took twice as long as others was
    # disturbed.
    times = tables[:, :, :2]
    levels = np.median((times / np.median(times, axis=0)).reshape(len(rounds), -1), axis=1)
    middle = np.median(times / levels[:, None, None], axis=0)
    # A run lasts as long as the sum of its steps, slow ones included: means determine the level.
    usual = times < DISTURBED * middle * levels[:, None, None]
    usual &= (levels < 2)[:, None, None]
    middle *= np.sum(times * usual, axis=(0, 1)) / np.sum(middle * usual, axis=(0, 1))
    halves = [half for half in np.array_split(levels, 2) if len(half)]
    drift = float(halves[-1].mean() / halves[0].mean() - 1)
    return Medians(points, middle[:, 0], middle[:, 1], drift, levels)


def fit_costs(measured: Medians) -> Costs:
    """Fit the costs of the target and the draft model.

    Relative errors count, by Huber's loss: a step of one request matters to its client as much as a
    large one.
    """
    loads = [point.load for point in measured.points]
    target, request_us, predicted = _fit_target(loads, measured.target_seconds)
    draft, drafting = _fit_draft(measured)
    return Costs(
        target,
        request_us,
        draft,
        predicted / measured.target_seconds - 1,
        drafting / measured.draft_seconds - 1,
    )


def _fit_target(loads: list[StepLoad], seconds: Seconds) -> tuple[Tabulated, float, Seconds]:
    counts = np.array([load[:4] for load in loads], dtype=np.float64)
    context, batched, requests, prefill = counts.T
    kinds = [(prefill > 0) == mixed for mixed in (False, True)]
    knots = [_knots(batched[rows]) for rows in kinds]
    blocks = [
        _cost_columns(batched, context, axis) * rows[:, None]
        for rows, axis in zip(kinds, knots, strict=True)
    ]
    columns = np.column_stack([*blocks, requests])
    found = _relative_fit(columns, seconds)
    parts = np.split(found[:-1], [blocks[0].shape[1]])
    decode, mixed = (
        _table(axis, part, int(context[rows].max()))
        for rows, axis, part in zip(kinds, knots, parts, strict=True)
    )
    return Tabulated(decode=decode, mixed=mixed), float(found[-1]) * 1e6, columns @ found


def _knots(batched: NDArray[np.float64]) -> list[int]:
    """Return where the slope may change: powers of two between the least and the most tokens."""
    low, high = int(batched.min()), int(batched.max())
    powers = [1 << power for power in range(high.bit_length()) if low < 1 << power < 0.8 * high]
    return [low, *powers, high]


def _cost_columns(
    batched: NDArray[np.float64], context: NDArray[np.float64], knots: list[int]
) -> NDArray[np.float64]:
    """Return the factors of the coefficients of a `_table`, shape (n, coefficients)."""
    edges = np.array(knots, dtype=np.float64)
    ramps = np.clip(batched[:, None] - edges[:-1], 0, np.diff(edges))
    return np.column_stack([np.ones(len(batched)), ramps, context])


def _table(knots: list[int], found: NDArray[np.float64], most_context: int) -> TimeTable:
    """Return constant, slopes and context coefficient as a table of two rows."""
    constant, slopes, alpha = found[0], found[1:-1], found[-1]
    times = constant + np.concatenate([[0.0], np.cumsum(slopes * np.diff(knots))])
    rows = (times, times + alpha * most_context)
    return TimeTable(
        context_tokens=(0, most_context),
        batched_tokens=tuple(knots),
        times_ms=tuple(tuple(np.round(row * 1e3, 6).tolist()) for row in rows),
    )


def _fit_draft(measured: Medians) -> tuple[DraftCost, Seconds]:
    """Fit the cost of a pass to whole drafts, by the formula of the simulator.

    The first pass costs more than later ones, which read one token per sequence: ``step_ms``.
    """
    points = measured.points
    passes = [_passes(point) for point in points]
    context, batched = (np.concatenate([each[:, row] for each in passes]) for row in (0, 1))
    knots = _knots(batched)
    starts = np.cumsum([0, *(len(each) for each in passes[:-1])])
    columns = np.add.reduceat(_cost_columns(batched, context, knots), starts)
    drafted = np.array([point.draft_len * point.load.num_requests for point in points])
    per_draft = np.column_stack([drafted, drafted > 0])
    found = _relative_fit(np.column_stack([columns, per_draft]), measured.draft_seconds)
    table = _table(knots, found[:-2], int(context.max()))
    token, step = found[-2:].tolist()
    cost = DraftCost(latency=Tabulated(decode=table), token_us=token * 1e6, step_ms=step * 1e3)
    return cost, np.array([cost.draft_time(point.load, point.draft_len, 0.0) for point in points])


def _passes(point: GridPoint) -> NDArray[np.float64]:
    """Return context and batched tokens of each pass of a draft; see `DraftCost.draft_time`.

    Every sequence of the step gets a draft, as in vLLM, even one in prefill.
    """
    passes: list[tuple[int, int]] = []

    def note(_: Any, context: int, batched: int, num_requests: int, prefill: int) -> float:
        passes.append((context, batched))
        return 0.0

    made, rows = draft_load(point.load, point.draft_len)
    draft_time(_OF_PASSES, None, note, made, rows, 0.0)
    return np.array(passes, dtype=np.float64)


def _relative_fit(columns: NDArray[np.float64], seconds: Seconds) -> NDArray[np.float64]:
    """Return the non-negative coefficients of least relative error."""
    rows = columns / seconds[:, None]
    scale = np.maximum(np.abs(rows).max(axis=0), 1e-300)
    found: NDArray[np.float64] = robust_fit(rows / scale, np.ones(len(seconds))) / scale
    return found
