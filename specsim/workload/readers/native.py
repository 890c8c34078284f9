"""Specsim's own workload format, as Parquet or JSON lines: read and written."""

import gzip
import json
from pathlib import Path
from typing import Any, Literal, final

import numpy as np

from specsim.core.atomic import MARK, new_file
from specsim.core.errors import ConfigError, TraceError
from specsim.core.request import UNRECORDED, PrefixIds
from specsim.core.version import __version__
from specsim.workload.readers import Reader, Row, TraceFile
from specsim.workload.readers.named_columns import is_arrival
from specsim.workload.trace import Trace, TraceBuilder

_ACCEPTED = "accepted_lens_"
_MOST_ADAPTERS = 100_000


@final
class Native(Reader):
    """``prompt_len``, ``output_len`` and any of the columns below, as Parquet or JSON lines.

    ``arrived_at`` (s), ``id``, ``priority``, ``adapter`` (LoRA, from 1; 0: none), ``session`` with
    ``think_time`` (s), ``after_turns`` (turns of the session that it waits for, from 1, if not the
    one before it) and ``shared_len`` (of prompts that continue their session: tokens that all
    sessions begin with),
    ``prompt_token_ids``, ``output_token_ids``, ``prefix_hash_ids`` with ``prefix_block_size``, and
    ``accepted_lens_<proposer>``: accepted drafts, without the bonus token, of a draft made at every
    output position.
    """

    kind: Literal["native"] = "native"
    containers = ("parquet", "jsonl")
    columns = frozenset({"prompt_len", "output_len"})

    def matches(self, file: TraceFile) -> bool:
        # Arrivals under another name are not to be ignored in silence.
        others = [name for name in file.columns if name != "arrived_at" and is_arrival(name)]
        return super().matches(file) and ("arrived_at" in file.columns or not others)

    def add(self, row: Row, builder: TraceBuilder) -> None:
        arrived_at = row.number("arrived_at") if "arrived_at" in row.values else None
        if builder.add(row.integer("prompt_len"), row.integer("output_len"), arrived_at):
            _put_optional(builder, row)


def _put_optional(builder: TraceBuilder, row: Row) -> None:
    values = row.values
    if "id" in values:
        builder.put("ids", str(values["id"]))
    if "priority" in values:
        builder.put("priorities", row.integer("priority", minimum=-(2**31)))
    if "adapter" in values:
        builder.put("adapters", row.integer("adapter", maximum=_MOST_ADAPTERS))
    _put_turn(builder, row)
    for field in ("prompt_token_ids", "output_token_ids"):
        if field in values:
            is_unrecorded = field == "prompt_token_ids" and values[field] == [UNRECORDED]
            ids = np.array([UNRECORDED]) if is_unrecorded else row.token_ids(field)
            wanted = row.integer(field.replace("_token_ids", "_len"), minimum=1)
            if len(ids) != wanted:
                raise TraceError(f"{row.place}: {len(ids)} {field} for a length of {wanted}")
            builder.put(field, ids)
    if "prefix_hash_ids" in values:
        piece_size = row.integer("prefix_block_size", minimum=1)
        builder.put("prefix_ids", PrefixIds(row.hash_ids("prefix_hash_ids"), piece_size))
    for field in values:
        if field.startswith(_ACCEPTED):
            builder.put_record(field.removeprefix(_ACCEPTED), _accepted(row, field))


def _put_turn(builder: TraceBuilder, row: Row) -> None:
    """Append what a row says of its session; without one it may say nothing of turns."""
    if {"session", "think_time", "after_turns", "shared_len"} & row.values.keys():
        builder.put("sessions", str(row.get("session")))
    if "think_time" in row.values:
        time = row.number("think_time")
        if time < 0:
            raise TraceError(f"{row.place}: think_time = {time:g} must be at least 0 s; correct it")
        builder.put("think_times", time)
    if "after_turns" in row.values:
        builder.put("after_turns", tuple(row.token_ids("after_turns").tolist()))
    if "shared_len" in row.values:
        builder.put("shared_lens", row.integer("shared_len"))


def _accepted(row: Row, field: str) -> bytes:
    lens = row.get(field)
    try:
        return bytes(lens)
    except (TypeError, ValueError):
        raise TraceError(
            f"{row.place}: {field} is not a list of whole numbers from 0 to 255"
        ) from None


def write_trace(trace: Trace, path: Path) -> None:
    """Write ``.parquet``, ``.jsonl`` or ``.jsonl.gz``; a ConfigError if it ends otherwise."""
    columns = _columns(trace)
    if path.suffix == ".parquet":
        import pyarrow as pa  # noqa: PLC0415 - pyarrow takes 30 MiB
        import pyarrow.parquet as pq  # noqa: PLC0415

        table = pa.table({name: pa.array(column) for name, column in columns.items()})
        table = table.replace_schema_metadata({MARK: __version__})
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


def _columns(trace: Trace) -> dict[str, Any]:
    columns: dict[str, Any] = {
        "id": trace.ids,
        "arrived_at": trace.arrived_at,
        "prompt_len": trace.prompt_lens,
        "output_len": trace.output_lens,
        "priority": trace.priorities,
        "adapter": trace.adapters,
        "session": trace.sessions,
        "think_time": trace.think_times,
        "after_turns": trace.after_turns,
        "shared_len": trace.shared_lens,
        "prompt_token_ids": trace.prompt_token_ids,
        "output_token_ids": trace.output_token_ids,
    }
    if trace.prefix_ids:
        columns["prefix_hash_ids"] = [np.array(prefix.hash_ids) for prefix in trace.prefix_ids]
        columns["prefix_block_size"] = [prefix.block_size for prefix in trace.prefix_ids]
    for proposer, records in trace.recorded_lens.items():
        columns[_ACCEPTED + proposer] = [np.frombuffer(r, dtype=np.uint8) for r in records]
    return {name: column for name, column in columns.items() if column is not None}


def _plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.generic | np.ndarray) else value
