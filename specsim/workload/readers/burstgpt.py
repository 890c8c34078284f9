"""Requests to a university's ChatGPT service."""

from typing import Literal, final

from specsim.workload.files import Row
from specsim.workload.readers import Reader
from specsim.workload.trace import TraceBuilder


@final
class BurstGPT(Reader):
    """BurstGPT CSV, with six columns or with eight (Session ID, Elapsed time), by header.

    Time stamps are seconds and do not start at 0; a row without response tokens is a failed
    request. Source: Wang et al. (2024), "BurstGPT".
    """

    kind: Literal["burstgpt"] = "burstgpt"
    containers = ("csv",)
    columns = frozenset({"Timestamp", "Request tokens", "Response tokens"})

    def add(self, row: Row, builder: TraceBuilder) -> None:
        """Add a request, unless it failed."""
        lens = row.integer("Request tokens"), row.integer("Response tokens")
        builder.add(*lens, row.number("Timestamp"))
