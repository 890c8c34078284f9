"""Requests to services in production, as their operators published them."""

import re
from datetime import datetime
from typing import Literal, final

import numpy as np

from specsim.core.errors import TraceError
from specsim.core.request import PrefixIds
from specsim.workload.files import Row, TraceFile
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
        if builder.add(*lens, row.number("Timestamp")) and "Session ID" in row.values:
            # A row without one is a session of its own.
            builder.put("sessions", row.values["Session ID"] or row.place)


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
) -> bool:
    """Add a request of the formats that Mooncake began: lengths, and hash ids of prompt pieces.

    Returns whether it was kept.

    Args:
        piece_size: Prompt tokens per hash id.
        seconds_per_unit: Of the column ``timestamp``.
    """
    prompt_len = row.integer("input_length")
    hash_ids = row.hash_ids("hash_ids")
    if len(hash_ids) < prompt_len // piece_size:
        raise TraceError(
            f"{row.place}: hash_ids must list an id for each {piece_size} of the {prompt_len} "
            "prompt tokens"
        )
    output_len = row.integer("output_length")
    is_kept = builder.add(prompt_len, output_len, row.number("timestamp") * seconds_per_unit)
    if is_kept:
        builder.put("prefix_ids", PrefixIds(hash_ids, piece_size))
    return is_kept


@final
class Bailian(Reader):
    """Qwen-Bailian JSON lines: ``timestamp`` in s, ``hash_ids`` of 16-token pieces of the prompt.

    ``input_length`` includes the earlier turns of the conversation; a session is a chat without
    ``parent_chat_id`` and all that follow from it. Source: Wang et al. (2025),
    "KVCache Cache in the Wild" (Qwen-Bailian usage traces).
    """

    kind: Literal["bailian"] = "bailian"
    containers = ("jsonl",)
    columns = frozenset({"chat_id", "timestamp", "input_length", "output_length", "hash_ids"})

    def add(self, row: Row, builder: TraceBuilder) -> None:
        """Add a request with its prefix ids."""
        if add_hashed(row, builder, piece_size=16, seconds_per_unit=1.0):
            row.get("chat_id")  # it must be there
            builder.put_turn(row.label("chat_id"), row.label("parent_chat_id"))
