"""Results of vLLM's own benchmark client, or of specsim."""

from typing import Any, Literal, final

from specsim.core.errors import TraceError
from specsim.workload.files import Row, TraceFile
from specsim.workload.readers import Reader
from specsim.workload.trace import Trace, TraceBuilder


@final
class VllmBench(Reader):
    """JSON that ``vllm bench serve --save-result --save-detailed`` wrote, as a workload.

    Lengths are those that were measured; arrivals are ``start_times`` where the file has them.
    ``summary.json`` of a simulation is such a file, too.
    """

    kind: Literal["vllm_bench"] = "vllm_bench"
    containers = ("json", "jsonl")
    columns = frozenset({"input_lens", "output_lens"})

    def read(self, file: TraceFile) -> Trace:
        """Return the requests that did not fail."""
        document: dict[str, Any] = file.document
        names = ["input_lens", "output_lens"]
        if document.get("start_times"):
            names.append("start_times")
        columns = [document[name] for name in names]
        if any(not isinstance(c, list) or len(c) != len(columns[0]) for c in columns):
            raise TraceError(
                f"{file.path}: input_lens, output_lens and start_times must be lists of one length"
            )
        builder = TraceBuilder(file.path, self.kind)
        for number, values in enumerate(zip(*columns, strict=True)):
            row = Row(f"{file.path}, request {number}", dict(zip(names, values, strict=True)))
            builder.add(
                row.integer("input_lens"),
                row.integer("output_lens"),
                row.number("start_times") if len(names) == 3 else None,
            )
        return builder.build()
