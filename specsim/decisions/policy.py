"""The base classes of policies: what a policy decides, and what it may know.

A policy sees what a server could see: how many sequences a step holds, how long they are, what was
accepted so far, and the cost model. The output length of a request and how much of a draft will be
accepted lie in the future; only an `OraclePolicy` is told.
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
    """The acceptance model and its state, without the random draws that decide each token."""

    rates: Rates
    known_share: float = 0.0
    """Share of the variance in acceptance, given the state, that confidences explain, 0 to 1."""


@dataclass(frozen=True, slots=True)
class ServerView:
    """What a policy is told about the server before the first request."""

    max_draft_len: int
    """Longest draft that the policy may ask for, tokens; for trees, most nodes."""
    step_time: Callable[[StepLoad, int | list[int] | Ints | Tree | list[Tree]], float]
    """Seconds of a step with this load, including drafting the given tokens per sequence."""
    step_times: Callable[[StepLoad, Ints, int | list[int] | Ints], NDArray[np.float64]]
    """`step_time` for each number of batched tokens in an array, in place of the load's own."""
    verify_time: float = 0.0
    """Seconds of a step that decodes one sequence of 512 tokens and drafts nothing."""
    pass_times: tuple[float, ...] = ()
    """Seconds that each drafter takes per draft token of one sequence of 512 tokens."""
    drafts_by_model: bool = True
    """True if a model drafts (a longer draft takes longer), False for a lookup (it does not)."""
    prompt_token_ids: Callable[[int], Iterable[int]] = lambda _: ()
    """Returns the prompt of a request by its index; only for a policy that sets `uses_tokens`."""
    oracle: Oracle | None = None
    """What the future holds; None except for an `OraclePolicy`."""
    model: ModelView | None = None
    """The acceptance model; None except for a policy that extends `KnowsModel`."""
    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))
    """Random stream for this policy alone: the same draws in every run of one seed."""
    tpot_slo: float | None = None
    """The experiment's limit on time per output token, seconds."""
    drafts_at_one_cost: bool | None = None
    """Whether drafting takes the same time whatever the length of the drafts; None if unknown."""
    plain_time: Callable[[StepLoad], float] | None = None
    """Seconds of a step with this load where no drafter runs, not even to add the target's new
    tokens to its own KV cache; None if unknown."""
    has_confidences: bool = True
    """Whether the drafter's confidences are known before the policy has to decide."""
    max_depth: int = 0
    """Most tokens on a path from a tree's root to a leaf: ``num_speculative_tokens``."""
    drafts_alike: bool = False
    """Whether all sequences get drafts of one length, as in vLLM with asynchronous scheduling."""
    answers: Desk[Pricing] | None = None
    """Cost model for loops that `specsim.reality.vllm` measures; None: see `pricing_of`."""

    @property
    def pricing(self) -> Desk[Pricing] | None:
        """The cost model as arrays from which compiled loops compute step times, or None."""
        return getattr(self.step_times, "pricing", None)


