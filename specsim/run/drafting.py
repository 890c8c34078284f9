"""Drafting: what is accepted of every draft, drawn before the run begins; and who drafts."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache, cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specsim.acceptance import Acceptance, Oracle, model_of
from specsim.acceptance.base import Floats, TokenLucks
from specsim.core.blame import held_to, is_shipped
from specsim.core.draft_luck import (
    CandidateLuck,
    Confidences,
    DraftLuck,
    RankTables,
    drawn_ranks,
    known_share,
    scores_by_rank,
)
from specsim.core.errors import TraceError
from specsim.core.request import Columns, Request
from specsim.core.rng import Luck, generator, stream_id
from specsim.core.step import StepLoad
from specsim.engine.setup import Facts, Wiring
from specsim.engine.speculation import DraftSource, Speculation
from specsim.policies import (
    DraftsTrees,
    KnowsModel,
    ModelView,
    OraclePolicy,
    ServerView,
    quick_step_time,
    quick_step_times,
)
from specsim.proposers import Proposer
from specsim.proposers.base import offers_by_table
from specsim.results.records import ReplicaRecords
from specsim.run.deployment import Deployment
from specsim.run.draft_sources import HybridDrafts, LookupDrafts, TableDrafts, TreeDrafts
from specsim.run.experiment import Experiment

_CHUNK = 128  # requests whose survival tables are made at once, so that these stay in the CPU cache


class Drafting:
    """The accepted length of every draft of a run, drawn before the run begins.

    Raises a TraceError if a request lacks what the acceptance model or the policy needs.
    """

    facts: Facts
    survival_lens: NDArray[np.uint8]
    """Accepted length of the longest draft at each output position, drafter after drafter."""
    _drafters: list[tuple[Acceptance, Luck]]
    _proposer: Proposer  # set, like `_acceptance`, only if anything is ever drafted
    _acceptance: Acceptance
    _verifies_tokens = False
    _draft_luck: DraftLuck | None = None
    _candidate_luck: CandidateLuck | None = None
    _proposer_memory: Any = None
    _model: ModelView | None = None

    def __init__(
        self, experiment: Experiment, deployment: Deployment, requests: Sequence[Request]
    ) -> None:
        self._begin(experiment, deployment, requests)
        self.facts = Facts.of(
            requests,
            deployment.setup.kv.hash_block_size,
            with_keys=deployment.engine.enable_prefix_caching,
            lookahead_len=deployment.setup.limits["hash_lookahead_len"],
        )
        if not self._drafters:
            return
        (model, luck), policy = self._drafters[0], deployment.policy
        self._verifies_tokens = model.verifies_tokens and not self._proposer.looks_up_on_gpu
        if model.verifies_tokens:
            _check_tokens(requests, f"acceptance '{model.kind}'")
        elif policy.uses_tokens:
            _check_tokens(requests, f"policy '{policy.kind}'")
        tables = [self._survival_tables(requests, *drafter) for drafter in self._drafters]
        self.survival_lens = np.frombuffer(b"".join(map(b"".join, tables)), dtype=np.uint8)
        if isinstance(policy, KnowsModel):
            rates = model.known_rates(requests, luck, deployment.max_draft_len)
            self._model = ModelView(
                self._proposer.known_rates(rates) if self._proposer.looks_up_on_gpu else rates,
                known_share(self._acceptance.confidence_concentration, model.state_share),
            )
        knows_confidences = deployment.knows_confidences
        if isinstance(policy, DraftsTrees):
            self._candidate_luck = self._tree_luck(tables[0], policy.num_candidates)
        elif policy.uses_confidences and knows_confidences and not self._verifies_tokens:
            self._draft_luck = self._confidence_luck(tables[0])
        if not self._verifies_tokens:
            self._proposer_memory = self._offered(requests)

    def _begin(
        self, experiment: Experiment, deployment: Deployment, requests: Sequence[Request]
    ) -> None:
        self._experiment, self._deployment, self._requests = experiment, deployment, requests
        self.survival_lens = np.zeros(0, dtype=np.uint8)
        self._drafters = []
        if deployment.proposer is not None and experiment.acceptance is not None:
            self._proposer, self._acceptance = deployment.proposer, experiment.acceptance
            self._drafters = [
                (model_of(self._acceptance, key), self._luck("acceptance", key))
                for key in self._proposer.cost_keys
            ]

    def _luck(self, *names: str) -> Luck:
        return Luck(self._experiment.seed, stream_id(*names))

    def _survival_tables(
        self, requests: Sequence[Request], model: Acceptance, luck: Luck
    ) -> list[bytes]:
        longest, found = self._deployment.max_draft_len, []
        for start in range(0, len(requests), _CHUNK):
            chunk = requests[start : start + _CHUNK]
            given = model.survival_lens(chunk, luck, longest)
            if not is_shipped(model):
                lens = [request.output_len for request in chunk]
                is_right = isinstance(given, list) and all(isinstance(n, bytes) for n in given)
                is_right = is_right and [*map(len, given)] == lens
                rule = "a list of bytes, for each request as many as it has output tokens"
                held_to(model, "survival_lens", given, is_right, rule)
                again = given if start else model.survival_lens(chunk, luck, longest)
                rule = "the same whenever it is asked, so that all policies meet the same luck"
                held_to(model, "survival_lens", again, again == given, f"{rule}; draw from `luck`")
            if self._proposer.looks_up_on_gpu:
                given = self._proposer.survival_lens(
                    *(chunk, given, self._proposer_luck, longest),
                    reads_tokens=model.verifies_tokens,
                )
            found += given
        return found

    @property
    def _proposer_luck(self) -> Luck:
        return self._luck("proposer", self._proposer.own_name)

    def _offered(self, requests: Sequence[Request]) -> Any:
        longest = self._deployment.max_draft_len
        return self._proposer.start(requests, self._proposer_luck, longest)

    def _confidence_luck(self, tables: list[bytes]) -> DraftLuck:
        token_lucks = self._token_lucks(tables)
        parts = [
            self._confidences(each, *token_lucks(each, own)) for each, own in self._chunks(tables)
        ]
        return DraftLuck(confidences=Confidences.joined(parts) if parts else None)

    def _chunks(self, tables: list[bytes]) -> Iterator[tuple[Sequence[Request], list[bytes]]]:
        for start in range(0, len(self._requests), _CHUNK):
            mine = slice(start, start + _CHUNK)
            yield self._requests[mine], tables[mine]

    def _token_lucks(self, tables: list[bytes]) -> TokenLucks:
        model, luck = self._drafters[0]
        return model.token_lucks(luck, self._max_path_len, tables)

    @property
    def _max_path_len(self) -> int:
        """The most draft tokens that can be accepted in one step."""
        if isinstance(self._deployment.policy, DraftsTrees):
            return self._experiment.num_speculative_tokens
        return self._deployment.max_draft_len

    def _confidences(
        self, requests: Sequence[Request], own: Floats, scores: Floats, state_share: float
    ) -> Confidences:
        luck = self._luck("confidence", self._proposer.own_name)
        share = known_share(self._acceptance.confidence_concentration, state_share)
        return DraftLuck.confidence_tables(requests, own, scores, luck, share, self._max_path_len)

    def _tree_luck(self, tables: list[bytes], num_candidates: int) -> CandidateLuck:
        token_lucks, counts = self._token_lucks(tables), Columns.of(self._requests).output_lens
        chunks = self._chunks(tables)
        parts = [self._ranks(*each, token_lucks, num_candidates) for each in chunks]
        starts = np.cumsum([0, *(counts + self._max_path_len)])
        return CandidateLuck(parts, starts, self._max_path_len)

    def _ranks(
        self,
        requests: Sequence[Request],
        tables: list[bytes],
        token_lucks: TokenLucks,
        num_candidates: int,
    ) -> RankTables:
        factors = self._acceptance.rank_factors
        own, scores, state_share = token_lucks(requests, tables)
        ranks = drawn_ranks(own, scores, factors)
        places = np.minimum(np.arange(len(ranks)), len(scores) - 1)
        levels = [
            self._confidences(requests, own, each[places], state_share).levels
            for each in scores_by_rank(scores, factors, num_candidates)
        ]
        shape = (-1, 2 * len(ranks), ranks.shape[1])
        return RankTables(ranks, np.array(levels, dtype=np.uint8).reshape(shape))

    def start(self, replica: int) -> Speculation:
        """Return the speculation of one replica: its policy and draft source, with new memories."""
        deployment, survival_lens = self._deployment, self.survival_lens
        if self._verifies_tokens:  # found out by comparing tokens during the run
            survival_lens = np.zeros(self.facts.num_outputs, dtype=np.uint8)
        return Speculation(
            policy=deployment.policy,
            memory=deployment.policy.start(self._server(replica, survival_lens)),
            max_draft_len=deployment.max_draft_len,
            source=self._source(survival_lens),
            requests=self._requests,
            proposer=deployment.proposer,
            proposer_memory=self._proposer_memory,
            knows_confidences=deployment.knows_confidences,
            may_drop=not deployment.engine.drafter_serves_all,
        )

    @cached_property
    def _alike(self) -> ServerView:
        """The `ServerView` that all replicas share; made once, as there may be thousands."""
        return server_view(self._experiment, self._deployment)

    def _server(self, replica: int, survival_lens: NDArray[np.uint8]) -> ServerView:
        """Return what the policy of a replica knows of its server."""
        knows_all = isinstance(self._deployment.policy, OraclePolicy)
        return replace(
            self._alike,
            rng=_policy_rng(self._experiment, replica),
            prompt_token_ids=lambda request: _token_ids(self._requests[request]),
            oracle=Oracle(survival_lens, self.facts.starts) if knows_all else None,
            model=self._model,
        )

    def wiring(self, records: ReplicaRecords, **rest: Any) -> Wiring:
        """Return what a replica shares with the run; `rest` are the callbacks of `Wiring`."""
        fates = self.survival_lens if len(self.survival_lens) else None
        return Wiring(self.facts, records, fates, self.offers, **rest)

    @property
    def offers(self) -> NDArray[np.uint8] | None:
        """The draft length that the proposer finds at each position; None without a table."""
        memory = self._proposer_memory
        if memory is None or not offers_by_table(self._proposer):
            return None
        return np.frombuffer(b"".join(memory), dtype=np.uint8)

    def _source(self, survival_lens: NDArray[np.uint8]) -> DraftSource | None:
        """Return the draft source of one replica; replicas share no lookup."""
        if not self._drafters:
            return None
        starts, parts = self.facts.starts, self._proposer.parts
        if isinstance(self._deployment.policy, DraftsTrees):
            assert self._candidate_luck is not None
            return TreeDrafts(self._candidate_luck)
        if not self._verifies_tokens:
            return TableDrafts(survival_lens, starts, self._draft_luck)
        first, *others = [self._lookup(part, survival_lens) for part in parts]
        assert first is not None
        if not others:
            return first
        return HybridDrafts(
            first,
            others[0],
            model_len=min(parts[1].num_speculative_tokens, self._deployment.max_draft_len),
            model_fates=self.survival_lens[self.facts.num_outputs :],
            fates=survival_lens,
            starts=starts,
        )

    def _lookup(self, part: Proposer, survival_lens: NDArray[np.uint8]) -> LookupDrafts | None:
        """Return the lookup of one part of a proposer; None if that part is a model."""
        lookup = part.make_lookup()
        if lookup is None or not self._acceptance.of_drafter(part.cost_keys[0]).verifies_tokens:
            return None
        draft_len = min(part.num_speculative_tokens, self._deployment.max_draft_len)
        return LookupDrafts(lookup, draft_len, self._requests, survival_lens, self.facts.starts)


def server_view(experiment: Experiment, deployment: Deployment, replica: int = 0) -> ServerView:
    """Return what a policy knows of its server, with the step times that it believes in."""
    slo, costs = experiment.slo, deployment.believed
    alone = StepLoad(512, 1, 1)
    target_time = costs.target_time(alone)
    # Few policies ask for either, and making them takes longer than setting up a small run.
    quick = cache(lambda: quick_step_time(costs))
    plain = cache(lambda: quick_step_time(replace(costs, drafts=(), expands_batch=False)))
    return ServerView(
        max_draft_len=deployment.max_draft_len,
        step_time=lambda load, drafts: quick()(load, drafts),  # noqa: PLW0108 - made when asked
        step_times=quick_step_times(costs),
        verify_time=target_time + costs.overhead_time(1),
        pass_times=tuple(
            costs.draft_time(alone, 2, target_time, place)
            - costs.draft_time(alone, 1, target_time, place)
            for place in range(len(costs.drafts))
        ),
        drafts_by_model=deployment.proposer is None or deployment.proposer.is_model,
        rng=_policy_rng(experiment, replica),
        tpot_slo=None if slo is None or slo.tpot_ms is None else slo.tpot_ms * 1e-3,
        drafts_at_one_cost=costs.drafts_at_one_cost,
        plain_time=lambda load: plain()(load, 0),
        has_confidences=deployment.knows_confidences,
        max_depth=experiment.num_speculative_tokens,
        drafts_alike=deployment.is_async,
    )


def _policy_rng(experiment: Experiment, replica: int) -> np.random.Generator:
    """Return the random generator of a replica's policy."""
    return generator(experiment.seed, "policy", str(replica))


def _check_tokens(requests: Sequence[Request], who: str) -> None:
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
