"""Processes of this machine that run simulations.

Tasks travel in parcels. A process that Python starts for another imports the program first, that is
the script, so that a script without a main guard would start processes without end. Most tasks hold
nothing that the program itself defines; the program is imported for those alone that do.
"""

import multiprocessing
import multiprocessing.spawn
import os
import pickle
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager, contextmanager
from io import BytesIO
from itertools import islice
from multiprocessing import connection, forkserver
from multiprocessing.connection import Connection
from multiprocessing.context import BaseContext
from pathlib import Path
from threading import Lock, Thread, current_thread, main_thread
from types import FunctionType
from typing import Any, Generic, NamedTuple, TypeVar

from specsim.core.blame import fault
from specsim.core.errors import ConfigError
from specsim.core.runner import Job
from specsim.core.surroundings import ENDS, OF_TERMINAL, WORKING_FOLDER_GONE, working_folder

T = TypeVar("T")
R = TypeVar("R")

_workers: list[int] = []  # in a process that runs parcels, not empty
_imported_in = os.getpid()
_serverless: list[OSError] = []  # why no server can be started that forks workers, if none can
_program_seen = Lock()  # by one thread at a time: another may have hidden it


class Refused(NamedTuple):
    """In place of a result: the task could not be read in another process."""

    why: str


class Parcel(NamedTuple, Generic[R]):
    """A task, and how to import what the program defines of it."""

    packed: bytes
    program: dict[str, str]  # for `multiprocessing.spawn.prepare`; empty where nothing is needed

    @classmethod
    def of(cls, function: Callable[[T], R], task: T) -> "Parcel[R]":
        """Pack a task; a ConfigError if other processes could not read it."""
        stream = BytesIO()
        packer = _Packer(stream)
        try:
            packer.dump((function, task))
        except (AttributeError, TypeError, pickle.PicklingError) as error:
            raise ConfigError(
                f"other processes cannot be given this: {error}; define classes at the top of a "
                "file, or use workers=1"
            ) from error
        return cls(stream.getvalue(), _program(packer.own[0]) if packer.own else {})

    def run(self) -> R | Refused:
        """Run the task, in whatever process this is."""
        try:
            multiprocessing.spawn.prepare(self.program)
            function, task = pickle.loads(self.packed)
        except ConfigError as error:
            return Refused(str(error))
        except (Exception, SystemExit) as error:
            return Refused(f"other processes cannot read this: {fault(error)}; use workers=1")
        found: R = function(task)
        return found


class _Packer(pickle.Pickler):
    """A pickler that notes which classes and functions the program itself defines."""

    def __init__(self, stream: BytesIO) -> None:
        super().__init__(stream, pickle.HIGHEST_PROTOCOL)
        self.own: list[str] = []

    def reducer_override(self, thing: Any) -> Any:
        if isinstance(thing, type | FunctionType) and thing.__module__ == "__main__":
            self.own.append(thing.__qualname__)
        return NotImplemented


def _program(own: str) -> dict[str, str]:
    """Return how the program is imported elsewhere; a ConfigError if it has no file."""
    with _program_seen:
        prepared = multiprocessing.spawn.get_preparation_data("")
    program = {key: str(prepared[key]) for key in prepared if key.startswith("init_main")}
    if not Path(program.get("init_main_from_path", __file__)).is_file() or not program:
        raise ConfigError(
            f"{own} is defined in a notebook or at a prompt, where other processes do not find it; "
            "write it into a file and import it from there, or use workers=1"
        )
    return program


@contextmanager
def unseen_program() -> Iterator[None]:
    """Keep processes that are started in the block from importing the program at once."""
    program, names = vars(sys.modules["__main__"]), ("__spec__", "__file__")
    with _program_seen:
        kept = {name: program.pop(name) for name in names if name in program}
        program["__spec__"] = None
        try:
            yield
        finally:
            program.update(kept)


def as_worker() -> None:
    """Note that this process runs parcels."""
    _workers.append(1)


def check_may_start() -> None:
    """Refuse to start processes where Python does not, and in one that runs parcels.

    There only a script starts any, which runs again.
    """
    if multiprocessing.current_process().daemon:
        raise ConfigError(
            "this process may not start others, since it is daemonic, as those of a "
            "multiprocessing.Pool are; use workers=1, or a concurrent.futures.ProcessPoolExecutor"
        )
    if _workers:
        raise ConfigError(
            "the script defines a class that other processes need, and so runs again in each of "
            'them; put what it does below `if __name__ == "__main__":`, or use workers=1'
        )


