"""What the memory of each GPU is for, and so how many KV blocks fit.

Source of the defaults: vLLM 0.32.0, ``config/cache.py CacheConfig``.
"""

from collections.abc import Sequence
from math import ceil
from typing import NamedTuple

from specsim.core.errors import ProfileError
from specsim.hardware import GIB, GpuSpec, KVLayers, MemoryPlan, ModelShape, kv_layout
from specsim.hardware.kv_groups import FULL, KVLayout, one_group
from specsim.profile.profile import DraftCost, Profile

BLOCK_SIZE = 16
GPU_MEMORY_UTILIZATION = 0.92


class LayersOf(NamedTuple):
    """The attention layers of a server."""

    target: tuple[KVLayers, ...]
    drafts: tuple[KVLayers, ...]

    def block_bytes(self, block_size: int) -> tuple[float, float]:
        """Return the memory of one KV block, and how much of it the drafters have added."""
        alone = kv_layout(self.target, block_size).block_bytes
        return alone, kv_layout(self.target + self.drafts, block_size).block_bytes - alone


def memory_plan(  # noqa: PLR0913 - each is a setting of its own
    profile: Profile,
    model: ModelShape,
    gpu: GpuSpec,
    drafts: Sequence[DraftCost],
    *,
    block_size: int = BLOCK_SIZE,
    gpu_memory_utilization: float = GPU_MEMORY_UTILIZATION,
    data_parallel_size: int = 1,
) -> MemoryPlan:
    """Return the plan for a profile's model on its GPU, with the drafters that are loaded.

    Data-parallel ranks share the experts, and nothing else.
    """
    size, block_size = profile.tensor_parallel_size, least_block_size(profile, model, block_size)
    block_bytes = block_size * _token_bytes(profile, model)
    draft_block_bytes = block_size * sum(draft.kv_bytes_per_token for draft in drafts)
    if layers := kv_layers(profile, model, drafts):
        block_bytes, draft_block_bytes = layers.block_bytes(block_size)
    of_experts = model.expert_bytes
    weight_bytes = (model.weight_bytes - of_experts + of_experts / data_parallel_size) / size
    if profile.weights_gib is not None:
        weight_bytes = profile.weights_gib * GIB
    elif model.quantization:
        raise ProfileError(
            f"weights_gib is missing in the profile: {profile.model} says that its weights are "
            "quantized; add what a GPU's share of them takes, GiB"
        )
    return MemoryPlan(
        total_bytes=gpu.memory_gib * GIB,
        usable_bytes=gpu.memory_gib * GIB * gpu_memory_utilization,
        weight_bytes=weight_bytes,
        draft_weight_bytes=sum(draft.weights_gib for draft in drafts) * GIB,
        reserved_bytes=profile.reserved_gib * GIB,
        block_bytes=block_bytes,
        draft_block_bytes=draft_block_bytes,
        block_size=(layers and layers.target[0].block_size) or block_size,
    )


def _token_bytes(profile: Profile, model: ModelShape) -> float:
    if profile.kv_bytes_per_token is not None:
        return profile.kv_bytes_per_token
    return model.kv_bytes_per_token_and_gpu(profile.tensor_parallel_size)


def layer_bytes(profile: Profile, model: ModelShape) -> float:
    """Return key and value of one token in one layer, on one GPU, bytes."""
    return _token_bytes(profile, model) / sum(model.layer_counts.values())


def least_block_size(profile: Profile, model: ModelShape, block_size: int = BLOCK_SIZE) -> int:
    """Return how many tokens a block has: as configured, or so many that a state fits into it.

    References:
        vLLM 0.32.0 ``model_executor/models/config.py HybridAttentionMambaModelConfig``.
    """
    if not model.state_layers:
        return block_size
    state = model.state_bytes(profile.tensor_parallel_size) / model.state_layers
    return max(block_size, BLOCK_SIZE * ceil(state / (BLOCK_SIZE * layer_bytes(profile, model))))


def kv_layers(profile: Profile, model: ModelShape, drafts: Sequence[DraftCost]) -> LayersOf | None:
    """Return the layers that keep KV entries; None where all of the target's keep all of them.

    A drafter's are taken to attend to everything, and to be as wide as the target's where that
    makes a whole number of layers, else to be one.
    """
    width = layer_bytes(profile, model)
    target = model.kv_layers(_token_bytes(profile, model), profile.tensor_parallel_size)
    if all(each.kind == FULL for each in target):
        return None
    added = []
    for kept in filter(None, (draft.kv_bytes_per_token for draft in drafts)):
        is_whole = kept % width == 0
        count, each = (int(kept // width), width) if is_whole else (1, kept)
        added.append(KVLayers(kind=FULL, layers=count, bytes_per_token=each))
    return LayersOf(target, tuple(added))


def default_layout(
    profile: Profile, model: ModelShape, drafts: Sequence[DraftCost], block_size: int = BLOCK_SIZE
) -> KVLayout:
    """Return the KV cache groups of a profile's model, with the drafters that are loaded."""
    block_size = least_block_size(profile, model, block_size)
    layers = kv_layers(profile, model, drafts)
    if layers is None:
        return one_group(block_size)
    return kv_layout(layers.target + layers.drafts, block_size)
