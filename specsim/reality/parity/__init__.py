"""Parity: a recorded schedule of the real vLLM scheduler, replayed by specsim's engine.

A scenario scripts everything but the scheduler: arrivals, step times in whole nanoseconds, which
drafts survive, how many are offered. The engine, event clock and scheduler are those of every
other run. The log is compared field by field.

Source of the recordings: vLLM 0.32.0 and 0.33.0 ``v1/core/sched/scheduler.py`` and
``async_scheduler.py``.
"""

from collections.abc import Sequence
from dataclasses import replace
from heapq import heapify, heappop, heappush
from math import inf
from pathlib import Path
from typing import Any, Literal, final

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from specsim.acceptance.bernoulli import Bernoulli
from specsim.core.errors import TraceError
from specsim.core.reading import short
from specsim.core.request import Request
from specsim.core.rng import Luck, indexed_hash, indexed_hashes
from specsim.core.settings import Settings, load_mapping, validated
from specsim.decisions.policy import Policy, ServerView
from specsim.engine.adapters import LoraConfig
from specsim.engine.config import EngineConfig
from specsim.engine.integrity import IntegrityCheck
from specsim.engine.lock_step import LockStep
from specsim.engine.replica import Replica
from specsim.engine.setup import Facts, Setup, Wiring
from specsim.engine.speculation import Speculation
from specsim.engine.table import BLOCKS_READ, LOAD_BEGINS, LOAD_ENDED, LOAD_FAILED, NO_ROW, REQUEST
from specsim.engine.versions import RULES, VllmVersion, minor_version
from specsim.hardware import KVLayers
from specsim.latency import LatencyModel
from specsim.latency.form import COEFFICIENTS, Form
from specsim.policies.static import Off, Schedule, Static
from specsim.profile import Overhead, StepCosts
from specsim.proposers import PROPOSERS
from specsim.proposers.base import Proposer
from specsim.reality.parity.log import Difference, LogWriter, compare_logs, load_log
from specsim.results.records import ReplicaRecords
from specsim.run.draft_sources import TableDrafts

__all__ = [
    "Difference", "Scenario", "as_in_log", "compare_logs", "load_log", "load_scenario",
    "run_scenario",
]  # fmt: skip


_WITHDRAWAL = 1 + max(REQUEST, LOAD_ENDED, LOAD_FAILED, BLOCKS_READ)
_ACCEPTANCE, _DRAFTS, _OUTPUT_TOKENS, _PROMPT_TOKENS = 1, 2, 3, 4  # streams of the recordings


class SpecScript(Settings):
    """How drafts are made, under the names of the recordings."""

    method: str
    k: int = Field(ge=1, le=254)
    per_batch_size: tuple[tuple[int, int, int], ...] | None = None
    parallel_drafting: bool = False
    num_nextn_predict_layers: int = 1
    disable_lookahead_block_hashes: bool = False

    @property
    def proposer(self) -> Proposer:
        own = self.model_dump(exclude={"method", "k", "per_batch_size"}, exclude_defaults=True)
        return PROPOSERS.parse({"method": self.method, "num_speculative_tokens": self.k, **own})


class EngineScript(Settings):
    """The engine, under the names of the recordings."""

    block_size: int
    num_blocks: int
    max_model_len: int
    max_num_batched_tokens: int
    max_num_scheduled_tokens: int | None = None
    max_num_seqs: int
    max_num_active_seqs: int | None = None
    enable_chunked_prefill: bool = True
    enable_prefix_caching: bool = False
    policy: Literal["fcfs", "priority"] = "fcfs"
    long_prefill_token_threshold: int = 0
    long_prefill_token_threshold_adaptive: bool = False
    scheduler_reserve_full_isl: bool = True
    watermark: float = 0.0
    async_scheduling: bool = False
    spec: SpecScript | None = None
    kv_groups: tuple[KVLayers, ...] | None = None
    """The attention layers, from which vLLM forms the groups."""
    prefix_cache_retention_interval: int | None = 0
    """None: keep all blocks."""
    vllm_version: VllmVersion = "0.32"
    """By default the version of the first recordings, whose scenarios have none."""
    prefill_schedule_interval: int | None = None
    data_parallel_size: int | None = None
    """Ranks of a mixture of experts; all but one make dummy passes."""
    pipeline_parallel_size: int = 1
    """Pipeline stages, each of which takes the scripted time of a step."""
    decode_context_parallel_size: int = 1
    """GPUs that each hold `block_size` tokens of a block."""
    max_loras: int | None = None
    """LoRA slots, if requests use adapters."""

    def to_config(self) -> EngineConfig:
        renamed = {
            "block_size",
            "num_blocks",
            "policy",
            "spec",
            "prefix_cache_retention_interval",
            "max_loras",
        }
        interval = self.prefix_cache_retention_interval
        return EngineConfig(
            **self.model_dump(exclude=renamed),
            block_size=self.block_size * self.decode_context_parallel_size,
            num_gpu_blocks=self.num_blocks,
            scheduling_policy=self.policy,
            lora_config=None if self.max_loras is None else LoraConfig(max_loras=self.max_loras),
            prefix_cache_retention_interval="dense" if interval is None else interval,
        )


