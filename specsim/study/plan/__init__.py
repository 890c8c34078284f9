"""Plan: how many GPUs of which kind serve some traffic within limits, at the least cost.

First short runs of all options, then the trustworthy search for those that may be the cheapest.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from math import ceil, inf
from typing import Any

from specsim.core.errors import ConfigError
from specsim.core.processes import LocalProcesses
from specsim.core.runner import Runner
from specsim.study.capacity import Capacity, Contender, Found, hardware_notes, refined, searched
from specsim.study.capacity.probe import Interval
from specsim.study.plan.answer import Plan
from specsim.study.plan.candidates import FIRST_K, Option, goal_of, later_policies, offered
from specsim.study.plan.question import Question, question_of
from specsim.study.plan.what_if import MOVED

__all__ = ["Option", "Plan", "Question", "make_plan", "plan", "question_of"]

_SHORT = 1.15
"""Ratio within which short runs tell the capacity of long ones; see experiments/plan-check."""
_OTHER_K = 1.3  # the same, also of another draft length than the first that is tried
_MOST = 3  # kinds of hardware that are searched to the end, with and without speculation each
_MORE_PREFILL, _MORE_DECODE = ((2, 1), (3, 1)), ((1, 2), (1, 3))  # servers of both pools
_TOLERANCE, _REPLICATIONS, REQUESTS, LONGEST = 0.04, 5, 4000, 32_000


@dataclass
class _Screened:
    options: dict[str, Option] = field(default_factory=dict)
    found: dict[str, Found] = field(default_factory=dict)

    def cost(self, name: str, factor: float = 1.0) -> float:
        """Return the cost per hour for the target, were the capacity `factor` times as high."""
        cost = self.found[name].cost_if(factor)
        return inf if cost is None else cost

    def latency(self, name: str) -> float:
        """Return the mean latency at the target rate, milliseconds."""
        probe = self.found[name].at_target
        return inf if probe is None else probe.latencies_ms["mean_e2el_ms"]

    def least(self, names: Iterable[str], factor: float) -> float:
        return min((self.cost(name, factor) for name in names), default=inf)


def plan(
    *,
    workers: int = 1,
    on_progress: Callable[[int], None] | None = None,
    on_stage: Callable[[str], None] | None = None,
    **asked: Any,
) -> Plan:
    """Return which GPUs, and how many, serve what is asked (see `question_of`) at least cost."""
    question = question_of(**asked)
    return make_plan(question, workers=workers, on_progress=on_progress, on_stage=on_stage)


def make_plan(
    question: Question,
    *,
    workers: int = 1,
    on_progress: Callable[[int], None] | None = None,
    on_stage: Callable[[str], None] | None = None,
) -> Plan:
    """Find the least cost at which the target rate is served within its limits.

    A SpecsimError if the question names what there is not, or nothing serves within the limits.
    After Ctrl-C the answer is what is known by then; before anything is, a KeyboardInterrupt.

    Args:
        on_stage: Told what is looked at next.
    """
    plan = None
    try:
        with Runner(LocalProcesses(workers), on_progress) as runner:
            for known in _plans(question, runner, on_stage or (lambda text: None)):
                plan = known
    except KeyboardInterrupt:
        if plan is None:
            raise
        return replace(plan, is_interrupted=True)
    assert plan is not None
    return plan


def _plans(question: Question, runner: Runner, tell: Callable[[str], None]) -> Iterator[Plan]:
    """Yield what is known after each stage."""
    first = offered(question, ("off", f"static:k={FIRST_K}"))
    screened = _Screened()
    tell(f"short runs of {len(first.options)} options")
    _screen(screened, first.options, question, runner)
    worth = _worth(screened)
    yield _plan(question, screened, first.left_out, None)
    more = offered(question, later_policies(question)).options
    drafters = _drafters(screened, worth | _shown(screened))
    later = [
        option
        for option in more
        if drafters.get(option.hardware.label) == _drafter(option)
        and (option.hardware.label in worth or not option.needs_a_policy)
    ]
    tell(f"short runs of {len(later)} more draft lengths, on {', '.join(drafters)}")
    _screen(screened, later, question, runner)
    yield _plan(question, screened, first.left_out, None)
    if question.pools:
        tell("short runs with prefill and decode apart")
        _screen_apart(screened, question, runner)
        yield _plan(question, screened, first.left_out, None)
    chosen = _finalists(screened)
    tell(f"long runs of {', '.join(chosen)}")
    found = _refined([screened.options[name] for name in chosen], screened, question, runner)
    plan = _plan(question, screened, first.left_out, found)
    yield plan
    tell("short runs with other acceptance")
    yield replace(plan, moved=_with_moved_acceptance(plan, runner))


def _plan(
    question: Question, screened: _Screened, left_out: list[str], found: list[Found] | None
) -> Plan:
    """Return the answer by what was searched to the end, or before that by short runs."""
    short = [screened.found[name] for name in _finalists(screened)] if found is None else []
    known = found or short
    notes = hardware_notes(known, question.prices)
    experiment = screened.options[f"{known[0].hardware.label} {known[0].policy}"].experiment
    capacity = Capacity(experiment, known[0].goal, question.prices, known, notes)
    options, shown = dict(screened.options), dict(screened.found)
    return Plan(question, capacity, options, shown, left_out, is_estimated=found is None)


def _with_moved_acceptance(plan: Plan, runner: Runner) -> dict[float, dict[str, Found]]:
    """Return short runs of what might be rented, with the chance of each draft token moved."""
    goal, moved = goal_of(plan.question), {}
    for change in MOVED:
        options = [
            option
            for name in plan.worth_moving
            if (option := plan.options[name].with_acceptance_moved(change)) is not None
        ]
        found = searched(
            [option.contender(goal) for option in options], runner, plan.question.prices
        )
        moved[change] = {option.name: each for option, each in zip(options, found, strict=True)}
    return moved


def _screen(screened: _Screened, options: list[Option], question: Question, runner: Runner) -> None:
    options = [option for option in options if option.name not in screened.options]
    if not options:
        return
    goal = goal_of(question)
    found = searched([option.contender(goal) for option in options], runner, question.prices)
    for option, each in zip(options, found, strict=True):
        screened.options[option.name], screened.found[option.name] = option, each


def _worth(screened: _Screened) -> set[str]:
    bound = screened.least(screened.found, 1 / _SHORT)
    by_hardware: dict[str, list[str]] = {}
    for name, option in screened.options.items():
        by_hardware.setdefault(option.hardware.label, []).append(name)
    least = {label: screened.least(names, _OTHER_K) for label, names in by_hardware.items()}
    if min(least.values()) == inf:
        raise ConfigError(
            "no GPU keeps the limits at any load, in short runs; raise --slo or lower --attainment"
        )
    return {label for label, cost in least.items() if cost <= bound}


def _shown(screened: _Screened) -> set[str]:
    """Return the hardware of each GPU that does best: its row has the best k, whoever wins."""
    best: dict[str, str] = {}
    for name in sorted(screened.found, key=partial(_rank, screened)):
        option = screened.options[name]
        best.setdefault(_gpu_of(option), option.hardware.label)
    return set(best.values())


def _drafters(screened: _Screened, labels: set[str]) -> dict[str, str]:
    """Return, for each hardware of these, the drafter that serves the target best."""
    chosen: dict[str, str] = {}
    for name in sorted(screened.found, key=lambda n: (screened.cost(n), screened.latency(n))):
        option = screened.options[name]
        if not option.is_off and option.hardware.label in labels:
            chosen.setdefault(option.hardware.label, _drafter(option))
    return chosen


def _screen_apart(screened: _Screened, question: Question, runner: Runner) -> None:
    """Try prefill and decode apart, on each GPU as it does best, with and without speculation.

    First one server of each; then more in the pool whose queue grew.
    """
    best: dict[tuple[str, bool], Option] = {}
    shown = _shown(screened)
    for name in sorted(screened.found, key=partial(_rank, screened)):
        option = screened.options[name]
        if option.hardware.label in shown:
            best.setdefault((_gpu_of(option), option.is_off), option)
    even = [option.in_pools(1, 1) for option in best.values()]
    _screen(screened, even, question, runner)
    more = []
    for option, pair in zip(best.values(), even, strict=True):
        resource = screened.found[pair.name].resource
        splits = _MORE_DECODE if resource == "decode_pool" else _MORE_PREFILL
        more += [option.in_pools(*split) for split in splits]
    _screen(screened, more, question, runner)


def _gpu_of(option: Option) -> str:
    return option.hardware.profile.gpu


def _drafter(option: Option) -> str:
    proposer = option.experiment.engine.speculative_config
    assert proposer is not None
    return proposer.method


def _finalists(screened: _Screened) -> list[str]:
    """Return the options to search to the end, the likely best first."""
    chosen: list[str] = []
    for is_off in (True, False):
        names = [name for name, option in screened.options.items() if option.is_off is is_off]
        names.sort(key=partial(_rank, screened))
        apart = [name for name in names if screened.options[name].hardware.pools]
        chosen += _of_kind(screened, [name for name in names if name not in apart[1:]])
    if not chosen:
        raise ConfigError("no option keeps the limits in short runs; raise --slo")
    return sorted(chosen, key=partial(_rank, screened))


def _of_kind(screened: _Screened, names: list[str]) -> list[str]:
    """Return, of options from the best on, those of each hardware that may be the cheapest.

    That is the best one, and the one of highest capacity if that might do with fewer replicas.
    """
    bound = screened.least(names, 1 / _SHORT)
    likely: dict[str, list[str]] = {}
    for name in names:
        if inf > screened.cost(name, _SHORT) <= bound:
            likely.setdefault(screened.options[name].hardware.label, []).append(name)
    chosen: list[str] = []
    for own in list(likely.values())[:_MOST]:
        strongest = max(own, key=lambda name: screened.found[name].rate or 0.0)
        may_be_cheaper = screened.cost(strongest, _SHORT) < screened.cost(own[0])
        chosen += [own[0], strongest] if may_be_cheaper and strongest != own[0] else [own[0]]
    return chosen


def _rank(screened: _Screened, name: str) -> tuple[float, bool, float]:
    # Of equal cost, what vLLM does by itself comes first.
    option = screened.options[name]
    return screened.cost(name), option.needs_a_policy, screened.latency(name)


def _refined(
    options: list[Option], screened: _Screened, question: Question, runner: Runner
) -> list[Found]:
    goal = replace(
        goal_of(question),
        tolerance=_TOLERANCE,
        replications=_REPLICATIONS,
        num_requests=REQUESTS,
        max_requests=LONGEST,
        shares=(1.0, 0.75, 0.5),
    )
    contenders = [option.contender(goal) for option in options]
    known = [screened.found[option.name] for option in options]
    return refined(contenders, known, runner, question.prices, _is_pinned)


def _is_pinned(contender: Contender, interval: Interval) -> bool:
    """Whether the whole interval asks for one number of replicas."""
    target = contender.goal.target_rate
    assert target is not None
    return ceil(target / interval.low) == ceil(target / interval.high)
