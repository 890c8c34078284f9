"""Profiles composed from kernel tables: of a made-up GPU whose kernels follow simple laws."""

import json
from itertools import product
from pathlib import Path
from shutil import copytree

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import Run

from specsim.core.errors import ProfileError, SpecsimError
from specsim.core.step import Pieces, StepLoad
from specsim.hardware import load_model
from specsim.latency import LatencyModel
from specsim.latency.composed import AttentionLayers, Composed, Curve
from specsim.latency.form import MOST_VERIFIED
from specsim.profile import Profile
from specsim.profile.from_tables import TableProfile
from specsim.profile.kernel_tables import GpuTables, MeasuredTable, TableOptions
from specsim.profile.kernel_times import ExpertTimes, HeadTimes, small_weights

READ = 1e-9  # milliseconds per number of a matrix
COMPUTE = 1e-11  # milliseconds per multiplication
KV = 1e-7  # milliseconds per token of context and key-value head
PAIR = 1e-8  # milliseconds per pair of query and key, and head


def write(folder: Path, name: str, rows: list[dict]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows), folder / f"{name}.parquet")


def make_tables(root: Path, *, gpu: str = "h200_sxm") -> Path:
    """Write the tables of a GPU: products of matrices, attention of one layer, experts."""
    data = root / "data" / gpu
    (root / f"{gpu}.yaml").parent.mkdir(parents=True, exist_ok=True)
    (root / f"{gpu}.yaml").write_text("gpu: {mem_bw: 4800000000000}\n")
    tokens, sizes = [1, 16, 256, 4096, 16384], [64, 1024, 4096, 16384, 65536]
    gemm = [
        {
            "kernel_source": "linear",
            "gemm_dtype": "bfloat16",
            "m": m,
            "n": n,
            "k": k,
            "latency": READ * n * k + COMPUTE * m * n * k,
        }
        for m, n, k in product(tokens, sizes, sizes)
    ]
    write(data / "gemm/vllm/0.9.0", "gemm_perf", [{**row, "latency": 99.0} for row in gemm])
    write(data / "gemm/vllm/0.24.0", "gemm_perf", gemm)
    shapes = {
        "kernel_source": "flash_attn_fa3",
        "num_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "kv_cache_dtype": "bfloat16",
        "window_size": 0,
    }
    decodes = [
        {**shapes, "batch_size": b, "isl": 1, "step": n - 1, "latency": 0.01 + KV * 8 * b * n}
        for b, n in product([1, 8, 64, 512], [1, 128, 1024, 16384])
    ]
    write(data / "attention/vllm/0.24.0", "generation_attention_perf", decodes)
    prompts = [
        {**shapes, "batch_size": 1, "isl": n, "step": 0, "latency": 0.01 + PAIR * 32 * n * n / 2}
        for n in [1, 64, 512, 4096, 16384]
    ]
    write(data / "attention/vllm/0.24.0", "context_attention_perf", prompts)
    return root


@pytest.fixture
def tables(tmp_path: Path) -> Path:
    return make_tables(tmp_path / "systems")


def options(tables: Path, **fields: object) -> TableOptions:
    return TableOptions(**{"model": "llama-3.1-8b", "gpu": "h200", "tables": tables, **fields})


def numbers_of_weights() -> float:
    """Numbers in the matrices of a layer of Llama-3.1-8B, which every token passes."""
    return 4096 * (6144 + 4096 + 3 * 14336)


def test_the_newest_version_counts_and_matrices_between_sizes_are_exact(tables: Path) -> None:
    target = TableProfile.of(options(tables)).profile.target
    per_layer = READ * numbers_of_weights()
    small, large = (target.forward_time(StepLoad(0, n, 1, n)) for n in (1, 16384))
    head = (READ + COMPUTE) * 128256 * 4096
    # Besides matrices and head: norms and the like, attention, sampling.
    assert small * 1e3 > 32 * per_layer + head
    assert small * 1e3 < 1.03 * 32 * per_layer + head + 32 * (0.01 + 5 * 0.0015) + 0.02
    attention = 32 * PAIR * 32 * 16384**2 / 2
    compute = 32 * COMPUTE * 16384 * numbers_of_weights()
    assert large * 1e3 == pytest.approx(compute + attention + 32 * per_layer, rel=0.02)


@pytest.mark.parametrize("what", ["formats", "sizes"])
def test_what_a_newer_version_has_no_rows_of_comes_from_the_one_before(
    tables: Path, what: str
) -> None:
    """A new version may have been measured for other formats only, or for few sizes."""
    base = TableProfile.of(options(tables)).profile
    gemm = tables / "data/h200_sxm/gemm/vllm"
    rows = pq.read_table(gemm / "0.24.0" / "gemm_perf.parquet").to_pylist()
    newer = {
        "formats": [{**row, "gemm_dtype": "fp8", "latency": 99.0} for row in rows],
        "sizes": [row for row in rows if 65536 in (row["n"], row["k"])],
    }
    write(gemm / "0.99.0", "gemm_perf", newer[what])
    profile = TableProfile.of(options(tables)).profile
    assert profile.provenance.source == base.provenance.source
    load = StepLoad(64_000, 64, 64)
    assert profile.target.forward_time(load) == pytest.approx(base.target.forward_time(load))
    with pytest.raises(ProfileError, match=r"no matrices (with gemm_dtype|near)"):
        TableProfile.of(options(tables, versions={"gemm": "vllm/0.99.0"}))


@pytest.mark.parametrize(("is_gated", "kernels"), [(False, 6), (True, 12)])
def test_sglang_launches_the_small_kernels_of_a_layer_one_by_one(
    is_gated: bool, kernels: int, tables: Path, tmp_path: Path
) -> None:
    path = tmp_path / "model.json"
    shape = load_model("llama-3.1-8b").model_dump() | {"attn_output_gate": is_gated}
    path.write_text(json.dumps(shape))
    for family in ("gemm", "attention"):
        folder = tables / "data/h200_sxm" / family
        copytree(folder / "vllm", folder / "sglang")
    own, other = (
        TableProfile.of(options(tables, model=str(path), engine=name)).profile.target
        for name in ("vllm", "sglang")
    )
    load = StepLoad(64_000, 64, 64)
    more = other.forward_time(load) - own.forward_time(load)
    assert more == pytest.approx(32 * (kernels * 3.0 - 5 * 1.5) * 1e-6, rel=0.01)


def test_a_chunk_of_a_prompt_costs_its_pairs(tables: Path) -> None:
    target = TableProfile.of(options(tables)).profile.target

    def chunk(tokens: int, context: int) -> float:
        return target.forward_time(
            StepLoad(context, tokens, 1, tokens, Pieces([tokens], [context]))
        )

    more = chunk(2048, 8192) - chunk(2048, 0)
    pairs = 2048 * 8192
    assert more * 1e3 == pytest.approx(32 * 32 * PAIR * pairs, rel=0.05)


def test_drafts_cost_tiles_only_where_those_take_longer_than_the_context(tables: Path) -> None:
    target = TableProfile.of(options(tables)).profile.target

    def step(queries: int) -> float:
        """Return what the context adds, 4,096 tokens of each of 64 sequences."""
        times = [
            target.forward_time(
                StepLoad(64 * each, 64 * queries, 64, 0, Pieces([queries] * 64, [each] * 64))
            )
            for each in (4096, 0)
        ]
        return times[0] - times[1]

    # Four query heads share a key-value head: 32 query tokens fill a tile of 128 rows.
    tiles = 32 * 32 * PAIR * 32 * 4096 * 64
    reading = 32 * KV * 8 * 64 * 4096
    assert tiles > reading
    assert (step(4) - step(1)) * 1e3 == pytest.approx(tiles - reading, rel=0.05)
    assert step(8) - step(4) < 0.05 * (step(4) - step(1))


def test_drafters_are_composed_alike(tables: Path) -> None:
    made = TableProfile.of(options(tables, drafts={"eagle3": "eagle3-llama-3.1-8b"}))
    load = StepLoad(8 * 1000, 8 * 4, 8)
    target_time = made.profile.target.forward_time(load)
    draft = made.profile.drafts["eagle3"]
    one, three = (draft.draft_time(load, k, target_time) for k in (1, 3))
    assert 0 < one < three < target_time
    assert draft.weights_gib == pytest.approx(0.79, abs=0.01)
    assert set(made.profile.drafts) == {"ngram", "suffix", "eagle3"}


