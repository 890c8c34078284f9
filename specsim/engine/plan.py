"""StepPlan: what one call of the scheduler decided."""

from operator import mul, sub

from specsim.engine.sequence import Sequence
from specsim.step import Pieces, StepLoad

__all__ = ["StepPlan"]


class StepPlan:
    """The sequences of one step, in scheduling order, and what each of them gets.

    `sequences`, `scheduled_lens` and `draft_lens` are parallel lists; that, rather than an object
    per entry, keeps the hot loop of a step free of allocations.

    Parameters
    ----------
    index : int
        Number of this scheduler call in its engine, from 0.
    tokens_left : int
        max_num_scheduled_tokens; what is left of it as sequences are added.
    inputs_left : int
        max_num_batched_tokens, likewise; draft slots are paid from it as well.
    piece_limit : int
        Longest piece that any sequence may get.
    """

    __slots__ = (
        "admitted",
        "batched_tokens",
        "context_tokens",
        "draft_contexts",
        "draft_lens",
        "drafts_on_top",
        "emitted_lens",
        "has_chunk",
        "index",
        "inputs_left",
        "num_running_scheduled",
        "padded",
        "partial",
        "piece_limit",
        "preempted",
        "prefill_lens",
        "resumed",
        "scheduled_lens",
        "sequences",
        "tokens_left",
        "verified_lens",
    )

    def __init__(self, index: int, *, tokens_left: int, inputs_left: int, piece_limit: int) -> None:
        self.index = index
        self.tokens_left = tokens_left
        self.inputs_left = inputs_left
        self.piece_limit = piece_limit
        self.sequences: list[Sequence] = []
        self.scheduled_lens: list[int] = []
        """Tokens that each sequence processes, its drafts included."""
        self.draft_lens: list[int] = []
        """Drafts among them."""
        self.verified_lens = self.draft_lens
        """Drafts that are verified: all of them, unless the policy trims the step."""
        self.emitted_lens: list[int] = []
        """Tokens that each sequence delivered; empty until the update."""
        self.partial: set[Sequence] = set()
        """Sequences whose piece stops short of the known tokens: they emit nothing."""
        self.padded: set[Sequence] = set()
        """Sequences admitted with dummy drafts, which are never accepted."""
        self.prefill_lens: dict[Sequence, int] = {}
        """Scheduled tokens of the sequences that are in their prefill."""
        self.admitted: list[Sequence] = []
        self.resumed: list[Sequence] = []
        self.preempted: list[Sequence] = []
        self.context_tokens = 0
        self.batched_tokens = 0
        self.draft_contexts: list[int] = []
        """Under batch expansion, the context that each draft of each sequence reads anew."""
        self.drafts_on_top = False
        """Whether drafts came on top of the token budget (vLLM V0)."""
        self.num_running_scheduled = 0
        """Sequences in the plan that ran before it."""
        self.has_chunk = False
        """Whether a running sequence came into this step in the middle of its prefill."""

    @property
    def load(self) -> StepLoad:
        """What the duration of the target forward pass depends on."""
        read_anew = sum(map(mul, self.draft_contexts, self.verified_lens))
        return StepLoad(
            self.context_tokens + read_anew,
            self.batched_tokens,
            len(self.sequences),
            sum(self.prefill_lens.values()),
        )

    def pieces(self) -> Pieces:
        """Return what each sequence processes; before any later step is scheduled."""
        dropped_lens = map(sub, self.draft_lens, self.verified_lens)
        return Pieces(
            list(map(sub, self.scheduled_lens, dropped_lens)),
            [
                sequence.computed_len - scheduled_len
                for sequence, scheduled_len in zip(self.sequences, self.scheduled_lens, strict=True)
            ],
        )

    def withdraw(self, sequence: Sequence) -> int | None:
        """Take a sequence back out that was scheduled earlier in this same call.

        Parameters
        ----------
        sequence : Sequence

        Returns
        -------
        int or None, tokens
            What it had been given; None if it was not scheduled.
        """
        if sequence not in self.sequences:
            return None
        position = self.sequences.index(sequence)
        del self.sequences[position]
        del self.draft_lens[position]
        scheduled_len = self.scheduled_lens.pop(position)
        self.partial.discard(sequence)
        self.prefill_lens.pop(sequence, None)
        return scheduled_len

    def trim(self, verified_lens: list[int]) -> None:
        """Drop drafts from a scheduled step; their KV slots stay reserved until the update.

        Parameters
        ----------
        verified_lens : list of int, tokens
            At most as many as were drafted, per sequence.
        """
        self.batched_tokens -= sum(self.draft_lens) - sum(verified_lens)
        self.verified_lens = verified_lens

    def count_tokens(self) -> None:
        """Add up the tokens of a complete plan; the sequences have already been advanced."""
        self.batched_tokens = sum(self.scheduled_lens)
        ends = sum([sequence.computed_len for sequence in self.sequences])
        self.context_tokens = ends - self.batched_tokens
