"""A log of decisions: what a policy was shown and told in a server, a JSON line per event.

Lines are made of several steps at once, so that not each of them finds the caches emptied by a
model. What a kill (SIGKILL) loses is limited by `MOST`; a server that is told to end, or has
nothing left to do, has written all.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field
from pydantic_core import to_json

from specsim.core.errors import ConfigError
from specsim.core.settings import Settings
from specsim.reality.vllm.at_work import Columns, Count, Scheduled

MOST = 32
"""Events that are not yet written, at most: decisions, and steps that have ended."""


class Decision(Settings):
    """A decision, and what was known of the step when it was scheduled."""

    event: Literal["decide"] = "decide"
    step: Count
    now: float
    num_running: Count
    free_slots: Count
    rows: tuple[Scheduled, ...]
    k: Count

    @property
    def columns(self) -> Columns:
        return [*chain(*zip(*self.rows, strict=True))]


class Ended(Settings):
    """What came of a step: what it took, and what each of its rows emitted."""

    event: Literal["observe"] = "observe"
    step: Count
    seconds: Annotated[float, Field(ge=0)]
    output_lens: tuple[Count, ...]


class DecisionLog:
    """A new file; an OSError if it exists, or cannot be made."""

    def __init__(self, path: Path, head: Mapping[str, Any]) -> None:
        self._file = path.open("xb", buffering=0)
        self._lines: list[tuple[Callable[..., dict[str, Any]], tuple[Any, ...]]] = []
        self._file.write(to_json(head) + b"\n")

    def decided(self, *facts: Any) -> None:
        """Log a decision: what `AtWork.decide` is given, and k."""
        self._lines.append((_decision, facts))
        if len(self._lines) > MOST:  # of steps in which nothing is scheduled, that end untold
            self.write()

    def ended(self, step: int, seconds: float, output_lens: Sequence[int]) -> None:
        self._lines.append((_ended, (step, seconds, output_lens)))
        if len(self._lines) >= MOST:
            self.write()

    def write(self) -> None:
        """Write what has been logged, all of it or nothing: half a line would end a replay."""
        text = b"".join([to_json(make(*facts)) + b"\n" for make, facts in self._lines])
        start = self._file.tell()
        try:
            while text:  # on a full disk a part is written first, and the rest is an error
                text = text[self._file.write(text) :]
        except OSError:
            self._file.seek(start)
            self._file.truncate()
            raise
        self._lines.clear()

    def close(self) -> None:
        """Write what has been logged, and nothing any more."""
        try:
            self.write()
        finally:
            self._file.close()


def _decision(
    step: int, columns: Columns, now: float, num_running: int, free_slots: int, k: int
) -> dict[str, Any]:
    num = len(columns) // len(Scheduled._fields)
    fields = [columns[start : start + num] for start in range(0, len(columns), max(num, 1))]
    return {
        "event": "decide", "step": step, "now": now, "num_running": num_running,
        "free_slots": free_slots, "rows": list(zip(*fields, strict=True)), "k": k,
    }  # fmt: skip


def _ended(step: int, seconds: float, output_lens: Sequence[int]) -> dict[str, Any]:
    return {"event": "observe", "step": step, "seconds": seconds, "output_lens": output_lens}


def events_of(path: Path, kinds: Mapping[str, type[Settings]]) -> Iterator[tuple[int, Settings]]:
    """Return the events of a log, each with the number of its line.

    Args:
        kinds: Classes of its events, by their names.

    Raises:
        ConfigError: It cannot be read, is empty, or has another event.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "is not a UTF-8 text"
        raise ConfigError(f"{path}: cannot be read: {why}; name a log of decisions") from error
    if not lines:
        raise ConfigError(f"{path}: is empty; name a file that specsim.vllm has written")
    for number, line in enumerate(lines, start=1):
        try:
            found = json.loads(line)
            event = kinds[found["event"]].model_validate(found)
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            why = str(error).splitlines()[0]
            raise ConfigError(
                f"{path}: line {number}: is no event of a log of decisions ({why}); name a file "
                "that specsim.vllm has written"
            ) from error
        yield number, event
