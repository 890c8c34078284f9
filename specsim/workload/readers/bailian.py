"""Requests to Qwen on Alibaba Cloud, with the identity of their prefixes."""

from typing import Literal, final

from specsim.workload.files import TraceFile
from specsim.workload.readers.base import Reader, TraceBuilder, hashed_requests
from specsim.workload.trace import Trace

__all__ = ["Bailian"]


@final
class Bailian(Reader):
    """Qwen-Bailian JSON lines: ``timestamp`` in s, ``hash_ids`` of 16-token pieces of the prompt.

    ``input_length`` includes the earlier turns of the conversation. Source: Wang et al. (2025),
    "KVCache Cache in the Wild" (Qwen-Bailian usage traces).
    """

    kind: Literal["bailian"] = "bailian"

    def matches(self, file: TraceFile) -> bool:
        """Return whether JSON lines have hash ids and a conversation."""
        wanted = {"chat_id", "timestamp", "input_length", "output_length", "hash_ids"}
        return file.container == "jsonl" and wanted <= set(file.columns)

    def read(self, file: TraceFile) -> Trace:
        """Return the requests with their prefix ids, in order of arrival."""
        builder = TraceBuilder(file, self.kind)
        return hashed_requests(file, builder, piece_size=16, seconds_per_unit=1.0)
