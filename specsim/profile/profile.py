"""Profiles: measured coefficients of one model on one GPU, with their provenance.

``profiles/<gpu>/<model>[-tpN].yaml``. A profile says what a step costs (`specsim.profile.costs`),
and what the memory of each GPU is for, and so how many KV blocks fit.
"""

from collections.abc import Sequence
from difflib import get_close_matches
from math import ceil, lcm
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Self

from pydantic import Field, PositiveInt, model_validator

from specsim.core.errors import ConfigError, ProfileError
from specsim.core.resources import find_resource, following, resource_names
from specsim.core.settings import Settings, as_yaml, load_mapping, nearest, validated
from specsim.hardware import GIB, GpuSpec, KVLayers, MemoryPlan, ModelShape, kv_layout
from specsim.hardware.kv_groups import FULL, KVLayout, one_group
from specsim.hardware.specs import gpu_file, known_model
from specsim.latency import LATENCY, LatencyModel
from specsim.profile.costs import AdapterCost, DraftCost, Overhead

NOT_MEASURED = "Overhead is not measured: fit it to runs of your own (`specsim profile fit`)."
"""In the notes of a profile that was composed of kernels and not yet fitted to runs."""
BLOCK_SIZE, GPU_MEMORY_UTILIZATION = 16, 0.92
"""Defaults of vLLM 0.32.0, ``config/cache.py CacheConfig``."""
_LATENT_UNIT = 128
"""Tokens, to whose multiples blocks of latent attention beside states are rounded."""

_NEAR = 1.5
"""Ratio of contexts up to which a fit is believed; an assumption."""


class ValidRange(Settings):
    """Largest step that the coefficients were fitted on."""

    context_tokens: int = Field(gt=0)
    batched_tokens: int = Field(gt=0)
    context_lens: tuple[PositiveInt, PositiveInt] | None = None
    """Shortest and longest mean context of a sequence in the runs that it was fitted to, tokens;
    its error beyond these is not known. None: no limits."""

    @model_validator(mode="after")
    def _check_order(self) -> Self:
        if self.context_lens is not None and self.context_lens[0] > self.context_lens[1]:
            raise ValueError(f"context_lens = {list(self.context_lens)}: the shortest comes first")
        return self

    def is_known(self, context_len: float) -> bool:
        """Return whether a mean context of a sequence, tokens, is near those of the fit."""
        if self.context_lens is None:
            return True
        shortest, longest = self.context_lens
        return shortest / _NEAR <= context_len <= longest * _NEAR


class Provenance(Settings):
    """Where the numbers come from."""

    engine: str
    """Engine and version that was measured."""
    source: str
    date: str
    notes: str = ""
    status: Literal["candidate", "validated"] | None = None
    """``validated``: simulations of runs that it was not fitted to kept to its `stated_error`.
    ``candidate``: they did not, or there were none yet."""
    stated_error: float | None = Field(default=None, gt=0)
    """Largest relative error of mean TPOT and mean latency that it promises; it may be exceeded
    where repetitions of the real run differ by more than half of it."""

    @model_validator(mode="after")
    def _check_status(self) -> Self:
        if self.status is not None and self.stated_error is None:
            raise ValueError(
                f"status is '{self.status}', but stated_error is missing: say what it promises, "
                "such as 0.1"
            )
        return self


_ESTIMATED = {"ngram_gpu": DraftCost(step_ms=0.03)}  # two small kernels, which nobody has measured