def test_smaller_weights_are_read_faster_and_leave_more_blocks(tables: Path) -> None:
    plain, small = (TableProfile.of(options(tables, dtype=name)) for name in ("bfloat16", "int4"))
    assert small.num_blocks > plain.num_blocks
    first, there = small.profile.target.read_us[0], plain.profile.target.read_us[0]
    # 4 bits and their scales, and what Marlin takes beside in each of four matrices and 32 layers.
    assert first == pytest.approx(0.53 / 2 * 0.83 * there + 4 * 32 * 11.5, rel=0.01)


def test_tiles_of_four_bits_hide_computing_only_while_they_are_small() -> None:
    tokens = np.array([1.0, 16.0, 48.0, 64.0, 96.0, 1024.0, 8192.0])
    times = np.maximum(100.0, 0.5 * tokens)
    found = small_weights(tokens, times, 0.265) - 11.5
    read, full = 0.83 * 0.265 * 100, 1.58 * 0.5 * 64
    assert found[:4] == pytest.approx([read, read, 0.4 * read + 0.6 * full, full])
    # Two tiles of which one is half empty, as is on average the last of a long prompt.
    assert found[4:6] == pytest.approx([1.44 * 0.5 * 128, 1.44 * 0.5 * (1024 + 32)])


def test_halves_of_heads_at_twice_the_batch(tables: Path) -> None:
    """Llama-3.1-70B shares a key-value head among 8 heads, the table among 4."""
    with pytest.raises(ProfileError, match=r"num_heads = 64 \(measured: 32\); the nearest is 32"):
        TableProfile.of(options(tables, model="llama-3.1-70b"))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"dtype": "fp6"}, "--dtype fp6: did you mean 'fp8'"),
        ({"dtype": "fp8"}, "no matrices with gemm_dtype = fp8 .measured: bfloat16."),
        ({"kv_dtype": "fp8"}, "no attention with kv_cache_dtype = fp8 .measured: bfloat16."),
        ({"gpu": "l40s"}, "no tables of GPU 'l40s' .there are: h200_sxm."),
        ({"engine": "sglang"}, "gemm_perf of sglang; choose an engine .*: vllm. or use"),
        ({"tensor_parallel_size": 3}, "--tp 3: 'llama-3.1-8b' has 32 attention heads"),
        ({"kernels": {"attention": "fa2"}}, "no kernel 'fa2'; choose one .*flash_attn_fa3"),
        ({"model": "qwen3-30b-a3b"}, "has no table moe/moe_perf of vllm; use `specsim pro"),
        ({"gpu": "h300"}, "no GPU 'h300' in profiles/"),
        ({"kernels": {"atention": "fa3"}}, "--kernel atention=: did you mean 'attention'"),
        ({"dtype": "mxfp4"}, "--dtype mxfp4: is of experts, and 'llama-3.1-8b' has none"),
        ({"drafts": {"eagle3": "qwen3-0.6b"}}, "takes a head on .* and this is a whole model"),
        ({"drafts": {"draft_model": "eagle3-qwen3-8b"}}, "takes a model .* a head of another"),
        ({"drafts": {"eagle3": "eagle3-qwen3-32b"}}, "on vectors of 5120 numbers, .* have 4096"),
    ],
)
def test_what_is_missing_is_named(tables: Path, fields: dict, message: str) -> None:
    with pytest.raises(ProfileError, match=message):
        TableProfile.of(options(tables, **fields))


def test_keys_are_read_from_memory_where_fewer_came_from_the_cache(tables: Path) -> None:
    """Reads of less than 128 MB were measured twenty times as fast as larger ones."""
    path = tables / "data/h200_sxm/attention/vllm/0.24.0/generation_attention_perf.parquet"
    rows = pq.read_table(path).to_pylist()
    (from_memory,) = TableProfile.of(options(tables)).profile.target.attention
    for row in rows:
        tokens = row["batch_size"] * (row["step"] + 1)
        if tokens * 8 * 128 * 4 < 2**27:
            row["latency"] = 0.01 + KV * 8 * tokens / 20
    write(path.parent, path.stem, rows)
    (layers,) = TableProfile.of(options(tables)).profile.target.attention
    for column, sequences in enumerate(layers.sequences):
        assert sequences == from_memory.sequences[column]
        found, expected = (
            np.interp(
                [1, 128, 1024, 16384], each.context_tokens, np.array(each.decode_us)[:, column]
            )
            for each in (layers, from_memory)
        )
        assert found == pytest.approx(expected, rel=1e-2)


def heads_tables(tables: Path, shapes: list[tuple[int, int]], **without: None) -> None:
    """Write attention of some heads and key-value heads, whose times follow both."""
    folder = tables / "data/h200_sxm/attention/vllm/0.24.0"
    for phase in ("generation", "context"):
        rows = [
            {
                "kernel_source": "flash_attn_fa3",
                "num_heads": heads,
                "num_key_value_heads": keys,
                "head_dim": 128,
                "kv_cache_dtype": "bfloat16",
                **({} if "window_size" in without else {"window_size": 0}),
                "batch_size": batch,
                "isl": 1 if phase == "generation" else tokens,
                "step": tokens - 1 if phase == "generation" else 0,
                "latency": 0.01 + batch * tokens * (KV * keys + 1e-9 * heads),
            }
            for heads, keys in shapes
            for batch, tokens in product([1, 2, 4, 8, 16, 32], [1, 128, 1024, 16384])
        ]
        write(folder, f"{phase}_attention_perf", rows)


def attention_of(tables: Path, tmp_path: Path, heads: int, keys: int, **fields: object) -> float:
    """Return what a decode of one sequence with 1,024 tokens takes in one layer, microseconds."""
    shape = load_model("llama-3.1-8b").model_dump()
    shape |= {"num_attention_heads": heads, "num_key_value_heads": keys, **fields}
    path = tmp_path / "shape.json"
    path.write_text(json.dumps(shape))
    made = TableProfile.of(options(tables, model=str(path)))
    assert made.profile.model == str(path)
    (layers,) = made.profile.target.attention
    assert layers.sequences[0] == 1
    return float(np.interp(1024, layers.context_tokens, [row[0] for row in layers.decode_us]))


def test_a_fifth_of_the_heads_at_five_times_the_batch(tables: Path, tmp_path: Path) -> None:
    """Of 8 heads on 2 keys; 5 sequences lie between 4 and 8 (Phi-4; Llama-2-13B on its own)."""
    heads_tables(tables, [(8, 2)])
    found = attention_of(tables, tmp_path, 40, 10)
    assert found == pytest.approx(1e3 * (0.01 + 5 * 1024 * (2 * KV + 8e-9)), rel=1e-3)


def test_heads_between_those_that_were_measured(tables: Path, tmp_path: Path) -> None:
    heads_tables(tables, [(24, 4), (32, 4)])
    found = attention_of(tables, tmp_path, 28, 4)
    assert found == pytest.approx(1e3 * (0.01 + 1024 * (4 * KV + 28e-9)), rel=1e-3)


def test_heads_measured_at_nothing_alike_have_none_between_them() -> None:
    few, many = (HeadTimes(np.ones(1), np.array([n]), np.ones(1)) for n in (64.0, 128.0))
    with pytest.raises(ProfileError, match="at no batch and length alike; choose another --tp"):
        few.towards(many, 0.5)


def test_tables_without_windows_are_none_of_layers_with_windows(
    tables: Path, tmp_path: Path
) -> None:
    heads_tables(tables, [(32, 8)], window_size=None)
    with pytest.raises(ProfileError, match=r"measured without windows, .* one of 1024 tokens"):
        attention_of(tables, tmp_path, 32, 8, sliding_window=1024)


def test_a_window_of_other_heads_is_none_of_these(tables: Path, tmp_path: Path) -> None:
    """Gemma-3-27B has heads of 128 numbers and a window that was measured with heads of 256."""
    heads_tables(tables, [(32, 8)])
    for phase in ("generation", "context"):
        folder = tables / "data/h200_sxm/attention/vllm/0.24.0"
        rows = pq.read_table(folder / f"{phase}_attention_perf.parquet").to_pylist()
        others = [{**row, "head_dim": 256, "window_size": 1024} for row in rows]
        write(folder, f"{phase}_attention_perf", rows + others)
    found = attention_of(tables, tmp_path, 32, 8, sliding_window=1024)
    assert found == pytest.approx(attention_of(tables, tmp_path, 32, 8), rel=1e-3)


