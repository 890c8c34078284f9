"""The base classes of proposers: how a method drafts, and what it needs from the engine."""

from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, field_validator

from specsim.acceptance.base import MAX_DRAFT_LEN, Rates, split_rows
from specsim.core.blame import is_shipped_class
from specsim.core.families import Member
from specsim.core.request import Request
from specsim.core.rng import Luck
from specsim.core.settings import Settings
from specsim.lookup import Lookup
from specsim.profile import NO_BLOCK, BlockPass


class OwnGpus(Settings):
    """GPUs beside those of the target, which then hold nothing of the drafter, for each replica."""

    profile: str | None = None
    """Profile of the drafter by itself, such as ``h100/llama-3.2-1b``: a draft token takes a
    forward pass of it, and its GPUs are counted. By default the drafting cost of the target's
    profile, on as many GPUs as the target has."""
    overlaps: bool = False
    """If true, the drafter continues the draft that the target is verifying. The new draft is
    discarded unless that whole draft is accepted and the drafter has guessed the bonus token (Liu
    et al. 2025, "PEARL"). If false, it drafts once the target is done."""
    latency_ms: Annotated[float, Field(ge=0)] = 0.0
    """Time from the target's GPUs to the drafter's, one way; a step that drafts takes both ways."""
    bandwidth_gb_s: Annotated[float, Field(gt=0)] = 50.0
    """Bandwidth between these GPUs, 1e9 bytes per second; by default 400 Gbit/s."""
    token_bytes: Annotated[float, Field(ge=0)] = 4.0
    """Bytes sent per draft token: its id; where drafts are verified by sampling, its distribution
    as well, 2 bytes for each token of the vocabulary."""

    @property
    def step_ms(self) -> float:
        """Milliseconds of a step that drafts for the way to the drafter and back."""
        return 2.0 * self.latency_ms

    @property
    def token_us(self) -> float:
        """Microseconds to send one draft token."""
        return self.token_bytes / self.bandwidth_gb_s * 1e-3


_VLLM_FIELDS = {
    *("method", "model", "num_speculative_tokens", "num_speculative_tokens_per_batch_size"),
    *("disable_lookahead_block_hashes", "enable_adaptive_verification"),
    *("rejection_sample_method", "parallel_drafting"),
    *("prompt_lookup_max", "prompt_lookup_min", "suffix_decoding_max_cached_requests"),
    *("suffix_decoding_max_spec_factor", "suffix_decoding_max_tree_depth"),
    "suffix_decoding_min_token_prob",
}
"""Fields of proposers that vLLM 0.33.0's ``config/speculative.py SpeculativeConfig`` has, too."""


