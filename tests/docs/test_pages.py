"""The pages are true: what they show runs, what they link to is there, what they name exists."""

import os
import re
import runpy
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from conftest import ROOT, Run
from pages import PAGES, Block, anchors, blocks, links, name, prose

from specsim.cli import app

LANGUAGES = {"sh", "python", "yaml", "json", "text"}
TO_RUN = {"sh", "python"}
SHELL = {"|", "||", "&&", ";", "<", ">"}
SHIPPED = ("experiments", "profiles", "tests", "traces")
TOP = [ROOT / each for each in ("ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md")]
LINKED = [
    *PAGES,
    *TOP,
    *sorted(ROOT.glob("experiments/*/README.md")),
    ROOT / "benchmarks/README.md",
]
LIMIT = 60.0  # seconds for one page

each_page = pytest.mark.parametrize("path", PAGES, ids=name)


def environment(folder: Path) -> dict[str, str]:
    """Return an environment in which ``specsim`` and ``python`` are those of this checkout."""
    for program, command in (("specsim", "-m specsim"), ("python", "")):
        shim = folder / program
        shim.write_text(f'#!/bin/sh\nexec "{sys.executable}" {command} "$@"\n')
        shim.chmod(0o755)
    paths = {"PATH": str(folder), "PYTHONPATH": str(ROOT)}
    joined = {
        key: os.pathsep.join([first, os.environ.get(key, "")]) for key, first in paths.items()
    }
    return {**os.environ, **joined, "MPLBACKEND": "Agg"}


@pytest.fixture
def no_modules_left(tmp_path: Path) -> Iterator[None]:
    """Forget the files of a page after it: those of the next may have the same names."""
    known = set(sys.modules)
    yield
    for name_ in set(sys.modules) - known:
        if str(tmp_path) in str(getattr(sys.modules[name_], "__file__", "")):
            del sys.modules[name_]
    sys.path[:] = [each for each in sys.path if str(tmp_path) not in each]


def test_there_is_much_to_look_at() -> None:
    """Of a page that has no block and no link, the tests below say nothing."""
    assert sum(block.language in TO_RUN for path in PAGES for block in blocks(path)) > 80
    assert sum(len(links(prose(path))) for path in LINKED) > 200


@pytest.mark.slow
@each_page
@pytest.mark.usefixtures("no_modules_left")
def test_blocks_run(path: Path, tmp_path: Path, tmp_path_factory: Any, cli: Run) -> None:
    for folder in SHIPPED:
        (tmp_path / folder).symlink_to(ROOT / folder)
    env = environment(tmp_path_factory.mktemp("programs"))

    def run(command: list[str]) -> tuple[int, str, str]:
        done = subprocess.run(
            command, env=env, capture_output=True, text=True, timeout=LIMIT, check=False
        )
        return done.returncode, done.stdout, done.stderr

    written: list[str] = []
    for block in blocks(path):
        if block.title is not None:
            (tmp_path / block.title).write_text(block.text)
        if block.is_output:
            missing = [line for line in plain_lines(block.text) if line not in written]
            assert not missing, f"{name(path)}:{block.line}: is not written: {missing[0]}"
        if block.language not in TO_RUN or block.reason is not None:
            continue
        if block.language == "python":
            run_here(block)
            continue
        if words := plain_commands(block):  # the same, without starting Python each time
            results = [cli(*each) for each in words]
        else:
            results = [run(["bash", "-euo", "pipefail", "-c", block.text])]
        written = [line for _, *texts in results for text in texts for line in plain_lines(text)]
        for code, _, errors in results:
            place = f"{name(path)}:{block.line}"
            assert code == 0, f"{place}: exit code {code}\n{errors[-2000:]}"
            assert "Traceback" not in errors, f"{place}\n{errors[-2000:]}"


def plain_lines(text: str) -> list[str]:
    """Return the lines of an output without the frames of tables, and single spaces for many."""
    return [" ".join(re.sub("[│┃]", " ", line).split()) for line in text.splitlines()]


