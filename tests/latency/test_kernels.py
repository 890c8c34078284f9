"""Step times composed from kernel tables, checked against the formulas of a made-up profile."""

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from kernel_folder import attention_us, make_kernel_folder, write_csv
from pydantic import ValidationError

from specsim.core.step import Pieces, StepLoad
from specsim.latency.cuda_graph import CudaGraph
from specsim.latency.kernels import Kernels
from specsim.profile import load_profile


def line(operation: str, us: float, gb_per_s: float, rounds: int = 1) -> dict[str, Any]:
    """Return a collective of two GPUs that takes ``us``, and bytes over a bandwidth."""
    sizes = [1e3, 1e6]
    times = [us + rounds * size / 2 / (gb_per_s * 1e3) for size in sizes]
    return {"operation": operation, "gpus": 2, "measured": "made up", "message_bytes": sizes,
            "us": times}  # fmt: skip


LINK: dict[str, Any] = {
    "hidden_size": 8000,
    "collectives": [
        line("all_reduce", 20.0, 16.0, rounds=2),
        line("all_gather", 7.0, 32.0),
        line("reduce_scatter", 9.0, 64.0),
    ],
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_kernel_folder(tmp_path / "profile")


def step(query_lens: list[int], context_lens: list[int]) -> StepLoad:
    prefill = sum(length for length in query_lens if length > 15)
    pieces = Pieces(query_lens, context_lens)
    return StepLoad(sum(context_lens), sum(query_lens), len(query_lens), prefill, pieces)


def dense_us(tokens: int, sequences: int, layers: int) -> float:
    kernel = 2 + 0.1 * tokens
    return layers * 8 * kernel + 2 * kernel + 10 * sequences  # 8: the norm counts twice


def test_a_decode_step_is_the_sum_of_its_kernels(folder: Path) -> None:
    model = Kernels(path=folder, num_layers=4)
    time = model.forward_time(step([1] * 10, [99] * 10))
    expected = dense_us(10, 10, 4) + 4 * attention_us(0, 0, 10, 100)
    assert time == pytest.approx(expected * 1e-6)


def test_a_mixed_step_interpolates_in_all_four_axes(folder: Path) -> None:
    model = Kernels(path=folder, num_layers=4)
    time = model.forward_time(step([300, 1, 1], [1000, 199, 199]))
    expected = dense_us(302, 3, 4) + 4 * attention_us(300, 1000, 2, 200)
    assert time == pytest.approx(expected * 1e-6)


def test_two_prompts_in_one_step_do_as_much_work_as_each_alone(folder: Path) -> None:
    model = Kernels(path=folder, num_layers=1)
    together = model.attention.time_of(Pieces([512, 512], [2048, 2048]))
    # One chunk of 1024 with kv_prefill so that 1024 kv + 1024^2 / 2 is twice one prompt's work.
    kv = (2 * 512 * (2048 + 256) - 512 * 1024) / 1024
    assert together == pytest.approx(attention_us(1024, kv, 0, 0))


def test_drafts_are_read_in_the_tile_of_their_sequence(folder: Path) -> None:
    model = Kernels(path=folder, num_layers=1)
    assert model.attention.time_of(Pieces([4] * 8, [100] * 8)) == pytest.approx(
        attention_us(0, 0, 8, 104)
    )


def test_sums_alone_give_the_time_of_equal_sequences(folder: Path) -> None:
    model = Kernels(path=folder, num_layers=4)
    load = step([1] * 10, [99] * 10)
    assert model.forward_time(load._replace(pieces=None)) == pytest.approx(model.forward_time(load))
    times = model.forward_time(StepLoad(np.array([990, 1990]), 10, 10))
    assert np.asarray(times)[0] == pytest.approx(model.forward_time(load))


def test_tokens_beyond_the_tables_go_on_with_their_slope(folder: Path) -> None:
    model = Kernels(path=folder, num_layers=1)
    assert model.tables.per_layer(4096) == pytest.approx(8 * (2 + 409.6))
    assert model.attention.time(0, 0, 128, 8192, 8192) == pytest.approx(
        attention_us(0, 0, 128, 8192), rel=1e-9
    )


def test_gaps_of_the_grid_are_filled(folder: Path) -> None:
    lines = (folder / "attention.csv").read_text().splitlines()
    missing = ("128,512,8,512,", "1024,4096,64,4096,", "0,0,64,4096,")
    kept = [line for line in lines if not line.startswith(missing)]
    assert len(kept) == len(lines) - 3
    (folder / "attention.csv").write_text("\n".join(kept))
    attention = Kernels(path=folder, num_layers=1).attention
    for point in ((128, 512, 8, 512), (1024, 4096, 64, 4096), (0, 0, 64, 4096)):
        assert attention.time(*point, point[-1]) == pytest.approx(attention_us(*point), rel=1e-6)


def add_skew(folder: Path) -> None:
    header = "regime,n,kv_mean,kv_big,t_mean_us,t_max_us,t_skew_us"
    rows = [
        (regime, n, 200, big, 10, 30, skewed)
        for regime in ("pure", "mixed")
        for n in (2, 64)
        for big, skewed in ((300, 15), (600, 11))
    ]
    write_csv(folder / "skew.csv", header, rows)


def test_unequal_lengths_take_a_share_of_the_way_to_the_longest(folder: Path) -> None:
    add_skew(folder)
    attention = Kernels(path=folder, num_layers=1).attention
    mean, longest = attention_us(0, 0, 2, 200), attention_us(0, 0, 2, 300)
    assert attention.time_of(Pieces([1, 1], [99, 299])) == pytest.approx(
        mean + 0.25 * (longest - mean)
    )


def test_the_share_depends_on_how_far_the_longest_is_above_the_mean(folder: Path) -> None:
    """Between the two measured: one third, and two thirds of the longest."""
    add_skew(folder)
    attention = Kernels(path=folder, num_layers=1).attention
    for kv_max, share in ((210, 0.25), (300, 0.25), (400, 0.15), (600, 0.05), (2000, 0.05)):
        mean, longest = attention_us(0, 0, 2, 200), attention_us(0, 0, 2, kv_max)
        expected = mean + share * (longest - mean)
        assert attention.time(0, 0, 2, 200, kv_max) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("meta", "fields", "applies"),
    [
        ("skew_fit: {enabled: false}", {}, False),
        ("skew_fit: {enabled: false}", {"skew": True}, True),
        ("skew_profile: {enabled: true}", {}, True),
        ("skew_profile: {enabled: true}", {"skew": False}, False),
    ],
)
def test_the_folder_says_whether_skew_was_profiled(
    folder: Path, meta: str, fields: dict[str, Any], applies: bool
) -> None:
    add_skew(folder)
    (folder / "meta.yaml").write_text(meta)
    attention = Kernels(path=folder, num_layers=1, **fields).attention
    unequal = attention.time_of(Pieces([1, 1], [99, 299]))
    assert (unequal > attention_us(0, 0, 2, 200) + 1e-9) is applies


