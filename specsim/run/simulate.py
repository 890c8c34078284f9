"""simulate: run an experiment, and return what was recorded."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from specsim.core.blame import blamed
from specsim.core.errors import CapacityError
from specsim.core.processes import Backend
from specsim.core.request import Request
from specsim.core.rng import generator
from specsim.engine.cluster import (
    Clients,
    Cluster,
    EventClock,
    replay,
    schedule_incidents,
)
from specsim.engine.fleet import Fleet, Scaling
from specsim.engine.integrity import IntegrityCheck
from specsim.engine.lock_step import LockStep, Rank
from specsim.engine.python_verbs import Wiring
from specsim.engine.replica import Replica
from specsim.profile import Profile
from specsim.results.metrics import LimitUse
from specsim.results.records import Deliveries, ReplicaRecords, records_of_run
from specsim.run.cells import Kept, run_cells, why_whole
from specsim.run.deployment import Deployment
from specsim.run.drafting import Drafting
from specsim.run.ends import Ends
from specsim.run.experiment import Experiment
from specsim.run.size import check_size
from specsim.workload.arrivals import Arrivals
from specsim.workload.arrivals.synthetic import ClosedLoop
from specsim.workload.trace import Columns, TraceRequests


@dataclass(frozen=True)
class Run:
    """What came of an experiment: its tables, and what they were recorded from."""

    experiment: Experiment
    deployment: Deployment
    requests: Sequence[Request]
    replicas: list[ReplicaRecords]
    deliveries: Deliveries | None = None
    scaling: Scaling | None = None


@blamed()
def simulate(  # noqa: PLR0913 - only the experiment need be given
    experiment: Experiment,
    *,
    requests: Sequence[Request] | None = None,
    profile: Profile | None = None,
    check: bool = False,
    keeps_steps: bool = True,
    keeps_deliveries: bool = False,
    on_progress: Callable[[int], None] | None = None,
    backend: Backend | None = None,
) -> Run:
    """Run an experiment to its end.

    Args:
        requests: Run these in place of ``experiment.workload``.
        profile: Use this in place of the one that ``experiment.profile`` names.
        check: Check every invariant after every step; some ten times slower.
        on_progress: Told the number of requests that have ended, each time one ends.
        backend: Where replicas that have nothing to do with each other are run, some at a time;
            None for this process. The results are the same.

    Raises:
        SpecsimError: The experiment cannot be run; nothing has been written.
    """
    deployment = Deployment.of(experiment, profile)
    if requests is None:
        check_size(experiment)
        requests = TraceRequests(experiment.workload.build(experiment.seed))
    if why_whole(experiment, deployment, requests) is None:
        _check_requests(requests, deployment)
        kept = Kept(keeps_steps, keeps_deliveries, check)
        found = run_cells(
            experiment, deployment, requests, kept, backend=backend, on_progress=on_progress
        )
        return Run(experiment, deployment, requests, *found)
    requests = list(requests)
    _check_requests(requests, deployment)
    drafting = Drafting(experiment, deployment, requests)
    arrivals = experiment.workload.arrivals
    front_time = deployment.costs.overhead.front_ms * 1e-3
    think_times = _think_times(experiment, len(requests))
    records = records_of_run(
        experiment.num_engines,
        deployment.max_draft_len,
        keeps_steps=keeps_steps,
        front_time=front_time,
    )
    deliveries = None
    if keeps_deliveries:
        deliveries = Deliveries.room_for(drafting.facts.rows["output_len"])
    ends = Ends(len(requests), on_progress)
    clock = EventClock()
    clients = Clients(clock, requests, front_time)
    clients_wait = isinstance(arrivals, ClosedLoop) or clients.has_sessions
    group = None
    if deployment.is_lock_step:
        group = LockStep(deployment.costs, 1 + experiment.num_speculative_tokens)

    def make_replica(number: int, start: float) -> Replica:
        wiring = Wiring(
            facts=drafting.facts,
            records=records[number],
            fates=drafting.survival_lens if len(drafting.survival_lens) else None,
            offers=drafting.offers,
            deliveries=deliveries,
            observers=[IntegrityCheck()] if check else [],
            on_end=ends.tell,
            announces_ends=clients_wait,
            origin=_first_arrival(requests, think_times, arrivals),
        )
        parts = (deployment.setup, deployment.costs, drafting.start(number), wiring, start)
        return Replica(*parts) if group is None else Rank(group, *parts)

    cluster = Cluster(
        clock,
        requests,
        experiment.num_engines,
        make_replica,
        router=experiment.routing,
        seed=experiment.seed,
        keeps_up=clients_wait,
        started=experiment.num_started,
    )
    fleet = None
    if experiment.autoscaling is not None:
        fleet = Fleet(
            clock,
            cluster,
            experiment.autoscaling,
            experiment.num_started,
            recent=LimitUse(records, experiment.slo).since_last,
            is_over=ends.is_over,
        )
    schedule_incidents(clock, fleet or cluster, experiment.incidents or ())
    clients.submit = cluster.submit
    if clients_wait:
        ends.listener = clients.answered
    if isinstance(arrivals, ClosedLoop):
        clients.start(arrivals.concurrency, think_times)
    else:
        clock.process(replay(clock, clients.starts, cluster.submit, front_time))
    clock.run()
    cluster.check_stranded()
    scaling = None if fleet is None else fleet.finish()
    cluster.finish()
    ends.check()
    return Run(experiment, deployment, requests, records, deliveries, scaling)


def _think_times(experiment: Experiment, count: int) -> list[float]:
    """Return how long a client waits before each request, seconds; nothing in an open loop."""
    arrivals = experiment.workload.arrivals
    if not isinstance(arrivals, ClosedLoop):
        return []
    times: list[float] = arrivals.think_times(
        generator(experiment.seed, "think_times"), count
    ).tolist()
    return times


def _first_arrival(requests: list[Request], think_times: list[float], arrivals: Arrivals) -> float:
    """Return when the first request of the run arrives, seconds."""
    if isinstance(arrivals, ClosedLoop):
        return min(think_times[: arrivals.concurrency], default=0.0)
    return requests[0].arrived_at if requests else 0.0


def _check_requests(requests: Sequence[Request], deployment: Deployment) -> None:
    max_model_len = deployment.engine.max_model_len
    assert max_model_len is not None
    too_long = np.flatnonzero(Columns.of(requests).prompt_lens >= max_model_len)
    if len(too_long):
        request = requests[int(too_long[0])]
        raise CapacityError(
            f"request {request.id or request.index}: its prompt of {request.prompt_len} tokens "
            f"must be shorter than engine.max_model_len = {max_model_len}; raise that or "
            "remove the request"
        )
