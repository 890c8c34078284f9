"""Compiled loops: the same result whatever becomes of the compiler and of its cache."""

import os
import subprocess
import sys
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest
from numpy.random import _common
from numpy.typing import NDArray
from typing_extensions import TypeAliasType

from specsim.core import compiled
from specsim.core.compiled import Pointers, element_of
from specsim.core.machine_code import CACHE_VARIABLE, sealed
from specsim.core.request import Text
from specsim.lookup.suffix import SuffixLookup

MODULE = """
from typing import NamedTuple
import numpy as np
from specsim.core.compiled import Loop, Pointers, inner

class Part(NamedTuple):
    numbers: np.ndarray

class All(NamedTuple):
    part: Part
    weights: np.ndarray

PART = {"numbers": (np.int64, 1)}
ALL = {"part": PART, "weights": (np.float64, 2)}

@inner
def last(numbers):
    return numbers[len(numbers) - 1]

def _total(part):
    total = 0
    for number in part.numbers:
        total += number
    return total

def _weighted(all):
    return int(last(all.part.numbers) * all.weights[1, 0])

total = Loop(_total, PART, name="sums", rooms=("tiny_loops.sums",))
weighted = Loop(_weighted, ALL, name="sums", rooms=("tiny_loops.sums",))

def results():
    part = Part(np.arange(5))
    pointers = Pointers(part, PART)
    run = weighted.bind(All(pointers, np.array([[1.0, 2.0], [3.0, 4.0]])))
    first = total.bind(pointers)(), run()
    part.numbers.resize(1000, refcheck=False)
    part.numbers[-1] = 7
    pointers.update()
    return (*first, run())
"""
RESULTS = "(10, 12, 21)"
SCRIPT = "from tiny_loops.sums import results; print(results())"

FOREIGN = {  # whole, as their seals say, and of no use
    "nonsense": sealed(b"nonsense"),
    "another library": sealed(Path(_common.__file__).read_bytes()),
}

NO_NUMBA = """
import specsim.core.machine_code as c
def version(name):
    raise c.PackageNotFoundError(name)
c.version = version
"""


@pytest.fixture
def room(tmp_path: Path) -> Path:
    """A folder with a package of two loops, and an empty cache."""
    (tmp_path / "tiny_loops").mkdir()
    (tmp_path / "tiny_loops" / "__init__.py").write_text("")
    (tmp_path / "tiny_loops" / "sums.py").write_text(MODULE)
    (tmp_path / "cache").mkdir(mode=0o700)
    return tmp_path


@pytest.fixture(scope="module")
def code(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, bytes]:
    """What the cache holds once the loops are compiled: compiling takes seconds."""
    folder = tmp_path_factory.mktemp("compiled")
    (folder / "tiny_loops").mkdir()
    (folder / "tiny_loops" / "__init__.py").write_text("")
    (folder / "tiny_loops" / "sums.py").write_text(MODULE)
    (folder / "cache").mkdir(mode=0o700)
    done = finished(start(folder))
    assert done == (RESULTS, ["specsim: compiling its sums for this machine, once ..."])
    (path,) = (folder / "cache").glob("*.code")
    return path.name, path.read_bytes()


@pytest.fixture
def filled(room: Path, code: tuple[str, bytes]) -> Path:
    """The same folder with a cache of what was compiled."""
    (room / "cache" / code[0]).write_bytes(code[1])
    return room


