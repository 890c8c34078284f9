"""What every policy decides, and what it may know.

A policy sees what a server could see: how many sequences a step holds, how long they are, what was
accepted so far, and the cost model. The length of an answer and the fate of a draft are the future;
only `OraclePolicy` gets at them.
"""

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from math import nan
from typing import Any, ClassVar, Generic, Literal, Self, cast

import numpy as np
from numpy.typing import NDArray
from typing_extensions import TypeVar

from specsim.acceptance.base import Oracle, Rates
from specsim.core.compiled import Hook
from specsim.core.desk import Desk
from specsim.core.families import Member
from specsim.core.step import BatchView, DraftView, Ints, StepLoad, StepOutcome
from specsim.core.trees import Tree
from specsim.decisions.loops import LoopMemory, Loops
from specsim.profile.step_time import PRICING_SIZES, Pricing
from specsim.proposers.base import Proposer

Memory = TypeVar("Memory", default=Any)


@dataclass(frozen=True, slots=True)
class ModelView:
    """The acceptance model, as one knows it who knows its state, but not the luck."""

    rates: Rates
    known_share: float = 0.0
    """Share of the variance that the state leaves which the drafter's confidences explain."""


@dataclass(frozen=True, slots=True)
class ServerView:
    """What a policy may know of the server before the first request."""

    max_draft_len: int
    """Longest draft that it may ask for, tokens; nodes of a tree."""
    step_time: Callable[[StepLoad, int | list[int] | Ints | Tree | list[Tree]], float]
    """Seconds that a step of this load takes that then drafts so many tokens per sequence."""
    step_times: Callable[[StepLoad, Ints, int | list[int] | Ints], NDArray[np.float64]]
    """The same for many numbers of batched tokens at once, which replace those of the load."""
    verify_time: float = 0.0
    """Seconds of a step that decodes one sequence of 512 tokens and drafts nothing."""
    pass_times: tuple[float, ...] = ()
    """Seconds that each drafter takes per token of one such sequence."""
    drafts_by_model: bool = True
    """Whether a model drafts, for which length costs time, or a lookup, for which it does not."""
    prompt_token_ids: Callable[[int], Iterable[int]] = lambda _: ()
    """Prompt of a request, by its index; only for a policy that says `uses_tokens`."""
    oracle: Oracle | None = None
    """The future; None except for an `OraclePolicy`."""
    model: ModelView | None = None
    """The present; None except for a policy that extends `KnowsModel`."""
    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))
    """For a policy that draws: its own stream, the same in every run of one seed."""
    tpot_slo: float | None = None
    """The experiment's limit on time per output token, seconds."""
    drafts_at_one_cost: bool | None = None
    """Whether a step that drafts takes equally long whatever the length of the drafts; None: not
    known."""
    plain_time: Callable[[StepLoad], float] | None = None
    """Seconds that a step of this load takes where no drafter runs, not even to keep up with what
    the target reads; None: that is not known."""
    has_confidences: bool = True
    """Whether it is known in time how sure the drafter is of a token."""
    max_depth: int = 0
    """Most tokens along a path of a tree: ``num_speculative_tokens``."""
    drafts_alike: bool = False
    """Whether the engine drafts equally many tokens for all sequences, as vLLM does where it
    schedules asynchronously."""
    answers: Desk[Pricing] | None = None
    """What loops ask for the times of steps in place of Python; None: nothing."""

    @property
    def pricing(self) -> Desk[Pricing] | None:
        """What steps take as numbers, if loops can work it out from them."""
        return getattr(self.step_times, "pricing", None)


