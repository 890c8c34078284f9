"""Random weights of a Llama-like model, and of a draft model that agrees with it now and then."""

from dataclasses import dataclass

import torch
from torch import Tensor

from specsim.core.errors import ConfigError
from specsim.hardware import ModelShape
from specsim.reality.torch_engine.memory import out_of_memory

__all__ = ["Layer", "Recipe", "Weights", "check_shape", "draft_of", "random_weights"]

_GAIN = 1.4
"""Standard deviation of a weight, times the square root of its matrix's inputs. Some three times
what models are initialised with: smaller ones make greedy answers repeat themselves."""


@dataclass(frozen=True)
class Layer:
    """Matrices of one layer, shape (outputs, inputs)."""

    qkv: Tensor
    """Queries, keys and values on top of each other."""
    out: Tensor
    gate_up: Tensor
    """Gate and up projection on top of each other."""
    down: Tensor


@dataclass(frozen=True)
class Weights:
    """A decoder-only transformer; its norms have no weights of their own."""

    embedding: Tensor
    """Shape (vocabulary, hidden)."""
    layers: tuple[Layer, ...]
    lm_head: Tensor
    """Shape (vocabulary, hidden)."""


@dataclass(frozen=True)
class Recipe:
    """How weights are drawn."""

    num_draft_layers: int = 2
    """Layers of the draft model, the target's first; those after them write less into the residual
    stream."""
    deep_scale: float = 0.15
    """By this factor. 0: the first layers decide alone, and the draft model is always right; 1: all
    layers alike, and it is right by chance."""
    seed: int = 0


def random_weights(
    shape: ModelShape, recipe: Recipe, device: torch.device, dtype: torch.dtype
) -> Weights:
    """Return random weights whose first layers say nearly what all of them say.

    Args:
        shape: Dense, with a gated MLP, as Llama is.

    Raises:
        ConfigError: The model has a part that this engine does not know.
        CapacityError: The weights do not fit into memory.
    """
    check_shape(shape)
    generator = torch.Generator(device=device).manual_seed(recipe.seed)
    hidden, width = shape.hidden_size, shape.intermediate_size
    heads, kv_heads, head_dim = (
        shape.num_attention_heads,
        shape.num_key_value_heads,
        shape.head_dim,
    )

    def matrix(outputs: int, inputs: int, scale: float = 1.0) -> Tensor:
        drawn = torch.empty(outputs, inputs, device=device, dtype=dtype)
        return drawn.normal_(0.0, scale * _GAIN * inputs**-0.5, generator=generator)

    def layer(number: int) -> Layer:
        scale = 1.0 if number < recipe.num_draft_layers else recipe.deep_scale
        return Layer(
            qkv=matrix((heads + 2 * kv_heads) * head_dim, hidden),
            out=matrix(hidden, heads * head_dim, scale),
            gate_up=matrix(2 * width, hidden),
            down=matrix(hidden, width, scale),
        )

    with out_of_memory(f"the {shape.num_parameters / 1e9:.2f} billion weights", device):
        embedding = matrix(shape.vocab_size, hidden) * hidden**0.5
        layers = tuple(layer(number) for number in range(shape.num_hidden_layers))
        tied = shape.tie_word_embeddings
        return Weights(embedding, layers, embedding if tied else matrix(shape.vocab_size, hidden))


def draft_of(weights: Weights, num_layers: int) -> Weights:
    """Return the draft model: the first layers, and the same vocabulary matrices."""
    return Weights(weights.embedding, weights.layers[:num_layers], weights.lm_head)


def check_shape(shape: ModelShape) -> None:
    """Refuse a model that this engine would run as something else.

    Raises:
        ConfigError: It has a part that Llama has not.
    """
    unknown = {
        "experts": shape.num_experts > 0,
        "an MLP without gate": not shape.has_gated_mlp,
        "fused inputs": shape.num_fused_inputs > 0,
    }
    for part, is_there in unknown.items():
        if is_there:
            raise ConfigError(
                f"model {shape.name} has {part}, which the torch engine does not run; choose a "
                "Llama-like one, or --engine vllm"
            )