class Policy(Member, Generic[Memory]):
    """Decides, at every step, how many tokens to draft for each sequence.

    A policy object never changes. State lives in the memory that `start` returns, which the engine
    passes to every other call, so that no run leaks into the next. The type in brackets,
    `Policy[MyMemory]`, is for type checkers alone; a policy without a `start` of its own is a
    `Policy[ServerView]`.
    """

    kind: str

    def __class_getitem__(cls, memory: Any) -> type[Self]:  # pydantic would make a class of each
        return cls

    # What it needs

    needs_sync: ClassVar[Literal[False, True, "by default"]] = False
    """Whether a step's outcome must be known before the next step is scheduled. "by default": this
    is preferred, but with ``engine.async_scheduling`` the policy runs all the same, learns each
    outcome one step late, and is shown no confidences."""
    uses_tokens: ClassVar[bool] = False
    """Whether the policy reads token ids; the workload must then have them."""
    uses_confidences: ClassVar[Literal[False, True, "if known"]] = False
    """Whether the policy reads the drafter's confidence in each draft token, which is never known
    under asynchronous scheduling. "if known": the policy works without them, too."""

    def max_draft_len(self, num_speculative_tokens: int) -> int:
        """Return the longest draft that the policy will ever ask for, tokens.

        It sets the engine's look-ahead slots and padding; 0 turns speculation off.

        Raises:
            ValueError: It would exceed `num_speculative_tokens`, the configured limit.
        """
        return num_speculative_tokens

    @property
    def is_dynamic(self) -> bool:
        """Whether `draft_lens` is called at every step; if not, every draft has maximal length."""
        return True

    # What it remembers

    def start(self, server: ServerView) -> Memory:
        """Return the memory of one replica at the start of a run; by default `server` itself."""
        return cast(Memory, server)

    # How much is drafted

    @abstractmethod
    def draft_lens(
        self, batch: BatchView, memory: Memory
    ) -> int | Ints | list[int] | Tree | list[Tree]:
        """Return how many tokens to draft at the end of a step, to be verified in the next.

        Called once a step, after scheduling, as in vLLM (``v1/core/sched/scheduler.py schedule``).

        Returns:
            One length for all sequences, tokens, or one per sequence, shape (batch.size,); from a
            policy that extends `DraftsTrees`, one tree or one per sequence.
        """

    def stop_len(self, batch: BatchView, drafts: DraftView, memory: Memory) -> int | Ints | None:
        """Return the tokens after which the drafter stops, for all or for each; None: no stop.

        Called after `draft_lens` for a policy that `uses_confidences`, if the drafter states them.
        `drafts` has the lengths that `draft_lens` returned; those of sequences in mid-prefill are
        ignored. Whether a token is drafted may depend only on the tokens of its draft before it.
        """
        return None

    # How much is verified, and which sequences the drafter serves

    def verify_lens(self, batch: BatchView, drafts: DraftView, memory: Memory) -> Ints | list[int]:
        """Return how many draft tokens of each sequence to verify; the rest are dropped.

        Shape (batch.size,). Called after scheduling and before the forward pass, which the dropped
        tokens make cheaper. vLLM trims drafts here (0.32.0 ``v1/worker/gpu/model_runner.py``), and
        SmartSpec picks its verification length (Liu et al. 2024, algorithm 3, line 13).
        """
        return drafts.draft_lens

    def drops(self, batch: BatchView, memory: Memory) -> NDArray[np.bool_] | None:
        """Return which sequences the drafter stops serving for good, shape (batch.size,).

        From this step on it reads none of their tokens, not even a prompt that begins in this step,
        and never drafts for them again (SmartSpec, section 5; TurboSpec, listing 1). None: no
        sequence. Called in steps that admit requests or read prompts, and where `drops_now`.
        """
        return None

    def drops_now(self, memory: Memory) -> bool:
        """Return whether to call `drops` in a step that admits nothing and reads no prompt."""
        return True

    # What it learns

    def alpha_estimate(self, memory: Memory) -> float:
        """Return the policy's estimate of alpha, which timelines show; NaN if it has none."""
        return nan

    def observe(self, outcome: StepOutcome, memory: Memory) -> None:
        """Learn from a step that has ended: change `memory` in place."""

    def overrides(self, method: Callable[..., Any]) -> bool:
        """Return whether this class overrides a method of `Policy`, which must then be called."""
        return getattr(type(self), method.__name__) is not method


class BySize(Policy[Memory]):
    """Base of the policies whose draft length depends on nothing but the size of the step."""

    @abstractmethod
    def lens_by_size(self, largest: int, memory: Memory) -> NDArray[np.int64] | None:
        """Return the draft length for each number of sequences in a step, shape (largest + 1,).

        The engine reads this table instead of calling `draft_lens`. None: it calls `draft_lens`.
        """


