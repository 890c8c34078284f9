"""Workloads of the simulator LLMServingSim."""

from typing import Literal, final

from specsim.workload.files import TraceFile
from specsim.workload.readers.base import Reader, TraceBuilder, token_ids
from specsim.workload.trace import Trace

__all__ = ["LLMServingSim"]


@final
class LLMServingSim(Reader):
    """LLMServingSim JSON lines: lengths, ``arrival_time_ns`` and, optionally, token ids."""

    kind: Literal["llmservingsim"] = "llmservingsim"

    def matches(self, file: TraceFile) -> bool:
        """Return whether JSON lines have arrivals in nanoseconds."""
        wanted = {"input_toks", "output_toks", "arrival_time_ns"}
        return file.container == "jsonl" and wanted <= set(file.columns)

    def read(self, file: TraceFile) -> Trace:
        """Return the requests, in order of arrival."""
        builder = TraceBuilder(file, self.kind)
        for row in file.rows():
            if not builder.add(
                row.integer("input_toks", minimum=0),
                row.integer("output_toks", minimum=0),
                row.number("arrival_time_ns") * 1e-9,
            ):
                continue
            if "input_tok_ids" in row.values:
                builder.put("prompt_token_ids", token_ids(row, "input_tok_ids"))
            if "output_tok_ids" in row.values:
                builder.put("output_token_ids", token_ids(row, "output_tok_ids"))
        return builder.build()
