"""Requests to Kimi, with the identity of their prefixes."""

from typing import Literal, final

from specsim.core.errors import TraceError
from specsim.core.request import PrefixIds
from specsim.workload.files import Row, TraceFile
from specsim.workload.readers import Reader
from specsim.workload.trace import TraceBuilder


@final
class Mooncake(Reader):
    """Mooncake JSON lines: ``timestamp`` in ms, ``hash_ids`` of 512-token pieces of the prompt.

    Source: Qin et al. (2025), "Mooncake", FAST '25 artifact.
    """

    kind: Literal["mooncake"] = "mooncake"
    containers = ("jsonl",)
    columns = frozenset({"timestamp", "input_length", "output_length", "hash_ids"})

    def matches(self, file: TraceFile) -> bool:
        """Return whether there are hash ids but no conversation, which `bailian` has."""
        return super().matches(file) and "chat_id" not in file.columns

    def add(self, row: Row, builder: TraceBuilder) -> None:
        """Add a request with its prefix ids."""
        add_hashed(row, builder, piece_size=512, seconds_per_unit=1e-3)


def add_hashed(
    row: Row, builder: TraceBuilder, *, piece_size: int, seconds_per_unit: float
) -> None:
    """Add a request of the formats that Mooncake began: lengths, and hash ids of prompt pieces.

    Args:
        piece_size: Prompt tokens per hash id.
        seconds_per_unit: Of the column ``timestamp``.
    """
    prompt_len = row.integer("input_length")
    hash_ids = row.get("hash_ids")
    if not isinstance(hash_ids, list) or len(hash_ids) < prompt_len // piece_size:
        raise TraceError(
            f"{row.place}: hash_ids must list an id for each {piece_size} of the {prompt_len} "
            "prompt tokens"
        )
    output_len = row.integer("output_length")
    if builder.add(prompt_len, output_len, row.number("timestamp") * seconds_per_unit):
        builder.put("prefix_ids", PrefixIds(tuple(hash_ids), piece_size))
