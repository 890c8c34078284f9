"""Splits of GPUs: every one of them, on the same requests, the best first."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from conftest import Run, tiny_config

from specsim.core.errors import ConfigError
from specsim.run.experiment import Experiment
from specsim.study.split import compare_splits, splits

WORKLOAD = {
    "arrivals": {"kind": "poisson", "rate": 20.0},
    "lengths": {"kind": "uniform", "prompt": [200, 900], "output": [20, 60]},
    "num_requests": 60,
}


def experiment(**changes: Any) -> Experiment:
    config = {**tiny_config(workload=WORKLOAD, slo={"ttft_ms": 300, "tpot_ms": 20}), **changes}
    return Experiment.parse(config, "split")


def test_every_split_is_there_with_the_gpus_that_replicas_take() -> None:
    found = list(splits(experiment(), 4))
    assert [label for label, _, _ in found] == ["colocated", "1p + 3d", "2p + 2d", "3p + 1d"]
    assert found[0][2].replicas == 4
    assert [arm.num_engines for _, _, arm in found] == [4, 4, 4, 4]
    # A prefill replica of four GPUs, decode replicas of two: one GPU of seven is left over.
    pools = {
        "prefill": {"profile": "h100/llama-3.1-70b-tp4"},
        "decode": {"profile": "h100/llama-3.1-70b-tp2"},
    }
    large = experiment(pools=pools, profile="h100/llama-3.1-70b-tp2")
    assert [(label, used) for label, used, _ in splits(large, 7)] == [
        ("colocated", 6), ("1p + 1d", 6),
    ]  # fmt: skip


def test_they_meet_the_same_requests_and_the_best_comes_first() -> None:
    found = compare_splits(experiment(), 3, rates=[20.0, 60.0], replications=2)
    assert [row.rate for row in found.rows] == [20.0] * 3 + [60.0] * 3
    for rate in (20.0, 60.0):
        mine = [row for row in found.rows if row.rate == rate]
        kept = [row.values["slo_attainment"] for row in mine]
        assert kept == sorted(kept, reverse=True)
        assert any(row.is_efficient for row in mine)
    split = next(row for row in found.rows if row.label == "1p + 2d")
    assert split.values["mean_transfer_ms"] > 0
    again = compare_splits(experiment(), 3, rates=[20.0, 60.0], replications=2, workers=2)
    assert again == found


@pytest.mark.parametrize(("gpus", "rates", "message"), [
    (1, [5.0], "takes 2"), (4, [5.0], "have no rate"),
])  # fmt: skip
def test_what_cannot_be_split_is_said(gpus: int, rates: list[float], message: str) -> None:
    changes: dict[str, Any] = {"profile": "h100/llama-3.1-70b-tp2"}
    if gpus > 1:
        changes = {"workload": {**WORKLOAD, "arrivals": {"kind": "burst"}}}
    with pytest.raises(ConfigError, match=message):
        compare_splits(experiment(**changes), gpus, rates=rates)


def test_the_command_prints_a_table_and_writes_a_file(cli: Run, tmp_path: Path) -> None:
    config = tiny_config(workload=WORKLOAD)
    (tmp_path / "e.yaml").write_text(yaml.safe_dump(config))
    code, out, _ = cli("split", "e.yaml", "--gpus", 2, "--out", "s", "--workers", 1)
    assert code == 0
    assert "colocated" in out
    assert "1p + 1d" in out
    rows = json.loads((tmp_path / "s" / "split.json").read_text())["rows"]
    assert {row["label"] for row in rows} == {"colocated", "1p + 1d"}
    code, _, error = cli("split", "e.yaml", "--gpus", 2, "--rates", "4,x")
    assert code == 2
    assert "--rates 4,x: should be numbers above 0" in error
