"""run_scenario: the same as `specsim.reality.parity.run_scenario`, by the oracle."""

from typing import TYPE_CHECKING, Any

from oracle.engine import Engine, Script
from oracle.grouped import Windows
from oracle.kv_cache import KVLimits
from oracle.log import LogWriter
from oracle.plan import StepPlan
from oracle.scheduler import Scheduler, SchedulerLimits
from oracle.schedulers import AsyncScheduler, PrefillFirstScheduler, SyncScheduler
from specsim.acceptance.bernoulli import Bernoulli
from specsim.core.request import Request
from specsim.core.rng import Luck, indexed_hash
from specsim.hardware.kv_groups import as_full_attention, kv_layout
from specsim.proposers import PROPOSERS, Proposer

if TYPE_CHECKING:
    from specsim.reality.parity import EngineScript, Scenario

__all__ = ["run_scenario"]

_ACCEPTANCE, _DRAFTS = 1, 2  # streams of the recordings


def run_scenario(scenario: "Scenario", *, prefill_first: bool = False) -> dict[str, Any]:
    """Run a scenario and return its log.

    Parameters
    ----------
    scenario : Scenario
    prefill_first : bool
        By vLLM V0's scheduler, which has no recordings.

    Returns
    -------
    dict
        ``scenario``, ``steps`` and ``requests`` in the format of the recordings.
    """
    requests = [scenario.request(index) for index in range(len(scenario.requests))]
    log = LogWriter()
    scheduler = _scheduler(scenario, prefill_first=prefill_first)
    Engine(scheduler, _script(scenario, requests), requests, log).run()
    return {
        "scenario": scenario.name,
        "steps": log.steps,
        "requests": [log.ended[index] for index in sorted(log.ended)],
    }


def _scheduler(scenario: "Scenario", *, prefill_first: bool) -> Scheduler:
    engine, spec = scenario.engine, scenario.engine.spec
    proposer, max_draft_len, is_dynamic = None, 0, False
    if spec is not None:
        proposer = PROPOSERS.parse({"method": spec.method, "num_speculative_tokens": spec.k})
        max_draft_len = spec.k
        is_dynamic = spec.per_batch_size is not None
    lookahead_len = proposer.lookahead_len(max_draft_len) if proposer else 0
    limits = SchedulerLimits(
        max_num_scheduled_tokens=engine.max_num_batched_tokens,
        max_num_batched_tokens=engine.max_num_batched_tokens,
        max_num_running=engine.max_num_active_seqs or engine.max_num_seqs,
        policy=engine.policy,
        enable_chunked_prefill=engine.enable_chunked_prefill and not prefill_first,
        long_prefill_token_threshold=engine.long_prefill_token_threshold,
        long_prefill_token_threshold_adaptive=engine.long_prefill_token_threshold_adaptive,
        max_draft_len=max_draft_len,
        draft_slots=proposer.draft_slots(max_draft_len) if proposer and not prefill_first else 0,
        max_loras=engine.max_loras,
        pads_admissions=max_draft_len > 0 and not is_dynamic and not prefill_first,
        kv=KVLimits(
            num_blocks=engine.num_blocks,
            block_size=engine.block_size * engine.decode_context_parallel_size,
            max_model_len=engine.max_model_len,
            lookahead_len=max_draft_len if prefill_first else lookahead_len,
            enable_prefix_caching=engine.enable_prefix_caching,
            drops_last_hit=proposer is not None and proposer.drops_last_hit,
            watermark_blocks=int(engine.watermark * engine.num_blocks),
            reserve_full_prompt=engine.scheduler_reserve_full_isl or prefill_first,
        ),
        windows=_windows(engine, proposer) if engine.kv_groups else None,
    )
    if prefill_first:
        return PrefillFirstScheduler(limits)
    return AsyncScheduler(limits) if engine.async_scheduling else SyncScheduler(limits)


def _windows(engine: "EngineScript", proposer: Proposer | None) -> Windows:
    drops = proposer is not None and proposer.drops_last_hit
    layers = engine.kv_groups
    if drops and any(each.chunk for each in layers):  # vLLM turns its hybrid manager off
        layers = as_full_attention(layers)
    return Windows(
        layout=kv_layout(layers, engine.block_size),
        in_flight_tokens=engine.max_num_batched_tokens * (2 if engine.async_scheduling else 1),
        drops_in_last=drops and proposer.method == "mtp",
        retention_len=engine.prefix_cache_retention_interval,
    )


def _script(scenario: "Scenario", requests: list[Request]) -> Script:
    spec, cost, drafts = scenario.engine.spec, scenario.cost, scenario.drafts
    max_draft_len = spec.k if spec else 0

    def step_time(plan: StepPlan) -> int:
        tokens = plan.batched_tokens
        if not tokens:
            return 0
        per_context = cost.per_ctx_ns * (plan.context_tokens + tokens)
        return cost.base_ns + cost.per_token_ns * tokens + per_context

    def draft_len(size: int) -> int:
        if spec is None or spec.per_batch_size is None:
            return max_draft_len
        # Gaps between the ranges, and what is beyond the last, carry the previous length.
        begun = [each for each in sorted(spec.per_batch_size) if each[0] <= size]
        return min(begun[-1][2], max_draft_len)

    def offered_len(request: int, position: int, asked_len: int) -> int:
        if drafts.mode != "ngram":
            return asked_len
        v = (indexed_hash(scenario.seed, _DRAFTS, request, position) >> 11) * 2.0**-53
        if v < drafts.p_zero or not asked_len:
            return 0
        return min(asked_len, 1 + int((v - drafts.p_zero) / (1 - drafts.p_zero) * asked_len))

    luck = Luck(scenario.seed, _ACCEPTANCE)
    fates = []
    for row, request in zip(scenario.requests, requests, strict=True):
        alpha = scenario.acceptance.alpha if row.alpha is None else row.alpha
        fates.append(Bernoulli(alpha=alpha).survival_lens([request], luck, max_draft_len)[0])
    return Script(step_time, draft_len, offered_len, fates, max_draft_len)
