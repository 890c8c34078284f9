"""Acceptance by what the model really said."""

from collections.abc import Sequence
from typing import Literal, final

from specsim.acceptance.base import Acceptance
from specsim.core.request import Request
from specsim.core.rng import Luck


@final
class TokenMatch(Acceptance):
    """A draft token is accepted if it is the next token of the recorded answer.

    Verification is greedy: the longest prefix of the draft that agrees (Leviathan et al. 2023, at
    temperature 0). It needs a workload with token ids, and a method that drafts without a model;
    then drafts, their lengths and what survives of them are real, found out as the run goes on.
    """

    kind: Literal["token_match"] = "token_match"
    verifies_tokens = True

    def survival_lens(
        self, requests: Sequence[Request], luck: Luck, max_draft_len: int
    ) -> list[bytes]:
        """Return tables of zeros: what survives is known once something has been drafted."""
        return [bytes(request.output_len) for request in requests]
