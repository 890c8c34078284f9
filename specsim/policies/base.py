"""What every policy decides, and what it may know.

A policy sees what a server could see: how many sequences a step holds, how long they are, what was
accepted so far, and the cost model. The length of an answer and the fate of a draft are the future;
only `OraclePolicy` gets at them.
"""

from abc import abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from math import nan
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from specsim.acceptance.base import Oracle, Rates
from specsim.core.compiled import Pointers
from specsim.core.families import Member
from specsim.core.step import BatchView, DraftView, Ints, StepLoad, StepOutcome, Tree
from specsim.proposers.base import Proposer


@dataclass(frozen=True, slots=True)
class ModelView:
    """The acceptance model, as one knows it who knows its state, but not the luck."""

    rates: Rates
    stated_means: NDArray[np.float64]
    """Mean confidence of each request's drafts, by its index."""
    concentration: float
    """As in `specsim.core.draft_luck.DraftLuck.confidence_tables`."""


@dataclass(frozen=True, slots=True)
class ServerView:
    """What a policy may know of the server before the first request."""

    max_draft_len: int
    """Longest draft that it may ask for, tokens."""
    step_time: Callable[[StepLoad, int | list[int] | Ints], float]
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
    """The present; None except for a policy that `knows_model`."""
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
    """Whether the drafter knows how sure it is of a token."""


