"""Workloads of the simulator Vidur."""

from typing import Literal, final

from specsim.workload.files import TraceFile
from specsim.workload.readers.base import Reader, TraceBuilder
from specsim.workload.trace import Trace

__all__ = ["Vidur"]


@final
class Vidur(Reader):
    """Vidur CSV: ``arrived_at,num_prefill_tokens,num_decode_tokens``, seconds and tokens."""

    kind: Literal["vidur"] = "vidur"

    def matches(self, file: TraceFile) -> bool:
        """Return whether a CSV has the three columns."""
        wanted = {"arrived_at", "num_prefill_tokens", "num_decode_tokens"}
        return file.container == "csv" and wanted <= set(file.columns)

    def read(self, file: TraceFile) -> Trace:
        """Return the requests, in order of arrival."""
        builder = TraceBuilder(file, self.kind)
        for row in file.rows():
            builder.add(
                row.integer("num_prefill_tokens", minimum=0),
                row.integer("num_decode_tokens", minimum=0),
                row.number("arrived_at"),
            )
        return builder.build()
