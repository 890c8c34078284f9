"""Operators of a transformer: how many operations and bytes each takes in one forward pass."""

from collections.abc import Sequence
from typing import NamedTuple

from specsim.hardware import ModelShape


class Operator(NamedTuple):
    """Matrices that every token is multiplied with; of experts, those that it visits.

    Reads its weights once per step, and per token its inputs; writes its outputs (SSSD, arXiv
    2411.05894, table 1). ``Operator.matmul`` is one matrix.
    """

    name: str
    flops_per_token: float
    weights: float  # numbers in all of its matrices
    activations: float  # numbers that it reads and writes per token
    runs: int = 1  # how often it runs in a forward pass
    num_experts: int = 1
    experts_per_token: int = 1
    is_sampled: bool = False
    """Whether it only sees the tokens that the next one is sampled after: the LM head."""

    @classmethod
    def matmul(cls, name: str, inputs: int, outputs: int, runs: int = 1) -> "Operator":
        """Return the operator of one matrix, shape (inputs, outputs)."""
        return cls(name, 2.0 * inputs * outputs, inputs * outputs, inputs + outputs, runs)

    @property
    def missed_share(self) -> float:
        """Chance that a token leaves an expert out: 1 - k / E.

        Of E experts, E * (1 - (1 - k/E)^n) are expected to be read if each of n tokens chooses k of
        them, all with the same chance.
        """
        return 1 - self.experts_per_token / self.num_experts


class AttentionOperator(NamedTuple):
    """Attention of all layers (SSSD, table 1, fourth row, with grouped queries)."""

    flops_per_pair: float  # per query token and key that it sees
    numbers_per_context_token: float  # keys and values read per token of context
    numbers_per_token: float  # per query token: its query, key and value read, its output written


def matrix_operators(shape: ModelShape, tensor_parallel_size: int = 1) -> list[Operator]:
    """Return the operators with weights, as one of the GPUs runs them.

    Attention is sharded by heads (where there are fewer key-value heads than GPUs, these are
    replicated), MLP and experts by their width, the LM head by its vocabulary. Norms, rotary
    embeddings, activation functions and the router's choice are left out, as in SSSD's table 1.
    """
    size, hidden = tensor_parallel_size, shape.hidden_size
    operators = [
        Operator.matmul(name, inputs, outputs, count)
        for name, outputs, inputs, count in shape.attention_matrices(size)
    ]
    for outputs, inputs in shape.fusing_matrices:
        operators.append(Operator.matmul("fuse", inputs, outputs))
    mlp = [
        Operator.matmul(name, inputs, outputs, count)
        for name, outputs, inputs, count in shape.mlp_matrices(size)
    ]
    if shape.num_experts:
        layers, width = shape.num_expert_layers, -(-shape.moe_intermediate_size // size)
        gated = 2 if shape.has_gated_mlp else 1
        operators.append(Operator.matmul("router", hidden, shape.num_experts, layers))
        mlp += [
            _experts(Operator.matmul("up", hidden, gated * width, layers), shape),
            _experts(Operator.matmul("down", width, hidden, layers), shape),
        ]
    head = Operator.matmul("lm_head", hidden, -(-shape.vocab_size // size))
    return [*operators, *mlp, head._replace(is_sampled=True)]


def attention_operator(shape: ModelShape, tensor_parallel_size: int = 1) -> AttentionOperator:
    """Return the attention of all layers, as one of the GPUs runs it."""
    queries = keys = latent = 0
    for each, count in shape.attention_widths.items():
        queries += shape.num_attention_heads // tensor_parallel_size * count * each.head_dim
        keys += each.per_gpu(tensor_parallel_size) * count * each.head_dim
        latent += count * each.latent_dim
    if latent:
        return AttentionOperator(4.0 * queries, latent, latent + 2.0 * queries)
    return AttentionOperator(4.0 * queries, 2.0 * keys, 2.0 * keys + 2.0 * queries)


def free_budget(
    operators: Sequence[Operator], flops_per_s: float, numbers_per_s: float
) -> float | None:
    """Return how many tokens a step can have before computing takes longer than reading weights.

    Up to there, tokens are almost free. None where moving the tokens alone takes longer than
    computing on them.

    Args:
        operators: Taken together. The budget of one matrix is SSSD's.
        numbers_per_s: Bytes per second over bytes per number.

    References:
        Marzollo et al. (2024), "SSSD: Simply-Scalable Speculative Decoding", arXiv 2411.05894,
        section 3.2.1: 1 / (2 (1/h + 1/(2 b s_q))) = peak / bandwidth, for two bytes per number.
    """
    # All experts count as read: wherever computing takes as long, next to none is left out.
    read_time = sum(each.runs * each.weights for each in operators) / numbers_per_s
    moved_time = sum(each.runs * each.activations for each in operators) / numbers_per_s
    token_time = sum(each.runs * each.flops_per_token for each in operators) / flops_per_s
    return read_time / (token_time - moved_time) if token_time > moved_time else None


def _experts(operator: Operator, shape: ModelShape) -> Operator:
    chosen = shape.num_experts_per_tok
    return operator._replace(
        flops_per_token=operator.flops_per_token * chosen,
        weights=operator.weights * shape.num_experts,
        activations=operator.activations * chosen,
        num_experts=shape.num_experts,
        experts_per_token=chosen,
    )
