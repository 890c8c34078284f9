"""What every policy decides, and what it may know.

A policy sees what a server could see: how many sequences a step holds, how long they are, what was
accepted so far, and the cost model. The length of an answer and the fate of a draft are the future;
only `OraclePolicy` gets at them.
"""

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from specsim.acceptance.base import Oracle
from specsim.families import Member
from specsim.step import BatchView, StepLoad, StepOutcome

__all__ = ["OraclePolicy", "Policy", "ServerView"]


@dataclass(frozen=True, slots=True)
class ServerView:
    """What a policy may know of the server before the first request."""

    max_draft_len: int
    """Longest draft that it may ask for, tokens."""
    step_time: Callable[[StepLoad, int | list[int]], float]
    """Seconds that a step of this load takes that then drafts so many tokens per sequence."""
    oracle: Oracle | None = None
    """The future; None except for an `OraclePolicy`."""


class Policy(Member):
    """Decides, at every step, how many tokens to draft for each sequence.

    A policy itself never changes. One that remembers returns its memory from `start`, and the
    engine hands it back at every call, so that no run leaks into the next.
    """

    kind: str

    needs_sync: ClassVar[bool] = False
    """Whether it must see the outcome of a step before the next is scheduled."""

    def max_draft_len(self, num_speculative_tokens: int) -> int:
        """Return the longest draft that it will ever ask for.

        The engine is set up for it: look-ahead slots, padding, and whether it speculates at all.

        Parameters
        ----------
        num_speculative_tokens : int
            The configured limit.

        Returns
        -------
        int, tokens

        Raises
        ------
        ValueError
            It would exceed the limit.
        """
        return num_speculative_tokens

    @property
    def is_dynamic(self) -> bool:
        """Whether the draft length can change from step to step (vLLM: dynamic speculation).

        If not, it always is the longest, and `draft_lens` is not called.
        """
        return True

    def start(self, server: ServerView) -> Any:
        """Return a fresh memory for one replica of one run.

        Parameters
        ----------
        server : ServerView

        Returns
        -------
        object
            Whatever `draft_lens` and `observe` want to be given.
        """
        return server

    @abstractmethod
    def draft_lens(self, batch: BatchView, memory: Any) -> int | list[int]:
        """Return how many tokens to draft at the end of a step.

        Called once a step, after scheduling, where vLLM decides it
        (``v1/core/sched/scheduler.py schedule``); the drafts are verified in the sequences' next
        step.

        Parameters
        ----------
        batch : BatchView
            The step's sequences, as a server sees them.
        memory : object
            From `start`.

        Returns
        -------
        int or list of int, tokens
            For every sequence alike, or one per sequence in the batch's order.
        """

    def observe(self, outcome: StepOutcome, memory: Any) -> None:
        """Learn from a step that has ended.

        Parameters
        ----------
        outcome : StepOutcome
        memory : object
            From `start`; change it in place.
        """

    @property
    def observes(self) -> bool:
        """Whether `observe` does anything, so that it need not be called."""
        return type(self).observe is not Policy.observe


class OraclePolicy(Policy):
    """Base of the policies that know the future; their names contain "oracle"."""

    needs_sync: ClassVar[bool] = True
