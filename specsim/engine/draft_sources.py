"""Draft sources: who drafts for an engine when drafts are real, and what became of each draft."""

from collections.abc import Sequence as Indexable
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from specsim.engine.sequence import Sequence
from specsim.lookup.base import Draft, Lookup
from specsim.request import UNRECORDED, Text

__all__ = ["DraftSource", "LookupDrafts", "ModelDrafts"]


class DraftSource(Protocol):
    """Drafts for one sequence at a time, once the tokens of a step are known."""

    def draft(self, sequence: Sequence, position: int) -> Draft:
        """Return a draft of full length, made when `position` output tokens are known."""

    def settle(self, sequence: Sequence, position: int, draft: Draft) -> None:
        """Enter how much of that draft will be accepted into the sequence's survival lengths."""

    @property
    def has_trees(self) -> bool:
        """Whether any draft was a tree, of which a part is not verified by its length alone."""

    def accepted_path(self, sequence: Sequence, num_nodes: int) -> int:
        """Return the accepted length of the first nodes of a sequence's last draft, tokens."""

    def end(self, sequence: Sequence) -> None:
        """Forget a sequence that has ended."""


class LookupDrafts:
    """Drafts that a lookup makes of token ids, verified against the recorded answers.

    Drafts are made at their full length; the policy decides how much of each is kept. So every
    policy, the oracle too, chooses among the same drafts.

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
        self._has_trees = False

    @property
    def has_trees(self) -> bool:
        """Whether any draft was a tree."""
        return self._has_trees

    def draft(self, sequence: Sequence, position: int) -> Draft:
        """Tell the lookup what is known by now, and return what it makes of it."""
        index = sequence.index
        text = self._texts.get(index)
        if text is None:
            text = self._texts[index] = sequence.request.text
            self._lookup.start(index, text)
        self._lookup.reveal(index, min(text.prompt_len + position, len(text.token_ids)))
        draft = self._drafts[index] = self._lookup.draft(index, self._max_draft_len)
        self._has_trees = self._has_trees or draft.parents is not None
        return draft

    def settle(self, sequence: Sequence, position: int, draft: Draft) -> None:
        """Enter how much of a draft the recorded answer confirms."""
        if draft.token_ids and position < sequence.request.output_len:
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
        """Forget a sequence that has ended; its answer may go on serving others."""
        if self._texts.pop(sequence.index, None) is not None:
            self._lookup.end(sequence.index)
            self._drafts.pop(sequence.index, None)


class ModelDrafts:
    """Drafts of a model that stands behind a lookup: a length and a fate, but no tokens.

    Parameters
    ----------
    draft_len : int, tokens
    tables : sequence of bytes
        Survival table of every request.
    """

    def __init__(self, draft_len: int, tables: Indexable[bytes]) -> None:
        self._draft = Draft((UNRECORDED,) * draft_len)
        self._tables = tables

    @property
    def has_trees(self) -> bool:
        """Never."""
        return False

    def draft(self, sequence: Sequence, position: int) -> Draft:
        """Return so many tokens of which nothing is known."""
        return self._draft

    def settle(self, sequence: Sequence, position: int, draft: Draft) -> None:
        """Enter what the acceptance model says."""
        table = self._tables[sequence.index]
        if position < len(table):
            sequence.survival_lens[sequence.prompt_len + position] = table[position]

    def accepted_path(self, sequence: Sequence, num_nodes: int) -> int:
        """Return what the acceptance model says of so many tokens."""
        return min(sequence.survival_lens[sequence.known_len], num_nodes)

    def end(self, sequence: Sequence) -> None:
        """Nothing is kept."""
