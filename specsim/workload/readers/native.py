"""Tables of requests: specsim's own format, and others recognised by column names."""

import gzip
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from difflib import get_close_matches
from math import isfinite
from pathlib import Path
from typing import Any, Literal, final

import numpy as np

from specsim.core.atomic import MARK, new_file
from specsim.core.errors import ConfigError, TraceError
from specsim.core.reading import short
from specsim.core.request import UNRECORDED, PrefixIds
from specsim.core.version import __version__
from specsim.workload.readers import TEXT, Reader, Row, TraceFile
from specsim.workload.trace import IN_FILES, Trace, TraceBuilder

_ACCEPTED = "accepted_lens_"
_EMPTY = (None, "")
_OF_TURNS = {"session", "think_time", "shared_len"}
_OWN = {*IN_FILES.values(), "prefix_block_size", MARK}
_MOST_ADAPTERS = 100_000


@final
class Native(Reader):
    """``prompt_len``, ``output_len`` and any of the columns below, as Parquet or JSON lines.

    ``arrived_at`` (s), ``id``, ``priority``, ``adapter`` (LoRA, from 1; 0 or left out: none),
    ``session``. Of a session also ``think_time`` (s; left out: 0), ``after_turns`` (turns that it
    waits for, from 1, if not the one before it) and ``shared_len`` (of prompts that continue their
    session: tokens that all sessions begin with). Also ``prompt_token_ids``, ``output_token_ids``,
    ``prefix_hash_ids`` with ``prefix_block_size``, and ``accepted_lens_<proposer>``: accepted
    drafts, without the bonus token, of a draft made at every output position.
    """

    kind: Literal["native"] = "native"
    containers = ("parquet", "jsonl")
    columns = frozenset({"prompt_len", "output_len"})

    def matches(self, file: TraceFile) -> bool:
        # Arrivals under another name must not be ignored silently.
        others = [name for name in file.columns if name != "arrived_at" and is_arrival(name)]
        return super().matches(file) and ("arrived_at" in file.columns or not others)

    def read(self, file: TraceFile) -> Trace:
        trace = super().read(file)
        others = [name for name in file.all_columns if name not in _OWN]
        others = [name for name in others if not name.startswith(_ACCEPTED)]
        missing = sorted(_OWN.difference(file.all_columns))
        for name in others:
            if close := get_close_matches(name, missing, 1, 0.85):
                raise TraceError(
                    f"{file.path}: unknown column '{name}'; did you mean '{close[0]}'? Rename it, "
                    "or leave it out"
                )
        ignored = f"ignored: {', '.join(others)}" if others else ""
        return replace(trace, note="; ".join(filter(None, (ignored, trace.note))))

    def add(self, row: Row, builder: TraceBuilder) -> None:
        arrived_at = row.number("arrived_at") if "arrived_at" in row.values else None
        if builder.add(row.integer("prompt_len"), row.integer("output_len"), arrived_at):
            _put_optional(builder, row)
        elif "after_turns" in row.values:
            raise TraceError(
                f"{row.place}: has no prompt or no output, and would be left out, but after_turns "
                "of later rows count it; give it a token of either"
            )


def _put_optional(builder: TraceBuilder, row: Row) -> None:
    values = row.values
    if "id" in values:
        builder.put("ids", str(values["id"]))
    if "priority" in values:
        builder.put("priorities", row.integer("priority", minimum=-(2**31)))
    if values.get("adapter") not in _EMPTY:
        builder.put_if_said("adapters", row.integer("adapter", maximum=_MOST_ADAPTERS), 0)
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
    """Append a row's session; without a session the row must not have turns."""
    if {*_OF_TURNS, "after_turns"} & row.values.keys():
        builder.put("sessions", str(row.get("session")))
    if row.values.get("think_time") not in _EMPTY:
        time = row.number("think_time")
        if time < 0:
            raise TraceError(f"{row.place}: think_time = {time:g} must be at least 0 s; correct it")
        builder.put_if_said("think_times", time, 0.0)
    if "after_turns" in row.values:
        builder.put("after_turns", tuple(row.token_ids("after_turns").tolist()))
    if "shared_len" in row.values:
        builder.put("shared_lens", row.integer("shared_len"))


def _accepted(row: Row, field: str) -> bytes:
    lens = row.get(field)
    if not isinstance(lens, list) or any(type(n) is not int or not 0 <= n <= 255 for n in lens):
        raise TraceError(f"{row.place}: {field} is not a list of whole numbers from 0 to 255")
    return bytes(lens)


