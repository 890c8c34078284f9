"""Blame: whose code an exception comes from, and from which line, in one line.

A policy, a router or any other class of the user's runs deep inside a simulation. What it raises is
no bug of specsim's, and a traceback through the engine would hide the one line that matters.
"""

import sys
import sysconfig
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from pydantic import ValidationError

from specsim.core.errors import PluginError, SpecsimError
from specsim.core.reading import short
from specsim.core.settings import Settings, told_problems

_PACKAGE = Path(__file__).resolve().parents[1]
_LIBRARIES = ("<", str(_PACKAGE), sysconfig.get_path("stdlib"))


def is_shipped(thing: object) -> bool:
    """Return whether the class of an object belongs to specsim itself."""
    return is_shipped_class(type(thing))


def is_shipped_class(kind: type) -> bool:
    """Return whether a class belongs to specsim itself."""
    return kind.__module__.startswith("specsim.")


@contextmanager
def blamed() -> Iterator[None]:
    """Turn what a user's class raises inside the block into a PluginError of one line."""
    try:
        yield
    except SpecsimError:
        raise
    except (Exception, SystemExit) as error:  # a script's sys.exit would end specsim in silence
        # What leaves SimPy is a copy; where it was raised, its cause knows.
        is_copy = type(error.__cause__) is type(error)
        first = error.__cause__ if is_copy and error.__cause__ is not None else error
        if isinstance(first, SpecsimError):
            raise
        if (who := _user_of(first.__traceback__)) is not None:
            raise PluginError(f"{name_of(who)}: {fault(first, file_of(who))}") from first
        frames = traceback.extract_tb(first.__traceback__)
        if not any(frame.filename in _users_files() for frame in frames):
            raise
        raise PluginError(fault(first)) from first


def is_whole(value: Any) -> bool:
    """Return whether a value that a user's class gave is one whole number, numpy's or Python's."""
    if type(value) is int:  # nearly always
        return True
    if isinstance(value, np.ndarray):
        return value.shape == () and value.dtype.kind in "iu"
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def held_to(member: object, method: str, given: Any, is_right: bool, rule: str) -> None:
    """Raise a PluginError if what a method of a member returned is not right."""
    if not is_right:
        text = f"{name_of(member)}: {method} returned {short(given)}; it must be {rule}"
        raise PluginError(text)


def name_of(member: object) -> str:
    """Return what a message calls a member of a family: its class and its name."""
    kind = getattr(member, "kind", None)
    return f"{type(member).__name__} '{kind}'" if isinstance(kind, str) else type(member).__name__


def fault(error: BaseException, file: str | None = None) -> str:
    """Return an exception in one line, with its line in `file`, or else where it was raised."""
    what = _said_by(error)
    text = f"{type(error).__name__}: {what}" if what else type(error).__name__
    if isinstance(error, SyntaxError):  # it names the line that was read, not one that ran
        place, number = error.filename or file or "", error.lineno or 0
        return f"SyntaxError: {error.msg} ({Path(place).name}, line {number})"
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if frame.filename == file]
    mine = own or [frame for frame in frames if not _is_library(frame.filename)]
    if not mine:
        return text
    where = mine[-1]
    return f"{text} ({where.filename}, line {where.lineno}, in {where.name})"


def _said_by(error: BaseException) -> str:
    if not isinstance(error, ValidationError):
        return (str(error).splitlines() or [""])[0]
    told = told_problems(error)[0]
    is_frozen = error.errors(include_url=False)[0]["type"] == "frozen_instance"
    remedy = ": an object does not change while it is used; put what it remembers into its memory"
    return told + (remedy if is_frozen else "")


def _is_library(file: str) -> bool:
    return file.startswith(_LIBRARIES) or "site-packages" in file


def file_of(member: object) -> str | None:
    """Return the file that the class of a member stands in, None if that is not known."""
    function = next(
        (value for value in vars(type(member)).values() if hasattr(value, "__code__")), None
    )
    return None if function is None else str(function.__code__.co_filename)


def _users_files() -> set[str]:
    """Return the files in which classes of the user's stand."""
    classes: list[type] = [Settings]
    for each in classes:  # which grows meanwhile
        classes += each.__subclasses__()
    names = {each.__module__ for each in classes if not is_shipped_class(each)}
    found = (getattr(sys.modules.get(name), "__file__", None) for name in names)
    return {file for file in found if file is not None}


def _user_of(place: TracebackType | None) -> Settings | None:
    """Return the innermost object of a user's class whose method was running."""
    found = None
    while place is not None:
        who = place.tb_frame.f_locals.get("self")
        if isinstance(who, Settings) and not is_shipped(who):
            found = who
        place = place.tb_next
    return found
