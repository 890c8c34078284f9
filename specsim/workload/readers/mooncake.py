"""Requests to Kimi, with the identity of their prefixes."""

from typing import Literal, final

from specsim.workload.files import TraceFile
from specsim.workload.readers.base import Reader, TraceBuilder, hashed_requests
from specsim.workload.trace import Trace

__all__ = ["Mooncake"]


@final
class Mooncake(Reader):
    """Mooncake JSON lines: ``timestamp`` in ms, ``hash_ids`` of 512-token pieces of the prompt.

    Source: Qin et al. (2025), "Mooncake", FAST '25 artifact.
    """

    kind: Literal["mooncake"] = "mooncake"

    def matches(self, file: TraceFile) -> bool:
        """Return whether JSON lines have hash ids but no conversation."""
        columns = set(file.columns)
        wanted = {"timestamp", "input_length", "output_length", "hash_ids"}
        return file.container == "jsonl" and wanted <= columns and "chat_id" not in columns

    def read(self, file: TraceFile) -> Trace:
        """Return the requests with their prefix ids, in order of arrival."""
        builder = TraceBuilder(file, self.kind)
        return hashed_requests(file, builder, piece_size=512, seconds_per_unit=1e-3)
