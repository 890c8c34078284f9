"""StepPlan: what one call of the scheduler decided."""

from oracle.sequence import Sequence

__all__ = ["StepPlan"]


class StepPlan:
    """The sequences of one step, in scheduling order, and what each of them gets."""

    def __init__(self, index: int, *, tokens_left: int, inputs_left: int, piece_limit: int) -> None:
        self.index = index
        """Number of this scheduler call in its engine, from 0."""
        self.tokens_left = tokens_left
        """max_num_scheduled_tokens; what is left of it as sequences are added."""
        self.inputs_left = inputs_left
        """max_num_batched_tokens, likewise; draft slots are paid from it as well."""
        self.piece_limit = piece_limit
        """Longest piece that any sequence may get."""
        self.sequences: list[Sequence] = []
        self.scheduled_lens: list[int] = []
        """Tokens that each sequence processes, its drafts included."""
        self.draft_lens: list[int] = []
        """Drafts among them."""
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
        self.num_running_scheduled = 0
        """Sequences in the plan that ran before it."""
        self.has_chunk = False
        """Whether a running sequence came into this step in the middle of its prefill."""

    def withdraw(self, sequence: Sequence) -> int | None:
        """Take a sequence back out; return what it had been given, None if it was not in."""
        if sequence not in self.sequences:
            return None
        position = self.sequences.index(sequence)
        del self.sequences[position]
        del self.draft_lens[position]
        scheduled_len = self.scheduled_lens.pop(position)
        self.partial.discard(sequence)
        self.prefill_lens.pop(sequence, None)
        return scheduled_len

    def count_tokens(self) -> None:
        """Add up the tokens of a complete plan; the sequences have already been advanced."""
        self.batched_tokens = sum(self.scheduled_lens)
        ends = sum(sequence.computed_len for sequence in self.sequences)
        self.context_tokens = ends - self.batched_tokens
