"""Several small language models, of which each request gets one."""

from typing import Literal, Self, final

from pydantic import Field, model_validator

from specsim.proposers.base import Proposer


@final
class DraftModels(Proposer):
    """Draft models of different sizes beside each other; the policy gives each request one.

    "A Drop-in Solution for On-the-fly Adaptation of Speculative Decoding", section 5. vLLM serves
    one draft model; this is several of its ``draft_model``, all of them in memory, each running
    for its own requests only. The profile has a drafting cost under each model's name, and the
    acceptance model ``per_drafter`` an acceptance.
    """

    method: Literal["draft_models"] = "draft_models"
    examples = ({"models": ["opt-125m", "opt-1.3b"], "num_speculative_tokens": 3},)
    models: tuple[str, ...] = Field(min_length=2)
    """Names in the profile's ``drafts``, smallest first."""
    draft_slots = 1

    @model_validator(mode="after")
    def _check_names(self) -> Self:
        if len(set(self.models)) < len(self.models):
            raise ValueError(f"models {list(self.models)}: each may appear once")
        return self

    @property
    def cost_keys(self) -> tuple[str, ...]:
        """Names of the models."""
        return self.models
