"""Runner: many simulations for one answer, wherever they are run.

Results never depend on how many run at a time: they come in the order of the tasks, and of several
that fail the first in that order is the one whose error is raised.
"""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import chain, islice, takewhile
from typing import Generic, NamedTuple, Protocol, Self, TypeVar

from specsim.core.errors import CrashError, SpecsimError

T = TypeVar("T")
R = TypeVar("R")


class Job(NamedTuple, Generic[T, R]):
    """What is done with each task."""

    run: Callable[[T], R]  # a function of a module, for other processes import it by its name
    lost: Callable[[T, str], R]
    """What stands for the result of a task that keeps killing its process, and why."""


class Backend(Protocol):
    """Where tasks are run: a context manager, whose processes end with the block."""

    def __enter__(self) -> Self:
        """Start."""

    def __exit__(self, *error: object) -> None:
        """End all processes."""

    def stream(self, job: Job[T, R], tasks: Iterable[T]) -> Iterator[tuple[int, R]]:
        """Yield place and result of every task as soon as it has ended, in whatever order.

        Args:
            tasks: Taken as they are needed, in their order.
        """


class Runner:
    """Runs tasks and tells how many have ended; a context manager, like its backend."""

    def __init__(
        self, backend: Backend, on_progress: Callable[[int], None] | None = None, num_ended: int = 0
    ) -> None:
        self._backend = backend
        self._on_progress = on_progress
        self._num_ended = num_ended

    def __enter__(self) -> Self:
        self._backend.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._backend.__exit__(*error)

    def stream(self, job: Job[T, R], tasks: Iterable[T]) -> Iterator[tuple[int, R]]:
        """Yield place and result of every task as soon as it has ended, in whatever order.

        Once the caller has dealt with a result, its task counts as ended.
        """
        for ended in self._backend.stream(job, tasks):
            yield ended
            self._num_ended += 1
            if self._on_progress is not None:
                self._on_progress(self._num_ended)

    def run(self, function: Callable[[T], R], groups: Iterable[list[T]]) -> list[list[R]]:
        """Return the results of each group of tasks, in their order; errors are those of `each`."""
        groups = list(groups)
        results = iter(list(self.each(function, chain.from_iterable(groups))))
        return [list(islice(results, len(group))) for group in groups]

    def each(self, function: Callable[[T], R], tasks: Iterable[T]) -> Iterator[R]:
        """Yield the results of tasks, in their order; a SpecsimError if one fails or is lost."""
        early: dict[int, R | SpecsimError] = {}
        failed: list[SpecsimError] = []
        turn = 0
        job: Job[T, R | SpecsimError] = Job(partial(_outcome, function), _as_error)
        # Once one has failed no more are begun; those under way may yet show an earlier failure.
        for number, ended in self.stream(job, takewhile(lambda _: not failed, tasks)):
            early[number] = ended
            if isinstance(ended, SpecsimError):
                failed.append(ended)
            while turn in early:
                result = early.pop(turn)
                if isinstance(result, SpecsimError):
                    raise result
                yield result
                turn += 1


def _outcome(function: Callable[[T], R], task: T) -> R | SpecsimError:
    try:
        return function(task)
    except SpecsimError as error:
        return error


def _as_error(task: object, why: str) -> SpecsimError:
    return CrashError(f"a simulation was lost: {why}")