class DraftsTrees(Policy[Memory]):
    """Base of the policies that ask for trees: one for all sequences, or one for each.

    Needs a proposer that drafts several candidates per position. `max_draft_len` counts nodes here;
    ``num_speculative_tokens`` limits the depth.
    """

    needs_sync: ClassVar[bool] = True

    @property
    def num_candidates(self) -> int:
        """Candidates per node in `BatchView.candidates`; 0: the policy does not need them."""
        return 0

    @abstractmethod
    def draft_lens(self, batch: BatchView, memory: Memory) -> Tree | list[Tree]:
        """Return the tree to draft at the end of a step: one for all sequences, or one for each."""


class PicksDrafter(Policy[Memory]):
    """Base of the policies that give each request one of several drafters."""

    @abstractmethod
    def choose_drafter(self, request: int, prompt_len: int, memory: Memory) -> int:
        """Return the index in ``speculative_config.models`` of an arriving request's drafter."""


class PicksSource(Policy[Memory]):
    """Base of the policies that choose between a lookup's draft and a fallback drafter's."""

    @abstractmethod
    def uses_lookup(
        self, scores: NDArray[np.float64], memory: Memory
    ) -> NDArray[np.bool_] | list[bool]:
        """Return, for each sequence, True to use the lookup's draft, False for the fallback's.

        `scores` are the accepted lengths that the lookup expects of its drafts, tokens.
        """


class PicksPrefix(Policy[Memory]):
    """Base of the policies that may leave running sequences out of a step."""

    @property
    def picks_prefix(self) -> bool:
        """Whether `prefix_size` is called."""
        return True

    @abstractmethod
    def prefix_size(self, known_lens: Ints, memory: Memory) -> int:
        """Return how many running sequences the next step may hold, in order of admission.

        Those behind wait but keep their KV blocks (SmartSpec, algorithm 2, line 2). `known_lens`
        are the prompt and output tokens of each running sequence, in order of admission.
        """


class KnowsModel(Policy[Memory]):
    """Base of bounds that are told the acceptance model and its state, which no server knows."""


class OraclePolicy(Policy[Memory]):
    """Base of bounds that know the future (`ServerView.oracle`); their names contain "oracle"."""

    needs_sync: ClassVar[bool] = True


def is_bound(policy: object) -> bool:
    """Return whether a policy knows more than a server can: a bound to measure others against."""
    return isinstance(policy, OraclePolicy | KnowsModel)


def pricing_of(server: ServerView) -> Desk[Pricing]:
    """Return the cost model in the form that loops use: arrays, or else a hook into Python."""
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
        if drafts and load[5] < drafts * load[2]:  # the drafts differ in length
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
    """Base of the policies written as loops: compilable functions over arrays.

    Every decision is one of `loops`, which the engine's loop calls; `start` returns `remember(...)`
    with the arrays of the memory.
    """

    loops: ClassVar[Loops]

    @property
    def is_asked_in_loops(self) -> bool:
        """Whether `loops` alone decide: False if a subclass overrides a method of `LoopPolicy`."""
        own = {"draft_lens", "stop_len", "verify_lens", "drops", "drops_now"}
        own |= {"alpha_estimate", "observe"}
        return all(getattr(type(self), name) is getattr(LoopPolicy, name) for name in own)

    def remember(self, server: ServerView, **fields: Any) -> LoopMemory:
        """Return a memory with these fields, each an array, `PerRequest`, size or `Desk`."""
        return LoopMemory(self.loops, self._call, server, pricing_of(server), **fields)

    def _call(self, loop: Callable[[], int]) -> None:
        """Run a loop as Python; `self` in this frame lets an error name the policy at fault."""
        loop()

    def draft_lens(self, batch: BatchView, memory: LoopMemory) -> Ints:
        view = memory.show(batch, batch.drafts)
        memory.run("decide")
        return view.lens[: batch.size].copy()

    def stop_len(
        self, batch: BatchView, drafts: DraftView, memory: LoopMemory
    ) -> int | Ints | None:
        """Return where each draft ends; an invalid `stop_len` as is, for the caller to refuse."""
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
        """Return the flag `may_drop` that the loops last set."""
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
    """Yield why the policy does not fit the proposer's number of drafters, if so."""
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
    """Yield why the policy does not fit the proposer's trees and confidences, if so."""
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
