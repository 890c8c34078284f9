"""Whole: a run whose replicas have to do with each other, all of them on one clock.

A router looks at them, clients wait for answers, a pool passes requests on to the next, replicas
come, fail and go.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from specsim.core.request import Request
from specsim.core.rng import generator
from specsim.engine.clients import Clients, replay
from specsim.engine.cluster import Cluster, EventClock, schedule_incidents
from specsim.engine.fleet import Fleet, Scaling
from specsim.engine.integrity import IntegrityCheck
from specsim.engine.lock_step import LockStep, Rank
from specsim.engine.offload import Offload
from specsim.engine.python_verbs import Wiring
from specsim.engine.replica import Replica
from specsim.results.metrics import LimitUse
from specsim.results.records import Deliveries, ReplicaRecords, records_of_run
from specsim.run.cells import Kept
from specsim.run.deployment import Deployment
from specsim.run.drafting import Drafting
from specsim.run.ends import Ends
from specsim.run.experiment import Experiment
from specsim.run.pools import PoolServers, PoolSystem
from specsim.run.size import most_looks
from specsim.workload.arrivals.synthetic import ClosedLoop

_MANY = 64
"""Replicas, beyond which each gets smaller buffers, since all are in memory at once."""


@dataclass(frozen=True)
class Servers:
    """Everything that serves, resolved against its hardware."""

    experiment: Experiment
    deployment: Deployment
    """What answers: all replicas, or those of the decode pool."""
    pools: PoolServers | None

    @property
    def front(self) -> Deployment:
        """What requests reach first."""
        return self.pools.prefill if self.pools else self.deployment


class Whole:
    """A run on one clock; it can be run once.

    Args:
        requests: Of the run, by index.
        on_progress: Told how many requests have ended, each time one does.
    """

    def __init__(
        self,
        servers: Servers,
        requests: list[Request],
        kept: Kept,
        on_progress: Callable[[int], None] | None,
    ) -> None:
        self._experiment, self._deployment = servers.experiment, servers.deployment
        self._requests, self._check = requests, kept.check
        self._arrivals = servers.experiment.workload.arrivals
        front_end = servers.front.front_end(len(requests), servers.experiment.num_engines)
        self._drafting = Drafting(servers.experiment.serving, servers.deployment, requests)
        self.records: list[ReplicaRecords] = records_of_run(
            servers.experiment.num_engines,
            servers.deployment.max_draft_len,
            keeps_steps=kept.steps,
            front_times=front_end.times,
        )
        self.deliveries: Deliveries | None = None
        if kept.deliveries:
            self.deliveries = Deliveries.room_for(self._drafting.facts.rows["output_len"])
        self._ends = Ends(len(requests), on_progress)
        self._clock = EventClock()
        self._front_end, self._clients = front_end, Clients(self._clock, requests, front_end)
        is_closed = isinstance(self._arrivals, ClosedLoop)
        self._clients_wait = is_closed or self._clients.has_sessions
        self._think_times = self._drawn_think_times()
        self._group = None
        if servers.deployment.is_lock_step:
            dummy_len = 1 + servers.experiment.num_speculative_tokens
            self._group = LockStep(servers.deployment.costs, dummy_len)
        self.offload: Offload | None = None
        if servers.deployment.engine.kv_offload is not None:
            self.offload = Offload(
                self._clock,
                len(requests),
                servers.deployment.engine.kv_offload,
                servers.deployment.token_bytes(with_drafts=True),
            )
        self._keeps_up = self._clients_wait or self.offload is not None
        self.pools: PoolSystem | None = None
        if servers.pools is not None:
            self.pools = PoolSystem(
                servers.pools,
                servers.experiment,
                requests,
                self._clock,
                self.records,
                check=kept.check,
            )
            self.offload = self.pools.offload
        self.scalings: dict[str | None, Scaling] = {}
        """What each autoscaler has made of the run, when that is over; by pool."""

    def run(self) -> None:
        """Let everything happen.

        Raises:
            CapacityError: Requests wait for a replica that will never come back.
        """
        cluster, clock, experiment = self._cluster(), self._clock, self._experiment
        clusters: dict[str | None, Cluster] = {None: cluster}  # type: ignore[dict-item]
        if isinstance(cluster, PoolSystem):
            clusters = {"prefill": cluster.prefill, "decode": cluster.decode}
        fleets = self._fleets(clusters)
        schedule_incidents(clock, {**clusters, **fleets}, experiment.incidents or ())
        self._clients.submit = cluster.submit
        if self._clients_wait:
            self._ends.listener = self._clients.answered
        if isinstance(self._arrivals, ClosedLoop):
            self._clients.start(self._arrivals.concurrency, self._think_times)
        else:
            clock.process(replay(clock, self._clients.starts, cluster.submit, self._front_end))
        clock.run()
        cluster.check_stranded()
        self.scalings = {name: fleet.finish() for name, fleet in fleets.items()}
        cluster.finish()
        self._ends.check()

    def _fleets(self, clusters: dict[str | None, Cluster]) -> dict[str | None, Fleet]:
        """Return what scales the pools that are scaled."""
        experiment, pools, together = self._experiment, self._experiment.pools, list[Fleet]()
        num_decode = pools.decode.slots if pools else len(self.records)
        records = {"prefill": self.records[num_decode:], "decode": self.records[:num_decode]}
        return {
            name: Fleet(
                self._clock,
                clusters[name],
                scaler,
                getattr(pools, name).num_started if name else experiment.num_started,
                recent=LimitUse(records[name or "decode"], experiment.slo).since_last,
                is_over=self._ends.is_over,
                most_looks=most_looks(),
                fleets=together,
                name=name,
            )
            for name, scaler in experiment.scalers.items()
        }

    def _cluster(self) -> Cluster | PoolSystem:
        if self.pools is not None:
            return self.pools.start(self._replica, self._origin)
        cluster = Cluster(
            self._clock,
            self._requests,
            self._experiment.num_engines,
            self._replica,
            router=self._experiment.routing,
            seed=self._experiment.seed,
            keeps_up=self._keeps_up,
            started=self._experiment.num_started,
        )
        if self.offload is not None:
            self.offload.cluster = cluster
            cluster.has_notices = True
        return cluster

    def _replica(self, number: int, start: float) -> Replica:
        """Return a new replica of those that answer."""
        drafting, deployment = self._drafting, self._deployment
        wiring = Wiring(
            facts=drafting.facts,
            records=self.records[number],
            fates=drafting.survival_lens if len(drafting.survival_lens) else None,
            offers=drafting.offers,
            deliveries=self.deliveries,
            observers=[IntegrityCheck()] if self._check else [],
            on_end=self._ends.tell,
            on_notices=None if self.offload is None else self.offload.noticed,
            announces_ends=self._keeps_up,
            origin=self._origin,
        )
        if self.pools is not None:
            return self.pools.decode_replica(drafting, wiring, number, start)
        setup = deployment.setup
        if self._experiment.num_engines > _MANY:
            setup = replace(setup, num_results=setup.num_results // 8)
        parts = (setup, deployment.costs, drafting.start(number), wiring, start)
        return Replica(*parts) if self._group is None else Rank(self._group, *parts)

    def _drawn_think_times(self) -> list[float]:
        """Return how long a client waits before each request, seconds; nothing in an open loop."""
        if not isinstance(self._arrivals, ClosedLoop):
            return []
        rng = generator(self._experiment.seed, "think_times")
        times: list[float] = self._arrivals.think_times(rng, len(self._requests)).tolist()
        return times

    @property
    def _origin(self) -> float:
        """When the first request of the run arrives, seconds."""
        if isinstance(self._arrivals, ClosedLoop):
            return min(self._think_times[: self._arrivals.concurrency], default=0.0)
        return self._requests[0].arrived_at if self._requests else 0.0
