"""Machine code of compiled loops: made once per machine, kept in a cache folder, and loaded.

numba is asked in a process of its own (`specsim.core.compiler`). So a run neither imports numba,
which takes longer than many a simulation, nor can a crash of the compiler take it along.
"""

import ctypes
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from platform import platform, processor
from tempfile import NamedTemporaryFile, gettempdir
from time import monotonic
from typing import Any, NamedTuple

import numpy as np

from specsim.core.surroundings import working_folder

CACHE_VARIABLE = "SPECSIM_CACHE_DIR"
"""Environment variable: the folder for compiled code, in place of ``~/.cache/specsim``."""

IS_COMPILER = "SPECSIM_COMPILES"  # environment variable: this process is the compiler

_OBJECTS = (b"\x7fELF", b"\xcf\xfa\xed\xfe", b"\x64\x86")  # of Linux, macOS and Windows
_LIMIT = 1800.0  # seconds after which a compiler is taken to hang; a busy machine takes minutes


class FailedError(Exception):
    """Nothing can be compiled or loaded; says why."""


class NoNumbaError(FailedError):
    """Nothing can be compiled here."""


class UnusableError(FailedError):
    """There is code, and it cannot be loaded."""


class Source(NamedTuple):
    """Loops of one module, which are compiled together."""

    module: str
    name: str  # what they are called together
    rooms: tuple[str, ...]  # modules and packages from whose files they are compiled
    symbols: list[str]  # their names in machine code


def loaded(source: Source) -> dict[str, int]:
    """Return where each loop lies in this process; nothing if there is no code, which is said."""
    try:
        path = _kept_at(source)
        kept = None if path is None else _read(path)
        if kept is not None:
            with suppress(UnusableError):  # whole, and yet not what was compiled here
                return _linked(kept, source.symbols)
        return _linked(_code(source, path, kept), source.symbols)
    except NoNumbaError:
        say_no_numba()
    except FailedError as failure:
        say_slow(f"its {source.name} as Python", str(failure))
    return {}


@cache
def say_no_numba() -> None:
    """Say, once, that nothing can be compiled."""
    say_slow("without compiled code", "numba is not installed; pip install numba")


def say_slow(how: str, why: str) -> None:
    """Say that loops run as Python, and why."""
    text = f"specsim: running {how}, some fifty times slower: {why}\n"
    sys.stderr.write(text)  # at once, for other processes may say so, too


def _linked(code: bytes, names: list[str]) -> dict[str, int]:
    """Put machine code into this process: a shared library, or an object file for llvmlite."""
    is_library = code[:4] == b"\x7fELF" and code[16:18] == b"\3\0"
    found = _from_library(code) if is_library else _from_object(code)
    try:
        addresses = {name: found(name) for name in names}
    except AttributeError as error:
        raise UnusableError("the compiled code lacks an entry") from error
    if not all(addresses.values()):
        raise UnusableError("the compiled code lacks an entry")
    return addresses


def _from_library(code: bytes) -> Callable[[str], int]:
    file = None
    try:
        file = os.memfd_create("specsim")
        with open(file, "wb", closefd=False) as stream:  # all of it, or the linker would crash
            stream.write(code)
        library = ctypes.CDLL(f"/proc/self/fd/{file}")
    except OSError as error:
        if file is not None:
            os.close(file)
        raise UnusableError(f"the compiled code cannot be loaded ({error})") from error
    # The file stays open: another one under its number would be taken for this library.
    return lambda name: ctypes.cast(library[name], ctypes.c_void_p).value or 0


def _from_object(code: bytes) -> Callable[[str], int]:
    if not code.startswith(_OBJECTS):  # llvmlite would crash
        raise UnusableError("the compiled code is no machine code")
    engine = _execution_engine()
    import llvmlite.binding as llvm

    try:
        engine.add_object_file(llvm.ObjectFileRef.from_data(code))
        engine.finalize_object()
    except RuntimeError as error:
        raise UnusableError(f"the compiled code cannot be loaded ({error})") from error
    return lambda name: int(engine.get_function_address(name))


@cache
def _execution_engine() -> Any:
    try:
        import llvmlite.binding as llvm
    except ImportError as error:
        raise FailedError(f"llvmlite cannot be imported ({error}); reinstall numba") from error
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    machine_code = llvm.Target.from_default_triple().create_target_machine(
        reloc="static", codemodel="large"
    )
    return llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine_code)


