"""A lookup with another drafter behind it."""

from typing import Any, Literal, Self, final

from pydantic import model_validator

from specsim.lookup import Lookup
from specsim.proposers import PROPOSERS, NestedProposer
from specsim.proposers.base import Proposer


@final
class Hybrid(Proposer):
    """Two drafters side by side; the policy picks one per request and step.

    The lookup always drafts. Where the policy has no use for what it found, the fallback drafts,
    and costs what it costs: Oliaro et al. (2024), "SuffixDecoding", section "hybrid". Acceptance is
    ``token_match`` for the lookup and whatever the fallback needs for that, under ``per_drafter``.
    vLLM has nothing of the kind; KV room is reserved as for the fallback.
    """

    method: Literal["hybrid"] = "hybrid"
    examples = (
        {
            "lookup": {"method": "suffix"},
            "fallback": {"method": "eagle3", "num_speculative_tokens": 3},
        },
    )
    lookup: NestedProposer
    """Such as ``{method: suffix}``."""
    fallback: NestedProposer
    """Such as ``{method: eagle3, num_speculative_tokens: 3}``."""
    supports_async = False
    has_fallback = True

    @model_validator(mode="before")
    @classmethod
    def _fill_in(cls, data: Any) -> Any:
        """Let the longer of both drafts bound the draft."""
        if not isinstance(data, dict) or "num_speculative_tokens" in data:
            return data
        both = [PROPOSERS.parse(data[name]) for name in ("lookup", "fallback") if name in data]
        longest = max((drafter.num_speculative_tokens for drafter in both), default=1)
        return {"num_speculative_tokens": longest, **data}

    @model_validator(mode="after")
    def _check_drafters(self) -> Self:
        if not self.lookup.has_lookup() or self.lookup.has_fallback:
            raise ValueError(f"lookup: method '{self.lookup.method}' looks nothing up; use suffix")
        if self.fallback.has_fallback or len(self.fallback.cost_keys) > 1:
            raise ValueError(f"fallback: method '{self.fallback.method}' is not a single drafter")
        if self.fallback.method == self.lookup.method:
            raise ValueError(f"fallback: '{self.fallback.method}' drafts already, as the lookup")
        return self

    @property
    def parts(self) -> tuple[Proposer, Proposer]:
        """The lookup and the fallback."""
        return self.lookup, self.fallback

    @property
    def cost_keys(self) -> tuple[str, ...]:
        """The lookup and the fallback."""
        return (*self.lookup.cost_keys, *self.fallback.cost_keys)

    def lookahead_len(self, max_draft_len: int) -> int:
        """Return what the fallback needs."""
        return self.fallback.lookahead_len(self.fallback.num_speculative_tokens)

    def make_lookup(self) -> Lookup | None:
        """Return the token-level mode of the lookup."""
        return self.lookup.make_lookup()
