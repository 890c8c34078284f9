"""Whole: a run whose replicas affect one another, simulated on one clock.

Replicas affect one another if the router looks at them, clients wait for answers, prefill pools
pass requests on to decode pools, or replicas come, fail and go.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from math import inf

import numpy as np
from numpy.typing import NDArray

from specsim.core.errors import CapacityError, ConfigError
from specsim.core.request import Request
from specsim.core.rng import generator
from specsim.engine.clients import Clients
from specsim.engine.cluster import Cluster, EventClock, schedule_incidents
from specsim.engine.config import check_padding
from specsim.engine.fleet import Fleet, Scaling
from specsim.engine.integrity import IntegrityCheck
from specsim.engine.lock_step import LockStep
from specsim.engine.pools import PoolCluster, Pools, check_free
from specsim.engine.replica import Replica
from specsim.engine.setup import Setup, Wiring
from specsim.engine.table import BLOCKS_HELD
from specsim.engine.transfer import KVPart, KVSize, Offload
from specsim.hardware import load_model
from specsim.hardware.kv_groups import CHUNKED, SLIDING, STATE
from specsim.results.metrics import LimitUse
from specsim.results.records import Deliveries, PrefillRecords, ReplicaRecords, records_of_run
from specsim.run.cells import Ends, Kept
from specsim.run.deployment import Deployment
from specsim.run.drafting import Drafting
from specsim.run.experiment import Experiment, PoolsConfig, most_looks
from specsim.workload.arrivals.patterns import ClosedLoop


def pooled_setup(deployment: Deployment, *, holds_ended: bool, draft_kv: str = "moved") -> Setup:
    """Return the setup of a replica in a pool, whose KV blocks another pool fills or reads."""
    setup = deployment.setup
    if not holds_ended:  # the decode pool receives its blocks loaded
        check_padding(setup.limits)
    limits = {
        **setup.limits,
        **deployment.loading_limits(setup),
        "holds_ended": int(holds_ended),
        "lacks_loaded": int(draft_kv != "moved"),
        "skips_loaded": int(draft_kv == "cold"),
    }
    return replace(setup, limits=limits)


@dataclass(frozen=True)
class PoolServers:
    """Both pools of an experiment, resolved against their hardware."""

    config: PoolsConfig
    prefill: Deployment
    decode: Deployment
    prefill_experiment: Experiment

    @classmethod
    def of(cls, experiment: Experiment, decode: Deployment) -> "PoolServers | None":
        """Resolve the prefill pool of an experiment beside the decode pool; None without pools.

        A SpecsimError if the pools cannot work together.
        """
        if experiment.pools is None:
            return None
        mine = experiment.of_pool("prefill")
        servers = cls(experiment.pools, Deployment.of(mine), decode, mine)
        for name, server in (("prefill", servers.prefill), ("decode", decode)):
            _check_layers(name, server, experiment.pools)
        servers._check_alike()
        return servers

    def _check_alike(self) -> None:
        both = (self.prefill, self.decode)
        for what, prefill, decode in (
            ("models", *(load_model(each.profile.model).name for each in both)),
            ("block_size", *(each.engine.block_size for each in both)),
            ("KV bytes per token", *(each.token_bytes(with_drafts=False) for each in both)),
            (
                "disable_hybrid_kv_cache_manager",
                *(bool(each.engine.disable_hybrid_kv_cache_manager) for each in both),
            ),
        ):
            if prefill != decode:
                raise ConfigError(
                    f"pools: {what} of prefill ({prefill}) and decode ({decode}) must be the same, "
                    "for KV entries to be of use; change a profile or an engine"
                )

    @property
    def size(self) -> KVSize:
        server, is_moved = self.decode, self.config.transfer.draft_kv == "moved"
        layers, size = server.layers, server.engine.block_size
        model = load_model(server.profile.model)
        last_share = 1 / model.num_hidden_layers
        whole = server.token_bytes(with_drafts=is_moved)
        if layers is None or not server.setup.kv.has_windows:
            return KVSize((KVPart(whole, inf),), last_share)
        target = server.token_bytes(with_drafts=False)
        total = sum(each.layers * (each.bytes_per_token or 0.0) for each in layers.target)
        parts = [KVPart(whole - target, inf)]  # KV entries of the drafter
        for each in layers.target:
            if each.kind == STATE:
                continue
            # A window may begin within a block.
            most = (-(-each.span_len // size) + 1) * size if each.kind == SLIDING else inf
            share = each.layers * (each.bytes_per_token or 0.0) / total
            parts.append(KVPart(target * share, most))
        gpus = server.profile.tensor_parallel_size
        return KVSize(tuple(parts), last_share, gpus * model.state_bytes(gpus))

    @property
    def kept_back_len(self) -> int:
        """Return how many tokens at the end of a prompt the decode pool computes itself.

        A saved state is the one before the last token; several MTP modules must read again all that
        they look ahead to (vLLM: ``nixl/base_scheduler.py _prefill_backoff``).
        """
        has_states = any(group.kind == STATE for group in self.decode.setup.kv.groups)
        return max(int(has_states), self.decode.setup.limits["reread_len"])


def _check_layers(name: str, server: Deployment, pools: PoolsConfig) -> None:
    """Raise a ConfigError if the transfer of some layers' KV entries is not simulated."""
    layers = server.layers.target if server.layers else ()
    for each in layers:
        if each.block_size:
            raise ConfigError(
                f"pools.{name}: the model has layers with blocks of their own, whose transfer is "
                "not simulated; name another model"
            )
        if each.kind == CHUNKED:
            raise ConfigError(
                f"pools.{name}: the model has layers that attend in chunks, whose transfer is not "
                "simulated; set engine.disable_hybrid_kv_cache_manager to true"
            )
        if each.kind == STATE and name == "decode" and server.engine.enable_prefix_caching:
            raise ConfigError(
                "pools.decode.engine.enable_prefix_caching: what a decode replica finds of a model "
                "that keeps states is not simulated; set it to false"
            )
    if server.setup.kv.has_windows and pools.transfer.draft_kv != "moved":
        raise ConfigError(
            f"pools.transfer.draft_kv: {pools.transfer.draft_kv!r} is not simulated with a model "
            "that has windows or states; leave it out"
        )


