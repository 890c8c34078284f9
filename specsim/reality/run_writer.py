"""The folder of a measured run, as ``specsim validate`` and ``specsim profile fit`` read it.

``meta.json`` describes the engine, ``requests.jsonl`` the outcome of each request, ``steps.jsonl``
the time of each step. Standard library only: it is used inside other engines' processes.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NotRequired, Self, TypedDict

from specsim.core.atomic import new_file
from specsim.core.errors import ConfigError
from specsim.core.version import __version__

_REQUESTS, _STEPS, _META = "requests.jsonl", "steps.jsonl", "meta.json"


class RequestRow(TypedDict):
    """One request; times in seconds on one clock, None for events that did not happen."""

    request_id: str
    number: NotRequired[int]  # its number in ``requests`` of the steps
    input_toks: int
    output_toks: int  # tokens that were delivered
    arrival_time: float  # when the client sent it
    queued_ts: float  # when the engine accepted it; for a client, when it was sent
    scheduled_ts: float | None
    first_token_ts: float | None
    last_token_ts: float | None
    deliveries: NotRequired[Sequence[Sequence[float]]]  # pairs: time, number of tokens
    accepted: NotRequired[Sequence[Sequence[int]]]
    """Per verified draft: output tokens before the step, draft length, accepted length."""
    preemptions: NotRequired[int]
    priority: NotRequired[int]  # of the request, if not 0
    error: NotRequired[str]  # why the request failed
    input_tok_ids: NotRequired[Sequence[int]]
    output_tok_ids: NotRequired[Sequence[int]]


class StepRow(TypedDict):
    """One step of the engine; ``specsim profile fit`` reads the first eight fields."""

    started_at: float  # on the clock of the requests, seconds
    seconds: float
    """Time until the next step is scheduled; for the last step before idling, until its output."""
    context_tokens: int  # KV entries of its sequences at its start
    batched_tokens: int
    num_requests: int
    prefill_tokens: int
    draft_tokens: int  # verified in this step
    accepted_tokens: int
    num_waiting: int  # after scheduling, without the admitted requests
    free_blocks: int
    requests: NotRequired[list[int]]
    """Number of each of its requests, -1 for one that had ended; the lists below are parallel."""
    scheduled: NotRequired[list[int]]
    drafted: NotRequired[list[int]]
    accepted: NotRequired[list[int]]
    draft_seconds: NotRequired[float]  # part of `seconds` for drafting, if the engine can tell
    made_drafts: NotRequired[int]  # longest draft made at its end, tokens


class RunWriter:
    """Writes a run while it goes on; rows that were added survive even a kill.

    Each row is passed to the operating system at once, ``meta.json`` is replaced as a whole, and
    its ``complete`` is false until `close`. Raises a ConfigError if the folder holds a run, or
    cannot be written to.

    Args:
        meta: ``engine_kwargs`` (vLLM's names), ``kv_cache`` (``num_gpu_blocks``, ``block_size``),
            ``engine`` or ``vllm_version``, ``hardware``, ... Plain values.
    """

    def __init__(self, folder: Path, meta: Mapping[str, Any]) -> None:
        self._folder = folder
        self._meta = {**meta, "specsim_version": __version__}
        self._streams: dict[str, BinaryIO] = {}
        self._lists: dict[str, tuple[list[int], str]] = {}  # last written list and its text
        self._is_closed = False
        if folder.is_dir() and (found := [*folder.glob("requests*"), *folder.glob(_META)]):
            raise ConfigError(
                f"{folder}: holds a run already ({found[0].name}); name another folder or remove it"
            )
        self.mark(complete=False)

    def add_request(self, row: RequestRow) -> None:
        """Write the outcome of a request, in any order; the last row of an id and number counts.

        So a request may be written on arrival, with an error, and again at its end.
        """
        self._write(_REQUESTS, f"{json.dumps(row)}\n")

    def add_step(self, row: StepRow) -> None:
        # Finite numbers look the same in Python and JSON; an encoder takes twice as long.
        texts = [
            f'"{name}":{self._list_text(name, value) if isinstance(value, list) else value}'
            for name, value in row.items()
        ]
        self._write(_STEPS, f"{{{','.join(texts)}}}\n")

    def add_probe(self, at: float, seconds: float) -> None:
        """Write the duration of a probe; `at` is on the clock of the steps, both in seconds."""
        self._write("host_speed.jsonl", f'{{"at":{at!r},"seconds":{seconds!r}}}\n')

    def _list_text(self, name: str, values: list[int]) -> str:
        """Return the JSON text of a list; cached, as most lists repeat from step to step."""
        known = self._lists.get(name)
        if known is None or known[0] != values:
            known = self._lists[name] = (values.copy(), str(values))
        return known[1]

    def update_meta(self, **fields: Any) -> None:
        """Add fields to ``meta.json``, or replace them."""
        self._meta |= fields
        self.mark(complete=False)

    def mark(self, *, complete: bool) -> None:
        """Write to ``meta.json`` whether the rows so far are the whole run."""
        with new_file(self._folder / _META, is_own=True) as temporary:
            text = json.dumps({**self._meta, "complete": complete}, indent=1)
            temporary.write_text(text + "\n", encoding="utf-8")

    def close(self, *, complete: bool = True) -> None:
        """Sort the requests by arrival and mark the run complete, or not."""
        if self._is_closed:
            return
        self._is_closed = True
        for stream in self._streams.values():
            stream.close()
        path = self._folder / _REQUESTS
        if path.exists():
            last: dict[tuple[str, int | None], tuple[float, str]] = {}
            for line in path.read_text(encoding="utf-8").splitlines(keepends=True):
                row = json.loads(line)
                last[row["request_id"], row.get("number")] = (row["queued_ts"], line)
            with new_file(path, is_own=True) as temporary:
                text = "".join(line for _, line in sorted(last.values()))
                temporary.write_text(text, encoding="utf-8")
        self.mark(complete=complete)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close(complete=error[0] is None)

    def _write(self, name: str, line: str) -> None:
        path = self._folder / name
        try:
            if name not in self._streams:
                # Unbuffered: a written row is in the operating system's hands.
                self._streams[name] = path.open("xb", buffering=0)
            self._streams[name].write(line.encode())
        except OSError as error:
            raise ConfigError(f"{path}: cannot be written: {error.strerror or error}") from error


def add_repetition(folder: Path, repeated: Path) -> Path:
    """Put the requests of a repeated run beside those of the first; return the new file.

    Raises a ConfigError if the repeated run has no requests, or the folder cannot be written to.
    """
    source = repeated / _REQUESTS
    if not source.is_file():
        raise ConfigError(f"{repeated}: has no {_REQUESTS}; give the folder of a measured run")
    path = folder / f"requests-{len(list(folder.glob('requests*.jsonl'))) + 1}.jsonl"
    with new_file(path, is_own=True) as temporary:
        temporary.write_bytes(source.read_bytes())
    return path
