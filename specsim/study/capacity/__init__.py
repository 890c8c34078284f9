"""Capacity: which load a server sustains within limits, how many that takes, and what it costs.

All searches go on side by side, and their simulations on all processes.
"""

from collections.abc import Callable
from dataclasses import dataclass

from specsim.core.errors import ConfigError
from specsim.policies import Policy
from specsim.run.deployment import Deployment
from specsim.run.experiment import Experiment
from specsim.study.capacity.choices import Choices, Goal, Hardware, Prices, find_hardware, parse_slo
from specsim.study.capacity.findings import Capacity, Found
from specsim.study.capacity.search import LoadProbe, Task, explore, measure
from specsim.study.loads import Loads, Trial, check_steady
from specsim.study.runner import LocalProcesses, Runner
from specsim.workload import WorkloadConfig
from specsim.workload.arrivals.synthetic import ClosedLoop

__all__ = [
    "Capacity", "Choices", "Found", "Goal", "Hardware", "Prices", "find_capacity",
    "find_hardware", "parse_slo",
]  # fmt: skip

_START_CLIENTS = 16
_FINEST, _COARSEST = 0.01, 0.05  # shares of the arrivals by which a growing backlog is told


@dataclass(frozen=True)
class _Candidate:
    """A hardware and a policy, and the experiment that is run on it."""

    hardware: Hardware
    label: str
    policy: Policy
    loads: Loads
    goal: Goal

    def at(self, load: float) -> list[Task]:
        """Return the simulations of a load."""
        # A closed loop has to be full for most of the run.
        count = self.goal.num_requests
        count = max(count, 6 * int(load)) if self.goal.is_closed else count
        return self._tasks(load, self.loads.trials(self.policy, load, count))

    def at_once(self) -> list[Task]:
        """Return the simulations of all requests at once, which show the saturated server."""
        count = self.goal.num_requests
        return self._tasks(count, self.loads.closed_trials(self.policy, count, count))

    def _tasks(self, load: float, trials: list[Trial]) -> list[Task]:
        share = min(max(self.goal.tolerance, _FINEST), _COARSEST)
        profile, slo = self.hardware.profile, self.goal.slo
        return [Task(load, trial, profile, slo, share) for trial in trials]


def find_capacity(
    experiment: Experiment,
    goal: Goal,
    choices: Choices,
    *,
    workers: int = 1,
    on_progress: Callable[[int], None] | None = None,
) -> Capacity:
    """Find what each hardware sustains under each policy.

    Args:
        experiment: One replica of it is loaded; its policy, profile and load are replaced.
        workers: Processes; the results do not depend on their number.
        on_progress: Told the number of simulations that have ended.

    Raises:
        SpecsimError: The load of the experiment cannot be varied, or a simulation cannot be run.
    """
    loads = Loads(_driven(experiment, goal), goal.replications)
    candidates = [
        _Candidate(hardware, label, policy, loads, goal)
        for hardware in choices.hardware
        for label, policy in choices.policies.items()
    ]
    for candidate in candidates:  # what cannot run is found before the first simulation
        changed = experiment.replace(f"--policies {candidate.label}", policy=candidate.policy)
        Deployment.of(changed, candidate.hardware.profile)
    with Runner(LocalProcesses(workers), on_progress) as runner:
        found = _search(candidates, runner, choices.prices)
    notes = _notes(found, choices.prices)
    if experiment.replicas > 1:
        notes.append(
            f"replicas = {experiment.replicas} of the experiment is not used: one replica is "
            "searched, and for --qps they are counted"
        )
    return Capacity(experiment, goal, choices.prices, found, notes)


def _driven(experiment: Experiment, goal: Goal) -> Experiment:
    """Return the experiment with one replica and a load that can be varied."""
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
    workload = WorkloadConfig(
        arrivals=ClosedLoop(concurrency=1), lengths=own.lengths, num_requests=own.num_requests or 1
    )
    return experiment.replace(replicas=1, workload=workload)


def _search(candidates: list[_Candidate], runner: Runner, prices: Prices) -> list[Found]:
    starts = [float(_START_CLIENTS)] * len(candidates)
    if not candidates[0].goal.is_closed:
        groups = runner.run(measure, [candidate.at_once() for candidate in candidates])
        starts = [LoadProbe.over(group).requests_per_second for group in groups]
    searches = [explore(start, c.goal) for start, c in zip(starts, candidates, strict=True)]
    asked: dict[int, float] = {number: next(search) for number, search in enumerate(searches)}
    ended: dict[int, Found] = {}
    while asked:
        groups = runner.run(
            measure, [candidates[number].at(load) for number, load in asked.items()]
        )
        for number, group in zip(list(asked), groups, strict=True):
            try:
                asked[number] = searches[number].send(LoadProbe.over(group))
            except StopIteration as stop:
                del asked[number]
                own = candidates[number]
                price = prices.per_gpu_hour.get(own.hardware.profile.gpu)
                bracket, probes = stop.value
                ended[number] = Found(own.hardware, own.label, bracket, probes, price, own.goal)
    return [ended[number] for number in range(len(candidates))]


def _notes(found: list[Found], prices: Prices) -> list[str]:
    hardware = {each.hardware.label: each.hardware for each in found}.values()
    guessed = [h.label for h in hardware if not h.is_measured]
    unpriced = sorted({h.profile.gpu for h in hardware} - set(prices.per_gpu_hour))
    notes = []
    if guessed:
        notes.append(
            f"{', '.join(guessed)}: steps as the roofline says, not as measured; it flatters "
            "speculation at medium batch sizes (profiles/README.md)"
        )
        if len(guessed) < len(hardware):
            notes.append("measured and roofline profiles differ by more than their GPUs do")
    if unpriced:
        notes.append(f"no price of {', '.join(unpriced)}: add it by --prices FILE")
    for those, advice in (
        (
            [each for each in found if each.is_limited_by_length],
            "runs were too short to tell whether more is sustained; raise --num-requests",
        ),
        (
            [each for each in found if each.at_capacity is None],
            "keeps the limits at no load that was tried; raise them or lower --attainment",
        ),
        (
            [each for each in found if each.bracket.exceeded is None],
            "no load was too high; raise --num-requests or lower the limits",
        ),
    ):
        if those:
            notes.append(f"{', '.join(f'{f.hardware.label} {f.policy}' for f in those)}: {advice}")
    return notes
