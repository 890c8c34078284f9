"""Prompt lookup as the drafter."""

from typing import ClassVar, Literal, Self, final

from pydantic import Field, model_validator

from specsim.proposers.base import Proposer

__all__ = ["Ngram"]


@final
class Ngram(Proposer):
    """Drafts what followed the last n tokens where they stood before (Saxena 2023, prompt lookup).

    Here the method is statistical: it always finds a match of full length, and the acceptance
    model says how much of it survives. It costs host time only, reserves no KV slots, and vLLM
    does not schedule asynchronously with it.
    """

    method: Literal["ngram"] = "ngram"
    prompt_lookup_max: int = Field(default=5, ge=1)
    """Longest n-gram to match, tokens."""
    prompt_lookup_min: int = Field(default=5, ge=1)
    """Shortest n-gram to match, tokens."""
    supports_async: ClassVar[bool] = False
    writes_lookahead: ClassVar[bool] = False

    @model_validator(mode="after")
    def _check_order(self) -> Self:
        if self.prompt_lookup_min > self.prompt_lookup_max:
            raise ValueError(
                f"prompt_lookup_min ({self.prompt_lookup_min}) must not exceed "
                f"prompt_lookup_max ({self.prompt_lookup_max})"
            )
        return self
