"""What a model's forward pass takes, kernel by kernel, from a GPU's tables.

What runs follows from the model's shape: matrices, norms and rotary embedding, attention, experts,
all-reduces, LM head.
"""

from contextlib import suppress
from functools import partial
from math import ceil, prod
from typing import Any

import numpy as np

from specsim.core.errors import ProfileError
from specsim.core.settings import nearest
from specsim.hardware import ModelShape, load_gpu
from specsim.hardware.cuda_graphs import capture_sizes
from specsim.latency.composed import EAGER_LAYER_US
from specsim.profile.attention_tables import AttentionTables, Matrix, needed, rounded
from specsim.profile.kernel_tables import (
    DTYPES,
    GpuTables,
    MeasuredTable,
    Precision,
    Scales,
    TableOptions,
    Values,
    rows_with,
)
from specsim.profile.kernel_times import (
    LAUNCH_US,
    ExpertTimes,
    MatrixTimes,
    along,
    line_of,
    skewed,
    small_weights,
)
from specsim.profile.parallel import check_shares, exchange_layers, stage_layers

_MATRIX_BYTES = 2  # of activations, norms and the LM head
_SMALL_KERNELS = 5  # per layer: two norms, rotary embedding, writing keys and values, activation
_LATENT_SMALL_KERNELS = 3  # two norms and the activation
_SGLANG_SMALL_KERNELS = 6  # keys and values are written by one each
_SGLANG_LAUNCH_US = 3.0  # of each, as none is compiled; experiments/silicon/PROTOCOL.md, claim 4
_SGLANG_GATE_KERNELS = 6  # more of gated attention: copies, norms of heads, the gate; claim 5 there
_BESIDE_KERNELS = 2  # of a state beside attention: its norm, adding both up
_NORM_KERNELS = 2  # per layer, before and behind an all-reduce: norms over all heads
_MEMORY_SHARE = 0.8  # of its bandwidth, that such a kernel reaches
_LAUNCH_BY_HOST_US = 50.0  # of one kernel of a compiled layer; experiments/gpu-runs/PROTOCOL.md
_SGLANG_LAYER_US = 1350.0  # of a mixture's, launched by SGLang; experiments/silicon/PROTOCOL.md
_EXPERT_KERNELS = 6  # per layer: choosing, sorting, two products, activation, sum
_FUSED_EXPERT_KERNELS = 2  # FlashInfer's are one call, after one that quantizes
_SORTED_BYTES = 780.0  # per logit, that a sampler which sorts moves, by the time it takes
_SCANNED_NS = 2.4  # per logit of a row, each row by a multiprocessor (132 where not known)
_MOST_SAMPLED = 4096  # tokens of a step that the next one is sampled after; beyond, a line
_QUANTIZED = {("attention", "fp8"): 1, ("attention", "nvfp4"): 2, ("mlp", "nvfp4"): 2}
"""Inputs of a layer's matrices that a kernel of its own quantizes, by data type: of 8 bits the
compiler fuses it into norms and activation, and only behind attention not; of 4 bits nowhere."""

Gemm = tuple[MatrixTimes, MatrixTimes | None]
"""Times of matrices, and what bounds them, if anything does."""


