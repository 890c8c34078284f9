"""Draft sources: who drafts for a replica, and how many tokens of each draft are accepted."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from specsim.core.draft_luck import CandidateLuck, DraftLuck
from specsim.core.request import Request, Text
from specsim.core.step import Ints
from specsim.core.trees import Path, Tree
from specsim.engine.speculation import Confidences, DraftSource, PicksLookup, StatedTables
from specsim.engine.view import StepView
from specsim.lookup import Draft, Lookup, draft_of

Fates = NDArray[np.uint8]
_NO_CONFIDENCES: Confidences = np.empty((0, 0), dtype=np.float32)
_NO_TREE = Tree(())


@dataclass(eq=False)
class TableDrafts(DraftSource):
    """Drafts of a model, whose accepted lengths are known from a table before the run."""

    table: Fates  # accepted lengths of all requests, end to end
    starts: Ints  # where those of each request begin, shape (n + 1,)
    luck: DraftLuck | None = None  # for a policy that uses confidences

    def confidences(self, requests: Ints, positions: Ints, draft_lens: Ints) -> Confidences:
        assert self.luck is not None
        fates = self.fates(requests, positions)
        return self.luck.confidences(requests, positions, draft_lens, fates)

    def stated(self) -> StatedTables | None:
        return None if self.luck is None else StatedTables(*self.luck.stated)

    def fates(self, requests: Ints, positions: Ints) -> Ints:
        """Return the accepted length of the longest draft at each position, tokens."""
        at = self.starts[requests] + positions
        is_inside = (positions >= 0) & (at < self.starts[requests + 1])
        fates: Ints = np.where(is_inside, self.table.take(at, mode="clip"), 0).astype(np.int64)
        return fates


class _OneByOne(DraftSource):
    """A source that works out the accepted length of one draft at a time."""

    verifies = True

    @abstractmethod
    def accepted_len(self, request: int, position: int, draft_len: int) -> int:
        """Return how many of the first tokens of the request's last draft are accepted."""

    def accepted_lens(self, step: StepView) -> Ints:
        lens = [self.accepted_len(*row) for row in step.each("verified_len")]
        return np.array(lens, dtype=np.int64)


class _Grown(NamedTuple):
    """The confidences of candidate tokens after given paths, for some sequences."""

    luck: CandidateLuck
    requests: Ints
    positions: Ints

    def after(self, rows: Ints, paths: Ints) -> Confidences:
        return self.luck.confidences(self.requests[rows], self.positions[rows], paths)


@dataclass(eq=False)
class TreeDrafts(DraftSource):
    """Token trees as drafts: the accepted path is found from the rank of each true token."""

    verifies = True

    luck: CandidateLuck
    _trees: dict[int, Tree] = field(default_factory=dict, init=False)
    """Shape of the last draft of each request."""
    _paths: dict[int, Path] = field(default_factory=dict, init=False)  # accepted path of that draft

    def confidences(self, requests: Ints, positions: Ints, draft_lens: Ints) -> Confidences:
        """Return an empty array: for trees, `candidates` gives the confidences."""
        return _NO_CONFIDENCES

    def candidates(self, requests: Ints, positions: Ints) -> _Grown:
        return _Grown(self.luck, requests, positions)

    def accepted_lens(self, step: StepView) -> Ints:
        requests = step.requests
        ranks = self.luck.ranks(requests, step.output_lens).tolist()
        rows = zip(requests.tolist(), ranks, step["verified_len"].tolist(), strict=True)
        for request, found, num_nodes in rows:
            tree = self._trees[request] if num_nodes else _NO_TREE
            self._paths[request] = tree.accepted_path(found, num_nodes)
        return np.array([*map(len, self.paths(requests))], dtype=np.int64)

    def keep_trees(self, step: StepView, trees: Tree | list[Tree]) -> int | Ints:
        requests = step.requests.tolist()
        if isinstance(trees, Tree):
            self._trees.update(dict.fromkeys(requests, trees))
            return trees.num_nodes
        self._trees.update(zip(requests, trees, strict=True))
        return np.array([tree.num_nodes for tree in trees], dtype=np.int64)

    def trees(self, requests: Ints) -> list[Tree | None]:
        return [self._trees.get(request) for request in requests.tolist()]

    def paths(self, requests: Ints) -> list[Path]:
        return [self._paths.get(request, ()) for request in requests.tolist()]

    def drafted(self, step: StepView, mine: NDArray[np.bool_]) -> list[Tree]:
        rows = zip(step.requests[mine].tolist(), step["asked_len"][mine].tolist(), strict=True)
        return [self._trees[request] if asked_len else _NO_TREE for request, asked_len in rows]

    def end(self, request: int) -> None:
        self._trees.pop(request, None)
        self._paths.pop(request, None)


