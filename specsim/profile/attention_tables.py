"""Attention of the layers of a model, looked up in a GPU's kernel tables."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from specsim.core.errors import ProfileError
from specsim.hardware import AttentionWidth, ModelShape, load_model
from specsim.profile.kernel_tables import (
    DTYPES,
    GpuTables,
    MeasuredTable,
    Scales,
    TableOptions,
    chosen,
    columns,
)
from specsim.profile.kernel_times import HeadTimes, one_kernel

Values = NDArray[np.float64]

_USUAL_HEAD_DIM = 128
_OF_LATENT = ("hidden_size", "kv_lora_rank", "q_lora_rank", "qk_rope_head_dim", "head_dim")
_TOLERANCE = 0.005  # of times, by which points are left out that lie between others
_PACKED_ROWS = 128  # query rows of a tile, all heads of a key-value head side by side
_UNPACKED_ROWS = 64  # of a tile of FlashAttention 2, for a single head
_LEAST_US = 1.5  # of latent attention besides its matrices: a launch


class Matrix(NamedTuple):
    """A matrix, as one GPU multiplies tokens with it."""

    outputs: int
    inputs: int
    runs: int = 1


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
        self._dtype, self._scales = DTYPES[options.dtype], Scales.of(options)

    def layers(self) -> Iterator[dict[str, Any]]:
        """Yield the fields of `specsim.latency.composed.AttentionLayers`, one of each kind."""
        for kind in _layer_kinds(self._shape):
            keys = kind.width.per_gpu(self._size)
            heads = self._shape.num_attention_heads // self._size
            if kind.width.latent_dim:
                decodes, kernel = self._latent(heads, "generation")
                prompts, _ = self._latent(heads, "context")
            else:
                decodes, kernel = self._times_of(kind, heads, keys, "generation")
                prompts, _ = self._times_of(kind, heads, keys, "context")
            contexts, sequences, grid = decodes.grid()
            grid = self._scales.read * grid
            kept = needed(contexts, grid.T)
            contexts, grid = contexts[kept], grid[kept]
            lens, times = prompts.prompts()
            yield {
                "num_layers": kind.num_layers,
                **({"window": kind.window} if kind.window else {}),
                "tile": _tile(kernel, heads // keys),
                "context_tokens": contexts.astype(int).tolist(),
                "sequences": sequences.astype(int).tolist(),
                "decode_us": [rounded(row) for row in grid],
                "prompt": {
                    "at": lens.astype(int).tolist(),
                    "times_us": rounded(self._scales.compute * times),
                },
            }

    def _times_of(
        self, kind: "_LayerKind", heads: int, keys: int, phase: str
    ) -> tuple[HeadTimes, str]:
        """Return the times of attention in one phase, and the kernel."""
        table = self._tables.table("attention", f"{phase}_attention_perf")
        if kind.window and "window_size" not in table.rows.column_names:
            raise ProfileError(
                f"{table.source}: was measured without windows, and '{self._options.model}' has "
                f"layers with one of {kind.window} tokens; use `specsim profile roofline`"
            )
        wanted = {
            "head_dim": kind.width.head_dim,
            "kv_cache_dtype": self._options.kv_dtype,
            "window_size": kind.window or 0,
        }
        found, kernel = self._heads(
            table, wanted, heads, keys, self._options.kernels.get("attention")
        )
        if phase == "generation":
            self._note(f"{table.source} ({kernel})")
        return found, kernel

    def _latent(self, heads: int, phase: str) -> tuple[HeadTimes, str]:
        """Return the times of latent attention in one phase, and the kernel.

        They were measured in DeepSeek-V3, with all matrices of a layer's attention, which count by
        themselves. Of few sequences the tables of vLLM 0.24 have what the host takes to launch it
        all: on GB300 those of 0.27 are half as long.
        """
        measured = load_model("deepseek-v3").model_copy(update={"num_attention_heads": heads})
        if any(getattr(self._shape, name) != getattr(measured, name) for name in _OF_LATENT):
            sizes = ", ".join(f"{name} {getattr(measured, name)}" for name in _OF_LATENT)
            raise ProfileError(
                f"'{self._options.model}': latent attention was measured with {sizes} only, as in "
                "DeepSeek-V3; use `specsim profile roofline`"
            )
        table = self._tables.table("mla", f"mla_{phase}_module_perf")
        wanted = {
            "model": measured.name,
            "gemm_type": self._dtype.matrices or "bfloat16",
            "kv_cache_dtype": self._options.kv_dtype,
            "mla_dtype": "bfloat16",
            "num_heads": heads,
        }
        rows = chosen(table, "latent attention", **wanted)
        rows, kernel = one_kernel(rows, table, self._options.kernels.get("attention"))
        if phase == "generation":
            self._note(f"{table.source} ({kernel})")
        batch, isl, step, latency = columns(rows, "batch_size", "isl", "step")
        one_layer = [Matrix(*each[1:3]) for each in measured.attention_matrices(1)]
        tokens, matrices = self._matrices(one_layer)
        own = latency - np.interp(batch * isl, tokens, matrices)
        return HeadTimes(batch, isl + step, np.maximum(own, _LEAST_US)), kernel

    def _heads(
        self,
        table: MeasuredTable,
        wanted: Mapping[str, Any],
        heads: int,
        keys: int,
        kernel: str | None,
    ) -> tuple[HeadTimes, str]:
        """Return the times of a number of heads: measured, or as `_of_heads` says."""
        there = table.rows["head_dim"].to_pylist()
        if wanted["head_dim"] not in there and _USUAL_HEAD_DIM in there:
            share = wanted["head_dim"] / _USUAL_HEAD_DIM
            heads, keys = max(1, round(heads * share)), max(1, round(keys * share))
            self._note(
                f"heads of {wanted['head_dim']} as {heads} of {_USUAL_HEAD_DIM}, with as many "
                "numbers per token"
            )
            wanted = {**wanted, "head_dim": _USUAL_HEAD_DIM}
        rows, name = one_kernel(chosen(table, "attention", **wanted), table, kernel)
        return self._of_heads(MeasuredTable(rows, f"{table.source}, {name}"), heads, keys), name

    def _of_heads(self, table: MeasuredTable, heads: int, keys: int) -> HeadTimes:
        """Return the times of some heads, or of an n-th of them at n times the batch.

        Where neither was measured, what lies between fewer and more heads on as many keys. Tried on
        heads that were measured, on six GPUs, that is 1.0 % off in decodes and 2.2 % in prompts,
        median; 5 and 10 % at the 90th percentile.
        """
        columns_of = (table.rows[name].to_pylist() for name in ("num_heads", "num_key_value_heads"))
        known = set(zip(*columns_of, strict=True))
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
    rows = chosen(table, "attention", num_key_value_heads=keys, num_heads=heads)
    batch, isl, step, latency = columns(rows, "batch_size", "isl", "step")
    return HeadTimes(batch, isl + step, latency)


class _LayerKind(NamedTuple):
    num_layers: int
    window: int | None
    width: AttentionWidth


def _layer_kinds(shape: ModelShape) -> list[_LayerKind]:
    counts = shape.layer_counts
    if "chunked_attention" in counts:
        raise ProfileError(
            f"{shape.name}: has layers of chunked attention, whose kernels no table has; use "
            "`specsim profile roofline`"
        )
    return [
        _LayerKind(
            count,
            shape.sliding_window if kind == "sliding_attention" else None,
            shape.attention_width(kind),
        )
        for kind, count in counts.items()
    ]


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
