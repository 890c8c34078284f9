"""What differs between a table that is committed and the same table made today."""

import csv
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

_NUMBER = re.compile(r"-?\d+(\.\d+)?(e-?\d+)?|True|False|")
_NOTHING = "nothing"


class Rule(NamedTuple):
    """Which columns may differ."""

    ignores: frozenset[str]
    tolerance: dict[str, float]
    """Relative, by column, or of all ("*")."""

    def allows(self, column: str, kept: str, found: str) -> bool:
        """Return whether a cell may have become another."""
        if kept == found or column in self.ignores:
            return True
        share = self.tolerance.get(column, self.tolerance.get("*", 0.0))
        try:
            return abs(float(found) - float(kept)) <= share * abs(float(kept))
        except ValueError:
            return False


class Cell(NamedTuple):
    """One value of a table, and where it stands."""

    place: str
    column: str
    text: str


def differences(kept: Path, found: Path, rule: Rule) -> list[str]:
    """Return a text per cell that differs: file, row, column, committed -> today."""
    if not kept.exists():
        return [f"{kept.name} is new"]
    before, today = cells(kept), cells(found)
    texts = []
    for key in dict.fromkeys([*before, *today]):
        old, new = before.get(key), today.get(key)
        named = old or new
        assert named is not None
        texts_of = [each.text if each else _NOTHING for each in (old, new)]
        if not rule.allows(named.column, *texts_of):
            old_text, new_text = texts_of
            texts.append(f"{kept.name} {named.place}, {named.column}: {old_text} -> {new_text}")
    is_exact = not rule.ignores and not rule.tolerance
    if not texts and is_exact and kept.read_bytes() != found.read_bytes():
        texts.append(f"{kept.name}: the same cells in other bytes")
    return texts


def other_columns(kept: Path, found: Path) -> list[str]:
    """Return a text if a table of made-up data has other columns than the committed one."""
    if kept.suffix != ".csv":
        return []
    before, today = ({cell.column for cell in cells(path).values()} for path in (kept, found))
    names = ", ".join(sorted(before ^ today))
    return [f"{kept.name}: in one of them only: {names}"] if names else []


def cells(path: Path) -> dict[tuple[Any, ...], Cell]:
    """Return every value of a CSV or JSON file."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".json":
        return {place: _named(place, value) for place, value in _leaves(json.loads(text), ())}
    header, *rows = csv.reader(text.splitlines())
    return {
        (number, column): Cell(f"row {number} ({_label(row)})", column, value)
        for number, row in enumerate(rows, 1)
        for column, value in zip(header, row, strict=True)
    }


def _label(row: list[str]) -> str:
    """Return what a row is of: its first cells up to the last name, and integers behind that."""
    names = [n for n, cell in enumerate(row[:6]) if not _NUMBER.fullmatch(cell)]
    end = names[-1] + 1 if names else min(4, len(row))
    while names and end < len(row) and row[end].isdigit():
        end += 1
    return ", ".join(filter(None, row[:end]))


def _named(place: tuple[Any, ...], value: object) -> Cell:
    *before, column = place or ("",)
    return Cell(".".join(map(str, before)) or "top", str(column), json.dumps(value))


def _leaves(value: Any, place: tuple[Any, ...]) -> Iterator[tuple[tuple[Any, ...], Any]]:
    if isinstance(value, dict | list) and value:
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for key, each in items:
            yield from _leaves(each, (*place, key))
    else:
        yield place, value
