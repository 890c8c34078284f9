"""Running a scenario: the engine of every other run, with scripted costs, acceptance and drafts."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from specsim.acceptance.base import Acceptance
from specsim.acceptance.bernoulli import Bernoulli
from specsim.engine.cluster import run_alone
from specsim.engine.engine import Engine, Observer
from specsim.engine.integrity import IntegrityCheck
from specsim.engine.speculation import Speculation
from specsim.parity.log import LogWriter
from specsim.parity.scenario import CostScript, Scenario, SpecScript
from specsim.policies.base import Policy, ServerView
from specsim.policies.off import Off
from specsim.policies.schedule import Schedule
from specsim.policies.static import Static
from specsim.proposers import PROPOSERS
from specsim.proposers.base import Proposer
from specsim.request import Request
from specsim.rng import Luck, indexed_hash
from specsim.step import StepLoad

__all__ = ["run_scenario"]

_ACCEPTANCE, _DRAFTS, _OUTPUT_TOKENS, _PROMPT_TOKENS = 1, 2, 3, 4  # streams of the recordings


@dataclass(frozen=True)
class _ScriptedCosts:
    """Step times in whole nanoseconds: base + per token + per (context and batched) token."""

    cost: CostScript

    uses_pieces = False

    def target_time(self, load: StepLoad) -> int:
        cost, tokens = self.cost, load.batched_tokens
        if not tokens:
            return 0
        per_ctx = cost.per_ctx_ns * (load.context_tokens + tokens)
        return cost.base_ns + cost.per_token_ns * tokens + per_ctx

    def draft_time(
        self, load: StepLoad, draft_lens: int | list[int], target_time: float, drafter: int
    ) -> int:
        return 0

    def overhead_time(self, num_requests: int) -> int:
        return 0


@final
class _ScriptedAcceptance(Acceptance):
    """Bernoulli with a probability of its own for some requests."""

    kind: str = "scripted"
    alphas: tuple[float, ...]

    def survival_lens(
        self, requests: Sequence[Request], luck: Luck, max_draft_len: int
    ) -> list[bytes]:
        models = (Bernoulli(alpha=alpha) for alpha in self.alphas)
        return [
            model.survival_lens([request], luck, max_draft_len)[0]
            for request, model in zip(requests, models, strict=True)
        ]


class _ScriptedNgram(Proposer):
    """An n-gram drafter whose number of drafts is scripted."""

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


def _no_time(load: StepLoad, draft_lens: int | list[int]) -> float:
    return 0.0


def _no_times(
    load: StepLoad, batched_tokens: NDArray[np.int64], draft_lens: int | list[int]
) -> NDArray[np.float64]:
    return np.zeros(len(batched_tokens))


def _policy(spec: SpecScript | None) -> Policy:
    if spec is None:
        return Off()
    if spec.per_batch_size is not None:
        return Schedule(ranges=spec.per_batch_size)
    return Static()


def _token_ids(seed: int, stream: int, request: int, count: int) -> NDArray[np.int64]:
    ids = [indexed_hash(seed, stream, request, position) % 2**30 for position in range(count)]
    return 1_000_000 + np.array(ids, dtype=np.int64)


def _request(scenario: Scenario, index: int) -> Request:
    row = scenario.requests[index]
    prompt = row.prompt_token_ids
    return Request(
        index=index,
        id=row.id,
        arrived_at=row.arrival_ns,
        prompt_len=row.prompt_len,
        output_len=row.max_tokens,
        priority=row.priority,
        prompt_token_ids=_token_ids(scenario.seed, _PROMPT_TOKENS, index, row.prompt_len)
        if prompt is None
        else np.array(prompt, dtype=np.int64),
        output_token_ids=_token_ids(scenario.seed, _OUTPUT_TOKENS, index, row.max_tokens),
    )


def run_scenario(scenario: Scenario, *, check: bool = True) -> dict[str, Any]:
    """Run a scenario and return its log.

    Parameters
    ----------
    scenario : Scenario
    check : bool
        Check all invariants after every step.

    Returns
    -------
    dict
        ``scenario``, ``steps`` and ``requests`` in the format of the recordings.
    """
    spec = scenario.engine.spec
    policy = _policy(spec)
    proposer = None
    if spec is not None:
        proposer = PROPOSERS.parse({"method": spec.method, "num_speculative_tokens": spec.k})
    max_draft_len = policy.max_draft_len(spec.k if spec else 0)
    scheduler = scenario.engine.to_config().make_scheduler(
        proposer,
        max_draft_len,
        is_dynamic=policy.is_dynamic,
        is_async=scenario.engine.async_scheduling,
    )
    costs = _ScriptedCosts(scenario.cost)
    if proposer is not None and scenario.drafts.mode == "ngram":
        proposer = _ScriptedNgram(
            num_speculative_tokens=max_draft_len,
            p_zero=scenario.drafts.p_zero,
            seed=scenario.seed,
        )
    alphas = (scenario.acceptance.alpha if r.alpha is None else r.alpha for r in scenario.requests)
    requests = [_request(scenario, index) for index in range(len(scenario.requests))]
    acceptance = _ScriptedAcceptance(alphas=tuple(alphas))
    luck = Luck(scenario.seed, _ACCEPTANCE)
    speculation = Speculation(
        policy=policy,
        memory=policy.start(ServerView(max_draft_len, _no_time, _no_times)),
        max_draft_len=max_draft_len,
        proposer=proposer,
        proposer_memory=proposer.start(requests, luck, max_draft_len) if proposer else None,
        survival_tables=[acceptance.survival_lens(requests, luck, max_draft_len)],
    )
    log = LogWriter()
    observers: list[Observer] = [log, IntegrityCheck()] if check else [log]
    run_alone(
        lambda env: Engine(
            env, scheduler, speculation, costs, observers=observers, on_end=lambda sequence: None
        ),
        requests,
        start=0,
    )
    return {
        "scenario": scenario.name,
        "steps": log.steps,
        "requests": [log.ended[index] for index in sorted(log.ended)],
    }
