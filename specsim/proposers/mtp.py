"""Multi-token prediction heads as the drafter."""

from typing import Literal, final

from specsim.proposers.base import Proposer


@final
class Mtp(Proposer):
    """The model's own multi-token prediction head drafts (DeepSeek-AI 2024, "DeepSeek-V3").

    The scheduler treats it as it treats `Eagle`, but where the target's layers attend in several
    ways; the head comes with the target's weights.
    """

    method: Literal["mtp"] = "mtp"
    drops_last_hit = True
    drops_in_last_group = True
