"""Conversations with ChatGPT that users shared."""

from typing import Any, Literal, final

from specsim.core.errors import TraceError
from specsim.workload.files import TraceFile
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
