"""Tables of no known format, whose columns are recognised by their names."""

import re
from typing import Literal, final

import numpy as np

from specsim.core.errors import TraceError
from specsim.core.reading import short
from specsim.workload.readers import Reader, Row, TraceFile
from specsim.workload.trace import Trace, TraceBuilder

_TOKENS = r"(?:num_)?(?:{}|{}s)(?:_(?:len|lens|length|lengths|tokens|token_count|toks))"
_NAMES = {
    "prompt_len": re.compile(_TOKENS.format("prompt|input|context|prefill", "prompt|input")),
    "output_len": re.compile(
        _TOKENS.format("output|completion|generated|response|decode|answer", "output|completion")
    ),
    "arrival": re.compile(
        r"(?:arrived_at|(?:arrival|request|start|sent|submit)(?:_time(?:stamp)?)?|time(?:stamp)?)"
        r"(?:_(?P<unit>s|sec|seconds|ms|us|ns))?"
    ),
}
_SECONDS = {"ms": 1e-3, "us": 1e-6, "ns": 1e-9}


@final
class NamedColumns(Reader):
    """CSV or JSON lines with columns such as ``arrival_time, prompt_len, output_len``.

    Lengths in tokens, arrivals in seconds, in the unit that the name ends in (``_ms``, ``_us``,
    ``_ns``), or as ISO 8601. What was taken for what, and what was ignored, is said.
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
    return _NAMES["arrival"].fullmatch(_plain(name)) is not None


def _recognised(file: TraceFile) -> dict[str, list[str]]:
    return {
        what: [name for name in file.columns if pattern.fullmatch(_plain(name))]
        for what, pattern in _NAMES.items()
    }


def _plain(name: str) -> str:
    """Return ``prompt_tokens`` of ``Prompt tokens`` and ``promptTokens``."""
    parts = re.sub(r"([a-z])([A-Z])", r"\1_\2", name.strip())
    return re.sub(r"[^a-z0-9]+", "_", parts.lower()).strip("_")


def _seconds(row: Row, name: str) -> float:
    text = row.get(name)
    match = _NAMES["arrival"].fullmatch(_plain(name))
    assert match is not None
    try:
        return float(text) * _SECONDS.get(match["unit"] or "s", 1.0)
    except (TypeError, ValueError, OverflowError):
        pass
    try:
        clock = np.datetime64(str(text).strip().removesuffix("Z"), "ns")
    except ValueError:
        raise TraceError(
            f"{row.place}: {name} = {short(text)} is neither seconds nor a time such as "
            "2026-11-16T18:17:03.5; correct or remove the row"
        ) from None
    return float(clock.astype(np.int64)) * 1e-9
