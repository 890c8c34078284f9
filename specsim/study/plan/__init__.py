"""Plan: how many GPUs of which kind serve some traffic within limits at the least cost.

Short runs of all options come first, then the precise search for those that may be the cheapest.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from math import inf
from typing import Any

from specsim.core.errors import ConfigError
from specsim.core.figures import figures
from specsim.core.processes import LocalProcesses
from specsim.core.runner import Runner
from specsim.study.capacity import Contender, Found, refined, searched
from specsim.study.capacity.limits import metric_name
from specsim.study.capacity.probe import Interval
from specsim.study.plan.answer import SHORT, Plan
from specsim.study.plan.candidates import (
    FIRST_K,
    Option,
    check_prices,
    goal_of,
    later_policies,
    offered,
)
from specsim.study.plan.question import Question, question_of
from specsim.study.plan.what_if import MOVED

__all__ = ["Option", "Plan", "Question", "plan", "question_of"]

_OTHER_K = 1.3  # as `SHORT`, also for a draft length other than the first tried
_MORE_PREFILL, _MORE_DECODE = ((2, 1), (3, 1)), ((1, 2), (1, 3))  # servers of both pools
_FURTHER = 2  # rounds of long runs of options that would rank above the best of the last round
_TOLERANCE, _REPLICATIONS, REQUESTS, LONGEST = 0.04, 5, 4000, 32_000


def plan(
    question: Question | None = None,
    *,
    workers: int = 1,
    on_progress: Callable[[int], None] | None = None,
    on_stage: Callable[[str], None] | None = None,
    **asked: Any,
) -> Plan:
    """Return the GPUs that serve the question's traffic at least cost (see `question_of`).

    Raises a SpecsimError if the question names something unknown, or nothing keeps the limits.
    After Ctrl-C the answer is what is known by then; before anything is, a KeyboardInterrupt.

    Args:
        question: In place of the arguments of `question_of`.
        on_stage: Called with a text at the beginning of each stage.
    """
    question, found = question or question_of(**asked), None
    try:
        with Runner(LocalProcesses(workers), on_progress) as runner:
            for known in _plans(question, runner, on_stage or (lambda text: None)):
                found = known
    except KeyboardInterrupt:
        if found is None:
            raise
        return replace(found, is_interrupted=True)
    assert found is not None
    return found


def _plans(question: Question, runner: Runner, tell: Callable[[str], None]) -> Iterator[Plan]:
    """Yield the plan after each stage."""
    check_prices(question)
    first = offered(question, ("off", f"static:k={FIRST_K}"))
    tell(f"short runs of {len(first.options)} options")
    plan = with_short_runs(Plan(question, first.left_out), first.options, runner)
    worth = _worth(plan)
    yield plan
    if any(not option.is_off for option in first.options):
        more = offered(question, later_policies(question)).options
        drafters = _drafters(plan, worth | _shown(plan))
        later = [
            option
            for option in more
            if drafters.get(option.hardware.label) == option.method
            and (option.hardware.label in worth or not option.needs_a_policy)
        ]
        tell(f"short runs of {len(later)} more draft lengths, on {', '.join(drafters)}")
        plan = with_short_runs(plan, later, runner)
        yield plan
    if question.pools:
        tell("short runs with prefill and decode apart")
        plan = _screened_apart(plan, runner)
        yield plan
    chosen = plan.finalists()
    for _ in range(1 + _FURTHER):
        if chosen:
            tell(f"long runs of {'; '.join(plan.options[name].sized_words for name in chosen)}")
            plan = with_long_runs(plan, chosen, runner)
            yield plan
            chosen = plan.overtaking()
    if any(not option.is_off for option in plan.options.values()):
        tell("short runs with other acceptance")
        yield replace(plan, moved=_with_moved_acceptance(plan, runner))


def _with_moved_acceptance(plan: Plan, runner: Runner) -> dict[float, dict[str, Found]]:
    """Return short runs of options that may win, with each draft token's acceptance moved."""
    found = {}
    for change in MOVED:
        moved = (plan.options[name].with_acceptance_moved(change) for name in plan.worth_moving)
        found[change] = _short_runs(plan, [each for each in moved if each is not None], runner)
    return found


