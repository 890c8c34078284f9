"""Writing a trace in the native format."""

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from specsim.core.atomic import new_file
from specsim.core.errors import ConfigError
from specsim.workload.readers.native import native_columns
from specsim.workload.trace import Trace

__all__ = ["write_trace"]


def write_trace(trace: Trace, path: Path) -> None:
    """Write a workload as Parquet or JSON lines.

    Args:
        path: Ends in ``.parquet``, ``.jsonl`` or ``.jsonl.gz``.

    Raises:
        ConfigError: Another ending, or a folder that cannot be written to.
    """
    columns = native_columns(trace)
    if path.suffix == ".parquet":
        table = pa.table({name: pa.array(column) for name, column in columns.items()})
        with new_file(path) as temporary:
            pq.write_table(table, temporary, compression="zstd")
    elif path.name.endswith((".jsonl", ".jsonl.gz")):
        lines = "".join(
            json.dumps(dict(zip(columns, map(_plain, row), strict=True))) + "\n"
            for row in zip(*columns.values(), strict=True)
        )
        data = lines.encode()
        with new_file(path) as temporary:
            # mtime 0: the same workload gives the same bytes.
            temporary.write_bytes(gzip.compress(data, mtime=0) if path.suffix == ".gz" else data)
    else:
        raise ConfigError(f"{path}: a workload is written as .parquet, .jsonl or .jsonl.gz")


def _plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.generic | np.ndarray) else value
