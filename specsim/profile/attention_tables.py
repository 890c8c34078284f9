"""Attention of the layers of a model, looked up in a GPU's kernel tables."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from specsim.core.errors import ProfileError
from specsim.core.settings import load_mapping
from specsim.hardware import AttentionWidth, ModelShape
from specsim.hardware.model_fields import OF_EACH, SPANS, LayerType
from specsim.profile.kernel_tables import (
    BEYOND_CACHE,
    DTYPES,
    GpuTables,
    MeasuredTable,
    Precision,
    Scales,
    TableOptions,
    Values,
    us_per_byte,
)
from specsim.profile.kernel_times import LAUNCH_US, HeadTimes, StateTimes, along

_USUAL_HEAD_DIM = 128
_MODULES = load_mapping(Path(__file__).with_name("modules.yaml"), ProfileError)
_ENTRIES: LayerType = "heavily_compressed_attention"
_TABLES: dict[LayerType, str] = {"compressed_sparse_attention": "_csa", _ENTRIES: "_hca"}
_TOLERANCE = 0.005  # of times, by which points are left out that lie between others
_PACKED_ROWS = 128  # query rows of a tile, all heads of a key-value head side by side
_UNPACKED_ROWS = 64  # of a tile of FlashAttention 2, for a single head
_NOTHING_US = 0.01
_LEAST_US = 1.5  # of latent attention besides its matrices: a launch
_LATENT_KERNELS = 4  # besides: two norms, rotary embedding, writing the latent vector


class Matrix(NamedTuple):
    """A matrix, as one GPU multiplies tokens with it."""

    outputs: int
    inputs: int
    runs: int = 1
    part: str = "attention"  # of `specsim.profile.kernel_tables.Precision`


class AttentionTables:
    """Looks up attention.

    Args:
        matrices: Returns the batched tokens that were measured, and what matrices take together.
        note: Told of tables and kernels that were used.
    """

    def __init__(
        self,
        shape: ModelShape,
        options: TableOptions,
        tables: GpuTables,
        matrices: Callable[[list[Matrix]], tuple[Values, Values]],
        note: Callable[[str], None],
    ) -> None:
        self._shape, self._options, self._tables = shape, options, tables
        self._matrices, self._note = matrices, note
        self._size = options.tensor_parallel_size
        self._dtype = Precision.of(options.dtype).stored("attention")
        self._scales = Scales.of(options)

    def layers(self) -> Iterator[dict[str, Any]]:
        """Yield the fields of `specsim.latency.composed.AttentionLayers`, one of each kind."""
        for kind in _layer_kinds(self._shape):
            if kind.width.topk:
                yield from self._sparse(kind)
                continue
            if self._shape.o_groups:
                yield self._compressed(kind)
                continue
            times_of = self._module if kind.width.latent_dim else self._times_of
            decodes, kernel = times_of(kind, "generation")
            prompts, _ = times_of(kind, "context")
            group = self._num_heads(kind, "generation") // kind.width.per_gpu(self._size)
            contexts, sequences, grid = decodes.grid()
            whole = contexts * self._options.decode_context_parallel_size  # each has a part of it
            yield self._fields(
                *(kind.num_layers, kind.window, _tile(kernel, group)),
                (whole, sequences, grid),
                self._prompts_of(kind, prompts),
            )
        if self._shape.state_layers:
            states = StateTimes(self._shape, self._options, self._tables, self._note)
            count = self._shape.state_layers
            yield self._fields(count, 1, 1, states.decodes(), states.prompts())

    def _fields(
        self,
        num_layers: int,
        window: int | None,
        tile: int,
        decodes: tuple[Values, Values, Values],
        prompts: tuple[Values, Values],
    ) -> dict[str, Any]:
        contexts, sequences, grid = decodes
        grid = self._scales.read * grid
        kept = needed(contexts, grid.T)
        contexts, grid = contexts[kept], grid[kept]
        lens, times = prompts
        return {
            "num_layers": num_layers,
            **({"window": window} if window else {}),
            "tile": tile,
            "context_tokens": contexts.astype(int).tolist(),
            "sequences": sequences.astype(int).tolist(),
            "decode_us": [rounded(row) for row in grid],
            "prompt": {
                "at": lens.astype(int).tolist(),
                "times_us": rounded(self._scales.compute * times),
            },
        }

    def _sparse(self, kind: "_LayerKind") -> Iterator[dict[str, Any]]:
        """Yield attention that reads the tokens which an indexer chooses, and the indexer's scan.

        They were measured together. Up to as many tokens as are chosen, all is attention; what a
        longer context adds is the scan. Each query token has a tile of its own.
        """
        decodes, _ = self._module(kind, "generation")
        prompts, _ = self._module(kind, "context")
        topk, (contexts, sequences, grid) = kind.width.topk, decodes.grid()
        is_near = contexts <= topk + 1  # and itself
        near = contexts[is_near], sequences, grid[is_near]
        lens, of_attention, scanned = prompts.chosen_prompts(topk)
        yield self._fields(kind.num_layers, topk, 1, near, (lens, of_attention))
        if kind.width.index_dim:
            far = contexts[contexts >= contexts[is_near][-1]]
            excess = grid[len(contexts) - len(far) :] - grid[is_near][-1]
            floor = np.full_like(excess[:1], _NOTHING_US)
            rows = np.maximum.accumulate(np.concatenate([floor, np.maximum(excess[1:], floor)]))
            ends = lens[[0, -1]]
            scan = far, sequences, rows
            yield self._fields(kind.num_layers, None, 1, scan, (ends, scanned[[0, -1]]))

    def _compressed(self, kind: "_LayerKind") -> dict[str, Any]:
        """Return attention to a window, and to all entries of a compressed context.

        Layers that have none of those were not measured: they are taken to be as the others are
        within the window. Each query token has a tile of its own.
        """
        decodes, _ = self._module(kind, "generation")
        prompts, _ = self._module(kind, "context")
        contexts, sequences, grid = decodes.grid()
        if kind.window:
            self._note(f"layers with a window only as {_ENTRIES} within it")
            within = contexts <= kind.window + 1
            contexts, grid = contexts[within], grid[within]
        decoding = contexts, sequences, grid
        return self._fields(kind.num_layers, kind.window, 1, decoding, prompts.prompts())

    def _num_heads(self, kind: "_LayerKind", phase: str) -> int:
        """Return the heads of queries on each GPU, in decodes also those of GPUs it shares with."""
        own = kind.width.num_attention_heads // self._size
        return own * (self._options.decode_context_parallel_size if phase == "generation" else 1)

    def _times_of(self, kind: "_LayerKind", phase: str) -> tuple[HeadTimes, str]:
        table = self._tables.table("attention", f"{phase}_attention_perf")
        if kind.window and "window_size" not in table.rows.column_names:
            raise ProfileError(
                f"{table.source}: was measured without windows, and '{self._options.model}' has "
                f"layers with one of {kind.window} tokens; use `specsim profile roofline`"
            )
        is_carried = self._is_carried(kind)
        wanted = {
            "head_dim": kind.head_dim,
            "kv_cache_dtype": self._options.kv_dtype,
            "window_size": 0 if is_carried else kind.window or 0,
        }
        keys = kind.width.per_gpu(self._size)
        if phase == "generation":
            table = from_memory(table, self._options.kv_dtype)
        found, kernel = self._heads(table, wanted, self._num_heads(kind, phase), keys)
        if phase == "generation":
            self._note(f"{table.source} ({kernel})")
            if is_carried:
                what = "chunks" if kind.is_chunked else "a window"
                self._note(f"{what} of {kind.window} tokens as attention to all of so many")
        return found, kernel

    def _is_carried(self, kind: "_LayerKind") -> bool:
        """Whether no table has its chunks, or its window of heads as wide."""
        if kind.window is None or kind.is_chunked:
            return kind.is_chunked
        table = self._tables.table("attention", "context_attention_perf")
        head_dim = _measured_dim(table, kind.head_dim)
        alike = {"head_dim": head_dim, "kv_cache_dtype": self._options.kv_dtype}
        return kind.window not in table.where("attention", **alike).values("window_size")

    def _prompts_of(self, kind: "_LayerKind", measured: HeadTimes) -> tuple[Values, Values]:
        """Return what whole prompts take: within chunks, or a window that nobody measured.

        Beyond the span, attention to everything that was measured goes on as it rises there.
        """
        lens, times = measured.prompts()
        span = kind.window
        if span is None or not self._is_carried(kind):
            return lens, times
        at = np.interp(span, lens, times)
        per_token = at / span if kind.is_chunked else 2 * (at - times[0]) / span
        within = lens < span
        ends = np.array([span, 2 * span])
        beyond = at + per_token * (ends - span)
        return np.append(lens[within], ends), np.append(times[within], beyond)

    def _module(self, kind: "_LayerKind", phase: str) -> tuple[HeadTimes, str]:
        """Return the times of attention that was measured as a whole in one phase, and the kernel.

        Heads whose number is no power of 2 were not measured: they lie between two that were.
        """
        heads = self._num_heads(kind, phase)
        fewer = 1 << heads.bit_length() - 1
        if fewer == heads or self._is_sparse(kind):
            return self._module_with(kind, phase, heads)
        (first, kernel), (last, _) = (
            self._module_with(kind, phase, each) for each in (fewer, 2 * fewer)
        )
        self._note(f"{heads} heads on a latent vector between {fewer} and {2 * fewer}")
        return first.towards(last, heads / fewer - 1), kernel

    def _is_sparse(self, kind: "_LayerKind") -> bool:
        return kind.width.topk > 0 or self._shape.o_groups > 0

    def _module_with(self, kind: "_LayerKind", phase: str, heads: int) -> tuple[HeadTimes, str]:
        """Return those of a number of heads on each GPU.

        That is with all matrices of a layer's attention, which count by themselves. Decodes of
        vLLM 0.24 on Hopper have what the host takes to launch it all, some 36 microseconds at any
        batch and context, which a graph hides: as much as the fewest tokens take longer than the
        kernel alone. What TensorRT-LLM's take is 3 to 9 more than that kernel.
        """
        update = {
            "num_attention_heads": heads,
            "num_hidden_layers": 1,
            "num_experts": 0,
            "first_k_dense_replace": 0,
            "attn_output_gate": False,
            "o_groups": self._shape.o_groups // self._size,
        }
        measured = _ENTRIES if self._shape.o_groups and not kind.width.kept else kind.type
        is_sparse = self._is_sparse(kind)
        module = _module_of(self._shape, sparse=is_sparse, named=self._options.model)
        update |= module.get("matrices", {})
        of_one = {**update, **dict.fromkeys(OF_EACH), "layer_types": (measured,)}
        one = self._shape.model_copy(update=of_one)
        name = module.get("file", "{table}{kind}_{phase}_module_perf").format(
            table=module.get("table"), kind=_TABLES.get(measured, ""), phase=phase
        )
        kernel = None if is_sparse else self._latent_kernel(phase, heads)
        if kernel and not self._tables.has(module["family"], name):
            return kernel
        table = self._tables.table(module["family"], name).of_phase(phase)
        own_names = {
            "model": _name_in(table, module["called"]),
            "gemm_type": self._dtype.matrices or "bfloat16",
        }
        named = self._options.kernels.get("attention")
        found, kernel_name = self._latent(table, phase, heads, named, **own_names)
        batch, isl, step, latency = found
        if phase == "generation" and (fewest := int(batch.min())) > 1:
            self._note(f"attention of fewer sequences than {fewest} as of so many")
        one_layer = [Matrix(*each[1:3]) for each in one.attention_matrices(1)]
        tokens, matrices = self._matrices(one_layer)
        own = latency - along(batch * isl, tokens, matrices)
        if kernel and phase == "generation":
            fewest = own[np.lexsort((step, batch))[0]]
            own = own - max(0.0, fewest - kernel[0].fewest)
        return HeadTimes(batch, isl + step, np.maximum(own, _LEAST_US)), kernel_name

    def _latent_kernel(self, phase: str, heads: int) -> tuple[HeadTimes, str] | None:
        """Return what latent attention takes of kernels that were measured one by one, if any were.

        By the engine's own, or SGLang's.
        """
        name = f"{phase}_mla_perf"
        of_engines = (self._tables, self._tables.of_engine("sglang"))
        tables = next((each for each in of_engines if each.has("mla", name)), None)
        if tables is None:
            return None
        found, kernel = self._latent(tables.table("mla", name), phase, heads, None)
        batch, isl, step, latency = found
        return HeadTimes(batch, isl + step, latency + _LATENT_KERNELS * LAUNCH_US), kernel

    def _latent(
        self, table: MeasuredTable, phase: str, heads: int, kernel: str | None, **wanted: str
    ) -> tuple[list[Values], str]:
        """Return batch, new and earlier tokens and time of latent attention, and the kernel."""
        kv_dtype = _format_in(table, self._options.kv_dtype)
        same = {"kv_cache_dtype": kv_dtype, "mla_dtype": "bfloat16"}
        first = {"step": 0} if phase == "context" else {}
        found = table.where("latent attention", **wanted, **same, num_heads=heads, **first)
        found, name = found.of_kernel(kernel)
        if phase == "generation":
            self._note(f"{table.source} ({name})")
        return found.columns("batch_size", "isl", "step"), name

    def _heads(
        self, table: MeasuredTable, wanted: Mapping[str, Any], heads: int, keys: int
    ) -> tuple[HeadTimes, str]:
        """Return the times of a number of heads: measured, or as `_of_heads` says."""
        head_dim, measured = wanted["head_dim"], _measured_dim(table, wanted["head_dim"])
        if measured != head_dim:
            share = head_dim / measured
            heads, keys = max(1, round(heads * share)), max(1, round(keys * share))
            self._note(
                f"heads of {head_dim} as {heads} of {measured}, with as many numbers per token"
            )
            wanted = {**wanted, "head_dim": measured}
        kernel = self._options.kernels.get("attention")
        found, name = table.where("attention", **wanted).of_kernel(kernel)
        found = found._replace(source=f"{table.source}, {name}")
        return self._of_heads(found, heads, keys), name

    def _of_heads(self, table: MeasuredTable, heads: int, keys: int) -> HeadTimes:
        """Return the times of some heads, or of an n-th of them at n times the batch.

        Where neither was measured, what lies between fewer and more heads on as many keys. Tried on
        heads that were measured, on six GPUs, that is 1.0 % off in decodes and 2.2 % in prompts,
        median; 5 and 10 % at the 90th percentile.
        """
        known = set(
            zip(table.values("num_heads"), table.values("num_key_value_heads"), strict=True)
        )
        parts = [n for n in range(1, keys + 1) if not heads % n and not keys % n]
        for n in parts:
            if (heads // n, keys // n) in known:
                return _measured(table, heads // n, keys // n).of_more_heads(n)
        alike = sorted(each for each, shared in known if shared == keys)
        fewer, more = ([n for n in alike if n < heads], [n for n in alike if n > heads])
        if not fewer or not more:
            return _measured(table, heads, keys)
        ends = fewer[-1], more[0]
        self._note(f"{heads} heads between {ends[0]} and {ends[1]}")
        share = (heads - ends[0]) / (ends[1] - ends[0])
        first, last = (_measured(table, each, keys) for each in ends)
        return first.towards(last, share)


def _measured(table: MeasuredTable, heads: int, keys: int) -> HeadTimes:
    found = table.where("attention", num_key_value_heads=keys, num_heads=heads)
    batch, isl, step, latency = found.columns("batch_size", "isl", "step")
    return HeadTimes(batch, isl + step, latency)


_KIND = "batch_size", "num_heads", "num_key_value_heads", "head_dim", "window_size"


def from_memory(table: MeasuredTable, kv_dtype: str) -> MeasuredTable:
    """Return decodes that read keys and values of one format from memory.

    Those that were measured from the cache (`us_per_byte`) take as long as so many sequences of the
    shortest context, and reading. By tables of an RTX PRO 6000 that were measured layer by layer
    (``experiments/built-profiles/from_memory.py``), 64 to 160 MB were 42 to 45 % short, now 6 to 7.
    """
    table = table.where("attention", kv_cache_dtype=kv_dtype)
    names = [name for name in _KIND if name in table.rows.column_names]
    *kinds, isl, step, times = table.columns(*names, "isl", "step")
    batch, _, keys, head_dim, *windows = kinds
    lens = isl + step
    seen = np.minimum(lens, np.where(windows[0] > 0, windows[0], lens)) if windows else lens
    moved = 2 * DTYPES[kv_dtype].bytes_per_weight * batch * seen * keys * head_dim
    each = us_per_byte(moved, times)
    if not each:
        return table
    _, kind = np.unique(np.stack(kinds), axis=1, return_inverse=True)
    order = np.lexsort((lens, kind))
    shortest = times[order[np.searchsorted(kind[order], kind)]]
    is_small = moved < BEYOND_CACHE
    return table.with_times(np.where(is_small, np.maximum(times, shortest + each * moved), times))


def _measured_dim(table: MeasuredTable, head_dim: int) -> int:
    """Return the numbers of a head as which a table has those of so many: the same, or as usual."""
    there = table.values("head_dim")
    return head_dim if head_dim in there or _USUAL_HEAD_DIM not in there else _USUAL_HEAD_DIM


def _format_in(table: MeasuredTable, kv_dtype: str) -> str:
    """Return what a table calls a format of the KV cache: ``fp8``, or ``fp8_e4m3``."""
    there = sorted(set(map(str, table.values("kv_cache_dtype"))))
    return next((name for name in there if name.partition("_")[0] == kv_dtype), kv_dtype)


def _name_in(table: MeasuredTable, called: str) -> str:
    """Return what a table calls a model: of whose repository, and in which data type, differs."""
    has_names = "model" in table.rows.column_names
    names = set(map(str, table.values("model"))) if has_names else set[str]()
    return min(
        (name for name in names if name.split("/")[-1].removesuffix("-FP8") == called),
        key=len,
        default=called,
    )


class _LayerKind(NamedTuple):
    num_layers: int
    type: LayerType
    window: int | None  # or chunk, tokens
    width: AttentionWidth

    @property
    def head_dim(self) -> int:
        """Numbers of a head: the mean of its keys and values."""
        return (self.width.head_dim + self.width.value_dim) // 2

    @property
    def is_chunked(self) -> bool:
        return self.type == "chunked_attention"


def _layer_kinds(shape: ModelShape) -> list[_LayerKind]:
    spans = {kind: getattr(shape, name) for kind, name in SPANS.items()}
    return [
        _LayerKind(count, kind, spans.get(kind), width)
        for (kind, width), count in shape.attention_kinds.items()
    ]


def _module_of(shape: ModelShape, *, sparse: bool, named: str) -> dict[str, Any]:
    """Return the model whose attention was measured as a whole and has the same sizes."""
    known = [each for each in _MODULES["modules"] if ("index_topk" in each["sizes"]) is sparse]
    for each in known:
        if all(getattr(shape, name) == size for name, size in each["sizes"].items()):
            return dict(each)
    sizes = "; ".join(
        f"{', '.join(f'{name} {size}' for name, size in each['sizes'].items())}, as in "
        f"{each['called']}"
        for each in known
    )
    what = "sparse" if sparse else "latent"
    raise ProfileError(
        f"'{named}': {what} attention was measured with {sizes} only; use `specsim profile "
        "roofline`"
    )


def needed(axis: Values, curves: Values) -> NDArray[np.int64]:
    """Return the points between which straight lines keep to all curves, within `_TOLERANCE`.

    Args:
        axis: Shape (n,), rising.
        curves: Shape (curves, n), above 0.
    """
    kept, last = [0], 0
    for end in range(2, len(axis)):
        share = (axis[last + 1 : end] - axis[last]) / (axis[end] - axis[last])
        line = curves[:, [last]] + share * (curves[:, [end]] - curves[:, [last]])
        if np.abs(line / curves[:, last + 1 : end] - 1).max() > _TOLERANCE:
            last = end - 1
            kept.append(last)
    return np.array([*kept, len(axis) - 1])


def _tile(kernel: str, group: int) -> int:
    """Return the query tokens of a tile; see `specsim.latency.composed.AttentionLayers.tile`."""
    unpacked = kernel.endswith(("flash_attn", "fa2"))
    return _UNPACKED_ROWS if unpacked else max(1, _PACKED_ROWS // group)


def rounded(values: Values) -> list[float]:
    """Return values to five significant digits, which is finer than anybody measures."""
    return [float(f"{value:.5g}") for value in values]
