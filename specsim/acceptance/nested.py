"""Models made of other models: per drafter, and a change during the run."""

from collections.abc import Sequence
from typing import Literal, final

from pydantic import Field

from specsim.acceptance import NestedAcceptance
from specsim.acceptance.base import Acceptance
from specsim.core.errors import ConfigError
from specsim.core.request import Request
from specsim.core.rng import Luck


@final
class PerDrafter(Acceptance):
    """Which drafts survive depends on who made them: one acceptance model per draft model."""

    kind: Literal["per_drafter"] = "per_drafter"
    examples = ({"models": {"small": {"kind": "bernoulli", "alpha": 0.6}}},)
    models: dict[str, NestedAcceptance] = Field(min_length=1)
    """By name of the drafter, as in ``speculative_config.models``."""

    def of_drafter(self, name: str) -> Acceptance:
        """Return the acceptance model of a drafter; a ConfigError if it has none."""
        if name not in self.models:
            raise ConfigError(
                f"acceptance.models has no '{name}' (it has: {', '.join(self.models)}); give each "
                "of engine.speculative_config.models an acceptance model"
            )
        return self.models[name]

    def survival_lens(
        self, requests: Sequence[Request], luck: Luck, max_draft_len: int
    ) -> list[bytes]:
        """Return the tables of the only drafter; a ConfigError if there are several."""
        if len(self.models) > 1:
            raise ConfigError(
                f"acceptance 'per_drafter' has models for {', '.join(self.models)}, but the method "
                "of engine.speculative_config has one drafter; use method draft_models"
            )
        [model] = self.models.values()
        return model.survival_lens(requests, luck, max_draft_len)


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
