"""EAGLE-3 heads as the drafter."""

from typing import Literal, final

from specsim.proposers.base import Proposer


@final
class Eagle3(Proposer):
    """A head of one layer drafts from several of the target's layers (Li et al. 2025, "EAGLE-3").

    The scheduler treats it as it treats `Eagle`; acceptance and costs differ.
    """

    method: Literal["eagle3"] = "eagle3"
    drops_last_hit = True
