"""TokenDrafts: the real drafts of one engine, and their fate."""

from collections.abc import Sequence as Indexable

import numpy as np
from numpy.typing import NDArray

from specsim.engine.plan import StepPlan
from specsim.engine.sequence import Sequence
from specsim.lookup.base import NO_DRAFT, Draft, Lookup
from specsim.request import Text

__all__ = ["TokenDrafts"]


class TokenDrafts:
    """Drafts that a lookup makes of token ids, verified against the recorded answers.

    Drafts are made at their full length once a step's tokens are known; the policy decides how
    much of each is kept. So every policy, the oracle too, chooses among the same drafts.

    Parameters
    ----------
    lookup : Lookup
        This engine's own.
    max_draft_len : int, tokens
    tables : list of bytearray
        Survival table of every request, filled in as drafts are made.
    """

    def __init__(self, lookup: Lookup, max_draft_len: int, tables: list[bytearray]) -> None:
        self._lookup = lookup
        self._max_draft_len = max_draft_len
        self._tables = tables
        self._texts: dict[int, Text] = {}
        self._drafts: dict[int, Draft] = {}
        """The last draft of each request."""
        self.has_trees = False
        """Whether any draft was a tree."""

    def make(self, plan: StepPlan, accepted_lens: list[int] | None) -> list[Draft]:
        """Draft for every sequence of a step that emits a token.

        A request whose answer ends with this step is drafted for as well, since the drafter cannot
        know (vLLM 0.32.0 ``v1/spec_decode/suffix_decoding.py propose``).

        Parameters
        ----------
        plan : StepPlan
        accepted_lens : list of int or None, tokens
            What the step accepted, per sequence; None where drafts precede it (vLLM V0).

        Returns
        -------
        list of Draft, one per sequence
        """
        if accepted_lens is None:
            return [self._draft(sequence, sequence.known_len) for sequence in plan.sequences]
        return [
            NO_DRAFT
            if sequence in plan.partial or sequence.is_finished
            else self._draft(sequence, sequence.known_len + accepted_len + 1)
            for sequence, accepted_len in zip(plan.sequences, accepted_lens, strict=True)
        ]

    def _draft(self, sequence: Sequence, known_len: int) -> Draft:
        index = sequence.index
        text = self._texts.get(index)
        if text is None:
            text = self._texts[index] = sequence.request.text
            self._lookup.start(index, text)
        # A prompt that was not recorded counts as one token there and as none here.
        known_len = min(text.prompt_len + known_len - sequence.prompt_len, len(text.token_ids))
        self._lookup.reveal(index, known_len)
        draft = self._drafts[index] = self._lookup.draft(index, self._max_draft_len)
        self.has_trees = self.has_trees or draft.parents is not None
        return draft

    def settle(self, sequence: Sequence, position: int, draft: Draft) -> None:
        """Enter how much of a draft the recorded answer confirms.

        Parameters
        ----------
        sequence : Sequence
        position : int
            Output tokens known when it was made.
        draft : Draft
        """
        accepted_len = self._accepted_len(sequence, position, draft)
        sequence.survival_lens[sequence.prompt_len + position] = accepted_len
        self._tables[sequence.index][position] = accepted_len

    def _accepted_len(self, sequence: Sequence, position: int, draft: Draft) -> int:
        text = self._texts[sequence.index]
        start = text.prompt_len + position
        return draft.accepted_len(text.token_ids[start : start + len(draft.token_ids)])

    def accepted_path(self, sequence: Sequence, num_nodes: int) -> int:
        """Return the accepted length of the first nodes of a sequence's last draft, tokens."""
        draft = self._drafts.get(sequence.index)
        if draft is None or not num_nodes:
            return 0
        return self._accepted_len(sequence, sequence.output_len, draft.cut(num_nodes))

    def confidences(self, requests: Indexable[int], draft_lens: list[int]) -> NDArray[np.float32]:
        """Return how sure the lookup is of each token of the last drafts.

        Parameters
        ----------
        requests : sequence of int, length n
            Index of each request.
        draft_lens : list of int, length n
            Tokens that are asked about; a draft may be shorter.

        Returns
        -------
        ndarray of float, shape (n, max(draft_lens))
            P(accepted | all before it were), by its own statistics; 0 beyond the end of a draft.
        """
        reached = np.zeros((len(draft_lens), max(draft_lens, default=0)), dtype=np.float32)
        for row, request, draft_len in zip(reached, requests, draft_lens, strict=True):
            if draft_len and request in self._drafts:
                probs = self._drafts[request].probs[:draft_len]
                row[: len(probs)] = probs
        before = np.ones_like(reached)
        before[:, 1:] = reached[:, :-1]
        return np.divide(reached, before, out=np.zeros_like(reached), where=before > 0)

    def end(self, sequence: Sequence) -> None:
        """Forget a sequence that has ended."""
        if self._texts.pop(sequence.index, None) is not None:
            self._lookup.end(sequence.index)
            self._drafts.pop(sequence.index, None)
