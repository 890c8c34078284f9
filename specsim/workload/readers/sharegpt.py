"""Conversations with ChatGPT that users shared."""

from typing import Any, Literal, final

from specsim.core.errors import TraceError
from specsim.workload.files import TraceFile
from specsim.workload.readers.base import Reader, TraceBuilder
from specsim.workload.trace import Trace

__all__ = ["ShareGPT"]

CHARACTERS_PER_TOKEN = 4
"""Rule of thumb for English text (OpenAI, "What are tokens and how to count them")."""


@final
class ShareGPT(Reader):
    """ShareGPT JSON: a list of conversations; the first prompt and its answer make a request.

    The file holds text. Without a tokenizer lengths are estimated at four characters a token; it
    has no arrivals. vLLM's ``benchmarks/datasets.py ShareGPTDataset`` takes the same two turns.
    """

    kind: Literal["sharegpt"] = "sharegpt"

    def matches(self, file: TraceFile) -> bool:
        """Return whether a JSON list has conversations."""
        return file.container == "json" and "conversations" in file.columns

    def read(self, file: TraceFile) -> Trace:
        """Return one request per conversation that has an answer."""
        builder = TraceBuilder(file, self.kind)
        builder.note = f"lengths estimated at {CHARACTERS_PER_TOKEN} characters a token"
        for number, entry in enumerate(file.document):
            turns = entry.get("conversations") if isinstance(entry, dict) else None
            if not isinstance(turns, list):
                raise TraceError(f"{file.path}, entry {number}: has no list 'conversations'")
            texts = [_text(turn, f"{file.path}, entry {number}") for turn in turns[:2]]
            prompt, answer = [*texts, "", ""][:2]
            if builder.add(_tokens(prompt), _tokens(answer)):
                builder.put("ids", str(entry.get("id", number)))
        return builder.build()


def _text(turn: Any, place: str) -> str:
    value = turn.get("value") if isinstance(turn, dict) else None
    if not isinstance(value, str):
        raise TraceError(f"{place}: a turn has no text 'value'")
    return value


def _tokens(text: str) -> int:
    return -(-len(text) // CHARACTERS_PER_TOKEN)
