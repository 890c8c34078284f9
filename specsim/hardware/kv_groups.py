"""KV cache groups: which layers of a model share a block table, and how large a block is.

A model whose layers do not all attend alike (gpt-oss, Gemma, Llama 4) needs the KV entries of the
whole sequence in some of them and those of a window in others. vLLM's hybrid KV cache manager puts
layers of one kind into groups of about as many layers each, so that one pool of equal blocks serves
all of them. Layers that keep a state (delta nets, Mamba) put one of them into a block.

Source of the rules: vLLM 0.32.0 ``v1/core/kv_cache_utils.py get_kv_cache_groups`` and
``v1/kv_cache_interface.py``, re-implemented from a description of their behaviour.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import gcd, lcm
from typing import Annotated, Literal, NamedTuple, Self

from pydantic import Field, model_validator

from specsim.core.errors import ConfigError
from specsim.core.settings import Settings

Kind = Literal["full_attention", "sliding_window", "chunked_local_attention", "state", "ring"]
KINDS: tuple[Kind, ...] = ("full_attention", "sliding_window", "chunked_local_attention", "state")
"""Of groups: one of rings is of full attention."""
FULL, SLIDING, CHUNKED, STATE = KINDS
RING: Kind = "ring"

_NEVER_FULL = 2**31  # tokens of a ring, which no sequence fills
_UNFOUND = -1  # bucket of what no prefix is looked up in
_BYTES_PER_TOKEN = 4096.0  # any number would do where none is given: only ratios count then
_MUCH_LARGER = 1.5  # vLLM's heuristic for how much of a block may be left unused

Count = Annotated[int, Field(gt=0, le=2**31)]


class KVLayers(Settings):
    """A run of layers that are alike: of attention, or of those that keep a state instead."""

    kind: Literal["full_attention", "sliding_window", "chunked_local_attention", "state", "ring"]
    """Ring: one block of a sequence, which it writes over and over and no prefix is found in (what
    GLM-5.3-Flash's indexer has yet to pool)."""
    layers: Annotated[int, Field(gt=0, le=4096)]
    window: Count | None = None
    """Of a sliding window: tokens that a token attends to, itself included."""
    chunk: Count | None = None
    """Of chunked local attention: tokens of a chunk; a token attends to those of its own."""
    bytes_per_token: Annotated[float, Field(gt=0)] | None = None
    """Key and value of one token in one layer, on one GPU; by default those of the model. Layers
    with a state have none: vLLM pads a state to a block of attention."""

    block_size: Count | None = None
    """Tokens of a block, where layers have their own (DeepSeek-V4): each such run of layers is a
    group, and a block is as large as the largest group needs."""
    saves_inside: bool = False
    """Of layers with a state: whether the last one that a prefill leaves to others is saved inside
    a piece (Mamba2, FlashKDA, FlashInfer's delta nets), so that no piece has to end there."""

    @model_validator(mode="after")
    def _check_span(self) -> Self:
        for kind, name in ((SLIDING, "window"), (CHUNKED, "chunk")):
            is_given = getattr(self, name) is not None
            if is_given != (self.kind == kind):
                rule = "leave it out" if is_given else "give its number of tokens"
                raise ValueError(
                    f"{name} is {'given' if is_given else 'missing'}: layers of kind '{kind}', "
                    f"and no others, have one, and these are of kind '{self.kind}'; {rule}"
                )
        if self.kind in (STATE, RING) and self.bytes_per_token is not None:
            raise ValueError(
                f"bytes_per_token: layers of kind '{self.kind}' have one to a block; leave it out"
            )
        if self.saves_inside and self.kind != STATE:
            raise ValueError(
                f"saves_inside: layers of kind '{self.kind}' keep no state; leave it out"
            )
        return self

    @property
    def span_len(self) -> int:
        """Window or chunk, tokens; 0 of full attention."""
        return self.window or self.chunk or 0


class StateBlocks(NamedTuple):
    """How vLLM keeps states, one to a block (``mamba_cache_mode``)."""

    block_size: int
    """Tokens after which a state is kept: of a block with prefix caching (``align``), else
    max_model_len, so that there is one (``none``)."""
    num_spare: int
    """Further blocks of a sequence, for the states after each of its drafts."""
    saves_inside: bool = False
    """Whether one is saved inside a piece of a prefill, into a block besides."""


@dataclass(frozen=True)
class KVGroup:
    """Layers that share a block table (vLLM: KV cache group)."""

    kind: Kind
    span_len: int  # window or chunk, tokens; 0 of full attention
    block_size: int  # tokens of a block
    num_layers: int
    bucket: int  # number of what is alike: groups of one bucket hold the same prefixes
    has_last_layer: bool = True
    """Whether the bucket holds the layer that was registered last, which is a drafter's, if any."""
    num_spare: int = 0  # see `StateBlocks`
    saves_inside: bool = False

    @property
    def is_found(self) -> bool:
        """Whether prefixes are looked up in it."""
        return self.bucket != _UNFOUND

    def most_blocks(self, length: int, in_flight_tokens: int) -> int:
        """Return how many blocks a sequence of a length is reckoned to hold when it is admitted.

        Args:
            in_flight_tokens: Most tokens of a sequence whose windows are still read: those of one
                step, of two where steps are scheduled asynchronously.

        References:
            vLLM ``v1/kv_cache_interface.py max_admission_blocks_per_request``.
        """
        if self.kind == SLIDING:
            held_len = min(self.span_len - 1 + in_flight_tokens, length)
            return -(-held_len // self.block_size) + 1
        if self.kind == STATE:  # the one that is read and the one that is written
            return min(2, -(-length // self.block_size)) + self.num_spare + self.saves_inside
        if self.kind == CHUNKED:
            return -(-min(self.span_len + in_flight_tokens, length) // self.block_size)
        return -(-length // self.block_size)


@dataclass(frozen=True)
class KVLayout:
    """The groups of a model, in vLLM's order, and the size of the blocks that they share."""

    groups: tuple[KVGroup, ...]
    block_bytes: float  # memory of one block on one GPU

    @cached_property
    def common_block_size(self) -> int:
        """Tokens after which blocks of all groups end; hits are multiples of it."""
        return lcm(*(group.block_size for group in self.groups if group.is_found))

    @cached_property
    def hash_block_size(self) -> int:
        """Tokens after which the identity of a prefix is computed."""
        return gcd(*(group.block_size for group in self.groups if group.is_found))

    @property
    def last_group(self) -> int:
        """The group that holds the layer that was registered last, which is a drafter's, if any."""
        alike = [number for number, group in enumerate(self.groups) if group.has_last_layer]
        layers = sum(self.groups[number].num_layers for number in alike)
        return alike[(layers - 1) % len(alike)]

    @property
    def is_hybrid(self) -> bool:
        return len(self.groups) > 1

    @property
    def has_windows(self) -> bool:
        """Whether any group gives back blocks of a sequence that still runs."""
        return any(group.kind != FULL for group in self.groups)

    def most_blocks(self, length: int, in_flight_tokens: int) -> int:
        """Return how many blocks one sequence is reckoned to hold; see `KVGroup.most_blocks`."""
        return sum(group.most_blocks(length, in_flight_tokens) for group in self.groups)

    def tokens_in(self, num_blocks: int) -> int:
        """Return how many tokens of one sequence some blocks hold, before any leaves a window."""
        size = self.common_block_size
        return num_blocks * size // sum(size // group.block_size for group in self.groups)

    def capacity(self, num_blocks: int, length: int, in_flight_tokens: int) -> int:
        """Return how many tokens the KV cache holds in sequences of a length.

        Args:
            num_blocks: The null block included.

        References:
            vLLM ``v1/core/kv_cache_utils.py get_kv_cache_capacity``.
        """
        if not self.has_windows:
            return self.tokens_in(num_blocks - 1)
        return num_blocks * length // self.most_blocks(length, in_flight_tokens)


def one_group(block_size: int) -> KVLayout:
    """Return the layout of a model whose layers all attend to everything."""
    return kv_layout([KVLayers(kind=FULL, layers=1)], block_size)


def as_full_attention(layers: Sequence[KVLayers]) -> tuple[KVLayers, ...]:
    """Return layers as vLLM takes them where its hybrid manager is off.

    If they differ, all keep all tokens (``unify_hybrid_kv_cache_specs``). A ConfigError if some
    keep a state instead, or have blocks of their own.
    """
    if any(each.block_size for each in layers):
        raise ConfigError(
            "engine.disable_hybrid_kv_cache_manager, or scheduler prefill_first: layers whose "
            "blocks have their own sizes (DeepSeek-V4) cannot share one group; leave it out"
        )
    if any(each.kind in (STATE, RING) for each in layers):
        raise ConfigError(
            "engine.disable_hybrid_kv_cache_manager: layers with a state or a ring have no KV "
            "entries to keep; leave it out"
        )
    if len({(each.kind, each.span_len) for each in layers}) == 1:
        return tuple(layers)
    of_span = {"kind", "window", "chunk"}
    return tuple(KVLayers(kind=FULL, **each.model_dump(exclude=of_span)) for each in layers)


def kv_layout(
    layers: Sequence[KVLayers], block_size: int, states: StateBlocks | None = None
) -> KVLayout:
    """Return the groups that vLLM forms.

    A group of states is here one of full attention whose blocks no sequence fills; there are as
    many of it as a sequence has states in each layer.

    Args:
        layers: In the order in which the model registers them; a drafter's come last.
        block_size: As configured, tokens.
        states: By default as with prefix caching and no drafts.
    """
    if any(each.block_size for each in layers):
        return _packed(layers)
    states = states or StateBlocks(block_size, 0)
    rings = [KVGroup(FULL, 0, _NEVER_FULL, n, _UNFOUND, False) for n in _rings(layers)]
    layers = [each for each in layers if each.kind != RING]
    attention = [each.bytes_per_token or _BYTES_PER_TOKEN for each in layers if each.kind != STATE]
    widest = max(attention, default=_BYTES_PER_TOKEN)
    widths = [
        widest if each.kind == STATE else each.bytes_per_token or _BYTES_PER_TOKEN
        for each in layers
    ]
    if len({(each.kind, each.span_len) for each in layers}) == 1:
        first, count = layers[0], sum(each.layers for each in layers)
        total = sum(each.layers * width for each, width in zip(layers, widths, strict=True))
        own = states if first.kind == STATE else StateBlocks(block_size, 0)
        group = KVGroup(
            first.kind, first.span_len, own.block_size, count, 0, num_spare=own.num_spare
        )
        return KVLayout((group, *rings), block_size * total)
    counts: dict[tuple[Kind, int, int, float], int] = {}
    for each, width in zip(layers, widths, strict=True):
        # A narrower layer gets blocks of more tokens; where that does not come out even, padding.
        ratio = int(widest / width) if widest % width == 0 else 1
        own_size = states.block_size if each.kind == STATE else block_size * ratio
        last = (each.kind, each.span_len, own_size, width)
        counts[last] = counts.get(last, 0) + each.layers
    # Beside a ring pages differ in size, and whole blocks of attention are what states fill.
    full = sum(count for kind, count in counts.items() if kind[0] == FULL)
    size = full if rings else _layers_per_group(list(counts.values()))
    groups = []
    for bucket, (alike, count) in enumerate(counts.items()):
        for num_layers in parts_of(count, size):
            spare = (states.num_spare, states.saves_inside) if alike[0] == STATE else (0, False)
            groups.append(KVGroup(*alike[:3], num_layers, bucket, alike == last, *spare))
    return KVLayout((*groups, *rings), size * widest * block_size)


def _packed(layers: Sequence[KVLayers]) -> KVLayout:
    """Return groups of layers with blocks of their own, which are packed behind one another.

    Those that have none, a drafter's, get the longest. A ConfigError if some keep a state.
    """
    if any(each.kind == STATE for each in layers):
        raise ConfigError(
            "engine.kv_groups: block_size is given, and layers of kind 'state' have blocks that "
            "follow from the others'; leave one of them out"
        )
    longest = max(each.block_size or 0 for each in layers)
    sizes = [each.block_size or longest for each in layers]
    kinds = [(each.kind, each.span_len, size) for each, size in zip(layers, sizes, strict=True)]
    buckets = list(dict.fromkeys(kinds))
    groups = tuple(
        KVGroup(*kind, each.layers, buckets.index(kind), kind == kinds[-1])
        for each, kind in zip(layers, kinds, strict=True)
    )
    return KVLayout(
        groups,
        max(
            size * each.layers * (each.bytes_per_token or _BYTES_PER_TOKEN)
            for each, size in zip(layers, sizes, strict=True)
        ),
    )


def parts_of(layers: int, at_most: int) -> list[int]:
    """Return how many layers each of some groups has, as evenly as can be."""
    parts = -(-layers // at_most)
    return [len(range(part, layers, parts)) for part in range(parts)]


def _rings(layers: Sequence[KVLayers]) -> list[int]:
    """Return how many layers the group of rings has, if there is one."""
    count = sum(each.layers for each in layers if each.kind == RING)
    return [count] if count else []


def _layers_per_group(counts: list[int]) -> int:
    """Return how many layers a group has, given how many there are of each kind.

    The fewest there are; or the most, where that leaves little unused: a drafter's one layer beside
    12 of each kind makes 2 groups of 13, not 13 groups of 1.
    """
    fewest, most = min(counts), max(counts)
    return most if most < _MUCH_LARGER * fewest else fewest
