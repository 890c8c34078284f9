"""Decode context parallelism: GPUs that share the KV entries of every sequence out among them.

A token's entries lie on one GPU of a group, not on each that would have a copy. A decode's queries
are gathered, every GPU attends with those of the whole group to its own entries, and a
reduce-scatter combines what they found, after the logarithms of the sums of weights. Prompts of
latent attention are computed before they are stored, and only gather what earlier chunks have left,
which is not counted; in other attention all tokens of a step go that way.

References:
    vLLM 0.33.0 ``v1/attention/ops/dcp.py``, ``v1/attention/backends/flash_attn.py
    _forward_with_dcp``, ``model_executor/layers/attention/mla_attention.py forward_impl`` (with
    ``dcp_comm_backend`` ``ag_rs``, its default).
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from specsim.core.errors import ProfileError
from specsim.hardware import AttentionWidth, ModelShape
from specsim.profile.attention_tables import rounded
from specsim.profile.kernel_tables import TableOptions, Values
from specsim.profile.kernel_times import LAUNCH_US

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
    """Yield what the GPUs of a group send each other, as layers of `Composed.attention`."""
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
