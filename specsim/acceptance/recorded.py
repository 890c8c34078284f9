"""Acceptance that was recorded: as lengths, or as the tokens of the answer."""

from collections.abc import Sequence
from typing import Literal, final

import numpy as np

from specsim.acceptance.base import Acceptance
from specsim.core.errors import TraceError
from specsim.core.figures import percent
from specsim.core.request import Request
from specsim.core.rng import Luck

_FEW = 0.05  # of the positions; published records end a few tokens before their answers


@final
class Recorded(Acceptance):
    """The accepted lengths of a token trace, counterfactual at every output position.

    Reads the column ``acc_<proposer>`` of the trace (SpecDecode-Bench, arXiv 2601.11580). Where a
    record is shorter than the output, positions beyond its end accept nothing.
    """

    kind: Literal["recorded"] = "recorded"
    examples = ({"proposer": "eagle"},)
    proposer: str
    """Whose record: ``eagle`` reads ``acc_eagle``."""

    def survival_lens(
        self, requests: Sequence[Request], luck: Luck, max_draft_len: int
    ) -> list[bytes]:
        """Return the records, cut to the longest draft."""
        cut = bytes(min(length, max_draft_len) for length in range(256))
        return [
            self._record(request)[: request.output_len]
            .translate(cut)
            .ljust(request.output_len, b"\0")
            for request in requests
        ]

    def doubts(self, requests: Sequence[Request], draft_len: int) -> list[str]:
        """Say where records may end because the recorded drafts did, or before the answers do."""
        own = [request.recorded_lens.get(self.proposer, b"") for request in requests]
        return self._too_short(requests, own) + self._cut_off(own, draft_len)

    def _too_short(self, requests: Sequence[Request], own: list[bytes]) -> list[str]:
        both = zip(requests, own, strict=True)
        missing = sum(max(0, request.output_len - len(record)) for request, record in both)
        share = missing / max(1, sum(request.output_len for request in requests))
        if share <= _FEW:
            return []
        return [
            f"acceptance 'recorded': '{self.proposer}' has no record of {percent(share)} of the "
            "output positions, at which nothing is accepted; record one at every position"
        ]

    def _cut_off(self, own: list[bytes], draft_len: int) -> list[str]:
        records = b"".join(own)
        longest = np.frombuffer(records, np.uint8).max(initial=0)
        if longest >= draft_len:
            return []
        return [
            f"acceptance 'recorded': no draft of '{self.proposer}' was recorded to survive longer "
            f"than {longest} tokens, and drafts are of up to {draft_len}; if the recorded ones "
            "were shorter, more survives in truth"
        ]

    def _record(self, request: Request) -> bytes:
        record = request.recorded_lens.get(self.proposer)
        if record is None:
            known = ", ".join(sorted(request.recorded_lens)) or "none"
            raise TraceError(
                f"request {request.id or request.index} has no recorded acceptance "
                f"'acc_{self.proposer}' (it has: {known}); use a token trace that carries it, "
                "or another acceptance model"
            )
        return record


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