def _kept_at(source: Source) -> Path | None:
    """Return the file that keeps the machine code of some loops; None if there is no such place."""
    if source.module == "__main__":
        raise FailedError("what a script defines is not compiled; import it from a file")
    digest = _digest(source)
    folder = cache_folder()
    return None if folder is None else folder / f"{source.name}-{digest}.code"


def _code(source: Source, path: Path | None, useless: bytes | None) -> bytes:
    """Compile some loops, and keep the code in place of what is of no use."""
    if path is None:
        nowhere = f"this process alone, as no folder can keep it (set {CACHE_VARIABLE} to one)"
        return _compiled(source, nowhere)
    with _lock(path.with_name(f"{source.name}.lock")):
        code = _read(path)  # somebody else may have compiled it meanwhile
        if code is None or code == useless:
            code = _compiled(source, "this machine, once")
            _write(path, code)
    return code


def cache_folder() -> Path | None:
    """Return the folder that holds compiled code; None if no folder can be written to."""
    for folder in _cache_folders():
        with suppress(OSError):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            # Machine code is run as it is found, so the folder must be nobody else's.
            if os.access(folder, os.W_OK) and _is_ours(folder):
                return folder
    return None


def _cache_folders() -> Iterator[Path]:
    """Yield where compiled code may be kept, best first."""
    if named := os.environ.get(CACHE_VARIABLE):
        yield Path(named)
        return
    home = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    if os.path.isabs(home):  # an account without a home has "~" there
        yield Path(home, "specsim")
    try:
        shared = gettempdir()
    except OSError:  # there is no folder for temporary files
        return
    yield Path(shared, f"specsim-{getattr(os, 'getuid', int)()}")


def _is_ours(folder: Path) -> bool:
    if not hasattr(os, "getuid"):
        return True
    status = folder.stat()
    return status.st_uid in (os.getuid(), 0) and not status.st_mode & 0o002


def _digest(source: Source) -> str:
    """Return what the code depends on: its sources, the compiler and the processor."""
    digest = sha256("\0".join([*_machine(), source.module, *source.symbols]).encode())
    own = [Path(__file__).with_name(name) for name in ("compiled.py", "compiler.py")]
    for path in [*own, *(path for room in source.rooms for path in _sources(room))]:
        digest.update(path.name.encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:24]


@cache
def _machine() -> list[str]:
    try:
        versions = [version("numba"), version("llvmlite"), sys.version.split()[0], np.__version__]
    except PackageNotFoundError as error:
        raise NoNumbaError from error
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
        import fcntl

        stream = path.open("a")
    except (ImportError, OSError):  # Windows has no fcntl
        yield
        return
    with stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        yield


def _compiled(source: Source, whom_for: str) -> bytes:
    began = monotonic()
    text = f"specsim: compiling its {source.name} for {whom_for}"
    is_terminal = sys.stderr.isatty()
    print(f"{text} ...", end="" if is_terminal else "\n", file=sys.stderr, flush=True)
    environment = {**os.environ, IS_COMPILER: "1", "NUMBA_DISABLE_JIT": "0"}
    environment["NUMBA_DISABLE_ERROR_MESSAGE_HIGHLIGHTING"] = "1"  # it makes and drops thousands
    environment["PYTHONPATH"] = os.pathsep.join(
        path or str(working_folder() or "") for path in sys.path
    )
    try:
        process = subprocess.Popen(
            command(source.module), stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment
        )
    except OSError as error:
        raise FailedError(f"no process can be started to compile it ({error})") from error
    while True:
        try:
            data, said = process.communicate(timeout=1.0)
            break
        except subprocess.TimeoutExpired:
            _show_seconds(text, monotonic() - began)
            if monotonic() - began > _LIMIT:
                process.kill()
    _show_seconds(text, monotonic() - began, end="\n")
    code = _checked(data)
    if process.returncode or code is None:
        lines = said.decode(errors="replace").strip().splitlines()
        why = lines[-1] if lines else f"it ended with {process.returncode} and made no code"
        raise FailedError(f"the compiler failed: {why}")
    return code


def command(module: str) -> list[str]:
    """Return what compiles a module in a process of its own."""
    # -P: not from the working directory first, where another checkout may lie.
    return [sys.executable, "-P", "-m", "specsim.core.compiler", module]


def _show_seconds(text: str, elapsed: float, end: str = "") -> None:
    """Show on a terminal how long something has taken; a log has said that it began."""
    if sys.stderr.isatty():
        print(f"\r{text} ... {elapsed:.0f} s", end=end, file=sys.stderr, flush=True)
