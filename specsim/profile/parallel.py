"""GPUs that divide a model beyond its matrices: stages of a pipeline, and shares of KV entries."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from specsim.core.errors import ProfileError
from specsim.core.step import StepLoad
from specsim.hardware import AttentionWidth, ModelShape
from specsim.latency import LATENCY
from specsim.profile.attention_tables import rounded
from specsim.profile.kernel_tables import TableOptions, Values
from specsim.profile.kernel_times import LAUNCH_US

_DECODES = 64  # of the step by which the head's part of a pass is told


def stage_layers(shape: ModelShape, options: TableOptions) -> list[int]:
    """Return the layers of each stage of a pipeline, as vLLM divides them.

    Evenly; what is left over goes to the stages before the last, one each. A ProfileError if layers
    are not alike, or there are fewer than stages.

    References:
        vLLM 0.32.0 ``distributed/utils.py get_pp_indices``.
    """
    stages, layers = options.pipeline_parallel_size, shape.num_hidden_layers
    if stages == 1:
        return [layers]
    mixed = shape.num_experts and shape.num_expert_layers != layers
    if len(shape.attention_widths) > 1 or len(shape.attention_kinds) > 1 or mixed:
        raise ProfileError(
            f"--pp {stages}: the layers of '{options.model}' are not alike, and how they are "
            "divided over stages is not simulated; leave it out"
        )
    if shape.state_layers or shape.o_groups or options.data_parallel_size > 1:
        raise ProfileError(
            f"--pp {stages}: with layers that keep a state or with --dp is not simulated; leave it "
            "out"
        )
    if layers < stages:
        raise ProfileError(f"--pp {stages}: '{options.model}' has {layers} layers; take fewer")
    found, left = [layers // stages] * stages, layers % stages
    for number in range(left):
        found[-2 - number] += 1
    return found


def stage_shares(stages: Sequence[int], fields: dict[str, Any]) -> list[float]:
    """Return what each stage takes of a pass, by its layers; the last one has the head, too.

    As in a decode of 64 sequences of 1,024 tokens: the head's part is taken to be the same in all
    steps.

    Args:
        fields: Of a composed latency model.
    """
    target = LATENCY.parse(fields)
    head_us = np.interp(_DECODES, fields["head"]["at"], fields["head"]["times_us"])
    decode = StepLoad(1024 * _DECODES, _DECODES, _DECODES)
    of_head = float(head_us) * 1e-6 / target.forward_time(decode)
    shares = [layers / sum(stages) * (1 - of_head) for layers in stages]
    shares[-1] += of_head
    return [round(share, 6) for share in shares]


_TOKENS: Values = np.array([2.0**power for power in range(15)])
_SUM_NUMBERS = 2  # of 16 bits, that the logarithm of a sum takes
_KERNELS = 3  # what combines what was found, attention among new tokens, adding both
_LATENT_KERNELS = 1
OperationTime = Callable[[str, int, Values], Values]
"""What one operation takes on so many GPUs, by what is sent; microseconds."""


def check_shares(shape: ModelShape, options: TableOptions) -> None:
    """Raise a ProfileError if GPUs cannot share out the KV entries, or it is not known how.

    References:
        vLLM 0.33.0 ``config/model.py verify_with_parallel_config``, ``config/parallel.py``.
    """
    count, size = options.decode_context_parallel_size, options.tensor_parallel_size
    if count == 1:
        return
    if size % count:
        raise ProfileError(f"--dcp {count}: must divide --tp {size}, whose GPUs it groups")
    is_plain = set(shape.layer_counts) == {"full_attention"} and len(shape.attention_widths) == 1
    [width] = shape.attention_widths if is_plain else [None]
    if width is None or width.topk or shape.o_groups or shape.state_layers:
        raise ProfileError(
            f"--dcp {count}: '{options.model}' has layers with windows, states, chosen tokens or "
            "of several kinds, whose entries are not shared out here; leave it out"
        )
    keys = width.num_key_value_heads
    most = 1 if size <= keys else size // keys
    if not width.latent_dim and (count > most or shape.num_attention_heads // keys % count):
        raise ProfileError(
            f"--dcp {count}: of the {keys} key-value heads of '{options.model}' {size} GPUs have "
            f"{most} copies, which is the most that share them out; take a divisor of that"
        )


def exchange_layers(
    shape: ModelShape, options: TableOptions, collective: OperationTime
) -> Iterator[dict[str, Any]]:
    """Yield what the GPUs of a group send each other, as layers of `Composed.attention`.

    A token's entries lie on one GPU of a group, not on each that would have a copy. A decode's
    queries are gathered, every GPU attends with those of the whole group to its own entries, and a
    reduce-scatter combines what they found, after the logarithms of the sums of weights. Prompts of
    latent attention are computed before they are stored, and only gather what earlier chunks have
    left, which is not counted; in other attention all tokens of a step go that way.

    References:
        vLLM 0.33.0 ``v1/attention/ops/dcp.py``, ``v1/attention/backends/flash_attn.py
        _forward_with_dcp``, ``model_executor/layers/attention/mla_attention.py forward_impl`` (with
        ``dcp_comm_backend`` ``ag_rs``, its default).
    """
    count = options.decode_context_parallel_size
    if count == 1:
        return
    [(width, num_layers)] = shape.attention_widths.items()
    heads = shape.num_attention_heads // options.tensor_parallel_size * count
    times = _times(shape, width, heads * _TOKENS, count, collective)
    prompts = np.zeros(len(times)) if width.latent_dim else times
    yield {
        "num_layers": num_layers,
        "window": 1,
        "tile": 1,
        "context_tokens": [1, 2],
        "sequences": _TOKENS.astype(int).tolist(),
        "decode_us": [rounded(times), rounded(times)],
        "prompt": {"at": _TOKENS.astype(int).tolist(), "times_us": rounded(prompts)},
        "decode_pair_us": rounded(np.diff(times)[-1:] / np.diff(_TOKENS)[-1:])[0],
    }


def _times(
    shape: ModelShape, width: AttentionWidth, queries: Values, count: int, collective: OperationTime
) -> Values:
    """Return what a layer exchanges takes, by the queries of a group, over all heads."""
    asked, found, kernels = width.head_dim, width.value_dim, _KERNELS
    if shape.kv_lora_rank and width.latent_dim:
        asked, found, kernels = width.latent_dim, shape.kv_lora_rank, _LATENT_KERNELS
    total = collective("all_gather", count, queries * asked)
    total = total + collective("all_gather", count, queries * count * _SUM_NUMBERS)
    total = total + collective("reduce_scatter", count, queries * found)
    return total + LAUNCH_US * kernels
