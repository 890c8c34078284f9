"""What happens to pages of the site while it is built.

The READMEs that lie elsewhere in the repository become pages, and links that work in the repository
are made to work in the site.
"""

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
TOP = ("ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md")
FOLDERS = ("benchmarks", "experiments", "profiles", "traces")
ELSEWHERE = "https://unpkg.com/iframe-worker/shim"
PICTURES = (".png", ".svg")

_LINK = re.compile(r"(?P<bang>!?)\[(?P<text>(?:[^\[\]]|\[[^\]]*\])*)\]\((?P<target>[^()\s]+)\)")
_FENCE = re.compile(r"^\s*(```|~~~)")


def repository_pages() -> list[Path]:
    """Return the pages, and their pictures, that are not in docs/."""
    inside = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*"))]
    wanted = [path for path in inside if path.name == "README.md" or path.suffix in PICTURES]
    return [ROOT / name for name in TOP] + wanted


def on_files(files: Files, config: Any) -> Files:
    """Add the pages of the repository."""
    for path in repository_pages():
        name = path.relative_to(ROOT).as_posix()
        files.append(File.generated(config, name, abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Turn links."""
    source = page.file.src_uri
    is_inside = Path(page.file.abs_src_path).is_relative_to(Path(config.docs_dir))
    here = posixpath.dirname(f"docs/{source}" if is_inside else source)
    places = {f"docs/{file.src_uri}": file.src_uri for file in files}
    places |= {
        path.relative_to(ROOT).as_posix(): path.relative_to(ROOT).as_posix()
        for path in repository_pages()
    }

    def turned(match: re.Match[str]) -> str:
        target, hash_sign, anchor = match["target"].partition("#")
        if not target or "://" in target or target.startswith("mailto:"):
            return match[0]
        path = posixpath.normpath(posixpath.join(here, target))
        place = places.get(path) or places.get(f"{path}/README.md")
        if place is not None:
            relative = posixpath.relpath(place, posixpath.dirname(source) or ".")
            return f"{match['bang']}[{match['text']}]({relative}{hash_sign}{anchor})"
        if not (ROOT / path).exists():
            return match[0]  # for mkdocs to complain about
        if config.repo_url:
            return f"[{match['text']}]({config.repo_url.rstrip('/')}/blob/HEAD/{path})"
        return match["text"]

    return _outside_code(markdown, lambda line: _LINK.sub(turned, line))


def on_post_page(output: str, page: Any, config: Any) -> str:
    """Take what lets the search run from disk from here, not from another host."""
    up = "../" * page.file.dest_uri.count("/")
    return output.replace(ELSEWHERE, f"{up}offline-search.js")


def on_post_template(output: str, template_name: str, config: Any) -> str:
    """Do the same for the page that stands for those that do not exist."""
    return output.replace(ELSEWHERE, "/offline-search.js")


def _outside_code(markdown: str, change: Any) -> str:
    """Change a text, but not its blocks of code."""
    parts: list[list[str]] = [[]]
    is_code = False
    for line in markdown.splitlines(keepends=True):
        if _FENCE.match(line):
            if is_code:
                parts[-1].append(line)
            parts.append([] if is_code else [line])
            is_code = not is_code
        else:
            parts[-1].append(line)
    texts = ["".join(part) for part in parts]
    return "".join(text if _FENCE.match(text) else change(text) for text in texts)
