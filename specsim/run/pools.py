"""Pools: an experiment with prefill and decode pools, as two servers and the links between them."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from specsim.core.errors import CapacityError, ConfigError
from specsim.core.request import Request
from specsim.engine.cluster import EventClock
from specsim.engine.integrity import IntegrityCheck
from specsim.engine.offload import Offload
from specsim.engine.pools import KVSize, PoolCluster, Pools, check_free
from specsim.engine.python_verbs import PythonVerbs, Wiring
from specsim.engine.replica import Replica
from specsim.engine.setup import Setup
from specsim.engine.table import BLOCKS_HELD
from specsim.hardware import load_model
from specsim.results.prefills import PrefillRecords
from specsim.results.records import ReplicaRecords
from specsim.run.deployment import Deployment
from specsim.run.drafting import Drafting
from specsim.run.experiment import Experiment
from specsim.run.pool_config import PoolsConfig


def pooled_setup(deployment: Deployment, *, holds_ended: bool, draft_kv: str = "moved") -> Setup:
    """Return the engine of a pool's replica: blocks are loaded into, or kept to be read."""
    setup = deployment.setup
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

        Raises:
            SpecsimError: The pools cannot work together.
        """
        if experiment.pools is None:
            return None
        mine = experiment.of_pool("prefill")
        servers = cls(experiment.pools, Deployment.of(mine), decode, mine)
        for name, server in (("prefill", servers.prefill), ("decode", decode)):
            layout = server.setup.kv
            if len(layout.groups) > 1 or layout.has_windows:
                raise ConfigError(
                    f"pools.{name}: the model has {len(layout.groups)} KV cache groups, some with "
                    "windows, whose transfer is not simulated; set "
                    "engine.disable_hybrid_kv_cache_manager to true"
                )
        servers._check_alike()
        return servers

    def _check_alike(self) -> None:
        for what, prefill, decode in (
            ("models", self.prefill.engine.model, self.decode.engine.model),
            ("block_size", self.prefill.engine.block_size, self.decode.engine.block_size),
            (
                "KV bytes per token",
                self.prefill.token_bytes(with_drafts=False),
                self.decode.token_bytes(with_drafts=False),
            ),
        ):
            if prefill != decode:
                raise ConfigError(
                    f"pools: {what} of prefill ({prefill}) and decode ({decode}) must be the same, "
                    "for KV entries to be of use; change a profile or an engine"
                )

    @property
    def size(self) -> KVSize:
        """What a transfer moves."""
        is_moved = self.config.transfer.draft_kv == "moved"
        per_token = self.decode.token_bytes(with_drafts=is_moved)
        layers = load_model(self.decode.profile.model).num_hidden_layers
        return KVSize(per_token, 1 / layers)


def prefill_requests(requests: list[Request]) -> list[Request]:
    """Return the requests as a prefill pool sees them: one token is asked for."""
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


class PoolSystem:
    """Both pools on one clock: what a `Cluster` is to a run without pools."""

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
        decode = config.decode.slots
        log, times = records[0].step_log, records[0].front_times
        self.records = [
            PrefillRecords(servers.prefill.max_draft_len, log, number, times)
            for number in range(decode, len(records))
        ]
        records[decode:] = self.records
        self._servers, self._experiment, self._check = servers, experiment, check
        self._clock, self._requests = clock, requests
        self._drafting = Drafting(
            servers.prefill_experiment, servers.prefill, prefill_requests(requests)
        )
        self.pools = Pools(clock, requests, config.transfer, servers.size)
        self.offload: Offload | None = None
        tiers = servers.prefill.engine.kv_offload
        if tiers is not None:
            token_bytes = servers.prefill.token_bytes(with_drafts=True)
            self.offload = Offload(clock, len(requests), tiers, token_bytes)

    def decode_replica(
        self, drafting: Drafting, wiring: Wiring, number: int, start: float
    ) -> Replica:
        """Return a replica of the decode pool."""
        server, draft_kv = self._servers.decode, self._servers.config.transfer.draft_kv
        wiring = replace(wiring, on_notices=self.pools.noticed, announces_ends=True)
        speculation = drafting.start(number)
        if draft_kv != "moved" and server.proposer is not None and server.proposer.has_prefill:
            speculation.leaves_out = True
        setup = pooled_setup(server, holds_ended=False, draft_kv=draft_kv)
        return Replica(setup, server.costs, speculation, wiring, start)

    def _prefill_replica(self, origin: float, number: int, start: float) -> Replica:
        server, drafting = self._servers.prefill, self._drafting
        wiring = Wiring(
            facts=drafting.facts,
            records=self.records[number],
            fates=drafting.survival_lens if len(drafting.survival_lens) else None,
            offers=drafting.offers,
            observers=[IntegrityCheck()] if self._check else [],
            on_end=self.pools.prefilled,
            on_notices=self._prefill_noticed,
            announces_ends=True,
            origin=origin,
        )
        setup = pooled_setup(server, holds_ended=True)
        return Replica(setup, server.costs, drafting.start(number), wiring, start)

    def _prefill_noticed(self, replica: PythonVerbs, notices: NDArray[np.void]) -> None:
        """Pass on what replicas keep, and what they wait for from their host memory."""
        is_kept = notices["kind"] == BLOCKS_HELD
        self.pools.noticed(replica, notices[is_kept])
        if self.offload is not None:
            self.offload.noticed(replica, notices[~is_kept])

    def start(self, make_decode: Callable[[int, float], Replica], origin: float) -> "PoolSystem":
        """Start the replicas of both pools; returns itself."""
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
        front_time = self._servers.decode.costs.overhead.front_ms * 1e-3
        self.pools.join(self.prefill, self.decode, front_time)
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