def with_short_runs(plan: Plan, options: list[Option], runner: Runner) -> Plan:
    """Return the plan with short runs of options that have none yet."""
    new = {option.name: option for option in options if option.name not in plan.options}
    if not new:
        return plan
    found = _short_runs(plan, [*new.values()], runner)
    return replace(plan, options=plan.options | new, screened=plan.screened | found)


def _short_runs(plan: Plan, options: list[Option], runner: Runner) -> dict[str, Found]:
    goal = goal_of(plan.question)
    found = searched([option.contender(goal) for option in options], runner)
    return {option.name: each for option, each in zip(options, found, strict=True)}


def _worth(plan: Plan) -> set[str]:
    """Return the hardware that may be the cheapest."""
    bound = plan.least(plan.screened, 1 / SHORT)
    by_hardware = plan.by_hardware(plan.options).items()
    least = {label: plan.least(names, _OTHER_K) for label, names in by_hardware}
    if min(least.values()) == inf:
        raise ConfigError(
            f"no GPU keeps the limits at any load, in short runs: {_nearest(plan)}; raise --slo or "
            "lower --attainment"
        )
    return {label for label, cost in least.items() if cost <= bound}


def _nearest(plan: Plan) -> str:
    """Return text about the option nearest to the limits, if none keeps them."""
    limits = goal_of(plan.question).limits
    tried = [(name, probe) for name, found in plan.screened.items() for probe in found.probes]
    name, probe = min(
        tried, key=lambda one: max(one[1].reached_ms[own] / ms for own, ms in limits.ms.items())
    )
    reached = " and ".join(
        f"{metric_name(own)} {limits.percentile_of(own)} "
        f"{figures(probe.reached_ms[own], 3)} ms (limit {figures(ms, 6)} ms)"
        for own, ms in limits.ms.items()
    )
    words = plan.options[name].words
    return f"nearest comes {words}: {reached} at {figures(probe.load, 3)} requests/s"


def _shown(plan: Plan) -> set[str]:
    """Return the best hardware of each GPU, whose row gets the best k even if it does not win."""
    best = plan.leaders(lambda option: option.hardware.profile.gpu)
    return {option.hardware.label for option in best.values()}


def _drafters(plan: Plan, labels: set[str]) -> dict[str, str | None]:
    """Return the drafter that serves the target best, for each of these hardware labels."""
    best = plan.leaders(lambda option: None if option.is_off else option.hardware.label)
    return {label: option.method for label, option in best.items() if label in labels}


def _screened_apart(plan: Plan, runner: Runner) -> Plan:
    """Try separate prefill and decode pools on the best hardware of each GPU.

    With and without speculation; one server in each pool first, then more in the pool whose queue
    grew.
    """
    shown = _shown(plan) if plan.question.ranks == 1 else set()
    best = plan.leaders(
        lambda option: (
            (option.hardware.profile.gpu, option.is_off) if option.hardware.label in shown else None
        )
    )
    even = [option.in_pools(1, 1) for option in best.values()]
    plan = with_short_runs(plan, even, runner)
    more = []
    for option, pair in zip(best.values(), even, strict=True):
        resource = plan.screened[pair.name].resource
        splits = _MORE_DECODE if resource == "decode_pool" else _MORE_PREFILL
        more += [option.in_pools(*split) for split in splits]
    return with_short_runs(plan, more, runner)


def with_long_runs(plan: Plan, chosen: list[str], runner: Runner) -> Plan:
    """Return the plan with some options searched with long runs."""
    goal = replace(
        goal_of(plan.question),
        tolerance=_TOLERANCE,
        replications=_REPLICATIONS,
        num_requests=REQUESTS,
        max_requests=LONGEST,
        is_rough=False,
        shares=(1.0, 0.75, 0.5),
    )
    contenders = [plan.options[name].contender(goal) for name in chosen]
    known = [plan.screened[name] for name in chosen]
    found = refined(contenders, known, runner, _is_pinned)
    return replace(plan, searched=plan.searched | dict(zip(chosen, found, strict=True)))


def _is_pinned(contender: Contender, interval: Interval) -> bool:
    """Whether both ends of the interval need the same number of replicas."""
    fewest, most = contender.goal.replicas_between(interval.low, interval.high) or (0, 0)
    return fewest == most
