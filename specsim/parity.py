"""Parity: a recorded schedule of the real vLLM scheduler, replayed by specsim's engine.

A scenario scripts everything but the scheduler: arrivals, step times in whole nanoseconds, which
drafts survive, how many are offered. The engine, event clock and scheduler are those of every
other run; only the scripted parts below are special. The log is compared field by field.

Source of the recordings: vLLM 0.32.0 ``v1/core/sched/scheduler.py`` and ``async_scheduler.py``.
"""

from collections.abc import Sequence as Indexable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, final
from zlib import crc32

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from specsim.acceptance.base import Acceptance
from specsim.acceptance.bernoulli import Bernoulli
from specsim.engine.cluster import run_alone
from specsim.engine.config import EngineConfig
from specsim.engine.engine import Engine, EngineStep, Observer
from specsim.engine.integrity import IntegrityCheck
from specsim.engine.scheduler import Scheduler
from specsim.engine.sequence import Sequence
from specsim.engine.speculation import Speculation
from specsim.errors import TraceError
from specsim.policies.base import Policy, ServerView
from specsim.policies.off import Off
from specsim.policies.schedule import Schedule
from specsim.policies.static import Static
from specsim.proposers import PROPOSERS
from specsim.proposers.base import Proposer
from specsim.request import Request
from specsim.rng import Luck, indexed_hash
from specsim.settings import Settings, load_mapping, validated
from specsim.step import StepLoad

__all__ = [
    "Difference",
    "Scenario",
    "compare_logs",
    "load_log",
    "load_scenario",
    "run_scenario",
]

_ACCEPTANCE, _DRAFTS, _OUTPUT_TOKENS, _PROMPT_TOKENS = 1, 2, 3, 4  # streams of the recordings


class _Spec(Settings):
    method: str
    k: int = Field(ge=1)
    per_batch_size: tuple[tuple[int, int, int], ...] | None = None


class _Engine(Settings):
    block_size: int
    num_blocks: int
    max_model_len: int
    max_num_batched_tokens: int
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
    spec: _Spec | None = None

    def to_config(self) -> EngineConfig:
        """Return the same settings under the names of an experiment."""
        renamed = {"num_blocks", "policy", "spec"}
        return EngineConfig(
            **self.model_dump(exclude=renamed),
            num_gpu_blocks=self.num_blocks,
            scheduling_policy=self.policy,
        )


class _Cost(Settings):
    base_ns: int
    per_token_ns: int
    per_ctx_ns: int


class _Acceptance(Settings):
    alpha: float = Field(ge=0, le=1)


class _Drafts(Settings):
    mode: Literal["full", "ngram"]
    p_zero: float = 0.0


class _Request(Settings):
    id: str
    arrival_ns: int = Field(ge=0)
    prompt_len: int = Field(gt=0)
    max_tokens: int = Field(gt=0)
    priority: int = 0
    alpha: float | None = None
    prompt_token_ids: tuple[int, ...] | None = None


class Scenario(Settings):
    """A workload, an engine, and everything that the real scheduler did not decide."""

    name: str
    kind: str = ""
    seed: int
    engine: _Engine
    cost: _Cost
    acceptance: _Acceptance
    drafts: _Drafts
    requests: tuple[_Request, ...] = Field(min_length=1)


def load_scenario(path: Path) -> Scenario:
    """Return a scenario from its JSON file.

    Parameters
    ----------
    path : Path

    Returns
    -------
    Scenario

    Raises
    ------
    TraceError
        The file is missing or is not a scenario.
    """
    with validated(str(path), TraceError):
        return Scenario.model_validate(load_mapping(path, TraceError))


def load_log(path: Path) -> dict[str, Any]:
    """Return a recorded log from its JSON file.

    Parameters
    ----------
    path : Path

    Returns
    -------
    dict

    Raises
    ------
    TraceError
        The file is missing or is not a log.
    """
    log = load_mapping(path, TraceError)
    for field in ("steps", "requests"):
        rows = log.get(field)
        if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            raise TraceError(f"{path}: '{field}' is not a list of objects; is it a recorded log?")
    return log


@dataclass(frozen=True)
class _ScriptedCosts:
    """Step times in whole nanoseconds: base + per token + per (context and batched) token."""

    cost: _Cost

    def target_time(self, load: StepLoad) -> int:
        cost, tokens = self.cost, load.batched_tokens
        if not tokens:
            return 0
        per_ctx = cost.per_ctx_ns * (load.context_tokens + tokens)
        return cost.base_ns + cost.per_token_ns * tokens + per_ctx

    def draft_time(self, load: StepLoad, draft_lens: int | list[int], target_time: float) -> int:
        return 0

    def overhead_time(self, num_requests: int) -> int:
        return 0


