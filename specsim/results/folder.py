"""Results folders of runs, written and read back: JSON as vLLM writes it, and Parquet tables."""

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from specsim.core.columns import parquet_table
from specsim.core.errors import ConfigError
from specsim.core.settings import load_mapping
from specsim.results import metadata
from specsim.results.metrics import latency, queue_time, ttft
from specsim.results.records import STEP_FIELDS, EveryDelivery, StepLog
from specsim.results.tables import TABLE_FIELDS, RunTables

RESULT_FILES = ("summary.json", "requests.parquet", "steps.parquet", "config.yaml")
"""The files of a run's results folder; a folder that holds anything else is not overwritten."""

ROWS_PER_GROUP = 16 * 1024
"""Rows of a long table that are held in memory as columns at once. Eight times as many would make a
file 4 % shorter, and the process 100 MiB larger."""

_DELIVERIES_AT_ONCE = 64 * 1024
_REQUESTS_AT_ONCE = 16 * 1024

Columns = dict[str, NDArray[Any]]


def write_summary(summary: dict[str, Any], tables: RunTables, path: Path) -> None:
    """Write a summary as JSON, with vLLM's lists per request if deliveries were kept."""
    with path.open("w", encoding="ascii") as stream:
        stream.write(json.dumps(summary, allow_nan=False)[:-1])
        if tables.deliveries is not None:
            for name, texts in _details(tables.requests, tables.deliveries):
                stream.write(f', "{name}": [')
                for number, text in enumerate(texts):
                    stream.write(f", {text}" if number else text)
                stream.write("]")
        stream.write("}\n")


def _details(
    requests: NDArray[np.void], deliveries: EveryDelivery
) -> Iterator[tuple[str, Iterator[str]]]:
    """Yield vLLM's lists with one entry per request: (name, entries as pieces of JSON)."""
    for name, column in (
        ("input_lens", itemgetter("prompt_len")),
        ("output_lens", itemgetter("output_len")),
        ("ttfts", ttft),
        ("latencies", latency),
        ("start_times", itemgetter("arrived_at")),
        ("queue_times", queue_time),
    ):
        yield name, _number_lists(column(requests))
    yield "errors", iter([", ".join(['""'] * len(requests))])
    yield "itls", _itl_lists(requests["deliveries"], deliveries)


def _number_lists(values: NDArray[Any]) -> Iterator[str]:
    for start in range(0, len(values), _REQUESTS_AT_ONCE):
        yield json.dumps(values[start : start + _REQUESTS_AT_ONCE].tolist(), allow_nan=False)[1:-1]


def _itl_lists(counts: NDArray[np.int32], deliveries: EveryDelivery) -> Iterator[str]:
    """Yield each request's ITLs as a JSON list, to the nanosecond; equal lists are made once."""
    ends = np.cumsum(counts, dtype=np.int64)
    start = 0
    while start < len(counts):
        limit = (ends[start - 1] if start else 0) + _DELIVERIES_AT_ONCE
        end = max(int(np.searchsorted(ends, limit, side="right")), start + 1)
        mine = counts[start:end]
        times = deliveries.column("at", mine, start)
        firsts = np.cumsum(mine) - mine
        gaps = np.round(np.delete(np.diff(times), firsts[1:] - 1), 9)
        bits, codes = np.unique(gaps.view(np.int64), return_inverse=True)  # faster than floats
        values = bits.view(np.float64).tolist()
        texts = np.array([repr(value) for value in values], dtype=object)[codes].tolist()
        lists = zip(firsts - np.arange(len(mine)), mine - 1, strict=True)
        yield ", ".join(f"[{', '.join(texts[first : first + num])}]" for first, num in lists)
        start = end


def write_json(data: Any, path: Path) -> None:
    """Write a document as JSON, one value per line; a ValueError if it holds NaN or infinity."""
    path.write_text(json.dumps(data, indent=1, allow_nan=False) + "\n", encoding="utf-8")


