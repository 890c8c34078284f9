"""Workloads of the simulator Vidur."""

from typing import Literal, final

from specsim.workload.files import Row
from specsim.workload.readers import Reader
from specsim.workload.trace import TraceBuilder


@final
class Vidur(Reader):
    """Vidur CSV: ``arrived_at,num_prefill_tokens,num_decode_tokens``, seconds and tokens."""

    kind: Literal["vidur"] = "vidur"
    containers = ("csv",)
    columns = frozenset({"arrived_at", "num_prefill_tokens", "num_decode_tokens"})

    def add(self, row: Row, builder: TraceBuilder) -> None:
        """Add a request."""
        lens = row.integer("num_prefill_tokens"), row.integer("num_decode_tokens")
        builder.add(*lens, row.number("arrived_at"))
