"""A measured run: reading and checking its folder, and what was drafted and accepted in it."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from specsim.acceptance.base import MAX_DRAFT_LEN, run_lengths
from specsim.core.errors import ConfigError, TraceError
from specsim.core.figures import percent
from specsim.core.request import Request
from specsim.core.settings import load_mapping
from specsim.proposers import PROPOSERS
from specsim.workload.readers import Row, TraceFile

Entries = Sequence[tuple[int, int, int]]

RECORD = "run"  # the record that `replayed` adds to each request, for acceptance ``recorded``
_UNKNOWN = -1
_READ = (
    "complete", "dataset_path", "engine_kwargs", "gpu", "hardware", "kv_cache", "model",
    "num_engines", "policy", "replicas", "resolved_config", "routing", "vllm_version",
)  # fmt: skip
_NOT_READ = {"dataset_hash"}  # similar to a field that is read


@dataclass(frozen=True)
class RunFolder:
    """A folder with one measured run, or with several repetitions of it."""

    path: Path
    runs: list[dict[str, NDArray[Any]]]
    """Columns of the requests of each repetition, in order of arrival, named as those of a
    simulated run; times in seconds after the first arrival. The first run is compared with the
    simulation."""
    rows: list[int]  # index in the workload of each request of the first run
    meta: dict[str, Any]  # ``meta.json``; empty if there is none
    accepted: list[Entries]
    """Verified drafts of each request of the first run: output tokens before the step, draft
    length, accepted length."""
    requests: list[Request]
    """Requests of the first run, to be simulated; with token ids if all prompts are recorded."""
    num_failed: int  # requests of the first run that ended with an error; left out
    started_at: float  # first arrival of the first run on the clock of its timestamps, seconds

    @property
    def engine_kwargs(self) -> dict[str, Any]:
        return self.section("engine_kwargs")

    def section(self, *names: str) -> dict[str, Any]:
        """Return a mapping inside ``meta.json``; empty if there is none under these names."""
        return section_of(self.meta, *names)

    @property
    def profile_folder(self) -> Path | None:
        folder = self.path / "profile"
        return folder if folder.is_dir() else None

    def tokens_path(self) -> Path | None:
        """Return the workload file that ``meta.json`` names, in the folder or beside it."""
        named = self.meta.get("dataset_path")
        if not isinstance(named, str):
            return None
        name = Path(named).name
        places = (self.path, self.path.parent)
        found = (place / f"{name}{zipped}" for place in places for zipped in ("", ".gz"))
        return next((path for path in found if path.is_file()), None)


def section_of(meta: Mapping[str, Any], *names: str) -> dict[str, Any]:
    """Return a mapping inside another; empty if there is none under these names."""
    found: Any = meta
    for name in names:
        found = found.get(name) if isinstance(found, dict) else None
    return found if isinstance(found, dict) else {}


def load_run(path: Path) -> RunFolder:
    """Return the measured run in a folder: ``requests.jsonl``, and ``meta.json`` if it exists.

    Other files ``requests*.jsonl`` are repetitions. Raises a ConfigError if there is no such
    folder, or it has no requests; a TraceError, with file, line, field, value and rule, if a row is
    wrong.
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
    _check_names(meta, meta_path)
    (rows, num_failed), *others = [_read(file) for file in files]
    numbers = [row.number for row in rows]
    by_name = len(set(numbers)) == len(numbers) and min(numbers) >= 0
    started_at = rows[0].request.arrived_at
    requests = [
        replace(row.request, index=index, arrived_at=row.request.arrived_at - started_at)
        for index, row in enumerate(rows)
    ]
    if any(request.prompt_token_ids is None for request in requests):
        requests = [
            replace(each, prompt_token_ids=None, output_token_ids=None) for each in requests
        ]
    return RunFolder(
        path=path,
        runs=[_columns(each) for each in (rows, *(other for other, _ in others))],
        rows=numbers if by_name else [row.place for row in rows],
        meta=meta,
        accepted=[row.accepted for row in rows],
        requests=requests,
        num_failed=num_failed,
        started_at=started_at,
    )


