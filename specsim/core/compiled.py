"""Compiled loops: plain Python functions over arrays, which run as machine code where they can.

A loop is an ordinary function of one `NamedTuple` of arrays. It and the functions that it calls
(`inner`) are the only source of what they do: tests, debuggers and coverage run them as they stand
(``NUMBA_DISABLE_JIT=1``), everybody else runs what numba made of them.

numba is asked once per machine, in a process of its own (`specsim.core.compiler`); the machine code
that comes out is kept in a cache folder, and runs load it from there. So a run neither imports
numba, which takes longer than many a simulation, nor can a crash of the compiler take it along.
Where nothing can be compiled, loops run as Python: slower, with the same results, and said in one
line.
"""

import ctypes
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from copy import deepcopy
from functools import cache
from hashlib import sha256
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from platform import platform, processor
from tempfile import NamedTemporaryFile, gettempdir
from time import monotonic
from typing import Any, TypeVar

import numpy as np
from numpy.typing import DTypeLike, NDArray

__all__ = [
    "CACHE_VARIABLE",
    "Loop",
    "Pointers",
    "Types",
    "as_records",
    "cache_folder",
    "inlined",
    "inner",
]

CACHE_VARIABLE = "SPECSIM_CACHE_DIR"
"""Environment variable: the folder for compiled code, in place of ``~/.cache/specsim``."""

_IS_COMPILER = "SPECSIM_COMPILES"
_LIMIT = 300.0  # seconds after which a compiler that still runs is taken to hang
_PROTOTYPE = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p)

Function = TypeVar("Function", bound=Callable[..., Any])
Types = Mapping[str, "tuple[DTypeLike, int] | Types"]


class FailedError(Exception):
    """Nothing can be compiled or loaded; says why."""


def inner(function: Function) -> Function:
    """Mark a function that compiled loops call: scalars, arrays and records in, scalars out."""
    return _for_loops(function)


def inlined(function: Function) -> Function:
    """Mark such a function that is copied to wherever it is called: little work, done often."""
    return _for_loops(function, forceinline=True)


def _for_loops(function: Function, **options: bool) -> Function:
    if _IS_COMPILER not in os.environ:
        return function
    # Unlike `njit` it makes no way in from Python, which saves a third of the time.
    mark = import_module("numba.extending").register_jitable(error_model="numpy", **options)
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
        """Return the loop over some arrays, compiled if that can be had.

        Returns:
            Runs the loop once.
        """
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


def as_records(array: NDArray[Any]) -> NDArray[Any]:
    """Return an array whose rows can be asked for their fields by name, as numba's can."""
    return array.view(np.recarray) if array.dtype.fields else array


Addresses = dict[str, int]
"""Where each function of some machine code lies in this process."""


def _linked(code: bytes, names: list[str]) -> Addresses:
    """Put machine code into this process: a shared library, or an object file for llvmlite."""
    is_library = code[:4] == b"\x7fELF" and code[16:18] == b"\3\0"
    found = _from_library(code) if is_library else _from_object(code)
    try:
        addresses = {name: found(name) for name in names}
    except AttributeError as error:
        raise FailedError("the compiled code lacks an entry") from error
    if not all(addresses.values()):
        raise FailedError("the compiled code lacks an entry")
    return addresses


def _from_library(code: bytes) -> Callable[[str], int]:
    file = os.memfd_create("specsim")
    try:
        os.write(file, code)
        library = ctypes.CDLL(f"/proc/self/fd/{file}")
    except OSError as error:
        os.close(file)
        raise FailedError(f"the compiled code cannot be loaded ({error})") from error
    # The file stays open: another one under its number would be taken for this library.
    return lambda name: ctypes.cast(library[name], ctypes.c_void_p).value or 0


def _from_object(code: bytes) -> Callable[[str], int]:
    engine = _execution_engine()
    import llvmlite.binding as llvm  # noqa: PLC0415 - heavy, and only where code is loaded

    try:
        engine.add_object_file(llvm.ObjectFileRef.from_data(code))
        engine.finalize_object()
    except RuntimeError as error:
        raise FailedError(f"the compiled code cannot be loaded ({error})") from error
    return lambda name: int(engine.get_function_address(name))


@cache
def _execution_engine() -> Any:
    try:
        import llvmlite.binding as llvm  # noqa: PLC0415 - heavy, and only where code is loaded
    except ImportError as error:
        raise FailedError(f"llvmlite cannot be imported ({error}); reinstall numba") from error
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    machine_code = llvm.Target.from_default_triple().create_target_machine(
        reloc="static", codemodel="large"
    )
    return llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine_code)


@cache
def _address(loop: Loop) -> int | None:
    """Return where the machine code of a loop lies in this process; None if there is none."""
    if os.environ.get("NUMBA_DISABLE_JIT", "0") not in ("", "0"):
        return None
    return _loaded(loop.module).get(symbol(loop))


@cache
def _loaded(module: str) -> Addresses:
    """Load the machine code of a module's loops; nothing if there is none, which is said."""
    loops = loops_of(module)
    try:
        return _linked(_code(loops), [symbol(loop) for loop in loops])
    except FailedError as failure:
        print(
            f"specsim: running without compiled code, some fifty times slower: {failure}",
            file=sys.stderr,
        )
        return {}


def loops_of(module: str) -> list[Loop]:
    """Return the loops that a module defines."""
    values = vars(import_module(module)).values()
    return [value for value in values if isinstance(value, Loop) and value.module == module]


def symbol(loop: Loop) -> str:
    """Return the name of a loop in machine code."""
    return f"specsim.{loop.module}.{loop.function.__name__}"


