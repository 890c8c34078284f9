"""Capacity: which load a server sustains within limits, for how many replicas, at which cost.

The searches of all contenders run side by side and share the processes for their simulations.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from specsim.core.blame import is_whole
from specsim.core.errors import CapacityError, ConfigError
from specsim.core.figures import figures
from specsim.core.processes import LocalProcesses
from specsim.core.reading import short
from specsim.core.runner import Runner
from specsim.policies import Policy, is_bound
from specsim.results.metrics import Slo
from specsim.run.deployment import Deployment
from specsim.run.experiment import Experiment
from specsim.run.validity import ROOFLINE
from specsim.run.whole import PoolServers
from specsim.study.capacity.choices import (
    Goal,
    Hardware,
    Prices,
    check_ranges,
    find_hardware,
    gpu_names,
    spare_of,
)
from specsim.study.capacity.findings import Capacity, Found
from specsim.study.capacity.limits import SloLimits, parse_slo
from specsim.study.capacity.probe import Interval, LoadProbe, Task, measure
from specsim.study.capacity.search import FILLS, Answer, Asked, Search, explore, refine
from specsim.study.compare import chosen_policies
from specsim.study.loads import Loads, Trial, check_steady, few_rows
from specsim.workload.arrivals.patterns import ClosedLoop

__all__ = [
    "Capacity", "Contender", "Found", "Goal", "Hardware", "Prices", "SloLimits",
    "capacity", "find_capacity", "find_hardware", "hardware_notes", "model_notes", "parse_slo",
    "refined", "searched",
]  # fmt: skip

_START_CLIENTS = 16
_BELOW = 1.1  # a search begins below saturation by this factor, since limits mostly bind before it
_ROUNDS = 6  # requests per client of a closed loop
_REQUESTS, _MOST_REQUESTS = 2000, 64_000


@dataclass(frozen=True)
class Contender:
    """One hardware under one policy, and the experiment to run on it."""

    hardware: Hardware
    label: str
    policy: Policy
    loads: Loads
    goal: Goal

    def check(self) -> None:
        """Raise a SpecsimError if this contender cannot be run."""
        changed = self.loads.experiment.replace(f"--policies {self.label}", policy=self.policy)
        PoolServers.of(changed, Deployment.of(changed, self.hardware.profile))

    def at(self, asked: Asked) -> list[Task]:
        # A closed loop has to be full for most of the run.
        least = _ROUNDS * int(asked.load) if self.goal.is_closed else 0
        count = max(asked.num_requests, least)
        trials = self.loads.trials(self.policy, asked.load, count)
        return self._tasks(asked.load, trials[: self.goal.num_runs(asked.num_requests)])

    def at_once(self) -> list[Task]:
        """Return the simulations of all requests at once, which give the saturated throughput."""
        count = self.goal.num_requests
        return self._tasks(count, self.loads.closed_trials(self.policy, count, count))

    def _tasks(self, load: float, trials: list[Trial]) -> list[Task]:
        return [Task(load, trial, self.hardware.profile, self.goal) for trial in trials]

    def search(self, saturated: LoadProbe | None) -> Search:
        count = self.goal.num_requests
        if saturated is None:
            return explore(float(_START_CLIENTS), self.goal, count)
        if self.goal.max_requests is not None and not self.goal.is_rough:
            # A server that holds many requests at once takes long to become steady.
            count = max(count, FILLS * saturated.held)
        return explore(saturated.requests_per_second / _BELOW, self.goal, count)


def capacity(
    experiment: Experiment,
    *,
    slo: str | Slo | None = None,
    attainment: float = 0.99,
    gpus: str | Sequence[str] | None = None,
    policies: Sequence[str] | None = None,
    is_closed: bool = False,
    qps: float | None = None,
    prices: Path | str | None = None,
    redundancy: str = "n",
    tolerance: float = 0.02,
    replications: int = 5,
    num_requests: int | None = None,
    max_requests: int = _MOST_REQUESTS,
    workers: int = 1,
    on_progress: Callable[[int], None] | None = None,
) -> Capacity:
    """Return the largest load within limits that each hardware sustains under each policy.

    Limits, GPUs or profiles, and policies (in short form) default to the experiment's. Raises a
    SpecsimError if the load cannot be varied, or a simulation cannot be run.

    Args:
        is_closed: Whether to vary the number of clients instead of the rate.
        qps: Target rate for which replicas are counted, requests/s.
        redundancy: ``n+1`` for one replica more than `qps` needs.
        num_requests: Requests of each run; by default runs grow until the answer stops moving.
    """
    limits = experiment.slo if slo is None else slo
    if limits is None:
        raise ConfigError(
            "--slo is missing and the experiment has no slo; give limits, such as ttft:500,tpot:50"
        )
    own = parse_slo(limits)
    check_ranges(attainment, tolerance, qps)
    for option, given in (("--num-requests", num_requests), ("--max-requests", max_requests)):
        if given is not None and not (is_whole(given) and given >= 1):
            raise ConfigError(f"{option} {short(given)}: must be a whole number, at least 1")
    spare = spare_of(redundancy)
    if spare and qps is None:
        raise ConfigError(
            f"--redundancy {redundancy}: is of the servers that --qps takes; add that, or leave "
            "this out"
        )
    count = num_requests or max(experiment.workload.num_requests or 0, _REQUESTS)
    longest = None if num_requests else max_requests
    chosen = chosen_policies(policies, experiment.effective_policy)
    hardware = find_hardware(experiment, gpu_names(() if gpus is None else gpus))
    asked = own.slo, attainment, tolerance, is_closed, qps, replications, count, longest
    goal = Goal(*asked, spare_replicas=spare, limit_shares=own.shares, prices=Prices.load(prices))
    return find_capacity(
        experiment, goal, hardware, chosen, workers=workers, on_progress=on_progress
    )


def find_capacity(
    experiment: Experiment,
    goal: Goal,
    hardware: list[Hardware],
    policies: dict[str, Policy],
    *,
    workers: int = 1,
    on_progress: Callable[[int], None] | None = None,
) -> Capacity:
    """Return what each hardware sustains under each policy.

    The load is put on one replica of the experiment, or on all of its pools; its policy, profile
    and load are replaced. Raises a SpecsimError if the load cannot be varied, or a simulation
    cannot be run.
    """
    loads = Loads(_driven(experiment, goal), goal.replications)
    candidates = [
        Contender(each.under(policy, experiment), label, policy, loads, goal)
        for each in hardware
        for label, policy in policies.items()
    ]
    for candidate in candidates:  # errors are found before the first simulation
        try:
            candidate.check()
        except CapacityError as error:
            raise CapacityError(f"{candidate.hardware.label}: {error}") from error
    with Runner(LocalProcesses(workers), on_progress) as runner:
        found = searched(candidates, runner)
    notes = experiment.workload.notes + few_rows(experiment.workload, goal.tolerance)
    notes += hardware_notes(found) + _doubts(found) + model_notes(found)
    if experiment.replicas > 1:
        notes.append(
            f"replicas = {experiment.replicas} of the experiment is not used: one server is "
            "searched, and for --qps they are counted"
        )
    return Capacity(experiment, goal, found, notes)


def _driven(experiment: Experiment, goal: Goal) -> Experiment:
    check_steady(experiment)
    own = experiment.workload
    if goal.is_closed == isinstance(own.arrivals, ClosedLoop):
        if not goal.is_closed and "rate" not in type(own.arrivals).model_fields:
            raise ConfigError(
                f"workload.arrivals.kind = '{own.arrivals.kind}' has no rate to be varied; use "
                "poisson, gamma, constant or trace, or --drive concurrency"
            )
        return experiment.replace(replicas=1)
    if not goal.is_closed:
        raise ConfigError(
            "workload.arrivals.kind = 'closed_loop' has no rate to be varied; use --drive "
            "concurrency or arrivals such as {kind: poisson, rate: 1}"
        )
    if own.lengths is None:
        raise ConfigError(
            "workload: replays a trace, which brings its own arrivals; for --drive concurrency use "
            "lengths: {kind: trace, path: ...} and arrivals: {kind: closed_loop, concurrency: 1}"
        )
    changes = {"num_requests": own.num_requests or 1, "duration": None}
    workload = own.model_copy(update={"arrivals": ClosedLoop(concurrency=1), **changes})
    return experiment.replace(replicas=1, workload=workload)


def searched(candidates: list[Contender], runner: Runner) -> list[Found]:
    """Return what each contender sustains, searched side by side."""
    saturated: list[LoadProbe | None] = [None] * len(candidates)
    if candidates and not candidates[0].goal.is_closed:
        groups = runner.run(measure, [candidate.at_once() for candidate in candidates])
        saturated = [LoadProbe(tuple(group)) for group in groups]
    searches = [each.search(full) for each, full in zip(candidates, saturated, strict=True)]
    return _found(candidates, searches, runner)


def refined(
    candidates: list[Contender],
    known: list[Found],
    runner: Runner,
    is_enough: Callable[[Contender, Interval], bool],
) -> list[Found]:
    """Return what contenders sustain, refined from the results of shorter runs.

    Args:
        known: The results of shorter runs, in each of which some load was sustained.
        is_enough: Whether an interval is narrow enough to stop.
    """
    searches = []
    for candidate, before in zip(candidates, known, strict=True):
        assert before.rate is not None
        assert before.at_capacity is not None
        goal, enough = candidate.goal, partial(is_enough, candidate)
        count = max(goal.num_requests, FILLS * before.at_capacity.held)
        searches.append(refine(before.rate, goal, count, enough))
    return _found(candidates, searches, runner)


def _found(candidates: list[Contender], searches: list[Search], runner: Runner) -> list[Found]:
    asked = {number: next(search) for number, search in enumerate(searches)}
    ended: dict[int, Answer] = {}
    while asked:
        tasks = [candidates[number].at(load) for number, load in asked.items()]
        groups = runner.run(measure, tasks)
        for number, group in zip(list(asked), groups, strict=True):
            try:
                asked[number] = searches[number].send(LoadProbe(tuple(group)))
            except StopIteration as stop:
                del asked[number]
                ended[number] = stop.value
    probes = (probe for answer in ended.values() for probe in answer.probes)
    longest = max(probes, key=lambda each: each.num_requests * len(each.runs), default=None)
    length = None if longest is None else longest.mean_output_len
    return [
        Found(own.hardware, own.label, ended[number], own.goal, is_bound(own.policy), length)
        for number, own in enumerate(candidates)
    ]


def hardware_notes(
    found: list[Found], words: Callable[[Found], str] = lambda each: each.name
) -> list[str]:
    """Return notes on the step times and prices that the numbers rest on."""
    labels = dict.fromkeys(each.hardware.label for each in found)
    unmeasured = {each.hardware.label for each in found if not each.hardware.is_measured}
    guessed = [label for label in labels if label in unmeasured]
    gpus = {gpu for each in found for gpu in each.hardware.gpus}
    unpriced = sorted(gpus - set(found[0].goal.prices.per_gpu_hour))
    notes = []
    if guessed:
        notes.append(f"{', '.join(guessed)}: {ROOFLINE}")
        if len(guessed) < len(labels):
            notes.append("measured and roofline profiles differ by more than their GPUs do")
    if unpriced:
        notes.append(f"no price of {', '.join(unpriced)}: add it by --prices FILE")
    for each in found:
        if each.at_capacity is not None:
            warnings = each.at_capacity.beyond.warnings(each.hardware.profiles)
            notes += [f"{words(each)}: {text}" for text in warnings]
    return notes


def model_notes(found: list[Found]) -> list[str]:
    """Return notes on how each answer changes if step times are off as on measured servers."""
    notes, unknown = [], []
    for each in found:
        if each.rate is None:
            continue
        between = each.model_interval
        if between is None:
            unknown.append(each.name)
            continue
        own = each.interval
        by_luck = "" if own is None else f"{figures(own.low, 3)} to {figures(own.high, 3)}"
        sampled = f"{by_luck} requests/s by sampling, " if by_luck else ""
        ends = " to ".join(figures(end, 3) for end in between)
        notes.append(
            f"{each.name}: {sampled}{ends} with step times as far off as on four in five servers "
            "measured"
        )
    if unknown:
        notes.append(f"{', '.join(unknown)}: how far such step times are off, nobody has measured")
    return notes


_DOUBTS: dict[str, Callable[[Found], bool]] = {
    "runs were too short to tell whether more is sustained; raise --num-requests or "
    "--max-requests": lambda found: found.is_limited_by_length,
    "keeps the limits at no load that was tried; raise them or lower --attainment": (
        lambda found: found.at_capacity is None
    ),
    "no load was too high; raise --num-requests or lower the limits": (
        lambda found: found.bracket.exceeded is None
    ),
    "the answer had not stopped moving when runs were as long as allowed; raise --max-requests or "
    "--replications": lambda found: found.is_unsettled,
    "runs of a fixed length, which may be too short; leave out --num-requests to have them made "
    "longer until the answer stops moving": (
        lambda found: found.goal.max_requests is None and found.rate is not None
    ),
}


def _doubts(found: list[Found]) -> list[str]:
    doubted = {text: [f.name for f in found if is_so(f)] for text, is_so in _DOUBTS.items()}
    return [f"{', '.join(names)}: {text}" for text, names in doubted.items() if names]
