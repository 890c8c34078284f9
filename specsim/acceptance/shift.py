"""Acceptance that changes during the run."""

from collections.abc import Sequence
from typing import Literal, final

from pydantic import Field

from specsim.acceptance import NestedAcceptance
from specsim.acceptance.base import Acceptance
from specsim.core.request import Request
from specsim.core.rng import Luck


@final
class Shift(Acceptance):
    """Requests from a certain one on follow another model, such as when the traffic changes."""

    kind: Literal["shift"] = "shift"
    examples = (
        {
            "at_request": 500,
            "before": {"kind": "bernoulli", "alpha": 0.8},
            "after": {"kind": "bernoulli", "alpha": 0.4},
        },
    )
    at_request: int = Field(ge=0)
    """Index of the first request that follows `after`, in the order of arrival."""
    before: NestedAcceptance
    after: NestedAcceptance

    def of_drafter(self, name: str) -> "Shift":
        """Return the shift between what both models say of a drafter."""
        models = {"before": self.before.of_drafter(name), "after": self.after.of_drafter(name)}
        return self.model_copy(update=models)

    def survival_lens(
        self, requests: Sequence[Request], luck: Luck, max_draft_len: int
    ) -> list[bytes]:
        """Ask each model about its own requests."""
        early = [request for request in requests if request.index < self.at_request]
        late = [request for request in requests if request.index >= self.at_request]
        asked = ((self.before, early), (self.after, late))
        tables = {
            request.index: table
            for model, own in asked
            if own
            for request, table in zip(
                own, model.survival_lens(own, luck, max_draft_len), strict=True
            )
        }
        return [tables[request.index] for request in requests]