def write_steps(steps: StepLog, constants: dict[str, object], path: Path) -> None:
    """Write the steps of a run, replica after replica, without holding all of them in memory."""
    blocks = steps.blocks(ROWS_PER_GROUP)
    groups = ({"replica": replicas, **structured_columns(rows)} for replicas, rows in blocks)
    write_groups(groups, constants, path)


def write_groups(
    groups: Iterable[Columns], constants: dict[str, object], path: Path, kind: str | None = None
) -> None:
    """Write a table row group by row group, without holding all of it in memory.

    Each row gets the columns `constants`, which say what run it is from. Units and meanings of
    columns are those of `kind`, by default the file's name.
    """
    with ExitStack() as files:
        writer: pq.ParquetWriter | None = None
        for columns in groups:
            table = _table(columns, constants, kind or path.name)
            if writer is None:
                writer = files.enter_context(
                    pq.ParquetWriter(path, table.schema, compression="zstd")
                )
            writer.write_table(table)


def _table(columns: Columns, constants: dict[str, object], file: str) -> pa.Table:
    # NaN stands for no value: polars and DuckDB leave null out of a mean, but not NaN
    table: dict[str, pa.Array[Any]] = {n: pa.array(c, from_pandas=True) for n, c in columns.items()}
    length = len(next(iter(columns.values())))
    for name, value in constants.items():
        index = np.zeros(length, dtype=np.int32)
        table[name] = pa.DictionaryArray.from_arrays(index, pa.array([value]))
    return described(table, file)


def described(
    table: Mapping[str, "pa.Array[Any]"], file: str, unknown: Iterable[str] = ()
) -> pa.Table:
    """Return columns as a table with unit and meaning of each, except those in `unknown`."""
    known = {name: metadata(file, name) for name in table.keys() - set(unknown)}
    fields = [pa.field(n, each.type, metadata=known.get(n)) for n, each in table.items()]
    return pa.table(dict(table), schema=pa.schema(fields))


def structured_columns(rows: NDArray[np.void]) -> Columns:
    """Return the fields of a structured array as contiguous columns."""
    return {name: np.ascontiguousarray(rows[name]) for name in rows.dtype.names or ()}


_PROVENANCE = ("config_hash", "seed", "specsim_version")
_TIMES = ("arrived_at", "scheduled_at", "first_token_at", "ended_at")
_OF_SOME_RUNS = ("adapter", "session", "turn", "host_len", "disk_len")
_REMEDY = "give a folder that `specsim run --out` wrote"


@dataclass(frozen=True)
class RunTable:
    """A table of a run, and the run that it comes from."""

    columns: dict[str, NDArray[Any]]  # each of shape (n,)
    provenance: dict[str, object]  # hash of the configuration, seed, and version of specsim

    def __getitem__(self, name: str) -> NDArray[Any]:
        return self.columns[name]

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))


class StepsTable(RunTable):
    """The steps of a run, replica after replica, each in the order of time.

    Its columns are ``replica`` and those of `specsim.results.records.STEP_FIELDS`;
    ``alpha_estimate`` is NaN where the policy had no estimate.
    """

    @property
    def replicas(self) -> list[int]:
        return [int(number) for number in np.unique(self["replica"])]

    @property
    def span(self) -> tuple[float, float]:
        """When the first step was scheduled and when the last one ended, seconds."""
        return float(self["scheduled_at"].min()), float(self["ended_at"].max())

    def of_replica(self, number: int) -> "StepsTable":
        """Return the steps of one replica; a ConfigError if it ran none."""
        if number not in self.replicas:
            known = ", ".join(map(str, self.replicas))
            raise ConfigError(f"replica {number} ran no step; choose from {known}")
        return self.where(self["replica"] == number)

    def where(self, wanted: NDArray[np.bool_]) -> "StepsTable":
        columns = {name: column[wanted] for name, column in self.columns.items()}
        return StepsTable(columns, self.provenance)

    @property
    def held_until(self) -> NDArray[np.float64]:
        """When each step of a single replica ended or the next was scheduled, if that was sooner.

        Asynchronous steps overlap; the times from ``scheduled_at`` to here do not, and together
        they are the time in which the engine was busy. Shape (n,), seconds.
        """
        until: NDArray[np.float64] = self["ended_at"].copy()
        np.minimum(until[:-1], self["scheduled_at"][1:], out=until[:-1])
        return until


