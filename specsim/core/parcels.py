"""Parcels: tasks on their way to other processes, which need not import the program for each.

A process that Python starts for another imports the program first, that is the script, so that a
script without a main guard would start processes without end. Most tasks hold nothing that the
program itself defines; the program is imported for those alone that do.
"""

import multiprocessing.spawn
import pickle
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from types import FunctionType
from typing import Any, Generic, NamedTuple, TypeVar

from specsim.core.blame import fault
from specsim.core.errors import ConfigError

T = TypeVar("T")
R = TypeVar("R")

_workers: list[int] = []  # in a process that runs parcels, not empty


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
    program = vars(sys.modules["__main__"])
    kept = {str(name): program.pop(name) for name in ("__spec__", "__file__") if name in program}
    program["__spec__"] = None
    try:
        yield
    finally:
        program.update(kept)


def as_worker() -> None:
    """Note that this process runs parcels."""
    _workers.append(1)


def check_no_worker() -> None:
    """Refuse to start processes in one that runs parcels: only a script does that, run again."""
    if _workers:
        raise ConfigError(
            "the script defines a class that other processes need, and so runs again in each of "
            'them; put what it does below `if __name__ == "__main__":`, or use workers=1'
        )
