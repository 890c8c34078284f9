"""Results of vLLM's own benchmark client, or of specsim."""

from typing import Any, Literal, final

from specsim.core.errors import TraceError
from specsim.workload.files import Row, TraceFile
from specsim.workload.readers.base import Reader, TraceBuilder
from specsim.workload.trace import Trace

__all__ = ["VllmBench"]


@final
class VllmBench(Reader):
    """JSON that ``vllm bench serve --save-result --save-detailed`` wrote, as a workload.

    Lengths are those that were measured; arrivals are ``start_times`` where the file has them.
    ``summary.json`` of a simulation is such a file, too.
    """

    kind: Literal["vllm_bench"] = "vllm_bench"

    def matches(self, file: TraceFile) -> bool:
        """Return whether a JSON object has detailed lengths."""
        return file.container in ("json", "jsonl") and {"input_lens", "output_lens"} <= set(
            file.columns
        )

    def read(self, file: TraceFile) -> Trace:
        """Return the requests that did not fail, in order of arrival."""
        document: dict[str, Any] = file.document
        columns = [document["input_lens"], document["output_lens"]]
        if document.get("start_times"):
            columns.append(document["start_times"])
        if any(not isinstance(c, list) or len(c) != len(columns[0]) for c in columns):
            raise TraceError(
                f"{file.path}: input_lens, output_lens and start_times must be lists of one length"
            )
        builder = TraceBuilder(file, self.kind)
        for number, values in enumerate(zip(*columns, strict=True)):
            names = ("input_lens", "output_lens", "start_times")
            row = Row(f"{file.path}, request {number}", dict(zip(names, values, strict=False)))
            builder.add(
                row.integer("input_lens", minimum=0),
                row.integer("output_lens", minimum=0),
                row.number("start_times") if len(columns) == 3 else None,
            )
        return builder.build()