def test_data_type_by_the_config_of_the_model(tables: Path, tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    shape = load_model("llama-3.1-8b").model_dump()
    config.write_text(json.dumps({**shape, "quantization": "int4"}))
    made = TableProfile.of(options(tables, model=str(config), dtype="auto"))
    assert "Weights int4" in made.profile.provenance.notes
    config.write_text(json.dumps({**shape, "quantization": "other"}))
    with pytest.raises(
        ProfileError, match=r"--dtype auto: .* name the closest: --dtype bfloat16, "
    ):
        TableProfile.of(options(tables, model=str(config), dtype="auto"))


def test_folders_and_files_of_another_layout(tables: Path, tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match="has no folder data/"):
        GpuTables(tmp_path / "elsewhere", "h200")
    broken = tables / "data/h200_sxm/gemm/vllm/0.24.0/gemm_perf.parquet"
    broken.write_text("not Parquet")
    with pytest.raises(ProfileError, match=r"perf.parquet: is not a complete Parquet file; name"):
        TableProfile.of(options(tables))
    write(broken.parent, "gemm_perf", [{"kernel_source": "x", "m": 1}])
    with pytest.raises(ProfileError, match="has no column 'latency'"):
        TableProfile.of(options(tables))


def test_command_writes_a_profile_that_runs(tables: Path, tmp_path: Path, cli: Run) -> None:
    out = tmp_path / "h200.yaml"
    args = ("profile", "build", "--model", "llama-3.1-8b", "--gpu", "h200", "--tables", tables)
    code, output, _ = cli(*args, "--draft", "eagle3=eagle3-llama-3.1-8b", "--out", out)
    assert code == 0
    assert "KV blocks of 16 tokens that fit" in output
    assert cli("profile", "show", out)[0] == 0
    sent = {"op_name": "all_gather", "num_gpus": 2, "nccl_dtype": "half", "kernel_source": "NCCL"}
    rows = [{**sent, "message_size": size, "latency": 0.1} for size in (1, 1 << 30)]
    write(tables / "data/h200_sxm/comm/nccl/2.0.0", "nccl_perf", rows)
    output = cli(*args, "--pp", 2, "--out", tmp_path / "stages.yaml")[1]
    assert "llama-3.1-8b on 2 x h200, per GPU" in output
    own = "my_drafters:Head=eagle3-llama-3.1-8b"  # a class of one's own, by its path
    assert cli(*args, "--draft", own, "--out", tmp_path / "own.yaml")[0] == 0
    code, _, error = cli(*args, "--draft", "egale=eagle3-llama-3.1-8b")
    assert (code, "runs a model; did you mean 'eagle'" in error) == (2, True)
    code, _, error = cli(*args, "--draft", "eagle3", "--out", tmp_path / "none.yaml")
    assert code == 2
    assert "--draft eagle3: is not METHOD=MODEL" in error
    assert not (tmp_path / "none.yaml").exists()


def test_compiled_and_by_pieces_agree_on_plain_steps(tables: Path) -> None:
    """Sums say as much as pieces where all sequences are alike."""
    target = TableProfile.of(options(tables)).profile.target
    for sequences, queries in ((1, 1), (8, 1), (8, 4), (100, 2)):
        load = StepLoad(1000 * sequences, queries * sequences, sequences)
        pieces = Pieces([queries] * sequences, [1000] * sequences)
        assert target.forward_time(load._replace(pieces=pieces)) == target.forward_time(load)
    counts = np.array([1, 8, 64])
    many = target.forward_time(StepLoad(1000 * counts, counts, counts))
    each = [target.forward_time(StepLoad(1000 * n, n, n)) for n in (1, 8, 64)]
    assert many.tolist() == each


def test_tables_are_carried_over_by_the_data_sheets(tables: Path) -> None:
    """H200 to H100 NVL: 4,800 and 3,900 GB/s, 989.5 and 835.5 TFLOP/s."""
    own, other = (
        TableProfile.of(options(tables, **fields)).profile
        for fields in ({}, {"gpu": "h100-nvl", "tables_of": "h200"})
    )
    read, compute = 4800 / 3900, 989.5 / 835.5
    assert other.target.read_us[0] == pytest.approx(read * own.target.read_us[0], rel=1e-4)
    assert other.target.compute_us[-1] == pytest.approx(
        compute * own.target.compute_us[-1], rel=0.01
    )
    mine, theirs = (each.target.attention[0] for each in (other, own))
    assert mine.decode_us[-1][-1] == pytest.approx(read * theirs.decode_us[-1][-1], rel=1e-4)
    assert mine.prompt.times_us[-1] == pytest.approx(compute * theirs.prompt.times_us[-1], rel=1e-4)
    assert "Carried over from h200" in (other.provenance.notes or "")
    for fields, message in (
        ({"tensor_parallel_size": 2}, "what GPUs send each other is not carried over"),
        ({"gpu": "ascend-910b4"}, "lacks memory_gb_per_s or peak_tflops"),
    ):
        given = {"gpu": "h100-nvl", "tables_of": "h200", **fields}
        with pytest.raises(ProfileError, match=f"--tables-of h200: .*{message}"):
            TableProfile.of(options(tables, **given))


def add_attention(tables: Path, *widths: tuple[int, int, int]) -> None:
    """Add heads, key-value heads and windows: of dimension 256 in windows, of 512 without."""
    for name in ("generation", "context"):
        path = tables / f"data/h200_sxm/attention/vllm/0.24.0/{name}_attention_perf.parquet"
        rows = pq.read_table(path).to_pylist()
        added = [
            {**row, "num_heads": heads, "num_key_value_heads": keys, "window_size": window,
             "head_dim": 256 if window else 512, "latency": row["latency"] * (1 if window else 3)}
            for row in rows for heads, keys, window in widths
        ]  # fmt: skip
        write(path.parent, path.stem, rows + added)


def test_layers_of_two_widths_and_a_head_that_reads_their_keys(tables: Path) -> None:
    add_attention(tables, (32, 16, 1024), (32, 4, 0))
    made = TableProfile.of(
        options(tables, model="gemma-4-31b", drafts={"mtp": "gemma-4-31b-assistant"})
    )
    layers = made.profile.target.attention
    assert [(each.num_layers, each.window) for each in layers] == [(50, 1024), (10, None)]
    assert layers[1].decode_us[0][0] == pytest.approx(3 * layers[0].decode_us[0][0], rel=1e-3)
    widths = 50 * (16384 + 8192) + 10 * (24576 - 4096 + 16384)  # values have a matrix, as in vLLM
    one, matrices = READ + COMPUTE, 5376 * (widths + 60 * 3 * 21504)
    assert made.profile.target.read_us[0] == pytest.approx(1e3 * one * matrices, rel=1e-3)
    draft = made.profile.drafts["mtp"]
    assert draft.kv_bytes_per_token == 0
    # Queries and outputs only, before and after them matrices from and to the target's width.
    layers_of_head = 1024 * (3 * 2 * 8192 + 2 * 16384 + 4 * 3 * 8192)
    assert draft.latency.read_us[0] == pytest.approx(
        1e3 * one * (layers_of_head + 3 * 5376 * 1024), rel=1e-3
    )
    assert made.memory.draft_block_bytes == 0
    assert made.memory.block_bytes == 10 * 16 * 16384


LATENT = 3e-7  # milliseconds per token of latent attention's context


def add_latent_attention(tables: Path) -> float:
    """Add the modules of 16 heads of DeepSeek-V3, and its experts; return its matrices' numbers."""
    data = tables / "data" / "h200_sxm"
    matrices = 7168 * (1536 + 576) + 1536 * 16 * 192 + 512 * 16 * 256 + 16 * 128 * 7168
    shapes = {"kernel_source": "FLASH_ATTN_MLA", "gemm_type": "bfloat16", "mla_dtype": "bfloat16",
              "kv_cache_dtype": "bfloat16", "num_heads": 16}  # fmt: skip

    def took(tokens: int) -> float:
        return (READ + COMPUTE * tokens) * matrices

    decodes = [
        {**shapes, "batch_size": b, "isl": 1, "step": n - 1,
         "latency": took(b) + 0.01 + LATENT * b * n}
        for b, n in product([1, 16, 256], [1, 1024, 16384])
    ]  # fmt: skip
    prompts = [
        {**shapes, "batch_size": 1, "isl": n, "step": 0,
         "latency": took(n) + 0.01 + PAIR * 16 * n * n / 2}
        for n in [1, 16, 256, 4096, 16384]
    ]  # fmt: skip
    write(data / "mla/vllm/0.24.0", "mla_generation_module_perf", decodes)
    write(data / "mla/vllm/0.24.0", "mla_context_module_perf", prompts)
    experts = {"kernel_source": "triton", "moe_dtype": "int4_wo", "hidden_size": 7168,
               "inter_size": 2048, "topk": 8, "num_experts": 256, "distribution": "balanced",
               "moe_tp_size": 8, "moe_ep_size": 1}  # fmt: skip
    write(
        data / "moe/vllm/0.24.0",
        "moe_perf",
        [{**experts, "num_tokens": n, "latency": 0.001 * n} for n in (1, 16, 256, 65536)],
    )
    reduced = {"kernel_source": "vllm", "num_gpus": 8, "backend": "vllm_graph", "latency": 1e-9}
    write(
        data / "comm/vllm/0.24.0",
        "custom_allreduce_perf",
        [{**reduced, "message_size": size} for size in (1, 1 << 30)],
    )
    return matrices


DEEPSEEK = {"model": "deepseek-v3", "tensor_parallel_size": 8, "dtype": "int4_experts"}


def test_all_reduces_are_measured_by_numbers_and_may_be_of_another_engine(tables: Path) -> None:
    add_latent_attention(tables)
    per_number = {"vllm": 1e-7, "trtllm": 3e-7}  # milliseconds
    for engine, slope in per_number.items():
        row = {"kernel_source": engine, "num_gpus": 8, "backend": f"{engine}_graph"}
        write(
            tables / f"data/h200_sxm/comm/{engine}/0.24.0",
            "custom_allreduce_perf",
            [{**row, "message_size": size, "latency": slope * size} for size in (1, 1 << 30)],
        )
    own, other = (
        TableProfile.of(options(tables, **DEEPSEEK, kernels=kernels)).profile.target
        for kernels in ({}, {"allreduce": "trtllm"})
    )
    load = StepLoad(0, 4096, 1, 4096)
    sent = (2 * 61 + 1) * 4096 * 7168
    more = other.forward_time(load) - own.forward_time(load)
    assert more == pytest.approx(2e-7 * 1e-3 * sent, rel=1e-3)


def test_a_norm_over_all_heads_is_an_all_reduce_more(tables: Path, tmp_path: Path) -> None:
    row = {"kernel_source": "vllm", "num_gpus": 2, "backend": "vllm_graph", "latency": 0.01}
    comm = tables / "data/h200_sxm/comm/vllm/0.24.0"
    write(comm, "custom_allreduce_perf", [{**row, "message_size": size} for size in (1, 1 << 30)])
    made = []
    for norm in (None, "per_layer"):
        path = tmp_path / f"{norm}.json"
        heads = {"num_attention_heads": 64, "num_key_value_heads": 16, "qk_norm_type": norm}
        path.write_text(json.dumps(load_model("llama-3.1-8b").model_dump() | heads))
        given = options(tables, model=str(path), tensor_parallel_size=2)
        made.append(TableProfile.of(given).profile.target)
    more = made[1].eager_at_least_us - made[0].eager_at_least_us
    assert more == pytest.approx(32 * 3 * 50)  # two kernels, and the all-reduce between them
    decode = StepLoad(1, 1, 1)
    longer = made[1].forward_time(decode) - made[0].forward_time(decode)
    assert 32 * 10e-6 < longer < 32 * 20e-6


def test_all_reduces_are_of_the_version_that_the_gpus_file_has(tables: Path) -> None:
    """Not of the newest: on the RTX PRO 6000 that one is of a host whose GPUs copy directly."""
    add_latent_attention(tables)
    row = {"kernel_source": "vllm", "num_gpus": 8}
    per_number = {("0.24.0", "graph"): 1e-7, ("0.24.0", "eager"): 2e-7, ("0.99.0", "graph"): 4e-7}
    for version in ("0.24.0", "0.99.0"):  # milliseconds
        write(
            tables / f"data/h200_sxm/comm/vllm/{version}",
            "custom_allreduce_perf",
            [
                {**row, "backend": f"vllm_{mode}", "message_size": size, "latency": slope * size}
                for (of, mode), slope in per_number.items()
                for size in (1, 1 << 30)
                if of == version
            ],
        )
    own, newest, eager = (
        TableProfile.of(options(tables, **DEEPSEEK, **chosen)).profile
        for chosen in (
            {},
            {"versions": {"allreduce": "vllm/0.99.0"}},
            {"kernels": {"graphs": "none"}},
        )
    )
    assert "h200_sxm vllm 0.24.0 custom_allreduce_perf" in own.provenance.source
    assert "h200_sxm vllm 0.99.0 custom_allreduce_perf" in newest.provenance.source
    load = StepLoad(0, 16384, 1, 16384)
    sent = (2 * 61 + 1) * 16384 * 7168
    base, *others = (each.target.forward_time(load) for each in (own, newest, eager))
    more = [other - base for other in others]
    assert more == pytest.approx([3e-10 * sent, 1e-10 * sent], rel=1e-3)
    write(tables / "data/h200_sxm/comm/vllm/0.24.0", "custom_allreduce_perf", [
        {**row, "num_gpus": 4, "backend": "vllm_graph", "message_size": 1, "latency": 1.0}
    ])  # fmt: skip
    left = TableProfile.of(options(tables, **DEEPSEEK)).profile  # which the other version has
    assert "h200_sxm vllm 0.99.0 custom_allreduce_perf" in left.provenance.source


def test_gpus_send_each_other_their_parts_of_the_logits(tables: Path) -> None:
    add_latent_attention(tables)
    without = TableProfile.of(options(tables, **DEEPSEEK)).profile
    assert "without the gathering of logits, which was not measured" in without.provenance.source
    row = {"op_name": "all_gather", "num_gpus": 8, "nccl_dtype": "half", "kernel_source": "NCCL"}
    gathers = [{**row, "message_size": size, "latency": 1e-7 * size} for size in (1, 1 << 30)]
    write(tables / "data/h200_sxm/comm/nccl/2.0.0", "nccl_perf", gathers)
    newer = [{**each, "op_name": "all_reduce"} for each in gathers]
    write(tables / "data/h200_sxm/comm/nccl/2.9.0", "nccl_perf", newer)  # which gathers nothing
    gathering = TableProfile.of(options(tables, **DEEPSEEK)).profile
    assert "h200_sxm nccl 2.0.0 nccl_perf" in gathering.provenance.source
    assert "not measured" not in gathering.provenance.source
    with pytest.raises(ProfileError, match=r"--table nccl=nccl/1\.0\.0: nothing of this profile"):
        TableProfile.of(options(tables, **DEEPSEEK, versions={"nccl": "nccl/1.0.0"}))
    load = StepLoad(64_000, 64, 64)
    more = gathering.target.forward_time(load) - without.target.forward_time(load)
    assert more == pytest.approx(1e-10 * 64 * 129_280, rel=0.01)


def test_experts_of_another_engine(tables: Path) -> None:
    """Both engines run the same kernel, but only one was measured with 8-bit inputs."""
    add_experts(tables)
    path = tables / "data/h200_sxm/moe/vllm/0.24.0/moe_perf.parquet"
    rows = [
        {**row, "moe_dtype": "w4a8_mxfp4_mxfp8", "latency": row["latency"] / 2}
        for row in pq.read_table(path).to_pylist()
    ]
    write(tables / "data/h200_sxm/moe/sglang/0.5.14", "moe_perf", rows)
    fields = {"model": "qwen3-30b-a3b", "dtype": "mxfp4_mxfp8"}
    with pytest.raises(ProfileError, match=r"moe_dtype = w4a8_mxfp4_mxfp8 .measured: bfloat16."):
        TableProfile.of(options(tables, **fields))
    own, other = (
        TableProfile.of(options(tables, **each)).profile.target
        for each in ({"model": "qwen3-30b-a3b"}, {**fields, "kernels": {"moe": "sglang"}})
    )
    load = StepLoad(256_000, 256, 256)
    saved = own.forward_time(load) - other.forward_time(load)
    assert saved == pytest.approx(48 * 4.0 * 256 / 2 * 1e-6, rel=1e-3)


@pytest.mark.parametrize(("factor", "taken"), [(3.0, 1.5), (0.5, 0.5)])
def test_experts_of_one_scale_take_no_longer_than_block_scaled_ones(
    tables: Path, factor: float, taken: float
) -> None:
    """On Hopper they were measured with a kernel that takes longer than 16 bits, and no other."""
    add_experts(tables)
    moe, gemm = tables / "data/h200_sxm/moe/vllm/0.24.0", tables / "data/h200_sxm/gemm/vllm/0.24.0"
    for folder, name, times in (
        (moe, "moe", {"bfloat16": 1.0, "fp8": factor, "fp8_block": 1.5}),
        (gemm, "gemm", {"bfloat16": 1.0, "fp8": 1.0}),
    ):
        rows = pq.read_table(folder / f"{name}_perf.parquet").to_pylist()
        told = [
            {**row, f"{name}_dtype": dtype, "latency": row["latency"] * times[dtype]}
            for row in rows
            for dtype in times
        ]
        write(folder, f"{name}_perf", told)
    load, fields = (
        StepLoad(256_000, 256, 256),
        {"model": "qwen3-30b-a3b", "kernels": {"quant": "fused"}},
    )
    in_16, in_8 = (
        TableProfile.of(options(tables, **fields, dtype=dtype)).profile.target.forward_time(load)
        for dtype in ("bfloat16", "fp8")
    )
    assert in_8 - in_16 == pytest.approx(48 * 4.0 * 256 * (taken - 1.0) * 1e-6, rel=1e-3)
    named = {**fields, "kernels": {"quant": "fused", "moe": "triton"}, "dtype": "fp8"}
    own = TableProfile.of(options(tables, **named)).profile.target.forward_time(load)
    assert own - in_16 == pytest.approx(48 * 4.0 * 256 * (factor - 1.0) * 1e-6, rel=1e-3)


def test_what_only_quantizes_counts_unless_it_is_fused(tables: Path) -> None:
    gemm = tables / "data/h200_sxm/gemm/vllm/0.24.0"
    rows = pq.read_table(gemm / "gemm_perf.parquet").to_pylist()
    write(gemm, "gemm_perf", rows + [{**row, "gemm_dtype": "fp8"} for row in rows])
    write(
        tables / "data/h200_sxm/quantize/vllm/0.24.0",
        "scale_matrix_perf",
        [{"m": m, "k": k, "latency": 0.001 * k / 1024} for m in (1, 65536) for k in (1024, 4096)],
    )
    own, fused = (
        TableProfile.of(options(tables, dtype="fp8", kernels=kernels)).profile.target
        for kernels in ({}, {"quant": "fused"})
    )
    load = StepLoad(1024, 8, 8, 0)
    more = own.forward_time(load) - fused.forward_time(load)
    assert more == pytest.approx(32 * 4e-6, rel=1e-3)  # behind attention, of 4096 numbers a token


def test_top_p_sorts_or_scans_the_logits_of_each_row(tables: Path) -> None:
    plain, by_sort, by_triton = (
        TableProfile.of(options(tables, kernels=kernels)).profile.target
        for kernels in ({}, {"sampling": "sort"}, {"sampling": "triton"})
    )

    def more(target: LatencyModel, rows: int) -> float:
        load = StepLoad(1024 * rows, rows, rows, 0)
        return float(target.forward_time(load) - plain.forward_time(load))

    assert more(by_sort, 64) == pytest.approx(8 * more(by_sort, 8), rel=0.02)
    assert more(by_triton, 64) < 1.3 * more(by_triton, 8)
    with pytest.raises(ProfileError, match="sampling=sorted: did you mean 'sort'"):
        TableProfile.of(options(tables, kernels={"sampling": "sorted"}))


def test_steps_with_prompts_take_as_long_as_launching_without_graphs(tables: Path) -> None:
    plain, eager, always_eager = (
        TableProfile.of(options(tables, kernels=kernels)).profile.target
        for kernels in ({}, {"graphs": "decodes"}, {"graphs": "none"})
    )
    decodes, prompt = StepLoad(1024, 8, 8, 0), StepLoad(0, 8, 1, 8)
    assert eager.forward_time(decodes) == plain.forward_time(decodes)
    assert plain.forward_time(prompt) < eager.forward_time(prompt) == pytest.approx(32 * 800e-6)
    for load in (decodes, prompt):
        assert always_eager.forward_time(load) == pytest.approx(32 * 800e-6)
    # Long steps hide what the host does; without graphs they are not padded, either.
    many = StepLoad(0, 16384, 1, 16384)
    assert always_eager.forward_time(many) == plain.forward_time(many)
    assert always_eager.capture_sizes == ()


def test_sglang_takes_longer_to_launch_a_layer_with_experts(tables: Path) -> None:
    """1.35 ms, where dense layers take 0.8, and those of experts under vLLM."""
    add_experts(tables)
    for folder in (tables / "data" / "h200_sxm").glob("*/vllm"):
        copytree(folder, folder.with_name("sglang"))
    cases = [("vllm", "qwen3-30b-a3b"), ("sglang", "qwen3-30b-a3b"), ("sglang", "llama-3.1-8b")]
    built = [
        TableProfile.of(
            options(tables, model=model, engine=engine, kernels={"graphs": "decodes"})
        ).profile.target.prompts_at_least_us
        for engine, model in cases
    ]
    assert built == [48 * 800, 48 * 1350, 32 * 800]


def test_passes_beyond_the_largest_graph_take_as_long_as_launching(tables: Path) -> None:
    plain, small = (
        TableProfile.of(options(tables, kernels=kernels)).profile.target
        for kernels in ({}, {"graphs": "16"})
    )
    assert small.capture_sizes == (1, 2, 4, 8, 16)
    launching = 32 * (4 + 5 + 1) * 50e-6  # matrices, small kernels and attention of each layer
    within, beyond = StepLoad(1024, 16, 4, 0), StepLoad(1024, 32, 8, 0)
    assert small.forward_time(within) == plain.forward_time(within)
    assert plain.forward_time(beyond) < small.forward_time(beyond) == pytest.approx(launching)
    assert plain.eager_at_least_us == small.eager_at_least_us  # of more than 512 tokens
    with pytest.raises(ProfileError, match="graphs=0"):
        TableProfile.of(options(tables, kernels={"graphs": "0"}))


def test_drafts_that_flashinfer_plans_take_longer_each(tables: Path) -> None:
    drafts = {"drafts": {"eagle3": "eagle3-llama-3.1-8b"}}
    plain, planned = (
        TableProfile.of(options(tables, kernels=kernels, **drafts)).profile.drafts["eagle3"]
        for kernels in ({}, {"drafts": "flashinfer", "sampling": "sort"})
    )
    load = StepLoad(1024, 8, 8, 0)
    more = planned.draft_time(load, 5, 0.01) - plain.draft_time(load, 5, 0.01)
    assert more == pytest.approx(5 * 1.6e-3)


def test_latent_attention_without_its_matrices_which_count_once(tables: Path) -> None:
    matrices = add_latent_attention(tables)
    made = TableProfile.of(options(tables, **DEEPSEEK))
    target = made.profile.target
    (layers,) = target.attention
    assert layers.num_layers == 61
    own = 0.01 + LATENT * 256 * 16384
    assert layers.decode_us[-1][-1] == pytest.approx(1e3 * own, rel=1e-3)
    assert layers.prompt.times_us[-1] == pytest.approx(
        1e3 * (0.01 + PAIR * 16 * 16384**2 / 2), rel=1e-3
    )
    # Of every layer's matrices, 3 dense MLPs, 58 routers and shared experts, and 58 times experts.
    shared, dense = 3 * 7168 * 2048 / 8, 3 * 7168 * 18432 / 8
    numbers = 61 * matrices + 3 * dense + 58 * (shared + 256 * 7168)
    read = (READ + COMPUTE) * numbers + 58 * 0.001
    assert target.read_us[0] == pytest.approx(1e3 * read, rel=1e-3)
    assert target.verify_factor == (2 * 512 + 64) / (192 + 128)
    assert made.memory.block_bytes == 16 * 61 * 576 * 2
    experts = 58 * 256 * 3 * 7168 * 2048
    small = 0.53 * experts + 2 * (671.03e9 - experts)
    assert made.memory.weight_bytes == pytest.approx(small / 8, rel=1e-3)


def add_latent_kernels(tables: Path, engine: str) -> None:
    """Add the kernel of latent attention alone, 4 microseconds and what the context takes."""
    row = {"kernel_source": "fa3", "kv_cache_dtype": "bfloat16", "mla_dtype": "bfloat16",
           "num_heads": 16}  # fmt: skip
    folder = tables / f"data/h200_sxm/mla/{engine}/0.5.14"
    decodes = [
        {**row, "batch_size": b, "isl": 1, "step": n - 1, "latency": 0.004 + LATENT * b * n}
        for b, n in product([1, 16, 256], [1, 1024, 16384])
    ]
    prompts = [
        {**row, "batch_size": 1, "isl": n, "step": 0, "latency": 0.004 + PAIR * 16 * n * n / 2}
        for n in [1, 16, 256, 4096, 16384]
    ]
    write(folder, "generation_mla_perf", decodes)
    write(folder, "context_mla_perf", prompts)


def latent_of(tables: Path) -> AttentionLayers:
    [layers] = TableProfile.of(options(tables, **DEEPSEEK)).profile.target.attention
    return layers


@pytest.mark.parametrize("launches_us", [0, 40])
def test_what_the_host_launches_does_not_count_as_latent_attention(
    tables: Path, launches_us: int
) -> None:
    """A module that takes 40 microseconds longer at any batch and context; prompts are not told."""
    add_latent_attention(tables)
    add_latent_kernels(tables, "sglang")
    before = latent_of(tables)
    path = tables / "data/h200_sxm/mla/vllm/0.24.0"
    for phase in ("generation", "context"):
        table = pq.read_table(path / f"mla_{phase}_module_perf.parquet").to_pylist()
        later = [{**row, "latency": row["latency"] + launches_us / 1e3} for row in table]
        write(path, f"mla_{phase}_module_perf", later)
    after = latent_of(tables)
    assert after.decode_us == pytest.approx(np.array(before.decode_us), rel=1e-3)
    more = np.array(after.prompt.times_us) - before.prompt.times_us
    assert more == pytest.approx(np.full(len(more), launches_us), rel=1e-2, abs=0.1)


def test_latent_attention_of_kernels_that_were_measured_one_by_one(tables: Path) -> None:
    """As SGLang's tables have it: no module of it, and four small kernels beside it."""
    add_latent_attention(tables)
    module = latent_of(tables)
    for phase in ("generation", "context"):
        (tables / f"data/h200_sxm/mla/vllm/0.24.0/mla_{phase}_module_perf.parquet").unlink()
    add_latent_kernels(tables, "vllm")
    kernels = latent_of(tables)
    assert kernels.decode_us == pytest.approx(np.array(module.decode_us), rel=1e-3)
    assert kernels.prompt.times_us[0] == pytest.approx(4 + 4 * 1.5, rel=1e-2)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ({"kv_lora_rank": 256}, "latent attention was measured with kv_lora_rank 512, qk_rope_h"),
        (
            {"num_attention_heads": 64, "num_key_value_heads": 64},
            "no latent attention with num_heads = 8 .measured: 16.",
        ),
    ],
)
def test_latent_attention_of_another_size(
    tables: Path, tmp_path: Path, model: dict, message: str
) -> None:
    add_latent_attention(tables)
    shape = {**load_model("deepseek-v3").model_dump(), **model}
    path = tmp_path / "shape.json"
    path.write_text(json.dumps(shape))
    with pytest.raises(ProfileError, match=message):
        TableProfile.of(options(tables, **{**DEEPSEEK, "model": str(path)}))


