"""Worlds: random experiments, in each of which must hold what holds in every one.

    python benchmarks/worlds/worlds.py [--number 2000] [--first 0] [--workers 2] [--only 17]

Every world is made from its number alone. Its run is checked (`world_checks`), and compared with
those of worlds that differ in one thing (`world_relations`). With ``--shrink`` a world in which
something is wrong is made as small as it can be while the same is wrong, and printed; kept in
``kept/``, it is a test. The exit code is 1 if anything was found.
"""

import argparse
import contextlib
import copy
import json
import multiprocessing
import os
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from world_checks import Broken, check_run, refusal
from world_making import World, draw_world
from world_relations import RELATIONS, Host

KEPT = Path(__file__).parent / "kept"
"""Worlds in which something was wrong once, made small."""
LIMIT_SECONDS = 20.0  # of CPU time
_RELATIONS_EACH = 2
_DRAWS = 30
_REFUSED = "refused"
_FOLDER = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # disks are slow


class Hang(Exception):
    """A world takes too long."""


@contextlib.contextmanager
def _limited(seconds: float) -> Iterator[None]:
    def stop(*_: Any) -> None:
        raise Hang(f"more than {seconds:g} s")

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def problem_of(world: World) -> str | None:
    """Return what is wrong with a world, the name of what is broken first; None if nothing is.

    One that contradicts itself is refused, and nothing is wrong with that.
    """
    try:
        with (
            tempfile.TemporaryDirectory(prefix="specsim-world-", dir=_FOLDER) as folder,
            _limited(LIMIT_SECONDS),
        ):
            warnings.simplefilter("error")
            host = Host(Path(folder))
            base = host.run(world, check=True)
            check_run(base)
            for name in world["relations"]:
                RELATIONS[name](host, world, base)
    except (Broken, Hang) as error:
        return f"{type(error).__name__} {error}"
    except Exception as error:
        if refusal(error):
            return f"{_REFUSED}: {error}"
        where = traceback.extract_tb(error.__traceback__)[-1]
        return f"{type(error).__name__} in {Path(where.filename).name} {where.name}: {error}"
    return None


def look_at(number: int) -> tuple[World, str | None]:
    """Return the world of a number, the first draw that is not refused, and what is wrong."""
    for attempt in range(_DRAWS):
        world = draw_world(Random(f"{number} {attempt}"))
        world["relations"] = world["relations"][:_RELATIONS_EACH]
        problem = problem_of(world)
        if name_of(problem) != _REFUSED:
            break
    return world, problem


def name_of(problem: str | None) -> str:
    """Return which problem it is, without its figures."""
    return (problem or "").split(":")[0]


_LEFT_OUT = object()


def _places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield where things stand in nested values, a whole before its parts, the last first."""
    if isinstance(value, dict | list):
        for key in reversed(value if isinstance(value, dict) else range(len(value))):
            yield (*path, key)
            yield from _places(value[key], (*path, key))


def _changed(world: World, path: tuple[Any, ...], change: Any) -> World | None:
    """Return a world with something else at a place; None if it has no such place any more."""
    world = copy.deepcopy(world)
    holder: Any = world
    try:
        for key in path[:-1]:
            holder = holder[key]
        before = holder[path[-1]]
    except (KeyError, IndexError, TypeError):
        return None
    if change is _LEFT_OUT:
        del holder[path[-1]]
    elif type(before) not in (int, float) or change(before) == before:
        return None
    else:
        holder[path[-1]] = change(before)
    return world


def shrunk(world: World, problem: str) -> World:
    """Return a world as small as can be found in which the same is wrong."""
    name, goes_on = name_of(problem), True
    changes = (_LEFT_OUT, lambda x: type(x)(1), lambda x: x // 2, lambda x: float(f"{x:.1g}"))
    while goes_on:
        goes_on = False
        parts = {key: world[key] for key in ("config", "profile", "rows")}
        for path in [path for path in _places(parts) if len(path) > 1]:
            for change in changes:
                less = _changed(world, path, change)
                if less is not None and name_of(problem_of(less)) == name:
                    world, goes_on = less, True
                    break
    return world


def _look(number: int) -> tuple[int, str | None, float]:
    began = time.perf_counter()
    _, problem = look_at(number)
    return number, problem, time.perf_counter() - began


def main() -> int:
    """Read options and look at worlds."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--number", type=int, default=2000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--only", type=int, nargs="+", help="Look at these worlds.")
    parser.add_argument("--shrink", action="store_true", help="Print what is wrong, made small.")
    options = parser.parse_args()
    for name in ("number", "workers"):
        if getattr(options, name) < 1:
            parser.error(f"--{name} {getattr(options, name)}: must be at least 1")
    numbers = options.only or range(options.first, options.first + options.number)
    look_at(0)  # by now all is compiled
    found, refused, slowest = Counter[str](), Counter[str](), 0.0
    with multiprocessing.get_context("spawn").Pool(options.workers) as pool:
        looked = pool.imap_unordered(_look, numbers, chunksize=8)
        for count, (number, problem, seconds) in enumerate(looked, 1):
            slowest = max(slowest, seconds)
            if count % 500 == 0:
                print(f"{count} worlds looked at", flush=True)
            if problem is None:
                continue
            if name_of(problem) == _REFUSED:
                refused[problem[:70]] += 1
                continue
            found[name_of(problem)] += 1
            print(number, problem[:300], flush=True)
            if options.shrink:
                world = shrunk(look_at(number)[0], problem)
                print(json.dumps(world, indent=1), problem_of(world), flush=True)
    for what, count in (refused + found).most_common():
        print(f"{count:6} x {what}")
    print(f"{len(numbers)} worlds, {found.total()} with something wrong, {refused.total()} refused")
    print(f"the slowest took {slowest:.1f} s")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
