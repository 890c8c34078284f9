"""Sequence: how far one request has come in one engine."""

from collections.abc import Sequence as Indexable

from specsim.request import BlockKey, Request
from specsim.step import Tree

__all__ = ["NEVER", "Sequence"]

NEVER = 1 << 62
"""A length that no sequence reaches; stands for "not before the end of the run"."""


class Sequence:
    """State of one request; made on arrival, dropped when the request ends.

    It is in one engine at a time. If that fails, it starts again in another, with the output that
    has been delivered.

    There is no prefill and no decode phase. A sequence has `computed_len` tokens whose KV entries
    exist and asks, at every step, for the rest of

        known_len + draft_len + placeholder_len - computed_len

    tokens, whether they are prompt, the last sampled token or drafts.

    Parameters
    ----------
    request : Request
    arrived_at : float
        Instant at which the engine got it.
    max_model_len : int, tokens
    """

    __slots__ = (
        "arrived_at",
        "block_keys",
        "blocks",
        "cached_lens",
        "capacity_len",
        "computed_len",
        "draft_len",
        "draft_tree",
        "drafter",
        "first_scheduled_at",
        "in_chunk",
        "index",
        "is_finished",
        "is_running",
        "known_len",
        "max_len",
        "next_publish_len",
        "num_preemptions",
        "num_requeues",
        "placeholder_len",
        "preempted_in",
        "prompt_len",
        "published_blocks",
        "request",
        "requested_len",
        "survival_lens",
    )

    def __init__(self, request: Request, arrived_at: float, max_model_len: int) -> None:
        self.request = request
        self.index = request.index
        self.arrived_at = arrived_at
        self.prompt_len = request.prompt_len
        self.requested_len = request.prompt_len + request.output_len
        """Prompt plus max_tokens."""
        self.max_len = min(self.requested_len, max_model_len)
        """Length at which the request ends."""
        self.known_len = request.prompt_len
        """Prompt plus output tokens that the scheduler has been told about."""
        self.computed_len = 0
        """Tokens scheduled so far; optimistic by the drafts in flight."""
        self.draft_len = 0
        """Drafts that wait to be verified."""
        self.draft_tree: Tree | None = None
        """Their shape, where a policy drafts trees."""
        self.drafter = 0
        """Which of several drafters serves it."""
        self.placeholder_len = 0
        """Output tokens in flight that are counted as computed (asynchronous scheduling)."""
        self.in_chunk = False
        """Whether the last scheduled piece stopped short of the known tokens."""
        self.is_running = False
        self.is_finished = False
        self.blocks: list[int] = []
        self.capacity_len = 0
        """Tokens that `blocks` can hold."""
        self.block_keys: Indexable[BlockKey] = ()
        self.published_blocks = 0
        self.next_publish_len = NEVER
        """Length at which the next block can be published to the prefix cache."""
        self.cached_lens: list[int] = []
        """Prefix-cache hit of each admission: the first, then one per resumption, tokens."""
        self.first_scheduled_at: float | None = None
        self.num_preemptions = 0
        self.num_requeues = 0
        """Replicas that failed while they had it."""
        self.preempted_in = -1
        """Index of the step that last preempted it."""
        self.survival_lens = bytearray()
        """By known length: drafts that survive if drafting starts there."""

    @property
    def output_len(self) -> int:
        """Output tokens known to the scheduler."""
        return self.known_len - self.prompt_len

    def leave_failed_engine(self) -> None:
        """Forget all that was in the engine that failed; what was delivered stays delivered.

        The next engine prefills the prompt and the output so far, as after a preemption.
        """
        self.computed_len = self.draft_len = self.placeholder_len = self.drafter = 0
        self.draft_tree = None
        self.in_chunk = self.is_running = False
        self.blocks = []
        self.capacity_len = self.published_blocks = 0
        self.next_publish_len = NEVER
        self.preempted_in = -1
        self.num_requeues += 1

    def __repr__(self) -> str:
        return (
            f"Sequence({self.request.id or self.index}: {self.computed_len} computed of "
            f"{self.known_len} known + {self.draft_len} drafts, ends at {self.max_len})"
        )
