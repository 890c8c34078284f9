"""Measured steps, from a table of them or composed from kernel tables."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from specsim.core.columns import Columns, find_table, first_line, read_columns, table_header
from specsim.core.errors import ProfileError
from specsim.core.step import StepLoad
from specsim.latency.kernels import Kernels

__all__ = ["Limits", "Points", "kernel_points", "read_points"]

_NAMES = {
    "context_tokens": ("context_tokens",),
    "batched_tokens": ("batched_tokens",),
    "num_requests": ("num_requests", "requests"),
    "prefill_tokens": ("prefill_tokens", "mixed"),
    "seconds": ("seconds", "target_time"),
}
"""Columns of a table of steps, and what they may be called."""


@dataclass(frozen=True)
class Points:
    """Steps and how long they took; arrays of shape (n,)."""

    context_tokens: NDArray[np.float64]
    batched_tokens: NDArray[np.float64]
    num_requests: NDArray[np.float64]
    mixed: NDArray[np.bool_]
    """Whether the step carries prefill."""
    seconds: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.seconds)

    def take(self, rows: NDArray[np.int64] | NDArray[np.bool_]) -> "Points":
        """Return some of the points.

        Args:
            rows: Their numbers, or whether each is one of them.
        """
        return Points(*(getattr(self, each.name)[rows] for each in fields(self)))

    @classmethod
    def joined(cls, parts: "Sequence[Points]") -> "Points":
        """Return the points of all parts, one after the other."""
        columns = ([getattr(part, each.name) for part in parts] for each in fields(cls))
        return cls(*map(np.concatenate, columns))

    @property
    def load(self) -> StepLoad:
        """All of them in the form that a latency model takes.

        Of a step with prefill: one chunk, and one token of every other sequence.
        """
        chunk = np.maximum(self.batched_tokens - self.num_requests + 1, 1) * self.mixed
        counts = (self.context_tokens, self.batched_tokens, self.num_requests, chunk)
        return StepLoad(*counts)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Limits:
    """Which steps a server can run at all, tokens; none beyond them is worth a fit."""

    max_num_seqs: int
    max_num_batched_tokens: int
    kv_tokens: int
    """What the KV cache holds."""


def read_points(path: Path) -> Points:
    """Return the steps in a table.

    Args:
        path: CSV, Parquet or JSON lines with columns context_tokens, batched_tokens, num_requests
            (or requests), mixed (or prefill_tokens: mixed where not 0) and seconds (or
            target_time); such as the ``steps.parquet`` of a simulated run, or the ``steps.jsonl``
            of a measured one.

    Returns:
        Steps without tokens are left out.

    Raises:
        ProfileError: A column is missing, or a value is not a number of at least 0.
    """
    header = table_header(path)
    found = {}
    for name, called in _NAMES.items():
        present = [each for each in called if each in header]
        if not present:
            raise ProfileError(
                f"{path}: has no column '{called[-1] if name == 'prefill_tokens' else called[0]}' "
                f"(found: {', '.join(header) or 'nothing'}); name it as `specsim profile fit "
                "--help` says"
            )
        found[name] = present[0]
    columns, _ = read_columns(path, found.values())
    values: Columns = {name: columns[called] for name, called in found.items()}
    not_empty = values["batched_tokens"] > 0
    zero = np.flatnonzero(not_empty & (values["seconds"] == 0))
    if len(zero):
        raise ProfileError(
            f"{path}, line {int(zero[0]) + first_line(path)}: {found['seconds']} = 0: a step takes "
            "time; correct or remove the row"
        )
    points = Points(
        values["context_tokens"],
        values["batched_tokens"],
        values["num_requests"],
        values["prefill_tokens"] > 0,
        values["seconds"],
    )
    return points.take(not_empty)


def kernel_points(kernels: Kernels, limits: Limits) -> Points:
    """Return a step for every measured point of the attention kernel, skewed lengths included.

    The other kernels of the step are those of as many tokens and sequences.

    Args:
        limits: Points beyond them are left out.
    """
    tables = [_grid_rows(kernels.folder)]
    if (skew := find_table(kernels.folder, "skew")) is not None:
        tables.append(_skew_rows(skew))
    chunk, kv_prefill, decodes, kv_decode, skewed = np.concatenate(tables, axis=1)
    # A decode's own token is the last of its KV entries; before the step there was one fewer.
    context = kv_prefill + decodes * np.maximum(kv_decode - 1, 0)
    requests = decodes + (chunk > 0)
    batched = chunk + decodes
    fits = context + batched <= limits.kv_tokens
    fits &= (requests <= limits.max_num_seqs) & (batched <= limits.max_num_batched_tokens)
    columns = (chunk, kv_prefill, decodes, kv_decode, skewed)
    steps = zip(*(column[fits].tolist() for column in columns), strict=True)
    seconds = [kernels.measured_time(*step) for step in steps]
    return Points(context[fits], batched[fits], requests[fits], chunk[fits] > 0, np.array(seconds))


def _grid_rows(folder: Path) -> NDArray[np.float64]:
    path = find_table(folder, "attention")
    assert path is not None
    names = ["prefill_chunk", "kv_prefill", "n_decode", "kv_decode"]
    columns, _ = read_columns(path, names)
    return np.array([*(columns[name] for name in names), np.ones(len(columns["n_decode"]))])


def _skew_rows(path: Path) -> NDArray[np.float64]:
    """Return the points whose lengths differ; their last row is time over that of the mean."""
    names = ["pc", "kp", "n", "kv_mean", "t_mean_us", "t_skew_us"]
    columns, _ = read_columns(path, names)
    pc, kp, n, kv_mean, t_mean, t_skew = (columns[name] for name in names)
    return np.array([pc, kp, n, kv_mean, t_skew / t_mean])
