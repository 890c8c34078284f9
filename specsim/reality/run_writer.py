"""The folder of a measured run, as ``specsim validate`` and ``specsim profile fit`` read it.

``meta.json`` says what ran, ``requests.jsonl`` what each request met, ``steps.jsonl`` how long each
step of the engine took. Standard library only: it is written inside other engines' processes.
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
    """One request; times in seconds on one clock, None for what never came."""

    request_id: str
    number: NotRequired[int]  # as ``requests`` of the steps call it
    input_toks: int
    output_toks: int  # tokens that were delivered
    arrival_time: float  # when the client sent it
    queued_ts: float  # when the engine took it in; of a client, when it sent it
    scheduled_ts: float | None
    first_token_ts: float | None
    last_token_ts: float | None
    deliveries: NotRequired[Sequence[Sequence[float]]]  # pairs: a time, and how many tokens
    accepted: NotRequired[Sequence[Sequence[int]]]
    """Per verified draft: output tokens before the step, draft length, accepted length."""
    preemptions: NotRequired[int]
    priority: NotRequired[int]  # what was asked for, if not 0
    error: NotRequired[str]  # why it did not end as it should
    input_tok_ids: NotRequired[Sequence[int]]
    output_tok_ids: NotRequired[Sequence[int]]


class StepRow(TypedDict):
    """One step of the engine; the first eight as ``specsim profile fit`` reads them."""

    started_at: float  # on the clock of the requests, seconds
    seconds: float
    """Until the next step is scheduled; of the last before the engine idles, until its output."""
    context_tokens: int  # KV entries of its sequences when it starts
    batched_tokens: int
    num_requests: int
    prefill_tokens: int
    draft_tokens: int  # verified in this step
    accepted_tokens: int
    num_waiting: int  # once it is scheduled, without those that it admitted
    free_blocks: int
    requests: NotRequired[list[int]]
    """Number of each of its requests, -1 for one that had ended; likewise the lists below."""
    scheduled: NotRequired[list[int]]
    drafted: NotRequired[list[int]]
    accepted: NotRequired[list[int]]
    draft_seconds: NotRequired[float]  # of `seconds`, what drafting took, where the engine can tell
    made_drafts: NotRequired[int]  # longest draft that was made at its end, tokens


class RunWriter:
    """Writes a run while it goes on: whatever has been added survives even a kill.

    Each row is handed to the operating system at once, ``meta.json`` is replaced as a whole, and
    its ``complete`` is false until `close`. A folder that holds a run, or cannot be written to, is
    a ConfigError.

    Args:
        meta: ``engine_kwargs`` (vLLM's names), ``kv_cache`` (``num_gpu_blocks``, ``block_size``),
            ``engine`` or ``vllm_version``, ``hardware``, ... Plain values.
    """

    def __init__(self, folder: Path, meta: Mapping[str, Any]) -> None:
        self._folder = folder
        self._meta = {**meta, "specsim_version": __version__}
        self._streams: dict[str, BinaryIO] = {}
        self._lists: dict[str, tuple[list[int], str]] = {}  # written last, and its text
        self._is_closed = False
        if folder.is_dir() and (found := [*folder.glob("requests*"), *folder.glob(_META)]):
            raise ConfigError(
                f"{folder}: holds a run already ({found[0].name}); name another folder or remove it"
            )
        self.mark(complete=False)

    def add_request(self, row: RequestRow) -> None:
        """Write what a request met, in any order; of rows of one id and number the last counts.

        So a request may be written when it arrives, with an error, and again when it has ended.
        """
        self._write(_REQUESTS, f"{json.dumps(row)}\n")

    def add_step(self, row: StepRow) -> None:
        # Finite numbers look the same in Python and in JSON; an encoder takes twice as long.
        texts = [
            f'"{name}":{self._list_text(name, value) if isinstance(value, list) else value}'
            for name, value in row.items()
        ]
        self._write(_STEPS, f"{{{','.join(texts)}}}\n")

    def add_probe(self, at: float, seconds: float) -> None:
        """Write how long a probe took; `at` on the clock of the steps, both in seconds."""
        self._write("host_speed.jsonl", f'{{"at":{at!r},"seconds":{seconds!r}}}\n')

    def _list_text(self, name: str, values: list[int]) -> str:
        """From one decode step to the next most lists stay as they are."""
        known = self._lists.get(name)
        if known is None or known[0] != values:
            known = self._lists[name] = (values.copy(), str(values))
        return known[1]

    def update_meta(self, **fields: Any) -> None:
        """Add to ``meta.json``, or replace there, what is known only later."""
        self._meta |= fields
        self.mark(complete=False)

    def mark(self, *, complete: bool) -> None:
        """Say in ``meta.json`` whether what has been written until now is all there is."""
        with new_file(self._folder / _META, is_own=True) as temporary:
            text = json.dumps({**self._meta, "complete": complete}, indent=1)
            temporary.write_text(text + "\n", encoding="utf-8")

    def close(self, *, complete: bool = True) -> None:
        """Put the requests in order of arrival and mark the run complete, or not."""
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
                # Not buffered: a row that has been written is the operating system's.
                self._streams[name] = path.open("xb", buffering=0)
            self._streams[name].write(line.encode())
        except OSError as error:
            raise ConfigError(f"{path}: cannot be written: {error.strerror or error}") from error


def add_repetition(folder: Path, repeated: Path) -> Path:
    """Put the requests of a repeated run beside those of the first; return the new file.

    A ConfigError if the repeated run has no requests, or the folder cannot be written to.
    """
    source = repeated / _REQUESTS
    if not source.is_file():
        raise ConfigError(f"{repeated}: has no {_REQUESTS}; give the folder of a measured run")
    path = folder / f"requests-{len(list(folder.glob('requests*.jsonl'))) + 1}.jsonl"
    with new_file(path, is_own=True) as temporary:
        temporary.write_bytes(source.read_bytes())
    return path