class Profile(Settings):
    """Coefficients of one model on one GPU type.

    A latency model that has a field `model`, `gpu` or `tensor_parallel_size` and does not give it
    takes the profile's; that of a drafter names its own model.
    """

    model: str
    """Name of the model in ``profiles/<model>.json``, or path of a HuggingFace config.json."""
    gpu: str
    """Name of the GPU in ``profiles/<gpu>.yaml``."""
    tensor_parallel_size: int = Field(default=1, gt=0)
    stage_shares: tuple[Annotated[float, Field(gt=0)], ...] = Field(default=(1.0,), min_length=1)
    """With pipeline parallelism, each stage's share of the time of a pass; their sum is 1."""
    decode_context_parallel_size: int = Field(default=1, gt=0)
    """GPUs that each keep a part of every sequence's keys and values, in place of a copy."""
    provenance: Provenance
    target: Annotated[LatencyModel, LATENCY]
    drafts: dict[str, DraftCost] = Field(default_factory=dict)
    """Costs of drafting by proposer; for `draft_models`, by the name of each model."""
    overhead: Overhead = Overhead()
    lora: AdapterCost | None = None
    """Costs of LoRA adapters, if measured."""
    valid_range: ValidRange
    reserved_gib: float = Field(default=0.0, ge=0)
    """Memory per GPU that is neither weights nor KV cache: activations, CUDA graphs, context."""
    weights_gib: float | None = Field(default=None, gt=0)
    """Memory of the model's weights per GPU, GiB (in a pipeline, of the fullest stage); by default
    that of its shape in 16 bits."""
    kv_bytes_per_token: float | None = Field(default=None, gt=0)
    """Memory of a token's keys and values per GPU, bytes (in a pipeline, of the fullest stage; with
    decode context parallelism, the mean); by default that of its shape."""
    only_draft_lens: tuple[Annotated[int, Field(ge=0)], ...] | None = Field(
        default=None, min_length=1
    )
    """Draft lengths of the runs that it was fitted to, if its error at others is not known; 0:
    without speculation. None: no limits."""

    @model_validator(mode="before")
    @classmethod
    def _share_names(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        names = {name: data[name] for name in _SHARED if name in data}
        of_drafts = {name: value for name, value in names.items() if name != "model"}
        parts = {"target": names, "drafts": of_drafts}
        return data | {part: _with_names(data[part], parts[part]) for part in parts if part in data}

    def draft_cost(self, name: str) -> DraftCost | None:
        """Return the cost of drafting with a proposer, or an estimate of it; None if unknown."""
        return self.drafts.get(name, _ESTIMATED.get(name))

    @property
    def num_gpus(self) -> int:
        """Number of GPUs of a replica."""
        return self.tensor_parallel_size * len(self.stage_shares)

    def fullest_share(self, model: ModelShape) -> float:
        """Return the share of the model's layers in the stage that has most of them."""
        return ceil(model.num_hidden_layers / len(self.stage_shares)) / model.num_hidden_layers

    @property
    def suffix(self) -> str:
        """End of the profile's name, which states how the model is divided among GPUs."""
        stages, shares = len(self.stage_shares), self.decode_context_parallel_size
        sizes = (("tp", self.tensor_parallel_size), ("pp", stages), ("dcp", shares))
        return "".join(f"-{short}{size}" for short, size in sizes if size > 1)

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as plain values, without those at their defaults."""
        return self.model_dump(mode="json", exclude_none=True, exclude_defaults=True)

    def to_yaml(self) -> str:
        """Return the text of a YAML file that `load_profile` reads."""
        return as_yaml(self.to_dict(), width=100, default_flow_style=None)

    @model_validator(mode="after")
    def _check_stages(self) -> Self:
        if abs(sum(self.stage_shares) - 1) > _ROUNDING:
            raise ValueError(f"stage_shares = {self.stage_shares!r}: must add up to 1")
        return self

    @model_validator(mode="after")
    def _check_names_agree(self) -> Self:
        for name in _SHARED:
            given, own = getattr(self.target, name, None), getattr(self, name)
            if given is not None and given != own:
                raise ValueError(
                    f"target.{name} = {given!r}, but {name} = {own!r}; leave it out under target "
                    "or correct one of them"
                )
        return self


_ROUNDING = 1e-4
_SHARED = ("model", "gpu", "tensor_parallel_size")


def _with_names(part: Any, names: dict[str, Any]) -> Any:
    """Return a part, with those names added that latency models in it have and do not give."""
    if not isinstance(part, dict):
        return part
    inside, kind = {key: _with_names(value, names) for key, value in part.items()}, part.get("kind")
    if not isinstance(kind, str):
        return inside
    try:
        known = LATENCY.find(kind).model_fields
    except ConfigError:
        return part  # explained where the model is parsed
    return {**{name: value for name, value in names.items() if name in known}, **inside}


def load_profile(name: Path | str) -> Profile:
    """Return a profile by its name, such as ``h100/llama-3.1-8b``, or the path of a YAML file.

    Relative paths in a file follow it. A ProfileError if there is none, or it is malformed.
    """
    path = find_profile(str(name))
    fields = following(load_mapping(path, ProfileError, is_shared=True), path.parent)
    with validated(str(path), ProfileError):
        return Profile.model_validate(fields)


def find_profile(name: str) -> Path:
    """Return the file of a profile.

    A ProfileError if none is shipped under that name, which is no path.
    """
    is_path = name.endswith((".yaml", ".yml"))
    path = Path(name) if is_path else find_resource("profiles", f"{name}.yaml")
    if path is None or ("/" not in name and not is_path):
        known = resource_names("profiles", "*/*.yaml")
        if on_gpu := [each for each in known if each.startswith(f"{name}/")]:
            few = ", ".join(on_gpu[:8])
            raise ProfileError(f"profile '{name}': is a GPU; name a profile of it, such as {few}")
    if path is None:
        raise ProfileError(f"no profile '{name}' in profiles/; {_remedy(name, known)}")
    return path


def _remedy(name: str, shipped: list[str]) -> str:
    """Return a clause for the end of an error message: how it is made, or the nearest."""
    gpu, _, rest = name.partition("/")
    model = known_model(rest)
    on_gpu = [each for each in shipped if each.startswith(f"{gpu}/")]
    if model is not None and gpu_file(gpu) and not any(f"{gpu}/{model}" in n for n in on_gpu):
        return f"make one: specsim profile build --model {model} --gpu {gpu} --out FILE.yaml"
    if on_gpu or get_close_matches(name, shipped, n=1):
        return nearest(name, on_gpu or shipped)
    return "a name is GPU/MODEL; specsim list names them all"


def shipped_to_the_limits(name: str) -> str | None:
    """Return the shipped profile, GPU/model, that holds up to what a server bears; None of none.

    Where the one of that name was fitted to few requests at a time, that is its composed twin:
    what a full server takes is then measured, and so is how far such profiles are off.
    """
    names = (f"{name}-kernels", name)
    return next((n for n in names if find_resource("profiles", f"{n}.yaml") is not None), None)


class LayersOf(NamedTuple):
    """The attention layers of a server."""

    target: tuple[KVLayers, ...]
    drafts: tuple[KVLayers, ...]

    def block_bytes(self, block_size: int, share: float) -> tuple[float, float]:
        """Return the memory of one KV block, and how much the drafters add to it.

        Args:
            share: Of the target's layers, of the stage that is looked at; it has the drafters.
        """
        alone = kv_layout(self.target, block_size).block_bytes
        added = kv_layout(self.target + self.drafts, block_size).block_bytes - alone
        return alone * share, added


def memory_plan(
    profile: Profile,
    model: ModelShape,
    gpu: GpuSpec,
    drafts: Sequence[DraftCost],
    *,
    block_size: int | None = None,
    gpu_memory_utilization: float = GPU_MEMORY_UTILIZATION,
    data_parallel_size: int = 1,
) -> MemoryPlan:
    """Return the plan for a profile's model on its GPU, with the drafters that are loaded.

    Data-parallel ranks share the experts, and nothing else.
    """
    block_size = block_size or block_len(profile, model)
    block_bytes = block_size * _token_bytes(profile, model)
    draft_block_bytes = block_size * sum(draft.kv_bytes_per_token for draft in drafts)
    if layers := kv_layers(profile, model, drafts):
        share = profile.fullest_share(model)
        block_bytes, draft_block_bytes = layers.block_bytes(block_size, share)
    return MemoryPlan(
        total_bytes=gpu.memory_gib * GIB,
        usable_bytes=gpu.memory_gib * GIB * gpu_memory_utilization,
        weight_bytes=_weight_bytes(profile, model, data_parallel_size),
        draft_weight_bytes=sum(draft.weights_gib for draft in drafts) * GIB,
        reserved_bytes=profile.reserved_gib * GIB,
        block_bytes=block_bytes,
        draft_block_bytes=draft_block_bytes,
        block_size=(layers and layers.target[0].block_size) or block_size,
    )


def _weight_bytes(profile: Profile, model: ModelShape, data_parallel_size: int) -> float:
    """Return the weights on each GPU, of a pipeline on those of the fullest stage."""
    if profile.weights_gib is not None:
        return profile.weights_gib * GIB
    if model.quantization:
        raise ProfileError(
            f"weights_gib is missing in the profile: {profile.model} says that its weights are "
            "quantized; add what a GPU's share of them takes, GiB"
        )
    of_experts = model.expert_bytes
    whole = model.weight_bytes - of_experts + of_experts / data_parallel_size
    if len(profile.stage_shares) > 1:  # the first stage has the embedding, the last the head
        embedding = model.vocab_size * model.hidden_size * model.bytes_per_weight
        both = embedding * (1 if model.tie_word_embeddings else 2)
        whole = embedding + (whole - both) * profile.fullest_share(model)
    return whole / profile.tensor_parallel_size


def _token_bytes(profile: Profile, model: ModelShape) -> float:
    if profile.kv_bytes_per_token is not None:
        return profile.kv_bytes_per_token
    alone = model.kv_bytes_per_token_and_gpu(profile.tensor_parallel_size)
    return alone * profile.fullest_share(model) / profile.decode_context_parallel_size


def _all_token_bytes(profile: Profile, model: ModelShape) -> float:
    """Return key and value of one token in the layers of all stages, on one GPU of each, bytes."""
    return _token_bytes(profile, model) / profile.fullest_share(model)


def layer_bytes(profile: Profile, model: ModelShape) -> float:
    """Return key and value of one token in one layer, on one GPU, bytes."""
    return _all_token_bytes(profile, model) / sum(model.layer_counts.values())


def block_len(
    profile: Profile, model: ModelShape, block_size: int = BLOCK_SIZE, saved_unit: int = 1
) -> int:
    """Return how many tokens a block has: so many that a state fits into it, and on every GPU.

    Args:
        block_size: As configured: at least, and on each of the GPUs that share a block out.
        saved_unit: Tokens after which a state can be saved inside a piece of a prefill.

    References:
        vLLM 0.33.0 ``platforms/interface.py _align_hybrid_block_size``,
        ``v1/core/kv_cache_utils.py resolve_kv_cache_block_sizes``.
    """
    if not model.state_layers:
        return block_size * profile.decode_context_parallel_size
    state = model.state_bytes(profile.tensor_parallel_size) / model.state_layers
    unit = lcm(_LATENT_UNIT if model.kv_lora_rank else BLOCK_SIZE, saved_unit)
    # An indexer's keys are in pages of their own.
    page = layer_bytes(profile, model) - model.all_index_bytes / sum(model.layer_counts.values())
    return max(block_size, unit * ceil(state / (unit * page)))


def kv_layers(profile: Profile, model: ModelShape, drafts: Sequence[DraftCost]) -> LayersOf | None:
    """Return the layers that keep KV entries; None where all of the target's keep all of them.

    A drafter's are taken to attend to everything, and to be as wide as the target's where that
    makes a whole number of layers, else to be one.
    """
    width = layer_bytes(profile, model)
    target = model.kv_layers(_all_token_bytes(profile, model), profile.tensor_parallel_size)
    if all(each.kind == FULL for each in target):
        return None
    added = []
    for kept in filter(None, (draft.kv_bytes_per_token for draft in drafts)):
        is_whole = kept % width == 0
        count, each = (int(kept // width), width) if is_whole else (1, kept)
        added.append(KVLayers(kind=FULL, layers=count, bytes_per_token=each))
    return LayersOf(target, tuple(added))


def default_layout(profile: Profile, model: ModelShape, drafts: Sequence[DraftCost]) -> KVLayout:
    """Return the KV cache groups of a profile's model, with the drafters that are loaded."""
    block_size = block_len(profile, model)
    layers = kv_layers(profile, model, drafts)
    if layers is None:
        return one_group(block_size)
    return kv_layout(layers.target + layers.drafts, block_size)