@dataclass(eq=False)
class LookupDrafts(_OneByOne):
    """Drafts that a lookup finds in token ids, verified against the recorded outputs.

    The lookup always drafts its full length, and the policy decides how much of each draft is kept,
    so that every policy, the oracle too, chooses among the same drafts.
    """

    looks_up = True

    lookup: Lookup  # each replica has its own
    max_draft_len: int
    requests: Sequence[Request]  # of the run, by index
    fates: Fates  # this replica's accepted lengths, end to end; filled in as drafts are made
    starts: Ints  # where those of each request begin, shape (n + 1,)
    _texts: dict[int, Text] = field(default_factory=dict, init=False)
    _drafts: dict[int, Draft] = field(default_factory=dict, init=False)
    """The last draft of each request."""
    _has_trees: bool = field(default=False, init=False)

    def find(self, step: StepView, emitted_lens: Ints, picks_lookup: PicksLookup) -> Ints:
        """Draft for every sequence that emits a token, and work out what will be accepted.

        A request whose output ends with this step gets a draft as well, because the drafter cannot
        know that it ends (vLLM 0.32.0 ``v1/spec_decode/suffix_decoding.py propose``).
        """
        lens = np.zeros(step.size, dtype=np.int64)
        requests, positions = step.requests, step.output_lens + emitted_lens
        for place in np.flatnonzero(step.emits).tolist():
            request, position = int(requests[place]), int(positions[place])
            draft = self.draft(request, position)
            self.settle(request, position, draft)
            lens[place] = len(draft.token_ids)
        step["found_len"][:] = lens
        return lens

    def draft(self, request: int, position: int) -> Draft:
        """Show the lookup the tokens that are known by now, and return its draft."""
        text = self._texts.get(request)
        if text is None:
            text = self._texts[request] = self.requests[request].text
            self.lookup.start(request, text)
        self.lookup.reveal(request, min(text.prompt_len + position, len(text.token_ids)))
        draft = self._drafts[request] = draft_of(self.lookup, request, self.max_draft_len)
        self._has_trees = self._has_trees or draft.parents is not None
        return draft

    def settle(self, request: int, position: int, draft: Draft) -> None:
        """Store the accepted length of a draft, found by comparing it with the recorded output."""
        if len(draft.token_ids) and position < self.requests[request].output_len:
            accepted_len = self._accepted_len(request, position, draft)
            self.fates[self.starts[request] + position] = accepted_len

    def _accepted_len(self, request: int, position: int, draft: Draft) -> int:
        text = self._texts[request]
        start = text.prompt_len + position
        return draft.accepted_len(text.token_ids[start : start + len(draft.token_ids)])

    def accepted_len(self, request: int, position: int, draft_len: int) -> int:
        """Return how many of the first `draft_len` tokens agree with the recorded output."""
        if not draft_len:
            return 0
        if self._has_trees:
            draft = self._drafts.get(request)
            if draft is None:
                return 0
            return self._accepted_len(request, position, draft.cut(draft_len))
        if position >= self.requests[request].output_len:
            return 0
        return min(draft_len, int(self.fates[self.starts[request] + position]))

    def confidences(self, requests: Ints, positions: Ints, draft_lens: Ints) -> Confidences:
        """Return the lookup's confidence in each token of the last drafts, by its statistics."""
        width = int(draft_lens.max(initial=0))
        reached = np.zeros((len(draft_lens), width), dtype=np.float32)
        rows = zip(reached, requests.tolist(), draft_lens.tolist(), strict=True)
        for row, request, draft_len in rows:
            if draft_len and request in self._drafts:
                probs = self._drafts[request].probs[:draft_len]
                row[: len(probs)] = probs
        before = np.ones_like(reached)
        before[:, 1:] = reached[:, :-1]
        return np.divide(reached, before, out=np.zeros_like(reached), where=before > 0)

    def end(self, request: int) -> None:
        """Forget a request that has ended; its output may still serve other requests' drafts."""
        if self._texts.pop(request, None) is not None:
            self.lookup.end(request)
            self._drafts.pop(request, None)