class Policy(Member, Generic[Memory]):
    """Decides, at every step, how many tokens to draft for each sequence.

    A policy itself never changes. One that remembers returns its memory from `start`, and the
    engine hands it back at every call as `memory`, so that no run leaks into the next. What is in
    the brackets of its base, `Policy[MyMemory]`, is for type checkers alone; without a `start` of
    its own a policy is a `Policy[ServerView]`.
    """

    kind: str

    def __class_getitem__(cls, memory: Any) -> type[Self]:  # pydantic would make a class of each
        return cls

    # What it needs

    needs_sync: ClassVar[Literal[False, True, "by default"]] = False
    """Whether it must see the outcome of a step before the next is scheduled. "by default": it
    decides best so; where ``engine.async_scheduling`` is set, it learns outcomes a step late, and
    is shown no confidences."""
    uses_tokens: ClassVar[bool] = False
    """Whether it wants to see token ids, which the workload must then have."""
    uses_confidences: ClassVar[Literal[False, True, "if known"]] = False
    """Whether it wants to know how sure the drafter was of each token, which nobody does who
    schedules asynchronously. "if known": it can do without."""

    def max_draft_len(self, num_speculative_tokens: int) -> int:
        """Return the longest draft that it will ever ask for, in tokens.

        The engine is set up for it: look-ahead slots, padding, and whether it speculates at all.

        Raises:
            ValueError: It would exceed the configured limit.
        """
        return num_speculative_tokens

    @property
    def is_dynamic(self) -> bool:
        """Whether `draft_lens` is asked at every step; if not, drafts always are the longest."""
        return True

    # What it remembers

    def start(self, server: ServerView) -> Memory:
        """Return a fresh memory for one replica of one run."""
        return cast(Memory, server)

    # How much is drafted

    @abstractmethod
    def draft_lens(
        self, batch: BatchView, memory: Memory
    ) -> int | Ints | list[int] | Tree | list[Tree]:
        """Return how many tokens to draft at the end of a step, to be verified in the next.

        Called once a step, after scheduling, where vLLM decides it
        (``v1/core/sched/scheduler.py schedule``).

        Returns:
            Tokens for every sequence alike, or one length per sequence in the batch's order; of a
            policy that extends `DraftsTrees` trees instead.
        """

    def stop_len(self, batch: BatchView, drafts: DraftView, memory: Memory) -> int | Ints | None:
        """Return after how many tokens the drafter stops, for all or for each; None: it does not.

        Called after `draft_lens` of a policy that `uses_confidences`, if the drafter knows any.
        `drafts` are those asked for, also in mid-prefill, where they are ignored; whether a token
        is drafted must depend on those before it alone.
        """
        return None

    # What is verified of it, and whom the drafter serves

    def verify_lens(self, batch: BatchView, drafts: DraftView, memory: Memory) -> Ints | list[int]:
        """Return how many drafts of each sequence to verify in a step; the rest is dropped.

        Called after scheduling and before the forward pass, which gets shorter by what is
        dropped: there vLLM trims (0.32.0 ``v1/worker/gpu/model_runner.py``), and there SmartSpec
        has its verification length (Liu et al. 2024, algorithm 3, line 13).
        """
        return drafts.draft_lens

    def drops(self, batch: BatchView, memory: Memory) -> NDArray[np.bool_] | None:
        """Return which sequences of a step the drafter lets go of for good, shape (batch.size,).

        It reads nothing of theirs from this step on, not even of a prompt that begins in it, and
        they are never drafted for again (SmartSpec, section 5; TurboSpec, listing 1). None: of
        nobody. Asked in steps that admit somebody or read prompts, and where it `drops_now`.
        """
        return None

    def drops_now(self, memory: Memory) -> bool:
        """Return whether `drops` may name anyone in any other step."""
        return True

    # What it learns

    def alpha_estimate(self, memory: Memory) -> float:
        """Return the alpha that it believes in, for timelines; NaN if it has no estimate."""
        return nan

    def observe(self, outcome: StepOutcome, memory: Memory) -> None:
        """Learn from a step that has ended: change the memory in place."""

    def overrides(self, method: Callable[..., Any]) -> bool:
        """Return whether one of these methods is its own, so that it must be called."""
        return getattr(type(self), method.__name__) is not method


class BySize(Policy[Memory]):
    """Base of the policies whose draft length depends on nothing but the size of the step."""

    @abstractmethod
    def lens_by_size(self, largest: int, memory: Memory) -> NDArray[np.int64] | None:
        """Return the draft length by the number of sequences of a step.

        The engine looks it up, in an array of shape (largest + 1,), instead of calling
        `draft_lens`; None: it calls that.
        """


class DraftsTrees(Policy[Memory]):
    """Base of the policies that ask for trees: one for all sequences, or one for each.

    Only a proposer that drafts several candidates can serve it. Here `max_draft_len` means nodes,
    and ``num_speculative_tokens`` limits depth.
    """

    needs_sync: ClassVar[bool] = True

    @property
    def num_candidates(self) -> int:
        """How many candidates per node `BatchView.candidates` tells of; 0: it is not asked."""
        return 0

    @abstractmethod
    def draft_lens(self, batch: BatchView, memory: Memory) -> Tree | list[Tree]:
        """Return the tree to draft at the end of a step: for every sequence alike, or for each."""


