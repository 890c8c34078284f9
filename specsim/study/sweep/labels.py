"""Labels: the values of an axis in a few characters, for tables and plots."""

import json
from pathlib import PurePath
from typing import Any

__all__ = ["labels"]


def labels(values: list[Any]) -> list[str]:
    """Return a short name for each value, different for each.

    Args:
        values: All different.

    Returns:
        Numbers in their shortest form, members of a family as ``static:k=3``, files without folder
        and suffix; in full where two values would have the same name.
    """
    short = [_short(value) for value in values]
    full = [str(value) for value in values]
    return [s if short.count(s) == 1 else f for s, f in zip(short, full, strict=True)]


def _short(value: Any) -> str:
    if isinstance(value, dict):
        kind = value.get("kind", value.get("method"))
        fields = [f"{k}={_short(v)}" for k, v in value.items() if k not in ("kind", "method")]
        return f"{kind}:{','.join(fields)}" if kind and fields else str(kind or ",".join(fields))
    if isinstance(value, float):
        return f"{value:g}"
    text = json.dumps(value) if isinstance(value, bool | list | None) else str(value)
    return PurePath(text).stem if text.endswith((".yaml", ".yml", ".json")) else text
