"""Production requests that Azure published."""

import re
from datetime import datetime
from typing import Literal, final

import numpy as np

from specsim.core.errors import TraceError
from specsim.workload.files import Row
from specsim.workload.readers import Reader
from specsim.workload.trace import TraceBuilder

_ZONE = re.compile(r"(Z|[+-]\d\d:?\d\d)$")
_EPOCH = np.datetime64("2023-01-01T00:00:00", "ns")


@final
class Azure(Reader):
    """Azure LLM inference traces of 2023 and 2024: ``TIMESTAMP,ContextTokens,GeneratedTokens``.

    Time stamps have up to seven fraction digits, in 2024 a zone as well. Source: Azure Public
    Dataset (Patel et al. 2024, "Splitwise"; Stojkovic et al. 2024, "DynamoLLM").
    """

    kind: Literal["azure"] = "azure"
    containers = ("csv",)
    columns = frozenset({"TIMESTAMP", "ContextTokens", "GeneratedTokens"})

    def add(self, row: Row, builder: TraceBuilder) -> None:
        """Add a request."""
        builder.add(row.integer("ContextTokens"), row.integer("GeneratedTokens"), _seconds(row))


def _seconds(row: Row) -> float:
    text = str(row.get("TIMESTAMP")).strip()
    zone = _ZONE.search(text)
    try:
        # datetime64 keeps all seven digits, datetime would not; it does not know zones.
        clock = np.datetime64(text[: zone.start()] if zone else text, "ns")
        offset = datetime.fromisoformat(
            f"2000-01-01T00:00:00{zone[0] if zone else 'Z'}"
        ).utcoffset()
    except ValueError:
        raise TraceError(
            f"{row.place}: TIMESTAMP = {text!r} is not a time such as 2023-11-16 18:17:03.9799600"
        ) from None
    shift = offset.total_seconds() if offset else 0.0
    return float((clock - _EPOCH) / np.timedelta64(1, "ns")) * 1e-9 - shift