def test_two_gpus_add_two_all_reduces_per_layer_and_have_a_folder_of_their_own(
    folder: Path,
) -> None:
    one = Kernels(path=folder, num_layers=3)
    make_kernel_folder(folder / "tp2")
    (folder / "dense.csv").unlink()
    two = Kernels(path=folder, num_layers=3, tensor_parallel_size=2, **LINK)
    load = step([1] * 10, [99] * 10)
    all_reduce = 20e-6 + 10 * 8000 * 2 / 16e9  # of two GPUs each sends all that it has
    assert two.forward_time(load) - one.forward_time(load) == pytest.approx(3 * 2 * all_reduce)


def test_experts_count_by_how_many_are_activated(folder: Path) -> None:
    dense = Kernels(path=folder, num_layers=3)
    rows = [(t, e, 0.01 * t + 2.0 * e) for t in (1, 64, 1024) for e in (1, 8, 64)]
    write_csv(folder / "moe.csv", "tokens,activated_experts,time_us", rows)
    sparse = Kernels(path=folder, num_layers=3, num_experts=64, experts_per_token=8)
    load = step([1] * 10, [99] * 10)
    activated = 64 * (1 - (1 - 8 / 64) ** 10)
    expected = 3 * (0.1 + 2.0 * activated) * 1e-6
    assert sparse.forward_time(load) - dense.forward_time(load) == pytest.approx(expected)


def experts(folder: Path, **fields: Any) -> Kernels:
    """64 experts, 8 per token: 2 us of each that is activated, and 0.01 us a token."""
    rows = [(t, e, 0.01 * t + 2.0 * e) for t in (1, 64, 1024) for e in (1, 8, 64)]
    (folder / "tp1").mkdir(exist_ok=True)
    make_kernel_folder(folder / "tp1")
    write_csv(folder / "tp1" / "moe.csv", "tokens,activated_experts,time_us", rows)
    dense = (folder / "tp1" / "dense.csv").read_text().splitlines()
    kept = [line for line in dense if not line.startswith(("gate_up", "act_fn", "down"))]
    (folder / "tp1" / "dense.csv").write_text("\n".join(kept))
    return Kernels(path=folder, num_layers=3, num_experts=64, experts_per_token=8, **LINK, **fields)


