"""The runner: results and errors are those of one process, whatever happens to the others."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from specsim.core import processes
from specsim.core.errors import ConfigError, SpecsimError
from specsim.core.processes import LocalProcesses
from specsim.core.runner import Job, Runner

pytestmark = pytest.mark.slow


def squared(number: int) -> int:
    time.sleep(0.01 * (3 - number % 3))  # so that they end in another order
    return number * number


def refused(number: int) -> int:
    time.sleep(0.2 if number == 2 else 0.0)
    if number >= 2:
        raise ConfigError(f"task {number}")
    return number


def deadly(number: int) -> int:
    if number == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return number


def lost(task: int, why: str) -> int:
    assert "killed" in why
    return -task


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_results_come_in_the_order_of_the_tasks_group_by_group(workers: int) -> None:
    told: list[int] = []
    with Runner(LocalProcesses(workers), told.append) as runner:
        assert runner.run(squared, [[1, 2, 3], [], [4]]) == [[1, 4, 9], [], [16]]
        assert runner.run(squared, [[5]]) == [[25]]
    assert told == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_of_several_failures_the_first_task_is_named(workers: int) -> None:
    with Runner(LocalProcesses(workers)) as runner:
        with pytest.raises(ConfigError, match="task 2"):
            runner.run(refused, [list(range(40))])
        assert runner.run(squared, [[2]]) == [[4]]


def test_a_task_that_kills_its_process_is_an_error_and_the_others_go_on() -> None:
    with Runner(LocalProcesses(2)) as runner:
        found = dict(runner.stream(Job(deadly, lost), range(8)))
        assert found == {**{number: number for number in range(8)}, 3: -3}
        with pytest.raises(SpecsimError, match="a simulation was lost: its process was killed"):
            runner.run(deadly, [[1, 2], [3]])
        assert runner.run(squared, [[2]]) == [[4]]


def test_no_task_is_lost_if_a_process_dies_while_a_result_is_dealt_with() -> None:
    found = {}
    with Runner(LocalProcesses(2)) as runner:
        for number, result in runner.stream(Job(deadly, lost), range(8)):
            found[number] = result
            time.sleep(0.3)
    assert found == {**{number: number for number in range(8)}, 3: -3}


@pytest.mark.skipif(sys.platform == "win32", reason="has no such socket")
def test_a_temporary_folder_whose_path_is_too_long_for_a_socket(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import operator\n"
        "from specsim.core.processes import LocalProcesses\n"
        "from specsim.core.runner import Runner\n"
        "if __name__ == '__main__':\n"
        "    with Runner(LocalProcesses(2)) as runner:\n"
        "        print(runner.run(operator.neg, [[1, 2]]))\n"
    )
    (folder := tmp_path / ("long" * 30)).mkdir()
    environment = {**os.environ, "TMPDIR": str(folder)}
    command = [sys.executable, script]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "[[-1, -2]]\n", "")


def test_processes_that_cannot_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*words: object, **others: object) -> None:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(processes.ProcessPoolExecutor, "submit", full)
    with Runner(LocalProcesses(2)) as runner, pytest.raises(ConfigError) as refused:
        runner.run(squared, [[1, 2]])
    why = "Too many open files; use workers=1"
    assert str(refused.value) == f"other processes cannot be started: {why}"


@pytest.mark.parametrize("moment", ["while the server imports", "while a task is under way"])
def test_ctrl_c_ends_all_processes_at_once_and_silently(moment: str, tmp_path: Path) -> None:
    script = tmp_path / "script.py"  # a file, for workers import the function by its name
    script.write_text(
        "import os, signal, sys, threading, time\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # also behind nohup
        "from specsim.core.processes import LocalProcesses, warm_up\n"
        "from specsim.core.runner import Runner\n"
        "def work(number):\n"
        "    open(f'begun-{number}', 'w').close()\n"
        "    time.sleep(60)\n"
        "def interrupt():\n"
        "    while sys.argv[1].endswith('way') and not os.path.exists('begun-0'):\n"
        "        time.sleep(0.01)\n"
        "    time.sleep(0.2)\n"
        "    os.killpg(0, signal.SIGINT)  # as a terminal does\n"
        "if __name__ == '__main__':\n"
        "    warm_up(2)\n"
        "    threading.Thread(target=interrupt).start()\n"
        "    try:\n"
        "        with Runner(LocalProcesses(2)) as runner:\n"
        "            runner.run(work, [[0, 1, 2]])\n"
        "    except KeyboardInterrupt:\n"
        "        sys.exit(130)\n"
    )
    done = subprocess.run(
        [sys.executable, script, moment],
        capture_output=True,
        text=True,
        timeout=50,
        cwd=tmp_path,
        start_new_session=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


PROGRAM = """
print("begins")
from specsim.core.processes import LocalProcesses
from specsim.core.runner import Runner

