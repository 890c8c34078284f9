"""Pages in Markdown, taken apart: their blocks of code, their links, their headings."""

import re
import sys
import unicodedata
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

from conftest import ROOT

sys.path.insert(0, str(ROOT / "docs"))  # what makes the reference lies there

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
NOT_RUN = re.compile(r"<!-- not run: (?P<reason>.*?) ?-->")
OUTPUT = "<!-- output -->"

_FENCE = re.compile(r"^(?P<fence>```+)(?P<language>[\w-]*)(?: title=\"(?P<title>[^\"]+)\")?\s*$")
_LINK = re.compile(r"!?\[(?:[^\[\]]|\[[^\]]*\])*\]\(([^()\s]+)\)")
_HEADING = re.compile(r"^#+ (?:<a id=\"(?P<anchor>[\w.-]+)\"></a>)?(?P<text>.*)$", re.MULTILINE)


class Block(NamedTuple):
    """A block of code."""

    line: int
    """Where it begins, from 1."""
    language: str
    title: str | None
    """Name of the file that it is."""
    text: str
    reason: str | None
    """Why it is not run."""
    is_output: bool
    """Whether the commands of the block before write these lines, among others."""


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def blocks(path: Path) -> Iterator[Block]:
    lines = path.read_text(encoding="utf-8").splitlines()
    number = 0
    while number < len(lines):
        opened = _FENCE.match(lines[number])
        if opened is None:
            assert not lines[number].startswith("```"), f"{name(path)}:{number + 1}: what is this?"
            number += 1
            continue
        start = number + 1
        end = next(n for n in range(start, len(lines)) if lines[n] == opened["fence"])
        line_above = lines[start - 2].strip() if start > 1 else ""
        above = NOT_RUN.fullmatch(line_above)
        text = "\n".join(lines[start:end]) + "\n"
        reason = above["reason"] if above else None
        is_output = line_above == OUTPUT
        yield Block(start, opened["language"], opened["title"], text, reason, is_output)
        number = end + 1


@cache
def prose(path: Path) -> str:
    """Return a page without its blocks of code."""
    kept, is_code = [], False
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.startswith("```"):
            is_code = not is_code
        elif not is_code:
            kept.append(line)
    return "\n".join(kept)


def links(text: str) -> list[str]:
    """Return where a page links to inside the repository."""
    return [target for target in _LINK.findall(text) if "://" not in target]


def anchors(text: str) -> set[str]:
    """Return what a page can be linked to at, as Python-Markdown and GitHub name it."""
    found: set[str] = set()
    for heading in _HEADING.finditer(text):
        words = unicodedata.normalize("NFKD", heading["text"]).encode("ascii", "ignore").decode()
        words = re.sub(r"[^\w\s-]", "", words).strip().lower()
        found.add(heading["anchor"] or re.sub(r"[-\s]+", "-", words))
    return found
