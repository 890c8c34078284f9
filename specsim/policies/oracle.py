"""The policy that knows which drafts will survive."""

from typing import Literal, final

from specsim.policies.base import OraclePolicy, ServerView
from specsim.step import BatchView, StepLoad

__all__ = ["OracleGoodput"]


@final
class OracleGoodput(OraclePolicy):
    """Per sequence, the draft length that maximises the goodput of its verification.

    With accepted lengths known, a draft is never longer than what survives of it and is still
    wanted. Every surviving
    draft token adds one emitted token at the same cost, so for each limit v on the draft length
    the best choice is min(v, survival), and the best v is found by trying all. Liu et al. (2024),
    "SmartSpec", section 7.2.1: an oracle that calculates goodput from the actual accepted lengths.

    It is greedy, one step at a time: under continuous batching another policy can beat it.
    """

    kind: Literal["oracle"] = "oracle"

    def draft_lens(self, batch: BatchView, memory: ServerView) -> list[int]:
        """Return the lengths of highest goodput for the step that will verify them."""
        assert memory.oracle is not None
        survivals = [
            0 if in_prefill else memory.oracle.useful_len(request, position)
            for request, position, in_prefill in zip(
                batch.requests, batch.output_lens, batch.in_prefill, strict=True
            )
        ]
        context_tokens = sum(batch.known_lens) - batch.size
        longest = min(memory.max_draft_len, max(survivals, default=0))
        candidates = [[min(v, survival) for survival in survivals] for v in range(longest + 1)]

        def goodput(draft_lens: list[int]) -> float:
            emitted_tokens = sum(draft_lens) + batch.size
            load = StepLoad(context_tokens, emitted_tokens, batch.size)
            return emitted_tokens / memory.step_time(load, draft_lens)

        return max(candidates, key=goodput)