class Policy(Member):
    """Decides, at every step, how many tokens to draft for each sequence.

    A policy itself never changes. One that remembers returns its memory from `start`, and the
    engine hands it back at every call as `memory`, so that no run leaks into the next.
    """

    kind: str

    needs_sync: ClassVar[bool] = False
    """Whether it must see the outcome of a step before the next is scheduled."""
    selects_drafter: ClassVar[bool] = False
    """Whether it gives each request one of several drafters."""
    picks_source: ClassVar[bool] = False
    """Whether it decides, request by request and step by step, between a lookup and the drafter
    that stands behind it."""
    drafts_trees: ClassVar[bool] = False
    """Whether it asks for trees, which only a proposer that drafts them can serve."""
    uses_tokens: ClassVar[bool] = False
    """Whether it wants to see token ids, which the workload must then have."""
    uses_confidences: ClassVar[bool] = False
    """Whether it wants to know how sure the drafter was of each token; such a policy, too, needs
    synchronous scheduling."""
    needs_confidences: ClassVar[bool] = True
    """Whether it cannot do without them, if it wants them."""

    minds_prompts: ClassVar[bool] = False
    """Whether `drops` is asked in every step that reads prompts, whatever `drops_now` says."""
    knows_model: ClassVar[bool] = False
    """Whether it is told the acceptance model and its state, as no server could be: a bound."""

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

    @property
    def draft_threshold(self) -> float | None:
        """Confidence at or below which the drafter stops after a token; None: it never stops."""
        return None

    def start(self, server: ServerView) -> Any:
        """Return a fresh memory for one replica of one run."""
        return server

    def check_proposer(self, proposer: Proposer) -> None:
        """Raise a ValueError, saying why, for a proposer that the policy makes no sense for."""
        if proposer.has_fallback != self.picks_source:
            raise ValueError(
                f"policy '{self.kind}' does not choose between the two drafters of method "
                f"'{proposer.method}'; use policy hybrid_suffix, or another method"
                if proposer.has_fallback
                else f"policy '{self.kind}' falls back from a lookup, and nothing stands behind "
                f"method '{proposer.method}'; use method hybrid, or another policy"
            )
        if proposer.has_fallback:
            return
        num_drafters, method = len(proposer.cost_keys), f"method '{proposer.method}'"
        refusals = (
            (
                num_drafters > 1 and not self.selects_drafter,
                f"drives one drafter, {method} has {num_drafters}; use policy draft_selection, or "
                "another method",
            ),
            (
                num_drafters < 2 and self.selects_drafter,
                f"chooses between drafters, {method} has one; use method draft_models, or another "
                "policy",
            ),
            (
                self.drafts_trees and not proposer.drafts_trees,
                f"drafts trees, which {method} cannot; use method medusa, or another policy",
            ),
            (
                self.draft_threshold is not None and not self.uses_confidences,
                "has a draft_threshold, so it must set uses_confidences",
            ),
            (
                self.overrides(Policy.stop_len) and not self.uses_confidences,
                "has a stop_len, so it must set uses_confidences",
            ),
            (
                self.uses_confidences and self.needs_confidences and not proposer.has_confidence,
                f"needs the confidence of each draft token, which {method} does not know; use a "
                "draft model or head, or another policy",
            ),
        )
        for is_refused, why in refusals:
            if is_refused:
                raise ValueError(f"policy '{self.kind}' {why}")

    def choose_drafter(self, request: int, prompt_len: int, memory: Any) -> int:
        """Return which of ``speculative_config.models`` drafts, if it `selects_drafter`."""
        return 0

    def uses_lookup(
        self, scores: NDArray[np.float64], memory: Any
    ) -> NDArray[np.bool_] | list[bool]:
        """Return whether each of the lookup's drafts is used; else the fallback drafts.

        Only asked if `picks_source`. Scores are the accepted lengths that the lookup expects of its
        drafts of a step, in tokens.
        """
        return np.ones(len(scores), dtype=bool)

    @abstractmethod
    def draft_lens(self, batch: BatchView, memory: Any) -> int | Ints | list[int] | Tree:
        """Return how many tokens to draft at the end of a step, to be verified in the next.

        Called once a step, after scheduling, where vLLM decides it
        (``v1/core/sched/scheduler.py schedule``).

        Returns:
            Tokens for every sequence alike, or one length per sequence in the batch's order, or
            (`drafts_trees`) one shape for all of them.
        """

    def stop_len(self, batch: BatchView, drafts: DraftView, memory: Any) -> int | None:
        """Return after how many tokens the drafter stops for all of them; None: it does not.

        Called after `draft_lens` of a policy that `uses_confidences`, if the drafter knows any and
        is no lookup, whose drafts are there by then. `drafts` are those asked for; whether a token
        is drafted must depend on those before it alone.
        """
        return None

    @property
    def picks_prefix(self) -> bool:
        """Whether `prefix_size` is to be asked: whether the step may leave sequences out."""
        return False

    def prefix_size(self, known_lens: Ints, memory: Any) -> int:
        """Return how many of the running sequences the next step holds at most, first come first.

        Those behind wait, with their KV blocks (SmartSpec, algorithm 2, line 2). `known_lens` are
        the tokens of each running sequence, in order of admission.
        """
        return len(known_lens)

    def lens_by_size(self, largest: int, memory: Any) -> NDArray[np.int64] | None:
        """Return the draft length by the number of sequences of a step, if nothing else counts.

        The engine then looks it up, in an array of shape (largest + 1,), instead of calling
        `draft_lens`.
        """
        return None

    def loop_memory(self, memory: Any) -> Any:
        """Return a memory with which the engine's loop decides by itself; None: it asks here.

        It does what `goodput` does at its defaults (`specsim.engine.decide`), and nobody else is
        asked or told anything then.
        """
        return None

    def loop_desk(self, memory: Any, most: int, num_requests: int) -> Pointers | None:
        """Return the desk of `joint`, on which the engine does all verbs; None: it asks here.

        It has room for steps of so many sequences, and of so many requests of a run.
        """
        return None

    def verify_lens(self, batch: BatchView, drafts: DraftView, memory: Any) -> Ints | list[int]:
        """Return how many drafts of each sequence to verify in a step; the rest is dropped.

        Called after scheduling and before the forward pass, which gets shorter by what is
        dropped: there vLLM trims (0.32.0 ``v1/worker/gpu/model_runner.py``), and there SmartSpec
        has its verification length (Liu et al. 2024, algorithm 3, line 13).
        """
        return drafts.draft_lens

    def skips_draft_prefill(self, batch: BatchView, memory: Any) -> bool:
        """Return whether the drafter leaves out the prefill of the requests admitted in a step.

        Such a request is never drafted for (SmartSpec, section 5; TurboSpec, listing 1).
        """
        return False

    def drops(self, batch: BatchView, memory: Any) -> NDArray[np.bool_] | None:
        """Return which sequences of a step the drafter lets go of for good, shape (batch.size,).

        It reads nothing of theirs from this step on, not even of a prompt that begins in it, and
        they are never drafted for again. None: of nobody.
        """
        return None

    def drops_now(self, memory: Any) -> bool:
        """Return whether `drops` may name anyone in this step, where that is cheaper to tell."""
        return True

    def alpha_estimate(self, memory: Any) -> float:
        """Return the alpha that it believes in, for timelines; NaN if it has no estimate."""
        return nan

    def observe(self, outcome: StepOutcome, memory: Any) -> None:
        """Learn from a step that has ended: change the memory in place."""

    def overrides(self, method: Callable[..., Any]) -> bool:
        """Return whether one of these methods is its own, so that it must be called."""
        return getattr(type(self), method.__name__) is not method


class OraclePolicy(Policy):
    """Base of the policies that know the future; their names contain "oracle"."""

    needs_sync: ClassVar[bool] = True
