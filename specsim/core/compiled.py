"""Compiled loops: plain Python functions over arrays, which run as machine code where they can.

A loop is an ordinary function of one `NamedTuple` of arrays. It and the functions that it calls
(`inner`) are the only source of what they do: tests, debuggers and coverage run them as they stand
(``NUMBA_DISABLE_JIT=1``), everybody else runs what numba made of them
(`specsim.core.machine_code`). Where nothing can be compiled, loops run as Python: slower, with the
same results, and said in one line.
"""

import ctypes
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from functools import cache, partial
from hashlib import sha256
from importlib import import_module
from threading import local
from types import CodeType, FunctionType, ModuleType
from typing import Annotated, Any, Protocol, TypeVar, get_args, get_origin, get_type_hints, overload

import numpy as np
from numpy.typing import DTypeLike, NDArray

from specsim.core.machine_code import IS_COMPILER, Source, loaded, say_slow
from specsim.core.surroundings import is_on

_PROTOTYPE = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p)
_UNDIVIDED = ctypes.PYFUNCTYPE(ctypes.c_int64, ctypes.c_void_p)

Function = TypeVar("Function", bound=Callable[..., Any])
HOOK, HOOKS = "hook", "hooks"
Types = Mapping[str, "tuple[DTypeLike, int] | Types | str"]
"""Of each field of a tuple: element type and number of axes, the types of a tuple, `HOOK`, or
`HOOKS`."""

Row_co = TypeVar("Row_co", covariant=True)


class Rows(Protocol[Row_co]):
    """A record array: rows by their place, columns by their name."""

    @overload
    def __getitem__(self, place: str, /) -> NDArray[Any]: ...
    @overload
    def __getitem__(
        self, place: slice | tuple[int, slice] | NDArray[Any] | list[str], /
    ) -> NDArray[Any]: ...
    @overload
    def __getitem__(self, place: int | tuple[int, int], /) -> Row_co: ...
    def __getitem__(self, place: Any, /) -> Any: ...

    def __setitem__(self, place: Any, value: Any, /) -> None: ...

    def __len__(self) -> int: ...


@cache
def types_of(arrays: type) -> Types:
    """Return the types of the fields of a `NamedTuple`, in order, as `Loop` wants them.

    A field says what numpy's types do not, ``Annotated[NDArray[np.int32], 2]`` its number of axes,
    ``Annotated[Any, Part]`` that it holds pointers to a `Part`, ``Rows[Row]`` the fields of its
    records, `Hook` that it is called if it is there, `Hooks` that one of several is.

    Raises:
        TypeError: It is no `NamedTuple`, or a field says something else.
    """
    if not hasattr(arrays, "_fields"):
        raise TypeError(f"{arrays!r} is no NamedTuple of arrays")
    types: dict[str, tuple[DTypeLike, int] | Types | str] = {}
    for field, hint in get_type_hints(arrays, include_extras=True).items():
        if hint in (Hook, Hook | None, Hooks):
            types[field] = HOOKS if hint is Hooks else HOOK
        elif get_origin(hint) is Rows:
            types[field] = (record_of(*get_args(hint)), 1)
        elif get_origin(hint) is not Annotated:
            raise TypeError(
                f"field '{field}' of {arrays.__name__} is {hint}; it must be Floats, Ints, "
                "Rows[...] or Annotated[NDArray[...], number of axes]"
            )
        else:
            kind, more = get_args(hint)
            is_array = isinstance(more, int)
            types[field] = (element_of(kind), more) if is_array else types_of(more)
    return types


def record_of(row: type, short: tuple[str, ...] = ()) -> np.dtype[Any]:
    """Return the type of records with the fields of a class; `short` ones take half the room."""
    long = {int: "<i8", float: "<f8"}
    fields = get_type_hints(row).items()
    return np.dtype([(field, "<i4" if field in short else long[kind]) for field, kind in fields])


def element_of(array: Any) -> Any:
    """Return ``np.int32`` of ``NDArray[np.int32]``.

    Up to numpy 2.4 that is short for ``ndarray[shape, dtype[np.int32]]``, since 2.5 on Python 3.12
    an alias with one argument. In all of them the last argument of the last one is the element.
    """
    while arguments := get_args(array):
        array = arguments[-1]
    return array