def test_experts_of_another_dtype_are_named(tables: Path) -> None:
    add_latent_attention(tables)
    with pytest.raises(
        ProfileError, match=r"moe_dtype = bfloat16.* with --dtype int4, int4_experts"
    ):
        TableProfile.of(options(tables, **{**DEEPSEEK, "dtype": "bfloat16"}))


def test_experts_of_another_size_are_carried_over_by_what_they_read() -> None:
    """Twice the bytes take twice as long; what a kernel takes beside them stays as it is."""
    source = {"num_experts": 64, "topk": 2, "hidden_size": 1000, "inter_size": 500}
    rows = pa.Table.from_pylist(
        [{**source, "num_tokens": n, "latency": (50 + 3 * 2 * n) / 1000} for n in range(1, 33)]
    )
    mine = ExpertTimes(hidden_size=2000, inter_size=500, number=64, chosen=2)
    tokens = np.array([1.0, 2.0, 16.0])
    own = {"hidden_size": 2000}
    alike = pa.Table.from_pylist([{**row, **own} for row in rows.to_pylist()])
    beside = mine.times(MeasuredTable(rows, "t"), tokens) - 2 * 3 * 2 * tokens
    assert beside == pytest.approx(np.full(3, beside[0]))
    assert 27 <= beside[0] <= 50
    assert mine.times(MeasuredTable(alike, "t"), tokens) == pytest.approx(50 + 3 * 2 * tokens)


