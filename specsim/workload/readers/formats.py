"""Formats of production services, simulators, benchmark clients, measured runs and texts."""

import re
from dataclasses import replace
from datetime import datetime
from typing import Any, Literal, final

import numpy as np

from specsim.core.errors import TraceError
from specsim.core.request import UNRECORDED, PrefixIds
from specsim.workload.readers import Reader, Row, TraceFile
from specsim.workload.trace import Trace, TraceBuilder

_ZONE = re.compile(r"(Z|[+-]\d\d:?\d\d)$")
_EPOCH = np.datetime64("2023-01-01T00:00:00", "ns")


@final
class Azure(Reader):
    """Azure LLM inference traces of 2023 and 2024: ``TIMESTAMP,ContextTokens,GeneratedTokens``.

    Time stamps have up to seven fraction digits, in 2024 a zone as well. Source: Azure Public
    Dataset (Patel et al. 2024, "Splitwise"; Stojkovic et al. 2024, "DynamoLLM").
    """

    kind: Literal["azure"] = "azure"
    containers = ("csv",)
    columns = frozenset({"TIMESTAMP", "ContextTokens", "GeneratedTokens"})

    def add(self, row: Row, builder: TraceBuilder) -> None:
        builder.add(row.integer("ContextTokens"), row.integer("GeneratedTokens"), _seconds(row))


def _seconds(row: Row) -> float:
    text = str(row.get("TIMESTAMP")).strip()
    zone = _ZONE.search(text)
    try:
        # datetime64 keeps all seven digits, unlike datetime, but knows no zones.
        clock: Any = np.datetime64(text[: zone.start()] if zone else text, "ns")
        offset = datetime.fromisoformat(
            f"2000-01-01T00:00:00{zone[0] if zone else 'Z'}"
        ).utcoffset()
    except ValueError:
        clock, offset = np.datetime64("NaT", "ns"), None
    if np.isnat(clock):  # text that is no time
        raise TraceError(
            f"{row.place}: TIMESTAMP = {text!r} is not a time such as 2023-11-16 18:17:03.9799600"
        )
    shift = offset.total_seconds() if offset else 0.0
    return float((clock - _EPOCH) / np.timedelta64(1, "ns")) * 1e-9 - shift


@final
class BurstGPT(Reader):
    """BurstGPT CSV, with six columns or with eight (Session ID, Elapsed time), by header.

    Time stamps are seconds and do not start at 0; a row without response tokens is a failed
    request. Source: Wang et al. (2024), "BurstGPT".
    """

    kind: Literal["burstgpt"] = "burstgpt"
    containers = ("csv",)
    columns = frozenset({"Timestamp", "Request tokens", "Response tokens"})

    def add(self, row: Row, builder: TraceBuilder) -> None:
        lens = row.integer("Request tokens"), row.integer("Response tokens")
        if builder.add(*lens, row.number("Timestamp")) and "Session ID" in row.values:
            # A row without a session is a session of its own.
            builder.put("sessions", row.values["Session ID"] or row.place)


@final
class Mooncake(Reader):
    """Mooncake JSON lines: ``timestamp`` in ms, ``hash_ids`` of 512-token pieces of the prompt.

    Source: Qin et al. (2025), "Mooncake", FAST '25 artifact.
    """

    kind: Literal["mooncake"] = "mooncake"
    containers = ("jsonl",)
    columns = frozenset({"timestamp", "input_length", "output_length", "hash_ids"})

    def matches(self, file: TraceFile) -> bool:
        """Return whether there are hash ids but no conversation, as in `bailian`."""
        return super().matches(file) and "chat_id" not in file.columns

    def add(self, row: Row, builder: TraceBuilder) -> None:
        add_hashed(row, builder, piece_size=512, seconds_per_unit=1e-3)


def add_hashed(
    row: Row, builder: TraceBuilder, *, piece_size: int, seconds_per_unit: float
) -> bool:
    """Add a request of a format like Mooncake's; return whether it was kept.

    Such formats have a ``timestamp``, and an id for each `piece_size` prompt tokens.
    """
    prompt_len = row.integer("input_length")
    hash_ids = row.hash_ids("hash_ids")
    if len(hash_ids) < prompt_len // piece_size:
        raise TraceError(
            f"{row.place}: hash_ids must list an id for each {piece_size} of the {prompt_len} "
            "prompt tokens"
        )
    output_len = row.integer("output_length")
    is_kept = builder.add(prompt_len, output_len, row.number("timestamp") * seconds_per_unit)
    if is_kept:
        builder.put("prefix_ids", PrefixIds(hash_ids, piece_size))
    return is_kept


