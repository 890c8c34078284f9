"""Policy check: run a policy through a hundred small worlds, and list what it breaks in them.

A world is an experiment of a fraction of a second with one property of real servers that first
drafts of policies forget: a step of prefills alone, no free memory, requests that come all at once,
one by one, or turn after turn, steps scheduled before the previous outcome is known, failing
replicas, separate prefill and decode pools. A policy that needs synchronous scheduling has half of
them.
"""

import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import product
from pathlib import Path
from time import monotonic
from traceback import walk_stack
from typing import Any

import numpy as np
from typing_extensions import Format, get_annotations

from specsim.core import machine_code
from specsim.core.blame import blamed, name_of
from specsim.core.errors import ConfigError, InvariantError, PluginError, SpecsimError
from specsim.core.families import Member
from specsim.core.request import Request
from specsim.core.settings import load_mapping
from specsim.policies import LoopPolicy, Policy, check_proposer, has_async_form
from specsim.proposers import PROPOSERS
from specsim.run.experiment import Experiment
from specsim.run.simulate import simulate
from specsim.run.summary import Summary

LONGEST = 10.0  # seconds that one world may take; usually it takes a fraction of one
_AGAIN = 0.01  # seconds after which a policy that catches the alarm is interrupted again
_TABLES = load_mapping(Path(__file__).with_name("worlds.yaml"), ConfigError)
_METHODS, _LOADS = _TABLES["methods"], _TABLES["loads"]
_SERVERS, _CLUSTERS = _TABLES["servers"], _TABLES["clusters"]
_BASE = {"profile": "h100/llama-3.1-8b", "acceptance": "bernoulli:alpha=0.7"}
_SHORT = "uniform:prompt=[1, 200],output=[1, 40]"
_MODES = ("sync", "async")
_EVERY = "every world"


@dataclass(frozen=True)
class World:
    """One small experiment, and its name."""

    name: str
    config: dict[str, Any]


@dataclass(frozen=True)
class PolicyCheck:
    """The results of all worlds."""

    policy: str
    num_worlds: int  # worlds that were run
    broken: dict[str, list[str]]  # names of the worlds in which each fault occurred, by fault
    seconds: float
    runs_as: str  # how the engine calls the policy

    @property
    def num_broken(self) -> int:
        """Number of worlds with any fault."""
        worlds = {world for worlds in self.broken.values() for world in worlds}
        return self.num_worlds if _EVERY in worlds else len(worlds)


def check_policy(
    policy: Policy, config: Any, on_progress: Callable[[int], None] | None = None
) -> PolicyCheck:
    """Run a policy through all worlds that suit it; `config` is how an experiment names it."""
    begun_at, runs_as = monotonic(), _runs_as(policy)  # first: no world waits for the compiler
    method = _method(policy)
    broken: dict[str, list[str]] = {problem: [_EVERY] for problem in _misspelt(policy)}
    num_worlds = 0
    for number, world in enumerate(worlds_of(policy, config, method), start=1):
        num_worlds = number
        try:
            for problem in _problems(world, policy):
                broken.setdefault(problem, []).append(world.name)
        except _EndlessError as error:  # it would be endless in every other world, too
            broken[str(error)] = [world.name]
            break
        if on_progress is not None:
            on_progress(number)
    return PolicyCheck(name_of(policy), num_worlds, broken, monotonic() - begun_at, runs_as)


def _runs_as(policy: Policy) -> str:
    if not isinstance(policy, LoopPolicy):
        return "Python"
    return "machine code" if policy.loops.are_compiled else "Python, since it does not compile"


def _misspelt(policy: Policy) -> Iterator[str]:
    """Yield a line for each unused name of a policy's class that is almost the name of a hook."""
    hooks = [name for name in {*dir(Policy)} - {*dir(Member)} if not name.startswith("_")]
    for each in type(policy).__mro__:
        if issubclass(Policy, each) or each.__module__.startswith("specsim."):
            continue
        annotated = get_annotations(each, format=Format.FORWARDREF)
        own = {*vars(each), *annotated} - {*dir(Policy)}
        used = _used_names([*vars(sys.modules[each.__module__]).values(), *vars(each).values()])
        for name in sorted(own - used):
            if not name.startswith("_") and (close := get_close_matches(name, hooks, 1, 0.7)):
                yield (
                    f"{name_of(policy)}: nothing uses its '{name}'; did you mean '{close[0]}'? "
                    f"Else call it '_{name}'"
                )


def _used_names(values: Iterable[Any]) -> set[str]:
    """Return the names that functions and properties, and functions inside them, look up."""
    functions = [getattr(value, "fget", value) for value in values]
    codes = [each.__code__ for each in functions if hasattr(each, "__code__")]
    names: set[str] = set()
    for code in codes:  # grows during the loop
        names |= {*code.co_names}
        codes += [inner for inner in code.co_consts if hasattr(inner, "co_names")]
    return names


def _method(policy: Policy) -> dict[str, Any]:
    refusals = []
    for fields in _METHODS:
        spec = {**fields, "num_speculative_tokens": 5}
        try:
            with blamed(), time_limit(policy):
                check_proposer(policy, PROPOSERS.parse(spec))
        except ValueError as refusal:
            refusals.append(str(refusal))
        else:
            return spec
    raise ConfigError(f"no drafting method goes together with it: {refusals[0]}")