@final
class _ScriptedAcceptance(Acceptance):
    """Bernoulli with a probability of its own for some requests."""

    kind: str = "scripted"
    alphas: tuple[float, ...]

    def survival_lens(
        self, requests: Indexable[Request], luck: Luck, max_draft_len: int
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

    def offered_len(self, request: int, position: int, draft_len: int) -> int:
        v = (indexed_hash(self.seed, _DRAFTS, request, position) >> 11) * 2.0**-53
        if v < self.p_zero or not draft_len:
            return 0
        return min(draft_len, 1 + int((v - self.p_zero) / (1 - self.p_zero) * draft_len))


def _policy(spec: _Spec | None) -> Policy:
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


class _LogWriter:
    """Writes what happens in the format of the recordings (its fields are explained there)."""

    def __init__(self) -> None:
        self.steps: list[dict[str, Any]] = []
        self.ended: dict[int, dict[str, Any]] = {}
        self._first_step: dict[int, int] = {}
        self._first_token: dict[int, int] = {}

    def scheduled(self, scheduler: Scheduler, step: EngineStep) -> None:
        """Append the step."""
        plan = step.plan
        for sequence in plan.admitted:
            self._first_step[sequence.index] = plan.index
        rows = zip(plan.sequences, plan.scheduled_lens, plan.draft_lens, strict=True)
        self.steps.append(
            {
                "i": plan.index,
                "t": step.scheduled_at,
                "t1": None,
                "sched": [
                    [s.request.id, length, drafts, s.computed_len - length, len(s.blocks)]
                    for s, length, drafts in rows
                ],
                "new": [s.request.id for s in plan.admitted],
                "resumed": [s.request.id for s in plan.resumed],
                "preempted": [s.request.id for s in plan.preempted],
                "K": step.asked_lens,
                "s": self._state(scheduler),
            }
        )

    def updated(self, scheduler: Scheduler, step: EngineStep, ended: list[Sequence]) -> None:
        """Complete the step, and the requests that it ended."""
        plan = step.plan
        rows = list(zip(plan.sequences, plan.emitted_lens, step.accepted_lens, strict=True))
        self.steps[plan.index] |= {
            "t1": step.ended_at,
            "u": self._state(scheduler),
            "out": [[s.request.id, emitted, accepted] for s, emitted, accepted in rows if emitted],
            "finished": [s.request.id for s in ended],
        }
        for sequence, emitted, _ in rows:
            if emitted:
                self._first_token.setdefault(sequence.index, int(step.ended_at))
        for sequence in ended:
            self.ended[sequence.index] = {
                "id": sequence.request.id,
                "arrival_ns": sequence.request.arrived_at,
                "first_step": self._first_step[sequence.index],
                "first_token_ns": self._first_token[sequence.index],
                "finish_ns": step.ended_at,
                "preemptions": sequence.num_preemptions,
                "cached": sequence.cached_lens[0],
                "out": sequence.output_len,
                "reason": "length",
                "recomputed_hits": sequence.cached_lens[1:],
            }

    @staticmethod
    def _state(scheduler: Scheduler) -> list[int]:
        free = scheduler.kv.pool.free_order()
        crc = crc32(",".join(map(str, free)).encode())
        return [len(scheduler.running), len(scheduler.waiting), len(free), crc]


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
        traits = PROPOSERS.find(spec.method)
        proposer = traits(num_speculative_tokens=spec.k)  # type: ignore[call-arg]
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
        memory=policy.start(ServerView(max_draft_len, lambda load, lens: 0.0)),
        max_draft_len=max_draft_len,
        proposer=proposer,
        survival_tables=acceptance.survival_lens(requests, luck, max_draft_len),
    )
    log = _LogWriter()
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


@dataclass(frozen=True)
class Difference:
    """The first place where two logs disagree."""

    step: int | None
    request: str | None
    field: str
    ours: Any
    theirs: Any

    def __str__(self) -> str:
        where = f"request {self.request}" if self.step is None else f"step {self.step}"
        if self.step is not None and self.request is not None:
            where += f", request {self.request}"
        return f"{where}, field {self.field}: ours {self.ours!r}, theirs {self.theirs!r}"


def compare_logs(ours: dict[str, Any], theirs: dict[str, Any]) -> Difference | None:
    """Return the first difference between our log and a recorded one, or None.

    Parameters
    ----------
    ours : dict
        From `run_scenario`.
    theirs : dict
        A recorded log.

    Returns
    -------
    Difference or None
    """
    for number, (our_step, their_step) in enumerate(
        zip(ours["steps"], theirs["steps"], strict=False)
    ):
        for field in their_step:
            if our_step.get(field) != their_step[field]:
                return _step_difference(number, field, our_step.get(field), their_step[field])
    if len(ours["steps"]) != len(theirs["steps"]):
        return Difference(
            min(len(ours["steps"]), len(theirs["steps"])),
            None,
            "number of steps",
            len(ours["steps"]),
            len(theirs["steps"]),
        )
    our_rows = {row["id"]: row for row in ours["requests"]}
    for row in theirs["requests"]:
        our_row = our_rows.get(row["id"], {})
        for field in row:
            if our_row.get(field) != row[field]:
                return Difference(None, row["id"], field, our_row.get(field), row[field])
    return None


def _step_difference(number: int, field: str, ours: Any, theirs: Any) -> Difference:
    """Narrow a difference in a list of per-request rows down to the request."""
    if field not in ("sched", "out"):
        return Difference(number, None, field, ours, theirs)
    names = ("id", "n", "s", "c", "b") if field == "sched" else ("id", "tokens", "accepted")
    for our_row, their_row in zip(ours, theirs, strict=False):
        for name, our_value, their_value in zip(names, our_row, their_row, strict=True):
            if our_value != their_value:
                return Difference(number, their_row[0], f"{field}.{name}", our_value, their_value)
    return Difference(number, None, field, ours, theirs)