@final
class Bailian(Reader):
    """Qwen-Bailian JSON lines: ``timestamp`` in s, ``hash_ids`` of 16-token pieces of the prompt.

    ``input_length`` includes the earlier turns of the conversation; a session is a chat without
    ``parent_chat_id`` and all that follow from it. Source: Wang et al. (2025),
    "KVCache Cache in the Wild" (Qwen-Bailian usage traces).
    """

    kind: Literal["bailian"] = "bailian"
    containers = ("jsonl",)
    columns = frozenset({"chat_id", "timestamp", "input_length", "output_length", "hash_ids"})

    def add(self, row: Row, builder: TraceBuilder) -> None:
        row.get("chat_id")  # raises if it is missing
        turn = row.label("chat_id")
        builder.link(turn, row.label("parent_chat_id"))
        if add_hashed(row, builder, piece_size=16, seconds_per_unit=1.0):
            builder.put("sessions", turn)


@final
class LLMServingSim(Reader):
    """LLMServingSim JSON lines: lengths, ``arrival_time_ns`` and, optionally, token ids."""

    kind: Literal["llmservingsim"] = "llmservingsim"
    containers = ("jsonl",)
    columns = frozenset({"input_toks", "output_toks", "arrival_time_ns"})

    def add(self, row: Row, builder: TraceBuilder) -> None:
        lens = row.integer("input_toks"), row.integer("output_toks")
        if not builder.add(*lens, row.number("arrival_time_ns") * 1e-9):
            return
        for field, column, length in zip(
            ("input", "output"), ("prompt", "output"), lens, strict=True
        ):
            if f"{field}_tok_ids" not in row.values:
                continue
            ids = row.token_ids(f"{field}_tok_ids")
            if len(ids) != length:
                raise TraceError(
                    f"{row.place}: {len(ids)} {field}_tok_ids for {field}_toks = {length}; correct "
                    "one of them, or leave the ids out of all rows"
                )
            builder.put(f"{column}_token_ids", ids)


@final
class Vidur(Reader):
    """Vidur CSV: ``arrived_at,num_prefill_tokens,num_decode_tokens``, seconds and tokens."""

    kind: Literal["vidur"] = "vidur"
    containers = ("csv",)
    columns = frozenset({"arrived_at", "num_prefill_tokens", "num_decode_tokens"})

    def add(self, row: Row, builder: TraceBuilder) -> None:
        lens = row.integer("num_prefill_tokens"), row.integer("num_decode_tokens")
        builder.add(*lens, row.number("arrived_at"))


@final
class VllmBench(Reader):
    """JSON that ``vllm bench serve --save-result --save-detailed`` wrote, as a workload.

    Lengths are those that were measured; arrivals are ``start_times`` where the file has them.
    ``summary.json`` of a simulation is such a file, too.
    """

    kind: Literal["vllm_bench"] = "vllm_bench"
    containers = ("json", "jsonl")
    columns = frozenset({"input_lens", "output_lens"})

    def read(self, file: TraceFile) -> Trace:
        document: dict[str, Any] = self._document(file)
        names = ["input_lens", "output_lens"]
        if document.get("start_times"):
            names.append("start_times")
        columns = [document[name] for name in names]
        if any(not isinstance(c, list) or len(c) != len(columns[0]) for c in columns):
            raise TraceError(
                f"{file.path}: input_lens, output_lens and start_times must be lists of one length"
            )
        builder = TraceBuilder(file.path, self.kind)
        own = document.get("specsim")
        if isinstance(own, dict) and "sessions" in own:
            builder.note = "ignored: sessions, of which a summary has lengths and arrivals alone"
        for number, values in enumerate(zip(*columns, strict=True)):
            row = Row(f"{file.path}, request {number}", dict(zip(names, values, strict=True)))
            builder.add(
                row.integer("input_lens"),
                row.integer("output_lens"),
                row.number("start_times") if len(names) == 3 else None,
            )
        return builder.build()

    def _document(self, file: TraceFile) -> Any:
        """Return the only result in a file; ``--append-result`` adds one per line."""
        if file.container == "json":
            return file.document
        first, *others = (row.values for row in file.rows())
        if others:
            raise TraceError(
                f"{file.path}: holds {1 + len(others)} results, a line each; a workload is one of "
                "them: leave one line"
            )
        return first


@final
class RealRun(Reader):
    """``requests.jsonl`` of a measured run: lengths, and ``queued_ts`` as the arrival, seconds.

    A request that ended with an error is left out, even if some tokens had come.
    """

    kind: Literal["real_run"] = "real_run"
    containers = ("jsonl",)
    columns = frozenset({"input_toks", "output_toks", "queued_ts"})

    def read(self, file: TraceFile) -> Trace:
        return _saying(super().read(file), file, _OF_RUNS)

    def add(self, row: Row, builder: TraceBuilder) -> None:
        prompt_len = row.integer("input_toks")
        output_len = 0 if row.values.get("error") else row.integer("output_toks")
        if builder.add(prompt_len, output_len, row.number("queued_ts")):
            builder.put("ids", str(row.values.get("request_id", "")))