def test_experts_of_more_tokens_than_were_measured_take_longer() -> None:
    """Steps of 32,768 tokens, and of eight ranks, are beyond tables that end at 16,384."""
    rows = pa.Table.from_pylist(
        [
            {"num_experts": 64, "topk": 2, "hidden_size": 1000, "inter_size": 500}
            | {"num_tokens": n, "latency": (50 + 3 * n) / 1000}
            for n in (1, 8, 16, 32)
        ]
    )
    mine = ExpertTimes(hidden_size=1000, inter_size=500, number=64, chosen=2)
    tokens = np.array([1.0, 32.0, 64.0, 256.0])
    assert mine.times(MeasuredTable(rows, "t"), tokens) == pytest.approx(50 + 3 * tokens)
    wider = mine._replace(inter_size=1000).times(MeasuredTable(rows, "t"), tokens)
    assert np.diff(wider) == pytest.approx(2 * 3 * np.diff(tokens))
    with pytest.raises(ProfileError, match=r"num_tokens 1 only.*choose another version by --table"):
        mine.times(MeasuredTable(rows.slice(0, 1), "t"), tokens)


def test_launches_by_the_host_do_not_count_as_matrices(tables: Path) -> None:
    """Block-scaled matrices that all take 60 microseconds are bounded by those with one scale."""
    path = tables / "data/h200_sxm/gemm/vllm/0.24.0/gemm_perf.parquet"
    rows = pq.read_table(path).to_pylist()
    plain = [{**row, "gemm_dtype": "fp8", "latency": row["latency"] / 2} for row in rows]
    block = [
        {**row, "gemm_dtype": "fp8_block", "latency": max(0.06, row["latency"] / 2)} for row in rows
    ]
    write(path.parent, "gemm_perf", rows + plain + block)
    one, other = (
        TableProfile.of(options(tables, dtype=dtype)).profile.target
        for dtype in ("fp8", "fp8_block")
    )
    assert (other.read_us, other.compute_us) == (one.read_us, one.compute_us)


