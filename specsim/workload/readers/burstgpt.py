"""Requests to a university's ChatGPT service."""

from typing import Literal, final

from specsim.workload.files import TraceFile
from specsim.workload.readers.base import Reader, TraceBuilder
from specsim.workload.trace import Trace

__all__ = ["BurstGPT"]


@final
class BurstGPT(Reader):
    """BurstGPT CSV, with six columns or with eight (Session ID, Elapsed time), by header.

    Time stamps are seconds and do not start at 0; a row without response tokens is a failed
    request. Source: Wang et al. (2024), "BurstGPT".
    """

    kind: Literal["burstgpt"] = "burstgpt"

    def matches(self, file: TraceFile) -> bool:
        """Return whether a CSV has the three columns that both versions share."""
        wanted = {"Timestamp", "Request tokens", "Response tokens"}
        return file.container == "csv" and wanted <= set(file.columns)

    def read(self, file: TraceFile) -> Trace:
        """Return the requests that did not fail, in order of arrival."""
        builder = TraceBuilder(file, self.kind)
        for row in file.rows():
            builder.add(
                row.integer("Request tokens", minimum=0),
                row.integer("Response tokens", minimum=0),
                row.number("Timestamp"),
            )
        return builder.build()