def inner(function: Function) -> Function:
    """Mark a function that compiled loops call: scalars, arrays and records in, scalars out."""
    return _for_loops(function, forceinline=False)


def inlined(function: Function) -> Function:
    """Mark such a function that is copied to wherever it is called: little work, done often."""
    return _for_loops(function, forceinline=True)


def _for_loops(function: Function, *, forceinline: bool) -> Function:
    if IS_COMPILER not in os.environ:
        return function
    # Unlike `njit` it makes no way in from Python, and no other way in either.
    mark = import_module("numba.extending").register_jitable(
        error_model="numpy",
        forceinline=forceinline,
        no_cfunc_wrapper=True,
        no_rewrites=not may_allocate(function.__module__),
        _nrt=may_allocate(function.__module__),
        boundscheck=may_allocate(function.__module__),
    )
    compiled: Function = mark(function)
    return compiled


def may_allocate(module: str) -> bool:
    """Return whether loops of a module may make arrays, and raise: those of users.

    In specsim's own nothing is counted that refers to arrays, and there are no whole-array sums.
    """
    return not module.startswith("specsim.")


class Hook:
    """What a compiled loop calls without knowing what it is: a function of Python's, or a loop.

    What Python raises while machine code calls it is kept until that has come back (`Bound`).
    """

    def __init__(self, function: Callable[[], Any]) -> None:
        self._function = function
        self._callback = _PROTOTYPE(self._called)
        code = ctypes.cast(self._callback, ctypes.c_void_p).value or 0
        self.numbers = (code, 0, 0)
        """Where its machine code lies, and what that is to be told."""

    def __call__(self) -> Any:
        return self._function()

    def _called(self, _: Any) -> int:
        try:
            return int(self._function() or 0)
        except BaseException as error:
            _RAISED.errors.append(error)
            return -1


class Hooks:
    """Several hooks in a row, of which `run_at` calls one."""

    def __init__(self, hooks: Sequence[Hook]) -> None:
        self.numbers = np.zeros((len(hooks), 2), dtype=np.int64)
        self.replace(hooks)

    def replace(self, hooks: Sequence[Hook]) -> None:
        """Put others in their place."""
        self.hooks = hooks
        self.numbers[:] = [hook.numbers[:2] for hook in hooks]


class _Raised(local):
    def __init__(self) -> None:
        self.errors: list[BaseException] = []


_RAISED = _Raised()


def raise_kept() -> None:
    """Raise what a hook in Python has raised in machine code, if anything."""
    if _RAISED.errors:
        raise _RAISED.errors.pop()


def run(hook: Any) -> int:
    """Call a hook from a loop; 0, or less than that if it has raised."""
    return int(hook() or 0)


def run_at(hooks: Any, place: int) -> int:
    """Call one of several hooks; see `run`."""
    return int(hooks.hooks[place]() or 0)


def has(hook: Any) -> bool:
    """Return whether there is anything to call."""
    return hook is not None


class Pointers:
    """Where the arrays of a `NamedTuple` lie, and their shapes: what compiled code sees of them.

    Loops bound to the same pointers share them; and they may be fields of other tuples, so that
    what grows is looked up again in one place.

    Args:
        arrays: Contiguous, of the given types; they are kept. A tuple among them gets pointers of
            its own.
        types: See `Loop`.
    """

    def __init__(self, arrays: Any, types: Types) -> None:
        parts = {
            field: Pointers(getattr(arrays, field), kind)
            for field, kind in types.items()
            if isinstance(kind, Mapping) and not isinstance(getattr(arrays, field), Pointers)
        }
        self.arrays = arrays._replace(**parts) if parts else arrays
        self._types = types
        self._numbers = (ctypes.c_int64 * (3 * len(types)))()
        self.address = ctypes.addressof(self._numbers)
        self.update()

    def update(self) -> None:
        """Look again, after some of the arrays were resized in place."""
        numbers: list[Any] = []
        for value, (field, kind) in zip(self.arrays, self._types.items(), strict=True):
            if isinstance(value, Pointers):
                value.update()
                numbers += (value.address, 0, 0)
                continue
            if kind == HOOK:
                numbers += (0, 0, 0) if value is None else value.numbers
                continue
            if kind == HOOKS:
                numbers += (value.numbers.ctypes.data, *value.numbers.shape)
                continue
            assert isinstance(kind, tuple)
            check_array(field, value, *kind)
            numbers += (value.ctypes.data, *value.shape, 0)[:3]
        self._numbers[:] = numbers

    def __deepcopy__(self, memo: dict[int, Any]) -> "Pointers":
        """Return pointers to copies of the arrays; a plain copy would point to these."""
        return Pointers(deepcopy(self.arrays, memo), self._types)

    def records(self) -> Any:
        """Return the tuple as Python's loops want it, with tuples where there are pointers."""
        return as_records(self.arrays)


