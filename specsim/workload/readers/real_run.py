"""Requests of a measured run."""

from typing import Literal, final

from specsim.workload.files import Row
from specsim.workload.readers import Reader
from specsim.workload.trace import TraceBuilder


@final
class RealRun(Reader):
    """``requests.jsonl`` of a measured run: lengths, and ``queued_ts`` as the arrival, seconds.

    A request that ended with an error is left out, even if some tokens had come.
    """

    kind: Literal["real_run"] = "real_run"
    containers = ("jsonl",)
    columns = frozenset({"input_toks", "output_toks", "queued_ts"})

    def add(self, row: Row, builder: TraceBuilder) -> None:
        """Add a request, unless it failed."""
        prompt_len = row.integer("input_toks")
        output_len = 0 if row.values.get("error") else row.integer("output_toks")
        if builder.add(prompt_len, output_len, row.number("queued_ts")):
            builder.put("ids", str(row.values.get("request_id", "")))
