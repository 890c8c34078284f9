"""Models and GPUs as far as memory goes: how many KV blocks fit.

Source of the rule: vLLM 0.32.0 ``v1/worker/gpu_worker.py determine_available_memory`` and
``v1/core/kv_cache_utils.py``: what gpu_memory_utilization leaves after weights and the peak of a
profiling run is divided into blocks.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from specsim.errors import CapacityError, ProfileError
from specsim.resources import find_resource, resource_names
from specsim.settings import Settings, load_mapping, nearest, validated

__all__ = [
    "GIB",
    "GpuSpec",
    "MemoryPlan",
    "ModelShape",
    "find_gpu",
    "find_model",
    "load_gpu",
    "load_model",
    "num_kv_blocks",
]

GIB = 1 << 30
_BYTES_OF = {"bfloat16": 2, "float16": 2, "float32": 4}


class GpuSpec(Settings):
    """One GPU, from ``profiles/<gpu>.yaml``."""

    name: str
    memory_gib: float = Field(gt=0)
    """Total memory as the CUDA runtime reports it, GiB."""
    source: str


class ModelShape(Settings):
    """A decoder-only transformer in the field names of a HuggingFace ``config.json``."""

    name: str
    num_hidden_layers: int = Field(gt=0)
    hidden_size: int = Field(gt=0)
    intermediate_size: int = Field(gt=0)
    num_attention_heads: int = Field(gt=0)
    num_key_value_heads: int = Field(gt=0)
    head_dim: int = Field(gt=0)
    vocab_size: int = Field(gt=0)
    max_position_embeddings: int = Field(gt=0)
    tie_word_embeddings: bool = False
    has_gated_mlp: bool = True
    """Whether the MLP has a gate, and so three matrices (Llama) instead of two (OPT)."""
    num_experts: int = Field(default=0, ge=0)
    """Experts per layer of a mixture-of-experts model, in which they take the place of the MLP."""
    num_experts_per_tok: int = Field(default=0, ge=0)
    """Of these, how many each token activates."""
    moe_intermediate_size: int = Field(default=0, ge=0)
    """Width of an expert."""
    torch_dtype: Literal["bfloat16", "float16", "float32"] = "bfloat16"
    source: str

    @property
    def num_parameters(self) -> int:
        """Weights of a Llama-like model: attention, MLP, two norms a layer, embeddings."""
        heads = self.num_attention_heads + self.num_key_value_heads
        attention = 2 * self.hidden_size * self.head_dim * heads
        matrices = 3 if self.has_gated_mlp else 2
        mlp = matrices * self.hidden_size * self.intermediate_size
        if self.num_experts:
            expert = matrices * self.hidden_size * self.moe_intermediate_size
            mlp = self.num_experts * (expert + self.hidden_size)  # each with its router's row
        embeddings = (1 if self.tie_word_embeddings else 2) * self.vocab_size * self.hidden_size
        per_layer = attention + mlp + 2 * self.hidden_size
        return self.num_hidden_layers * per_layer + embeddings + self.hidden_size

    @property
    def weight_bytes(self) -> int:
        """Memory of the weights, bytes."""
        return self.num_parameters * _BYTES_OF[self.torch_dtype]

    @property
    def kv_bytes_per_token(self) -> int:
        """Key and value of one token in every layer, bytes."""
        width = self.num_key_value_heads * self.head_dim * _BYTES_OF[self.torch_dtype]
        return 2 * self.num_hidden_layers * width


@dataclass(frozen=True)
class MemoryPlan:
    """What the memory of one GPU is for, bytes."""

    total_bytes: float
    """Total memory of the GPU."""
    usable_bytes: float
    """What vLLM may use of it: times gpu_memory_utilization."""
    weight_bytes: float
    """Weights of the target."""
    draft_weight_bytes: float
    """Weights of the drafter."""
    reserved_bytes: float
    """Activations, CUDA graphs, context."""
    block_bytes: float
    """One KV block of the target."""
    draft_block_bytes: float
    """The drafter's share of one KV block."""

    def num_blocks(self) -> int:
        """Return how many KV blocks fit, vLLM's null block included.

        Raises
        ------
        CapacityError
            Not even two blocks fit.
        """
        return num_kv_blocks(
            memory_bytes=self.usable_bytes,
            taken_bytes=self.weight_bytes + self.draft_weight_bytes + self.reserved_bytes,
            block_bytes=self.block_bytes + self.draft_block_bytes,
        )


def load_gpu(name: str) -> GpuSpec:
    """Return the specification of a GPU.

    Parameters
    ----------
    name : str
        As in ``profiles/<name>.yaml``.

    Returns
    -------
    GpuSpec

    Raises
    ------
    ProfileError
    """
    path = find_resource("profiles", f"{name}.yaml")
    if path is None:
        known = resource_names("profiles", "*.yaml")
        raise ProfileError(f"no GPU '{name}' in profiles/; {nearest(name, known)}")
    with validated(str(path), ProfileError):
        return GpuSpec.model_validate(load_mapping(path, ProfileError))