def check_array(field: str, array: NDArray[Any], kind: DTypeLike, ndim: int) -> None:
    """Raise a TypeError for an array that compiled code would take for another."""
    if array.dtype != kind or array.ndim != ndim or not array.flags.c_contiguous:
        wanted = np.dtype(kind)
        raise TypeError(
            f"array '{field}' is of {array.dtype.name} and {array.ndim} axes; it must be of "
            f"{wanted.name} and {ndim}, and contiguous"
        )


class Loop:
    """A function of a `NamedTuple` of arrays that returns a whole number.

    Loops of one module are compiled together.

    Args:
        function: Neither allocates nor raises, but for `may_allocate`. Defined at the top of its
            module, and so is the loop.
        types: Element type and number of dimensions of each field of the tuple, in order; of a
            field that is such a tuple itself, its types. A hook ``has_raised`` is called where
            machine code has.
        name: What the loops of the module are called together.
        rooms: Modules and packages from whose files they are compiled; a change there compiles them
            anew.
        text: The function that its module defines, if that is not `function` itself.
    """

    def __init__(
        self,
        function: Callable[[Any], int],
        types: Types,
        *,
        name: str,
        rooms: tuple[str, ...],
        text: Callable[..., Any] | None = None,
    ) -> None:
        self.function = function
        self.text = text or function
        self.types = types
        self.name = name
        self.module = function.__module__
        self.file_version = _version_of(self.text)
        self.rooms = rooms
        self.may_compile = True
        """Whether it is machine code where it is bound, if that can be had."""

    @property
    def is_compiled(self) -> bool:
        return self.may_compile and address_of(self) is not None

    def bind(self, arrays: Any) -> "Bound":
        """Return what runs the loop once over some arrays, compiled if that can be had."""
        pointers = arrays if isinstance(arrays, Pointers) else Pointers(arrays, self.types)
        return Bound(self, pointers)


class Bound(Hook):
    """A loop over some arrays."""

    def __init__(self, loop: Loop, pointers: Pointers) -> None:
        self._loop, self._pointers = loop, pointers
        address = address_of(loop) if loop.may_compile else None
        self.is_compiled = address is not None
        if address is None:
            argument = pointers.records()
            function = np.errstate(over="ignore")(loop.function)  # as in machine code
            super().__init__(partial(function, argument))
        else:
            self._address, self._argument = address, pointers.address
            self._run = _PROTOTYPE(address)
            self.numbers = (address, self._argument, 0)

    def __call__(self) -> int:
        if not self.is_compiled:
            return int(self._function())
        done: int = self._run(self._argument)
        raise_kept()
        return done

    @property
    def bare(self) -> tuple[Callable[[Any], int], Any]:
        """What runs it while it lives, and what to give that; the caller has to `raise_kept`.

        For where a model has emptied the caches: each object that is looked at takes time then. No
        other thread may run meanwhile, which would keep Python's lock for milliseconds.
        """
        if self.is_compiled:
            return _UNDIVIDED(self._address), self._argument
        return lambda _: int(self._function()), None

    def __deepcopy__(self, memo: dict[int, Any]) -> "Bound":
        return Bound(self._loop, deepcopy(self._pointers, memo))


class _Row(np.void):  # type: ignore[misc] # as `numpy.record`
    """A row that can be asked for its fields as attributes, in half the time of `numpy.record`."""

    def __getattr__(self, name: str) -> Any:
        return self[name]

    def __setattr__(self, name: str, value: Any) -> None:
        self[name] = value


