"""experiments/run.py: what is declared, how results are compared, and that nothing is lost."""

import csv
import importlib
import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml
from conftest import ROOT

FOLDER = ROOT / "experiments"
SCRIPT = """
import csv, pathlib
with pathlib.Path(__file__).with_name("results.csv").open("w") as file:
    file.write("policy,rate,latency,seconds\\noff,1,{latency},{seconds}\\n")
"""


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], Any]]:
    """Import a module of experiments/."""
    monkeypatch.syspath_prepend(str(FOLDER))
    yield importlib.import_module
    for name in ("run", "compared", "readme", "stand_in"):  # others may have these names, too
        sys.modules.pop(name, None)


@pytest.fixture
def own(load: Callable[[str], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """run.py over a folder of one experiment, whose committed latency is 8.5."""
    runner: ModuleType = load("run")
    folder = tmp_path / "experiments"
    (folder / "mine").mkdir(parents=True)
    (folder / "mine" / "run.py").write_text(SCRIPT.format(latency=8.5, seconds=3))
    (folder / "mine" / "results.csv").write_text("policy,rate,latency,seconds\noff,1,8.5,2\n")
    (folder / "stamps.csv").write_text("experiment,version,commit,date\nother,0,abc,2026-01-01\n")
    declared = {
        "commands": ["python experiments/mine/run.py"],
        "writes": ["results.csv"],
        "ignores": ["seconds"],
        "cpu_minutes": 1,
    }
    (folder / "experiments.yaml").write_text(yaml.safe_dump({"again": {"mine": declared}}))
    monkeypatch.setattr(runner, "HERE", folder)
    monkeypatch.setattr(runner, "STAMPS", folder / "stamps.csv")
    for page in (runner.readme, runner.gallery):
        monkeypatch.setattr(page, "main", lambda: None)
    return runner


def rows(path: Path) -> list[dict[str, str]]:
    found = list(csv.DictReader(path.read_text().splitlines()))
    assert found, f"{path} has no rows"
    return found


def run_script(runner: ModuleType, monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    monkeypatch.setattr(sys, "argv", ["run.py", *words])
    with pytest.raises(SystemExit) as stop:
        runner.main()
    return int(stop.value.code or 0)


@pytest.mark.parametrize("words", [("--workers", "0"), ("--part", "nan"), ("--part", "-1")])
def test_options_of_nothing_are_refused(
    own: ModuleType, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    assert run_script(own, monkeypatch, *words) == 2


def test_every_experiment_is_declared_and_what_it_writes_is_kept(
    load: Callable[[str], Any],
) -> None:
    known = load("run").declared()
    fields = yaml.safe_load((FOLDER / "experiments.yaml").read_text())
    folders = {path.parent.name for path in FOLDER.glob("*/*") if path.suffix in {".py", ".md"}}
    assert not set(known) & set(fields["not_again"])
    assert {*known, *fields["not_again"]} == folders
    for name, each in known.items():
        for file in each.writes:
            assert (FOLDER / name / file).exists(), f"{name} has no {file}"
        readme = (FOLDER / name / "README.md").read_text()
        assert f"experiments/run.py {name}" in readme, f"{name}/README.md does not say how to rerun"
    assert (
        sum(each.cpu_minutes for each in known.values() if each.is_for_all) <= 40
    )  # 20 on 2 cores


def test_tables_of_readmes_are_what_the_results_say(load: Callable[[str], Any]) -> None:
    readme = load("readme")
    assert len(readme.pages()) > 20
    for path in readme.pages():
        assert path.read_text() == readme.filled(path), "run python experiments/readme.py"


def test_stamps_are_of_experiments(load: Callable[[str], Any]) -> None:
    runner = load("run")
    stamps = rows(runner.STAMPS)
    assert stamps
    assert [row["experiment"] for row in stamps] == sorted(row["experiment"] for row in stamps)
    assert {row["experiment"] for row in stamps} <= set(runner.declared())
    shallow = ["git", "rev-parse", "--is-shallow-repository"]
    if subprocess.run(shallow, cwd=ROOT, capture_output=True, check=False).stdout != b"false\n":
        pytest.skip("the history is not here")
    for made in {row["commit"] for row in stamps}:  # not one that was rebased, nor "abc+"
        is_past = ["git", "merge-base", "--is-ancestor", made, "HEAD"]
        assert subprocess.run(is_past, cwd=ROOT, check=False).returncode == 0, made


def test_the_same_says_so_and_writes_nothing(
    own: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before = {path: path.read_bytes() for path in own.HERE.rglob("*.*")}
    assert run_script(own, monkeypatch) == 0
    [line] = capsys.readouterr().out.splitlines()
    assert line.split()[:2] == ["same", "mine"]
    assert {path: path.read_bytes() for path in own.HERE.rglob("*.*")} == before


def test_a_difference_is_named_and_kept_only_if_asked_for(
    own: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = own.HERE / "mine" / "results.csv"
    (kept.parent / "run.py").write_text(SCRIPT.format(latency=8.25, seconds=3))
    before = kept.read_text()
    assert run_script(own, monkeypatch, "mine", "--out", str(own.HERE.parent / "out")) == 1
    out = capsys.readouterr().out
    assert out.endswith("results.csv row 1 (off, 1), latency: 8.5 -> 8.25\n")
    assert kept.read_text() == before
    assert "8.25" in (own.HERE.parent / "out" / "mine" / "results.csv").read_text()
    monkeypatch.setattr(own, "commit", lambda: "0123abcd")
    assert run_script(own, monkeypatch, "mine", "--update") == 1
    assert rows(kept)[0]["latency"] == "8.25"
    stamps = {row["experiment"]: row["commit"] for row in rows(own.STAMPS)}
    assert stamps == {"mine": "0123abcd", "other": "abc"}
    assert run_script(own, monkeypatch, "mine") == 0


def test_a_script_that_fails_or_writes_nothing_is_told(
    own: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    script = own.HERE / "mine" / "run.py"
    script.write_text("raise SystemExit('no such GPU')")
    assert run_script(own, monkeypatch, "--update") == 1
    assert "failed" in (out := capsys.readouterr().out)
    assert out.endswith("no such GPU\n")
    script.write_text("")
    assert run_script(own, monkeypatch) == 1
    assert "results.csv was not written" in capsys.readouterr().out
    assert run_script(own, monkeypatch, "mime") == 2
    assert "mine" in capsys.readouterr().err


def test_cells_are_compared(load: Callable[[str], Any], tmp_path: Path) -> None:
    compared = load("compared")
    exact = compared.Rule(frozenset(), {})
    kept, found = tmp_path / "kept.csv", tmp_path / "found.csv"

    def texts(before: str, today: str, rule: Any = exact) -> list[str]:
        kept.write_text(before)
        found.write_text(today)
        return list(compared.differences(kept, found, rule))

    assert texts("a,b\n1,2\n", "a,b\n1,2\n") == []
    assert texts("a,b\n1,2\n", "a,b\n1,2\n3,4\n") == [
        "kept.csv row 2 (3, 4), a: nothing -> 3",
        "kept.csv row 2 (3, 4), b: nothing -> 4",
    ]
    assert len(texts("a,b\n1,2\n", "a,c\n1,2\n")) == 2
    assert texts("a,b\n1,2\n", "a,b\r\n1,2\r\n") == ["kept.csv: the same cells in other bytes"]
    near = compared.Rule(frozenset(), {"b": 0.01})
    assert texts("a,b\nx,1.00\n", "a,b\nx,1.009\n", near) == []
    assert texts("a,b\nx,1.00\n", "a,b\nx,1.011\n", near) == [
        "kept.csv row 1 (x), b: 1.00 -> 1.011"
    ]
    assert texts("a,b\nx,\n", "a,b\nx,1\n", near) == ["kept.csv row 1 (x), b:  -> 1"]
    texts("a,b\n1,2\n", "a,c\n1,2\n")
    assert compared.other_columns(kept, found) == ["kept.csv: in one of them only: b, c"]
    one, two = tmp_path / "kept.json", tmp_path / "found.json"
    one.write_text(json.dumps({"k": [{"best": 3, "gain": 1.0}], "none": []}))
    two.write_text(json.dumps({"k": [{"best": 4, "gain": 1.0}], "none": []}))
    assert compared.differences(one, two, exact) == ["kept.json k.0, best: 3 -> 4"]


def test_a_part_fits_and_every_place_of_the_list_is_reached(load: Callable[[str], Any]) -> None:
    runner = load("run")
    known = runner.declared()
    parts = [runner.part_of(known, 3.0, start) for start in range(len(known))]
    sums = [sum(known[name].cpu_minutes for name in part) for part in parts]
    assert all(0 < minutes < 3.001 for minutes in sums)
    reached = {name for part in parts for name in part}
    assert reached == {n for n, each in known.items() if each.is_for_all and each.cpu_minutes <= 3}


@pytest.mark.slow
def test_made_up_data_stand_in_for_all_that_is_read(
    load: Callable[[str], Any], tmp_path: Path
) -> None:
    stand_in = load("stand_in")
    folder = stand_in.make(tmp_path / "data")
    name, server = next(iter(stand_in.SERVERS.items()))
    stand_in.SERVERS = {name: server}  # the others are made alike
    again = stand_in.make(tmp_path / "again")
    files = [path.relative_to(again) for path in again.rglob("*") if path.is_file()]
    assert len(files) > 8
    assert all((folder / file).read_bytes() == (again / file).read_bytes() for file in files)
    for name, each in load("run").declared().items():
        if name not in ("gpu-runs", "large-models", "aisimulate"):  # which need kernel tables, too
            assert all((folder / file).exists() for file in each.data), name


@pytest.mark.slow
def test_an_experiment_runs_on_made_up_data() -> None:
    command = [sys.executable, FOLDER / "run.py", "azure-replay", "--stand-in"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("runs     azure-replay")


def test_modules_that_lie_beside_their_scripts_have_names_of_their_own() -> None:
    """Two of one name and whoever asks second gets the first: tests import many in one process."""
    places: dict[str, set[Path]] = {}
    for path in (*FOLDER.rglob("*.py"), *(ROOT / "benchmarks").rglob("*.py")):
        for name in re.findall(r"^(?:from|import) (\w+)", path.read_text(), re.MULTILINE):
            beside = path.with_name(f"{name}.py")
            if beside.exists() and name != "run":  # which only scripts that no test loads import
                places.setdefault(name, set()).add(beside)
    assert len(places) > 20
    assert {name: paths for name, paths in places.items() if len(paths) > 1} == {}
