"""The shipped profiles are what the installed kernel tables make of them."""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from importlib.util import find_spec

import numpy as np
import pytest
import yaml
from numpy.typing import NDArray

from specsim.core.errors import ProfileError
from specsim.core.resources import resource_names
from specsim.core.step import Pieces, StepLoad
from specsim.hardware import load_gpu, load_model
from specsim.latency.composed import Composed
from specsim.latency.form import MOST_VERIFIED
from specsim.profile.from_tables import TableProfile
from specsim.profile.kernel_tables import (
    GpuTables,
    MeasuredTable,
    TableOptions,
    Values,
    tables_folder,
)
from specsim.profile.kernel_times import HeadTimes, along, line_of
from specsim.profile.profile import find_profile

MTP = {"mtp": "gemma-4-31b-assistant"}
pytestmark = [
    pytest.mark.extras,
    pytest.mark.skipif(
        find_spec("aiconfigurator_core") is None, reason="the extra 'tables' is not installed"
    ),
]


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("h200/gpt-oss-120b", TableOptions("gpt-oss-120b", "h200", dtype="mxfp4")),
        ("b200/qwen3-8b-fp8", TableOptions("qwen3-8b", "b200", dtype="fp8")),
        ("a100-80gb/mistral-7b", TableOptions("mistral-7b", "a100-80gb")),
        (
            "h100-nvl/gemma-4-31b-fp8",
            TableOptions("gemma-4-31b", "h100-nvl", MTP, dtype="fp8", tables_of="h100"),
        ),
        (
            "h200/deepseek-v3-tp8",
            TableOptions(
                "deepseek-v3",
                "h200",
                {"mtp": "deepseek-v3-mtp"},
                dtype="fp8_block",
                tensor_parallel_size=8,
            ),
        ),
    ],
)
def test_shipped_profiles_are_reproduced(name: str, options: TableOptions) -> None:
    shipped = yaml.safe_load(find_profile(name).read_text())
    made = TableProfile.of(options).fields
    target = yaml.safe_load(yaml.safe_dump(made["target"]))
    assert target == shipped["target"]
    assert made["valid_range"] == shipped["valid_range"]


@pytest.mark.parametrize("gpu", [name for name in resource_names("profiles", "*.yaml")
                                 if load_gpu(name).collectives])  # fmt: skip
def test_times_of_collectives_are_within_a_tenth_of_every_measured_row(gpu: str) -> None:
    for table in load_gpu(gpu).collectives:
        _, engine, version, name = table.measured.split()
        rows = GpuTables(tables_folder(), gpu, engine, {
            "allreduce": f"{engine}/{version}", "nccl": f"{engine}/{version}"
        }).table("comm", name)  # fmt: skip
        wanted = {"backend": "vllm_graph"} if engine == "vllm" else {
            "op_name": table.operation, "nccl_dtype": "half"
        }  # fmt: skip
        rows = rows.where(table.operation, num_gpus=table.gpus, **wanted)
        sizes, us = line_of(rows, "message_size")
        measured = {
            2 * size: time
            for size, time in zip(sizes, us, strict=True)
            if 1024 <= size <= table.message_bytes[-1] / 2
        }
        assert measured
        modelled = {size: table.time(size, table.gpus) for size in measured}
        assert modelled == pytest.approx(measured, rel=0.1), (table.operation, table.gpus)


@pytest.mark.parametrize("gpu", ["h200", "b200", "b300"])
def test_an_all_to_all_takes_what_was_measured_within_a_tenth(gpu: str) -> None:
    ranks = {"data_parallel_size": 8, "enable_expert_parallel": True, "dtype": "fp8_block"}
    table = GpuTables(tables_folder(), gpu, "vllm", {}).table("comm", "moe_a2a_perf")
    shape = load_model("deepseek-v3")
    kinds = {"ep_size": 8, "hidden_size": shape.hidden_size, "topk": 8, "num_experts": 256}
    measured, modelled = {}, {}
    for kernel in ("deepep_ht", "deepep_ll"):
        options = TableOptions("deepseek-v3", gpu, **ranks, kernels={"a2a": kernel})
        target = TableProfile.of(options).profile.target
        for row in table.where("all-to-all", comm_backend=kernel, **kinds).rows.to_pylist():
            key = kernel, row["num_tokens"]
            us = row["transmit_us"] + row["notify_us"]
            measured[key] = measured.get(key, 0.0) + shape.num_expert_layers * us * 1e-6
            modelled[key] = target.forward_time(StepLoad(0, *[row["num_tokens"]] * 2))
    both = sorted({size for _, size in measured if all((k, size) in measured for k, _ in measured)})
    assert len(both) >= 5
    for size in both:
        # All else in the two steps is the same.
        more = modelled["deepep_ht", size] - modelled["deepep_ll", size]
        really = measured["deepep_ht", size] - measured["deepep_ll", size]
        assert more == pytest.approx(really, abs=0.1 * measured["deepep_ht", size])