def write_trace(trace: Trace, path: Path) -> None:
    """Write ``.parquet``, ``.jsonl`` or ``.jsonl.gz``; a ConfigError for another ending."""
    columns = _columns(trace)
    if path.suffix == ".parquet":
        import pyarrow as pa
        import pyarrow.parquet as pq

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
            # mtime 0: equal workloads give equal bytes.
            temporary.write_bytes(gzip.compress(data, mtime=0) if path.suffix == ".gz" else data)
    else:
        raise ConfigError(f"{path}: a workload is written as .parquet, .jsonl or .jsonl.gz")


def _columns(trace: Trace) -> dict[str, Any]:
    columns = {column: getattr(trace, name) for name, column in IN_FILES.items()}
    if trace.prefix_ids:
        columns["prefix_hash_ids"] = [np.array(prefix.hash_ids) for prefix in trace.prefix_ids]
        columns["prefix_block_size"] = [prefix.block_size for prefix in trace.prefix_ids]
    for proposer, records in trace.recorded_lens.items():
        columns[_ACCEPTED + proposer] = [np.frombuffer(r, dtype=np.uint8) for r in records]
    return {name: column for name, column in columns.items() if column is not None}


def _plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.generic | np.ndarray) else value


_LENS = {"len", "lens", "length", "lengths", "token", "tokens", "tok", "toks"}
_FILLERS = {"n", "num", "number", "nb", "count", "of"}
_SPACES = {"gen", "ai", "llm", "usage"}  # in OpenTelemetry's gen_ai.usage.input_tokens and the like
_SIDES = {
    "prompt_len": {
        "prompt", "prompts", "input", "inputs", "in", "context", "prefill", "request", "query",
    },
    "output_len": {
        "output", "outputs", "out", "completion", "completions", "generated", "generation",
        "response", "answer", "reply", "decode",
    },
}  # fmt: skip
_OF_HTTP = {"request", "response"}
_SIZES = {"len", "length", "lens", "lengths", "size", "bytes", "body", "upstream"}
"""Words for sizes of HTTP messages in logs of web servers (nginx's ``$request_length``), bytes."""
_SECONDS = {"s": 1.0, "sec": 1.0, "seconds": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9, "nano": 1e-9}
_UNITS = {"s": "seconds", "sec": "seconds", "nano": "ns"}
_CLOCKS = {
    "arrived", "created", "creation", "received", "sent", "started", "submitted", "time",
    "timestamp", "ts", "datetime", "unix", "epoch", "iso8601", "local",
}  # fmt: skip
_NOTHING = ("", "-")  # nginx writes a dash; None is from a CSV line that was cut off
_EVENTS = {"arrival", "request", "start", "submit"}  # with "at" or "time", which may be missing
_MSEC = "msec"  # nginx's: seconds since 1970, with milliseconds as decimals
_TAKEN = ["request", "time"]  # nginx's: seconds that a request took; elsewhere its arrival
_APACHE = "%d/%b/%Y:%H:%M:%S %z"  # times in access logs, such as nginx's time_local
_LATER = 1e11  # too large for seconds since 1970, so a smaller unit
_RECENT = 1e8  # seconds since 1970 of this century are larger


