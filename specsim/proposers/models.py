"""Models that draft: small language models, and heads on the target's hidden states."""

from typing import Literal, Self, final

from pydantic import Field, model_validator

from specsim.proposers._own_gpus import OwnGpus
from specsim.proposers.base import Proposer


@final
class DraftModel(Proposer):
    """A separate, smaller model drafts k tokens in k forward passes of its own.

    Leviathan, Kalman, Matias (2023), "Fast Inference from Transformers via Speculative Decoding".
    Its weights and its KV cache take memory from the block pool, unless it has GPUs of its own.
    """

    method: Literal["draft_model"] = "draft_model"
    drafts_trees = True
    own_gpus: OwnGpus | None = None
    """GPUs that only the drafter runs on; vLLM has none."""
    draft_slots = 1

    @property
    def apart(self) -> OwnGpus | None:
        return self.own_gpus

    def lookahead_len(self, max_draft_len: int) -> int:
        return 0 if self.own_gpus else max_draft_len


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
        return self.models


@final
class Eagle(Proposer):
    """A head of one layer drafts from the target's hidden states (Li et al. 2024, "EAGLE").

    Not to be confused with `Medusa`, whose heads each draft one position from the same state: an
    EAGLE head runs once per drafted token and sees the tokens that it drafted before.
    """

    method: Literal["eagle"] = "eagle"
    drafts_trees = True
    drops_last_hit = True


@final
class Eagle3(Proposer):
    """A head of one layer drafts from several of the target's layers (Li et al. 2025, "EAGLE-3").

    The scheduler treats it as it treats `Eagle`; acceptance and costs differ.
    """

    method: Literal["eagle3"] = "eagle3"
    drafts_trees = True
    drops_last_hit = True


@final
class Mtp(Proposer):
    """The model's own multi-token prediction head drafts (DeepSeek-AI 2024, "DeepSeek-V3").

    The scheduler treats it as it treats `Eagle`, but where the target's layers attend in several
    ways; the head comes with the target's weights.
    """

    method: Literal["mtp"] = "mtp"
    drafts_trees = True
    drops_last_hit = True
    drops_in_last_group = True


@final
class Medusa(Proposer):
    """Each head drafts one position from the target's last hidden state (Cai et al. 2024).

    All heads run at once, whatever is used of them. ``num_speculative_tokens`` is their number. As
    in vLLM, each offers its first candidate, so drafts are chains; the policy ``medusa_tree`` asks
    for more. vLLM does not schedule asynchronously with it; the heads keep no KV cache.
    """

    method: Literal["medusa"] = "medusa"
    supports_async = False
    drafts_trees = True
    has_prefill = False