@pytest.mark.parametrize("engine", ["sglang", "trtllm"])
def test_other_engines_tables_have_a_kv_cache_of_8_bits_by_another_name(engine: str) -> None:
    split = {"data_parallel_size": 8, "enable_expert_parallel": True}
    options = TableOptions("deepseek-v4-pro", "b300", engine=engine, dtype="auto", **split)
    found = TableProfile.of(options).profile
    assert f"b300_sxm {engine}" in found.provenance.source
    assert "dsv4_csa_generation_module_perf" in found.provenance.source


def test_experts_are_of_the_newest_table_that_has_them() -> None:
    """TensorRT-LLM's newest on H200 is of few sizes; one that is named is taken, or refused."""
    split = {"tensor_parallel_size": 8, "dtype": "fp8_block", "engine": "trtllm"}
    options = TableOptions("deepseek-v3", "h200", **split)
    assert "trtllm 1.3.0rc20 moe_perf" in TableProfile.of(options).profile.provenance.source
    named = replace(options, versions={"moe": "trtllm/1.3.0rc23"})
    with pytest.raises(ProfileError, match=r"1\.3\.0rc23 moe_perf: no experts with moe_dtype"):
        TableProfile.of(named)


_TOPK = 2048  # tokens that DeepSeek-V3.2 and GLM-5 choose
DECODES = [
    ("attention", "generation_attention_perf", {"kv_cache_dtype": "bfloat16"}),
    ("mla", "mla_generation_module_perf", {"kv_cache_dtype": "bfloat16"}),
    ("sparse_attention", "dsa_generation_module_perf", {"kv_cache_dtype": "fp8"}),
    ("sparse_attention", "dsv4_csa_generation_module_perf", {}),
    ("sparse_attention", "dsv4_hca_generation_module_perf", {}),
]


@pytest.mark.parametrize("gpu", ["h200", "b200"])
@pytest.mark.parametrize(("family", "name", "wanted"), DECODES, ids=lambda each: str(each)[:24])
def test_decodes_are_as_measured_and_go_on_beyond(
    gpu: str, family: str, name: str, wanted: dict[str, str]
) -> None:
    """Of each number of heads: the points themselves; then the larger half of tokens, hidden."""
    table = GpuTables(tables_folder(), gpu, "vllm", {}).table(family, name)
    table = table.where("decodes", **wanted)
    at, beyond = [], []
    for batch, lens, us in _by_heads(table):
        at += list(_errors(batch, lens, us, np.ones(len(us), dtype=bool)))
        beyond += list(_errors(batch, lens, us, 2 * batch * lens <= (batch * lens).max()))
    assert np.median(at) < 0.01
    assert np.quantile(at, 0.9) < 0.1
    assert len(beyond) >= 20
    assert np.median(beyond) < 0.05


@pytest.mark.parametrize("gpu", ["h200", "b200"])
def test_prompts_that_are_scanned_go_on_beyond(gpu: str) -> None:
    """The longest prompt of each number of heads, from the shorter ones."""
    table = GpuTables(tables_folder(), gpu, "vllm", {}).table(
        "sparse_attention", "dsa_context_module_perf"
    )
    away = []
    for batch, lens, us in _by_heads(table.where("prompts", batch_size=1, step=0)):
        longest = lens.argmax()
        shorter = np.arange(len(lens)) != longest
        times = HeadTimes(batch[shorter], lens[shorter], us[shorter])
        at, attention, scanned = times.chosen_prompts(_TOPK)
        found = along(lens[[longest]], at, attention)
        found += scanned[-1] * (lens[longest] / at[-1]) ** 2
        away.append(abs(float(found[0]) / us[longest] - 1))
    assert len(away) >= 5
    assert np.median(away) < 0.1


