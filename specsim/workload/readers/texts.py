"""Prompts and answers themselves: conversations, and token ids with recorded acceptance."""

from typing import Any, Literal, final

import numpy as np

from specsim.core.errors import TraceError
from specsim.core.request import UNRECORDED
from specsim.workload.files import Row, TraceFile
from specsim.workload.readers import Reader
from specsim.workload.trace import Trace, TraceBuilder

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

    def add(self, row: Row, builder: TraceBuilder) -> None:
        """Add a request."""
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