EXPERTS = {"model": "qwen3-30b-a3b", "data_parallel_size": 2, "enable_expert_parallel": True}


def add_experts(tables: Path) -> None:
    """Add experts, whole or sliced, the attention heads of that model, and what NCCL takes."""
    data, shape = tables / "data" / "h200_sxm", {"hidden_size": 2048, "inter_size": 768}
    sizes = {**shape, "topk": 8, "num_experts": 128, "distribution": "balanced"}
    splits = {(1, 1): 4.0, (1, 2): 2.0, (2, 1): 3.0}
    rows = [
        {"kernel_source": "triton", "moe_dtype": "bfloat16", **sizes, "num_tokens": n,
         "moe_tp_size": tp, "moe_ep_size": ep, "latency": 0.001 * factor * n}
        for (tp, ep), factor in splits.items() for n in (1, 16, 256, 65536)
    ]  # fmt: skip
    write(data / "moe/vllm/0.24.0", "moe_perf", rows)
    exchanges = [
        {"op_name": name, "num_gpus": 2, "nccl_dtype": "half", "message_size": size,
         "kernel_source": "NCCL", "latency": 0.01 + 1e-9 * size}
        for name in ("all_gather", "reduce_scatter") for size in (1, 1 << 30)
    ]  # fmt: skip
    write(data / "comm/nccl/2.0.0", "nccl_perf", exchanges)
    for name in ("generation", "context"):
        path = data / f"attention/vllm/0.24.0/{name}_attention_perf.parquet"
        found = pq.read_table(path).to_pylist()
        other = [{**row, "num_key_value_heads": 4} for row in found]
        write(path.parent, path.stem, found + other)


