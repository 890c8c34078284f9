"""What stands in the way of results is replaced only if specsim wrote it."""

import errno
import gzip
import json
import re
import subprocess
import sys
import tracemalloc
from pathlib import Path
from xml.etree import ElementTree as Xml

import pytest
import yaml
from conftest import Run, tiny_config

from specsim.core.atomic import is_marked, new_file, new_folder
from specsim.core.errors import ConfigError
from specsim.core.version import __version__

COMPARE = ("compare", "e.yaml", "--policies", "static:k=1", "--replications", 1, "--workers", 1)


@pytest.fixture
def here(cli: Run, tmp_path: Path) -> Path:
    """Make an experiment in the working directory, and return that."""
    (tmp_path / "e.yaml").write_text(yaml.safe_dump(tiny_config()))
    return tmp_path


def content(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.mark.parametrize(
    "foreign",
    [
        "off/notes.txt",  # a folder of the user's
        "off/summary.json",  # not ours, whatever its name
        "off/deep/notes.txt",
        "static-k=1/config.yaml",
        "plot.png",
        "comparison.json",
    ],
)
def test_compare_deletes_nothing_that_specsim_did_not_write(
    foreign: str, cli: Run, here: Path
) -> None:
    path = here / foreign
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("{}")
    before = content(here)
    code, out, err = cli(*COMPARE, "--out", ".")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "was not written by specsim" in err
    assert "would be lost; move it or name another" in err
    assert content(here) == before


@pytest.mark.parametrize(
    ("command", "name"),
    [
        (("run", "e.yaml"), "config.yaml"),
        (("run", "e.yaml", "--no-steps"), "steps.parquet"),
        (("tune", "e.yaml", "--workers", 1), "tune.json"),
        (("capacity", "e.yaml", "--slo", "ttft:9", "--workers", 1), "capacity.parquet"),
    ],
)
def test_nor_do_the_others(command: tuple[object, ...], name: str, cli: Run, here: Path) -> None:
    (here / name).write_text("mine: 1")
    before = content(here)
    code, _, err = cli(*command, "--out", here)
    assert (code, err.count("\n")) == (2, 1)
    assert f"{name}: was not written by specsim" in err
    assert content(here) == before


def test_a_file_that_comes_in_between_is_kept_too(cli: Run, here: Path) -> None:
    assert cli(*COMPARE, "--out", "r")[0] == 0
    (here / "r" / "off" / "notes.txt").write_text("mine")
    before = content(here / "r")
    code, _, err = cli(*COMPARE, "--out", "r")
    assert (code, "notes.txt: was not written by specsim" in err) == (2, True)
    assert content(here / "r") == before


def test_what_specsim_wrote_is_replaced_and_other_names_stay(cli: Run, here: Path) -> None:
    assert cli(*COMPARE, "--out", "r")[0] == 0
    assert cli("timeline", "r/off")[0] == 0
    (here / "r" / "notes.txt").write_text("mine")
    first = content(here / "r" / "static-k=1")
    assert cli(*COMPARE, "--out", "r", "--seed", 7)[0] == 0
    assert content(here / "r" / "static-k=1") != first
    assert not (here / "r" / "off" / "timeline.png").exists()
    assert (here / "r" / "notes.txt").read_text() == "mine"
    assert cli("run", "e.yaml", "--out", "r/off")[0] == 0


def test_no_output_takes_the_place_of_an_input_or_of_a_users_file(cli: Run, here: Path) -> None:
    before = (here / "e.yaml").read_bytes()
    (here / "config.yaml").write_bytes(before)
    assert cli("run", "config.yaml", "--out", "r")[0] == 0
    (here / "summary.json").write_bytes((here / "r" / "summary.json").read_bytes())
    assert cli("run", "config.yaml", "--out", ".")[0] == 2
    assert (here / "config.yaml").read_bytes() == before
    roofline = ("profile", "roofline", "--model", "llama-3.1-8b", "--gpu", "h100", "--out")
    code, _, err = cli(*roofline, "e.yaml")
    assert code == 2
    assert "was not written by specsim" in err
    assert (here / "e.yaml").read_bytes() == before
    assert cli(*roofline, "p.yaml")[0] == 0
    assert cli(*roofline, "p.yaml")[0] == 0  # its own
    (here / "p.yaml").write_text("changed: by hand\n")
    assert cli(*roofline, "p.yaml")[0] == 2
    assert cli(*roofline, "p.yaml", "--force")[0] == 0


@pytest.mark.parametrize("out", ["notes", "notes/below", "notes/far/below"])
def test_a_file_in_the_place_of_a_folder_is_told_with_a_remedy(
    out: str, cli: Run, here: Path
) -> None:
    (here / "notes").write_text("mine")
    for command in (
        ("run", "e.yaml", "--out", out),
        (*COMPARE, "--out", out),
        ("gate", "--update", f"{out}/b.json", "e.yaml"),
    ):
        code, _, err = cli(*command)
        assert code == 2
        assert re.search(r"notes:? is a file; name (a|another) folder\n$", err)
    assert content(here) == {"notes": b"mine", "e.yaml": (here / "e.yaml").read_bytes()}


def test_a_trace_is_not_converted_into_itself(cli: Run, here: Path) -> None:
    trace = here / "a.jsonl"
    trace.write_text('{"prompt_len": 3, "output_len": 2}\n')
    for extra in ((), ("--force",)):
        code, _, err = cli("trace", "convert", "a.jsonl", "a.jsonl", *extra)
        assert code == 2
        assert "is an input of this very command" in err
    assert trace.read_text() == '{"prompt_len": 3, "output_len": 2}\n'


def test_a_folder_may_be_named_like_a_policy(cli: Run, here: Path) -> None:
    assert cli("run", "e.yaml", "--out", "static:k=3")[0] == 0
    assert cli("breakdown", "static:k=3")[0] == 0


WORDS = '"specsim_version": "0.1.0"'


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.json", f'{{"notes": [{{{WORDS}}}]}}'),
        ("a.json", f"[{{{WORDS}}}]"),
        ("a.json", json.dumps({"text": f"{{{WORDS}}}"})),
        ("a.json", f'{{"x": 1, {WORDS}'),
        ("a.json", '{"specsim_version": 1}'),
        ("a.yaml", "x: '# specsim_version: 0.1.0'\n"),
        ("a.yaml", "a: 1\nb: 2\n# specsim_version: 0.1.0\n"),
        ("a.html", "<p>specsim_version: 0.1.0</p>"),
        ("a.svg", "<svg>\n\n<!-- specsim_version: 0.1.0 --></svg>"),
        ("a.txt", "specsim_version: 0.1.0"),
        ("a.parquet", "PAR1 specsim_version PAR1"),
        ("a.png", "specsim_version: 0.1.0"),
        ("a.jsonl", f'{{"a": {{{WORDS}}}}}\n{{{WORDS}}}\n'),
    ],
)
def test_a_file_of_the_users_that_holds_the_words_of_a_mark_is_kept(
    name: str, text: str, here: Path
) -> None:
    (here / name).write_text(text)
    with pytest.raises(ConfigError, match="was not written by specsim"), new_file(here / name):
        pass
    (here / "r").mkdir()
    (here / "r" / name).write_text(text)
    with pytest.raises(ConfigError, match="was not written"), new_folder(here / "r", (name,)):
        pass
    assert (here / name).read_text() == (here / "r" / name).read_text() == text


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("a.json", b'{"a": 1}'),
        ("a.json", b'{\n "a": 1\n}\n'),
        ("a.jsonl", b'{"a": [1, 2]}\n{"a": 2}\n'),
        ("a.jsonl.gz", gzip.compress(b'{"a": "' + b"x" * 100_000 + b'"}\n{"a": 2}\n', mtime=0)),
        ("a.yaml", b"a: 1\n"),
        ("a.yaml", b"a-b:\n- 1\n"),
        ("a.sh", b"#!/bin/sh\necho\n"),
        ("a.txt", b"# HELP x y\nx 1\n"),
        ("a.html", b"<!doctype html>\n<p>a</p>\n"),
        ("a.xml", b"<?xml version='1.0' encoding='utf-8'?>\n<a />"),
    ],
)
def test_an_output_bears_a_mark_and_may_be_replaced(name: str, data: bytes, here: Path) -> None:
    for path in (here / name, here / "r" / name):
        before = None
        for _ in range(2):
            folder = path.parent
            if folder == here:
                with new_file(path) as temporary:
                    temporary.write_bytes(data)
            else:
                with new_folder(folder) as unfinished:
                    (unfinished / name).write_bytes(data)
            assert before in (None, path.read_bytes())
            before = path.read_bytes()
            assert is_marked(path)
    written = gzip.decompress(before) if name.endswith(".gz") else before
    if "json" in name:
        first, *rest = written.decode().splitlines() if "jsonl" in name else [written.decode()]
        fields = json.loads(first)
        assert fields.pop("specsim_version") == __version__
        old = gzip.decompress(data) if name.endswith(".gz") else data
        assert fields == json.loads(old.splitlines()[0] if "jsonl" in name else old)
        assert rest == (old.decode().splitlines()[1:] if "jsonl" in name else [])
    elif name == "a.yaml":
        assert yaml.safe_load(written) == yaml.safe_load(data)
    elif name == "a.xml":
        assert Xml.fromstring(written).tag == "a"
    else:
        assert written.splitlines()[0] == data.splitlines()[0] or written.startswith(b"# specsim")


