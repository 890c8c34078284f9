"""No speculation."""

from typing import Any, Literal, final

from specsim.core.step import BatchView
from specsim.decisions.policy import Policy


@final
class Off(Policy):
    """Never draft: a server started without ``speculative_config``, the baseline of comparisons.

    No look-ahead slots, no draft weights; not to be confused with ``static`` at k = 0, which is
    not allowed, or with a dynamic policy that happens to choose 0.
    """

    kind: Literal["off"] = "off"

    def max_draft_len(self, num_speculative_tokens: int) -> int:
        return 0

    @property
    def is_dynamic(self) -> bool:
        return False

    def draft_lens(self, batch: BatchView, memory: Any) -> int:
        return 0