def test_ranks_share_experts_and_exchange_the_tokens_of_all(tables: Path) -> None:
    """By hand, at 256 tokens: experts at 512, and two exchanges of as many; 48 layers."""
    add_experts(tables)
    one = TableProfile.of(options(tables, model="qwen3-30b-a3b"))
    for is_whole, factor in ((True, 2.0), (False, 3.0)):
        fields = {**EXPERTS, "enable_expert_parallel": is_whole}
        two = TableProfile.of(options(tables, **fields))
        load = StepLoad(256_000, 256, 256)
        longer = two.profile.target.forward_time(load) - one.profile.target.forward_time(load)
        per_layer = factor * 512 - 4.0 * 256 + 2 * (10 + 1e-6 * 512 * 2048)
        assert longer == pytest.approx(48 * per_layer * 1e-6, rel=1e-3)
        assert two.memory.weight_bytes == pytest.approx(
            one.memory.weight_bytes - 48 * 128 * 3 * 2048 * 768 * 2 / 2, rel=1e-3
        )


def test_beyond_cuda_graphs_experts_serve_the_tokens_that_there_are(tables: Path) -> None:
    """By hand: 2,000 tokens on one rank and 48 on the other are as many as 1,024 on each."""
    add_experts(tables)
    target = TableProfile.of(options(tables, **EXPERTS)).profile.target

    def shared(tokens: int) -> float:
        """Return what experts and two exchanges take, 48 layers, with as many on both, seconds."""
        return 48 * (2.0 * 2 * tokens + 2 * (10 + 1e-6 * 2 * tokens * 2048)) * 1e-6

    def prompt(tokens: int) -> StepLoad:
        return StepLoad(0, tokens, 1, tokens, Pieces([tokens], [0]))

    alone, few = target.forward_time(prompt(2000)), StepLoad(48 * 500, 48, 48)
    uneven = target.lock_step_time([prompt(2000), few])
    assert uneven == pytest.approx(alone - shared(2000) + shared(1024), rel=1e-3)
    assert target.lock_step_time([prompt(2000)] * 2) == pytest.approx(alone)
    padded = [prompt(500), few]  # for which there is a graph
    assert target.lock_step_time(padded) == max(map(target.forward_time, padded))
    for least in (
        uneven - 1e-3,
        (alone + uneven) / 2,
        alone + 1.0,
    ):  # what the host takes to launch
        slow = target.model_copy(update={"eager_at_least_us": 1e6 * least})
        expected = pytest.approx(max(uneven, least), rel=1e-3)
        assert slow.lock_step_time([prompt(2000), few]) == expected
        assert slow.lock_step_time([prompt(2000), prompt(500), few]) >= 0.999 * least


def test_a_curve_goes_on_with_its_last_slope() -> None:
    curve = Curve(at=(1, 3, 5), times_us=(1.0, 2.0, 6.0))
    assert curve.times_at([0, 1, 2, 5, 8.5]) == [1.0, 1.0, 1.5, 6.0, 13.0]


def test_the_host_launches_a_draft_model_of_vllm_layer_by_layer(tables: Path) -> None:
    """Heads have CUDA graphs."""
    drafts = {"draft_model": "llama-3.1-8b", "eagle3": "eagle3-llama-3.1-8b"}
    found = TableProfile.of(options(tables, drafts=drafts)).profile.drafts
    step, prompts = StepLoad(1000, 1, 1), StepLoad(0, 4, 1, prefill_tokens=4)
    long = StepLoad(0, 16384, 1, prefill_tokens=16384)
    times = {
        method: [cost.latency.forward_time(load) for load in (step, prompts, long)]
        for method, cost in found.items()
        if cost.latency is not None
    }
    assert times["draft_model"][:2] == pytest.approx([32 * 280e-6] * 2)
    assert max(times["eagle3"][:2]) < 32 * 280e-6
    assert times["draft_model"][2] > 32 * 280e-6  # then the kernels take longer


def test_a_draft_model_is_stored_as_its_own_config_says(tables: Path, tmp_path: Path) -> None:
    """In 8 bits beside a target in 16, and it reads half of what its matrices then take."""
    gemm = tables / "data/h200_sxm/gemm/vllm/0.24.0"
    rows = pq.read_table(gemm / "gemm_perf.parquet").to_pylist()
    fast = [{**row, "gemm_dtype": "fp8", "latency": row["latency"] / 2} for row in rows]
    write(gemm, "gemm_perf", rows + fast)
    config = {
        **{"model_type": "llama", "num_hidden_layers": 32, "hidden_size": 4096},
        **{"intermediate_size": 14336, "num_attention_heads": 32, "num_key_value_heads": 8},
        **{"vocab_size": 128256, "max_position_embeddings": 8192, "torch_dtype": "bfloat16"},
    }
    found = {}
    for said in (None, {"quant_method": "fp8"}, {"quant_method": "unheard of"}):
        path = tmp_path / "config.json"
        path.write_text(json.dumps(config | ({"quantization_config": said} if said else {})))
        wanted = options(tables, drafts={"draft_model": str(path)})
        if said and said["quant_method"] != "fp8":
            with pytest.raises(ProfileError, match="weights are quantized, in none of the known"):
                TableProfile.of(wanted)
        else:
            found[said is None] = TableProfile.of(wanted).profile.drafts["draft_model"]
    plain, small = found[True], found[False]
    matrices = 32 * numbers_of_weights()  # bytes that one in 8 bits lacks
    assert plain.weights_gib - small.weights_gib == pytest.approx(matrices / 2**30, abs=0.01)
    for each in (plain.latency, small.latency):
        assert isinstance(each, Composed)
    load = StepLoad(0, 16384, 1, prefill_tokens=16384)
    assert plain.latency is not None
    assert small.latency is not None
    assert small.latency.forward_time(load) < 0.9 * plain.latency.forward_time(load)


@pytest.mark.parametrize("tokens", [16, 256])
def test_ranks_share_the_experts_of_a_drafter_as_those_of_the_target(
    tables: Path, tokens: int
) -> None:
    """A drafter of the same layers on the same ranks takes what the target takes, head apart."""
    add_experts(tables)
    drafts = {"draft_model": "qwen3-30b-a3b"}
    two = TableProfile.of(options(tables, **EXPERTS, drafts=drafts)).profile
    one = TableProfile.of(options(tables, model="qwen3-30b-a3b", drafts=drafts)).profile

    def drafter_of(profile: Profile) -> Composed:
        latency = profile.drafts["draft_model"].latency
        assert isinstance(latency, Composed)
        return latency.model_copy(update={"decodes_at_least_us": 0.0})  # what the host launches

    load = StepLoad(1000 * tokens, tokens, tokens)
    target = two.target.forward_time(load) - one.target.forward_time(load)
    drafter = drafter_of(two).forward_time(load) - drafter_of(one).forward_time(load)
    assert drafter == pytest.approx(target, rel=1e-3)
    assert drafter != 0
    share = two.drafts["draft_model"].weights_gib / one.drafts["draft_model"].weights_gib
    assert 0.5 < share < 0.6  # half of the experts, and all of the rest
    dense = options(tables, **EXPERTS, drafts={"draft_model": "llama-3.1-8b"})
    assert drafter_of(TableProfile.of(dense).profile).data_parallel_size == 1


def test_an_all_to_all_that_is_named_takes_its_own_microseconds(tables: Path) -> None:
    """By hand: 100 us there and 50 back, twice that of twice as many as its largest; 48 layers."""
    add_experts(tables)
    rows = [
        {"kernel_source": "deepep", "comm_backend": "deepep_ll", "phase": phase, "ep_size": 2,
         "hidden_size": 2048, "topk": topk, "num_experts": 128, "num_tokens": tokens,
         "transmit_us": us * topk / 8, "latency": us * topk / 8}
        for phase, us in (("dispatch", 100.0), ("combine", 50.0))
        for topk in (6, 8) for tokens in (1, 128)
    ]  # fmt: skip
    write(tables / "data/h200_sxm/comm/vllm/0.24.0", "moe_a2a_perf", rows)
    by_nccl, by_kernel = (
        TableProfile.of(options(tables, **EXPERTS, kernels=kernels)).profile.target
        for kernels in ({}, {"a2a": "deepep_ll"})
    )
    for tokens, us in ((16, 150), (256, 300)):  # of which matrices are measured, too
        load = StepLoad(0, tokens, tokens)
        less = by_nccl.forward_time(load) - by_kernel.forward_time(load)
        nccl = 2 * (10 + 1e-6 * 2 * tokens * 2048)
        assert less == pytest.approx(48 * (nccl - us) * 1e-6, rel=1e-3)


