"""Tables of no known format, whose columns are recognised by their names."""

import re
from datetime import UTC, datetime
from typing import Literal, final

from specsim.core.errors import TraceError
from specsim.core.reading import short
from specsim.workload.readers import Reader, Row, TraceFile
from specsim.workload.trace import Trace, TraceBuilder

_LENS = {"len", "lens", "length", "lengths", "token", "tokens", "tok", "toks"}
_FILLERS = {"n", "num", "number", "nb", "count", "of"}
_SIDES = {
    "prompt_len": {"prompt", "prompts", "input", "inputs", "in", "context", "prefill"},
    "output_len": {
        "output", "outputs", "out", "completion", "completions", "generated", "generation",
        "response", "answer", "decode",
    },
}  # fmt: skip
_SECONDS = {"s": 1.0, "sec": 1.0, "seconds": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
_CLOCKS = {
    "arrived", "created", "received", "sent", "started", "submitted", "time", "timestamp", "ts",
    "datetime",
}  # fmt: skip
_EVENTS = {"arrival", "request", "start", "submit"}  # at a time, which may be unsaid
_LATER = 1e11  # no number of seconds since 1970, so one of milliseconds, or of less


@final
class NamedColumns(Reader):
    """CSV or JSON lines with columns such as ``arrival_time, prompt_len, output_len``.

    Names are looked at by their words: ``n_in``, ``promptTokens``, ``tokens_completion`` and
    ``created_at`` do as well. Lengths in tokens, arrivals in seconds, in the unit that the name
    ends in (``_ms``, ``_us``, ``_ns``), or as ISO 8601; what is too large for seconds since 1970 is
    of milliseconds, microseconds or nanoseconds. What was taken for what, and what was ignored, is
    said.
    """

    kind: Literal["columns"] = "columns"
    containers = ("csv", "jsonl")

    def matches(self, file: TraceFile) -> bool:
        if file.container not in self.containers:
            return False
        found = _recognised(file)
        return bool(found["prompt_len"]) and bool(found["output_len"])

    def read(self, file: TraceFile) -> Trace:
        found = _recognised(file)
        for what, names in found.items():
            if len(names) > 1:
                raise TraceError(
                    f"{file.path}: {' and '.join(names)} may both be the {_SAID[what]}; leave one "
                    "out, or rename it"
                )
        taken = {what: names[0] for what, names in found.items() if names}
        builder = TraceBuilder(file.path, self.kind)
        for row in file.rows():
            arrived_at = _seconds(row, taken["arrival"]) if "arrival" in taken else None
            lens = row.integer(taken["prompt_len"]), row.integer(taken["output_len"])
            builder.add(*lens, arrived_at)
        ignored = [name for name in file.columns if name not in taken.values()]
        said = ", ".join(f"{name} is the {_SAID[what]}" for what, name in taken.items())
        builder.note = said + (f"; ignored: {', '.join(ignored)}" if ignored else "")
        return builder.build()


_SAID = {"prompt_len": "prompt length", "output_len": "output length", "arrival": "arrival"}


def is_arrival(name: str) -> bool:
    """Return whether a column's name says that it holds arrivals."""
    words = [word for word in _words(name) if word not in _SECONDS]
    known = _CLOCKS | _EVENTS | {"at"}
    return words[:1] != ["at"] and bool(words) and set(words) <= known and words != ["request"]


def _recognised(file: TraceFile) -> dict[str, list[str]]:
    found = {
        what: [name for name in file.columns if _is_len(_words(name), side)]
        for what, side in _SIDES.items()
    }
    return found | {"arrival": [name for name in file.columns if is_arrival(name)]}


def _is_len(words: list[str], side: set[str]) -> bool:
    """Return whether words such as "num input tokens", or "n in", say a length of this side."""
    own, others = side.intersection(words), set(words) - side
    is_number = bool(_LENS & others) or (bool(_FILLERS & others) and own <= {"in", "out"})
    return bool(own) and is_number and others <= _LENS | _FILLERS


def _words(name: str) -> list[str]:
    """Return "prompt", "tokens" of ``Prompt tokens`` and ``promptTokens``."""
    return re.findall("[a-z0-9]+", re.sub(r"([a-z])([A-Z])", r"\1_\2", name).lower())


def _seconds(row: Row, name: str) -> float:
    text = row.get(name)
    unit = next((_SECONDS[word] for word in _words(name) if word in _SECONDS), None)
    try:
        return float(text) * (unit or _unit(float(text)))
    except (TypeError, ValueError, OverflowError):
        pass
    try:
        clock = datetime.fromisoformat(str(text).strip())
    except ValueError:
        raise TraceError(
            f"{row.place}: {name} = {short(text)} is neither seconds nor a time such as "
            "2026-11-16T18:17:03.5; correct or remove the row"
        ) from None
    return (clock if clock.tzinfo else clock.replace(tzinfo=UTC)).timestamp()


def _unit(since_1970: float) -> float:
    """Return the unit of a time that would be in a far century, were it in seconds."""
    fitting = (1e-3**n for n in (3, 2, 1) if since_1970 > _LATER * 1e3 ** (n - 1))
    return next(fitting, 1.0)