@final
class NamedColumns(Reader):
    """CSV, Parquet or JSON with columns such as ``arrival_time, prompt_len, output_len``.

    Names are looked at by their words: ``n_in``, ``promptTokens``, ``tokens_completion`` and
    ``created_at`` do as well. Lengths in tokens, arrivals in seconds, in the unit that the name
    ends in (``_ms``, ``_us``, ``_ns``), or as ISO 8601; what is too large for seconds since 1970 is
    of milliseconds, microseconds or nanoseconds. ``adapter``, ``priority`` (if the first is a whole
    number), ``session`` and, with that, ``think_time`` and ``shared_len`` are those of specsim's
    own format; a row of no session is one of its own.

    What was taken for what, and what was ignored, is said. A ``request_length`` or
    ``response_size`` is bytes in logs of web servers: it is ignored beside a column of tokens of
    the same side, else refused. So is a ``request_time`` of small numbers, nginx's time that a
    request took. A row whose length is empty, null or ``-`` is a failed request.

    CSV may have semicolons, tabs or bars in place of commas, lengths may have thousands as in
    1,000; of OpenAI's API the field ``usage`` is read, also in lines of its Batch API.
    """

    kind: Literal["columns"] = "columns"
    containers = ("csv", "jsonl", "json", "parquet")

    def matches(self, file: TraceFile) -> bool:
        if file.container == "json" and not isinstance(file.document, list):
            return False
        found = _recognised(file)
        sides = [bool(found[what] or _bytes_of(file, what)) for what in _SIDES]
        # With one of them it is such a table, unless text may have the other.
        return all(sides) or (any(sides) and not TEXT.intersection(file.columns))

    def read(self, file: TraceFile) -> Trace:
        found = _recognised(file)
        for what in _SIDES:
            if not found[what] and not _bytes_of(file, what):
                raise TraceError(
                    f"{file.path}: no column is the {_SAID[what]} (found: "
                    f"{', '.join(file.columns)}); add {what}, in tokens, if only an "
                    "estimate; a row is a request"
                )
            if not found[what]:
                raise _not_tokens(next(_rows(file)), _bytes_of(file, what)[0], what)
        for what, several in found.items():
            if len(several) > 1:
                both = " and ".join(several[:2])
                raise TraceError(
                    f"{file.path}: {both} may both be the {_SAID[what]}; leave one out, or rename "
                    "it"
                )
        taken = {what: several[0] for what, several in found.items() if several}
        names = file.all_columns
        more = {"adapter", *(_OF_TURNS if "session" in names else ())}.intersection(names)
        first = next(_rows(file), None)
        if first is not None and _is_whole(first.values.get("priority")):  # not high, or low
            more.add("priority")
        absent = _NOTHING if file.container == "csv" else (*_NOTHING, None)
        builder = TraceBuilder(file.path, self.kind)
        arrival = taken.get("arrival")
        clock = None if arrival is None else _Clock(arrival, arrival in file.time_columns)
        for row in _rows(file):
            arrived_at = None if clock is None else clock.seconds(row)
            prompt_len, output_len = (_length(row, taken[side], absent) for side in _SIDES)
            if builder.add(prompt_len, output_len, arrived_at) and more:
                _put_optional(builder, _filled(row, more))
        used = {*taken.values(), *more, *(name.partition(".")[0] for name in taken.values())}
        ignored = [name for name in names if name not in used]
        said = ", ".join(f"{name} is the {_SAID[what]}" for what, name in taken.items())
        said += f", {clock.form}" if clock else ""
        said += f"; as in specsim's own format: {', '.join(sorted(more))}" if more else ""
        builder.note = said + (f"; ignored: {', '.join(ignored)}" if ignored else "")
        return builder.build()


def _length(row: Row, name: str, absent: tuple[str | None, ...]) -> int:
    """Return a length, tokens; 0 for a failed request, if the field is one of `absent`."""
    return 0 if row.values.get(name) in absent else row.integer(name)


def _is_whole(value: object) -> bool:
    return re.fullmatch(r"-?\d+", str(value)) is not None


def _filled(row: Row, names: set[str]) -> Row:
    """Return some fields of a row; an empty field means no session, and no waiting."""
    labels = {name: row.label(name) for name in names}
    filled = {name: 0 if value in _EMPTY else value for name, value in labels.items()}
    if labels.get("session") in _EMPTY:
        filled |= {"session": row.place} if "session" in names else {}
    return Row(row.place, filled)


def _rows(file: TraceFile) -> Iterator[Row]:
    return file.objects("request") if file.container == "json" else file.rows()


_SAID = {"prompt_len": "prompt length", "output_len": "output length", "arrival": "arrival"}


def is_arrival(name: str) -> bool:
    """Return whether a column of this name holds arrivals."""
    words = [word for word in _words(name) if word not in _SECONDS]
    if name == _MSEC:
        return True
    known = _CLOCKS | _EVENTS | {"at"}
    return words[:1] != ["at"] and bool(words) and set(words) <= known and words != ["request"]


def _recognised(file: TraceFile) -> dict[str, list[str]]:
    names = file.all_columns
    found = {
        what: _outermost([name for name in names if _is_len(_words(name), side)], names)
        for what, side in _SIDES.items()
    }
    arrivals = [name for name in names if is_arrival(name)]
    others = [name for name in arrivals if _words(name) != _TAKEN]
    return found | {"arrival": others or arrivals}


def _outermost(found: list[str], names: list[str]) -> list[str]:
    """Return those columns that are not nested in another, if there are any."""
    known = {*names}
    is_inside = ("usage." in name and name.partition(".")[0] in known for name in found)
    return [name for name, inside in zip(found, is_inside, strict=True) if not inside] or found


