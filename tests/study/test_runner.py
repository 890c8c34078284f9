"""The runner: results and errors are those of one process, whatever happens to the others."""

import os
import signal
import time

import pytest

from specsim.core.errors import ConfigError, SpecsimError
from specsim.study.runner import Job, LocalProcesses, Runner


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
    with Runner(LocalProcesses(workers)) as runner, pytest.raises(ConfigError, match="task 2"):
        runner.run(refused, [list(range(40))])


def test_a_task_that_kills_its_process_is_an_error_and_the_others_go_on() -> None:
    with Runner(LocalProcesses(2)) as runner:
        found = dict(runner.stream(Job(deadly, lost), range(8)))
        assert found == {**{number: number for number in range(8)}, 3: -3}
        with pytest.raises(SpecsimError, match="a simulation was lost: its process was killed"):
            runner.run(deadly, [[1, 2], [3]])
        assert runner.run(squared, [[2]]) == [[4]]
