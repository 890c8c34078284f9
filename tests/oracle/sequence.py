"""Sequence: how far one request has come in one engine."""

from collections.abc import Sequence as Indexable

from specsim.core.request import BlockKey, Request

__all__ = ["NEVER", "Sequence"]

NEVER = 1 << 62
"""A length that no sequence reaches; stands for "not before the end of the run"."""


class Sequence:
    """State of one request; made on arrival, dropped when the request ends.

    There is no prefill and no decode phase. A sequence has `computed_len` tokens whose KV entries
    exist and asks, at every step, for the rest of

        known_len + draft_len + placeholder_len - computed_len

    tokens, whether they are prompt, the last sampled token or drafts.
    """

    def __init__(self, request: Request, arrived_at: float, max_model_len: int) -> None:
        self.request = request
        self.index = request.index
        self.arrived_at = arrived_at
        self.prompt_len = request.prompt_len
        asked_len = request.output_len if request.max_tokens is None else request.max_tokens
        self.requested_len = request.prompt_len + asked_len
        """Prompt plus max_tokens."""
        self.max_len = min(request.prompt_len + request.output_len, max_model_len)
        """Length at which the request ends."""
        self.known_len = request.prompt_len
        """Prompt plus output tokens that the scheduler has been told about."""
        self.computed_len = 0
        """Tokens scheduled so far; optimistic by the drafts in flight."""
        self.draft_len = 0
        """Drafts that wait to be verified."""
        self.placeholder_len = 0
        """Output tokens in flight that are counted as computed (asynchronous scheduling)."""
        self.in_chunk = False
        """Whether the last scheduled piece stopped short of the known tokens."""
        self.is_running = False
        self.is_finished = False
        self.blocks: list[int] = []
        self.capacity_len = 0
        """Tokens that `blocks` can hold."""
        self.tables: list[list[int]] = []
        """Blocks of each KV cache group, where there are several."""
        self.looked_at: list[int] = []
        """How many of them were published, or might have been, likewise."""
        self.junction_len = 0
        """How far a prefix was cached in some groups, but not in all of them."""
        self.in_flight_len = 0
        """Tokens in steps that have been scheduled and have not come back."""
        self.block_keys: Indexable[BlockKey] = ()
        self.published_blocks = 0
        self.next_publish_len = NEVER
        """Length at which the next block can be published to the prefix cache."""
        self.cached_lens: list[int] = []
        """Prefix-cache hit of each admission: the first, then one per resumption, tokens."""
        self.num_preemptions = 0
        self.preempted_in = -1
        """Index of the step that last preempted it."""

    @property
    def output_len(self) -> int:
        """Output tokens known to the scheduler."""
        return self.known_len - self.prompt_len