class Composer:
    """Looks up every kernel of one model."""

    def __init__(self, shape: ModelShape, options: TableOptions, tables: GpuTables) -> None:
        size = options.tensor_parallel_size
        try:
            shape.check_split(size)
        except ValueError as error:
            raise ProfileError(f"--tp {size}: '{options.model}' {error}") from error
        check_shares(shape, options)
        ranks = options.data_parallel_size
        if not shape.num_experts and (ranks > 1 or options.enable_expert_parallel):
            raise ProfileError(
                f"--dp {ranks} or --ep: '{options.model}' has no experts to share out; leave them "
                "out, and set data_parallel_size in the experiment"
            )
        self._shape, self._options, self._tables = shape, options, tables
        self._ranks = ranks
        self._size = size
        self._scales = Scales.of(options)
        self._precision = Precision.of(options.dtype)
        self._dtype = self._precision.stored("experts")
        self._gemms: dict[tuple[str, str], Gemm] = {}  # by format and source
        self._multiprocessors = load_gpu(options.tables_of or options.gpu).multiprocessors
        if self._dtype.matrices == "bfloat16" != self._dtype.experts and not shape.num_experts:
            raise ProfileError(
                f"--dtype {options.dtype}: is of experts, and '{options.model}' has none; choose "
                "bfloat16 or int4"
            )
        self._expert_kernels = _EXPERT_KERNELS
        self.sources: list[str] = []
        self.stages = stage_layers(shape, options)

    def latency(self) -> dict[str, Any]:
        """Return the fields of a `specsim.latency.composed.Composed`."""
        attention = AttentionTables(self._shape, self._options, self._tables, self._sum, self._note)
        tokens, layer = self._sum(self._layer_matrices())
        read, compute = np.full(len(tokens), layer[0]), layer - layer[0]
        exchanged = shared = self._exchanges(tokens)
        if self._shape.num_experts:
            expert_read, expert_rest = self._experts(tokens)
            read, compute = read + expert_read, compute + expert_rest
            shared = shared + self._scales.read * expert_read + self._scales.compute * expert_rest
        read, compute = self._scales.read * read, self._scales.compute * compute
        small = self._small_kernels(tokens)
        small = small + self._quantizing(tokens) + self._hyper_connections(tokens)
        compute = compute + small + self._all_reduces(tokens) + exchanged
        compute = compute + self._sends(tokens)
        total = np.maximum.accumulate(read + compute)
        read = np.minimum(np.maximum.accumulate(read), total)
        curves = [total, total + read, *([shared] if self._ranks > 1 else [])]
        kept = needed(tokens, np.stack(curves))
        of_all = {"at": tokens[kept].astype(int).tolist(), "times_us": rounded(shared[kept])}
        return {
            "kind": "composed",
            "batched_tokens": tokens[kept].astype(int).tolist(),
            "read_us": rounded(read[kept]),
            "compute_us": rounded((total - read)[kept]),
            "head": self._head(),
            **({"shared": of_all} if self._ranks > 1 else {}),
            **self._eager_fields,
            "attention": [
                *attention.layers(),
                *exchange_layers(self._shape, self._options, self._nccl),
            ],
            **self._own_fields,
        }

    @property
    def _eager_fields(self) -> dict[str, Any]:
        """Return what the host takes where no CUDA graph is: beyond the largest, or as named.

        The largest, tokens, may be named: vLLM up to 0.12 captures none of more than twice
        max_num_seqs, whatever the drafts.
        """
        named = self._options.kernels.get("graphs", "")
        if named.isdecimal() and (largest := int(named)):
            sizes = capture_sizes(largest)
            return {"capture_sizes": sizes, "eager_at_least_us": self._launching_us}
        graphs = self._chosen("graphs", "decodes", "none", "16")
        if graphs is None:
            return {"eager_at_least_us": self._launching_us}
        is_longer = self._options.engine == "sglang" and self._shape.num_experts
        layer_us = _SGLANG_LAYER_US if is_longer else EAGER_LAYER_US
        least = layer_us * self._shape.num_hidden_layers
        none = {"decodes_at_least_us": least, "capture_sizes": ()} if graphs == "none" else {}
        return {"prompts_at_least_us": least, **none}

    @property
    def _launching_us(self) -> float:
        """Return what the host takes to launch a pass of compiled layers kernel by kernel."""
        shape = self._shape
        kernels = sum(each.runs for each in self._layer_matrices())
        kernels += (_SMALL_KERNELS + 1) * shape.num_hidden_layers
        kernels += self._expert_kernels * shape.num_expert_layers
        kernels += shape.num_sums + 1 if self._size > 1 else 0
        if shape.qk_norm_type:
            kernels += (_NORM_KERNELS + (self._size > 1)) * shape.num_hidden_layers
        return _LAUNCH_BY_HOST_US * kernels

    @property
    def _own_fields(self) -> dict[str, Any]:
        """Return what not every profile has.

        Where drafts are verified, a pair of latent attention takes longer than in a prompt, which
        has keys and values of each head; with drafts, all heads read the latent vector.
        """
        shape, options, found = self._shape, self._options, dict[str, Any]()
        if shape.kv_lora_rank and not shape.index_topk:
            latent = 2 * shape.kv_lora_rank + shape.qk_rope_head_dim
            found["verify_factor"] = round(latent / (shape.head_dim + shape.v_head_dim), 3)
        if self._ranks > 1 or options.enable_expert_parallel:
            for name in ("data_parallel_size", "enable_expert_parallel"):
                found[name] = getattr(options, name)
        return found

    @property
    def weight_bytes(self) -> float:
        """Memory of the weights on each GPU, of a pipeline on those of the fullest stage, bytes."""
        shape = self._shape
        of_vocabulary = shape.hidden_size * shape.vocab_size
        own = shape.has_own_embedding + (shape.has_own_lm_head and not shape.tie_word_embeddings)
        plain = of_vocabulary * own * _MATRIX_BYTES
        plain += shape.other_embeddings * _MATRIX_BYTES
        rest = shape.num_parameters - of_vocabulary * own - shape.other_embeddings
        experts = shape.expert_bytes // shape.bytes_per_weight
        mlps = sum(each.outputs * each.inputs * each.layers for each in shape.mlp_matrices(1))
        small = experts * self._dtype.bytes_per_weight * self._padding / self._ranks
        small += mlps * self._precision.matrix_bytes("mlp")
        small += (rest - experts - mlps) * self._precision.matrix_bytes("attention")
        if self._fullest_share < 1:  # the first stage has the embedding, the last the head
            plain = of_vocabulary * _MATRIX_BYTES
        return float(plain + small * self._fullest_share) / self._size

    @property
    def _padding(self) -> float:
        """How much larger experts in MXFP4 lie in memory, their sides rounded up for the kernels.

        As Marlin and TRT-LLM have them (vLLM 0.33 ``fused_moe/oracle/mxfp4.py``). So gpt-oss-120b
        takes 65.8 GiB: a start-up log has 65.97 on an H100 (blog.huikang.dev, 2025-12-28, 0.11.2).
        """
        if not self._options.dtype.startswith("mxfp4"):
            return 1.0
        sliced = 1 if self._options.enable_expert_parallel else self._size
        sides = self._shape.hidden_size, self._shape.moe_intermediate_size / sliced
        padded = (ceil(side / step) * step for side, step in zip(sides, (256, 128), strict=True))
        return prod(padded) / prod(sides)

    @property
    def kv_bytes_per_token(self) -> float:
        """Key and value of a token in every layer, on each GPU, of a group the mean, bytes."""
        is_halved = self._options.kv_dtype == "fp8" and not self._shape.o_groups
        share = 0.5 if is_halved else 1.0
        indexed = self._shape.all_index_bytes  # in 8 bits anyway
        own = self._shape.kv_bytes_per_token_and_gpu(self._size) - indexed
        own = (own * share + indexed) * self._fullest_share
        return own / self._options.decode_context_parallel_size

    @property
    def _fullest_share(self) -> float:
        """Of the layers, of the stage that has most."""
        return max(self.stages) / sum(self.stages)

    def _layer_matrices(self) -> list[Matrix]:
        shape, size = self._shape, self._size
        found = [Matrix(*each[1:]) for each in shape.attention_matrices(size)]
        found += [Matrix(*sizes) for sizes in shape.fusing_matrices]
        if shape.num_experts:
            found.append(Matrix(shape.num_experts, shape.hidden_size, shape.num_expert_layers))
        return found + [Matrix(*each[1:], "mlp") for each in shape.mlp_matrices(size)]

    def _matrices(self, dtype: str, kernel: str | None, table: MeasuredTable) -> MatrixTimes:
        return MatrixTimes(table, dtype, kernel, self._multiprocessors)

    def _gemm(self, part: str, table: MeasuredTable) -> Gemm:
        """Return the times of a part's matrices, and what bounds them.

        That is of block-scaled ones, whose table has launches by the host: none of it is below 55
        microseconds on Hopper, 150 on Blackwell, where those of 8 bits with one scale, which read
        and compute as much, take 5; both meet where computing takes longer. Latent attention with
        four such matrices took 89 in all.
        """
        dtype = self._precision.stored(part).matrices or "bfloat16"
        key = dtype, table.source
        if key not in self._gemms:
            own = self._matrices(dtype, self._options.kernels.get("gemm"), table)
            plain = self._matrices("fp8", None, table) if dtype == "fp8_block" else None
            self._gemms[key] = own, plain
        return self._gemms[key]

    def _product(self, matrix: Matrix, table: MeasuredTable) -> tuple[Values, Values]:
        """Return batched tokens, and what a matrix takes with each, microseconds."""
        own, plain = self._gemm(matrix.part, table)
        times, sources = own.times(matrix.outputs, matrix.inputs), [own.source]
        if plain is not None:
            others = plain.times(matrix.outputs, matrix.inputs)
            times = np.minimum(times, along(own.tokens, plain.tokens, others))
            sources.append(f"{plain.source} where that is shorter")
        for source in sources:
            self._note(source)
        return own.tokens, times

    def _sum(self, matrices: list[Matrix]) -> tuple[Values, Values]:
        """Return the batched tokens that were measured, and all matrices together, microseconds."""
        found = [
            self._tables.newest("gemm", "gemm_perf", partial(self._product, matrix))
            for matrix in matrices
        ]
        tokens = found[0][0]
        total = np.zeros(len(tokens))
        for matrix, (measured, product) in zip(matrices, found, strict=True):
            dtype, times = self._precision.stored(matrix.part), product
            if dtype.matrices is None:
                times = small_weights(measured, times, dtype.bytes_per_weight / 2)
            if measured is not tokens:
                times = along(tokens, measured, times)
            total += matrix.runs * times
        return tokens, total

    def _small_kernels(self, tokens: Values) -> Values:
        shape, size = self._shape, self._size
        usual, launch_us, gate = _SMALL_KERNELS, LAUNCH_US, 0
        if self._options.engine == "sglang":
            usual, launch_us = _SGLANG_SMALL_KERNELS, _SGLANG_LAUNCH_US
            gate = _SGLANG_GATE_KERNELS * (shape.attn_output_gate is True)
        width = shape.mlp_width // size * (shape.num_experts_per_tok or 1)
        parts = []  # layers, kernels and numbers per token
        for each, count in shape.attention_widths.items():
            queries = each.num_attention_heads // size * each.head_dim
            keys = shape.num_projected(each, size) * each.head_dim
            numbers, kernels = 8 * shape.hidden_size + 3 * width, usual
            if each.latent_dim:  # rotary embedding and writing the cache were measured with it
                kernels = _LATENT_SMALL_KERNELS
            else:
                numbers += 2 * (queries + keys) + 4 * keys
                kernels += gate
            if shape.qk_norm_type:
                kernels, numbers = kernels + _NORM_KERNELS, numbers + 3 * (queries + keys)
            parts.append((count, kernels, numbers))
        if shape.state_layers:  # a norm more, behind the state
            own, beside = 4 * shape.convolved // size, shape.num_hybrid
            numbers = 8 * shape.hidden_size + 3 * width + own
            parts.append((shape.state_layers - beside, usual, numbers))
            parts.append((beside, _BESIDE_KERNELS, own))
        if length := shape.attn_res_block_size:
            sums = sum(ceil(each / length) + 1 for each in range(shape.num_hidden_layers))
            parts.append((shape.num_halves, 0, sums * shape.hidden_size // shape.num_hidden_layers))
        total = np.zeros(len(tokens))
        for count, kernels, numbers in parts:
            per_token = numbers * _MATRIX_BYTES / self._bandwidth * 1e6
            total += count * (kernels * launch_us + per_token * tokens)
        return total

    def _quantizing(self, tokens: Values) -> Values:
        """Return what kernels take that only quantize, all layers; none with ``quant=fused``.

        Inputs of matrices (`_QUANTIZED`), and queries where the KV cache has 8 bits.
        """
        options, layers = self._options, self._shape.num_hidden_layers
        parts = [(part, self._precision.stored(part).matrices) for part in ("attention", "mlp")]
        kernels = sum(_QUANTIZED.get((name, dtype or ""), 0) for name, dtype in parts)
        kernels += options.kv_dtype == "fp8" and not self._shape.o_groups  # measured with it
        if not kernels or options.kernels.get("quant") == "fused":
            return np.zeros(len(tokens))
        try:
            table = self._tables.table("quantize", "scale_matrix_perf")
        except ProfileError:  # not of every GPU
            return np.zeros(len(tokens))
        sizes = np.unique(table.columns("k")[0])
        nearest = sizes[np.abs(sizes - self._shape.hidden_size).argmin()]
        self._note(table.source)
        points, times = line_of(table.where("quantizing", k=int(nearest)), "m")
        return np.asarray(self._scales.read * layers * kernels * along(tokens, points, times))

    def _hyper_connections(self, tokens: Values) -> Values:
        """Return what mixing the residual streams takes, before and after both parts of layers.

        What comes after one and before the next is one kernel where that was measured.
        """
        shape, what = self._shape, "hyper-connections"
        if not shape.hc_mult:
            return np.zeros(len(tokens))
        use = rows_with(what, hc_mult=shape.hc_mult, hidden_size=shape.hidden_size)
        rows = self._tables.newest("mhc", "mhc_module_perf", use)
        self._note(rows.source)
        names = {"fused_post_pre"} & set(rows.values("op_name")) or {"pre", "post"}
        lines = (line_of(rows.where(what, op_name=name), "num_tokens") for name in sorted(names))
        total = sum(along(tokens, *line) for line in lines)
        return np.asarray(self._scales.read * shape.num_hidden_layers * total)

    @property
    def _bandwidth(self) -> float:
        """What small kernels reach, bytes per second."""
        return float(self._tables.system["gpu"]["mem_bw"]) * _MEMORY_SHARE / self._scales.read

    def _head(self) -> dict[str, Any]:
        shape = self._shape

        def measured(table: MeasuredTable) -> tuple[Values, Values]:
            plain = self._matrices("bfloat16", None, table)
            return plain.tokens, plain.times(-(-shape.vocab_size // self._size), shape.hidden_size)

        tokens, times = self._tables.newest("gemm", "gemm_perf", measured)
        # Sampling reads the logits a few times.
        logits = 3 * 4 * shape.vocab_size * tokens / self._bandwidth * 1e6
        times = self._scales.compute * times + times[0] * (self._scales.read - self._scales.compute)
        logits = logits + self._truncating(tokens) + self._gathering(tokens)
        times = np.maximum.accumulate(times + 5 * LAUNCH_US + logits)
        sampled = tokens <= _MOST_SAMPLED
        tokens, times = tokens[sampled], times[sampled]
        kept = needed(tokens, times[None])
        return {"at": tokens[kept].astype(int).tolist(), "times_us": rounded(times[kept])}

    def _gathering(self, rows: Values) -> Values:
        """Return what sending logits takes: each GPU has those of a part of the vocabulary.

        All-gathered by NCCL, not the engine's own kernel; where it was not measured it is left out,
        and the profile says so.
        """
        if self._size == 1:
            return np.zeros(len(rows))
        try:
            return self._nccl("all_gather", self._size, rows * self._shape.vocab_size)
        except ProfileError:
            self._note("without the gathering of logits, which was not measured")
            return np.zeros(len(rows))

    def _nccl(self, operation: str, gpus: int, sent: Values) -> Values:
        """Return what NCCL takes for so many numbers of 16 bits, microseconds."""
        tables = self._tables.of_engine("nccl")
        use = rows_with("exchange", op_name=operation, num_gpus=gpus, nccl_dtype="half")
        table = tables.newest("comm", "nccl_perf", use)
        sizes, times = line_of(table, "message_size")
        self._note(table.source)
        return along(sent, sizes, times)

    def _truncating(self, rows: Values) -> Values:
        """Return what top-p and top-k take, by the sampler that is named; none without.

        Who sends no temperature gets all of the model's generation_config.json from vLLM, which
        sorts the logits (0.11.1 to 0.15), or has a Triton kernel (0.16 to 0.20).
        """
        sampler = self._chosen("sampling", "sort", "triton")
        if sampler is None:
            return np.zeros(len(rows))
        if sampler == "sort":
            each = _SORTED_BYTES / self._bandwidth * 1e6 * rows
        else:
            each = _SCANNED_NS * 1e-3 * np.ceil(rows / (self._multiprocessors or 132))
        return np.asarray(self._shape.vocab_size * each)

    def _chosen(self, family: str, *known: str) -> str | None:
        """Return what was named of a family that no table has; a ProfileError if unknown."""
        name = self._options.kernels.get(family)
        if name is not None and name not in known:
            raise ProfileError(f"--kernel {family}={name}: {nearest(name, [*known])}")
        return name

    def _experts(self, tokens: Values) -> tuple[Values, Values]:
        """Return what reading experts takes, and what all else of them does, all layers.

        By the engine's own kernel, or ``moe=sglang`` for what only the table of that engine has.
        """
        shape = self._shape
        kernel = self._options.kernels.get("moe")
        is_engine = kernel == "sglang"  # TensorRT-LLM's names are also those of kernels
        tables = self._tables.of_engine(kernel if is_engine else None)
        experts = ExpertTimes(
            shape.moe_latent_size or shape.hidden_size,
            shape.moe_intermediate_size,
            shape.num_experts,
            shape.num_experts_per_tok,
        )
        gpus, is_whole = self._size * self._ranks, self._options.enable_expert_parallel
        split = {"moe_tp_size": 1 if is_whole else gpus, "moe_ep_size": gpus if is_whole else 1}
        tokens = tokens * self._ranks

        def measured(dtype: str, table: MeasuredTable) -> tuple[Values, str, MeasuredTable]:
            part = table.where("experts", moe_dtype=dtype, **split)
            rows, name = experts.rows_of(part, table, None if is_engine else kernel)
            return experts.times(skewed(rows), tokens), name, table

        own = self._dtype.experts
        try:
            times, used, table = tables.newest("moe", "moe_perf", partial(measured, own))
        except ProfileError as error:
            others = _other_experts(experts, tables.table("moe", "moe_perf"), own)
            raise ProfileError(f"{error}{others}") from error
        if kernel is None and own == "fp8":
            # On Hopper one scale was measured with a kernel alone that takes longer than 16 bits,
            # which vLLM does not choose there; block-scaled experts read and compute as much.
            with suppress(ProfileError):
                block = measured("fp8_block", table)
                times, used, _ = min((times, used, table), block, key=lambda x: x[0].sum())
        self._note(f"{table.source} ({used})")
        if "flashinfer" in used:
            self._expert_kernels = _FUSED_EXPERT_KERNELS
        times = np.maximum(times, self._reading_of_one / gpus)
        missed = 1 - experts.chosen / experts.number
        read = times[0] * (1 - missed**tokens) / (1 - missed ** tokens[0])
        read = np.minimum(read, times)
        layers = shape.num_expert_layers
        return layers * read, layers * (times - read)

    @property
    def _reading_of_one(self) -> float:
        """Return what reading a token's experts of a layer takes, all GPUs together.

        0 where matrices were measured from memory, and experts so, too.
        """
        shape = self._shape
        width = shape.moe_latent_size or shape.hidden_size
        numbers = (3 if shape.has_gated_mlp else 2) * width * shape.moe_intermediate_size
        moved = (shape.num_experts_per_tok or 0) * numbers * self._dtype.bytes_per_weight
        plain = partial(self._matrices, "bfloat16", None)
        return moved * self._tables.newest("gemm", "gemm_perf", plain).us_per_byte

    def _all_reduces(self, tokens: Values) -> Values:
        """Return two per layer, one after the embedding; after experts of all ranks, none.

        And one per layer of the squares of queries and keys, 32 bits each, where their norm is
        over all heads (vLLM 0.18 ``mamba/linear_attn.py MiniMaxText01RMSNormTP.forward_qk``).

        By the engine's own kernel, or that of another, such as ``allreduce=trtllm``: what
        FlashInfer's fused one is, which vLLM can be told to take. Of several measurements the one
        that the GPU's own file has.
        """
        if self._size == 1:
            return np.zeros(len(tokens))
        options = self._options
        versions = (each.version for each in load_gpu(options.gpu).collectives
                    if (each.operation, each.gpus) == ("all_reduce", self._size))  # fmt: skip
        tables = self._tables.of_engine(options.kernels.get("allreduce"))
        mode = "eager" if options.kernels.get("graphs") == "none" else "graph"
        use = rows_with("all-reduce", num_gpus=self._size, backend=f"{tables.engine}_{mode}")
        try:
            rows = tables.newest("comm", "custom_allreduce_perf", use, next(versions, None))
        except ProfileError as error:
            if mode == "eager" or "backend = " not in str(error):
                raise
            missing = str(error).partition(";")[0]
            raise ProfileError(f"{missing}; without CUDA graphs: --kernel graphs=none") from error
        self._note(rows.source)
        sizes, times = line_of(rows, "message_size")

        def each(width: int) -> Values:  # message_size counts numbers of 16 bits, as NCCL's does
            return along(tokens * width, sizes, times)

        mixed = sum(layer.kind != "none" for layer in self._shape.layers)
        number = self._shape.num_sums if self._ranks == 1 else mixed + self._shape.num_hybrid
        total = (number + 1) * each(self._shape.hidden_size)
        return total + mixed * each(4) if self._shape.qk_norm_type else total

    def _sends(self, tokens: Values) -> Values:
        """Return what it takes to send hidden states and residuals from stage to stage, all stages.

        As NCCL's all-gather between two GPUs of which each sends as much. Each GPU sends its part,
        and those of a stage gather them (vLLM 0.32 ``distributed/parallel_state.py``).
        """
        stages, size = len(self.stages), self._size
        if stages == 1:
            return np.zeros(len(tokens))
        numbers = 2 * tokens * self._shape.hidden_size
        total = self._nccl("all_gather", 2, 2 * numbers / size)
        if size > 1:
            total = total + self._nccl("all_gather", size, numbers)
        return np.asarray((stages - 1) * total)

    def _exchanges(self, tokens: Values) -> Values:
        """Return how long all ranks' tokens take to their experts and back, all layers.

        By all-gather and reduce-scatter, as vLLM does unless it is told otherwise, or by the
        all-to-all kernel that is named, such as ``a2a=deepep_ht``.
        """
        shape, gpus = self._shape, self._size * self._ranks
        if self._ranks == 1:
            return np.zeros(len(tokens))
        name, total = self._options.kernels.get("a2a"), np.zeros(len(tokens))
        if name is not None:
            table = self._tables.table("comm", "moe_a2a_perf")
            sizes = {
                **{"ep_size": gpus, "hidden_size": shape.hidden_size, "comm_backend": name},
                **{"topk": shape.num_experts_per_tok, "num_experts": shape.num_experts},
            }
            for phase in ("dispatch", "combine"):
                points, times = line_of(
                    table.where("all-to-all", phase=phase, **sizes), "num_tokens"
                )
                # More tokens than a low-latency kernel takes go through it in turns.
                total += np.interp(tokens, points, times) * np.maximum(1, tokens / points[-1])
            self._note(table.source)
        else:
            sent = tokens * self._ranks * shape.hidden_size
            for operation in ("all_gather", "reduce_scatter"):
                total += self._nccl(operation, gpus, sent)
        return np.asarray(shape.num_expert_layers * total)

    def _note(self, source: str) -> None:
        if source not in self.sources:
            self.sources.append(source)


def _other_experts(experts: ExpertTimes, table: MeasuredTable, own: str) -> str:
    """Return how experts of this size were measured, as the end of a message.

    In other numbers of parts, or with other --dtype; if not at all, what helps.
    """
    try:
        rows = experts.measured(table)
    except ProfileError:
        if own not in table.values("moe_dtype"):
            return ""
        names = ", ".join(sorted(map(str, set(table.values("kernel_source")))))
        return f"; to carry over another size, name the server's kernel (--kernel moe=): {names}"
    if own in (there := set(rows.values("moe_dtype"))):
        rows = rows.where("experts", moe_dtype=own)
        sizes = (rows.values(f"moe_{name}_size") for name in ("ep", "tp"))
        parts = sorted(set(zip(*sizes, strict=True)))
        splits = (f"--tp {tp}" if ep == 1 else f"--tp {ep} --ep" for ep, tp in parts)
        told = ", ".join(dict.fromkeys(splits))
        return f"; of this size and data type experts were measured with {told}"
    dtypes = [name for name, each in DTYPES.items() if each.experts in there]
    return f"; of this size experts were measured with --dtype {', '.join(dtypes)}"