def _check_names(meta: dict[str, Any], path: Path) -> None:
    """Raise a ConfigError if a field seems misspelt; other unknown fields are ignored."""
    missing = [name for name in _READ if name not in meta]
    for name in sorted({*map(str, meta)} - {*_READ} - _NOT_READ):
        if close := get_close_matches(name, missing, 1, 0.87):
            raise ConfigError(
                f"{path}: unknown field '{name}'; did you mean '{close[0]}'? Rename it, or remove "
                "it"
            )


class _Answer(NamedTuple):
    """A request that was answered."""

    place: int  # row in the file, from 0
    number: int  # index in the workload; -1 if the row has none
    request: Request  # not yet numbered; times are on the clock of the file
    first_token_at: float
    ended_at: float
    accepted: Entries


def _columns(rows: list[_Answer]) -> dict[str, NDArray[Any]]:
    requests = [row.request for row in rows]
    arrived_at = np.array([request.arrived_at for request in requests])
    return {
        "arrived_at": arrived_at - arrived_at[0],
        "first_token_at": np.array([row.first_token_at for row in rows]) - arrived_at[0],
        "ended_at": np.array([row.ended_at for row in rows]) - arrived_at[0],
        "prompt_len": np.array([request.prompt_len for request in requests], np.int64),
        "output_len": np.array([request.output_len for request in requests], np.int64),
    }


def _read(path: Path) -> tuple[list[_Answer], int]:
    """Return the answered requests of a file, by arrival, and the number of the others."""
    # A run that was cut off may hold a request twice, on arrival and at its end; see RunWriter.
    last: dict[tuple[str, ...] | int, tuple[int, Row]] = {}
    for place, row in enumerate(TraceFile(path).rows()):
        request_id, number = (row.values.get(name) for name in ("request_id", "number"))
        key = place if request_id is None else (str(request_id), str(number))
        _, before = last.get(key, (0, row))
        if before is not row and not before.values.get("error"):
            raise TraceError(
                f"{row.place}: request_id = {request_id!r} has ended before ({before.place}); "
                "give each request an id of its own"
            )
        last[key] = (place, row)
    ended = [(place, row) for place, row in last.values() if not row.values.get("error")]
    num_failed = len(last) - len(ended)
    rows = [_row(place, row) for place, row in ended]
    if not rows:
        failed = f" that ended well ({num_failed} failed)" if num_failed else ""
        raise TraceError(f"{path}: no request in it{failed}; a run has at least one")
    rows.sort(key=lambda row: row.request.arrived_at)  # stable: of equals the first row stays first
    return rows, num_failed


def _row(place: int, row: Row) -> _Answer:
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
    output_len = row.integer("output_toks", minimum=1)
    drafts = _accepted(row, output_len)
    has_priority = row.values.get("priority") is not None
    request = Request(
        index=place,
        prompt_len=row.integer("input_toks", minimum=1),
        output_len=output_len,
        arrived_at=queued,
        priority=row.integer("priority", minimum=-(2**31)) if has_priority else 0,
        prompt_token_ids=_token_ids(row, "input"),
        output_token_ids=_token_ids(row, "output"),
    )
    return _Answer(place, _number(row), request, first, last, drafts)


def _number(row: Row) -> int:
    if "number" in row.values:
        return row.integer("number", minimum=0)
    digits = re.search(r"(\d+)$", str(row.values.get("request_id", "")))
    return int(digits[1]) if digits else -1


def _accepted(row: Row, output_len: int) -> Entries:
    """Return the verified drafts of a request, in the order of their positions."""
    given = row.values.get("accepted") or []
    entries = []
    for entry in given if isinstance(given, list) else [given]:
        match entry:
            case [int(position), int(draft_len), int(accepted_len)] if (
                0 <= position <= output_len and 0 <= accepted_len <= draft_len <= MAX_DRAFT_LEN
            ):
                entries.append((position, draft_len, accepted_len))
            case _:
                raise TraceError(
                    f"{row.place}: accepted = {entry!r} must hold three whole numbers: output "
                    f"tokens before the step (at most {output_len}), draft length (at most "
                    f"{MAX_DRAFT_LEN}) and, no larger, accepted length; correct or remove the row"
                )
    return sorted(entries)


