"""Specsim's own workload format, as Parquet or JSON lines."""

from collections.abc import Iterator
from typing import Any, Literal, final

import numpy as np

from specsim.core.errors import TraceError
from specsim.core.request import UNRECORDED, PrefixIds
from specsim.workload.files import Row, TraceFile
from specsim.workload.readers.base import Reader, TraceBuilder, token_ids
from specsim.workload.trace import Trace

__all__ = ["ACCEPTED", "Native", "native_columns"]

ACCEPTED = "accepted_lens_"


@final
class Native(Reader):
    """``prompt_len``, ``output_len`` and any of the columns below, as Parquet or JSON lines.

    ``arrived_at`` (s), ``id``, ``priority``, ``prompt_token_ids``, ``output_token_ids``,
    ``prefix_hash_ids`` with ``prefix_block_size``, and ``accepted_lens_<proposer>``: accepted
    drafts, without the bonus token, of a draft made at every output position.
    """

    kind: Literal["native"] = "native"

    def matches(self, file: TraceFile) -> bool:
        """Return whether Parquet or JSON lines have the two lengths."""
        wanted = {"prompt_len", "output_len"}
        return file.container in ("parquet", "jsonl") and wanted <= set(file.columns)

    def read(self, file: TraceFile) -> Trace:
        """Return the requests, in order of arrival."""
        builder = TraceBuilder(file, self.kind)
        rows = _parquet_rows(file) if file.container == "parquet" else file.rows()
        for row in rows:
            arrived_at = row.number("arrived_at") if "arrived_at" in row.values else None
            prompt_len = row.integer("prompt_len", minimum=0)
            if builder.add(prompt_len, row.integer("output_len", minimum=0), arrived_at):
                _put_optional(builder, row)
        return builder.build()


def _put_optional(builder: TraceBuilder, row: Row) -> None:
    values = row.values
    if "id" in values:
        builder.put("ids", str(values["id"]))
    if "priority" in values:
        builder.put("priorities", row.integer("priority", minimum=-(2**31)))
    for field in ("prompt_token_ids", "output_token_ids"):
        if field in values:
            is_unrecorded = field == "prompt_token_ids" and values[field] == [UNRECORDED]
            ids = np.array([UNRECORDED]) if is_unrecorded else token_ids(row, field)
            wanted = row.integer(field.replace("_token_ids", "_len"), minimum=1)
            if len(ids) != wanted:
                raise TraceError(f"{row.place}: {len(ids)} {field} for a length of {wanted}")
            builder.put(field, ids)
    if "prefix_hash_ids" in values:
        piece_size = row.integer("prefix_block_size", minimum=1)
        builder.put("prefix_ids", PrefixIds(tuple(row.get("prefix_hash_ids")), piece_size))
    for field in values:
        if field.startswith(ACCEPTED):
            records = builder.recorded_lens.setdefault(field.removeprefix(ACCEPTED), [])
            records.append(_accepted(row, field))


def _accepted(row: Row, field: str) -> bytes:
    lens = row.get(field)
    try:
        return bytes(lens)
    except (TypeError, ValueError):
        raise TraceError(
            f"{row.place}: {field} is not a list of whole numbers from 0 to 255"
        ) from None


def _parquet_rows(file: TraceFile) -> Iterator[Row]:
    import pyarrow as pa  # noqa: PLC0415 - pyarrow takes 30 MiB
    import pyarrow.parquet as pq  # noqa: PLC0415

    try:
        table = pq.read_table(file.path)
    except (OSError, pa.ArrowInvalid) as error:
        raise TraceError(f"{file.path}: is not a complete Parquet file") from error
    names = table.column_names
    columns = [column.to_pylist() for column in table.columns]
    for number, values in enumerate(zip(*columns, strict=True)):
        yield Row(f"{file.path}, row {number}", dict(zip(names, values, strict=True)))


def native_columns(trace: Trace) -> dict[str, Any]:
    """Return the columns of the native format that a trace has."""
    columns: dict[str, Any] = {
        "id": trace.ids,
        "arrived_at": trace.arrived_at,
        "prompt_len": trace.prompt_lens,
        "output_len": trace.output_lens,
        "priority": trace.priorities,
        "prompt_token_ids": trace.prompt_token_ids,
        "output_token_ids": trace.output_token_ids,
    }
    if trace.prefix_ids:
        columns["prefix_hash_ids"] = [np.array(prefix.hash_ids) for prefix in trace.prefix_ids]
        columns["prefix_block_size"] = [prefix.block_size for prefix in trace.prefix_ids]
    for proposer, records in trace.recorded_lens.items():
        columns[ACCEPTED + proposer] = [np.frombuffer(r, dtype=np.uint8) for r in records]
    return {name: column for name, column in columns.items() if column is not None}
