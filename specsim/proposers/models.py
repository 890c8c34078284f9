"""Models that draft: small language models, and heads on the target's hidden states."""

from typing import Annotated, Literal, Self, final

from pydantic import Field, model_validator

from specsim.acceptance.base import MAX_DRAFT_LEN
from specsim.profile import NO_BLOCK, BlockPass
from specsim.proposers.base import OwnGpus, Proposer


@final
class DraftModel(Proposer):
    """A separate, smaller model drafts k tokens in k forward passes of its own.

    Leviathan, Kalman, Matias (2023), "Fast Inference from Transformers via Speculative Decoding".
    Its weights and its KV cache take memory from the block pool, unless it has GPUs of its own.
    """

    method: Literal["draft_model"] = "draft_model"
    drafts_trees = True
    parallel_drafting: bool = False
    """Whether it drafts all tokens in one pass, with a mask for each (An et al. 2025, "PARD")."""
    own_gpus: OwnGpus | None = None
    """GPUs that only the drafter runs on; vLLM has none."""

    @model_validator(mode="after")
    def _check_overlap(self) -> Self:
        if self.overlaps and self.parallel_drafting:
            raise ValueError(
                "own_gpus.overlaps: a drafter that drafts all tokens at once has no entries of its "
                "own drafts to go on from; leave out overlaps or parallel_drafting"
            )
        return self

    @property
    def apart(self) -> OwnGpus | None:
        return self.own_gpus

    def lookahead_len(self, max_draft_len: int) -> int:
        return 0 if self.own_gpus else max_draft_len

    def draft_slots(self, max_draft_len: int) -> int:
        """Return one, as its inputs are not shifted; of parallel drafting one for each draft."""
        return max_draft_len if self.parallel_drafting else 1

    def block(self, max_draft_len: int) -> BlockPass:
        return BlockPass(max_draft_len) if self.parallel_drafting else NO_BLOCK


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

    @model_validator(mode="after")
    def _check_names(self) -> Self:
        if len(set(self.models)) < len(self.models):
            raise ValueError(f"models {list(self.models)}: each may appear once")
        return self

    @property
    def cost_keys(self) -> tuple[str, ...]:
        return self.models

    def draft_slots(self, max_draft_len: int) -> int:
        return 1


class _Head(Proposer):
    """What EAGLE's heads have in common."""

    drafts_trees = True
    drops_last_hit = True
    parallel_drafting: bool = False
    """Whether it drafts all tokens in one pass, a mask for each but the first (Hui et al. 2026,
    "P-EAGLE", arXiv 2602.01469)."""

    def draft_slots(self, max_draft_len: int) -> int:
        return self.block(max_draft_len).block_len

    def block(self, max_draft_len: int) -> BlockPass:
        return BlockPass(max(max_draft_len - 1, 0)) if self.parallel_drafting else NO_BLOCK


@final
class Eagle(_Head):
    """A head of one layer drafts from the target's hidden states (Li et al. 2024, "EAGLE").

    Not to be confused with `Medusa`, whose heads each draft one position from the same state: an
    EAGLE head runs once per drafted token and sees the tokens that it drafted before.
    """

    method: Literal["eagle"] = "eagle"


@final
class Eagle3(_Head):
    """A head of one layer drafts from several of the target's layers (Li et al. 2025, "EAGLE-3").

    The scheduler treats it as it treats `Eagle`; acceptance and costs differ.
    """

    method: Literal["eagle3"] = "eagle3"


@final
class Mtp(Proposer):
    """The model's own multi-token prediction head drafts (DeepSeek-AI 2024, "DeepSeek-V3").

    The scheduler treats it as it treats `Eagle`, but where the target's layers attend in several
    ways; the head comes with the target's weights.

    Of several modules each drafts one token, in turn, in a pass over all tokens of the step: as
    many passes as the longest draft may have tokens, whatever is drafted (vLLM ``v1/worker/gpu/
    spec_decode/multi_module_mtp/speculator.py``).
    """

    method: Literal["mtp"] = "mtp"
    drafts_trees = True
    drops_last_hit = True
    drops_in_last_group = True
    num_nextn_predict_layers: Annotated[int, Field(ge=1, le=MAX_DRAFT_LEN)] = 1
    """Modules that the model has, by its config.json, which vLLM reads it from; the profile's cost
    is that of one."""

    @property
    def num_modules(self) -> int:
        return self.num_nextn_predict_layers

    def reread_len(self, max_draft_len: int) -> int:
        return max_draft_len - 1 if min(self.num_modules, max_draft_len) > 1 else 0

    def block(self, max_draft_len: int) -> BlockPass:
        return BlockPass(passes=max_draft_len) if self.reread_len(max_draft_len) else NO_BLOCK


@final
class Medusa(Proposer):
    """Each head drafts one position from the target's last hidden state (Cai et al. 2024).

    All heads run at once, whatever is used of them. ``num_speculative_tokens`` is their number. As
    in vLLM, which has them up to 0.32, each offers its first candidate, so drafts are chains; the
    policy ``medusa_tree`` asks for more. Steps are scheduled synchronously; the heads keep no KV
    cache.
    """

    method: Literal["medusa"] = "medusa"
    supports_async = False
    drafts_trees = True
    has_prefill = False


class _Block(Proposer):
    """A small model that drafts all tokens at once, from what the target has read alone."""

    parallel_drafting: Literal[True] = True
    """Always, as vLLM sets it."""
    drops_last_hit = True
    has_own_pass = True


@final
class DFlash(_Block):
    """A small model fills in a block of masks in one pass (Chen et al. 2026, "DFlash").

    arXiv 2602.06036. Its layers attend to keys and values that are projected from the target's
    hidden states, and to all of the block: the last token and a mask for each draft. Projecting is
    priced for as many tokens as the block has; neither a refiner (XPress) nor a candidate head
    (DFlash2) is.
    """

    method: Literal["dflash"] = "dflash"
    examples = ({"num_speculative_tokens": 7},)

    def lookahead_len(self, max_draft_len: int) -> int:
        """Return the length of its block."""
        return self.block(max_draft_len).block_len

    def draft_slots(self, max_draft_len: int) -> int:
        """Return its masks; the last token has a slot."""
        return self.lookahead_len(max_draft_len) - 1

    def block(self, max_draft_len: int) -> BlockPass:
        return BlockPass(max_draft_len + 1, reads_step=False)


@final
class DSpark(_Block):
    """A small model drafts a block in one pass, and a Markov head corrects it token by token.

    As `DFlash`, but for the block: what stands behind the last known token is a draft, too, so that
    it has a mask less (vLLM ``v1/worker/gpu/spec_decode/dspark/speculator.py``,
    ``sample_from_anchor``; checkpoints without that are not simulated). The Markov head is a matrix
    for each draft token: what that takes is ``step_ms`` of the profile's cost, if it is there. A
    further head states confidences.
    """

    method: Literal["dspark"] = "dspark"
    examples = ({"num_speculative_tokens": 5},)

    def draft_slots(self, max_draft_len: int) -> int:
        """Return its masks; the last token has a slot."""
        return max_draft_len - 1

    def block(self, max_draft_len: int) -> BlockPass:
        return BlockPass(max_draft_len, reads_step=False)