_OF_RUNS = frozenset({"input_tok_ids", "output_tok_ids", "priority"})
"""Fields of measured runs that `specsim.reality.validation` reads in addition."""


def _saying(trace: Trace, file: TraceFile, names: frozenset[str]) -> Trace:
    """Return a trace with a note on fields of its file that a simulation could use."""
    ignored = ", ".join(name for name in file.all_columns if name in names)
    said = f"ignored: {ignored}" if ignored else ""
    return replace(trace, note="; ".join(note for note in (trace.note, said) if note))


CHARACTERS_PER_TOKEN = 4
"""Rule of thumb for English text (OpenAI, "What are tokens and how to count them")."""


@final
class ShareGPT(Reader):
    """ShareGPT JSON: a list of conversations; the first prompt and its answer make a request.

    The file holds text. Without a tokenizer lengths are estimated at four characters a token; it
    has no arrivals. vLLM's ``benchmarks/datasets.py ShareGPTDataset`` takes the same two turns.
    """

    kind: Literal["sharegpt"] = "sharegpt"
    containers = ("json",)
    columns = frozenset({"conversations"})

    def read(self, file: TraceFile) -> Trace:
        """Return one request per conversation that has an answer, in the order of the file."""
        builder = TraceBuilder(file.path, self.kind)
        builder.note = f"lengths estimated at {CHARACTERS_PER_TOKEN} characters a token"
        for number, entry in enumerate(file.document):
            turns = entry.get("conversations") if isinstance(entry, dict) else None
            if not isinstance(turns, list):
                raise TraceError(f"{file.path}, entry {number}: has no list 'conversations'")
            lens = [_num_tokens(turn, f"{file.path}, entry {number}") for turn in turns[:2]]
            prompt_len, output_len = [*lens, 0, 0][:2]
            if builder.add(prompt_len, output_len):
                builder.put("ids", str(entry.get("id", number)))
        return builder.build()


def _num_tokens(turn: Any, place: str) -> int:
    text = turn.get("value") if isinstance(turn, dict) else None
    if not isinstance(text, str):
        raise TraceError(f"{place}: a turn has no text 'value'")
    return -(-len(text) // CHARACTERS_PER_TOKEN)


_OF_REQUESTS = frozenset(
    {"arrived_at", "adapter", "priority", "think_time", "shared_len", "after_turns"}
)
"""Columns of specsim's own format that are ignored here."""
_NO_PROMPT = np.array([UNRECORDED], dtype=np.int64)


@final
class TokenTrace(Reader):
    """JSON lines with ``prompt_token_ids``, ``generated_token_ids`` and ``acc_<proposer>``.

    ``acc_<proposer>.acc_len[i]`` counts the tokens gained if a draft is made when i output tokens
    are known, the bonus token included; it is kept without it. There are no arrivals. A prompt that
    was not recorded counts as one token; turns of one ``session`` wait for each
    other. Source: SpecDecode-Bench (arXiv 2601.11580).
    """

    kind: Literal["token_trace"] = "token_trace"
    containers = ("jsonl",)
    columns = frozenset({"prompt_token_ids", "generated_token_ids"})

    def read(self, file: TraceFile) -> Trace:
        return _saying(super().read(file), file, _OF_REQUESTS)

    def add(self, row: Row, builder: TraceBuilder) -> None:
        prompt = row.token_ids("prompt_token_ids")
        output = row.token_ids("generated_token_ids")
        if not len(prompt):
            prompt = _NO_PROMPT
            builder.note = "prompts that were not recorded are one token long"
        if not builder.add(len(prompt), len(output)):
            return
        builder.put("ids", str(row.values.get("id", "")))
        if "session" in row.values:
            builder.put("sessions", str(row.get("session")))
        builder.put("prompt_token_ids", prompt)
        builder.put("output_token_ids", output)
        for field in row.values:
            if field.startswith("acc_"):
                builder.put_record(field.removeprefix("acc_"), _record(row, field))


def _record(row: Row, field: str) -> bytes:
    value = row.get(field)
    lens = value.get("acc_len") if isinstance(value, dict) else None
    if not isinstance(lens, list) or any(type(n) is not int or not 1 <= n <= 256 for n in lens):
        raise TraceError(
            f"{row.place}: {field}.acc_len is not a list of whole numbers from 1 (the bonus token "
            "alone) to 256"
        )
    return bytes(n - 1 for n in lens)
