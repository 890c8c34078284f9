"""A measured run: its folder, read and checked."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specsim.errors import ConfigError, TraceError
from specsim.settings import load_mapping
from specsim.workload.files import TraceFile

__all__ = ["Measured", "RunFolder", "load_run"]

Seconds = NDArray[np.float64]


@dataclass(frozen=True)
class Measured:
    """What was measured of each request, in order of arrival; times in seconds.

    One of them is a run; a simulated run has the same form.
    """

    arrived_at: Seconds
    """Shape (n,), after the first arrival."""
    first_token_at: Seconds
    ended_at: Seconds
    prompt_lens: NDArray[np.int64]
    output_lens: NDArray[np.int64]

    def latencies(self) -> dict[str, Seconds]:
        """Return TTFT, TPOT and latency of each request; TPOT is NaN for one token."""
        later = self.output_lens - 1
        decode_time = self.ended_at - self.first_token_at
        return {
            "ttft": self.first_token_at - self.arrived_at,
            "tpot": np.where(later > 0, decode_time / np.maximum(later, 1), np.nan),
            "latency": self.ended_at - self.arrived_at,
        }


@dataclass(frozen=True)
class RunFolder:
    """A folder with a measured run, or with several repetitions of it."""

    path: Path
    runs: list[Measured]
    """The first is what a simulation is compared with."""
    rows: list[int]
    """Of each request of the first run, its number in the workload."""
    meta: dict[str, Any]
    """``meta.json``; empty if there is none."""

    @property
    def engine_kwargs(self) -> dict[str, Any]:
        """The options that the engine was started with."""
        return self.section("engine_kwargs")

    def section(self, *names: str) -> dict[str, Any]:
        """Return a mapping inside ``meta.json``; empty if it has none of that name."""
        found: Any = self.meta
        for name in names:
            found = found.get(name) if isinstance(found, dict) else None
        return found if isinstance(found, dict) else {}

    @property
    def profile_folder(self) -> Path | None:
        """The folder with kernel tables, if there is one."""
        folder = self.path / "profile"
        return folder if folder.is_dir() else None

    def tokens_path(self) -> Path | None:
        """Return the workload that ``meta.json`` names, if it lies in the folder or beside it."""
        named = self.meta.get("dataset_path")
        if not isinstance(named, str):
            return None
        name = Path(named).name
        places = (self.path, self.path.parent)
        found = (place / f"{name}{zipped}" for place in places for zipped in ("", ".gz"))
        return next((path for path in found if path.is_file()), None)


def load_run(path: Path) -> RunFolder:
    """Return the measured run in a folder.

    Parameters
    ----------
    path : Path
        With ``requests.jsonl`` and, optionally, ``meta.json``; if the run was repeated, further
        files ``requests*.jsonl``.

    Returns
    -------
    RunFolder

    Raises
    ------
    ConfigError
        There is no such folder, or no requests in it.
    TraceError
        A row breaks the rules; the message names file, line, field, value and rule.
    """
    if not path.is_dir():
        raise ConfigError(f"{path}: is not a folder; give the one that holds requests.jsonl")
    files = [
        file for pattern in ("*.jsonl", "*.jsonl.gz") for file in path.glob(f"requests{pattern}")
    ]
    files.sort(key=lambda file: (len(file.name), file.name))
    if not files:
        raise ConfigError(f"{path}: has no requests.jsonl, one line per request with its times")
    meta_path = path / "meta.json"
    meta = load_mapping(meta_path, ConfigError) if meta_path.exists() else {}
    tables = [_read(file) for file in files]
    return RunFolder(path, [run for run, _ in tables], tables[0][1], meta)


def _read(path: Path) -> tuple[Measured, list[int]]:
    columns = [(number, *values) for number, values in enumerate(_rows(TraceFile(path)))]
    if not columns:
        raise TraceError(f"{path}: no request in it; a run has at least one")
    columns.sort(key=lambda values: values[2])  # stable: of equals the one that stands first
    rows, numbers, queued, first, last, prompt, output = zip(*columns, strict=True)
    start = min(queued)
    run = Measured(
        arrived_at=np.array(queued) - start,
        first_token_at=np.array(first) - start,
        ended_at=np.array(last) - start,
        prompt_lens=np.array(prompt, dtype=np.int64),
        output_lens=np.array(output, dtype=np.int64),
    )
    by_name = list(numbers) if len(set(numbers)) == len(numbers) and min(numbers) >= 0 else None
    return run, by_name or list(rows)


def _rows(file: TraceFile) -> Iterator[tuple[int, float, float, float, int, int]]:
    for row in file.rows():
        queued = row.number("queued_ts")
        first, last = row.number("first_token_ts"), row.number("last_token_ts")
        if first < queued:
            raise TraceError(
                f"{row.place}: first_token_ts = {first!r} lies before queued_ts = {queued!r}; the "
                "clocks disagree: take both from the same one"
            )
        if last < first:
            raise TraceError(
                f"{row.place}: last_token_ts = {last!r} lies before first_token_ts = {first!r}; "
                "correct or remove the row"
            )
        number = re.search(r"(\d+)$", str(row.values.get("request_id", "")))
        yield (
            int(number[1]) if number else -1,
            queued,
            first,
            last,
            row.integer("input_toks", minimum=1),
            row.integer("output_toks", minimum=1),
        )