@dataclass(frozen=True)
class ResultsFolder:
    """The results folder of ``specsim run --out``; each file is read when it is first needed.

    Reading raises a ConfigError if the file is missing, cut short, not written by specsim, or not
    of the same run as ``summary.json``.
    """

    path: Path

    @cached_property
    def summary(self) -> dict[str, Any]:
        summary = load_mapping(self.path / "summary.json", ConfigError)
        own_block(self.path / "summary.json", summary)
        return summary

    @property
    def own(self) -> dict[str, Any]:
        """The block ``specsim`` of the summary."""
        block: dict[str, Any] = self.summary["specsim"]
        return block

    @property
    def provenance(self) -> dict[str, object]:
        """Hash of the configuration, seed, and version of specsim."""
        return {name: self.own[name] for name in _PROVENANCE}

    @cached_property
    def config(self) -> dict[str, Any]:
        """``config.yaml``, unchecked: its classes may be on another computer."""
        return load_mapping(self.path / "config.yaml", ConfigError)

    @cached_property
    def requests(self) -> RunTable:
        """The requests of all replicas, ordered by index."""
        table = load_requests(self.path)
        self._check_origin(table)
        return table

    @cached_property
    def steps(self) -> StepsTable:
        table = load_steps(self.path)
        self._check_origin(table)
        return table

    def _check_origin(self, table: RunTable) -> None:
        names = "its tables and summary.json"
        check_same_run(self.path, names, table.provenance, self.provenance)


def own_block(path: Path, summary: object) -> dict[str, Any]:
    """Return the block ``specsim`` of a summary; a ConfigError if the summary has none."""
    own = summary.get("specsim") if isinstance(summary, dict) else None
    if not isinstance(own, dict) or not own.keys() >= {*_PROVENANCE, "num_gpu_blocks"}:
        raise ConfigError(
            f"{path}: is no summary of specsim's (has no block 'specsim' of ours); {_REMEDY}"
        )
    return own


def check_same_run(folder: Path, names: str, first: object, second: object) -> None:
    """Raise a ConfigError if the provenance of two files of a folder differs."""
    if first != second:
        raise ConfigError(
            f"{folder}: {names} differ: not the same run, or another version of specsim; run the "
            "experiment again"
        )


def load_requests(folder: Path) -> RunTable:
    """Return the requests of a run, with the columns of `specsim.results.tables.TABLE_FIELDS`.

    Columns of `_OF_SOME_RUNS` are included if the run has them. Raises a ConfigError if
    ``requests.parquet`` is missing, cut short or not written by specsim.
    """
    names = TABLE_FIELDS.names or ()
    stored = _StoredTable(folder, "requests.parquet", names)
    more = [name for name in _OF_SOME_RUNS if name in stored]
    columns = {name: stored.numbers(name) for name in (*names, *more)}
    wrong = np.zeros(len(stored), dtype=bool)
    for earlier, later in pairwise(_TIMES):
        wrong |= columns[later] < columns[earlier]
    stored.refuse(wrong, f"its times must be in the order of {', '.join(_TIMES)}")
    return RunTable(columns, stored.provenance)


def load_steps(folder: Path) -> StepsTable:
    """Return the steps of a run; a ConfigError if missing, cut short or not written by specsim."""
    names = ("replica", *(STEP_FIELDS.names or ()))
    stored = _StoredTable(folder, "steps.parquet", names)
    columns = {n: stored.numbers(n, may_be_nan=n == "alpha_estimate") for n in names}
    _check_steps(columns, stored)
    return StepsTable(columns, stored.provenance)