def _code(loops: list[Loop]) -> bytes:
    """Return the machine code of a module's loops, from the cache or newly compiled."""
    name = loops[0].name
    digest = _digest(loops)
    folder = cache_folder()
    if folder is None:
        return _compiled(loops[0])
    path = folder / f"{name}-{digest}.code"
    code = _read(path)
    if code is not None:
        return code
    with _lock(folder / f"{name}.lock"):
        code = _read(path)  # somebody else may have compiled it meanwhile
        if code is None:
            code = _compiled(loops[0])
            _write(path, code)
    return code


def cache_folder() -> Path | None:
    """Return the folder that holds compiled code; None if no folder can be written to."""
    named = os.environ.get(CACHE_VARIABLE)
    home = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    private = Path(gettempdir()) / f"specsim-{getattr(os, 'getuid', int)()}"
    for folder in [Path(named)] if named else [Path(home) / "specsim", private]:
        with suppress(OSError):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            # Machine code is run as it is found, so the folder must be nobody else's.
            if os.access(folder, os.W_OK) and _is_ours(folder):
                return folder
    return None


def _is_ours(folder: Path) -> bool:
    if not hasattr(os, "getuid"):
        return True
    status = folder.stat()
    return status.st_uid in (os.getuid(), 0) and not status.st_mode & 0o002


def _digest(loops: list[Loop]) -> str:
    """Return what the code depends on: its sources, the compiler and the processor."""
    digest = sha256("\0".join([*_machine(), loops[0].module]).encode())
    rooms = dict.fromkeys(room for loop in loops for room in loop.rooms)
    own = [Path(__file__), Path(__file__).with_name("compiler.py")]
    for path in [*own, *(path for room in rooms for path in _sources(room))]:
        digest.update(path.name.encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:24]


@cache
def _machine() -> list[str]:
    try:
        versions = [version("numba"), version("llvmlite"), sys.version.split()[0], np.__version__]
    except PackageNotFoundError as error:
        raise FailedError(f"numba is not installed ({error})") from error
    return [*versions, platform(), _processor()]


def _processor() -> str:
    """Return what the instructions are that this processor knows."""
    with suppress(OSError):
        first = Path("/proc/cpuinfo").read_text().split("\n\n")[0].splitlines()
        known = ("model name", "flags", "Features", "CPU part")
        return "\n".join(line for line in first if line.startswith(known))
    return processor()


def _sources(room: str) -> list[Path]:
    spec = find_spec(room)
    assert spec is not None
    assert spec.origin is not None
    path = Path(spec.origin)
    return sorted(path.parent.glob("*.py")) if path.name == "__init__.py" else [path]


def _read(path: Path) -> bytes | None:
    """Return code from the cache; None if it is not there, or not whole."""
    try:
        return _checked(path.read_bytes())
    except OSError:
        return None


def sealed(code: bytes) -> bytes:
    """Return code with what tells whether it is whole: the linker trusts all that it gets."""
    return code + sha256(code).digest()


def _checked(data: bytes) -> bytes | None:
    code, seal = data[:-32], data[-32:]
    return code if code and sha256(code).digest() == seal else None


def _write(path: Path, code: bytes) -> None:
    """Keep code; a cache that is full or read-only costs time, not the run."""
    try:
        with NamedTemporaryFile(dir=path.parent, prefix=".", delete=False) as stream:
            stream.write(sealed(code))
        os.replace(stream.name, path)
    except OSError as error:
        with suppress(OSError, NameError):
            os.unlink(stream.name)
        print(
            f"specsim: {path.parent} cannot keep the compiled code ({error.strerror}), so it will "
            f"be compiled again; set {CACHE_VARIABLE} to a folder with some megabytes of room",
            file=sys.stderr,
        )


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    """Let one process compile while the others wait for what it finds."""
    try:
        import fcntl  # noqa: PLC0415 - not on Windows

        stream = path.open("a")
    except (ImportError, OSError):
        yield
        return
    with stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        yield


def _compiled(loop: Loop) -> bytes:
    """Compile a loop in a process of its own."""
    began = monotonic()
    say = _Progress(f"specsim: compiling its {loop.name} for this machine, once")
    environment = {**os.environ, _IS_COMPILER: "1", "NUMBA_DISABLE_JIT": "0"}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    try:
        process = subprocess.Popen(
            _command(loop.module), stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment
        )
    except OSError as error:
        raise FailedError(f"no process can be started to compile it ({error})") from error
    while True:
        try:
            data, said = process.communicate(timeout=1.0)
            break
        except subprocess.TimeoutExpired:
            say.seconds(monotonic() - began)
            if monotonic() - began > _LIMIT:
                process.kill()
    say.end(monotonic() - began)
    code = _checked(data)
    if process.returncode or code is None:
        lines = said.decode(errors="replace").strip().splitlines()
        why = lines[-1] if lines else f"it ended with {process.returncode} and made no code"
        raise FailedError(f"the compiler failed: {why}")
    return code


def _command(module: str) -> list[str]:
    return [sys.executable, "-m", "specsim.core.compiler", module]


class _Progress:
    """One line on the terminal that counts seconds, or one line in a log."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._is_terminal = sys.stderr.isatty()
        print(f"{text} ...", end="" if self._is_terminal else "\n", file=sys.stderr, flush=True)

    def seconds(self, elapsed: float) -> None:
        """Show how long it has taken so far."""
        if self._is_terminal:
            print(f"\r{self._text} ... {elapsed:.0f} s", end="", file=sys.stderr, flush=True)

    def end(self, elapsed: float) -> None:
        """Close the line."""
        if self._is_terminal:
            print(f"\r{self._text} ... {elapsed:.0f} s", file=sys.stderr, flush=True)
