"""Medusa heads as the drafter."""

from typing import Literal, final

from specsim.proposers.base import Proposer


@final
class Medusa(Proposer):
    """Each head drafts one position from the target's last hidden state (Cai et al. 2024).

    All heads run at once, whatever is used of them. ``num_speculative_tokens`` is their number. As
    in vLLM, each offers its first candidate, so drafts are chains; the policy ``medusa_tree`` asks
    for more. vLLM does not schedule asynchronously with it; the heads keep no KV cache.
    """

    method: Literal["medusa"] = "medusa"
    supports_async = False
    drafts_trees = True
    has_prefill = False
