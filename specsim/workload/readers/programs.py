"""Workloads of other simulators, of benchmark clients and of measured runs."""

from typing import Any, Literal, final

from specsim.core.errors import TraceError
from specsim.workload.files import Row, TraceFile
from specsim.workload.readers import Reader
from specsim.workload.trace import Trace, TraceBuilder


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
