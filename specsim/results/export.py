"""Writing results: JSON that scripts for ``vllm bench serve`` read, and Parquet tables."""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from specsim.results.tables import RunTables

__all__ = ["RESULT_FILES", "write_parquet", "write_summary"]

RESULT_FILES = ("summary.json", "requests.parquet", "steps.parquet", "config.yaml")
"""What the results folder of a run holds; nothing else may be written over it."""


def write_summary(summary: dict[str, Any], tables: RunTables, path: Path) -> None:
    """Write a summary, with vLLM's details per request, as one JSON object.

    Parameters
    ----------
    summary : dict
        Everything but the details.
    tables : RunTables
    path : Path
    """
    requests = tables.requests
    ttft = requests["first_token_at"] - requests["arrived_at"]
    details = {
        "input_lens": requests["prompt_len"].tolist(),
        "output_lens": requests["output_len"].tolist(),
        "ttfts": ttft.tolist(),
        "latencies": (requests["ended_at"] - requests["arrived_at"]).tolist(),
        "start_times": requests["arrived_at"].tolist(),
        "queue_times": (requests["scheduled_at"] - requests["arrived_at"]).tolist(),
        "errors": [""] * len(requests),
    }
    head = json.dumps({**summary, **details}, allow_nan=False)
    with path.open("w", encoding="ascii") as stream:
        stream.write(head[:-1])
        stream.write(', "itls": [')
        stream.writelines(_itl_lists(tables))
        stream.write("]}\n")


def _itl_lists(tables: RunTables) -> Iterator[str]:
    """Yield the JSON list of each request's gaps, to the nanosecond.

    All sequences of a step share its end, so most gaps occur many times and are formatted once.
    """
    written: dict[float, str] = {}
    end = 0
    for number, deliveries in enumerate(tables.requests["deliveries"].tolist()):
        start, end = end, end + deliveries - 1
        texts = []
        for gap in tables.gaps[start:end].tolist():
            text = written.get(gap)
            if text is None:
                text = written[gap] = repr(round(gap, 9))
            texts.append(text)
        yield f"{', ' if number else ''}[{', '.join(texts)}]"


def write_parquet(
    columns: dict[str, NDArray[Any]], constants: dict[str, object], path: Path
) -> None:
    """Write a table, every row of which says where it comes from.

    Parameters
    ----------
    columns : dict of str to ndarray, shape (n,)
    constants : dict of str to object
        Columns that are the same in every row.
    path : Path
    """
    table = {name: pa.array(column) for name, column in columns.items()}
    length = len(next(iter(columns.values())))
    for name, value in constants.items():
        index = np.zeros(length, dtype=np.int32)
        table[name] = pa.DictionaryArray.from_arrays(index, pa.array([value]))
    pq.write_table(pa.table(table), path, compression="zstd")


def structured_columns(rows: NDArray[np.void], names: Iterable[str]) -> dict[str, NDArray[Any]]:
    """Return fields of a structured array as contiguous columns."""
    return {name: np.ascontiguousarray(rows[name]) for name in names}