class Proposer(Member):
    """A drafting method, configured by vLLM's own ``speculative_config``.

    Its constants are those of vLLM 0.32.0: ``config/vllm.py num_lookahead_tokens``,
    ``config/speculative.py max_num_new_slots_for_drafting, use_eagle_block_drop``.
    """

    method: str
    examples: ClassVar[tuple[dict[str, Any], ...]] = ({"num_speculative_tokens": 3},)
    num_speculative_tokens: Annotated[int, Field(ge=1, le=MAX_DRAFT_LEN)]
    """Longest draft, tokens; of a tree, its depth. Policies choose lengths up to it."""
    num_speculative_tokens_per_batch_size: tuple[tuple[int, int, int], ...] | None = None
    """vLLM's batch-size schedule, ranges (first, last, k); the policy ``schedule`` follows it."""
    model: str | None = None
    """Name of the draft model or head; for the record, costs come from the profile."""
    rejection_sample_method: Literal["standard", "block", "fly"] | None = None
    """vLLM's rule for rejecting drafts (``fly`` since 0.33). The acceptance model must be of the
    same rule: `acceptance.rejection`."""
    enable_adaptive_verification: bool = False
    """Use policy ``adaptive_verification``, with `learns` set except for DSpark, which has a head
    for confidences; for methods that draft with a model."""
    disable_lookahead_block_hashes: bool = False
    """EAGLE and MTP, since vLLM 0.33: find cached prefixes as 0.32 does, without their last
    block."""
    disable_mqa_scorer: bool = False
    """vLLM V0 only: verify by batch expansion, each draft token as a sequence of its own that
    reads the whole context again (0.6 ``spec_decode/batch_expansion.py``)."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        owner = next(each for each in cls.__mro__ if "offered_len" in vars(each))
        if not is_shipped_class(owner):
            if vars(cls).get("supports_async"):
                raise TypeError(
                    f"{cls.__name__}: supports_async = True, but its own offered_len is not asked "
                    "where steps are scheduled asynchronously; leave out either"
                )
            cls.supports_async = False  # there, how much is drafted is settled before it is asked

    @field_validator("rejection_sample_method", mode="before")
    @classmethod
    def _refuse_rates(cls, method: Any) -> Any:
        """Say where vLLM's ``synthetic`` is here: its rates are an acceptance model."""
        if method == "synthetic":
            raise ValueError(
                "its synthetic_acceptance_rates are an acceptance model here; leave it out, and "
                "give acceptance: {kind: per_position, unconditional_rates: [...]}"
            )
        return method

    # What the method needs from the engine
    drops_last_hit: ClassVar[bool] = False
    """Whether the last block of a prefix-cache hit is recomputed for its hidden states."""
    has_own_pass: ClassVar[bool] = False
    """Whether the drafter runs in a pass of its own, for which the scheduler, since vLLM 0.33,
    drops no block of a prefix-cache hit and reserves no input slots."""
    drops_in_last_group: ClassVar[bool] = False
    """Whether only the KV cache group of the drafter's layers recomputes that block."""
    supports_async: ClassVar[bool] = True
    """Whether vLLM combines the method with asynchronous scheduling."""
    has_prefill: ClassVar[bool] = True
    """Whether the drafter has a KV cache: it reads a prompt before it drafts for it, and writes
    entries ahead of the known tokens."""

    # How it drafts
    is_model: ClassVar[bool] = True
    """Whether a model drafts, so that longer drafts take longer."""
    drafts_trees: ClassVar[bool] = False
    """Whether the method can draft several candidates per position."""
    has_confidence: ClassVar[bool] = True
    """Whether the drafter states a probability (confidence) of each draft token."""
    looks_up_on_gpu: ClassVar[bool] = False
    """Whether drafts are looked up by a GPU kernel of vLLM's second model runner."""
    on_gpu: ClassVar[str | None] = None
    """Method that vLLM uses instead on a GPU, since its second model runner has it."""
    has_fallback: ClassVar[bool] = False
    """Whether the method is a lookup with a fallback drafter, between which the policy chooses;
    requires token ids."""
    drafts_first_token: ClassVar[bool] = True
    """Whether it drafts before the first output token is known. vLLM never does; Arctic
    Inference's simulator, from which the published figures of suffix decoding come, does."""
    statistical_fields: ClassVar[frozenset[str]] = frozenset()
    """Fields that describe drafts statistically; they must not be set with token ids."""

    @classmethod
    def own_fields(cls) -> set[str]:
        """Return the fields that vLLM's ``speculative_config`` does not know."""
        return set(cls.model_fields) - _VLLM_FIELDS

    @property
    def parts(self) -> "tuple[Proposer, ...]":
        """The drafter alone, or the lookup and its fallback."""
        return (self,)

    @property
    def own_name(self) -> str:
        """The method's name; for a user's class named by its file, the name of the class."""
        return str(type(self).model_fields["method"].default)

    @property
    def cost_keys(self) -> tuple[str, ...]:
        """Keys of the profile's ``drafts`` with the costs, one for each drafter."""
        return (self.own_name,)

    @property
    def num_modules(self) -> int:
        """Number of modules that draft in turn, each with its own weights and KV cache."""
        return 1

    @property
    def apart(self) -> OwnGpus | None:
        """GPUs that only the drafter runs on; None if it shares those of the target."""
        return None

    @property
    def drafts_at_once(self) -> bool:
        """Whether all draft tokens are made in one pass."""
        return self.block(2).passes == 1

    @property
    def overlaps(self) -> bool:
        """Whether it drafts while the target verifies."""
        return self.apart is not None and self.apart.overlaps

    def verified_len(self, max_draft_len: int) -> int:
        """Return the draft tokens per sequence that a server is set up to verify in a step.

        For trees these are all nodes (in vLLM ``num_speculative_tokens`` of a tree is their
        number); for chains the method's own limit, even if the policy asks for fewer.
        """
        return max(self.num_speculative_tokens, max_draft_len)

    def lookahead_len(self, max_draft_len: int) -> int:
        """Return the extra KV slots that every sequence holds, tokens."""
        return max_draft_len if self.has_prefill else 0

    def draft_slots(self, max_draft_len: int) -> int:
        """Return the input slots per scheduled sequence, on top of its tokens."""
        return 0

    def block(self, max_draft_len: int) -> BlockPass:
        """Return what the drafter reads in each pass, if the number of passes is fixed."""
        return NO_BLOCK

    def reread_len(self, max_draft_len: int) -> int:
        """Return how many tokens at the end of a step the drafter reads again after the next."""
        return 0

    def survival_lens(
        self,
        requests: Sequence[Request],
        tables: list[bytes],
        luck: Luck,
        max_draft_len: int,
        *,
        reads_tokens: bool,
    ) -> list[bytes]:
        """Return the accepted lengths of the drafts, by request and output position.

        Called only for a drafter that `looks_up_on_gpu`.

        Args:
            tables: Accepted lengths by the acceptance model.
            reads_tokens: Whether they follow from the requests' tokens instead.
        """
        return tables

    def known_rates(self, rates: Rates) -> Rates:
        """Return the chances of the method's draft tokens, from those of the acceptance model."""
        return rates

    @classmethod
    def has_lookup(cls) -> bool:
        """Return whether it has a token-level mode."""
        return cls.make_lookup is not Proposer.make_lookup

    def make_lookup(self) -> Lookup | None:
        """Return the lookup on token ids, if any; a SpecsimError if a file cannot be read."""
        return None

    def check_real_drafts(self) -> None:
        """Raise a ValueError if a field is set that has no effect on drafts of token ids."""
        for name in sorted(self.statistical_fields):
            if getattr(self, name) != type(self).model_fields[name].default:
                raise ValueError(
                    f"{name} = {getattr(self, name)} has no effect where drafts are real tokens; "
                    "leave it out"
                )

    def start(self, requests: Sequence[Request], luck: Luck, max_draft_len: int) -> Any:
        """Return the memory for `offered_len`."""
        return None

    def offered_len(self, request: int, position: int, draft_len: int, memory: Any) -> int:
        """Return how many tokens are drafted at an output position, if `draft_len` are asked for.

        A user's class that overrides this is scheduled synchronously.
        """
        return draft_len


