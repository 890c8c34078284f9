"""Machines on which something that nearly all have is missing: a stream, a folder, room."""

import os
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import yaml
from conftest import Run, tiny_config

from specsim.core.atomic import FORCES, new_file, new_folder
from specsim.core.errors import ConfigError
from specsim.core.machine_code import CACHE_VARIABLE, cache_folder
from specsim.results.records import ArrayFile

SHELL = pytest.mark.skipif(sys.platform == "win32", reason="needs a POSIX shell")


@pytest.fixture
def experiment(tmp_path: Path) -> Path:
    path = tmp_path / "e.yaml"
    path.write_text(yaml.safe_dump(tiny_config()))
    return path


@pytest.fixture
def gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The working directory has been removed."""
    folder = tmp_path / "gone"
    folder.mkdir()
    monkeypatch.chdir(folder)
    folder.rmdir()


def in_shell(command: str, folder: Path) -> tuple[int, str]:
    done = subprocess.run(
        ["sh", "-c", f'exec "$0" -m specsim {command}', sys.executable],
        cwd=folder, capture_output=True, text=True, check=False,
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr


@SHELL
@pytest.mark.parametrize(
    ("command", "code"),
    [
        ("run e.yaml --out results <&- >&-", 0),
        ("run e.yaml --out results <&- >&- 2>&-", 0),
        ("run e.yaml >&- 2>&-", 0),
        ("run missing.yaml 2>&-", 2),
        ("init my.yaml <&-", 2),
    ],
)
def test_standard_streams_that_are_closed(experiment: Path, command: str, code: int) -> None:
    found, said = in_shell(command, experiment.parent)
    assert (found, "Traceback" in said) == (code, False), said
    if "--out" in command:
        names = {path.name for path in (experiment.parent / "results").iterdir()}
        assert names == {"config.yaml", "requests.parquet", "steps.parquet", "summary.json"}


@SHELL
def test_without_a_working_directory_whole_paths_will_do(
    cli: Run, experiment: Path, gone: None
) -> None:
    results = experiment.with_name("results")
    code, _, error = cli("run", experiment, "--out", results)
    assert (code, error, (results / "summary.json").is_file()) == (0, "", True)
    assert cli("report", results)[0] == 0
    assert cli("list")[0] == 0


@SHELL
@pytest.mark.parametrize(
    "words",
    [
        ("run", "{}", "--out", "results"),
        ("run", "{}", "--set", "policy.kind=mine:Patient", "--out", "results"),
        ("compare", "{}", "--policies", "off", "static:k=1", "--workers", "2"),
    ],
)
def test_without_a_working_directory_what_needs_one_says_so(
    cli: Run, experiment: Path, gone: None, words: tuple[str, ...]
) -> None:
    code, out, error = cli(*(word.format(experiment) for word in words))
    assert (code, out, error.count("\n")) == (2, "", 1)
    assert "mine" in error or "the working directory has been removed; change to" in error


def test_a_folder_that_cannot_be_written_is_called_as_its_user_calls_it(tmp_path: Path) -> None:
    with (
        pytest.raises(ConfigError, match=r"results/summary\.json: cannot be written: no room"),
        new_folder(tmp_path / "results") as folder,
        new_file(folder / "summary.json"),
    ):
        raise OSError(28, "no room")


@pytest.fixture
def no_temporary_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container whose root is read-only."""

    def nowhere() -> str:
        raise FileNotFoundError(2, "No usable temporary directory found")

    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(tempfile, "gettempdir", nowhere)
    monkeypatch.setattr("specsim.core.machine_code.gettempdir", nowhere)


def test_without_a_temporary_folder_steps_are_left_out_or_go_elsewhere(
    no_temporary_folder: None,
) -> None:
    with pytest.raises(ConfigError, match=r"No usable .*; set TMPDIR to .* \(--no-steps\)"):
        ArrayFile("the steps do", "--no-steps").append(np.zeros(3))


def test_without_a_temporary_folder_and_a_home_no_code_is_kept(
    no_temporary_folder: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(CACHE_VARIABLE, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", "/dev/null")
    assert cache_folder() is None


def test_an_account_without_a_home_gets_no_folder_of_that_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(CACHE_VARIABLE, raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr("os.path.expanduser", lambda path: path)  # of a number that no user has
    assert cache_folder() is not None
    assert not list(tmp_path.iterdir())


def test_a_switch_that_is_0_is_off(
    cli: Run, experiment: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder := experiment.with_name("results")).mkdir()
    (folder / "summary.json").write_text('{"mine": 1}')
    for value in ("", "0"):
        monkeypatch.setenv(FORCES, value)
        code, _, error = cli("run", experiment, "--out", folder)
        assert (code, "was not written by specsim" in error) == (2, True)
    monkeypatch.setenv(FORCES, "1")
    assert cli("run", experiment, "--out", folder)[0] == 0


def test_a_text_that_is_not_utf_8_says_what_to_do(cli: Run, experiment: Path) -> None:
    experiment.write_text(experiment.read_text(), encoding="utf-16")
    assert "e.yaml: is not a UTF-8 text file; save it in UTF-8" in cli("run", experiment)[2]


@pytest.mark.parametrize("name", ["results", "results/one"])
def test_a_folder_that_is_a_link_to_a_disk_that_is_not_there(
    cli: Run, experiment: Path, name: str
) -> None:
    Path("results").symlink_to("missing")
    code, out, error = cli("run", experiment, "--out", name)
    assert (code, out, error.count("\n")) == (2, "", 1)
    assert f"{name}: cannot be written: results is a link to missing, which is not there;" in error


@pytest.mark.skipif(sys.platform != "linux", reason="needs setsid --ctty")
@pytest.mark.parametrize("key", [b"\x03", b"\x04"])  # Ctrl-C, Ctrl-D
def test_who_leaves_at_a_question_is_let_go(tmp_path: Path, key: bytes) -> None:
    ours, theirs = os.openpty()
    command = [sys.executable, "-m", "specsim", "init", "my.yaml"]
    with subprocess.Popen(
        ["setsid", "--ctty", *command],
        cwd=tmp_path, stdin=theirs, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        bufsize=0,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        said = process.stdout.read(1)
        while process.poll() is None:
            # Ctrl-C is not heard if it comes when Python has begun to read, and not yet waits.
            os.write(ours, key)
            with suppress(subprocess.TimeoutExpired):
                said += process.communicate(timeout=5)[0]
    os.close(ours)
    os.close(theirs)
    assert (process.returncode, b"Traceback" in said) == (130, False), said
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["yaml", "numpy", "queue"])
def test_a_file_that_is_called_as_a_library_is_named(experiment: Path, name: str) -> None:
    taken = experiment.with_name(f"{name}.py")
    taken.write_text("mine = 1\n")
    command = [sys.executable, "-m", "specsim", "run", "e.yaml"]
    done = subprocess.run(
        command, cwd=experiment.parent, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    last = done.stderr.splitlines()[-1]  # numpy 1 may complain before it
    assert last.startswith(f"error: {taken}: takes the place of the library '{name}'; rename")
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("words", [["--out", ""], ["--out="]])
def test_results_do_not_go_here_because_a_variable_is_not_set(
    experiment: Path, words: list[str]
) -> None:
    command = [sys.executable, "-m", "specsim", "run", "e.yaml", *words]
    done = subprocess.run(
        command, cwd=experiment.parent, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert done.stderr.startswith("error: --out: is empty")
    assert [*experiment.parent.iterdir()] == [experiment]