def prefill_requests(requests: list[Request]) -> list[Request]:
    """Return the requests as a prefill pool sees them: each has one output token."""
    return [
        replace(
            request,
            output_len=1,
            max_tokens=1,
            output_token_ids=None
            if request.output_token_ids is None
            else request.output_token_ids[:1],
            recorded_lens={name: lens[:1] for name, lens in request.recorded_lens.items()},
            offered_lens=None if request.offered_lens is None else request.offered_lens[:2],
        )
        for request in requests
    ]


def lock_step(deployment: Deployment) -> LockStep | None:
    """Return the barrier at which data-parallel ranks wait for each other; None if they do not."""
    if not deployment.is_lock_step:
        return None
    return LockStep(deployment.costs, deployment.decode_len)


def _offload(server: Deployment, clock: EventClock, num_requests: int) -> Offload | None:
    tiers = server.engine.kv_offload
    if tiers is None:
        return None
    return Offload(clock, num_requests, tiers, server.offloaded_block_bytes)


class PoolSystem:
    """Both pools of a run on one clock, in the place of the `Cluster` of a run without pools."""

    def __init__(
        self,
        servers: PoolServers,
        experiment: Experiment,
        requests: list[Request],
        clock: EventClock,
        records: list[ReplicaRecords],
        *,
        check: bool,
    ) -> None:
        config = servers.config
        self.prefill_profile = servers.prefill.profile
        self.sizes = {
            "decode_replicas": config.decode.slots,
            "prefill_num_gpu_blocks": servers.prefill.engine.num_gpu_blocks,
        }
        longest, first = servers.prefill.max_draft_len, config.decode.slots
        log, delays = records[0].step_log, records[0].delays
        self.records = [
            PrefillRecords(longest, log, number, delays) for number in range(first, len(records))
        ]
        records[first:] = self.records
        self._servers, self._experiment, self._check = servers, experiment, check
        self._clock, self._requests = clock, requests
        self._drafting = Drafting(
            servers.prefill_experiment, servers.prefill, prefill_requests(requests)
        )
        self.pools = Pools(clock, requests, config.transfer, servers.size, servers.kept_back_len)
        self.offload = _offload(servers.prefill, clock, len(requests))

    def decode_replica(
        self, drafting: Drafting, wiring: Wiring, number: int, start: float
    ) -> Replica:
        server, draft_kv = self._servers.decode, self._servers.config.transfer.draft_kv
        wiring = replace(wiring, announces_ends=True)
        speculation = drafting.start(number)
        if server.proposer is None or not server.proposer.has_prefill:
            draft_kv = "moved"  # the drafter has no KV entries that could be missing
        if draft_kv != "moved":
            speculation.leaves_out = True
        setup = pooled_setup(server, holds_ended=False, draft_kv=draft_kv)
        noticed = self.pools.noticed
        return Replica(setup, server.costs, speculation, wiring, start, on_notices=noticed)

    def _prefill_replica(self, origin: float, number: int, start: float) -> Replica:
        server, drafting = self._servers.prefill, self._drafting
        wiring = drafting.wiring(
            self.records[number],
            observers=[IntegrityCheck()] if self._check else [],
            on_end=self.pools.prefilled,
            announces_ends=True,
            origin=origin,
        )
        setup = pooled_setup(server, holds_ended=True)
        speculation, noticed = drafting.start(number), self._prefill_noticed
        return Replica(setup, server.costs, speculation, wiring, start, on_notices=noticed)

    def _prefill_noticed(self, replica: Replica, notices: NDArray[np.void]) -> None:
        """Pass on which blocks replicas hold for the decode pool, and their host loads."""
        is_kept = notices["kind"] == BLOCKS_HELD
        self.pools.noticed(replica, notices[is_kept])
        if self.offload is not None:
            self.offload.noticed(replica, notices[~is_kept])

    def start(self, make_decode: Callable[[int, float], Replica], origin: float) -> "PoolSystem":
        """Start the replicas of both pools, and return this object."""
        config, experiment = self._servers.config, self._experiment
        self.prefill, self.decode = (
            PoolCluster(
                self._clock,
                self._requests,
                pool.slots,
                make,
                router=pool.routing or experiment.routing,
                seed=experiment.seed,
                started=pool.num_started,
            )
            for pool, make in (
                (config.prefill, partial(self._prefill_replica, origin)),
                (config.decode, make_decode),
            )
        )
        front = self._servers.decode.front(config.decode.slots, len(self._requests))
        self.pools.join(self.prefill, self.decode, front)
        if self.offload is not None:
            self.offload.cluster = self.prefill
        if self._check:
            self.prefill.has_gone = self.decode.has_gone = check_free
        self.submit = self.prefill.submit
        return self

    def check_stranded(self) -> None:
        """Raise a CapacityError if requests wait for a replica that will never come back."""
        self.prefill.check_stranded()
        self.decode.check_stranded()
        for replica in self.decode.up:
            if replica.has_unfinished:
                raise CapacityError(
                    "pools.decode: requests that have been loaded hold the KV blocks of a replica, "
                    "and none of them can go on, in vLLM neither; use more memory, or a "
                    "smaller max_num_seqs"
                )

    def finish(self) -> None:
        """Let all replicas hand over their results, and check that no block is kept."""
        replicas = [*self.prefill.up, *self.decode.up]
        self.prefill.finish()
        self.decode.finish()
        if self._check:
            self.pools.check(replicas)
        for records in self.records:
            records.close(self._servers.decode.max_draft_len)