def as_records(value: Any) -> Any:
    """Return an array whose rows can be asked for their fields by name, as numba's can.

    Of a tuple of arrays, one of such arrays.
    """
    if isinstance(value, Pointers):
        return value.records()
    if isinstance(value, tuple):
        return type(value)(*map(as_records, value))
    is_records = isinstance(value, np.ndarray) and value.dtype.fields
    return value.view(np.dtype((_Row, value.dtype))) if is_records else value


def _version_of(function: Callable[..., Any]) -> tuple[int, int] | None:
    """Return what tells a file with a function from what is in its place later."""
    try:
        found = os.stat(function.__code__.co_filename)
    except (AttributeError, OSError):
        return None
    return found.st_mtime_ns, found.st_size


@cache
def address_of(loop: Loop) -> int | None:
    """Return where the machine code of a loop lies in this process; None if there is none."""
    if is_on("NUMBA_DISABLE_JIT"):
        return None
    loops = {symbol(each): each for each in loops_of(loop.module)}
    found = loops.get(symbol(loop))
    # None of its name: a function of a module, in the `Loops` of another. Another function: the
    # module was reloaded since, and what would be compiled is what it says now.
    if found is None or found.text is not loop.text:
        say_slow(
            f"its {loop.name} as Python", f"'{loop.function.__name__}' is another function there"
        )
        return None
    if loop.file_version != _version_of(loop.text):  # its file was edited since it was imported
        return None
    return _addresses(loop.module, tuple(loops.values()))[symbol(loop)]


@cache
def _addresses(module: str, loops: tuple[Loop, ...]) -> Mapping[str, int | None]:
    """Return where the machine code of a module's loops lies in this process."""
    rooms = tuple(dict.fromkeys(room for loop in loops for room in loop.rooms))
    symbols = [symbol(loop) for loop in loops]
    found = loaded(Source(module, loops[0].name, rooms, symbols))
    return dict.fromkeys(symbols) | found


def loops_of(module: str) -> list[Loop]:
    """Return the loops that a module defines."""
    values = list(vars(import_module(module)).values())
    classes = [value for value in values if isinstance(value, type) and value.__module__ == module]
    values += [value for each in classes for value in vars(each).values()]
    grouped = [loop for value in values for loop in getattr(value, "loops_of_module", ())]
    loops = [*(value for value in values if isinstance(value, Loop)), *grouped]
    return list({symbol(loop): loop for loop in loops if loop.module == module}.values())


@cache
def symbol(loop: Loop) -> str:
    """Return a name in machine code, which a function has for each kind of arrays anew.

    One of a user's has another if it, or what it takes from outside, is another.
    """
    text = repr(loop.types)
    if may_allocate(loop.module):
        text += "".join(_taken(loop.text, set()))
    version = sha256(text.encode()).hexdigest()[:12]
    return f"specsim.{loop.module}.{loop.function.__name__}.{version}"


def _taken(function: Any, seen: set[Any]) -> Iterator[str]:
    """Yield what a function of a user is, and what it takes from outside, as code of it does.

    Constants, arrays that were read from a file, and functions, whatever file they are in.
    """
    if function in seen or function.__module__.startswith(("specsim.", "numpy")):
        return  # the files of the former are known
    seen.add(function)
    cells = [cell.cell_contents for cell in function.__closure__ or ()]
    around = {
        **function.__globals__,
        **dict(zip(function.__code__.co_freevars, cells, strict=True)),
    }
    codes = [function.__code__]
    for code in codes:  # grows
        codes += [each for each in code.co_consts if isinstance(each, CodeType)]
        constants = [each for each in code.co_consts if not isinstance(each, CodeType)]
        yield repr((code.co_firstlineno, code.co_code, code.co_names, constants))
        modules = [
            around[name] for name in code.co_names if isinstance(around.get(name), ModuleType)
        ]
        for name in (*code.co_names, *code.co_freevars):
            for value in [around.get(name), *(vars(each).get(name) for each in modules)]:
                if isinstance(value, FunctionType):
                    yield from _taken(value, seen)
                elif isinstance(value, np.ndarray):
                    yield f"{value.dtype}{value.shape}{value.tobytes().hex()}"
                elif isinstance(value, int | float | str | tuple | np.generic):
                    yield repr(value)