def start(
    room: Path, before: str = "", cwd: Path | None = None, **variables: str
) -> subprocess.Popen[str]:
    paths = [str(room), str(Path(compiled.__file__).parents[2])]
    environment = {
        **os.environ,
        CACHE_VARIABLE: str(room / "cache"),
        "PYTHONPATH": os.pathsep.join(paths),
        "NUMBA_DISABLE_JIT": "0",
        **variables,
    }
    command = [sys.executable, *(["-P"] if cwd else []), "-c", before + SCRIPT]
    return subprocess.Popen(
        command, cwd=cwd, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def finished(process: subprocess.Popen[str]) -> tuple[str, list[str]]:
    """Return what a process printed, and the lines that it complained with."""
    out, errors = process.communicate(timeout=100)
    assert process.returncode == 0, errors
    return out.strip(), errors.splitlines()


def compilers(text: str) -> str:
    """Return a program's beginning after which the compiler is another command."""
    return f"import specsim.core.machine_code as c; c.command = lambda module: {text}\n"


def test_the_cache_serves_the_next_run(filled: Path) -> None:
    before = "import atexit, sys; atexit.register(lambda: print('numba' in sys.modules))\n"
    assert finished(start(filled, before)) == (f"{RESULTS}\nFalse", [])


def test_what_runs_is_compiled_and_not_what_lies_in_the_working_directory(room: Path) -> None:
    elsewhere = room / "elsewhere"
    for package in ("specsim", "tiny_loops"):
        (elsewhere / package).mkdir(parents=True)
        (elsewhere / package / "__init__.py").write_text("raise ImportError('another checkout')")
    done = finished(start(room, cwd=elsewhere))
    assert done == (RESULTS, ["specsim: compiling its sums for this machine, once ..."])


def test_without_jit_python_does_it(room: Path) -> None:
    assert finished(start(room, NUMBA_DISABLE_JIT="1")) == (RESULTS, [])
    assert not list((room / "cache").iterdir())


@pytest.mark.parametrize(
    "damage", [lambda data: data[:-1], lambda data: b"", lambda data: b"x" * 99]
)
def test_what_is_damaged_is_made_again(
    filled: Path, code: tuple[str, bytes], damage: Callable[[bytes], bytes]
) -> None:
    path = filled / "cache" / code[0]
    path.write_bytes(damage(code[1]))
    (filled / "good").write_bytes(code[1])
    out, errors = finished(start(filled, compilers(f"['cat', {str(filled / 'good')!r}]")))
    assert (out, errors) == (RESULTS, ["specsim: compiling its sums for this machine, once ..."])
    assert path.read_bytes() == code[1]


@pytest.mark.parametrize("foreign", FOREIGN)
def test_code_that_cannot_be_loaded_is_made_again(
    filled: Path, code: tuple[str, bytes], foreign: str
) -> None:
    path = filled / "cache" / code[0]
    path.write_bytes(FOREIGN[foreign])
    (filled / "good").write_bytes(code[1])
    out, errors = finished(start(filled, compilers(f"['cat', {str(filled / 'good')!r}]")))
    assert (out, errors) == (RESULTS, ["specsim: compiling its sums for this machine, once ..."])
    assert path.read_bytes() == code[1]


@pytest.mark.parametrize("what", ["a folder that is not there", "a full disk"])
def test_a_cache_that_cannot_be_written_costs_time_only(
    room: Path, code: tuple[str, bytes], what: str
) -> None:
    (room / "good").write_bytes(code[1])
    before = compilers(f"['cat', {str(room / 'good')!r}]")
    if what == "a full disk":
        before += (
            "class Full:\n"
            "    def __init__(self, **_): raise OSError(28, 'No space left on device')\n"
            "c.NamedTemporaryFile = Full\n"
        )
        out, (_, error) = finished(start(room, before))
        assert "No space left on device" in error
        assert CACHE_VARIABLE in error
    else:
        out, errors = finished(start(room, before, **{CACHE_VARIABLE: "/dev/null/cache"}))
        [error] = errors
        assert "once" not in error  # each process compiles for itself
        assert CACHE_VARIABLE in error
    assert out == RESULTS
    assert not list((room / "cache").glob("*.code"))


@pytest.mark.skipif(sys.platform != "linux", reason="code is a library on Linux")
def test_where_no_file_may_be_as_large_as_the_code_python_does_it(filled: Path) -> None:
    before = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))\n"
    out, errors = finished(start(filled, before, PYTHONDONTWRITEBYTECODE="1"))
    assert out == RESULTS
    assert all(line.startswith("specsim: ") for line in errors)


def test_without_a_home_code_is_kept_in_the_temporary_folder(
    room: Path, code: tuple[str, bytes]
) -> None:
    (room / "good").write_bytes(code[1])
    (room / "tmp").mkdir()
    homeless = {"HOME": "/dev/null", "XDG_CACHE_HOME": "", CACHE_VARIABLE: ""}
    before = compilers(f"['cat', {str(room / 'good')!r}]")
    for num_lines in (1, 0):
        out, errors = finished(start(room, before, **homeless, TMPDIR=str(room / "tmp")))
        assert (out, len(errors)) == (RESULTS, num_lines)


@pytest.mark.parametrize(
    ("before", "why"),
    [
        (NO_NUMBA, "numba is not installed"),
        (compilers("[sys.executable, '-c', 'import os; os.abort()']"), "it ended with -6"),
        (compilers("[sys.executable, '-c', 'raise ValueError(3)']"), "ValueError: 3"),
        (compilers("['echo', 'nonsense']"), "it ended with 0 and made no code"),
        (compilers("['/no/compiler']"), "no process can be started"),
    ],
    ids=["no numba", "a crash", "an error", "nonsense", "no compiler"],
)
def test_python_does_what_cannot_be_compiled(room: Path, before: str, why: str) -> None:
    out, errors = finished(start(room, "import sys\n" + before))
    said = [line for line in errors if not line.startswith("specsim: compiling its")]
    assert out == RESULTS
    assert len(said) == 1
    assert said[0].startswith("specsim: running ")
    assert why in said[0]
    assert not list((room / "cache").glob("*.code"))