_MANY = 64  # with more replicas, each gets smaller buffers, since all are in memory at once


class Whole:
    """A run on one clock; `run` can be called once.

    Args:
        deployment: That of all replicas, or of the decode pool.
    """

    def __init__(
        self,
        experiment: Experiment,
        deployment: Deployment,
        pools: PoolServers | None,
        requests: list[Request],
        kept: Kept,
        on_progress: Callable[[int], None] | None,
    ) -> None:
        self._experiment, self._deployment = experiment, deployment
        self._requests, self._check = requests, kept.check
        self._arrivals = experiment.workload.arrivals
        first, slots = deployment, experiment.num_engines
        if pools is not None:
            first, slots = pools.prefill, pools.config.prefill.slots
        front = first.front(slots, len(requests))
        self._drafting = Drafting(experiment.serving, deployment, requests)
        self.records = records_of_run(
            experiment.num_engines,
            deployment.max_draft_len,
            keeps_steps=kept.steps,
            delays=front.delays,
        )
        lens = self._drafting.facts.rows["output_len"]
        self.deliveries = Deliveries.room_for(lens) if kept.deliveries else None
        self._ends = Ends(len(requests), on_progress)
        self._clock = EventClock()
        self._clients = Clients(self._clock, requests, front)
        is_closed = isinstance(self._arrivals, ClosedLoop)
        self._clients_wait = is_closed or self._clients.has_sessions
        self._think_times = self._drawn_think_times()
        self._group = lock_step(deployment)
        self.offload = _offload(deployment, self._clock, len(requests))
        self._keeps_up = self._clients_wait or self.offload is not None
        self.pools: PoolSystem | None = None
        if pools is not None:
            parts = (pools, experiment, requests, self._clock, self.records)
            self.pools = PoolSystem(*parts, check=kept.check)
            self.offload = self.pools.offload
        self.scalings: dict[str | None, Scaling] = {}
        """The history of each autoscaler once the run is over, by name of the pool."""

    def run(self) -> None:
        """Run all events; a CapacityError if requests wait for a replica that never comes back."""
        cluster, clock, experiment = self._cluster(), self._clock, self._experiment
        clusters: dict[str | None, Cluster]
        if isinstance(cluster, PoolSystem):
            clusters = {"prefill": cluster.prefill, "decode": cluster.decode}
        else:
            clusters = {None: cluster}
        fleets = self._fleets(clusters)
        schedule_incidents(clock, {**clusters, **fleets}, experiment.incidents or ())
        self._clients.submit = cluster.submit
        if self._clients_wait:
            self._ends.listener = self._clients.answered
        if isinstance(self._arrivals, ClosedLoop):
            self._clients.start(self._arrivals.concurrency, self._think_times)
        else:
            clock.process(self._clients.arrivals())
        clock.run()
        cluster.check_stranded()
        self.scalings = {name: fleet.finish() for name, fleet in fleets.items()}
        cluster.finish()
        self._ends.check()

    def _fleets(self, clusters: dict[str | None, Cluster]) -> dict[str | None, Fleet]:
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
        drafting, deployment = self._drafting, self._deployment
        wiring = drafting.wiring(
            self.records[number],
            deliveries=self.deliveries,
            observers=[IntegrityCheck(is_alone=self._group is None)] if self._check else [],
            on_end=self._ends.tell,
            announces_ends=self._keeps_up,
            origin=self._origin,
        )
        if self.pools is not None:
            return self.pools.decode_replica(drafting, wiring, number, start)
        setup = deployment.setup
        if self._experiment.num_engines > _MANY:
            setup = replace(setup, num_results=setup.num_results // 8)
        return Replica(
            setup,
            deployment.costs,
            drafting.start(number),
            wiring,
            start,
            group=self._group,
            on_notices=None if self.offload is None else self.offload.noticed,
        )

    def _drawn_think_times(self) -> list[float]:
        """Return the think time before each request, seconds; an empty list in an open loop."""
        if not isinstance(self._arrivals, ClosedLoop):
            return []
        rng = generator(self._experiment.seed, "think_times")
        return list(self._arrivals.think_times(rng, len(self._requests)).tolist())

    @property
    def _origin(self) -> float:
        if isinstance(self._arrivals, ClosedLoop):
            return min(self._think_times[: self._arrivals.concurrency], default=0.0)
        return min((each.arrived_at for each in self._clients.starts), default=0.0)
