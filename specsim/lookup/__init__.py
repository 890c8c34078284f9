"""Lookups: drafting without a model, from text that has been seen.

Each module holds one lookup, the token-level mode of a proposer: real token ids in, real drafts
out. Their inner loops are compiled by numba, which takes longer to import than a short run takes;
so a lookup is imported when the first run asks for it, by `load`.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from specsim.core.blame import held_to, is_shipped
from specsim.core.machine_code import say_no_numba
from specsim.core.request import Text

Function = TypeVar("Function", bound=Callable[..., Any])


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
        node, accepted_len = -1, 0
        known = answer[: len(self.token_ids)].tolist()
        parents = range(-1, len(self.token_ids) - 1) if self.parents is None else self.parents
        for place, (token, parent) in enumerate(zip(self.token_ids, parents, strict=True)):
            if parent == node and accepted_len < len(known) and token == known[accepted_len]:
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


def draft_of(lookup: Lookup, request: int, max_len: int) -> Draft:
    """Return `Lookup.draft`; a PluginError if a user's class gives no draft, or a longer one."""
    draft = lookup.draft(request, max_len)
    if not is_shipped(lookup):
        is_right = isinstance(draft, Draft) and len(draft.token_ids) <= max_len
        held_to(lookup, "draft", draft, is_right, f"a Draft of at most {max_len} tokens")
    return draft


class KnownTexts(Lookup):
    """A lookup that notes each request's text and how much of it is known, and may need no more."""

    def __init__(self) -> None:
        self._texts: dict[int, Text] = {}
        self._known_lens: dict[int, int] = {}

    def start(self, request: int, text: Text) -> None:
        self._texts[request] = text
        self._known_lens[request] = text.prompt_len

    def reveal(self, request: int, known_len: int) -> None:
        self._known_lens[request] = known_len

    def end(self, request: int) -> None:
        del self._texts[request], self._known_lens[request]

    @property
    def memory_bytes(self) -> int:
        """Nothing: two entries per request do not count."""
        return 0


def load(module: str, name: str) -> Callable[..., Lookup]:
    """Return a class of this package, such as ``ngram``, ``NgramLookup``, imported now."""
    lookup: Callable[..., Lookup] = getattr(import_module(f"{__name__}.{module}"), name)
    return lookup


def jit(function: Function) -> Function:
    """Return a function as machine code, which is kept where there is a folder to keep it in."""
    try:
        njit = import_module("numba").njit
    except ImportError:
        say_no_numba()
        return function
    compiled: Function
    try:
        compiled = njit(cache=True)(function)
    except RuntimeError:  # neither beside the sources nor at home may anything be written
        compiled = njit(function)
    return compiled