def load_model(name: str) -> ModelShape:
    """Return the shape of a model.

    Parameters
    ----------
    name : str
        As in ``profiles/<name>.json``, or the path of a ``config.json``.

    Returns
    -------
    ModelShape

    Raises
    ------
    ProfileError
    """
    path = Path(name) if name.endswith(".json") else find_resource("profiles", f"{name}.json")
    if path is None:
        known = resource_names("profiles", "*.json")
        raise ProfileError(f"no model '{name}' in profiles/; {nearest(name, known)}")
    fields = load_mapping(path, ProfileError)
    if "source" not in fields:  # as it is on HuggingFace, with many more fields than count here
        fields = _from_huggingface(fields, path)
    with validated(str(path), ProfileError):
        return ModelShape.model_validate(fields)


def _from_huggingface(config: dict[str, Any], path: Path) -> dict[str, Any]:
    fields = {
        name: config[name] for name in ModelShape.model_fields if config.get(name) is not None
    }
    heads = config.get("num_attention_heads")
    if "head_dim" not in fields and heads and config.get("hidden_size"):
        fields["head_dim"] = config["hidden_size"] // heads
    if "num_key_value_heads" not in fields and heads:
        fields["num_key_value_heads"] = heads  # before grouped-query attention there was no field
    if config.get("num_local_experts"):  # Mixtral's name
        fields.setdefault("num_experts", config["num_local_experts"])
        fields.setdefault("moe_intermediate_size", config.get("intermediate_size"))
    if "dtype" in config:
        fields.setdefault("torch_dtype", config["dtype"])
    return {"name": str(config.get("_name_or_path") or path), **fields, "source": str(path)}


def find_model(names: list[str], source: str) -> str:
    """Return the name in ``profiles/`` of a model, given what somebody else calls it.

    Parameters
    ----------
    names : list of str
        Such as ``Qwen/Qwen3-8B`` or ``Llama-3.1-8B-Instruct``: what counts is the part after the
        last slash, and of variants of one size the longest name that it begins with.
    source : str
        Who calls it that, for the error message.

    Returns
    -------
    str

    Raises
    ------
    ProfileError
        There is none.
    """
    known = resource_names("profiles", "*.json")
    for name in names:
        key = name.rsplit("/", 1)[-1].lower()
        fitting = [model for model in known if key == model or key.startswith(f"{model}-")]
        if fitting:
            return max(fitting, key=len)
    called = " or ".join(dict.fromkeys(names)) or "no model"
    raise ProfileError(
        f"{source}: names {called}, which is none of profiles/*.json ({', '.join(known)}); put the "
        "model's config.json into the folder, or name one (--model)"
    )


def find_gpu(names: list[str], source: str) -> str:
    """Return the name in ``profiles/`` of a GPU, given what somebody else calls it.

    Parameters
    ----------
    names : list of str
        Such as ``RTX4090`` or ``NVIDIA GeForce RTX 4090``; letters and digits count.
    source : str
        Who calls it that, for the error message.

    Returns
    -------
    str

    Raises
    ------
    ProfileError
        There is none.
    """
    known = resource_names("profiles", "*.yaml")
    for name in names:
        fitting = [gpu for gpu in known if _plain(gpu) in _plain(name)]
        if fitting:
            return max(fitting, key=len)
    called = " or ".join(dict.fromkeys(names)) or "no GPU"
    raise ProfileError(
        f"{source}: names {called}, which is none of profiles/*.yaml ({', '.join(known)}); add "
        "profiles/<gpu>.yaml with name, memory_gib and source"
    )


def _plain(name: str) -> str:
    return "".join(letter for letter in name.lower() if letter.isalnum())


def num_kv_blocks(*, memory_bytes: float, taken_bytes: float, block_bytes: float) -> int:
    """Return how many KV blocks fit into one GPU, vLLM's null block included.

    Parameters
    ----------
    memory_bytes : float
        What vLLM may use of the GPU: total memory times gpu_memory_utilization.
    taken_bytes : float
        Weights of target and draft, activations, CUDA graphs.
    block_bytes : float
        One KV block, of target and draft together.

    Returns
    -------
    int

    Raises
    ------
    CapacityError
        Not even two blocks fit.
    """
    left = memory_bytes - taken_bytes
    blocks = int(left // block_bytes)
    if blocks < 2:
        raise CapacityError(
            f"weights and activations take {taken_bytes / GIB:.1f} GiB of the usable "
            f"{memory_bytes / GIB:.1f} GiB: no KV block fits; use more or larger GPUs, or raise "
            "gpu_memory_utilization"
        )
    return blocks
