"""Tables of the experiments' READMEs and of docs/, made from the results that are kept.

    python experiments/readme.py      # writes them anew; run.py --update does so, too

A line `<!-- table: NAME -->` stands above each such table. tables.py in the same folder makes it:
the function of that name, with "_" for spaces, returns header and rows. On pages of docs/ and
the README of all the name is EXPERIMENT/NAME.
"""

import csv
import importlib.util
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

HERE = Path(__file__).parent
_TABLE = re.compile(r"(<!-- table: (.+) -->\n)(?:\|.*\n)*")

Row = dict[str, str]
Rows = list[Row]


def read(file: str, **where: object) -> Rows:
    """Return the rows of a table, below this folder, that have these values."""
    with (HERE / file).open(newline="", encoding="utf-8") as stream:
        found = list(csv.DictReader(stream))
    return [row for row in found if all(row[name] == str(value) for name, value in where.items())]


def one(rows: Rows, **where: object) -> Row:
    """Return the only row that has these values."""
    wanted = {name: str(value) for name, value in where.items()}
    [found] = [row for row in rows if wanted.items() <= row.items()]
    return found


def numbers(row: Row) -> dict[str, Any]:
    """Return the cells of a row, numbers as numbers, to be formatted."""
    return {name: _number(text) for name, text in row.items()}


def _number(text: str) -> Any:
    try:
        return float(text)
    except ValueError:
        return text


def short(value: float | str) -> str:
    """Return three significant digits."""
    found = float(value)
    return f"{found:,.0f}" if abs(found) >= 100 else f"{found:#.3g}"


def script(name: str) -> ModuleType:
    """Return a module of an experiment, which may import those beside it: ``load-ramp/run``."""
    path = HERE / f"{name}.py"
    spec = importlib.util.spec_from_file_location(re.sub(r"\W", "_", name), path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # as dataclasses look themselves up
    sys.path.insert(0, str(path.parent))
    try:
        spec.loader.exec_module(module)
    finally:  # by its name: the module may have put others before it
        sys.path.remove(str(path.parent))
    return module


def grid(lines: Iterable[Iterable[str]]) -> str:
    """Return a Markdown table; the first line is its header."""
    rows = [[f" {cell} " if cell else " " for cell in line] for line in lines]
    rows.insert(1, ["---"] * len(rows[0]))
    return "".join(f"|{'|'.join(row)}|\n" for row in rows)


def pages() -> list[Path]:
    """Return all pages that may have such tables."""
    top = HERE.parent
    found = [top / "README.md", *HERE.rglob("README.md"), *(top / "docs").rglob("*.md")]
    return sorted(path for path in found if "<!-- table: " in path.read_text(encoding="utf-8"))


def filled(path: Path) -> str:
    """Return a page with its tables anew."""

    def table(match: re.Match[str]) -> str:
        folder, _, name = match[2].rpartition("/")
        make = getattr(script(f"{folder or path.parent.name}/tables"), name.replace(" ", "_"))
        return match[1] + grid(make())

    return _TABLE.sub(table, path.read_text(encoding="utf-8"))


def main() -> None:
    for path in pages():
        path.write_text(filled(path), encoding="utf-8")


if __name__ == "__main__":
    main()
