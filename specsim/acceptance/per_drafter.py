"""An acceptance model for each of several drafters."""

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