def worlds_of(policy: Policy, config: Any, method: dict[str, Any]) -> Iterator[World]:
    """Yield the worlds in which a policy is checked."""
    can_async = has_async_form(policy) and PROPOSERS.parse(method).supports_async
    modes = [name for name in _MODES if name == "sync" or can_async]
    base = {**_BASE, "policy": config}
    base["profile"] = _TABLES["profiles"].get(method["method"], base["profile"])
    for load, server, mode in product(_LOADS, _SERVERS, modes):
        if server == "prefill first" and mode == "async":
            continue  # vLLM V0 had no such option
        yield World(f"{load}, {server}, {mode}", {**base, **_world(method, load, server, mode)})
    for cluster, mode, load in product(_CLUSTERS, modes, ("all at once", "a steady stream")):
        world = _world(method, load, "a usual server", mode)
        yield World(f"{cluster}, {load}, {mode}", {**base, **world, **_CLUSTERS[cluster]})
    lengths = [length for length in (1, 8) if _takes(policy, length)]
    for length, alpha, mode in product(lengths, (0.0, 1.0), modes):
        changed = {**method, "num_speculative_tokens": length}
        world = _world(changed, "a steady stream", "a usual server", mode)
        name = f"k up to {length}, alpha {alpha:g}, {mode}"
        yield World(name, {**base, **world, "acceptance": f"bernoulli:alpha={alpha}"})


def _takes(policy: Policy, length: int) -> bool:
    """Return whether a policy can be used with drafts of at most this length."""
    try:
        with time_limit(policy):
            policy.max_draft_len(length)
    except _EndlessError:
        raise
    except ValueError:
        return False
    return True


def _world(method: dict[str, Any], load: str, server: str, mode: str) -> dict[str, Any]:
    engine = {
        "num_gpu_blocks": 400,
        "max_model_len": 1024,
        "max_num_seqs": 16,
        "max_num_batched_tokens": 256,
        "async_scheduling": mode == "async",
        **_SERVERS[server],
        "speculative_config": method,
    }
    lengths = engine.pop("lengths", _SHORT)
    return {"workload": {"lengths": lengths, **_LOADS[load]}, "engine": engine, "seed": 1}


def _problems(world: World, policy: Policy) -> Iterator[str]:
    try:
        with time_limit(policy):
            experiment = Experiment.parse(world.config, "world")
            requests = _with_tokens(experiment) if policy.uses_tokens else None
            # Loops run as Python first, where writes beyond an array's end raise an error.
            with policy.loops.as_python() if isinstance(policy, LoopPolicy) else nullcontext():
                runs = [simulate(experiment, requests=requests, check=True)]
            # An equal run keeps the invariants too, unless machine code wrote somewhere else.
            runs.append(
                simulate(experiment, requests=requests, check=isinstance(policy, LoopPolicy))
            )
    except _EndlessError:
        raise
    except PluginError as error:
        yield _without_step(str(error))
    except InvariantError as error:
        yield f"breaks the engine: {error}"
    except SpecsimError as error:
        yield f"cannot be run: {error}"
    else:
        first, second = (Summary(run).data for run in runs)
        if first != second:
            yield (
                "two runs with one seed differ: it remembers something outside `memory`, or draws "
                "from a generator other than ServerView.rng; or loops read beyond their arrays"
            )


def _with_tokens(experiment: Experiment) -> list[Request]:
    rng = np.random.default_rng(1)
    requests = []
    for request in experiment.workload.build(experiment.seed).requests():
        ids = rng.integers(0, 50, request.prompt_len + request.output_len)
        requests.append(
            Request(
                index=request.index,
                prompt_len=request.prompt_len,
                output_len=request.output_len,
                arrived_at=request.arrived_at,
                prompt_token_ids=ids[: request.prompt_len],
                output_token_ids=ids[request.prompt_len :],
            )
        )
    return requests


def _without_step(text: str) -> str:
    """Return a message without numbers that change from step to step, so that faults count once."""
    before, found, after = text.partition(" in step ")
    return before + after[after.find(";") :] if found else text


class _EndlessError(PluginError):
    """A world was not finished in time."""


class _Alarm(BaseException):
    """Time is over; not an Exception, because a policy may catch those."""


@contextmanager
def time_limit(policy: Policy) -> Iterator[None]:
    """Raise an _EndlessError from whatever Python line runs when a world takes too long."""
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "SIGALRM"):
        yield
        return
    where: list[str] = []

    def ring(number: int, frame: Any) -> None:
        frames = [each for each, _ in walk_stack(frame)]
        if any(each.f_globals.get("__name__") == machine_code.__name__ for each in frames):
            return  # compiling takes longer than any world
        own = (each for each in frames if isinstance(each.f_locals.get("self"), type(policy)))
        at = next(own, None)
        if at is None and where:
            return  # the first alarm is already on its way
        where.append("" if at is None else f" ({at.f_code.co_filename}, line {at.f_lineno})")
        signal.setitimer(signal.ITIMER_REAL, _AGAIN, _AGAIN)  # a bare except may catch the first
        raise _Alarm

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, LONGEST, LONGEST)
    try:
        yield
    except _Alarm:
        text = f"{name_of(policy)}: a world was not done after {LONGEST:g} s{where[-1]}"
        raise _EndlessError(text) from None
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