@dataclass(eq=False)
class HybridDrafts(_OneByOne):
    """A lookup that always drafts, and a fallback for drafts of the lookup that are not used."""

    looks_up = True
    has_fallback = True

    lookup: LookupDrafts
    fallback: LookupDrafts | None  # None: a model, whose accepted lengths are in `model_fates`
    model_len: int  # draft length of the model, tokens
    model_fates: Fates
    fates: Fates  # accepted lengths of the lookup's drafts; those of the model are copied in
    starts: Ints  # where the fates of each request begin, shape (n + 1,)
    _falls_back: dict[int, bool] = field(default_factory=dict, init=False)
    """Whether the fallback made the last draft of each request."""

    def find(self, step: StepView, emitted_lens: Ints, picks_lookup: PicksLookup) -> Ints:
        """Let the lookup draft for every sequence, and the fallback where it is not used."""
        lens = np.zeros(step.size, dtype=np.int64)
        requests, positions = step.requests.tolist(), (step.output_lens + emitted_lens).tolist()
        places = np.flatnonzero(step.emits).tolist()
        drafts = [self.lookup.draft(requests[place], positions[place]) for place in places]
        step["found_len"][:] = 0
        step["found_len"][places] = [len(draft.token_ids) for draft in drafts]
        picked = picks_lookup(np.array([draft.score for draft in drafts], dtype=np.float64))
        for place, draft, is_used in zip(places, drafts, picked, strict=True):
            request, position = requests[place], positions[place]
            self._falls_back[request] = not is_used
            if is_used:
                self.lookup.settle(request, position, draft)
                lens[place] = len(draft.token_ids)
            else:
                lens[place] = self._fall_back(request, position)
        return lens

    def _fall_back(self, request: int, position: int) -> int:
        if self.fallback is not None:
            draft = self.fallback.draft(request, position)
            self.fallback.settle(request, position, draft)
            return len(draft.token_ids)
        at = self.starts[request] + position
        if at < self.starts[request + 1]:
            self.fates[at] = self.model_fates[at]
        return self.model_len

    def falls_back(self, requests: Ints) -> Ints:
        made = [int(self._falls_back.get(request, False)) for request in requests.tolist()]
        return np.array(made, dtype=np.int64)

    def accepted_len(self, request: int, position: int, draft_len: int) -> int:
        if not self._falls_back.get(request, False):
            return self.lookup.accepted_len(request, position, draft_len)
        if self.fallback is not None:
            return self.fallback.accepted_len(request, position, draft_len)
        at = self.starts[request] + position
        return min(draft_len, int(self.fates[at])) if at < self.starts[request + 1] else 0

    def confidences(self, requests: Ints, positions: Ints, draft_lens: Ints) -> Confidences:
        return self.lookup.confidences(requests, positions, draft_lens)

    def end(self, request: int) -> None:
        self._falls_back.pop(request, None)
        self.lookup.end(request)
        if self.fallback is not None:
            self.fallback.end(request)