def run_here(block: Block) -> None:
    """Run a block as the script that it is, but for the start of Python."""
    file = Path(block.title or "block.py")
    file.write_text(block.text)
    runpy.run_path(str(file), run_name="__main__")


def plain_commands(block: Block) -> list[list[str]]:
    """Return the arguments of each command if all of them are specsim's, and no shell is needed."""
    lines = [
        shlex.split(line, comments=True) for line in block.text.replace("\\\n", " ").splitlines()
    ]
    lines = [words for words in lines if words]
    is_plain = all(words[0] == "specsim" and not SHELL & set(words) for words in lines)
    return [words[1:] for words in lines] if is_plain else []


@each_page
def test_blocks_are_marked(path: Path) -> None:
    for block in blocks(path):
        place = f"{name(path)}:{block.line}"
        assert block.language in LANGUAGES, f"{place}: which language?"
        assert block.reason is None or len(block.reason) > 5, f"{place}: not run, for what reason?"
        assert block.reason is None or block.language in TO_RUN, f"{place}: would not be run anyway"
        assert not block.is_output or block.language == "text", f"{place}: is no output"
        if block.language == "yaml":
            list(yaml.safe_load_all(block.text))
    indented = re.search(r"(?m)^    (\$ )?(specsim|make|python|pip|vllm) .*$", prose(path))
    assert indented is None, f"{name(path)}: {indented and indented[0]}: belongs into a block"


@pytest.mark.parametrize("path", LINKED, ids=name)
def test_links_lead_somewhere(path: Path) -> None:
    text = prose(path)
    for link in links(text):
        target, _, anchor = link.partition("#")
        there = (path.parent / target).resolve() if target else path
        assert there.exists(), f"{name(path)} links to {link}"
        assert there.is_relative_to(ROOT), f"{name(path)} links to {link}"
        if anchor:
            assert anchor in anchors(prose(there)), f"{name(path)} links to {link}"


@pytest.mark.parametrize(
    "path", [ROOT / each for each in ("ARCHITECTURE.md", "CONTRIBUTING.md", "README.md")], ids=name
)
def test_paths_exist(path: Path) -> None:
    """Every path in backticks that begins in a folder of the repository is there."""
    folders = {each.name for each in ROOT.iterdir() if each.is_dir()}
    rooms = {each.name for each in (ROOT / "specsim").iterdir() if each.is_dir()}
    named = re.findall(r"`([\w.-]+(?:/[\w.-]+)+/?|[\w-]+/)`", path.read_text(encoding="utf-8"))
    assert named
    for each in named:
        first = each.split("/")[0]
        base = ROOT if first in folders else ROOT / "specsim"
        if first in folders | rooms and not each.startswith(("results/", "site/", ".venv")):
            assert (base / each).exists(), f"{name(path)} names {each}"


@pytest.mark.parametrize("path", [*PAGES, *TOP], ids=name)
def test_commands_and_options_exist(path: Path) -> None:
    """Also of what is not run: every ``specsim ...`` in code names what there is."""
    texts = re.findall(r"`(specsim [^`]+)`", prose(path))
    for block in blocks(path):
        if block.language == "sh":
            joined = block.text.replace("\\\n", " ")
            texts += re.findall(r"(?m)(?:^|\$\()(specsim [^|;)#\n]+)", joined)
    for text in texts:
        assert_known(text, f"{name(path)}: {text}")


COMMANDS: Any = typer.main.get_command(app)


def assert_known(text: str, place: str) -> None:
    command = COMMANDS
    words = shlex.split(text)[1:]
    while words and hasattr(command, "commands") and not words[0].startswith("-"):
        assert words[0] in command.commands, place
        command = command.commands[words.pop(0)]
    known = {option for parameter in command.params for option in parameter.opts} | {"--help"}
    for word in words:
        if word.startswith("--"):
            assert word.partition("=")[0] in known, place


def test_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 150
