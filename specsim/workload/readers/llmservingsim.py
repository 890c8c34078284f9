"""Workloads of the simulator LLMServingSim."""

from typing import Literal, final

from specsim.workload.files import Row
from specsim.workload.readers import Reader
from specsim.workload.trace import TraceBuilder


@final
class LLMServingSim(Reader):
    """LLMServingSim JSON lines: lengths, ``arrival_time_ns`` and, optionally, token ids."""

    kind: Literal["llmservingsim"] = "llmservingsim"
    containers = ("jsonl",)
    columns = frozenset({"input_toks", "output_toks", "arrival_time_ns"})

    def add(self, row: Row, builder: TraceBuilder) -> None:
        """Add a request."""
        lens = row.integer("input_toks"), row.integer("output_toks")
        if not builder.add(*lens, row.number("arrival_time_ns") * 1e-9):
            return
        for field, column in (("input", "prompt"), ("output", "output")):
            if f"{field}_tok_ids" in row.values:
                builder.put(f"{column}_token_ids", row.token_ids(f"{field}_tok_ids"))
