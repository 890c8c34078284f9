"""What every proposer says of itself: who drafts, and what that takes from the engine."""

from collections.abc import Sequence
from itertools import accumulate
from typing import Annotated, Any, ClassVar

from pydantic import Field

from specsim.acceptance.base import MAX_DRAFT_LEN
from specsim.core.families import Member
from specsim.core.request import Request
from specsim.core.rng import Luck
from specsim.lookup import Lookup

__all__ = ["LookupProposer", "Proposer", "offers_by_table", "recorded_offers", "split_rows"]

DraftLen = Annotated[int, Field(ge=1, le=MAX_DRAFT_LEN)]


class Proposer(Member):
    """A drafting method, configured by vLLM's own ``speculative_config``.

    Its constants are vLLM 0.32.0's: ``config/vllm.py num_lookahead_tokens``,
    ``config/speculative.py max_num_new_slots_for_drafting, use_eagle_block_drop``.
    """

    method: str
    examples: ClassVar[tuple[dict[str, Any], ...]] = ({"num_speculative_tokens": 3},)
    num_speculative_tokens: DraftLen
    """Longest draft, tokens; a policy chooses at or below it."""
    num_speculative_tokens_per_batch_size: tuple[tuple[int, int, int], ...] | None = None
    """vLLM's batch-size schedule, ranges (first, last, k); the policy ``schedule`` follows it."""
    model: str | None = None
    """Name of the draft model or head; for the record, costs come from the profile."""
    disable_mqa_scorer: bool = False
    """vLLM V0 only: verify by batch expansion, each draft token as a sequence of its own that
    reads the whole context again (0.6 ``spec_decode/batch_expansion.py``)."""

    own_fields: ClassVar[frozenset[str]] = frozenset({"disable_mqa_scorer"})
    """Fields that are specsim's own, unknown to vLLM's ``speculative_config`` of today."""
    draft_slots: ClassVar[int] = 0
    """Input slots per scheduled sequence, on top of its tokens."""
    drops_last_hit: ClassVar[bool] = False
    """Whether the last block of a prefix-cache hit is recomputed for its hidden states."""
    statistical_fields: ClassVar[frozenset[str]] = frozenset()
    """Fields that say how it does without token ids; they have no place beside real drafts."""
    supports_async: ClassVar[bool] = True
    """Whether vLLM schedules asynchronously with it."""
    writes_lookahead: ClassVar[bool] = True
    """Whether drafting writes KV entries ahead of the known tokens."""
    drafts_trees: ClassVar[bool] = False
    """Whether it can draft several candidates per position."""
    is_model: ClassVar[bool] = True
    """Whether a model drafts, so that length costs time."""
    has_confidence: ClassVar[bool] = True
    """Whether it knows a probability of each token that it drafts."""
    has_prefill: ClassVar[bool] = True
    """Whether it has to read a prompt before it can draft for it."""

    needs_tokens: ClassVar[bool] = False
    """Whether it has a token-level mode only."""
    has_fallback: ClassVar[bool] = False
    """Whether another drafter stands behind it, which the policy may prefer."""
    drafts_first_token: ClassVar[bool] = True
    """Whether it drafts before the first output token is known. vLLM never does; Arctic
    Inference's simulator, from which the published figures of suffix decoding come, does."""

    @property
    def parts(self) -> "tuple[Proposer, ...]":
        """The drafter; or the lookup and the one that stands behind it."""
        return (self,)

    @classmethod
    def has_lookup(cls) -> bool:
        """Return whether it has a token-level mode."""
        return cls.make_lookup is not Proposer.make_lookup

    def check_real_drafts(self) -> None:
        """Refuse a field that real drafts leave without effect.

        Raises:
            ValueError: Saying which.
        """
        for name in sorted(self.statistical_fields):
            if getattr(self, name) != type(self).model_fields[name].default:
                raise ValueError(
                    f"{name} = {getattr(self, name)} has no effect where drafts are real tokens; "
                    "leave it out"
                )

    @property
    def cost_keys(self) -> tuple[str, ...]:
        """Entries of the profile's ``drafts`` that hold its costs, one for each drafter."""
        return (self.method,)

    def lookahead_len(self, max_draft_len: int) -> int:
        """Return the extra KV slots that every sequence holds, in tokens.

        Args:
            max_draft_len: In tokens.
        """
        return max_draft_len if self.writes_lookahead else 0

    def make_lookup(self) -> Lookup | None:
        """Return its token-level mode, with nothing in it yet; None if it has none.

        Raises:
            SpecsimError: A file that it drafts from cannot be read.
        """
        return None

    def start(self, requests: Sequence[Request], luck: Luck, max_draft_len: int) -> Any:
        """Return a fresh memory for one run.

        Args:
            requests: Of the run, by index.
            luck: Indexed by request and output position.
            max_draft_len: Longest draft that it will be asked for, in tokens.

        Returns:
            Whatever `offered_len` wants to be given; None if it always offers what it is asked for,
            so that it need not be called.
        """
        return None

    def offered_len(self, request: int, position: int, draft_len: int, memory: Any) -> int:
        """Return how many drafts the method finds where it is asked for `draft_len`, in tokens.

        Args:
            request: Index of the request.
            position: Output tokens known.
            draft_len: In tokens.
            memory: From `start`.
        """
        return draft_len


class LookupProposer(Proposer):
    """A method that looks drafts up in text: host time only, no KV slots, no prompt to read.

    vLLM schedules none of its own ones (ngram on the CPU, suffix) asynchronously.
    """

    supports_async: ClassVar[bool] = False
    writes_lookahead: ClassVar[bool] = False
    is_model: ClassVar[bool] = False
    has_prefill: ClassVar[bool] = False

    def offered_len(self, request: int, position: int, draft_len: int, memory: list[bytes]) -> int:
        """Return what is asked for, as far as anything was found."""
        return min(draft_len, memory[request][position])


def offers_by_table(proposer: Proposer | None) -> bool:
    """Return whether what a proposer offers lies in tables, as that of `LookupProposer` does."""
    return getattr(type(proposer), "offered_len", None) is LookupProposer.offered_len


def recorded_offers(requests: Sequence[Request]) -> list[bytes] | None:
    """Return what a lookup came up with, by request and output position; None if not recorded."""
    found = [request.offered_lens for request in requests if request.offered_lens is not None]
    return found if found and len(found) == len(requests) else None


def split_rows(data: bytes, counts: Sequence[int]) -> list[bytes]:
    """Cut bytes that lie end to end into rows of the given lengths."""
    ends = list(accumulate(counts))
    return [data[end - count : end] for end, count in zip(ends, counts, strict=True)]
