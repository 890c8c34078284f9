"""Token ids of prompts and answers, with recorded acceptance."""

from typing import Literal, final

import numpy as np

from specsim.core.errors import TraceError
from specsim.core.request import UNRECORDED
from specsim.workload.files import Row
from specsim.workload.readers import Reader
from specsim.workload.trace import TraceBuilder

_NO_PROMPT = np.array([UNRECORDED], dtype=np.int64)


@final
class TokenTrace(Reader):
    """JSON lines with ``prompt_token_ids``, ``generated_token_ids`` and ``acc_<proposer>``.

    ``acc_<proposer>.acc_len[i]`` counts the tokens gained if a draft is made when i output tokens
    are known, the bonus token included; it is kept without it. There are no arrivals. A prompt that
    was not recorded counts as one token. Source: SpecDecode-Bench (arXiv 2601.11580).
    """

    kind: Literal["token_trace"] = "token_trace"
    containers = ("jsonl",)
    columns = frozenset({"prompt_token_ids", "generated_token_ids"})

    def add(self, row: Row, builder: TraceBuilder) -> None:
        """Add a request."""
        prompt = row.token_ids("prompt_token_ids")
        output = row.token_ids("generated_token_ids")
        if not len(prompt):
            prompt = _NO_PROMPT
            builder.note = "prompts that were not recorded are one token long"
        if not builder.add(len(prompt), len(output)):
            return
        builder.put("ids", str(row.values.get("id", "")))
        builder.put("prompt_token_ids", prompt)
        builder.put("output_token_ids", output)
        for field in row.values:
            if field.startswith("acc_"):
                builder.put_record(field.removeprefix("acc_"), _record(row, field))


def _record(row: Row, field: str) -> bytes:
    value = row.get(field)
    lens = value.get("acc_len") if isinstance(value, dict) else None
    if not isinstance(lens, list) or any(type(n) is not int or not 1 <= n <= 256 for n in lens):
        raise TraceError(
            f"{row.place}: {field}.acc_len is not a list of whole numbers from 1 (the bonus token "
            "alone) to 256"
        )
    return bytes(n - 1 for n in lens)
