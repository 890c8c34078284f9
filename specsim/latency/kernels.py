"""Step times composed from measured kernels."""

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Literal, Self, final

import numpy as np
from pydantic import Field, model_validator

from specsim.core.columns import find_table
from specsim.core.errors import ProfileError
from specsim.core.settings import Settings, load_mapping, validated
from specsim.core.step import StepLoad
from specsim.hardware.specs import Collective, Operation, of_operation
from specsim.latency import LatencyModel, one_by_one
from specsim.latency._kernel_tables import Attention, Grid, KernelTables, moe_grid, shard_folder


class ZeroWrites(Settings):
    """Zeros that a GPU writes where a token's expert is another GPU's.

    vLLM before 0.32, whose kernel leaves those out (``model_executor/layers/fused_moe/experts/
    triton_moe.py TritonExperts.apply`` has a comment on what it did before).
    """

    bytes_per_expert: float = Field(ge=0)
    """Bytes of zeros per token and such expert: the outputs of both matrix products."""
    gb_per_s: float = Field(gt=0)
    """Bandwidth of the memory, 10^9 bytes per second."""


_ROUTED_BYTES = 8
"""Number and weight of an expert, four bytes each."""


@final
class Kernels(LatencyModel):
    """The sum of a model's kernels, each interpolated linearly in a table of measured times.

    Per layer: two norms, QKV projection, rotary embedding, attention, output projection, and the
    MLP or the experts; once per step: embedding, final norm, and what runs per sequence (LM head,
    sampler). GPUs that share a layer exchange activations twice in it (`Collective`).

    The folder holds ``dense.csv`` (layer, tokens, time_us), ``attention.csv`` (prefill_chunk,
    kv_prefill, n_decode, kv_decode, time_us), ``per_sequence.csv`` (layer, sequences, time_us), and
    optionally ``skew.csv`` and ``moe.csv`` (tokens, activated_experts, time_us), gzip or not; or
    folders ``tp<N>`` that do, one per tensor parallelism. The tables are of one GPU, so they are of
    the shard that it holds: whole experts are those of ``tp1``.

    A `composed` model cannot say what these tables do: a chunk and decodes measured in one kernel,
    by how much lengths that differ slow a batch, and experts by how many of them are activated.

    A mixture of experts serves the tokens of all data-parallel ranks, which pass through each layer
    together (vLLM 0.32.0 ``v1/worker/dp_utils.py``): with expert parallelism every GPU holds some
    of the experts, else a slice of each.
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
    data_parallel_size: int = Field(default=1, gt=0)
    """Ranks that share the experts; the engine's (``engine.data_parallel_size``), if it says so."""
    enable_expert_parallel: bool = False
    """Whether each GPU holds whole experts, and not a slice of each; likewise the engine's."""
    hidden_size: int | None = Field(default=None, gt=0)
    """Hidden size of the model; needed for the exchange between GPUs."""
    collectives: tuple[Collective, ...] = ()
    """Measured times of what several GPUs exchange: all-reduces with tensor parallelism; an
    all-gather and a reduce-scatter where data-parallel ranks share experts."""
    num_experts: int | None = Field(default=None, gt=0)
    """Number of experts of a mixture-of-experts model."""
    experts_per_token: int | None = Field(default=None, gt=0)
    """Number of experts that each token activates."""
    shared_draft_experts: float = Field(default=0.1, ge=0, le=1)
    """Share of a token's experts that are those of the token before it in the same sequence,
    beyond chance. Of consecutive tokens in Mixtral 8x7B, 14 to 28 % by layer have the same first
    expert, where chance gives 12.5 % (Jiang et al. 2024, table 5): 0.02 to 0.17 more."""
    zero_writes: ZeroWrites | None = None
    """With expert parallelism; by default none, as in vLLM 0.32."""
    expert_imbalance: float = Field(default=1.0, ge=1)
    """Tokens of the GPU whose experts are chosen most, over the mean of all GPUs; 1 if the router
    is balanced, as training wants it and kernels are usually measured."""

    @property
    def uses_pieces(self) -> bool:
        return True

    @model_validator(mode="after")
    def _check_tables(self) -> Self:
        self._check_exchange()
        try:
            tables, experts = self.tables, self._experts
            assert self.attention
        except ProfileError as error:
            raise ValueError(str(error)) from error
        if experts is not None:
            self._check_experts()
        elif tables.has_mlp and (self.data_parallel_size > 1 or self.enable_expert_parallel):
            raise ValueError(
                "data_parallel_size and enable_expert_parallel: the tables are of a dense model; "
                "leave them out"
            )
        return self

    def _check_exchange(self) -> None:
        if self._num_gpus == 1:
            return
        if self.hidden_size is None:
            raise ValueError(
                f"hidden_size is missing: {self._num_gpus} GPUs exchange activations of that size"
            )
        wanted: list[Operation] = ["all_reduce"] if self.tensor_parallel_size > 1 else []
        if self.data_parallel_size > 1:
            wanted += "all_gather", "reduce_scatter"
        there = {each.operation for each in self.collectives}
        if missing := [each for each in wanted if each not in there]:
            raise ValueError(
                f"collectives has no {' and no '.join(missing)}, which {self._num_gpus} GPUs do in "
                "every layer; state what was measured (in the GPU's file, see profiles/h100.yaml)"
            )

    def _check_experts(self) -> None:
        if not (self.num_experts and self.experts_per_token):
            raise ValueError(
                "num_experts and experts_per_token are missing: the folder has a moe.csv"
            )
        if self.enable_expert_parallel and self.num_experts % self._num_gpus:
            raise ValueError(
                f"num_experts = {self.num_experts} cannot be split evenly over {self._num_gpus} "
                "GPUs; choose a divisor of that as tensor times data parallel size"
            )

    @property
    def _num_gpus(self) -> int:
        """GPUs that share the experts (vLLM: the EP group)."""
        return self.tensor_parallel_size * self.data_parallel_size

    def in_lock_step(self, data_parallel_size: int, *, expert_parallel: bool) -> Self:
        ranks = {
            "data_parallel_size": data_parallel_size,
            "enable_expert_parallel": expert_parallel,
        }
        fields = {name: getattr(self, name) for name in type(self).model_fields}
        if fields | ranks == fields:
            return self
        with validated(str(self.path), ProfileError):
            return type(self).model_validate({**fields, **ranks})

    @cached_property
    def folder(self) -> Path:
        """Where the tables of this tensor parallelism lie."""
        return shard_folder(self.path, self.tensor_parallel_size)

    @cached_property
    def _experts(self) -> Grid | None:
        """Where every GPU holds whole experts they are those of one GPU alone."""
        if self.tables.moe is None and self.tables.has_mlp:
            return None
        size = 1 if self.enable_expert_parallel else self._num_gpus
        folder = shard_folder(self.path, size)
        found = self.tables.moe if folder == self.folder else moe_grid(folder)
        if found is None:
            whole = "whole experts" if size == 1 else f"experts sliced over {size} GPUs"
            raise ProfileError(f"{folder}: has no moe.csv with {whole}; measure them there")
        return found

    @property
    def _token_bytes(self) -> float:
        """Of the activations of a token."""
        assert self.hidden_size is not None
        return 2.0 * self.hidden_size

    def _exchange_time(self, operation: Operation, message_bytes: float, gpus: int) -> float:
        table = of_operation(self.collectives, operation, gpus)
        assert table is not None
        return table.time(message_bytes, gpus)

    @cached_property
    def tables(self) -> KernelTables:
        return KernelTables(self.folder)

    @cached_property
    def attention(self) -> Attention:
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
        return self.lock_step_time([load] * self.data_parallel_size)

    def lock_step_time(self, loads: Sequence[StepLoad]) -> float:
        """Return how long ranks take for a pass through every layer together.

        In each layer the slowest is waited for, and experts serve the tokens of all.
        """
        attention = [self.attention_time(load) for load in loads]
        tokens = [load.batched_tokens for load in loads]
        sequences = [load.num_requests for load in loads]
        return self._time(tokens, sequences, attention)

    def measured_time(
        self, chunk: float, kv_prefill: float, decodes: float, kv_decode: float, skewed: float
    ) -> float:
        """Return how long a step lasts of which the attention was measured, seconds.

        Args:
            chunk, kv_prefill, decodes, kv_decode: A point of ``attention.csv``.
            skewed: By how much attention takes longer than that because the lengths differ; 1 if
                they do not.
        """
        attention = skewed * self.attention.time(chunk, kv_prefill, decodes, kv_decode, kv_decode)
        ranks = self.data_parallel_size
        tokens, sequences = int(chunk + decodes), int(decodes + (chunk > 0))
        return self._time([tokens] * ranks, [sequences] * ranks, [attention] * ranks)

    def _time(self, tokens: list[int], sequences: list[int], attention: list[float]) -> float:
        """Return the time of a pass, one number of each rank; seconds."""
        slowest = max(map(self._own_time, tokens, sequences, attention))
        shared = self._experts_time(tokens, sum(sequences)) if self._experts else 0.0
        return (slowest + self.num_layers * shared) * 1e-6

    def _own_time(self, tokens: int, sequences: int, attention: float) -> float:
        """Return what a rank takes for what it does not share with others, microseconds."""
        layer = self.tables.per_layer(tokens) + attention
        if self.tensor_parallel_size > 1:
            size, all_reduces = self.tensor_parallel_size, 2 if self.data_parallel_size == 1 else 1
            layer += all_reduces * self._exchange_time(
                "all_reduce", tokens * self._token_bytes, size
            )
        once = self.tables.once(tokens) + self.tables.per_sequence(sequences)
        return self.num_layers * layer + once

    def _experts_time(self, tokens: list[int], sequences: int) -> float:
        """Return what the experts of a layer take for the tokens of all ranks, microseconds.

        Tokens are gathered on every GPU with the numbers and weights of their experts, and what
        its experts made of them is summed up where they came from (vLLM 0.32.0
        ``distributed/device_communicators/all2all.py AgRsAll2AllManager``). Its kernel has all
        tokens as input, by which it chooses its tiles and which it activates and sums up; only the
        products with experts of other GPUs are left out (``model_executor/layers/fused_moe/
        fused_moe.py``), and few of them take longer than reading the weights.
        """
        assert self._experts is not None
        gpus, total = self._num_gpus, sum(tokens)
        activated = self.activated_experts(total, sequences)
        if self.enable_expert_parallel and gpus > 1:
            activated = min(activated, self.expert_imbalance * activated / gpus)
        time = self._experts(total, activated)
        if self.enable_expert_parallel and gpus > 1:
            time += self._zeros_time(total)
        if self.data_parallel_size > 1:
            # Who has the fewest gets the most from others: as if all got as much.
            others = total - min(tokens) / self.tensor_parallel_size
            exchanged, token_bytes = others * gpus / (gpus - 1), self._token_bytes
            routed_bytes = _ROUTED_BYTES * (self.experts_per_token or 0)
            time += self._exchange_time(
                "all_gather", exchanged * (token_bytes + routed_bytes), gpus
            )
            time += self._exchange_time("reduce_scatter", exchanged * token_bytes, gpus)
        return time

    def attention_time(self, load: StepLoad) -> float:
        if load.pieces is not None:
            return self.attention.time_of(load.pieces)
        size, mean = load.num_requests, load.context_tokens / load.num_requests
        chunk = load.prefill_tokens
        if not chunk and load.batched_tokens > 16 * size:  # no decode has that many drafts
            chunk = load.batched_tokens
        if not chunk:
            mean += load.batched_tokens / size
            return self.attention.time(0, 0.0, size, mean, mean)
        decodes = min(size - 1, load.batched_tokens - chunk)
        return self.attention.time(chunk, mean, decodes, mean, mean)

    def _zeros_time(self, tokens: int) -> float:
        """Return what writing zeros for other GPUs' experts takes, in both products; us."""
        assert self.experts_per_token
        if self.zero_writes is None:
            return 0.0
        others = (1 - 1 / self._num_gpus) * self.experts_per_token * tokens
        return others * self.zero_writes.bytes_per_expert / (self.zero_writes.gb_per_s * 1e3)

    def activated_experts(self, tokens: int, sequences: int) -> float:
        """Return how many different experts are chosen, expected.

        A sequence's first token chooses at random, and each token after it keeps a share of the
        experts of the one before.
        """
        assert self.num_experts
        assert self.experts_per_token
        choices = sequences + (1 - self.shared_draft_experts) * max(0, tokens - sequences)
        missed = (1 - self.experts_per_token / self.num_experts) ** choices
        return float(self.num_experts * (1 - missed))
