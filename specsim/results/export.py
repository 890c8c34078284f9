"""Writing results: JSON that scripts for ``vllm bench serve`` read, and Parquet tables."""

import json
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from specsim.results.metrics import latency, queue_time, ttft
from specsim.results.records import Deliveries
from specsim.results.step_log import STEP_FIELDS, StepLog
from specsim.results.tables import RunTables

RESULT_FILES = ("summary.json", "requests.parquet", "steps.parquet", "config.yaml")
"""What the results folder of a run holds; nothing else may be written over it."""

ROWS_PER_GROUP = 16 * 1024
"""Of long tables, rows that are in memory as columns at once.

Eight times as many would make a file 4 % shorter, and the process 100 MiB larger."""

_DELIVERIES_AT_ONCE = 64 * 1024
_REQUESTS_AT_ONCE = 16 * 1024

Columns = dict[str, NDArray[Any]]


def write_summary(summary: dict[str, Any], tables: RunTables, path: Path) -> None:
    """Write a summary as JSON, with vLLM's details per request if deliveries were kept."""
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
    requests: NDArray[np.void], deliveries: Deliveries
) -> Iterator[tuple[str, Iterator[str]]]:
    """Yield vLLM's lists with an entry per request: name, and the entries piece by piece."""
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


def _itl_lists(counts: NDArray[np.int32], deliveries: Deliveries) -> Iterator[str]:
    """Yield the JSON lists of the requests' gaps, to the nanosecond; equal ones are made once."""
    ends = np.cumsum(counts, dtype=np.int64)
    start = 0
    while start < len(counts):
        limit = (ends[start - 1] if start else 0) + _DELIVERIES_AT_ONCE
        end = max(int(np.searchsorted(ends, limit, side="right")), start + 1)
        mine = counts[start:end]
        times = deliveries.at[deliveries.places(mine, start)]
        firsts = np.cumsum(mine) - mine
        gaps = np.round(np.delete(np.diff(times), firsts[1:] - 1), 9)
        bits, codes = np.unique(gaps.view(np.int64), return_inverse=True)  # faster than floats
        values = bits.view(np.float64).tolist()
        texts = np.array([repr(value) for value in values], dtype=object)[codes].tolist()
        lists = zip(firsts - np.arange(len(mine)), mine - 1, strict=True)
        yield ", ".join(f"[{', '.join(texts[first : first + num])}]" for first, num in lists)
        start = end


def write_parquet(columns: Columns, constants: dict[str, object], path: Path) -> None:
    """Write a table, every row of which says where it comes from (`constants`)."""
    write_groups([columns], constants, path)


def write_steps(steps: StepLog, constants: dict[str, object], path: Path) -> None:
    """Write the steps of a run, replica after replica; they need not fit into memory."""
    names = STEP_FIELDS.names or ()
    write_groups(
        (
            {"replica": replicas, **structured_columns(rows, names)}
            for replicas, rows in steps.blocks(ROWS_PER_GROUP)
        ),
        constants,
        path,
    )


def write_groups(groups: Iterable[Columns], constants: dict[str, object], path: Path) -> None:
    """Write a table by row groups, so that it need not fit into memory."""
    with ExitStack() as files:
        writer: pq.ParquetWriter | None = None
        for columns in groups:
            table = _table(columns, constants)
            if writer is None:
                writer = files.enter_context(
                    pq.ParquetWriter(path, table.schema, compression="zstd")
                )
            writer.write_table(table)


def _table(columns: Columns, constants: dict[str, object]) -> pa.Table:
    table: dict[str, pa.Array[Any]] = {name: pa.array(c) for name, c in columns.items()}
    length = len(next(iter(columns.values())))
    for name, value in constants.items():
        index = np.zeros(length, dtype=np.int32)
        table[name] = pa.DictionaryArray.from_arrays(index, pa.array([value]))
    return pa.table(table)


def structured_columns(rows: NDArray[np.void], names: Iterable[str]) -> Columns:
    """Return fields of a structured array as contiguous columns."""
    return {name: np.ascontiguousarray(rows[name]) for name in names}
