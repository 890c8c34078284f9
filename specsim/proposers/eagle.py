"""EAGLE-type heads as the drafter."""

from typing import Literal, final

from specsim.proposers.base import Proposer


@final
class Eagle(Proposer):
    """A head of one layer drafts from the target's hidden states (Li et al. 2024, "EAGLE").

    Not to be confused with `Medusa`, whose heads each draft one position from the same state: an
    EAGLE head runs once per drafted token and sees the tokens that it drafted before.
    """

    method: Literal["eagle"] = "eagle"
    drops_last_hit = True