@pytest.mark.parametrize("gpu", ["h200", "b200", "a100-80gb"])
def test_prompts_of_a_step_take_what_was_measured_of_them_together(gpu: str) -> None:
    """From single prompts; of up to 128 tokens, to 1,024, and beyond."""
    table = GpuTables(tables_folder(), gpu, "vllm", {}).table("attention", "context_attention_perf")
    away = defaultdict(list)
    for batch, lens, us in _by_heads(table.where("prompts", window_size=0)):
        single = batch == 1
        at, times = HeadTimes(batch[single], lens[single], us[single]).prompts()
        if len(at) < 2:
            continue
        target = _attention_alone(at, times)
        for size, length, measured in zip(batch, lens, us, strict=True):
            if size > 1 and length in at and length > MOST_VERIFIED:
                chunks = [int(length)] * int(size)
                pieces = Pieces(chunks, [0] * len(chunks))
                load = StepLoad(0, sum(chunks), len(chunks), sum(chunks), pieces)
                found = 1e6 * target.forward_time(load) - 1
                away[int(np.searchsorted([128, 1024], length))].append(found / measured - 1)
    for group, worst in enumerate((1.0, 0.5, 0.15)):
        assert len(away[group]) >= 20
        assert np.median(np.abs(away[group])) < worst
        assert abs(np.median(away[group])) < worst


def _attention_alone(at: Values, times: Values) -> Composed:
    """Return steps of one layer; all else takes a microsecond."""
    return Composed.model_validate(
        {
            **{"batched_tokens": [1, 2], "read_us": [1, 1], "compute_us": [0, 0]},
            "head": {"at": [1, 2], "times_us": [0, 0]},
            "attention": [
                {
                    **{"num_layers": 1, "context_tokens": [1, 2], "sequences": [1, 2]},
                    **{"decode_us": [[0, 0], [0, 0]], "decode_pair_us": 0},
                    "prompt": {"at": at.astype(int).tolist(), "times_us": times.tolist()},
                }
            ],
        }
    )


def _by_heads(table: MeasuredTable) -> Iterator[tuple[Values, Values, Values]]:
    """Yield batches, contexts and times of what differs in these alone."""
    axes = {"batch_size", "isl", "step", "latency"}
    kinds = [name for name in table.rows.column_names if name not in axes]
    groups = defaultdict(list)
    for row in table.rows.to_pylist():
        point = row["batch_size"], row["isl"] + row["step"], row["latency"]
        groups[tuple(row[name] for name in kinds)].append(point)
    for points in list(groups.values())[:: max(1, len(groups) // 10)]:
        batch, lens, times = np.array(points, dtype=float).T
        yield batch, lens, times


def _errors(batch: Values, lens: Values, us: Values, shown: NDArray[np.bool_]) -> Values:
    """Return how far off those are that are not shown; all if none is hidden."""
    contexts, sequences, grid = HeadTimes(batch[shown], lens[shown], us[shown]).grid()
    tested = ~shown if not shown.all() else shown
    tested &= np.isin(lens, contexts) & np.isin(batch, sequences)
    rows = np.searchsorted(contexts, lens[tested])
    found = grid[rows, np.searchsorted(sequences, batch[tested])]
    return np.abs(found / us[tested] - 1)


def test_several_gpus_of_intel_are_composed_without_cuda_graphs() -> None:
    two = TableOptions("qwen3-8b", "b60", tensor_parallel_size=2)
    with pytest.raises(ProfileError, match=r"without CUDA graphs: --kernel graphs=none$"):
        TableProfile.of(two)
    made = TableProfile.of(replace(two, kernels={"graphs": "none"})).profile
    alone = TableProfile.of(TableOptions("qwen3-8b", "b60")).profile
    load = StepLoad(512, 1, 1, 0)
    ratio = alone.target.forward_time(load) / made.target.forward_time(load)
    assert 1 < ratio < 2


@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm"])
@pytest.mark.parametrize("gpu", ["h100", "l40s", "rtx-pro-6000"])
def test_keys_are_read_no_faster_than_memory_is(gpu: str, engine: str) -> None:
    """Some tables were measured on keys that lay in the GPU's cache."""
    model = "llama-3.1-8b"
    shape, made = load_model(model), TableProfile.of(TableOptions(model, gpu, engine=engine))
    (layers,) = made.profile.target.attention
    of_token = shape.kv_bytes_per_token_and_gpu(1) / layers.num_layers
    moved = of_token * np.outer(layers.context_tokens, layers.sequences)
    assert np.all(np.array(layers.decode_us) >= moved / (1e3 * load_gpu(gpu).memory_gb_per_s))