class Own(int):
    pass

def work(task):
    with Runner(LocalProcesses(2)) as runner:
        print(runner.run(abs, [[task]]))

"""
GUARD = 'if __name__ == "__main__":\n    '


def programmed(end: str, folder: Path, *, has_file: bool = True) -> tuple[int, str, str]:
    """Run a program; return exit code, output and the last line of its complaint."""
    script = folder / "program.py"
    script.write_text(PROGRAM + end)
    command = [sys.executable, str(script) if has_file else "-"]
    paths = {"PYTHONPATH": str(Path(processes.__file__).parents[2])}
    done = subprocess.run(
        command,
        input="" if has_file else script.read_text(),
        env={**os.environ, **paths},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.stderr.count("Traceback") <= 1
    return done.returncode, done.stdout, (done.stderr.splitlines() or [""])[-1]


@pytest.mark.parametrize("has_file", [True, False])
def test_a_program_does_not_run_again_in_the_others(tmp_path: Path, has_file: bool) -> None:
    assert programmed("work(-3)", tmp_path, has_file=has_file) == (0, "begins\n[[3]]\n", "")


def test_what_a_program_defines_is_known_to_the_others(tmp_path: Path) -> None:
    code, out, _ = programmed(f"{GUARD}work(Own(-3))", tmp_path)
    assert (code, out.splitlines()[-1]) == (0, "[[3]]")


def test_a_program_that_would_start_processes_for_ever_is_told_so(tmp_path: Path) -> None:
    code, _, said = programmed("work(Own(-3))", tmp_path)
    assert code == 1
    assert said.endswith('below `if __name__ == "__main__":`, or use workers=1')


def test_what_a_notebook_defines_cannot_be_sent(tmp_path: Path) -> None:
    code, out, said = programmed(f"{GUARD}work(Own(-3))", tmp_path, has_file=False)
    assert (code, out) == (1, "begins\n")
    assert "Own is defined in a notebook or at a prompt" in said


def test_what_a_function_defines_cannot_be_sent() -> None:
    class Local:
        pass

    with Runner(LocalProcesses(2)) as runner:
        with pytest.raises(ConfigError, match="top of a file"):
            runner.run(repr, [[Local()]])
        assert runner.run(repr, [[2]]) == [["2"]]


def test_a_thread_sees_the_program_while_another_hides_it(tmp_path: Path) -> None:
    hides = (
        "from threading import Event, Thread\n"
        "    hidden = Event()\n"
        "    def hide():\n"
        "        with unseen_program():\n"
        "            hidden.set(), time.sleep(0.5)\n"
        "    thread = Thread(target=hide)\n"
        "    thread.start(), hidden.wait()\n"
        "    with unseen_program():\n"
        "        thread.join(0.1)\n"
    )
    imports = "import time\nfrom specsim.core.processes import unseen_program\n"
    end = f"{imports}{GUARD}{hides}    print(work(Own(-3)), __file__ and 'seen', 'once more')"
    code, out, said = programmed(end, tmp_path)
    assert (code, out.splitlines()[-1:], said) == (0, ["None seen once more"], "")


@pytest.mark.parametrize("is_daemon", [False, True])
def test_a_process_that_was_forked_starts_others_if_python_lets_it(
    tmp_path: Path, is_daemon: bool
) -> None:
    forked = (
        "work(-3)\n"
        "    from multiprocessing import get_context\n"
        f"    process = get_context('fork').Process(target=work, args=[-4], daemon={is_daemon})\n"
        "    process.start(), process.join()\n"
    )
    _, out, said = programmed(GUARD + forked, tmp_path)
    assert out.splitlines()[1:] == (["[[3]]"] if is_daemon else ["[[3]]", "[[4]]"])
    assert ("may not start others, since it is daemonic" in said) == is_daemon


def test_a_handler_in_c_stays_what_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signal, "getsignal", lambda number: None)
    monkeypatch.setattr(signal, "signal", lambda *given: pytest.fail("it cannot be set again"))
    with Runner(LocalProcesses(2)) as runner:
        assert runner.run(abs, [[-3]]) == [[3]]
