"""Suffix decoding as the drafter."""

from typing import Any, Literal, Self, final

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from specsim.acceptance.base import MAX_DRAFT_LEN
from specsim.lookup import Lookup, load
from specsim.proposers.base import LookupProposer


@final
class Suffix(LookupProposer):
    """Drafts from suffix trees of this and earlier outputs (Oliaro et al. 2024, "SuffixDecoding").

    On token ids (acceptance ``token_match``) it is Arctic Inference's, as vLLM uses it. Without
    them the length of the pattern that the tree recognises is geometric with mean `mean_match_len`,
    independently at every output position, and a draft is at most `suffix_decoding_max_spec_factor`
    times as long (there, MAX_SPEC = factor * match length). The acceptance model says how much of
    it survives.
    """

    method: Literal["suffix"] = "suffix"
    mean_match_len: float | None = Field(default=None, ge=0)
    """Mean length of the recognised pattern, tokens; by default long enough for any draft."""
    suffix_decoding_max_spec_factor: float = Field(default=1.0, gt=0)
    """Draft tokens per token of the pattern."""
    suffix_decoding_max_tree_depth: int = Field(default=24, ge=2, le=4096)
    """Longest pattern and draft together that the trees know, tokens."""
    suffix_decoding_min_token_prob: float = Field(default=0.1, ge=0, le=1)
    """Estimated probability below which a draft ends."""
    suffix_decoding_max_cached_requests: int = Field(default=10_000, ge=-1)
    """Answers that the global tree remembers, first in, first out; 0: none, -1: no limit."""
    use_tree: bool = False
    """Draft trees, not chains; vLLM verifies chains."""
    use_global_tree: bool = True
    """Draft from earlier answers, too."""
    use_local_tree: bool = True
    """Draft from the request's own prompt and answer, too."""
    statistical_fields = frozenset({"mean_match_len"})

    @model_validator(mode="before")
    @classmethod
    def _fill_in(cls, data: Any) -> Any:
        """Let the depth of the trees bound the draft, as vLLM does (``config/speculative.py``)."""
        if not isinstance(data, dict) or "num_speculative_tokens" in data:
            return data
        depth = data.get("suffix_decoding_max_tree_depth", 24)
        if type(depth) is not int:  # it is refused in its own name
            return {"num_speculative_tokens": 1, **data}
        return {"num_speculative_tokens": max(1, min(depth, MAX_DRAFT_LEN)), **data}

    @model_validator(mode="after")
    def _check_sources(self) -> Self:
        is_global = self.use_global_tree and self.suffix_decoding_max_cached_requests != 0
        if not is_global and not self.use_local_tree:
            raise ValueError(
                "use_local_tree = False leaves nothing to draft from, since the global tree is "
                "off, too; switch on one of them (the global one with use_global_tree and with "
                "suffix_decoding_max_cached_requests other than 0)"
            )
        return self

    def make_lookup(self) -> Lookup:
        """Return empty trees."""
        return load("suffix", "SuffixLookup")(
            max_depth=self.suffix_decoding_max_tree_depth,
            max_spec_factor=self.suffix_decoding_max_spec_factor,
            min_token_prob=self.suffix_decoding_min_token_prob,
            max_cached_requests=self.suffix_decoding_max_cached_requests,
            use_tree=self.use_tree,
            use_global_tree=self.use_global_tree,
            use_local_tree=self.use_local_tree,
        )

    @property
    def always_finds(self) -> bool:
        """Whether matches are long enough for any draft."""
        return self.mean_match_len is None

    def found_lens(self, uniforms: NDArray[np.float64], max_draft_len: int) -> NDArray[np.float64]:
        """Return drafts as long as the matches allow."""
        assert self.mean_match_len is not None
        longer = self.mean_match_len / (1.0 + self.mean_match_len)  # P(the match goes on)
        match_lens = np.floor(np.log1p(-uniforms) / np.log(longer)) if longer else 0.0 * uniforms
        return np.minimum(self.suffix_decoding_max_spec_factor * match_lens, max_draft_len)