class CostScript(Settings):
    """Step times: base, per batched token, per context and batched token, nanoseconds."""

    base_ns: int
    per_token_ns: int
    per_ctx_ns: int


class AcceptanceScript(Settings):
    """Which drafts survive."""

    alpha: float = Field(ge=0, le=1)


class DraftScript(Settings):
    """How many drafts are offered."""

    mode: Literal["full", "ngram"]
    p_zero: float = 0.0


class RequestScript(Settings):
    """One request; without token ids, these are scripted, too."""

    id: str
    arrival_ns: int = Field(ge=0, le=2**62)
    prompt_len: int = Field(gt=0, le=2**31)
    max_tokens: int = Field(gt=0, le=2**31)
    stop_after: int | None = Field(default=None, gt=0, le=2**31)
    """Output tokens after which the model emits a stop token, if before `max_tokens`."""
    abort_ns: int | None = Field(default=None, ge=0, le=2**62)
    """Instant at which the client disconnects, nanoseconds."""
    priority: int = 0
    alpha: float | None = None
    prompt_token_ids: tuple[int, ...] | None = None
    prompt_segments: tuple[tuple[int, int, int, int], ...] | None = None
    """The prompt in pieces: stream, number, first position and length of each."""
    lora: int = Field(default=0, ge=0, le=2**31)
    """LoRA adapter, from 1; 0 for none."""
    external_len: int = Field(default=0, ge=0, le=2**31)
    """Tokens of the prompt whose KV entries another engine has."""


class LoadScript(Settings):
    """Times of loading KV entries from elsewhere, and of reading blocks."""

    base_ns: int = Field(ge=0)
    per_token_ns: int = Field(ge=0)
    held_ns: int | None = Field(default=None, ge=0)
    """How long blocks of ended requests are kept, nanoseconds; None: not kept."""
    host_blocks: int = Field(default=0, ge=0, le=2**26)
    """KV blocks in host memory, from which their content is loaded; 0: no host memory."""
    offload_prompt_only: bool = True


class Scenario(Settings):
    """A workload, an engine, and everything that the real scheduler does not decide."""

    name: str
    kind: str = ""
    seed: int
    engine: EngineScript
    cost: CostScript
    acceptance: AcceptanceScript
    drafts: DraftScript
    requests: tuple[RequestScript, ...] = Field(min_length=1)
    loads: LoadScript | None = None
    """Loads through a KV connector; None without one."""

    def request(self, index: int) -> Request:
        """Return a request, with recorded or scripted token ids."""
        row = self.requests[index]
        output_len = min(row.max_tokens, row.stop_after or row.max_tokens)
        segments = row.prompt_segments or ((_PROMPT_TOKENS, index, 0, row.prompt_len),)
        if row.prompt_token_ids is None:
            prompt = np.concatenate([self._token_ids(*each) for each in segments])
        else:
            prompt = np.array(row.prompt_token_ids, dtype=np.int64)
        return Request(
            index=index,
            id=row.id,
            arrived_at=row.arrival_ns,
            prompt_len=row.prompt_len,
            output_len=output_len,
            max_tokens=row.max_tokens,
            priority=row.priority,
            adapter=row.lora,
            prompt_token_ids=prompt,
            output_token_ids=self._token_ids(_OUTPUT_TOKENS, index, 0, output_len),
        )

    def _token_ids(self, stream: int, number: int, start: int, count: int) -> NDArray[np.int64]:
        hashes = indexed_hashes(self.seed, stream, [number], [start + count])[start:]
        return 1_000_000 + (hashes % 2**30).astype(np.int64)


