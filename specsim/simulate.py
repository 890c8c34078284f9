"""simulate: run an experiment, and return what was recorded."""

from collections.abc import Callable
from dataclasses import dataclass

from simpy import Environment

from specsim.deployment import Deployment
from specsim.drafting import Drafting
from specsim.engine.cluster import ClosedLoopClients, Cluster, replay, schedule_incidents
from specsim.engine.engine import Engine, Observer
from specsim.engine.integrity import IntegrityCheck
from specsim.engine.sequence import Sequence
from specsim.errors import CapacityError, InvariantError
from specsim.experiment import Experiment
from specsim.profile import Profile
from specsim.request import Request
from specsim.results.records import Recorder, ReplicaRecords
from specsim.rng import generator
from specsim.workload.arrivals.closed_loop import ClosedLoop

__all__ = ["Run", "simulate"]


@dataclass(frozen=True)
class Run:
    """What came of an experiment: its tables, and what they were recorded from."""

    experiment: Experiment
    deployment: Deployment
    requests: list[Request]
    replicas: list[ReplicaRecords]


def simulate(
    experiment: Experiment,
    *,
    requests: list[Request] | None = None,
    profile: Profile | None = None,
    check: bool = False,
    on_progress: Callable[[int], None] | None = None,
) -> Run:
    """Run an experiment to its end.

    Parameters
    ----------
    experiment : Experiment
    requests : list of Request, optional
        Run these in place of ``experiment.workload``.
    profile : Profile, optional
        Use this in place of the one that ``experiment.profile`` names.
    check : bool
        Check every invariant after every step; some ten times slower.
    on_progress : callable, optional
        Told the number of requests that have ended, each time one ends.

    Returns
    -------
    Run

    Raises
    ------
    SpecsimError
        The experiment cannot be run; nothing has been written.
    """
    deployment = Deployment.of(experiment, profile)
    if requests is None:
        requests = list(experiment.workload.build(experiment.seed).requests())
    _check_requests(requests, deployment)
    drafting = Drafting(experiment, deployment, requests)
    env = Environment()
    recorders = [Recorder(deployment.max_draft_len) for _ in range(experiment.replicas)]
    residence = _Residence(env, on_progress)

    def make_engine(number: int, on_end: Callable[[Sequence], None]) -> Engine:
        observers: list[Observer] = [IntegrityCheck()] if check else []
        return Engine(
            env,
            deployment.make_scheduler(),
            drafting.start(number),
            deployment.costs,
            observers=[*observers, recorders[number]],
            on_end=on_end,
        )

    cluster = Cluster(
        env,
        experiment.replicas,
        make_engine,
        router=experiment.routing,
        seed=experiment.seed,
        on_end=residence.end,
    )
    schedule_incidents(env, cluster, experiment.incidents or ())
    arrivals = experiment.workload.arrivals
    if isinstance(arrivals, ClosedLoop):
        rng = generator(experiment.seed, "think_times")
        think_times = arrivals.think_times(rng, len(requests)).tolist()
        clients = ClosedLoopClients(env, requests, think_times, cluster.submit)
        residence.listeners.append(clients.answered)
        clients.start(arrivals.concurrency)
    else:
        env.process(replay(env, requests, cluster.submit))
    env.run()
    if cluster.num_stranded:
        raise CapacityError(
            f"incidents: every replica has failed for good and {cluster.num_stranded} requests are "
            "left unanswered; give a failure an 'until', or add replicas"
        )
    residence.check(len(requests), cluster.request_time)
    return Run(experiment, deployment, requests, [recorder.tables() for recorder in recorders])


class _Residence:
    """Counts what Little's law and the conservation of requests are checked against."""

    def __init__(self, env: Environment, on_progress: Callable[[int], None] | None) -> None:
        self._env = env
        self._on_progress = on_progress
        self._num_ended = 0
        self._time = 0.0
        self.listeners: list[Callable[[], None]] = []

    def end(self, sequence: Sequence) -> None:
        self._num_ended += 1
        self._time += self._env.now - sequence.arrived_at
        for listener in self.listeners:
            listener()
        if self._on_progress is not None:
            self._on_progress(self._num_ended)

    def check(self, num_requests: int, request_time: float) -> None:
        """Raise unless every request ended and L = lambda W holds as the identity that it is."""
        if self._num_ended != num_requests:
            raise InvariantError(
                f"{num_requests - self._num_ended} of {num_requests} requests never ended"
            )
        if abs(request_time - self._time) > 1e-9 * max(1.0, self._time):
            raise InvariantError(
                f"Little's law: integral of requests in the system ({request_time!r} s) != sum of "
                f"their times in it ({self._time!r} s)"
            )


def _check_requests(requests: list[Request], deployment: Deployment) -> None:
    max_model_len = deployment.engine.max_model_len
    assert max_model_len is not None
    for request in requests:
        if request.prompt_len >= max_model_len:
            raise CapacityError(
                f"request {request.id or request.index}: its prompt of {request.prompt_len} tokens "
                f"must be shorter than engine.max_model_len = {max_model_len}; raise that or "
                "remove the request"
            )
