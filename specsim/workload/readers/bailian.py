"""Requests to Qwen on Alibaba Cloud, with the identity of their prefixes."""

from typing import Literal, final

from specsim.workload.files import Row
from specsim.workload.readers import Reader
from specsim.workload.readers.mooncake import add_hashed
from specsim.workload.trace import TraceBuilder


@final
class Bailian(Reader):
    """Qwen-Bailian JSON lines: ``timestamp`` in s, ``hash_ids`` of 16-token pieces of the prompt.

    ``input_length`` includes the earlier turns of the conversation. Source: Wang et al. (2025),
    "KVCache Cache in the Wild" (Qwen-Bailian usage traces).
    """

    kind: Literal["bailian"] = "bailian"
    containers = ("jsonl",)
    columns = frozenset({"chat_id", "timestamp", "input_length", "output_length", "hash_ids"})

    def add(self, row: Row, builder: TraceBuilder) -> None:
        """Add a request with its prefix ids."""
        add_hashed(row, builder, piece_size=16, seconds_per_unit=1.0)
