"""TurboSpec: goodput with a verification length of its own, and draft prefills left out."""

from dataclasses import dataclass
from math import inf
from typing import Literal, final

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from specsim.core.step import BatchView, DraftView, Ints
from specsim.decisions.policy import ServerView
from specsim.policies.parts.budget import best_common_len
from specsim.policies.parts.estimate import AlphaWindow, expected_len
from specsim.policies.parts.trials import Weighing, WeighsDrafter, gives_up


@dataclass(slots=True)
class _Memory(Weighing[AlphaWindow]):
    disable_size: float = inf
    """Batch size at which nothing was proposed any more."""
    num_skips: int = 0


@final
class TurboSpec(WeighsDrafter[_Memory]):
    """Proposed length and verification length by goodput, each where it is free to move.

    Liu et al. (2025), "TurboSpec", arXiv 2406.14066v3, section 4.2, listings 1 and 2. A draft model
    or head is asked for the k of highest goodput and all of it is verified. A method that only
    looks up is always asked for the longest draft, since length costs it nothing, and goodput
    decides how many of the tokens found are verified. Whenever k = 0 is chosen, the batch size is
    remembered: prefills in a larger batch leave out the drafter's prefill, and such a request is
    never drafted for; every `reset_steps` times the threshold is forgotten. The batch is what
    decodes once the prompts have been read: the listing's own step of prompts alone is of a few
    requests, and would never exceed a threshold in decoding ones. As in `goodput`, k = 0 is a
    candidate.
    """

    kind: Literal["turbospec"] = "turbospec"
    window: int = Field(default=50, ge=1)
    """Steps that the moving average of alpha goes over."""
    prior: float = Field(default=0.7, ge=0, le=1)
    """alpha before anything has been seen."""
    reset_steps: int = Field(default=100, ge=1)
    """Skipped prefills after which the threshold is forgotten (listing 1, RESETSTEPS)."""

    def start(self, server: ServerView) -> _Memory:
        """Return the prior and no threshold."""
        return _Memory(server, AlphaWindow(self.window, self.prior), self.window)

    def draft_lens(self, batch: BatchView, memory: _Memory) -> int | Ints:
        """Return the proposed length: fixed for lookup methods, else that of highest goodput."""
        server = memory.server
        if not server.drafts_by_model:
            return server.max_draft_len
        load = batch.decode_load()
        if not load.num_requests:
            return 0
        alpha = memory.alphas.alpha
        k = best_common_len(server, load, alpha, batch.free_slots)
        if k == 0:
            memory.disable_size = batch.size
        emitted = load.num_requests * expected_len(alpha, k)
        return memory.trials.settle(batch, load, k, emitted, memory.alphas)

    def verify_lens(self, batch: BatchView, drafts: DraftView, memory: _Memory) -> Ints:
        """Return the verification length: all of a model's draft, or as goodput says."""
        server, draft_lens = memory.server, drafts.draft_lens
        if server.drafts_by_model:
            return draft_lens
        # Only sequences with a match have anything to verify; the rest is there in any case, and
        # so is the drafting, whatever is verified of it.
        best_k, best_rate, alpha = 0, 0.0, memory.alphas.alpha
        tokens = batch.load.batched_tokens - int(draft_lens.sum())
        expected = float(batch.size - np.count_nonzero(batch.in_prefill))
        gain, longer, counts = 1.0, len(draft_lens), np.bincount(draft_lens).tolist()
        for k in range(len(counts)):
            if k:
                longer -= counts[k - 1]
                gain *= alpha
                tokens += longer
                expected += longer * gain
            load = batch.load._replace(batched_tokens=tokens)
            rate = expected / server.step_time(load, server.max_draft_len)
            if rate > best_rate:
                best_k, best_rate = k, rate
        verified: Ints = np.minimum(draft_lens, best_k)
        return verified

    def drops(self, batch: BatchView, memory: _Memory) -> NDArray[np.bool_] | None:
        """Return whom is new, where the batch is too large for speculation to be worth preparing.

        Everybody where the drafter is given up.
        """
        if gives_up(memory.trials):
            return np.ones(batch.size, dtype=np.bool_)
        new = batch.is_admitted
        if new is None or not new.any() or batch.num_running <= memory.disable_size:
            return None
        memory.num_skips += 1
        if memory.num_skips % self.reset_steps == 0:
            memory.disable_size = inf
        return new