def test_tokens_of_a_draft_touch_fewer_different_experts(folder: Path) -> None:
    """By hand: two experts of four, one each; two tokens touch 1.75, or 1.5 if half is shared."""
    two = {"num_experts": 4, "experts_per_token": 1}
    apart = experts(folder).model_copy(update={**two, "shared_draft_experts": 0.0})
    assert apart.activated_experts(2, 2) == pytest.approx(1.75)
    assert apart.activated_experts(2, 1) == pytest.approx(1.75)
    alike = apart.model_copy(update={"shared_draft_experts": 1.0})
    assert alike.activated_experts(2, 1) == pytest.approx(1.0)
    assert alike.activated_experts(2, 2) == pytest.approx(1.75)
    half = apart.model_copy(update={"shared_draft_experts": 0.5})
    assert half.activated_experts(2, 1) == pytest.approx(4 * (1 - 0.75**1.5))
    load = step([3] * 4, [99] * 4)
    assert experts(folder, shared_draft_experts=1.0).forward_time(load) < experts(
        folder, shared_draft_experts=0.0
    ).forward_time(load)


def test_each_of_two_ranks_reads_half_of_the_experts_that_all_tokens_choose(folder: Path) -> None:
    one = experts(folder)
    two = experts(folder, data_parallel_size=2, enable_expert_parallel=True)
    load = step([1] * 10, [99] * 10)
    activated = [64 * (1 - (1 - 8 / 64) ** tokens) for tokens in (10, 20)]
    # Each rank gets the 10 tokens of the other, with number and weight of their 8 experts.
    exchange = 7 + 10 * (8000 * 2 + 8 * 8) / 32e3 + 9 + 10 * 8000 * 2 / 64e3
    of_one, of_two = 0.1 + 2.0 * activated[0], 0.2 + 2.0 * activated[1] / 2 + exchange
    longer = two.lock_step_time([load, load]) - one.forward_time(load)
    assert longer == pytest.approx(3 * (of_two - of_one) * 1e-6)
    assert two.forward_time(load) == two.lock_step_time([load, load])


def test_the_slowest_rank_is_waited_for_and_imbalance_costs(folder: Path) -> None:
    model = experts(folder, data_parallel_size=2, enable_expert_parallel=True)
    short, long = step([1] * 4, [99] * 4), step([1] * 4, [3999] * 4)
    attention = [model.attention_time(load) for load in (short, long)]
    gap = model.lock_step_time([short, long]) - model.lock_step_time([short, short])
    assert gap == pytest.approx(3 * (attention[1] - attention[0]) * 1e-6)
    assert model.lock_step_time([short, long]) == model.lock_step_time([long, short])
    uneven = model.model_copy(update={"expert_imbalance": 1.5})
    assert uneven.lock_step_time([short, long]) > model.lock_step_time([short, long])


def test_zeros_of_other_gpus_experts_take_memory_bandwidth(folder: Path) -> None:
    zeros = {"bytes_per_expert": 1000.0, "gb_per_s": 1000.0}
    plain = experts(folder, data_parallel_size=2, enable_expert_parallel=True)
    old = experts(folder, data_parallel_size=2, enable_expert_parallel=True, zero_writes=zeros)
    load = step([1] * 10, [99] * 10)
    written = 20 * 8 / 2 * 1000.0  # of 20 tokens, half of the 8 experts of each
    assert old.forward_time(load) - plain.forward_time(load) == pytest.approx(3 * written / 1e12)


def test_padded_ranks_are_as_large_as_the_largest(folder: Path) -> None:
    inner = experts(folder, data_parallel_size=2, enable_expert_parallel=True)
    graph = CudaGraph(inner=inner, capture_sizes=(4, 16))
    small, medium, large = (step([1] * size, [99] * size) for size in (3, 9, 20))
    padded = [load._replace(batched_tokens=16) for load in (small, medium)]
    assert graph.lock_step_time([small, medium]) == inner.lock_step_time(padded)
    assert graph.lock_step_time([small, large]) == inner.lock_step_time([small, large])


def test_tables_may_be_zipped(folder: Path) -> None:
    plain = Kernels(path=folder, num_layers=2).forward_time(step([1], [5]))
    for name in ("attention", "dense"):
        path = folder / f"{name}.csv"
        (folder / f"{name}.csv.gz").write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()
    assert Kernels(path=folder, num_layers=2).forward_time(step([1], [5])) == plain


