"""Runner: many simulations for one answer, on the processes of this machine or a Ray cluster.

Results never depend on how many run at a time: they come in the order of the tasks, and of several
that fail the first in that order is the one whose error is raised.
"""

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from itertools import chain, count, islice, takewhile
from multiprocessing import connection, forkserver
from multiprocessing.connection import Connection
from multiprocessing.context import BaseContext
from threading import Thread, current_thread, main_thread
from typing import Any, Generic, NamedTuple, Protocol, Self, TypeVar

from specsim.core.errors import CrashError, SpecsimError

T = TypeVar("T")
R = TypeVar("R")

_PRELOADED = ["specsim.run.preload"]


class Job(NamedTuple, Generic[T, R]):
    """What is done with each task."""

    run: Callable[[T], R]
    """A function of a module, for other processes import it by its name."""
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


class LocalProcesses(AbstractContextManager["LocalProcesses"]):
    """Processes of this machine.

    Workers are forked from a server that has imported the simulator once, where the platform has
    such servers, and else started afresh; either way they share no lock and no thread with the
    program that asked for them.

    Args:
        workers: A single one is this process itself.
    """

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self._pool: _Pool | None = None

    def __exit__(self, *error: object) -> None:
        """End all processes; after an error, without what they have not begun."""
        if self._pool is not None:
            self._pool.__exit__(*(error or (None, None, None)))
            self._pool = None

    def stream(self, job: Job[T, R], tasks: Iterable[T]) -> Iterator[tuple[int, R]]:
        """Yield place and result of every task as soon as it has ended.

        Where a process dies, each task that was under way is run again in a process of its own: the
        one that kills it again is lost, and the others go on.
        """
        numbered = enumerate(tasks)
        if self._workers == 1:
            yield from ((number, job.run(task)) for number, task in numbered)
            return
        lost: list[tuple[int, T]] | None = None
        while lost is None or lost:
            lost = []
            yield from self._stream_together(job, numbered, lost)
            yield from ((number, _run_alone(job, task)) for number, task in lost)

    def _stream_together(
        self, job: Job[T, R], numbered: Iterator[tuple[int, T]], lost: list[tuple[int, T]]
    ) -> Iterator[tuple[int, R]]:
        """Run tasks until they are all done, or until a process dies and some are lost."""
        self._pool = self._pool or _Pool(self._workers)
        under_way: dict[Future[R], tuple[int, T]] = {}
        while True:
            # Each process has its next task at hand; more would be lost if one died.
            with _ctrl_c_put_off():
                for number, task in islice(numbered, 2 * self._workers - len(under_way)):
                    try:
                        under_way[self._pool.submit(job.run, task)] = number, task
                    except BrokenProcessPool:  # while the caller dealt with a result
                        lost.append((number, task))
                        break
            if not under_way and not lost:
                return
            ended, _ = wait(under_way, return_when=FIRST_COMPLETED)
            for future in ended:
                number, task = under_way.pop(future)
                if isinstance(future.exception(), BrokenProcessPool):
                    lost.append((number, task))
                else:
                    yield number, future.result()
            if lost:
                lost.extend(under_way.values())
                self._pool.shutdown()
                self._pool = None
                return


def _run_alone(job: Job[T, R], task: T) -> R:
    with _Pool(1) as pool:
        try:
            return pool.submit(job.run, task).result()
        except BrokenProcessPool:
            return job.lost(task, "its process was killed, perhaps for lack of memory")


class Runner:
    """Runs tasks and tells how many have ended; a context manager, like its backend.

    Args:
        on_progress: Told the number of tasks that have ended.
        num_ended: How many had ended before.
    """

    def __init__(
        self, backend: Backend, on_progress: Callable[[int], None] | None = None, num_ended: int = 0
    ) -> None:
        self._backend = backend
        self._on_progress = on_progress
        self._num_ended = num_ended

    def __enter__(self) -> Self:
        """Start the backend."""
        self._backend.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        """End the backend."""
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
        """Return the results of each group of tasks, in their order.

        Args:
            groups: Such as the replications of one experiment.

        Raises:
            SpecsimError: A task cannot be run, or keeps killing its process.
        """
        groups = list(groups)
        results: dict[int, R] = {}
        failed: dict[int, SpecsimError] = {}
        job: Job[T, R | SpecsimError] = Job(partial(_outcome, function), _as_error)
        # Once one has failed no more are begun; those under way may yet show an earlier failure.
        tasks = takewhile(lambda _: not failed, chain.from_iterable(groups))
        for number, result in self.stream(job, tasks):
            if isinstance(result, SpecsimError):
                failed[number] = result
            else:
                results[number] = result
        if failed:
            raise failed[min(failed)]
        places = count()
        return [[results[next(places)] for _ in group] for group in groups]


def _outcome(function: Callable[[T], R], task: T) -> R | SpecsimError:
    try:
        return function(task)
    except SpecsimError as error:
        return error


def _as_error(task: object, why: str) -> SpecsimError:
    return CrashError(f"a simulation was lost: {why}")


def warm_up(workers: int) -> None:
    """Start importing the simulator for several workers, while this process does so for itself."""
    if workers > 1:
        _start_server()


def _start_server() -> None:
    """Start what forks workers; Ctrl-C, which a terminal sends to all processes, is not for it."""
    if _context().get_start_method() != "forkserver":
        return
    if current_thread() is not main_thread():  # others may not say what a signal does
        forkserver.ensure_running()
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # which it inherits
    try:
        forkserver.ensure_running()
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def _ctrl_c_put_off() -> Iterator[None]:
    """Let the block end before Ctrl-C is heard: a process half started would complain."""
    if current_thread() is not main_thread():
        yield
        return
    heard: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, frame: heard.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if heard:
        signal.raise_signal(signal.SIGINT)


class _Pool(ProcessPoolExecutor):
    """A pool whose processes end with the program, however that ends, or when Ctrl-C comes."""

    def __init__(self, workers: int) -> None:
        _start_server()
        context = _context()
        end, self._hold = context.Pipe(duplex=False)
        super().__init__(workers, mp_context=context, initializer=_end_with_parent, initargs=(end,))

    def __exit__(self, *error: Any) -> None:
        """Wait for what is under way, and run what is not if there was no error."""
        if isinstance(error[1], KeyboardInterrupt):
            self._hold.close()  # all processes exit
        self.shutdown(cancel_futures=any(error))


def _context() -> BaseContext:
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_PRELOADED)
    return context


def _end_with_parent(end: Connection) -> None:
    """Make this process exit as soon as the one that asked for it closes `end`, or was killed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # that one decides, and says what there is to say
    parent = multiprocessing.parent_process()
    assert parent is not None
    sentinel = parent.sentinel

    def wait_for_end() -> None:
        connection.wait([sentinel, end])
        os._exit(1)

    Thread(target=wait_for_end, daemon=True).start()