def _token_ids(row: Row, which: str) -> NDArray[np.int64] | None:
    field = f"{which}_tok_ids"
    if row.values.get(field) is None:
        return None
    ids = row.token_ids(field)
    wanted = row.integer(f"{which}_toks", minimum=1)
    if len(ids) != wanted:
        raise TraceError(
            f"{row.place}: {field} holds {len(ids)} tokens, but {which}_toks = {wanted}; correct "
            "or remove the row"
        )
    return ids


def replayed(
    requests: list[Request], run: RunFolder, config: dict[str, Any], notes: list[str]
) -> list[Request]:
    """Return the requests of a measured run with the fates of their drafts.

    The outcome of a draft at one position also holds for later positions: tokens that it had
    accepted would be accepted in later drafts, and the token at which it failed fails for them,
    too. Other tokens are accepted at random, as often as the known ones of the request; their
    number is added to `notes`. For a method that may find no draft, the positions and lengths of
    found drafts are those of the run.
    """
    drafts_always = PROPOSERS.find(config["method"]).is_model
    longest = int(config.get("num_speculative_tokens") or MAX_DRAFT_LEN)
    fates = [
        _token_fates(entries, request.output_len)
        for entries, request in zip(run.accepted, requests, strict=True)
    ]
    known = np.concatenate([fate[fate != _UNKNOWN] for fate in fates])
    overall = float(known.mean()) if len(known) else 0.0
    unknown = 1 - len(known) / sum(len(fate) for fate in fates)
    notes.append(
        f"acceptance is the run's, by output position; of {percent(unknown)} of the tokens "
        "it says nothing: they are accepted as often as the others of their request"
    )
    return [
        replace(
            request,
            recorded_lens={RECORD: _survival_lens(fate, entries, overall, request.index)},
            offered_lens=None if drafts_always else _offers(entries, request.output_len, longest),
        )
        for request, fate, entries in zip(requests, fates, run.accepted, strict=True)
    ]


def _token_fates(entries: Entries, output_len: int) -> NDArray[np.int8]:
    """Return, by output position, whether a draft of that token is accepted: 1, 0 or unknown."""
    fates = np.full(output_len, _UNKNOWN, dtype=np.int8)
    for position, draft_len, accepted_len in entries:
        end = position + accepted_len
        fates[position:end] = 1
        if accepted_len < draft_len and end < output_len:
            fates[end] = 0
    return fates


def _survival_lens(fates: NDArray[np.int8], entries: Entries, overall: float, index: int) -> bytes:
    is_known = fates != _UNKNOWN
    rate = float(fates[is_known].mean()) if is_known.any() else overall
    drawn = np.random.default_rng(index).random(len(fates)) < rate
    lens = run_lengths(np.where(is_known, fates == 1, drawn), MAX_DRAFT_LEN)
    for position, draft_len, accepted_len in entries:
        # Recorded outcomes of a draft take precedence over those of other drafts.
        if position < len(lens) and (accepted_len < draft_len or lens[position] < accepted_len):
            lens[position] = accepted_len
    return lens.tobytes()


def _offers(entries: Entries, output_len: int, longest: int) -> bytes:
    """Return the length of the draft found at each position; any length where the run has none."""
    offers = bytearray([MAX_DRAFT_LEN]) * (output_len + 1)
    found = {position: (draft_len, accepted_len) for position, draft_len, accepted_len in entries}
    position = 1  # the first token comes without a draft
    while position < output_len:
        draft_len, accepted_len = found.get(position, (0, 0))
        if draft_len < longest:
            offers[position] = draft_len
        position += accepted_len + 1
    return bytes(offers)
