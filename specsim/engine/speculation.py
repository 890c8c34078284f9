"""Speculation: the policy, the proposer and the acceptance model of one engine, at work."""

from dataclasses import dataclass, field
from typing import Any

from specsim.engine.plan import StepPlan
from specsim.engine.sequence import Sequence
from specsim.policies.base import Policy
from specsim.proposers.base import Proposer
from specsim.step import BatchView, StepLoad, StepOutcome

__all__ = ["Speculation"]


@dataclass
class Speculation:
    """Who drafts how much, and what survives."""

    policy: Policy
    memory: Any
    """From ``policy.start``; this engine's own."""
    max_draft_len: int
    """Longest draft, tokens; 0 without speculation."""
    proposer: Proposer | None = None
    survival_tables: list[bytes] = field(default_factory=list)
    """By request index: the fate of every draft that could be made (`Acceptance`)."""

    def __post_init__(self) -> None:
        # Asked at every step, the same answer every time.
        self._is_dynamic = self.policy.is_dynamic
        self._observes = self.policy.observes
        self._offers_all = self.proposer is None or self.proposer.always_offers_all

    def prepare(self, sequence: Sequence) -> None:
        """Give a new sequence its survival table, moved up to count from the first prompt token.

        It is one position longer than the output: a step may still be in flight for a sequence
        that has ended.
        """
        if self.max_draft_len:
            table = self.survival_tables[sequence.index]
            sequence.survival_lens = bytes(sequence.prompt_len) + table + b"\0"

    def verify(self, plan: StepPlan) -> list[int]:
        """Return the accepted length of each sequence of a step that is being executed.

        Parameters
        ----------
        plan : StepPlan
            Every earlier step has been updated, so output positions are known.

        Returns
        -------
        list of int, tokens
        """
        if not self.max_draft_len:
            return [0] * len(plan.sequences)
        draft_lens = plan.draft_lens
        accepted_lens = [s.survival_lens[s.known_len] for s in plan.sequences]
        if draft_lens.count(self.max_draft_len) < len(draft_lens):
            accepted_lens = list(map(min, accepted_lens, draft_lens))
        for sequence in plan.padded:
            accepted_lens[plan.sequences.index(sequence)] = 0
        return accepted_lens

    def observe(self, plan: StepPlan, accepted_lens: list[int]) -> None:
        """Tell the policy what became of the drafts of a step."""
        if self._observes:
            requests = [sequence.index for sequence in plan.sequences]
            self.policy.observe(StepOutcome(requests, plan.draft_lens, accepted_lens), self.memory)

    def decide(
        self, plan: StepPlan, load: StepLoad, accepted_lens: list[int] | None
    ) -> int | list[int]:
        """Return the draft lengths that the policy asks for at the end of a step."""
        if not self._is_dynamic or not plan.sequences:
            return self.max_draft_len
        batch = BatchView(plan.sequences, load, accepted_lens)
        return self.policy.draft_lens(batch, self.memory)

    def offered(self, plan: StepPlan, asked_lens: int | list[int]) -> int | list[int]:
        """Return the draft lengths that the proposer comes up with; positions are known."""
        proposer = self.proposer
        if self._offers_all or proposer is None:
            return asked_lens
        lens = [asked_lens] * len(plan.sequences) if isinstance(asked_lens, int) else asked_lens
        return [
            proposer.offered_len(sequence.index, sequence.output_len, asked_len)
            for sequence, asked_len in zip(plan.sequences, lens, strict=True)
        ]
