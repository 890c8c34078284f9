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
