"""Workloads of the simulator Vidur."""

from typing import Literal, final

from specsim.workload.files import TraceFile
from specsim.workload.readers import Reader
from specsim.workload.trace import Trace, TraceBuilder

__all__ = ["Vidur"]


@final
class Vidur(Reader):
    """Vidur CSV: ``arrived_at,num_prefill_tokens,num_decode_tokens``, seconds and tokens."""

    kind: Literal["vidur"] = "vidur"
    containers = ("csv",)
    columns = frozenset({"arrived_at", "num_prefill_tokens", "num_decode_tokens"})

    def read(self, file: TraceFile) -> Trace:
        """Return the requests."""
        builder = TraceBuilder(file.path, self.kind)
        for row in file.rows():
            lens = row.integer("num_prefill_tokens"), row.integer("num_decode_tokens")
            builder.add(*lens, row.number("arrived_at"))
        return builder.build()
