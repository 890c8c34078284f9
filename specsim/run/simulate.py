"""simulate: run an experiment, and return what was recorded."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from specsim.core.blame import blamed
from specsim.core.errors import CapacityError, InvariantError
from specsim.core.request import Request
from specsim.core.rng import generator
from specsim.core.step import Ints
from specsim.engine.cluster import (
    ClosedLoopClients,
    Cluster,
    EventClock,
    replay,
    schedule_incidents,
)
from specsim.engine.integrity import IntegrityCheck
from specsim.engine.lock_step import LockStep, Rank
from specsim.engine.offload import Offload
from specsim.engine.python_verbs import Wiring
from specsim.engine.replica import Replica
from specsim.profile import Profile
from specsim.results.records import Deliveries, ReplicaRecords, records_of_run
from specsim.run.deployment import Deployment
from specsim.run.drafting import Drafting
from specsim.run.experiment import Experiment
from specsim.run.pools import PoolServers, PoolSystem
from specsim.run.size import check_size
from specsim.workload.arrivals import Arrivals
from specsim.workload.arrivals.synthetic import ClosedLoop


@dataclass(frozen=True)
class Run:
    """What came of an experiment: its tables, and what they were recorded from."""

    experiment: Experiment
    deployment: Deployment
    requests: list[Request]
    replicas: list[ReplicaRecords]
    deliveries: Deliveries | None = None
    offload: Offload | None = None
    """What was loaded from host memory and disk."""
    pools: PoolSystem | None = None
    """Where requests were prefilled, and how their KV entries were transferred."""


@blamed()
def simulate(  # noqa: PLR0913 - only the experiment need be given
    experiment: Experiment,
    *,
    requests: list[Request] | None = None,
    profile: Profile | None = None,
    check: bool = False,
    keeps_steps: bool = True,
    keeps_deliveries: bool = False,
    on_progress: Callable[[int], None] | None = None,
) -> Run:
    """Run an experiment to its end.

    Args:
        requests: Run these in place of ``experiment.workload``.
        profile: Use this in place of the one that ``experiment.profile`` names.
        check: Check every invariant after every step; some ten times slower.
        on_progress: Told the number of requests that have ended, each time one ends.

    Raises:
        SpecsimError: The experiment cannot be run; nothing has been written.
    """
    serving = experiment.serving
    deployment = Deployment.of(serving, profile)
    servers = PoolServers.of(experiment, deployment)
    front = servers.prefill if servers else deployment
    if requests is None:
        check_size(experiment)
        requests = list(experiment.workload.build(experiment.seed).requests())
    _check_requests(requests, front)
    _check_requests(requests, deployment)
    drafting = Drafting(serving, deployment, requests)
    arrivals = experiment.workload.arrivals
    front_time = front.costs.overhead.front_ms * 1e-3
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
    ends = _Ends(len(requests), on_progress)
    clock = EventClock()
    parts_of_pools = (experiment, requests, clock, records)
    pools = PoolSystem(servers, *parts_of_pools, check=check) if servers else None
    origin = _first_arrival(requests, think_times, arrivals)
    offload = _offload(deployment, clock, len(requests))
    keeps_up = isinstance(arrivals, ClosedLoop) or offload is not None
    is_lock_step, longest = deployment.is_lock_step, 1 + experiment.num_speculative_tokens
    group = LockStep(deployment.costs, longest) if is_lock_step else None

    def make_replica(number: int, start: float) -> Replica:
        wiring = Wiring(
            facts=drafting.facts,
            records=records[number],
            fates=drafting.survival_lens if len(drafting.survival_lens) else None,
            offers=drafting.offers,
            deliveries=deliveries,
            observers=[IntegrityCheck()] if check else [],
            on_end=ends.tell,
            on_notices=None if offload is None else offload.noticed,
            announces_ends=keeps_up,
            origin=origin,
        )
        if pools is not None:
            return pools.decode_replica(drafting, wiring, number, start)
        parts = (deployment.setup, deployment.costs, drafting.start(number), wiring, start)
        return Replica(*parts) if group is None else Rank(group, *parts)

    cluster: Cluster | PoolSystem
    if pools is None:
        cluster = Cluster(
            clock,
            requests,
            experiment.num_engines,
            make_replica,
            router=experiment.routing,
            seed=experiment.seed,
            keeps_up=keeps_up,
        )
        if offload is not None:
            offload.cluster = cluster
    else:
        cluster = pools.start(make_replica, origin)
    schedule_incidents(clock, cluster, experiment.incidents or ())
    if isinstance(arrivals, ClosedLoop):
        delays = [time + front_time for time in think_times]
        clients = ClosedLoopClients(clock, requests, delays, cluster.submit)
        ends.listener = clients.answered
        clients.start(arrivals.concurrency)
    else:
        clock.process(replay(clock, requests, cluster.submit, front_time))
    clock.run()
    cluster.check_stranded()
    cluster.finish()
    ends.check()
    return Run(experiment, deployment, requests, records, deliveries, offload, pools)


def _offload(deployment: Deployment, clock: EventClock, count: int) -> Offload | None:
    """Return the tiers behind the GPUs' caches, if there are any."""
    config = deployment.engine.kv_offload
    if config is None:
        return None
    return Offload(clock, count, config, deployment.token_bytes(with_drafts=True))


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


class _Ends:
    """Counts the requests that have ended, each once, and passes it on."""

    def __init__(self, num_requests: int, on_progress: Callable[[int], None] | None) -> None:
        self._has_ended = bytearray(num_requests)
        self._num_ended = 0
        self._on_progress = on_progress
        self.listener: Callable[[float], None] | None = None

    def tell(self, requests: Ints, at: NDArray[np.float64]) -> None:
        """Note requests that have ended, in this order, and when."""
        for request, instant in zip(requests.tolist(), at.tolist(), strict=True):
            if self._has_ended[request]:
                raise InvariantError(f"request {request} has ended twice")
            self._has_ended[request] = True
            self._num_ended += 1
            if self.listener is not None:
                self.listener(instant)
            if self._on_progress is not None:
                self._on_progress(self._num_ended)

    def check(self) -> None:
        """Raise unless every request ended."""
        left = len(self._has_ended) - self._num_ended
        if left:
            raise InvariantError(f"{left} of {len(self._has_ended)} requests never ended")


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