def test_of_two_runs_one_compiles(room: Path, code: tuple[str, bytes]) -> None:
    (room / "good").write_bytes(code[1])
    before = compilers(f"['sh', '-c', 'sleep 1; cat {room / 'good'}']")
    runs = [finished(run) for run in [start(room, before) for _ in range(2)]]
    assert [out for out, _ in runs] == [RESULTS, RESULTS]
    assert sum(len(errors) for _, errors in runs) == 1


def test_arrays_must_be_of_the_types_that_the_loop_knows() -> None:
    types: compiled.Types = {"numbers": (np.int64, 1)}
    for wrong in (np.zeros(2), np.zeros((2, 2), dtype=np.int64), np.zeros(4, dtype=np.int64)[::2]):
        with pytest.raises(TypeError, match="'numbers'"):
            Pointers((wrong,), types)


def test_the_code_of_several_modules_is_kept_apart(code: tuple[str, bytes], room: Path) -> None:
    # The name of a file decides which library is meant, so no two may have the same one.
    (room / "tiny_loops" / "more.py").write_text(MODULE.replace("sums", "more"))
    script = (
        "from tiny_loops.sums import results; print(results())\n"
        "from tiny_loops.more import results; print(results())\n"
    )
    (room / "cache" / code[0]).write_bytes(code[1])
    out, errors = finished(start(room, script))
    assert out.splitlines() == [RESULTS] * 3
    assert errors == ["specsim: compiling its more for this machine, once ..."]


@pytest.mark.parametrize("has_linker", [True, False])
def test_a_module_that_is_reloaded_is_compiled_as_it_is_now(room: Path, has_linker: bool) -> None:
    before = (
        "import importlib, pathlib, numpy, tiny_loops.sums as sums\n"
        "file, total, part = pathlib.Path(sums.__file__), sums.total, sums.Part(numpy.arange(5))\n"
        "print(sums.results(), total.bind(part)())\n"
        "file.write_text(file.read_text().replace('total = 0', 'total = 1000'))\n"
        "importlib.reload(sums)\n"
        "print(total.bind(part)(), sums.total.bind(part)(), sums.total.is_compiled)\n"
    )
    path = os.environ["PATH"] if has_linker else ""
    out, errors = finished(start(room, before, PATH=path))
    assert out.splitlines() == [f"{RESULTS} 10", "10 1010 True", RESULTS.replace("10", "1010")]
    assert errors == ["specsim: compiling its sums for this machine, once ..."] * 2


def test_a_module_that_is_edited_before_it_is_compiled_runs_as_it_was_imported(room: Path) -> None:
    before = (
        "import pathlib, tiny_loops.sums as sums\n"
        "file = pathlib.Path(sums.__file__)\n"
        "file.write_text(file.read_text().replace('total = 0', 'total = 1000'))\n"
        "print(sums.total.is_compiled)\n"
    )
    out, _ = finished(start(room, before))
    assert out.splitlines() == ["False", RESULTS]


def test_a_copy_has_arrays_of_its_own() -> None:
    lookup = SuffixLookup(
        max_depth=4, max_spec_factor=1.0, min_token_prob=0.1, max_cached_requests=-1
    )
    text = Text(np.array([1, 2, 3, 1, 2, 3, 1, 2], dtype=np.int32), 6)
    lookup.start(0, text)
    copied = deepcopy(lookup)
    for each in (copied, lookup):
        each.reveal(0, 8)
        assert each.draft(0, 4).token_ids[0] == 3
        each.end(0)


def _aliased() -> Any:
    """Return ``NDArray[np.int32]`` as numpy 2.5 defines it on Python 3.12: an alias."""
    scalar = TypeVar("scalar", bound=np.generic)
    array = np.ndarray[Any, np.dtype[scalar]]
    return TypeAliasType("Alias", array, type_params=(scalar,))[np.int32]


@pytest.mark.parametrize(
    "array", [NDArray[np.int32], np.ndarray[Any, np.dtype[np.int32]], _aliased()]
)
def test_elements_of_arrays_are_found_in_every_form_that_numpy_gave_to_ndarray(array: type) -> None:
    assert element_of(array) is np.int32