def _check_steps(columns: dict[str, NDArray[Any]], stored: "_StoredTable") -> None:
    why = "num_requests = 0, but a step has at least one request"
    stored.refuse(columns["num_requests"] < 1, why)
    same_replica = np.diff(columns["replica"]) == 0
    wrong = columns["ended_at"] < columns["scheduled_at"]
    for name in ("scheduled_at", "ended_at"):
        wrong[1:] |= (np.diff(columns[name]) < 0) & same_replica
    wrong[1:] |= np.diff(columns["replica"]) < 0
    stored.refuse(wrong, "steps must be in the order of replica and clock")
    if columns["ended_at"].max() <= columns["scheduled_at"].min():
        raise ConfigError(
            f"{stored.path}: all steps took no time at all; use a profile in which they do"
        )


class _StoredTable:
    """A Parquet file of a results folder, checked column by column.

    Raises a ConfigError if it is missing, cut short, empty, or lacks a column of specsim's.
    """

    def __init__(self, folder: Path, file: str, columns: Iterable[str]) -> None:
        self.path = folder / file
        if not self.path.is_file():
            raise ConfigError(f"{folder}: holds no {file}; {hint(folder, file)}")
        self._table = parquet_table(self.path, ConfigError, "run the experiment again")
        for name in (*columns, *_PROVENANCE):
            if name not in self:
                raise ConfigError(
                    f"{self.path}: has no column '{name}', so it is not ours; {_REMEDY}"
                )
        if not len(self):
            what = file.removesuffix("s.parquet")
            raise ConfigError(f"{self.path}: holds no {what}; {_REMEDY}")

    def __len__(self) -> int:
        return int(self._table.num_rows)

    def __contains__(self, name: str) -> bool:
        return name in self._table.column_names

    @property
    def provenance(self) -> dict[str, object]:
        return {name: self._constant(name) for name in _PROVENANCE}

    def numbers(self, name: str, *, may_be_nan: bool = False) -> NDArray[Any]:
        """Return a column of counts or times; a ConfigError if a value is below 0 or missing."""
        column = self._table[name]
        if not (pa.types.is_integer(column.type) or pa.types.is_floating(column.type)):
            raise ConfigError(
                f"{self.path}: column '{name}' holds {column.type}, not numbers; {_REMEDY}"
            )
        values = column.to_numpy()
        with np.errstate(invalid="ignore"):
            wrong = ~((values >= 0) & (values < np.inf))
        if may_be_nan:  # null in the file
            wrong &= ~np.isnan(values)
        else:
            wrong |= column.is_null().to_numpy()
        value = column[int(wrong.argmax())].as_py()
        self.refuse(wrong, f"{name} = {value} must be a number of 0 or more")
        return np.ascontiguousarray(values)

    def refuse(self, wrong: NDArray[np.bool_], why: str) -> None:
        """Raise a ConfigError with the first row at which `wrong` is True, if there is one."""
        if wrong.any():
            row = int(wrong.argmax()) + 1
            raise ConfigError(f"{self.path}: row {row}: {why}; run the experiment again")

    def _constant(self, name: str) -> object:
        values = self._table[name].unique().to_pylist()
        if len(values) > 1:
            raise ConfigError(
                f"{self.path}: column '{name}' has {len(values)} values, so it holds several runs; "
                f"{_REMEDY}"
            )
        return values[0]


def hint(folder: Path, file: str) -> str:
    """Return what to do about a missing file, with the subfolders that do hold it."""
    if not folder.is_dir():
        return f"there is no such folder; {_REMEDY}"
    if file == "steps.parquet" and (folder / "requests.parquet").is_file():
        return "it was written with --no-steps; run the experiment again without that"
    below = sorted(path.parent.name for path in folder.glob(f"*/{file}"))
    return f"give one of the folders in it: {', '.join(below[:8])}" if below else _REMEDY
