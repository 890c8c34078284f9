"""Attention to a compressed context (DeepSeek-V4): its widths, its matrices, what it keeps.

Each layer attends to a window. Most attend besides to one entry for every 4 tokens, of which an
indexer chooses, or to one for every 128. What an entry is made of, the compressor keeps as a window
of its own.

References:
    vLLM 0.33.0 ``models/deepseek_v4/attention.py``, ``compressor.py``,
    ``v1/attention/backends/mla/sparse_swa.py`` (bytes and blocks), ``v1/core/kv_cache_planning.py
    _get_packed_kv_cache_groups``; re-implemented from a description of their behaviour.
"""

from collections import Counter
from collections.abc import Sequence

from specsim.hardware.kv_groups import FULL, SLIDING, KVLayers, parts_of
from specsim.hardware.model_fields import (
    INDEX_BYTES,
    RATIOS,
    AttentionWidth,
    LayerMatrix,
    LayerType,
    ModelFields,
)

_CHOSEN: LayerType = "compressed_sparse_attention"
_BLOCK_LEN, _WINDOW_BLOCK_LEN = 256, 64  # tokens of a block of entries, and of the window
_STATE_BLOCK_LENS: dict[LayerType, int] = {_CHOSEN: 4, "heavily_compressed_attention": 8}
_SCALE_BYTES = 8  # of an entry, whose rotary numbers have 16 bits and others 8
_PAGE_UNIT = 576  # bytes, to whose multiples pages are padded


def width(shape: ModelFields, kind: LayerType) -> AttentionWidth:
    """Return how wide a layer is; those that slide keep no entries."""
    ratio, dim = RATIOS.get(kind, 0), shape.head_dim
    topk, index = (shape.index_topk, shape.index_head_dim) if kind == _CHOSEN else (0, 0)
    kept = 1 / ratio if ratio else 0.0
    return AttentionWidth(shape.num_attention_heads, 1, dim, dim, dim, topk * ratio, index, kept)


def matrices(shape: ModelFields, each: AttentionWidth, layers: int, size: int) -> list[LayerMatrix]:
    """Return those of some layers, as each of `size` GPUs has them.

    The output projection is of groups, which are split; so are heads, and nothing else.
    """
    hidden, rank, dim = shape.hidden_size, shape.q_lora_rank or 0, each.head_dim
    grouped = shape.o_groups // size * shape.o_lora_rank
    found = [
        ("qkv", rank + dim, hidden),
        ("q", shape.num_attention_heads // size * dim, rank),
        ("o_a", grouped, shape.num_attention_heads * dim // shape.o_groups),
        ("o", hidden, grouped),
    ]
    if each.kept:
        found.append(("compress", 2 * _overlap(each) * dim, hidden))
    if each.index_dim:
        heads, index = shape.index_n_heads, each.index_dim
        found.append(("index_q", heads * index, rank))
        found.append(("index_k", 2 * _overlap(each) * index + heads, hidden))
    return [LayerMatrix(*sizes, layers) for sizes in found]


def _overlap(each: AttentionWidth) -> int:
    """Return from how many runs of tokens an entry is made."""
    return 2 if each.index_dim else 1


def hyper_weights(shape: ModelFields) -> int:
    """Return the weights that mix the residual streams, two times per layer; V4's at the end, too.

    GLM-5.3-Flash takes their mean there (``models/glm5next/common/model.py``).
    """
    streams = shape.hc_mult
    per_layer, last = 2 * (2 + streams) * streams, streams if shape.o_groups else 0
    return (shape.num_hidden_layers * per_layer + last) * streams * shape.hidden_size


def token_bytes(shape: ModelFields, each: AttentionWidth) -> float:
    """Return what entries take of a token in one layer, however many GPUs there are."""
    entries = int(_BLOCK_LEN * each.kept)
    indexed = each.index_dim + INDEX_BYTES if each.index_dim else 0
    return (_page(entries * _entry_bytes(shape)) + _page(entries * indexed)) / _BLOCK_LEN


def _entry_bytes(shape: ModelFields) -> int:
    return shape.head_dim + shape.qk_rope_head_dim + _SCALE_BYTES


def _page(num_bytes: int) -> int:
    return -(-num_bytes // _PAGE_UNIT) * _PAGE_UNIT


def kv_layers(
    shape: ModelFields, kinds: Sequence[LayerType], bytes_per_token: float
) -> tuple[KVLayers, ...]:
    """Return what the layers keep: entries, the compressors' windows, and the layers' own.

    Args:
        bytes_per_token: Of the entries of all layers.
    """
    counts = Counter(kinds)
    entries = [kind for kind in kinds if kind in RATIOS]
    states = {kind: counts[kind] for kind in RATIOS if counts[kind]}
    in_group = _group_len([len(kinds), *states.values()], counts[_CHOSEN])
    own = _page(_WINDOW_BLOCK_LEN * _entry_bytes(shape)) / _WINDOW_BLOCK_LEN
    found = [_state(shape, kind, count) for kind, count in states.items()]
    if entries:
        each = bytes_per_token / len(entries)
        found.insert(
            0, KVLayers(kind=FULL, layers=len(entries), bytes_per_token=each, block_size=_BLOCK_LEN)
        )
    windows = {"window": shape.sliding_window, "block_size": _WINDOW_BLOCK_LEN}
    for layers in parts_of(len(kinds), in_group):
        found.append(KVLayers(kind=SLIDING, layers=layers, bytes_per_token=own, **windows))
    return tuple(found)


def _state(shape: ModelFields, kind: LayerType, layers: int) -> KVLayers:
    """Return what the compressors of some layers keep, numbers of 32 bits."""
    each, tokens = width(shape, kind), _STATE_BLOCK_LENS[kind]
    overlap = _overlap(each)
    pages = [_page(tokens * 2 * overlap * dim * 4) for dim in (each.head_dim, each.index_dim)]
    return KVLayers(
        kind=SLIDING,
        layers=layers,
        window=overlap * RATIOS[kind],
        bytes_per_token=sum(pages) / tokens,
        block_size=tokens,
    )


def _group_len(counts: list[int], least: int) -> int:
    """Return how many layers a group has, so that groups of all kinds are padded least."""
    if not least:  # nothing has pages of two sizes, and nothing is split
        return max(counts)
    choices = range(max(counts), least - 1, -1)
    return min(choices, key=lambda length: sum(-count % length for count in counts))