def test_a_profile_of_ranks_is_for_such_ranks(tables: Path) -> None:
    add_experts(tables)
    profile = TableProfile.of(options(tables, **EXPERTS)).profile
    assert profile.target.in_lock_step(2, expert_parallel=True) is profile.target
    with pytest.raises(ProfileError, match="the profile was composed for 2, True"):
        profile.target.in_lock_step(4, expert_parallel=True)
    with pytest.raises(ProfileError, match="has no experts to share out"):
        TableProfile.of(options(tables, data_parallel_size=2))
    with pytest.raises(ProfileError, match="no table comm/moe_a2a_perf"):
        TableProfile.of(options(tables, **EXPERTS, kernels={"a2a": "deepep_ht"}))


def test_tables_of_a_card_with_another_memory_are_not_taken(tmp_path: Path) -> None:
    tables = make_tables(tmp_path / "systems", gpu="a100_sxm")
    (tables / "a100_sxm.yaml").write_text("gpu: {mem_bw: 2039000000000}\n")
    message = r"--gpu a100-40gb: .*1,555 GB/s.*a100_sxm.* 2,039; .*-of"
    with pytest.raises(ProfileError, match=message):
        TableProfile.of(options(tables, gpu="a100-40gb"))
    for fields in ({"gpu": "a100-80gb"}, {"gpu": "a100-40gb", "tables_of": "a100-80gb"}):
        assert TableProfile.of(options(tables, **fields)).memory.weight_bytes > 0


FIXED_US, PER_NUMBER_US = 10.0, 1e-6  # of what NCCL sends


@pytest.fixture
def sharing(tmp_path: Path) -> Path:
    """Tables with what 8 GPUs send in groups of 2, and latent attention of 16 and 32 heads."""
    root = make_tables(tmp_path / "systems")
    add_latent_attention(root)
    data = root / "data" / "h200_sxm"
    module = data / "mla/vllm/0.24.0"
    rows = pq.read_table(module / "mla_generation_module_perf.parquet").to_pylist()
    own, twice = ((7168 * (1536 + 576) + heads * (1536 * 192 + 512 * 256 + 128 * 7168))
                  for heads in (16, 32))  # fmt: skip
    more = [
        {**row, "num_heads": 32,
         "latency": row["latency"] + (READ + COMPUTE * row["batch_size"]) * (twice - own)}
        for row in rows
    ]  # fmt: skip
    write(module, "mla_generation_module_perf", rows + more)
    sends = [
        {"op_name": name, "num_gpus": count, "nccl_dtype": "half", "kernel_source": "NCCL",
         "message_size": size, "latency": (FIXED_US + PER_NUMBER_US * size) / 1e3}
        for name in ("all_gather", "reduce_scatter") for count in (2, 8) for size in (1, 1 << 34)
    ]  # fmt: skip
    write(data / "comm/nccl/2.0.0", "nccl_perf", sends)
    return root


def shared_out(tables: Path, shares: int, **fields: object) -> Profile:
    given = {**DEEPSEEK, **fields, "decode_context_parallel_size": shares}
    return TableProfile.of(options(tables, **given)).profile


def test_each_gpu_keeps_a_part_and_sends_queries_and_what_they_found(sharing: Path) -> None:
    whole, shared = shared_out(sharing, 1), shared_out(sharing, 2)
    assert whole.kv_bytes_per_token is not None
    assert shared.kv_bytes_per_token == whole.kv_bytes_per_token / 2
    assert shared.valid_range.context_tokens == pytest.approx(
        2 * whole.valid_range.context_tokens, rel=1e-3
    )
    batch, context = 64, 8192
    load = StepLoad(batch * context, batch, batch)
    longer = shared.target.forward_time(load) - whole.target.forward_time(load)
    numbers = 32 * batch * (576 + 512 + 2 * 2)  # heads of two GPUs: queries, results, sums
    sent = 3 * FIXED_US + PER_NUMBER_US * numbers + 1.5
    less_read = LATENT * 1e3 * batch * context / 2
    assert longer == pytest.approx(61e-6 * (sent - less_read), rel=0.01)


def test_drafts_are_sent_too_and_prompts_of_latent_attention_are_not(sharing: Path) -> None:
    whole, shared = (shared_out(sharing, shares).target for shares in (1, 2))
    per_token = PER_NUMBER_US * 32 * (576 + 512 + 4)
    sends = shared.attention[-1]
    assert sends.decode_pair_us == pytest.approx(per_token, rel=1e-3)
    alone = shared.model_copy(update={"attention": shared.attention[:-1]})
    drafts = StepLoad(0, 64 * 4, 64, 0, Pieces([4] * 64, [0] * 64))
    sent = 3 * FIXED_US + 1.5 + per_token * 64 * 4
    longer = shared.forward_time(drafts) - alone.forward_time(drafts)
    assert longer == pytest.approx(61e-6 * sent, rel=0.01)
    prompt = StepLoad(0, 4096, 1, 4096, Pieces([4096], [0]))
    longer = shared.forward_time(prompt) - whole.forward_time(prompt)
    assert 0 < longer < 1.05 * 61e-6 * (3 * FIXED_US + 1.5 + per_token * MOST_VERIFIED)


def test_prompts_of_other_attention_send_their_queries(sharing: Path, tmp_path: Path) -> None:
    data = sharing / "data" / "h200_sxm"
    for phase, heads in (("generation", (16, 32)), ("context", (16,))):
        path = data / f"attention/vllm/0.24.0/{phase}_attention_perf.parquet"
        rows = pq.read_table(path).to_pylist()
        few = [{**row, "num_heads": n, "num_key_value_heads": 1} for row in rows for n in heads]
        write(path.parent, path.stem, rows + few)
    reduced = {"kernel_source": "vllm", "num_gpus": 4, "backend": "vllm_graph", "latency": 1e-9}
    comm = data / "comm/vllm/0.24.0"
    write(comm, "custom_allreduce_perf", [{**reduced, "message_size": n} for n in (1, 1 << 30)])
    nccl = pq.read_table(data / "comm/nccl/2.0.0/nccl_perf.parquet").to_pylist()
    write(data / "comm/nccl/2.0.0", "nccl_perf", nccl + [{**row, "num_gpus": 4} for row in nccl])
    path = tmp_path / "few-keys.json"
    heads = {"num_attention_heads": 64, "num_key_value_heads": 2}
    path.write_text(json.dumps(load_model("llama-3.1-8b").model_dump() | heads))
    given = {"model": str(path), "tensor_parallel_size": 4, "dtype": "bfloat16"}
    whole, shared = (shared_out(sharing, shares, **given).target for shares in (1, 2))
    load = StepLoad(0, 4096, 1, 4096, Pieces([4096], [0]))
    numbers = 32 * 4096 * (128 + 128 + 4)
    sent = 3 * FIXED_US + PER_NUMBER_US * numbers + 3 * 1.5
    longer = shared.forward_time(load) - whole.forward_time(load)
    assert longer == pytest.approx(32e-6 * sent, rel=0.01)


@pytest.mark.parametrize(
    ("model", "size", "shares", "said"),
    [
        ("deepseek-v3", 8, 3, "--dcp 3: must divide --tp 8, whose GPUs it groups"),
        ("llama-3.1-8b", 8, 2, "of the 8 key-value heads of 'llama-3.1-8b' 8 GPUs have 1 copies"),
        ("qwen3-30b-a3b", 8, 4, "of the 4 key-value heads of 'qwen3-30b-a3b' 8 GPUs have 2 copies"),
        ("gpt-oss-20b", 8, 2, "'gpt-oss-20b' has layers with windows"),
    ],
)
def test_what_vllm_refuses_or_nobody_knows_is_refused(
    sharing: Path, model: str, size: int, shares: int, said: str
) -> None:
    given = {"model": model, "tensor_parallel_size": size, "dtype": "bfloat16"}
    with pytest.raises(SpecsimError, match=said):
        shared_out(sharing, shares, **given)
