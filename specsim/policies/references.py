"""References for every other policy: lengths at random, and those of one that knows the future."""

from typing import Literal, final

import numpy as np

from specsim.core.step import BatchView, Ints
from specsim.policies.base import OraclePolicy, Policy, ServerView


@final
class Random(Policy):
    """Guess each accepted length at random and draft just that; goodput plays no part.

    The lower reference of Liu et al. (2024), "SmartSpec", section 7.2.1, fig. 14.
    """

    kind: Literal["random"] = "random"

    def draft_lens(self, batch: BatchView, memory: ServerView) -> Ints:
        """Return a length from 0 to the longest for each sequence, all equally likely."""
        return memory.rng.integers(0, memory.max_draft_len + 1, batch.size)


@final
class OracleGoodput(OraclePolicy):
    """Per sequence, the draft length that maximises the goodput of its verification.

    With accepted lengths known, a draft is never longer than what survives of it and is still
    wanted. Every surviving draft token adds one emitted token at the same cost, so for each limit
    v on the draft length the best choice is min(v, survival), and the best v is found by trying
    all. Liu et al. (2024), "SmartSpec", section 7.2.1: an oracle that calculates goodput from the
    actual accepted lengths.

    It is greedy, one step at a time: under continuous batching another policy can beat it.
    """

    kind: Literal["oracle"] = "oracle"

    def draft_lens(self, batch: BatchView, memory: ServerView) -> Ints:
        """Return the lengths of highest goodput for the step that will verify them."""
        assert memory.oracle is not None
        load = batch.decode_load()
        useful_lens = memory.oracle.useful_lens(batch.requests, batch.output_lens)
        useful_lens[batch.in_prefill] = 0
        best, best_rate = np.zeros(batch.size, dtype=np.int64), 0.0
        if not load.num_requests:
            return best
        longest = min(memory.max_draft_len, int(useful_lens.max()))
        for limit in range(longest + 1):
            lens = np.minimum(useful_lens, limit)
            emitted_tokens = load.num_requests + int(lens.sum())
            verified = load._replace(batched_tokens=emitted_tokens)
            rate = emitted_tokens / memory.step_time(verified, lens)
            if rate > best_rate:
                best, best_rate = lens, rate
        return best
