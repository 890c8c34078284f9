"""Speculation: the policy, the proposer and the draft source of a replica, as called from Python.

The engine's loop calls it through hooks (`specsim.engine.asking`), and only where a policy or draft
source needs Python; a fixed k with a table of fates needs none of it. The draft sources are in
`specsim.run.draft_sources`.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import compress
from typing import Any, NamedTuple, NoReturn

import numpy as np
from numpy.typing import NDArray

from specsim.core.blame import held_to, is_shipped, is_whole
from specsim.core.compiled import Hook
from specsim.core.draft_luck import CONFIDENCES
from specsim.core.request import Request
from specsim.core.step import BatchView, DraftView, Ints, StepLoad, StepOutcome
from specsim.core.trees import Candidates, Path, Tree
from specsim.decisions.loops import Asking, LoopMemory
from specsim.decisions.policy import (
    BySize,
    DraftsTrees,
    LoopPolicy,
    PicksDrafter,
    PicksPrefix,
    PicksSource,
    Policy,
)
from specsim.engine.answers import Answers
from specsim.engine.view import StepView
from specsim.proposers.base import Proposer, is_asked_each_time

Confidences = NDArray[np.float32]
Bytes = NDArray[np.uint8]
Drafted = Ints | list[Tree]
PicksLookup = Callable[[NDArray[np.float64]], "NDArray[np.bool_] | list[bool]"]


class StatedTables(NamedTuple):
    """Confidence of each draft token of a run, by output position, all requests end to end."""

    levels: Bytes  # see `specsim.core.draft_luck.Stating`
    level_starts: Ints  # where the levels of each request begin; the last is where all end


class DraftSource(ABC):
    """Makes the drafts of one replica, and knows how much of them is accepted."""

    looks_up = False
    """Whether a lookup finds the drafts before the policy is asked, which then knows them."""
    verifies = False
    """Whether accepted lengths come from `accepted_lens`; else from the table of fates."""
    has_fallback = False
    """Whether a second drafter drafts for the sequences whose lookup is not used."""

    def find(self, step: StepView, emitted_lens: Ints, picks_lookup: PicksLookup) -> Ints:
        """Draft at full length for the sequences of a step; return the draft lengths, tokens.

        `emitted_lens` are the tokens that each sequence emits at the end of the step.
        `picks_lookup` gets the accepted length expected of each draft, and returns which are used.
        """
        return step["asked_len"]

    @abstractmethod
    def confidences(self, requests: Ints, positions: Ints, draft_lens: Ints) -> Confidences:
        """Return the drafter's P(accepted | all before it were) for each token of some drafts.

        Shape (n, max(draft_lens)), 0 beyond the end of a draft; `positions` are the output tokens
        known when each draft is made.
        """

    def stated(self) -> StatedTables | None:
        """Return tables in which loops can look up confidences; None: call `confidences`."""
        return None

    def accepted_lens(self, step: StepView) -> Ints:
        """Return the accepted length of each draft of a step, tokens; only if it `verifies`."""
        return np.zeros(step.size, dtype=np.int64)

    def candidates(self, requests: Ints, positions: Ints) -> Candidates | None:
        """Return the drafter's candidates after each output position, if it drafts trees."""
        return None

    def keep_trees(self, step: StepView, trees: Tree | list[Tree]) -> Any:
        """Store the trees of the next drafts of a step's sequences; return their node counts."""
        return 0

    def trees(self, requests: Ints) -> list[Tree | None]:
        """Return the tree of each request's last draft."""
        return []

    def paths(self, requests: Ints) -> list[Path]:
        """Return the accepted path in each request's last tree."""
        return []

    def drafted(self, step: StepView, mine: NDArray[np.bool_]) -> Drafted:
        """Return what is drafted for the sequences `mine` of a step: lengths, or trees."""
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
    """Return, for each drafter with work after a step: its number, what it reads, and its drafts.

    `drafters` is the number of each sequence's drafter; `is_undrafted` is 1 where none serves it.
    """
    if source.has_fallback:
        return _loads_with_fallback(step, drafters)
    is_late = int(step.record["drafts_on_top"])
    # The drafter does not read trimmed drafts, nor, in vLLM V0, drafts that it is yet to make.
    cuts = step["draft_len"] - (0 if is_late else step["verified_len"])
    lens = step["scheduled_len"] - cuts
    loads: list[tuple[int, StepLoad, Drafted]] = []
    for drafter in np.unique(drafters[is_undrafted == 0]).tolist():
        mine = (drafters == drafter) & (is_undrafted == 0)
        loads.append((drafter, _load_of(step, mine, lens), source.drafted(step, mine)))
    return loads