class PicksDrafter(Policy[Memory]):
    """Base of the policies that give each request one of several drafters."""

    @abstractmethod
    def choose_drafter(self, request: int, prompt_len: int, memory: Memory) -> int:
        """Return which of ``speculative_config.models`` drafts for a request that arrives."""


class PicksSource(Policy[Memory]):
    """Base of those that decide between a lookup and the drafter that stands behind it."""

    @abstractmethod
    def uses_lookup(
        self, scores: NDArray[np.float64], memory: Memory
    ) -> NDArray[np.bool_] | list[bool]:
        """Return whether each of the lookup's drafts of a step is used; else the fallback drafts.

        Scores are the accepted lengths that the lookup expects of its drafts, in tokens.
        """


class PicksPrefix(Policy[Memory]):
    """Base of the policies that may leave running sequences out of a step."""

    @property
    def picks_prefix(self) -> bool:
        """Whether `prefix_size` is to be asked."""
        return True

    @abstractmethod
    def prefix_size(self, known_lens: Ints, memory: Memory) -> int:
        """Return how many of the running sequences the next step holds at most, first come first.

        Those behind wait, with their KV blocks (SmartSpec, algorithm 2, line 2). `known_lens` are
        the tokens of each running sequence, in order of admission.
        """


class KnowsModel(Policy[Memory]):
    """Base of bounds that are told the acceptance model and its state, as no server could be."""


class OraclePolicy(Policy[Memory]):
    """Base of the policies that know the future; their names contain "oracle"."""

    needs_sync: ClassVar[bool] = True


def is_bound(policy: object) -> bool:
    """Return whether a policy knows what no server does: others are held against it."""
    return isinstance(policy, OraclePolicy | KnowsModel)


def pricing_of(server: ServerView) -> Desk[Pricing]:
    """Return what steps take as loops see it: by numbers, or by asking Python."""
    if server.answers is not None:
        return server.answers
    if server.pricing is not None and server.plain_time is not None:
        return server.pricing

    def ask() -> None:
        pricing = desk.arrays
        load, (_, tokens, is_plain, num) = pricing.load.tolist(), pricing.asked.tolist()
        step = StepLoad(load[0], tokens, *load[2:4])
        if is_plain and server.plain_time is not None:
            pricing.answer[0] = server.plain_time(step)
            return
        drafts = 0 if is_plain else load[4]
        if drafts and load[5] < drafts * load[2]:  # those of one token, of two, ...
            nums = -np.diff(pricing.rows[:drafts], append=0)
            drafts = np.repeat(np.arange(1, drafts + 1), nums)
        if num == 1:
            pricing.answer[0] = server.step_time(step, drafts)
        else:
            pricing.answer[:num] = server.step_times(step, tokens + np.arange(num), drafts)

    given: dict[str, Any] = {**PRICING_SIZES, "asked": np.array([1, 0, 0, 0]), "ask": Hook(ask)}
    desk: Desk[Pricing] = Desk(Pricing, **given)
    return desk


class LoopPolicy(Policy[LoopMemory]):
    """Base of the policies that are loops: functions over arrays, which the engine's loop calls.

    Everything that it decides is one of its `loops`; `start` returns what `remember` makes of the
    fields of its memory.
    """

    loops: ClassVar[Loops]

    @property
    def is_asked_in_loops(self) -> bool:
        """Whether it is asked by them alone: not where a class above has methods of its own."""
        own = {"draft_lens", "stop_len", "verify_lens", "drops", "drops_now"}
        own |= {"alpha_estimate", "observe"}
        return all(getattr(type(self), name) is getattr(LoopPolicy, name) for name in own)

    def remember(self, server: ServerView, **fields: Any) -> LoopMemory:
        """Return a memory with such fields: arrays, `PerRequest`, sizes, `Desk`."""
        return LoopMemory(self.loops, self._call, server, pricing_of(server), **fields)

    def _call(self, loop: Callable[[], int]) -> None:
        """Run a loop that is Python; whoever looks for whom to blame finds `self` here."""
        loop()

    def draft_lens(self, batch: BatchView, memory: LoopMemory) -> Ints:
        view = memory.show(batch, batch.drafts)
        memory.run("decide")
        return view.lens[: batch.size].copy()

    def stop_len(
        self, batch: BatchView, drafts: DraftView, memory: LoopMemory
    ) -> int | Ints | None:
        """Return after how many tokens each draft ends; the number it is refused for, if any."""
        may_stop = "stop" in self.loops.loops and memory.step["may_stop"][0]
        if not may_stop or not drafts.draft_lens.any():
            return None
        view = memory.show(batch, drafts)
        view.draft_lens[: batch.size][batch.in_prefill] = 0
        view.lens[: batch.size] = drafts.draft_lens
        memory.run("stop")
        stop_len = int(memory.step["stop_len"][0])
        return stop_len if stop_len < 0 else np.minimum(view.lens[: batch.size], stop_len)

    def verify_lens(self, batch: BatchView, drafts: DraftView, memory: LoopMemory) -> Ints:
        if "verify" not in self.loops.loops:
            return drafts.draft_lens
        view = memory.show(batch, drafts)
        memory.run("verify")
        return view.lens[: batch.size].copy()

    def drops(self, batch: BatchView, memory: LoopMemory) -> NDArray[np.bool_] | None:
        if "drop" not in self.loops.loops:
            return None
        view = memory.show(batch)
        view.let_go[: batch.size] = False
        memory.run("drop")
        let_go = view.let_go[: batch.size].copy()
        return let_go if let_go.any() else None

    def drops_now(self, memory: LoopMemory) -> bool:
        """Return whether it said last that it may."""
        return bool(memory.step["may_drop"][0])

    def alpha_estimate(self, memory: LoopMemory) -> float:
        return float(memory.step["alpha"][0])

    def observe(self, outcome: StepOutcome, memory: LoopMemory) -> None:
        if "observe" in self.loops.loops:
            memory.show_outcome(outcome)
            memory.run("observe")

    def overrides(self, method: Callable[..., Any]) -> bool:
        loop = _LOOP_OF.get(method.__name__)
        return super().overrides(method) if loop is None else loop in self.loops.loops