def test_of_a_large_summary_only_the_beginning_is_read(here: Path) -> None:
    gaps = ", 0.01" * 1_000_000
    written = f'{{"label": "static", "specsim": {{{WORDS}}}, "itls": [[0.01{gaps}]]}}'
    with new_file(here / "summary.json") as temporary:
        temporary.write_text(written)
        tracemalloc.start()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (here / "summary.json").read_text() == written  # has its mark
    assert peak < 1_000_000


@pytest.mark.parametrize("suffix", ["png", "svg", "pdf", "parquet"])
def test_pictures_and_tables_bear_a_mark(suffix: str, cli: Run, here: Path) -> None:
    assert cli("run", "e.yaml", "--out", "r")[0] == 0
    command = ("timeline", "r", "--plot", f"a.{suffix}")
    if suffix == "parquet":
        (here / "a.jsonl").write_text('{"prompt_len": 3, "output_len": 2}\n')
        command = ("trace", "convert", "a.jsonl", "a.parquet")
    assert not any(cli(*command)[0] for _ in range(2))
    assert is_marked(here / f"a.{suffix}")


def _killed(code: str, folder: Path) -> None:
    """Run some Python that kills itself while it writes."""
    imports = "import os; from pathlib import Path; from specsim.core.atomic import *"
    end = "os.kill(os.getpid(), 9)"
    done = subprocess.run(
        [sys.executable, "-c", f"{imports}\n{code}: {end}"], cwd=folder, check=False
    )
    assert done.returncode == -9