def _loads_with_fallback(step: StepView, drafters: Ints) -> list[tuple[int, StepLoad, Drafted]]:
    """Return the load of a lookup, which serves all requests, and of its fallback model.

    The model reads every prompt, and the step's tokens of the sequences that it drafts for. It
    would also have to read the tokens emitted while the lookup drafted; that is not charged, since
    a token read costs little beside a forward pass.
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


_NO_CONFIDENCES: NDArray[np.float32] = np.empty((0, 0), dtype=np.float32)
_NOBODY: Ints = np.zeros(0, dtype=np.int64)


@dataclass
class Speculation:
    """The policy, proposer and draft source of one replica, and the calls that join them."""

    policy: Policy
    memory: Any
    """Memory of the policy, from ``policy.start``; each replica has its own."""
    max_draft_len: int
    """Longest draft, tokens; 0 without speculation."""
    source: DraftSource | None = None
    """Makes the drafts; None without speculation."""
    requests: Sequence[Request] = ()
    """Requests of the run, by index; for a policy that `uses_tokens`."""
    proposer: Proposer | None = None
    proposer_memory: Any = None
    """From ``proposer.start``; None if the proposer always drafts as much as it is asked for."""
    numbers: Ints | None = None
    """Unique number of each request for the policy, by index, where indices are used again."""
    knows_confidences: bool = True
    """Whether confidences are known before the policy has to decide."""
    may_drop: bool = True
    """Whether `Policy.drops` is called."""

    def __post_init__(self) -> None:
        policy, source = self.policy, self.source
        if isinstance(policy, LoopPolicy) and policy.is_asked_in_loops:
            is_right = isinstance(self.memory, LoopMemory)
            held_to(
                policy, "start", self.memory, is_right, "what self.remember(server, ...) returns"
            )
        max_depth = 0 if self.proposer is None else self.proposer.num_speculative_tokens
        self._rules = Answers(policy, self.max_draft_len, max_depth)
        self.answers = None if is_shipped(policy) else self._rules
        """Checks what the policy returns; None for one that specsim ships."""
        has_prefill = self.proposer is not None and self.proposer.has_prefill
        drops = self.may_drop and policy.overrides(Policy.drops)
        overlaps = self.proposer is not None and self.proposer.overlaps
        self.leaves_out = has_prefill and drops and not overlaps
        """Whether the drafter may stop serving sequences."""
        self.sees_confidences = (
            self.knows_confidences
            and policy.uses_confidences
            and (self.proposer is None or self.proposer.has_confidence)
        )
        looks_up = self.proposer is not None and not self.proposer.is_model
        self.shows_drafts = (
            self.sees_confidences and looks_up and not isinstance(policy, PicksDrafter)
        )
        """Whether the policy sees the drafts that a lookup has found when it sets their length."""
        self.estimates = policy.overrides(Policy.alpha_estimate)
        self.stops = policy.overrides(Policy.stop_len)
        self.verifies = source is not None and source.verifies
        self.minds_ends = source is not None and (source.looks_up or source.verifies)
        self.offers = is_asked_each_time(self.proposer, self.proposer_memory)
        """Whether the proposer has to be asked for each draft."""
        has_fallback = source is not None and source.has_fallback
        self.is_shared_out = isinstance(policy, PicksDrafter) or has_fallback
        """Whether there are several drafters, one for each sequence."""
        self.drafts_trees = isinstance(policy, DraftsTrees)

    def lens_by_size(self, largest: int) -> Ints | None:
        """Return the draft length by the number of sequences, if it depends on nothing else.

        Shape (largest + 1,), tokens; the longest draft at 0. None: the policy has to be asked.
        """
        if self.source is not None and self.source.looks_up:
            return None
        if not self.policy.is_dynamic:
            return np.full(largest + 1, self.max_draft_len, dtype=np.int64)
        lens = None
        if isinstance(self.policy, BySize):
            lens = self.policy.lens_by_size(largest, self.memory)
        if self.answers is not None:
            lens = self.answers.by_size(lens, largest)
        if lens is None:
            return None
        lens[0] = self.max_draft_len
        return lens

    @property
    def is_loops(self) -> bool:
        """Whether the engine's loop calls the policy's loops directly, without Python."""
        source, policy = self.source, self.policy
        is_loops = isinstance(policy, LoopPolicy) and policy.is_asked_in_loops
        if not is_loops or self.picks_prefix or self.drafts_trees:
            return False
        if source is None:
            return True
        return not source.looks_up and not (self.sees_confidences and source.stated() is None)

    def shared(self) -> dict[str, Any]:
        """Return the confidence arrays for `Table`, by field, if the policy `is_loops`."""
        stated = None if self.source is None else self.source.stated()
        if not self.is_loops or stated is None:
            return {}
        return {**stated._asdict(), "level_steps": CONFIDENCES}

    def refuse(self, step: StepView, *, is_asked: bool) -> NoReturn:
        """Raise a PluginError for draft lengths (`is_asked`) or verify lengths not allowed."""
        answers = self._rules
        if not step.size:
            answers.refuse_empty_steps(step)
        lens = step.view.lens[: step.size].copy()
        stop_len = int(step.view.step["stop_len"][0]) if self.stops else 0
        if is_asked and stop_len < 0:
            answers.stop_len(stop_len, step)
        if is_asked:
            answers.draft_lens(lens, step)
        else:
            answers.verify_lens(lens, np.array(step["draft_len"]), step)
        raise AssertionError("a policy has raised, and nobody has heard of it")

    def choose_drafter(self, request: int, prompt_len: int) -> int:
        """Return the number of the drafter that serves a request; called when it arrives."""
        if not isinstance(self.policy, PicksDrafter) or not self.max_draft_len:
            return 0
        called = request if self.numbers is None else int(self.numbers[request])
        chosen = self.policy.choose_drafter(called, prompt_len, self.memory)
        if self.answers is not None and self.proposer is not None:
            chosen = self.answers.drafter(chosen, len(self.proposer.cost_keys), request)
        return chosen

    def asking(self, step: Callable[[], StepView]) -> Asking:
        """Return the hooks by which the engine's loop calls the policy; `step` returns the step.

        They are the policy's own loops, or functions in Python that likewise write its decisions
        into the step's view.
        """
        table = step().table
        if self.is_loops:
            return Asking(**self.memory.bind(table.seen, len(table.running), len(table.facts)))
        table.seen.step["may_drop"] = 1  # `_drop` asks `drops_now` itself

        def hook(act: Callable[[StepView], None]) -> Hook:
            return Hook(lambda: act(step()))

        return Asking(
            decide=hook(self._decide) if self.lens_by_size(1) is None else None,
            verify=hook(self._verify) if self.policy.overrides(Policy.verify_lens) else None,
            drop=hook(self._drop) if self.leaves_out else None,
            observe=hook(self._observe) if self.policy.overrides(Policy.observe) else None,
            prefix=hook(self._pick_prefix) if self.picks_prefix else None,
        )

    def _drop(self, step: StepView) -> None:
        """Write into the view which sequences the drafter stops serving."""
        reads = step.record["prefill_tokens"] or step.shown("num_admitted")
        if not reads and not self.policy.drops_now(self.memory):
            return
        dropped = self.policy.drops(self._batch(step, step.load), self.memory)
        if self.answers is not None:
            dropped = self.answers.drops(dropped, step)
        if dropped is not None:
            step.view.let_go[: step.size] = dropped

    def _verify(self, step: StepView) -> None:
        """Write into the view how many draft tokens of each sequence the step verifies."""
        # `own_load` counts each context once; the policy's cost model adds batch expansion.
        batch = self._batch(step, step.own_load)
        draft_lens = step.view.draft_lens[: step.size].copy()
        confidences = _NO_CONFIDENCES
        if self.sees_confidences:
            assert self.source is not None
            confidences = self.source.confidences(step.requests, batch.output_lens, draft_lens)
        lens: Any = self.policy.verify_lens(batch, DraftView(draft_lens, confidences), self.memory)
        if self.answers is not None:  # it may have changed the arrays that it was shown
            lens = self.answers.verify_lens(lens, step.view.draft_lens[: step.size], step)
        step.view.lens[: step.size] = lens

    def _decide(self, step: StepView) -> None:
        """Write into the view how many tokens to draft for each sequence at the end of a step."""
        found_lens = None
        if self.source is not None and self.source.looks_up:
            emitted_lens = np.zeros(step.size, dtype=np.int64)
            if step.table.limits["asks_last"][0]:  # this step's accepted lengths are known
                emitted_lens = step["accepted_len"] + 1
            found_lens = self.source.find(
                step, emitted_lens, lambda scores: self._uses_lookup(scores, step)
            )
        asked: Any = self.max_draft_len
        if self.policy.is_dynamic:
            asked = self._asked(step)
        if found_lens is not None:
            asked = np.minimum(asked, found_lens)
        step.view.lens[: step.size] = asked

    @property
    def picks_prefix(self) -> bool:
        """Whether the next step may leave running sequences out."""
        return isinstance(self.policy, PicksPrefix) and self.policy.picks_prefix

    def _pick_prefix(self, step: StepView) -> None:
        """Set how many of the running sequences the next step may hold, at least one."""
        assert isinstance(self.policy, PicksPrefix)
        table, state = step.table, step.table.state
        running = table.running[: int(state["num_running"][0])]
        known_lens: Ints = table.sequences["known_len"][running]
        given = self.policy.prefix_size(known_lens, self.memory) if len(known_lens) else 1
        state["most_run"] = given if self.answers is None else self.answers.prefix_size(given, step)

    def _uses_lookup(self, scores: NDArray[np.float64], step: StepView) -> Any:
        assert isinstance(self.policy, PicksSource)  # the experiment has checked it
        used = self.policy.uses_lookup(scores, self.memory)
        return used if self.answers is None else self.answers.uses_lookup(used, len(scores), step)

    def _batch(self, step: StepView, load: StepLoad, free_slots: int = 1 << 40) -> BatchView:
        """Return a step as Python policies see it, with copies of the view's columns."""
        view, record, size = step.view, step.record, step.size
        decodes, undrafted = step.shown("num_decodes"), None
        if step.shown("num_undrafted"):
            undrafted = view.is_undrafted[:size].copy()
        return BatchView(
            self._called(view.requests[:size].copy()),
            view.prompt_lens[:size].copy(),
            view.known_lens[:size].copy(),
            view.in_prefill[:size].copy(),
            load,
            now=float(record["scheduled_at"]),
            free_slots=free_slots,
            num_running=int(record["num_running"]),
            draft_lens=view.draft_lens[:size].copy(),
            is_undrafted=undrafted,
            is_admitted=view.is_admitted[:size].copy(),
            decodes=StepLoad(step.shown("next_context_tokens"), decodes, decodes),
        )

    def _called(self, requests: Ints) -> Ints:
        return requests if self.numbers is None else self.numbers[requests]

    def _asked(self, step: StepView) -> Any:
        policy, source = self.policy, self.source
        batch = self._batch(step, step.load, step.shown("free_slots"))
        if source is not None and self.shows_drafts:
            if source.looks_up:
                found_lens = np.array(step["found_len"])
            else:
                found_lens = np.where(batch.in_prefill, 0, self.max_draft_len)
            confidences = source.confidences(step.requests, batch.output_lens, found_lens)
            batch = replace(batch, drafts=DraftView(found_lens, confidences))
        elif isinstance(policy, DraftsTrees) and policy.num_candidates and source is not None:
            batch = replace(batch, candidates=source.candidates(step.requests, batch.output_lens))
        asked: Any = policy.draft_lens(batch, self.memory)
        alpha = policy.alpha_estimate(self.memory) if self.estimates else None
        if self.answers is not None:
            asked = self.answers.draft_lens(asked, step)
            alpha = None if alpha is None else self.answers.alpha(alpha, step)
        if alpha is not None:
            step.view.step["alpha"] = alpha
        if self.drafts_trees:
            assert source is not None
            asked = source.keep_trees(step, asked)
        if batch.is_undrafted is not None:
            asked = np.where(batch.is_undrafted, 0, asked)
        if self.stops and self.sees_confidences and np.any(asked):
            asked = self._stopped(batch, asked, step)
        return asked

    def _stopped(self, batch: BatchView, asked: Any, step: StepView) -> Any:
        """Cut all drafts where the policy stops the drafter."""
        assert self.source is not None
        lens: Ints = np.array(np.broadcast_to(np.asarray(asked, dtype=np.int64), (batch.size,)))
        confidences = self.source.confidences(step.requests, batch.output_lens, lens)
        most = self.policy.stop_len(batch, DraftView(lens, confidences), self.memory)
        if self.answers is not None:
            most = self.answers.stop_len(most, step)
        return asked if most is None else np.minimum(asked, most)

    def offered_lens(self, step: StepView) -> Ints:
        """Return the draft lengths that the proposer finds; all output positions are known."""
        assert self.proposer is not None
        offered_len, memory = self.proposer.offered_len, self.proposer_memory
        rows = list(step.each("asked_len"))
        lens = [offered_len(*row, memory) for row in rows]
        if not is_shipped(self.proposer):
            for given, (*_, asked_len) in zip(lens, rows, strict=True):
                is_right = is_whole(given) and 0 <= given <= asked_len
                rule = f"a whole number from 0 to {asked_len}"
                held_to(self.proposer, "offered_len", given, is_right, rule)
        return np.array(lens, dtype=np.int64)

    def _observe(self, step: StepView) -> None:
        """Pass the outcome of a step to the policy."""
        record, source, view, size = step.record, self.source, step.view, step.shown("num_rows")
        requests = view.requests[:size].copy()
        has_fallback = source is not None and source.has_fallback
        outcome = StepOutcome(
            requests=self._called(requests),
            draft_lens=view.draft_lens[:size].copy(),
            accepted_lens=view.accepted_lens[:size].copy(),
            load=step.load,
            output_tokens=step.shown("output_tokens"),
            target_time=float(record["target_time"]),
            draft_time=float(record["verified_draft_time"]),
            overhead_time=float(view.step["overhead_time"][0]),
            trees=source.trees(requests) if source and self.drafts_trees else None,
            paths=source.paths(requests) if source and self.drafts_trees else [],
            drafters=source.falls_back(requests) if source and has_fallback else _NOBODY,
            token_ids=self._emitted_tokens(step, step.emits) if self.policy.uses_tokens else [],
        )
        self.policy.observe(outcome, self.memory)

    def _emitted_tokens(self, step: StepView, emits: NDArray[np.bool_]) -> list[list[int]]:
        """Return the tokens that each sequence emits in a step not yet delivered, with bonus."""
        tokens: list[list[int]] = []
        for request, start, accepted_len in compress(step.each("accepted_len"), emits.tolist()):
            ids = self.requests[request].output_token_ids
            assert ids is not None  # checked before the run
            tokens.append(ids[start : start + accepted_len + 1].tolist())
        return tokens

    def drafter_loads(self, step: StepView) -> list[tuple[int, StepLoad, Drafted]]:
        """Return what each drafter has to read and to draft after a step."""
        source = self.source
        assert source is not None
        if source.has_fallback:
            drafters = source.falls_back(step.requests)
        else:
            drafters = step.of_sequences("drafter")
        return drafter_loads(step, source, drafters, step.of_sequences("is_undrafted"))