_LOOP_OF = {"stop_len": "stop", "verify_lens": "verify", "drops": "drop", "observe": "observe"}


def has_async_form(policy: Policy) -> bool:
    """Return whether a policy can decide where steps are scheduled asynchronously."""
    return policy.needs_sync is not True and policy.uses_confidences is not True


def check_proposer(policy: Policy, proposer: Proposer) -> None:
    """Raise a ValueError, saying why, for a proposer that a policy makes no sense for."""
    for why in (*_wrong_drafters(policy, proposer), *_wrong_drafts(policy, proposer)):
        raise ValueError(f"policy '{policy.kind}' {why}")


def _wrong_drafters(policy: Policy, proposer: Proposer) -> Iterator[str]:
    """Yield why it does not go with the number of drafters."""
    num_drafters, method = len(proposer.cost_keys), f"method '{proposer.method}'"
    picks_source, picks_drafter = isinstance(policy, PicksSource), isinstance(policy, PicksDrafter)
    if proposer.has_fallback and not picks_source:
        yield (
            f"does not choose between the two drafters of {method}; use policy hybrid_suffix, or "
            "another method"
        )
    if picks_source and not proposer.has_fallback:
        yield (
            f"falls back from a lookup, and nothing stands behind {method}; use method hybrid, or "
            "another policy"
        )
    if num_drafters > 1 and not picks_drafter and not picks_source:
        yield (
            f"drives one drafter, {method} has {num_drafters}; use policy draft_selection, or "
            "another method"
        )
    if num_drafters < 2 and picks_drafter:
        yield (
            f"chooses between drafters, {method} has one; use method draft_models, or another "
            "policy"
        )


def _wrong_drafts(policy: Policy, proposer: Proposer) -> Iterator[str]:
    """Yield why it does not go with what is drafted, and with what is known of that."""
    method, drafts_trees = f"method '{proposer.method}'", isinstance(policy, DraftsTrees)
    if drafts_trees and (not proposer.drafts_trees or proposer.drafts_at_once):
        yield (
            f"drafts trees, which {method} cannot{' at once' if proposer.drafts_at_once else ''}; "
            "use a draft model or head, or another policy"
        )
    if drafts_trees and proposer.num_modules > 1:
        yield f"drafts trees, which several modules of {method} cannot; use one, or another policy"
    if proposer.overlaps and (drafts_trees or policy.uses_confidences is True):
        yield (
            "needs trees or confidences, which are not simulated of a drafter that overlaps; set "
            "engine.speculative_config.own_gpus.overlaps to false, or use another policy"
        )
    if policy.overrides(Policy.stop_len) and not policy.uses_confidences:
        yield "has a stop_len, so it must set uses_confidences"
    knows_none = not proposer.has_confidence and not proposer.has_fallback
    if policy.uses_confidences is True and knows_none:
        yield (
            f"needs the confidence of each draft token, which {method} does not know; use a "
            "draft model or head, or another policy"
        )