def test_what_a_killed_process_left_goes_with_the_next_output(here: Path) -> None:
    _killed("with new_folder(Path('r')) as f: (f / 'x').touch()\nwith new_folder(Path('r'))", here)
    _killed("with new_file(Path('a.json'))", here)
    left = [*(here / "r").glob(".unfinished-*"), *here.glob(".a.json.*.tmp")]
    assert len(left) == 2
    with new_folder(here / "r"), new_file(here / "a.json") as temporary:
        temporary.write_text("{}")
        assert not any(path.exists() for path in left)


def test_what_is_being_written_stays(here: Path) -> None:
    (here / "r").mkdir()
    (here / "r" / ".unfinished-notes").write_text("mine")
    with new_folder(here / "r") as first:
        code = "with new_folder(Path('r')) as f: (f / 'a.json').write_text('{}')"
        imports = "from pathlib import Path; from specsim.core.atomic import *"
        subprocess.run([sys.executable, "-c", f"{imports}\n{code}"], cwd=here, check=True)
        assert first.is_dir()
        assert (here / "r" / "a.json").is_file()
        (first / "b.json").write_text("{}")
    assert {path.name for path in (here / "r").iterdir()} == {
        "a.json",
        "b.json",
        ".unfinished-notes",
    }


def test_a_file_system_without_locks_can_be_written_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def flock(*_: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.flock", flock)
    (tmp_path / ".unfinished-12345678").mkdir()  # of another process, for all that is known
    with new_file(tmp_path / "a.yaml") as path:
        path.write_text("a: 1\n")
    with new_folder(tmp_path) as folder:
        (folder / "b.yaml").write_text("b: 1\n")
    assert sorted(content(tmp_path)) == ["a.yaml", "b.yaml"]
    assert (tmp_path / ".unfinished-12345678").is_dir()
