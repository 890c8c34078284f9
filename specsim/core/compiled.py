"""Compiled loops: plain Python functions over arrays, which run as machine code where they can.

A loop is an ordinary function of one `NamedTuple` of arrays. It and the functions that it calls
(`inner`) are the only source of what they do: tests, debuggers and coverage run them as they stand
(``NUMBA_DISABLE_JIT=1``), everybody else runs what numba made of them
(`specsim.core.machine_code`). Where nothing can be compiled, loops run as Python: slower, with the
same results, and said in one line.
"""

import ctypes
import os
from collections.abc import Callable, Mapping
from copy import deepcopy
from functools import cache
from importlib import import_module
from typing import Any, Protocol, TypeVar, get_args, get_type_hints, overload

import numpy as np
from numpy.typing import DTypeLike, NDArray

from specsim.core.machine_code import IS_COMPILER, Source, loaded

_PROTOTYPE = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p)

Function = TypeVar("Function", bound=Callable[..., Any])
Types = Mapping[str, "tuple[DTypeLike, int] | Types"]


Row_co = TypeVar("Row_co", covariant=True)


class Rows(Protocol[Row_co]):
    """A record array: rows by their place, columns by their name."""

    @overload
    def __getitem__(self, place: str, /) -> NDArray[Any]: ...
    @overload
    def __getitem__(self, place: slice | tuple[int, slice] | NDArray[Any], /) -> NDArray[Any]: ...
    @overload
    def __getitem__(self, place: int | tuple[int, int], /) -> Row_co: ...
    def __getitem__(self, place: Any, /) -> Any: ...

    def __setitem__(self, place: Any, value: Any, /) -> None: ...

    def __len__(self) -> int: ...


def types_of(arrays: type) -> Types:
    """Return the types of the fields of a `NamedTuple`, in order, as `Loop` wants them.

    A field says what numpy's types do not, ``Annotated[NDArray[np.int32], 2]`` its number of axes,
    ``Annotated[Any, Part]`` that it holds pointers to a `Part`.
    """
    types: dict[str, tuple[DTypeLike, int] | Types] = {}
    for field, hint in get_type_hints(arrays, include_extras=True).items():
        kind, more = get_args(hint)
        is_array = isinstance(more, int)
        types[field] = (get_args(get_args(kind)[1])[0], more) if is_array else types_of(more)
    return types


def inner(function: Function) -> Function:
    """Mark a function that compiled loops call: scalars, arrays and records in, scalars out."""
    return _for_loops(function, forceinline=False)


def inlined(function: Function) -> Function:
    """Mark such a function that is copied to wherever it is called: little work, done often."""
    return _for_loops(function, forceinline=True)


def _for_loops(function: Function, *, forceinline: bool) -> Function:
    if IS_COMPILER not in os.environ:
        return function
    # Unlike `njit` it makes no way in from Python; no other way in either, no whole-array sums, and
    # nothing is counted that refers to arrays.
    options = {"no_cfunc_wrapper": True, "no_rewrites": True, "_nrt": False}
    mark = import_module("numba.extending").register_jitable(
        error_model="numpy", forceinline=forceinline, **options
    )
    compiled: Function = mark(function)
    return compiled


class Pointers:
    """Where the arrays of a `NamedTuple` lie, and their shapes: what compiled code sees of them.

    Loops bound to the same pointers share them; and they may be fields of other tuples, so that
    what grows is looked up again in one place.

    Args:
        arrays: Contiguous, of the given types; they are kept.
        types: See `Loop`.
    """

    def __init__(self, arrays: Any, types: Types) -> None:
        self.arrays = arrays
        self._types = types
        self._numbers = (ctypes.c_int64 * (3 * len(types)))()
        self.address = ctypes.addressof(self._numbers)
        self.update()

    def update(self) -> None:
        """Look again, after some of the arrays were resized in place."""
        numbers: list[int] = []
        for value, (field, kind) in zip(self.arrays, self._types.items(), strict=True):
            if isinstance(value, Pointers):
                numbers += (value.address, 0, 0)
                continue
            assert isinstance(kind, tuple)
            if value.dtype != kind[0] or value.ndim != kind[1] or not value.flags.c_contiguous:
                raise TypeError(f"array '{field}' is not a contiguous {kind[0]} of {kind[1]} axes")
            numbers += (value.ctypes.data, *value.shape, 0)[:3]
        self._numbers[:] = numbers  # type: ignore[assignment]

    def __deepcopy__(self, memo: dict[int, Any]) -> "Pointers":
        """Return pointers to copies of the arrays; a plain copy would point to these."""
        return Pointers(deepcopy(self.arrays, memo), self._types)

    def records(self) -> Any:
        """Return the tuple as Python's loops want it, with tuples where there are pointers."""
        values = (v.records() if isinstance(v, Pointers) else as_records(v) for v in self.arrays)
        return type(self.arrays)(*values)