class LookupProposer(Proposer):
    """Looks drafts up in text: host time only, no KV slots, no prompt to read.

    vLLM schedules none of its own ones (ngram on the CPU, suffix) asynchronously.
    """

    supports_async = False
    has_prefill = False
    is_model = False

    @property
    def always_finds(self) -> bool:
        """Whether, without token ids, it finds a draft of any length wherever it looks."""
        return True

    def found_lens(
        self, uniforms: NDArray[np.float64], max_draft_len: int
    ) -> NDArray[np.floating | np.integer]:
        """Return the draft lengths found for random numbers `uniforms` in [0, 1), tokens."""
        raise NotImplementedError

    def start(
        self, requests: Sequence[Request], luck: Luck, max_draft_len: int
    ) -> list[bytes] | None:
        """Return the longest draft by request and output position, recorded or drawn."""
        recorded = [each.offered_lens for each in requests if each.offered_lens is not None]
        if recorded and len(recorded) == len(requests):
            return recorded
        if self.always_finds:
            return None
        counts = [request.output_len + 1 for request in requests]
        uniforms = luck.uniforms([request.index for request in requests], counts)
        found = self.found_lens(uniforms, max_draft_len)
        return split_rows(found.astype(np.uint8).tobytes(), counts)

    def offered_len(self, request: int, position: int, draft_len: int, memory: list[bytes]) -> int:
        """Return `draft_len`, cut to the draft that was found."""
        return min(draft_len, memory[request][position])


def offers_by_table(proposer: Proposer | None) -> bool:
    """Return whether draft lengths come from tables, as those of a `LookupProposer` do."""
    return getattr(type(proposer), "offered_len", None) is LookupProposer.offered_len


def is_asked_each_time(proposer: Proposer | None, memory: Any) -> bool:
    """Return whether `offered_len` has to be called for each draft."""
    if proposer is None or offers_by_table(proposer):
        return False
    return memory is not None or type(proposer).offered_len is not Proposer.offered_len
