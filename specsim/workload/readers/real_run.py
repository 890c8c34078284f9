"""Requests of a measured run."""

from typing import Literal, final

from specsim.workload.files import TraceFile
from specsim.workload.readers.base import Reader, TraceBuilder
from specsim.workload.trace import Trace

__all__ = ["RealRun"]


@final
class RealRun(Reader):
    """``requests.jsonl`` of a measured run: lengths, and ``queued_ts`` as the arrival, seconds.

    A request that ended with an error is left out, even if some tokens had come.
    """

    kind: Literal["real_run"] = "real_run"

    def matches(self, file: TraceFile) -> bool:
        """Return whether JSON lines have the engine's time stamps."""
        wanted = {"input_toks", "output_toks", "queued_ts"}
        return file.container == "jsonl" and wanted <= set(file.columns)

    def read(self, file: TraceFile) -> Trace:
        """Return the requests, in order of arrival."""
        builder = TraceBuilder(file, self.kind)
        for row in file.rows():
            failed = bool(row.values.get("error"))
            if builder.add(
                row.integer("input_toks", minimum=0),
                0 if failed else row.integer("output_toks", minimum=0),
                row.number("queued_ts"),
            ):
                builder.put("ids", str(row.values.get("request_id", "")))
        return builder.build()