class Loop:
    """A function of a `NamedTuple` of arrays that returns a whole number.

    Loops of one module are compiled together.

    Args:
        function: Neither allocates nor raises. Defined at the top of its module, and so is the
            loop.
        types: Element type and number of dimensions of each field of the tuple, in order; of a
            field that is such a tuple itself, its types.
        name: What the loops of the module are called together.
        rooms: Modules and packages from whose files they are compiled; a change there compiles them
            anew.
    """

    def __init__(
        self, function: Callable[[Any], int], types: Types, *, name: str, rooms: tuple[str, ...]
    ) -> None:
        self.function = function
        self.types = types
        self.name = name
        self.module = function.__module__
        self.rooms = rooms

    def bind(self, arrays: Any) -> Callable[[], int]:
        """Return what runs the loop once over some arrays, compiled if that can be had."""
        pointers = arrays if isinstance(arrays, Pointers) else Pointers(arrays, self.types)
        return _Bound(self, pointers)


class _Bound:
    """A loop over some arrays."""

    __slots__ = ("_argument", "_loop", "_pointers", "_run")

    def __init__(self, loop: Loop, pointers: Pointers) -> None:
        self._loop, self._pointers = loop, pointers
        address = _address(loop)
        self._run: Callable[[Any], int]
        if address is None:
            self._argument = pointers.records()
            function = np.errstate(over="ignore")(loop.function)  # as in machine code
            self._run = lambda argument: int(function(argument))
        else:
            self._argument = pointers.address
            self._run = _PROTOTYPE(address)

    def __call__(self) -> int:
        return self._run(self._argument)

    def __deepcopy__(self, memo: dict[int, Any]) -> "_Bound":
        return _Bound(self._loop, deepcopy(self._pointers, memo))


class _Row(np.void):  # type: ignore[misc] # as `numpy.record`
    """A row that can be asked for its fields as attributes, in half the time of `numpy.record`."""

    def __getattr__(self, name: str) -> Any:
        return self[name]

    def __setattr__(self, name: str, value: Any) -> None:
        self[name] = value


def as_records(array: NDArray[Any]) -> NDArray[Any]:
    """Return an array whose rows can be asked for their fields by name, as numba's can."""
    return array.view(np.dtype((_Row, array.dtype))) if array.dtype.fields else array


@cache
def _address(loop: Loop) -> int | None:
    """Return where the machine code of a loop lies in this process; None if there is none."""
    if os.environ.get("NUMBA_DISABLE_JIT", "0") not in ("", "0"):
        return None
    return _addresses(loop.module).get(symbol(loop))


@cache
def _addresses(module: str) -> dict[str, int]:
    """Return where the machine code of a module's loops lies in this process."""
    loops = loops_of(module)
    rooms = tuple(dict.fromkeys(room for loop in loops for room in loop.rooms))
    return loaded(Source(module, loops[0].name, rooms, [symbol(loop) for loop in loops]))


def loops_of(module: str) -> list[Loop]:
    """Return the loops that a module defines."""
    values = vars(import_module(module)).values()
    return [value for value in values if isinstance(value, Loop) and value.module == module]


def symbol(loop: Loop) -> str:
    """Return the name of a loop in machine code."""
    return f"specsim.{loop.module}.{loop.function.__name__}"