class LocalProcesses(AbstractContextManager["LocalProcesses"]):
    """Processes of this machine; a single worker is this process itself.

    They are forked from a server that has imported the simulator once, where the platform has such
    servers, and else started afresh; they share no lock and no thread with the program.
    """

    def __init__(self, workers: int) -> None:
        """Raise a ConfigError unless `workers` is a whole number of at least 1."""
        if not isinstance(workers, int) or workers < 1:
            raise ConfigError(f"workers = {workers!r} must be a whole number of at least 1")
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
        under_way: dict[Future[R | Refused], tuple[int, T]] = {}
        while True:
            # Each process has its next task at hand; more would be lost if one died.
            with _ends_put_off():
                for number, task in islice(numbered, 2 * self._workers - len(under_way)):
                    try:
                        under_way[self._pool.start(job, task)] = number, task
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
                    yield number, _accepted(future.result())
            if lost:
                lost.extend(under_way.values())
                self._pool.shutdown()
                self._pool = None
                return


def _run_alone(job: Job[T, R], task: T) -> R:
    with _Pool(1) as pool:
        try:
            return _accepted(pool.start(job, task).result())
        except BrokenProcessPool:
            return job.lost(task, "its process was killed, perhaps for lack of memory")


def _accepted(result: R | Refused) -> R:
    if isinstance(result, Refused):
        raise ConfigError(result.why)
    return result


def warm_up(workers: int) -> None:
    """Start importing the simulator for several workers, while this process does so for itself."""
    if workers > 1:
        _start_server()


def _start_server() -> None:
    """Start what forks workers; what a terminal sends to all processes is not for it."""
    if _context().get_start_method() != "forkserver":
        return
    before = _handlers(*OF_TERMINAL)
    for number in before:
        signal.signal(number, signal.SIG_IGN)  # which it inherits
    try:
        forkserver.ensure_running()
    except OSError as error:  # its socket has no place: no folder for it, or too long a path
        _serverless.append(error)
    finally:
        for number, own in before.items():
            signal.signal(number, own)


def _handlers(*numbers: signal.Signals) -> dict[signal.Signals, Any]:
    """Return what is done on signals, of those for which that may be changed, and back again."""
    if current_thread() is not main_thread():
        return {}
    found = {number: signal.getsignal(number) for number in numbers}
    # None is a handler in C, of a program that has Python inside it.
    return {number: own for number, own in found.items() if own is not None}


@contextmanager
def _ends_put_off() -> Iterator[None]:
    """Let the block end before Ctrl-C or the like is heard, or a process half started complains."""
    heard: list[int] = []
    before = _handlers(*ENDS)
    for number in before:
        signal.signal(number, lambda number, frame: heard.append(number))
    try:
        yield
    finally:
        for number, own in before.items():
            signal.signal(number, own)
    if heard:
        signal.raise_signal(heard[0])


@contextmanager
def _startable() -> Iterator[None]:
    """Raise a ConfigError in place of what keeps processes from being started in the block."""
    try:
        yield
    except OSError as error:
        why = f"{error.strerror or error};"
        if working_folder() is None:  # where each of them begins
            why = f"{WORKING_FOLDER_GONE}, or"
        raise ConfigError(f"other processes cannot be started: {why} use workers=1") from error


class _Pool(ProcessPoolExecutor):
    """A pool whose processes end with the program, or when Ctrl-C or the like comes."""

    def __init__(self, workers: int) -> None:
        check_may_start()
        _start_server()
        context = _context()
        with _startable():
            end, self._hold = context.Pipe(duplex=False)
            super().__init__(
                workers, mp_context=context, initializer=_end_with_parent, initargs=(end,)
            )

    def start(self, job: Job[T, R], task: T) -> "Future[R | Refused]":
        """Begin a task as soon as a process is free; a ConfigError if none could read it."""
        parcel = Parcel.of(job.run, task)
        with unseen_program(), _startable():
            return self.submit(parcel.run)

    def __exit__(self, *error: Any) -> None:
        """Wait for what is under way, and run what is not if there was no error."""
        if isinstance(error[1], KeyboardInterrupt | SystemExit):
            self._hold.close()  # all processes exit
        self.shutdown(cancel_futures=any(error))


def _context() -> BaseContext:
    # A process that was forked would ask the server of the one that it was forked from, in vain.
    is_forked = os.getpid() != _imported_in
    if is_forked or _serverless or "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["specsim.run.preload"])
    return context


def _end_with_parent(end: Connection) -> None:
    """Make this process exit as soon as the one that asked for it closes `end`, or was killed."""
    as_worker()
    for number in OF_TERMINAL:  # that one decides, and says what there is to say
        signal.signal(number, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    assert parent is not None
    sentinel = parent.sentinel

    def wait_for_end() -> None:
        connection.wait([sentinel, end])
        os._exit(1)

    Thread(target=wait_for_end, daemon=True).start()