def load_scenario(path: Path) -> Scenario:
    """Return the scenario in a JSON file; a TraceError if it is none."""
    fields = load_mapping(path, TraceError)
    if not {"cost", "requests"} & fields.keys():
        raise TraceError(
            f"{path}: is no recorded scenario, which has engine, cost and requests; give a "
            "NAME.scenario.json, such as tests/parity/record.py writes"
        )
    with validated(str(path), TraceError):
        scenario = Scenario.model_validate(fields)
        scenario.engine.to_config()
        _speculation(scenario)
        return scenario


def as_in_log(scenario: Scenario, log: dict[str, Any], path: Path) -> Scenario:
    """Return a scenario with the vLLM version of a log; a TraceError if it is unknown."""
    version = minor_version(log.get("vllm_version", scenario.engine.vllm_version))
    if version not in list(RULES):
        raise TraceError(
            f"{path}: vllm_version = {short(log['vllm_version'])}: known are {', '.join(RULES)}"
        )
    engine = scenario.engine.model_copy(update={"vllm_version": version})
    return scenario.model_copy(update={"engine": engine})


@final
class _Scripted(LatencyModel):
    """Three coefficients in nanoseconds, exact for whole numbers."""

    kind: str = "scripted"
    per_context: int
    per_token: int
    base: int

    @classmethod
    def costs(cls, cost: CostScript, stages: int) -> StepCosts:
        context, base = stages * cost.per_ctx_ns, stages * cost.base_ns
        per_token = stages * cost.per_token_ns + context
        target = cls(per_context=context, per_token=per_token, base=base)
        return StepCosts(target, (), Overhead())

    def form(self) -> Form:
        coefficients = (self.per_context, self.per_token, self.base)
        return np.array([COEFFICIENTS, *coefficients, *coefficients], dtype=np.float64)


class _ScriptedNgram(Proposer):
    """An n-gram drafter with a scripted number of drafts."""

    method: str = "scripted_ngram"
    p_zero: float
    seed: int

    def start(self, requests: Sequence[Request], luck: Luck, max_draft_len: int) -> int:
        return self.seed

    def offered_len(self, request: int, position: int, draft_len: int, memory: Any) -> int:
        v = (indexed_hash(self.seed, _DRAFTS, request, position) >> 11) * 2.0**-53
        if v < self.p_zero or not draft_len:
            return 0
        return min(draft_len, 1 + int((v - self.p_zero) / (1 - self.p_zero) * draft_len))


def _speculation(scenario: Scenario) -> tuple[Policy, Proposer | None]:
    spec = scenario.engine.spec
    if spec is None:
        return Off(), None
    sizes = spec.per_batch_size
    policy = Static() if sizes is None else Schedule(ranges=sizes)
    # Loads come through a KV connector; see `EngineConfig.behind_connector`.
    is_legacy = scenario.loads is not None or spec.disable_lookahead_block_hashes
    return policy, spec.proposer.model_copy(update={"disable_lookahead_block_hashes": is_legacy})


def run_scenario(scenario: Scenario, *, check: bool = True) -> dict[str, Any]:
    """Run a scenario, with all invariants checked or not, and return its log as it is recorded."""
    spec = scenario.engine.spec
    policy, proposer = _speculation(scenario)
    max_draft_len = policy.max_draft_len(spec.k if spec else 0)
    setup = scenario.engine.to_config().setup(
        proposer,
        max_draft_len,
        is_dynamic=policy.is_dynamic,
        is_async=scenario.engine.async_scheduling,
    )
    if proposer is not None and scenario.drafts.mode == "ngram":
        p_zero, seed = scenario.drafts.p_zero, scenario.seed
        proposer = _ScriptedNgram(num_speculative_tokens=max_draft_len, p_zero=p_zero, seed=seed)
    requests = list(map(scenario.request, range(len(scenario.requests))))
    facts = Facts.of(
        requests,
        setup.kv.hash_block_size,
        with_keys=scenario.engine.enable_prefix_caching,
        lookahead_len=setup.limits["hash_lookahead_len"],
    )
    luck = Luck(scenario.seed, _ACCEPTANCE)
    fates = _fates(scenario, requests, luck, max_draft_len)
    # Steps take no time.
    server = ServerView(max_draft_len, lambda *_: 0.0, lambda _, tokens, __: np.zeros(len(tokens)))
    speculation = Speculation(
        policy=policy,
        memory=policy.start(server),
        max_draft_len=max_draft_len,
        source=TableDrafts(fates, facts.starts) if proposer else None,
        proposer=proposer,
        proposer_memory=proposer.start(requests, luck, max_draft_len) if proposer else None,
    )
    log = LogWriter(requests, has_groups=scenario.engine.kv_groups is not None)
    outside = _Outside(scenario)
    wiring = Wiring(
        facts=facts,
        records=ReplicaRecords(max_draft_len),
        fates=fates,
        observers=[log, IntegrityCheck()] if check else [log],
        announces_ends=scenario.loads is not None,
    )
    replica = _replica(scenario, setup, speculation, wiring, outside)
    outside.play(replica)
    replica.finish()
    return {
        "scenario": scenario.name,
        "steps": log.steps,
        "requests": [log.ended[index] for index in sorted(log.ended)],
    }


