"""Compile loops before any test, so that none of them waits for it or sees it being said.

    python tests/compile_first.py [MODULE ...]

By default, those of all modules. What the cache has is left alone; the rest is compiled by forks of
one process, which has started numba for all of them: for a small policy, that is most of the work.
The machine code is the same.
"""

import gc
import os
import signal
import sys
from contextlib import redirect_stderr
from importlib import import_module
from io import StringIO
from multiprocessing import connection, get_context
from pathlib import Path
from pkgutil import walk_packages
from tempfile import TemporaryDirectory

ALWAYS = ("specsim.engine.order", "specsim.policies.joint", "specsim.policies.goodput_exact",
          "specsim.policies.parts.times", "specsim.lookup.suffix_tree",
          "specsim.engine.lock_step")  # fmt: skip
"""Those that nearly every test needs, the longest first."""
AT_ONCE = 2
LIMIT_S = 900  # after which a compiler is taken to hang; tests then compile what they need


def with_loops() -> list[str]:
    """Return all modules of loops."""
    from specsim import core, lookup, policies
    from specsim.core.compiled import loops_of

    names = [
        each.name
        for room in (core, lookup, policies)
        for each in walk_packages(room.__path__, f"{room.__name__}.")
    ]

    def has_loops(module: str) -> bool:
        try:
            return bool(loops_of(module))
        except ModuleNotFoundError:  # what an extra brings that is not installed
            return False

    return list(dict.fromkeys([*ALWAYS, *filter(has_loops, names)]))


def not_kept(modules: list[str]) -> list[str]:
    """Return those whose code the cache lacks."""
    from specsim.core import machine_code
    from specsim.core.compiled import address_of, loops_of

    missing: list[str] = []

    def no_compiler(module: str) -> list[str]:
        missing.append(module)
        return [sys.executable, "-c", "raise SystemExit(1)"]

    machine_code.command = no_compiler
    with redirect_stderr(StringIO()):
        for module in modules:
            address_of(loops_of(module)[0])
    return missing


def compile_here(module: str) -> None:
    """Compile and keep loops as in a run, but for the process in which it is done."""
    from specsim.core import compiler, machine_code
    from specsim.core.compiled import address_of, loops_of

    signal.alarm(LIMIT_S)  # ends this process, whatever it does
    with TemporaryDirectory() as folder:
        path = Path(folder, "code")

        def compiled(module: str) -> list[str]:
            path.write_bytes(machine_code.sealed(compiler.machine_code(loops_of(module))))
            return ["cat", str(path)]

        machine_code.command = compiled
        address_of(loops_of(module)[0])


def compile_all(modules: list[str]) -> None:
    numba = import_module("numba")
    numba.njit("float64(int64[::1])")(lambda numbers: numbers[0] / 2.0)  # starts all that it has
    for module in modules:
        import_module(module)
    gc.disable()  # as the compiler does
    running = []
    for module in modules:
        if len(running) == AT_ONCE:
            connection.wait([each.sentinel for each in running])
            running = [each for each in running if each.is_alive()]
        process = get_context("fork").Process(target=compile_here, args=(module,))
        process.start()
        running.append(process)
    for process in running:
        process.join()


def main(modules: list[str]) -> None:
    from specsim.core.machine_code import CACHE_VARIABLE, IS_COMPILER, cache_folder

    if cache_folder() is None:
        print(
            f"nothing is compiled before tests: {CACHE_VARIABLE} names no folder of ours to write"
        )
    elif IS_COMPILER in os.environ:
        compile_all(modules)
    elif missing := not_kept(modules or with_loops()):
        # Anew, for what is imported for a compiler is not what a run imports.
        environment = {**os.environ, IS_COMPILER: "1", "OPENBLAS_NUM_THREADS": "1"}
        os.execve(sys.executable, [sys.executable, __file__, *missing], environment)


if __name__ == "__main__":
    main(sys.argv[1:])
