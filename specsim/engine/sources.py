"""DraftSource: who drafts for a replica, as the engine sees it; who there is lies in `run`."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from specsim.core.step import Ints, StepLoad
from specsim.core.trees import Candidates, Path, Tree
from specsim.engine.view import StepView

Confidences = NDArray[np.float32]
Bytes = NDArray[np.uint8]
Drafted = Ints | list[Tree]
PicksLookup = Callable[[NDArray[np.float64]], "NDArray[np.bool_] | list[bool]"]


class StatedTables(NamedTuple):
    """How sure the drafter is of each token of a run, by output position, end to end."""

    levels: Bytes  # see `specsim.core.draft_luck.Stating`
    level_starts: Ints  # where those of each request begin; the last is where all end


class DraftSource(ABC):
    """Drafts of one replica."""

    looks_up = False
    """Whether drafts are found before the policy is asked, and known by then."""
    verifies = False
    """Whether what is accepted has to be asked of the source; else the table of fates says it."""
    has_fallback = False
    """Whether a second drafter makes what the first is not used for."""

    def find(self, step: StepView, emitted_lens: Ints, picks_lookup: PicksLookup) -> Ints:
        """Draft at full length for the sequences of a step, and return the lengths, tokens.

        `emitted_lens` is what each of them will deliver at the end of the step, tokens, and
        `picks_lookup` says whether each of the lookup's drafts is used, by the accepted length that
        it expects of it.
        """
        return step["asked_len"]

    @abstractmethod
    def confidences(self, requests: Ints, positions: Ints, draft_lens: Ints) -> Confidences:
        """Return P(accepted | all before it were) of each token of some drafts, by the drafter.

        Shape (n, max(draft_lens)), 0 beyond the end of a draft; `positions` are the output tokens
        known when each draft is made.
        """

    def stated(self) -> StatedTables | None:
        """Return where loops can look up confidences; None: it has to be asked."""
        return None

    def accepted_lens(self, step: StepView) -> Ints:
        """Return how much of each draft of a step is accepted, tokens; only if it `verifies`."""
        return np.zeros(step.size, dtype=np.int64)

    def candidates(self, requests: Ints, positions: Ints) -> Candidates | None:
        """Return what the drafter would say after so many output tokens, if it drafts trees."""
        return None

    def keep_trees(self, step: StepView, trees: Tree | list[Tree]) -> Any:
        """Remember the shapes of the next drafts of a step's sequences, and return their nodes."""
        return 0

    def trees(self, requests: Ints) -> list[Tree | None]:
        """Return the shapes of the last drafts."""
        return []

    def paths(self, requests: Ints) -> list[Path]:
        """Return what was accepted of them."""
        return []

    def drafted(self, step: StepView, mine: NDArray[np.bool_]) -> Drafted:
        """Return what is drafted for some sequences of a step: lengths, or shapes."""
        lens: Ints = step["asked_len"][mine]
        return lens

    def falls_back(self, requests: Ints) -> Ints:
        """Return 1 for each request whose last draft a fallback made, else 0."""
        return np.zeros(len(requests), dtype=np.int64)

    def end(self, request: int) -> None:  # noqa: B027 - a table need not forget
        """Forget a request that has ended."""


def drafter_loads(
    step: StepView, source: DraftSource, drafters: Ints, is_undrafted: Ints
) -> list[tuple[int, StepLoad, Drafted]]:
    """Return what each of several drafters has to read and to draft after a step.

    `drafters` says who serves each sequence, and `is_undrafted` is 1 for those that nobody serves.
    Returns each drafter that has anything to do, what it reads, and what it drafts.
    """
    if source.has_fallback:
        return _loads_with_fallback(step, drafters)
    is_late = int(step.record["drafts_on_top"])
    # The drafter does not read what was trimmed, nor, in vLLM V0, what it has yet to draft.
    cuts = step["draft_len"] - (0 if is_late else step["verified_len"])
    lens = step["scheduled_len"] - cuts
    loads: list[tuple[int, StepLoad, Drafted]] = []
    for drafter in np.unique(drafters[is_undrafted == 0]).tolist():
        mine = (drafters == drafter) & (is_undrafted == 0)
        loads.append((drafter, _load_of(step, mine, lens), source.drafted(step, mine)))
    return loads


def _loads_with_fallback(step: StepView, drafters: Ints) -> list[tuple[int, StepLoad, Drafted]]:
    """Return the load of a lookup, which serves all requests, and of the model behind it.

    The model reads every prompt, and the step's tokens of the sequences that it drafts for. What it
    left out while the lookup drafted it would have to read as well; its cost per token read is so
    small beside its cost per pass that this is not charged.
    """
    loads: list[tuple[int, StepLoad, Drafted]] = [(0, step.load, np.array(step["found_len"]))]
    mine = (drafters == 1) | (step["prefill_len"] > 0)
    if mine.any():
        lens = np.where(drafters == 1, step["asked_len"], 0)[mine]
        loads.append((1, _load_of(step, mine, step["scheduled_len"]), lens))
    return loads


def _load_of(step: StepView, mine: NDArray[np.bool_], scheduled_lens: Ints) -> StepLoad:
    unread = int(step["unread_len"][mine].sum())
    return StepLoad(
        int(step["start"][mine].sum()) - unread,
        int(scheduled_lens[mine].sum()) + unread,
        int(mine.sum()),
        int(step["prefill_len"][mine].sum()) + unread,
    )
