"""Functions of lookups, compiled by numba when they are first called."""

from collections.abc import Callable
from importlib import import_module
from typing import Any, TypeVar

from specsim.core.machine_code import say_no_numba

Function = TypeVar("Function", bound=Callable[..., Any])

_numba: Any = None
try:
    _numba = import_module("numba")
except ImportError:
    say_no_numba()


def jit(function: Function) -> Function:
    """Return a function as machine code, which is kept where there is a folder to keep it in."""
    if _numba is None:
        return function
    compiled: Function
    try:
        compiled = _numba.njit(cache=True)(function)
    except RuntimeError:  # neither beside the sources nor at home may anything be written
        compiled = _numba.njit(function)
    return compiled