def _bytes_of(file: TraceFile, what: str) -> list[str]:
    """Return the columns named like sizes of HTTP messages."""
    own = _SIDES[what] & _OF_HTTP
    names = file.all_columns
    return [name for name in names if _is_size(words := _words(name)) and own & {*words}]


def _is_size(words: list[str]) -> bool:
    return bool(_OF_HTTP & {*words}) and bool(_SIZES & {*words}) and {*words} <= _OF_HTTP | _SIZES


def _not_tokens(row: Row, name: str, what: str) -> TraceError:
    return TraceError(
        f"{row.place}: {name} = {short(row.values[name])}: must be tokens, and columns so called "
        f"hold bytes in logs of web servers; if these are tokens, name it {what}, else count them "
        "(the field usage of OpenAI's API)"
    )


def _is_len(words: list[str], side: set[str]) -> bool:
    """Return whether words like "num input tokens" or "n in" name a length of this side."""
    if _is_size(words):
        return False
    # vLLM's request_generation_tokens is about a request, but not its length.
    own, others = side.intersection(words), set(words) - side - _SPACES - {"request"}
    is_number = bool(_LENS & others) or (bool(_FILLERS & others) and own <= {"in", "out"})
    return bool(own) and is_number and others <= _LENS | _FILLERS


def _words(name: str) -> list[str]:
    """Return the words of a name: "prompt", "tokens" for ``Prompt tokens`` or ``promptTokens``."""
    said = name[max(0, name.rfind("usage.")) :]  # its path, response.usage, has no meaning here
    return re.findall("[a-z0-9]+", re.sub(r"([a-z])([A-Z])", r"\1_\2", said).lower())


class _Clock:
    """Reads the arrivals of a column, which must all be of one form."""

    def __init__(self, name: str, is_time: bool) -> None:
        self._name = name
        said = (word for word in _words(name) if word in _SECONDS)
        self._unit = "s" if is_time else next(said, None)
        self.form = ""  # the form, once a row has been read

    def seconds(self, row: Row) -> float:
        text = row.get(self._name)
        try:
            number = float(text)
        except (TypeError, ValueError, OverflowError):
            return self._of_text(str(text).strip(), row)
        if not isfinite(number):
            raise self._no_time(text, row)
        unit = self._unit or _unit(number)
        if _words(self._name) == _TAKEN and number < _RECENT:
            raise TraceError(
                f"{row.place}: {self._name} = {short(text)}: must be when the request came, and "
                "columns so called hold how long it took in logs of nginx; if these are arrivals, "
                "name it arrival_time, else log $time_iso8601"
            )
        self._check_form(f"in {_UNITS.get(unit, unit)}", row)
        return number * _SECONDS[unit]

    def _of_text(self, text: str, row: Row) -> float:
        try:
            clock = _time(text)
        except ValueError:
            raise self._no_time(text, row) from None
        self._check_form("as dates and times, UTC where none names a zone", row)
        return (clock if clock.tzinfo else clock.replace(tzinfo=UTC)).timestamp()

    def _no_time(self, text: object, row: Row) -> TraceError:
        return TraceError(
            f"{row.place}: {self._name} = {short(text)} is neither seconds nor a time such as "
            "2026-11-16T18:17:03.5 (with its date, in one column); correct or remove the row"
        )

    def _check_form(self, form: str, row: Row) -> None:
        """Raise a TraceError if a row is of another form than those before it."""
        if self.form not in ("", form):
            raise TraceError(
                f"{row.place}: {self._name} = {short(row.values[self._name])} was read {form}, "
                f"rows before it {self.form}; say the unit in the name of the column, such as "
                f"{self._name}_ms, or correct the row"
            )
        self.form = form


def _time(text: str) -> datetime:
    """Return a time from ISO 8601 or an access log; a ValueError if it is neither."""
    try:
        return datetime.fromisoformat(re.sub(r" ?(UTC|GMT)$", "+00:00", text))
    except ValueError:
        return datetime.strptime(text.strip("[]"), _APACHE)


def _unit(since_1970: float) -> str:
    """Return the unit of a time that would be in a far century as seconds."""
    units = ((3, "ns"), (2, "us"), (1, "ms"))
    return next((unit for n, unit in units if since_1970 > _LATER * 1e3 ** (n - 1)), "s")
