"""Step times composed from measured kernels."""

from functools import cached_property
from pathlib import Path
from typing import Literal, Self, final

import numpy as np
from pydantic import Field, model_validator

from specsim.core.columns import find_table
from specsim.core.errors import ProfileError
from specsim.core.settings import load_mapping
from specsim.core.step import StepLoad
from specsim.latency._kernel_tables import Attention, KernelTables
from specsim.latency.base import LatencyModel, one_by_one


@final
class Kernels(LatencyModel):
    """The sum of a model's kernels, each interpolated linearly in a table of measured times.

    Per layer: two norms, QKV projection, rotary embedding, attention, output projection, and the
    MLP or the experts; once per step: embedding, final norm, and what runs per sequence (LM head,
    sampler). With several GPUs, two all-reduces per layer.

    The folder holds ``dense.csv`` (layer, tokens, time_us), ``attention.csv`` (prefill_chunk,
    kv_prefill, n_decode, kv_decode, time_us), ``per_sequence.csv`` (layer, sequences, time_us), and
    optionally ``skew.csv`` and ``moe.csv`` (tokens, activated_experts, time_us), gzip or not; where
    it has a folder ``tp<N>``, that of the tensor parallelism. The tables are of one GPU, so they
    are of the shard that it holds.
    """

    kind: Literal["kernels"] = "kernels"
    examples = ()
    path: Path
    """Folder with the tables."""
    num_layers: int = Field(gt=0)
    """Layers of the model."""
    skew: bool | None = None
    """Whether ``skew.csv`` counts; by default it does, unless the folder's ``meta.yaml`` says that
    no skew was profiled."""
    tensor_parallel_size: int = Field(default=1, gt=0)
    hidden_size: int | None = Field(default=None, gt=0)
    """Of the model; needed for what an all-reduce carries."""
    all_reduce_us: float = Field(default=20.0, ge=0)
    """Start-up of an all-reduce."""
    all_reduce_gb_per_s: float = Field(default=16.0, gt=0)
    """Bandwidth of an all-reduce, 10^9 bytes per second."""
    num_experts: int | None = Field(default=None, gt=0)
    """Of a mixture-of-experts model."""
    experts_per_token: int | None = Field(default=None, gt=0)
    """Of these, how many each token activates."""

    @property
    def uses_pieces(self) -> bool:
        """Always: attention depends on more than sums."""
        return True

    @model_validator(mode="after")
    def _check_tables(self) -> Self:
        if self.tensor_parallel_size > 1 and self.hidden_size is None:
            raise ValueError("hidden_size is missing: an all-reduce carries that many numbers")
        try:
            tables = self._tables
            assert self._attention
        except ProfileError as error:
            raise ValueError(str(error)) from error
        if tables.moe is not None and not (self.num_experts and self.experts_per_token):
            raise ValueError(
                "num_experts and experts_per_token are missing: the folder has a moe.csv"
            )
        return self

    @cached_property
    def folder(self) -> Path:
        """Where the tables of this tensor parallelism lie."""
        own = self.path / f"tp{self.tensor_parallel_size}"
        return own if own.is_dir() else self.path

    @cached_property
    def _tables(self) -> KernelTables:
        return KernelTables(self.folder)

    @cached_property
    def _attention(self) -> Attention:
        return Attention(self.folder, applies_skew=self.applies_skew)

    @cached_property
    def applies_skew(self) -> bool:
        """Whether differing lengths count, by ``skew.csv``."""
        if self.skew is not None or find_table(self.folder, "skew") is None:
            return bool(self.skew)
        meta = self.path / "meta.yaml"
        said = load_mapping(meta, ProfileError) if meta.is_file() else {}
        parts = (said.get(name) for name in ("skew_profile", "skew_fit"))
        return not any(isinstance(part, dict) and part.get("enabled") is False for part in parts)

    def forward_time(self, load: StepLoad) -> float:
        """Return the sum of the kernels.

        Without `load.pieces`, all prefill tokens are one chunk and all decodes have the mean
        context length.
        """
        if load.pieces is None and any(isinstance(value, np.ndarray) for value in load):
            return one_by_one(self.forward_time, load)
        attention = self._attention_time(load)
        return self._time(load.batched_tokens, load.num_requests, attention)

    def measured_time(
        self, chunk: float, kv_prefill: float, decodes: float, kv_decode: float, skewed: float
    ) -> float:
        """Return how long a step lasts of which the attention was measured, seconds.

        Args:
            chunk, kv_prefill, decodes, kv_decode: A point of ``attention.csv``.
            skewed: By how much attention takes longer than that because the lengths differ; 1 if
                they do not.
        """
        attention = skewed * self._attention.time(chunk, kv_prefill, decodes, kv_decode, kv_decode)
        return self._time(int(chunk + decodes), int(decodes + (chunk > 0)), attention)

    def _time(self, tokens: int, sequences: int, attention: float) -> float:
        layer = self._tables.per_layer(tokens) + attention
        if self._tables.moe is not None:
            layer += self._tables.moe(tokens, self._activated_experts(tokens))
        if self.tensor_parallel_size > 1:
            layer += 2 * self._all_reduce_time(tokens)
        once = self._tables.once(tokens) + self._tables.per_sequence(sequences)
        return (self.num_layers * layer + once) * 1e-6

    def _attention_time(self, load: StepLoad) -> float:
        if load.pieces is not None:
            return self._attention.time_of(load.pieces)
        size, mean = load.num_requests, load.context_tokens / load.num_requests
        chunk = load.prefill_tokens
        if not chunk and load.batched_tokens > 16 * size:  # no decode has that many drafts
            chunk = load.batched_tokens
        if not chunk:
            mean += load.batched_tokens / size
            return self._attention.time(0, 0.0, size, mean, mean)
        decodes = min(size - 1, load.batched_tokens - chunk)
        return self._attention.time(chunk, mean, decodes, mean, mean)

    def _activated_experts(self, tokens: int) -> float:
        """Return how many different experts the tokens choose, expected if each does at random."""
        assert self.num_experts
        assert self.experts_per_token
        missed = (1 - self.experts_per_token / self.num_experts) ** tokens
        return self.num_experts * (1 - missed)

    def _all_reduce_time(self, tokens: int) -> float:
        assert self.hidden_size is not None
        carried = 2 * tokens * self.hidden_size  # bytes, two per number
        return self.all_reduce_us + carried / (self.all_reduce_gb_per_s * 1e3)
