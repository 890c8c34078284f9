"""A fixed draft length."""

from typing import Annotated, Any, Literal, final

from pydantic import BeforeValidator, Field
from pydantic_core import PydanticCustomError

from specsim.core.step import BatchView
from specsim.decisions.policy import Policy, ServerView


def _some(given: Any) -> Any:
    if given == 0:
        raise PydanticCustomError("no_draft", "Should be at least 1; policy off drafts nothing")
    return given


@final
class Static(Policy[ServerView]):
    """Draft k tokens for every sequence in every step: a server started with that k.

    Leviathan, Kalman, Matias (2023), "Fast Inference from Transformers via Speculative Decoding".
    """

    kind: Literal["static"] = "static"
    examples = ({"k": 3}, {})
    k: Annotated[int | None, BeforeValidator(_some)] = Field(default=None, ge=1)
    """Draft length, tokens; by default num_speculative_tokens."""

    def max_draft_len(self, num_speculative_tokens: int) -> int:
        """Return k: look-ahead slots and padding are those of a server started with it."""
        k = num_speculative_tokens if self.k is None else self.k
        if k > num_speculative_tokens:
            raise ValueError(
                f"policy.k = {k} exceeds engine.speculative_config.num_speculative_tokens = "
                f"{num_speculative_tokens}; raise that, it is the longest draft of any policy"
            )
        return k

    @property
    def is_dynamic(self) -> bool:
        return False

    def draft_lens(self, batch: BatchView, memory: ServerView) -> int:
        return memory.max_draft_len
