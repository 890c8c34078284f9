"""Lookups: drafting without a model, from text that has been seen.

Each module holds one lookup, the token-level mode of a proposer: real token ids in, real drafts
out. Their inner loops are compiled by numba, which takes longer to import than a short run takes;
so a lookup is imported when the first run asks for it, by `load`.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from specsim.core.request import Text


class Draft(NamedTuple):
    """What a lookup proposes: a chain of tokens, or a tree of them."""

    token_ids: Sequence[int]
    parents: Sequence[int] | None = None
    """Place of each token's parent in the list, -1 if it follows the known text; parents come
    before their children. None for a chain."""
    probs: Sequence[float] = ()
    """Estimated probability that each token is reached and accepted; empty if there is none."""
    score: float = 0.0  # estimated accepted length: the sum of `probs`
    match_len: int = 0  # known tokens that the draft was found by

    def cut(self, max_len: int) -> "Draft":
        """Return its first tokens; of a tree sorted by probability, the most probable ones."""
        if max_len >= len(self.token_ids):
            return self
        parents = None if self.parents is None else self.parents[:max_len]
        probs = self.probs[:max_len]
        return Draft(self.token_ids[:max_len], parents, probs, float(sum(probs)), self.match_len)

    def accepted_len(self, answer: NDArray[np.int32]) -> int:
        """Return how many tokens of it, of a tree along one path, agree with what comes next."""
        if self.parents is not None:
            return self._accepted_path(answer)
        accepted_len = 0
        for drafted, true in zip(
            self.token_ids, answer[: len(self.token_ids)].tolist(), strict=False
        ):
            if drafted != true:
                break
            accepted_len += 1
        return accepted_len

    def _accepted_path(self, answer: NDArray[np.int32]) -> int:
        assert self.parents is not None
        node, accepted_len, limit = -1, 0, len(answer)
        for place, (token, parent) in enumerate(zip(self.token_ids, self.parents, strict=True)):
            if parent == node and accepted_len < limit and token == answer[accepted_len]:
                node, accepted_len = place, accepted_len + 1
        return accepted_len


NO_DRAFT = Draft(())


class Lookup(ABC):
    """Drafts for the requests of one run, from their own text and perhaps from that of others.

    It gets the whole text of a request once and looks only at what it has been told is known, so
    that nothing is copied as the answer grows.
    """

    @abstractmethod
    def start(self, request: int, text: Text) -> None:
        """Take in a new request, by its index: its prompt is known."""

    @abstractmethod
    def reveal(self, request: int, known_len: int) -> None:
        """Learn more of an answer: so much of prompt and answer is known now, tokens."""

    @abstractmethod
    def draft(self, request: int, max_len: int) -> Draft:
        """Return what may follow the known text: at most so many tokens, or nodes of a tree."""

    @abstractmethod
    def end(self, request: int) -> None:
        """Forget what belongs to a request alone; its answer may go on serving others."""

    @property
    @abstractmethod
    def memory_bytes(self) -> int:
        """Memory of all text and indices, bytes; what is shared with the workload not counted."""


class KnownTexts(Lookup):
    """A lookup that notes each request's text and how much of it is known, and may need no more."""

    def __init__(self) -> None:
        self._texts: dict[int, Text] = {}
        self._known_lens: dict[int, int] = {}

    def start(self, request: int, text: Text) -> None:
        """Note the text; its prompt is known."""
        self._texts[request] = text
        self._known_lens[request] = text.prompt_len

    def reveal(self, request: int, known_len: int) -> None:
        """Note how far it is known."""
        self._known_lens[request] = known_len

    def end(self, request: int) -> None:
        """Forget it."""
        del self._texts[request], self._known_lens[request]

    @property
    def memory_bytes(self) -> int:
        """Nothing: two entries per request do not count."""
        return 0


def load(module: str, name: str) -> Callable[..., Lookup]:
    """Return a class of this package, such as ``ngram``, ``NgramLookup``, imported now."""
    lookup: Callable[..., Lookup] = getattr(import_module(f"{__name__}.{module}"), name)
    return lookup