def test_a_profile_names_its_tables_from_where_it_lies(folder: Path) -> None:
    profile = {
        "model": "llama-3.1-8b",
        "gpu": "h100",
        "provenance": {"engine": "none", "source": "a test", "date": "2026-01-01"},
        "target": {
            "kind": "cuda_graph",
            "inner": {"kind": "kernels", "path": "profile", "num_layers": 3},
        },
        "valid_range": {"context_tokens": 10**9, "batched_tokens": 10**9},
    }
    path = folder.parent / "mine.yaml"
    path.write_text(yaml.safe_dump(profile))
    target = load_profile(str(path)).target
    assert target.forward_time(step([1], [5])) > 0
    assert target.uses_pieces


def spoil(folder: Path, name: str, old: str, new: str) -> None:
    path = folder / name
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


BAD = {
    "dense.csv is missing": (lambda f: (f / "dense.csv").unlink(), "has no dense.csv"),
    "attention.csv is missing": (lambda f: (f / "attention.csv").unlink(), "has no attention.csv"),
    "a column is missing": (
        lambda f: spoil(f, "dense.csv", "layer,tokens", "layer,toks"),
        "has no column 'tokens' (found: layer, toks, time_us)",
    ),
    "a time is negative": (
        lambda f: spoil(f, "dense.csv", "embedding,1,2.1", "embedding,1,-2.1"),
        "line 2: time_us = '-2.1' must be a number of at least 0",
    ),
    "a time is no number": (
        lambda f: spoil(f, "dense.csv", "embedding,1,2.1", "embedding,1,fast"),
        "line 2: time_us = 'fast' must be a number",
    ),
    "a line is cut off": (
        lambda f: spoil(f, "dense.csv", "embedding,1,2.1", "embedding,1"),
        "line 2: 2 values for 3 columns",
    ),
    "there are no rows": (
        lambda f: (f / "per_sequence.csv").write_text("layer,sequences,time_us\n"),
        "has no rows below its header",
    ),
    "a kernel is missing": (
        lambda f: (f / "dense.csv").write_text(
            (f / "dense.csv").read_text().replace("o_proj,", "other,")
        ),
        "dense.csv has no layer o_proj",
    ),
    "attention is no grid": (
        lambda f: write_csv(
            f / "attention.csv",
            "prefill_chunk,kv_prefill,n_decode,kv_decode,time_us",
            [(0, 0, 1, 16, 3.0), (16, 0, 0, 0, 4.0)],
        ),
        "is not a grid of prefill_chunk",
    ),
    "experts are not described": (
        lambda f: write_csv(f / "moe.csv", "tokens,activated_experts,time_us", [(1, 1, 3.0)]),
        "num_experts and experts_per_token are missing",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_tables_say_what_is_wrong(folder: Path, case: str) -> None:
    break_it, message = BAD[case]
    break_it(folder)
    with pytest.raises(ValidationError) as caught:
        Kernels(path=folder, num_layers=1)
    assert message in str(caught.value)


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match="is not a folder"):
        Kernels(path=tmp_path / "nowhere", num_layers=1)
    make_kernel_folder(tmp_path / "there")
    two: dict[str, Any] = {"num_layers": 1, "tensor_parallel_size": 2}
    with pytest.raises(ValidationError, match="hidden_size is missing: 2 GPUs exchange"):
        Kernels(path=tmp_path / "there", **two)
    gathers = LINK["collectives"][1:]
    with pytest.raises(ValidationError, match="collectives has no all_reduce, which 2 GPUs do"):
        Kernels(path=tmp_path / "there", hidden_size=8000, collectives=gathers, **two)


def test_tables_of_one_gpu_are_not_taken_for_those_of_two(folder: Path) -> None:
    two: dict[str, Any] = {"path": folder, "num_layers": 1, "tensor_parallel_size": 2, **LINK}
    with pytest.raises(ValidationError, match=r"profile: has no folder tp2 .*found: tables of one"):
        Kernels(**two)
    (folder / "meta.yaml").write_text("tp_degrees: [2]")
    assert Kernels(**two).folder == folder
    (folder / "tp1").mkdir()
    with pytest.raises(ValidationError, match=r"has no folder tp2 .*found: tp1\)"):
        Kernels(**two)


def test_ranks_need_tables_of_their_experts(folder: Path) -> None:
    with pytest.raises(ValidationError, match="has no folder tp2"):
        experts(folder, data_parallel_size=2)
    with pytest.raises(ValidationError, match="num_experts = 64 cannot be split evenly over 3"):
        experts(folder, data_parallel_size=3, enable_expert_parallel=True)
    make_kernel_folder(folder / "tp2")
    with pytest.raises(ValidationError, match=r"tp2: has no moe\.csv with experts sliced over 2"):
        experts(folder, data_parallel_size=2)
    with pytest.raises(ValidationError, match="the tables are of a dense model"):
        Kernels(
            path=make_kernel_folder(folder / "dense"), num_layers=1, enable_expert_parallel=True
        )
