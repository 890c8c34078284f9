"""What stands in the way of results is replaced only if specsim wrote it."""

from pathlib import Path

import pytest
import yaml
from conftest import Run, tiny_config

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
    assert "was not written by specsim and would be lost; move it or name another" in err
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
    assert "was not written by specsim and would be lost" in err
    assert (here / "e.yaml").read_bytes() == before
    assert cli(*roofline, "p.yaml")[0] == 0
    assert cli(*roofline, "p.yaml")[0] == 0  # its own
    (here / "p.yaml").write_text("changed: by hand\n")
    assert cli(*roofline, "p.yaml")[0] == 2
    assert cli(*roofline, "p.yaml", "--force")[0] == 0


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
