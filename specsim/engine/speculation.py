"""Speculation: the policy, the proposer and the acceptance model of one engine, at work."""

from collections.abc import Sequence as Indexable
from dataclasses import dataclass
from itertools import compress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specsim.draft_luck import DraftLuck
from specsim.engine.draft_sources import DraftSource, LookupDrafts
from specsim.engine.drafter_loads import loads_by_drafter, loads_with_fallback
from specsim.engine.engine_step import EngineStep
from specsim.engine.kv_cache import KVCache
from specsim.engine.plan import StepPlan
from specsim.engine.sequence import Sequence
from specsim.policies.base import Policy
from specsim.proposers.base import Proposer
from specsim.step import BatchView, DraftView, StepLoad, StepOutcome, Tree

__all__ = ["Speculation"]

_NO_CONFIDENCES = np.empty((0, 0), dtype=np.float32)


@dataclass
class Speculation:
    """Who drafts how much, what is verified of it, and what survives."""

    policy: Policy
    memory: Any
    """From ``policy.start``; this engine's own."""
    max_draft_len: int
    """Longest draft, tokens; 0 without speculation."""
    proposer: Proposer | None = None
    proposer_memory: Any = None
    """From ``proposer.start``; None if it always offers what it is asked for."""
    survival_tables: Indexable[Indexable[bytes | bytearray]] = ()
    """By drafter and request index: the fate of every draft that could be made (`Acceptance`)."""
    luck: DraftLuck | None = None
    """For policies that draft trees or use confidences."""
    lookup: LookupDrafts | None = None
    """Where drafts are real tokens: who makes them, and enters their fates."""
    fallback: DraftSource | None = None
    """Who drafts where the policy does not use what the lookup has found."""

    def __post_init__(self) -> None:
        # Asked at every step, the same answer every time.
        policy = self.policy
        self._is_dynamic = policy.is_dynamic
        self._observes = policy.observes
        self._trims = policy.trims
        self._estimates = policy.estimates_alpha
        self._threshold = policy.draft_threshold
        self._disables_prefill = policy.disables_prefill and (
            self.proposer is not None and self.proposer.has_prefill
        )
        self._sources = [source for source in (self.lookup, self.fallback) if source is not None]
        self._unspeculative: set[int] = set()
        """Requests whose prefill the drafter has left out."""
        self._found_lens: list[int] = []
        """What the lookup found for each sequence of the last step, tokens."""

    def prepare(self, sequence: Sequence) -> None:
        """Give a new sequence its drafter, and the fate of what that may draft.

        The survival table is moved up to count from the first prompt token.

        It is one position longer than the output: a step may still be in flight for a sequence
        that has ended.
        """
        if self.max_draft_len:
            if self.policy.selects_drafter:
                sequence.drafter = self.policy.choose_drafter(
                    sequence.index, sequence.prompt_len, self.memory
                )
            table = self.survival_tables[sequence.drafter][sequence.index]
            sequence.survival_lens = bytearray(sequence.prompt_len) + table + b"\0"

    def end(self, sequence: Sequence) -> None:
        """Forget a sequence that has ended."""
        self._unspeculative.discard(sequence.index)
        for source in self._sources:
            source.end(sequence)

    def begin(self, step: EngineStep) -> None:
        """Settle what a scheduled step verifies, and whom the drafter will never serve."""
        plan, now = step.plan, step.scheduled_at
        if self._disables_prefill and plan.admitted:
            batch = BatchView(plan.sequences, step.load, now=now)
            if self.policy.skips_draft_prefill(batch, self.memory):
                self._unspeculative.update(sequence.index for sequence in plan.admitted)
        if self._trims and any(plan.draft_lens):
            # The context once: what batch expansion reads anew, the policy's cost model adds.
            load = step.load._replace(context_tokens=plan.context_tokens)
            batch = BatchView(plan.sequences, load, now=now)
            drafts = DraftView(plan.draft_lens, self._confidences(plan.sequences, plan.draft_lens))
            plan.trim(self.policy.verify_lens(batch, drafts, self.memory))
            step.load = plan.load

    def verify(self, plan: StepPlan) -> list[int]:
        """Return the accepted length of each sequence of a step that is being executed.

        Parameters
        ----------
        plan : StepPlan
            Every earlier step has been updated, so output positions are known.

        Returns
        -------
        list of int, tokens
        """
        if not self.max_draft_len:
            return [0] * len(plan.sequences)
        draft_lens = plan.verified_lens
        if self.policy.drafts_trees:
            return list(map(self._accepted_path, plan.sequences, draft_lens))
        sources = self._sources
        if sources and any(source.has_trees for source in sources):
            accepted_lens = [
                sources[s.drafter if self.fallback else 0].accepted_path(s, draft_len)
                for s, draft_len in zip(plan.sequences, draft_lens, strict=True)
            ]
        else:
            accepted_lens = [s.survival_lens[s.known_len] for s in plan.sequences]
        if draft_lens.count(self.max_draft_len) < len(draft_lens):
            accepted_lens = list(map(min, accepted_lens, draft_lens))
        for sequence in plan.padded:
            accepted_lens[plan.sequences.index(sequence)] = 0
        return accepted_lens

    def _accepted_path(self, sequence: Sequence, num_nodes: int) -> int:
        if not num_nodes or sequence.draft_tree is None or self.luck is None:
            return 0
        widths = sequence.draft_tree.complete_widths(num_nodes)
        return self.luck.path_len(sequence.index, sequence.output_len, widths)

    def observe(self, step: EngineStep) -> None:
        """Tell the policy what became of the drafts of a step."""
        plan = step.plan
        if not self._observes or not plan.sequences:
            return
        sequences, draft_lens = plan.sequences, plan.verified_lens
        accepted_lens, policy = step.accepted_lens, self.policy
        emits = [not (s.is_finished or s in plan.partial) for s in sequences]
        if not all(emits):
            sequences = list(compress(sequences, emits))
            draft_lens = list(compress(draft_lens, emits))
            accepted_lens = list(compress(accepted_lens, emits))
        outcome = StepOutcome(
            requests=[sequence.index for sequence in sequences],
            draft_lens=draft_lens,
            accepted_lens=accepted_lens,
            load=step.load,
            output_tokens=sum(accepted_lens) + len(sequences),
            target_time=step.target_time,
            draft_time=step.verified_draft_time,
            overhead_time=step.overhead_time,
            trees=[s.draft_tree for s in sequences] if policy.drafts_trees else None,
            drafters=[s.drafter for s in sequences] if self.fallback else [],
            token_ids=_emitted_tokens(sequences, accepted_lens) if policy.uses_tokens else [],
        )
        policy.observe(outcome, self.memory)

    def decide(
        self, step: EngineStep, accepted_lens: list[int] | None, kv: KVCache
    ) -> int | list[int]:
        """Return the draft lengths that the drafter is run for at the end of a step, tokens.

        Parameters
        ----------
        step : EngineStep
        accepted_lens : list of int or None, tokens
            What its verification accepted; None where that is not known yet.
        kv : KVCache
            Tells how many drafts it has room for.
        """
        sequences = step.plan.sequences
        if self.lookup is not None and sequences:
            found_lens = self._find_drafts(step.plan, accepted_lens, self.lookup)
            asked = self._ask(step, accepted_lens, kv)
            lens = [asked] * len(sequences) if isinstance(asked, int) else asked
            return list(map(min, lens, found_lens))
        return self._ask(step, accepted_lens, kv)

    def _find_drafts(
        self, plan: StepPlan, accepted_lens: list[int] | None, lookup: LookupDrafts
    ) -> list[int]:
        """Draft for every sequence that emits a token, settle the fates, and return the lengths.

        A request whose answer ends with this step is drafted for as well, since the drafter cannot
        know (vLLM 0.32.0 ``v1/spec_decode/suffix_decoding.py propose``).
        """
        emitted_lens = [0] * len(plan.sequences)
        if accepted_lens is not None:
            emitted_lens = [accepted_len + 1 for accepted_len in accepted_lens]
        rows = [
            (row, sequence, sequence.output_len + emitted_len)
            for row, (sequence, emitted_len) in enumerate(
                zip(plan.sequences, emitted_lens, strict=True)
            )
            if sequence not in plan.partial and not sequence.is_finished
        ]
        drafts = [lookup.draft(sequence, position) for _, sequence, position in rows]
        self._found_lens = [0] * len(plan.sequences)
        for (row, _, _), draft in zip(rows, drafts, strict=True):
            self._found_lens[row] = len(draft.token_ids)
        lens = self._found_lens.copy()
        uses = [True] * len(rows)
        if self.fallback is not None:
            uses = self.policy.uses_lookup([draft.score for draft in drafts], self.memory)
        for (row, sequence, position), draft, is_used in zip(rows, drafts, uses, strict=True):
            sequence.drafter = 0 if is_used else 1
            if is_used or self.fallback is None:
                lookup.settle(sequence, position, draft)
            else:
                other = self.fallback.draft(sequence, position)
                self.fallback.settle(sequence, position, other)
                lens[row] = len(other.token_ids)
        return lens

    def _ask(
        self, step: EngineStep, accepted_lens: list[int] | None, kv: KVCache
    ) -> int | list[int]:
        sequences = step.plan.sequences
        if not self._is_dynamic or not sequences:
            return self.max_draft_len
        free_slots = kv.room_for_drafts(len(sequences))
        drafts = None
        if self.lookup is not None and self.policy.uses_confidences:
            drafts = DraftView(self._found_lens, self._confidences(sequences, self._found_lens))
        batch = BatchView(
            sequences,
            step.load,
            accepted_lens,
            now=step.scheduled_at,
            free_slots=free_slots,
            drafts=drafts,
        )
        asked = self.policy.draft_lens(batch, self.memory)
        if self._estimates:
            step.alpha_estimate = self.policy.alpha_estimate(self.memory)
        if isinstance(asked, Tree):
            for sequence in sequences:
                sequence.draft_tree = asked
            return asked.num_nodes
        if self._unspeculative and asked:
            lens = [asked] * len(sequences) if isinstance(asked, int) else asked
            pairs = zip(sequences, lens, strict=True)
            asked = [0 if s.index in self._unspeculative else length for s, length in pairs]
        if self._threshold is not None and asked:
            asked = self._until_unsure(batch, asked, self._threshold)
        return asked

    def _until_unsure(
        self, batch: BatchView, asked: int | list[int], threshold: float
    ) -> list[int]:
        """Cut each draft after the first token of which the drafter is not sure enough."""
        lens = [asked] * batch.size if isinstance(asked, int) else asked
        if self.lookup is not None:
            confidences = self.lookup.confidences(batch.requests, lens)
        else:
            assert self.luck is not None
            positions = batch.output_lens
            confidences = self.luck.confidences(batch.requests, positions, lens, self._fates(batch))
        is_unsure = confidences <= threshold
        is_unsure[:, -1:] = True  # nothing is drafted beyond
        first_unsure = is_unsure.argmax(axis=1) + 1
        drafted: list[int] = np.minimum(first_unsure, lens).tolist()
        return drafted

    def _fates(self, batch: BatchView) -> list[int]:
        """Return how long drafts made now will survive."""
        tables = self.survival_tables[0]
        return [
            tables[request][position] if 0 <= position < len(tables[request]) else 0
            for request, position in zip(batch.requests, batch.output_lens, strict=True)
        ]

    def _confidences(
        self, sequences: Indexable[Sequence], draft_lens: list[int]
    ) -> NDArray[np.float32]:
        if not self.policy.uses_confidences:
            return _NO_CONFIDENCES
        if self.lookup is not None:
            return self.lookup.confidences([s.index for s in sequences], draft_lens)
        assert self.luck is not None
        return self.luck.confidences(
            [s.index for s in sequences],
            [s.output_len for s in sequences],
            draft_lens,
            [s.survival_lens[s.known_len] for s in sequences],
        )

    def offered(self, plan: StepPlan, asked_lens: int | list[int]) -> int | list[int]:
        """Return the draft lengths that the proposer comes up with; positions are known."""
        proposer, memory = self.proposer, self.proposer_memory
        if memory is None or proposer is None:
            return asked_lens
        lens = [asked_lens] * len(plan.sequences) if isinstance(asked_lens, int) else asked_lens
        return [
            proposer.offered_len(sequence.index, sequence.output_len, asked_len, memory)
            for sequence, asked_len in zip(plan.sequences, lens, strict=True)
        ]

    @property
    def is_shared_out(self) -> bool:
        """Whether there are several drafters, or requests that none serves."""
        return bool(self._unspeculative) or self.policy.selects_drafter or self.fallback is not None

    def drafter_loads(
        self, plan: StepPlan, draft_lens: int | list[int]
    ) -> list[tuple[int, StepLoad, list[int]]]:
        """Return what each drafter has to read and to draft after a step.

        Parameters
        ----------
        plan : StepPlan
        draft_lens : int or list of int, tokens

        Returns
        -------
        list of (int, StepLoad, list of int)
            Of each drafter that has anything to do.
        """
        lens = [draft_lens] * len(plan.sequences) if isinstance(draft_lens, int) else draft_lens
        if self.fallback is not None:
            return loads_with_fallback(plan, lens, self._found_lens)
        return loads_by_drafter(plan, lens, self._unspeculative)


def _emitted_tokens(sequences: list[Sequence], accepted_lens: list[int]) -> list[list[int]]:
    """Return the tokens of a step that has not been updated yet, bonus tokens included."""
    tokens: list[list[int]] = []
    for sequence, accepted_len in zip(sequences, accepted_lens, strict=True):
        ids = sequence.request.output_token_ids
        assert ids is not None  # checked before the run
        start = sequence.output_len
        tokens.append(ids[start : start + accepted_len + 1].tolist())
    return tokens