def _replica(
    scenario: Scenario, setup: Setup, speculation: Speculation, wiring: Wiring, outside: "_Outside"
) -> Replica:
    """Return the engine of a scenario, alone or as the only rank with requests."""
    costs = _Scripted.costs(scenario.cost, scenario.engine.pipeline_parallel_size)
    replica = Replica(
        outside.connected(setup),
        costs,
        speculation,
        wiring,
        group=LockStep(costs) if scenario.engine.data_parallel_size else None,
        on_notices=outside.begin,
    )
    if replica.is_grouped:
        replica.keep_state_in(np.array(replica.table.state), 0)
    return replica


class _Outside:
    """Events from outside an engine, in order: arrivals and ends of loads."""

    def __init__(self, scenario: Scenario) -> None:
        self._loads = scenario.loads
        self._events: list[tuple[float, int, int, int, int]] = [
            (row.arrival_ns, REQUEST, request, NO_ROW, row.external_len)
            for request, row in enumerate(scenario.requests)
        ]
        self._events += [
            (row.abort_ns, _WITHDRAWAL, request, NO_ROW, 0)
            for request, row in enumerate(scenario.requests)
            if row.abort_ns is not None
        ]
        heapify(self._events)

    def connected(self, setup: Setup) -> Setup:
        if self._loads is None:
            return setup
        limits = {
            **setup.limits,
            "most_holding": setup.limits["max_num_running"] + setup.limits["num_blocks"],
            "holds_ended": int(self._loads.held_ns is not None),
            "has_connector": 1,
            "defers_frees": int(setup.is_async),
            "host_blocks": self._loads.host_blocks,
            "offloads_outputs": int(not self._loads.offload_prompt_only),
        }
        return replace(setup, limits=limits)

    def begin(self, replica: Replica, notices: NDArray[np.void]) -> None:
        """Schedule the ends of loads, and of reads of kept blocks."""
        assert self._loads is not None
        for notice in notices:
            is_load = notice["kind"] == LOAD_BEGINS
            time = self._loads.base_ns + self._loads.per_token_ns * int(notice["tokens"])
            time, kind = (time, LOAD_ENDED) if is_load else (self._loads.held_ns or 0, BLOCKS_READ)
            row = (float(notice["at"]) + time, kind, int(notice["request"]), int(notice["row"]), 0)
            heappush(self._events, row)

    def play(self, replica: Replica) -> None:
        while self._events or replica.next_at < inf:
            at = self._events[0][0] if self._events else inf
            replica.advance(at)
            if replica.next_at < at or (self._events and self._events[0][0] < at):
                continue
            if at == inf:
                return
            at, kind, request, row, external_len = heappop(self._events)
            if kind == REQUEST:
                replica.submit(request, at, external_len)
            elif kind == _WITHDRAWAL:
                replica.withdraw(request)
            else:
                replica.tell(kind, request, row, at)


def _fates(
    scenario: Scenario, requests: list[Request], luck: Luck, max_draft_len: int
) -> NDArray[np.uint8]:
    alphas = (scenario.acceptance.alpha if r.alpha is None else r.alpha for r in scenario.requests)
    tables = [
        Bernoulli(alpha=alpha).survival_lens([request], luck, max_draft_len)[0]
        for request, alpha in zip(requests, alphas, strict=True)
    ]
    return np.frombuffer(b"".join(tables), dtype=np.uint8)
