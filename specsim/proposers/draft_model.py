"""A small language model as the drafter."""

from typing import Literal, final

from specsim.proposers.base import Proposer


@final
class DraftModel(Proposer):
    """A separate, smaller model drafts k tokens in k forward passes of its own.

    Leviathan, Kalman, Matias (2023), "Fast Inference from Transformers via Speculative Decoding".
    Its weights and its KV cache take memory from the block pool.
    """

    method: Literal["draft_model"] = "draft_model"
    draft_slots = 1
