"""Kernel tables that tell sizes in their own ways."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest

from specsim.core.errors import ProfileError
from specsim.hardware import load_model
from specsim.profile.kernel_tables import GpuTables, MeasuredTable, TableOptions
from specsim.profile.kernel_times import StateTimes


def table(**columns: list[Any]) -> MeasuredTable:
    return MeasuredTable(pa.table(columns), "t")


def test_a_table_may_tell_phase_and_sizes_in_one_column() -> None:
    told = [
        json.dumps({"is_context": is_context, "num_heads": 8, "kv_cache_dtype": "bfloat16"})
        for is_context in (True, False)
    ]
    both = table(geometry=told, x=[128, 513], prefix=[64, 0], batch_size=[1, 2], latency=[0.1, 0.2])
    for phase, expected in (("context", (128, 64, 100)), ("generation", (1, 512, 200))):
        rows = both.of_phase(phase).where("attention", num_heads=8, kv_cache_dtype="bfloat16")
        assert tuple(float(each[0]) for each in rows.columns("isl", "step")) == expected


def test_prompts_of_one_token_are_left_out_of_states() -> None:
    """GLM-5.3-Flash's table has them by the kernels of decodes."""
    same = {"head_k_dim": 128, "head_v_dim": 128, "num_v_heads": 64, "batch_size": 1}
    rows = [("decode", 1, 1.0), ("prompt", 2, 3.0), ("prompt", 4, 5.0)]
    made = table(
        **{name: [value] * len(rows) for name, value in same.items()},
        phase=["context"] * len(rows),
        kernel_source=[name for name, _, _ in rows],
        seq_len=[length for _, length, _ in rows],
        latency=[latency for _, _, latency in rows],
    )
    tables = cast(Any, SimpleNamespace(table=lambda family, name: made))
    shape, options = load_model("glm-5.3-flash"), TableOptions("glm-5.3-flash", "h200")
    lens, times = StateTimes(shape, options, tables, lambda note: None).prompts()
    assert lens.tolist() == [2, 4]
    assert times == pytest.approx([3000, 5000])


def test_what_aiconfigurator_lacks_of_glm_is_taken_from_aisimulate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    places = {"aiconfigurator_core": [str(first)], "aisimulate_core": [str(second)]}
    monkeypatch.setattr(
        "specsim.profile.kernel_tables.find_spec",
        lambda name: SimpleNamespace(submodule_search_locations=places[name]),
    )
    (first / "systems" / "data" / "h200_sxm").mkdir(parents=True)
    for family in ("glm53_attention", "kda"):
        folder = second / "systems" / "data" / "h200_sxm" / family / "vllm" / "0.31.0"
        folder.mkdir(parents=True)
        (folder / f"{family}_perf.parquet").touch()
    tables = GpuTables(first / "systems", "h200")
    assert tables.has("glm53_attention", "glm53_attention_perf")
    assert not tables.has("kda", "kda_perf")
    with pytest.raises(ProfileError, match="no table glm53_attention/other of vllm; install the p"):
        tables.table("glm53_attention", "other")
