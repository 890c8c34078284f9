"""Drafting: the luck of a run, settled before it begins, and who speculates with it."""

from array import array
from collections.abc import Iterator
from itertools import count
from typing import Any

from specsim.acceptance import Acceptance, Oracle
from specsim.deployment import Deployment
from specsim.draft_luck import Confidences, DraftLuck
from specsim.engine.draft_sources import LookupDrafts, ModelDrafts
from specsim.engine.speculation import Speculation
from specsim.errors import TraceError
from specsim.experiment import Experiment
from specsim.policies import OraclePolicy, ServerView
from specsim.proposers import Proposer
from specsim.request import Request
from specsim.rng import Luck, generator, stream_id
from specsim.step import StepLoad

__all__ = ["Drafting"]

_CHUNK = 1024  # requests whose survival tables are made at once: fast, and small next to a run


class Drafting:
    """The fate of every draft of a run, settled before it begins.

    Parameters
    ----------
    experiment : Experiment
    deployment : Deployment
    requests : list of Request
        Of the run, by index.

    Raises
    ------
    TraceError
        A request lacks what the acceptance model or the policy needs.
    """

    def __init__(
        self, experiment: Experiment, deployment: Deployment, requests: list[Request]
    ) -> None:
        self._experiment = experiment
        self._deployment = deployment
        self._requests = requests
        proposer, acceptance = deployment.proposer, experiment.acceptance
        self._tables: list[list[bytes]] = []
        self._verifies_tokens = False
        self._draft_luck: DraftLuck | None = None
        self._proposer_memory: Any = None
        if proposer is None or acceptance is None:
            return
        policy, max_draft_len = deployment.policy, deployment.max_draft_len
        models = [acceptance.of_drafter(name) for name in proposer.cost_keys]
        self._verifies_tokens = models[0].verifies_tokens
        if self._verifies_tokens:
            _check_tokens(requests, f"acceptance '{models[0].kind}'")
        elif policy.uses_tokens:
            _check_tokens(requests, f"policy '{policy.kind}'")
        self._tables = [
            self._survival_tables(model, name)
            for model, name in zip(models, proposer.cost_keys, strict=True)
        ]
        if policy.drafts_trees:
            self._draft_luck = self._tree_luck(acceptance, proposer)
        elif policy.uses_confidences and not self._verifies_tokens:
            self._draft_luck = self._confidence_luck(acceptance, proposer)
        if not self._verifies_tokens:
            self._proposer_memory = proposer.start(
                requests, self._luck("proposer", proposer.method), max_draft_len
            )

    def _luck(self, *names: str) -> Luck:
        return Luck(self._experiment.seed, stream_id(*names))

    def _survival_tables(self, model: Acceptance, drafter: str) -> list[bytes]:
        luck = self._luck("acceptance", drafter)
        max_draft_len = self._deployment.max_draft_len
        return [
            table
            for chunk in _chunks(self._requests)
            for table in model.survival_lens(chunk, luck, max_draft_len)
        ]

    def _tree_luck(self, acceptance: Acceptance, proposer: Proposer) -> DraftLuck:
        luck = self._luck("acceptance", proposer.method)
        num_heads = self._experiment.num_speculative_tokens
        rates = acceptance.position_rates(num_heads)
        assert rates is not None  # the experiment has checked it
        uniforms = [
            array("d", luck.uniforms([request.index], [request.output_len + num_heads]))
            for request in self._requests
        ]
        return DraftLuck(candidate_luck=uniforms, rates=rates)

    def _confidence_luck(self, acceptance: Acceptance, proposer: Proposer) -> DraftLuck:
        luck = self._luck("confidence", proposer.method)
        confidences: list[Confidences] = []
        for start, chunk in zip(count(0, _CHUNK), _chunks(self._requests), strict=False):
            confidences += DraftLuck.confidence_tables(
                chunk,
                self._tables[0][start : start + _CHUNK],
                luck,
                acceptance.confidence_concentration,
                self._deployment.max_draft_len,
            )
        return DraftLuck(confidences=confidences)

    def start(self, replica: int) -> Speculation:
        """Return the speculation of one replica, with fresh memories."""
        experiment, deployment = self._experiment, self._deployment
        policy, slo, costs = deployment.policy, experiment.slo, deployment.costs
        alone = StepLoad(512, 1, 1)
        target_time = costs.target_time(alone)
        fates: list[bytearray] = []  # the survival tables, where drafts are real tokens
        if self._verifies_tokens:
            fates = [bytearray(request.output_len) for request in self._requests]
        lookup, fallback = self._sources(fates)
        server = ServerView(
            max_draft_len=deployment.max_draft_len,
            step_time=costs.step_time,
            step_times=costs.step_times,
            verify_time=target_time + costs.overhead_time(1),
            pass_times=tuple(
                draft.draft_time(alone, 2, target_time) - draft.draft_time(alone, 1, target_time)
                for draft in costs.drafts
            ),
            drafts_by_model=deployment.proposer is None or deployment.proposer.is_model,
            prompt_token_ids=lambda request: _token_ids(self._requests[request]),
            oracle=Oracle(fates or self._tables[0]) if isinstance(policy, OraclePolicy) else None,
            rng=generator(experiment.seed, "policy", str(replica)),
            tpot_slo=None if slo is None or slo.tpot_ms is None else slo.tpot_ms * 1e-3,
        )
        return Speculation(
            policy=policy,
            memory=policy.start(server),
            max_draft_len=deployment.max_draft_len,
            proposer=deployment.proposer,
            proposer_memory=self._proposer_memory,
            survival_tables=self._tables,
            luck=self._draft_luck,
            lookup=lookup,
            fallback=fallback,
        )

    def _sources(
        self, fates: list[bytearray]
    ) -> tuple[LookupDrafts | None, LookupDrafts | ModelDrafts | None]:
        """Return a lookup and what stands behind it, for one replica: it shares no tree."""
        proposer, acceptance = self._deployment.proposer, self._experiment.acceptance
        if proposer is None or acceptance is None or not fates:
            return None, None
        sources: list[LookupDrafts | ModelDrafts] = []
        for part in proposer.parts:
            draft_len = min(part.num_speculative_tokens, self._deployment.max_draft_len)
            lookup = part.make_lookup()
            if acceptance.of_drafter(part.cost_keys[0]).verifies_tokens and lookup is not None:
                sources.append(LookupDrafts(lookup, draft_len, fates))
            else:
                sources.append(ModelDrafts(draft_len, self._tables[1]))
        first, *others = sources
        assert isinstance(first, LookupDrafts)
        return first, others[0] if others else None


def _check_tokens(requests: list[Request], who: str) -> None:
    for request in requests:
        if request.prompt_token_ids is None or request.output_token_ids is None:
            raise TraceError(
                f"{who} needs token ids, which request {request.id or request.index} does not "
                "have; replay a token trace (see `specsim list workload.readers`) or use another"
            )


def _token_ids(request: Request) -> list[int]:
    assert request.prompt_token_ids is not None  # checked before the run
    ids: list[int] = request.prompt_token_ids.tolist()
    return ids


def _chunks(requests: list[Request]) -> Iterator[list[Request]]:
    for start in range(0, len(requests), _CHUNK):
        yield requests[start : start + _CHUNK]
