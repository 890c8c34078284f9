"""Show: results as tables, pictures, pages, and files of other tools."""

from pathlib import Path


def filled(page: str, parts: dict[str, str]) -> str:
    """Return a page with its placeholders filled; placeholders inside parts stay as text."""
    first, *rest = page.split("{{")
    pieces = (piece.partition("}}") for piece in rest)
    return first + "".join(parts[name] + literal for name, _, literal in pieces)


def read_web(name: str) -> str:
    """Return a file of ``report/web/``, for the report or for both pages."""
    return (Path(__file__).parent / "report" / "web" / name).read_text(encoding="utf-8")
