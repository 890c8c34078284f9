"""Sweeps: every point there once, whole, and the same whatever happened in between."""

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import yaml
from conftest import Run, tiny_config

from specsim.errors import ConfigError
from specsim.sweep import Sweep, SweepFolder


def sweep_file(folder: Path, axes: Any, **rest: Any) -> Path:
    path = folder / "sweep.yaml"
    path.write_text(yaml.safe_dump({"base": tiny_config(), "axes": axes, **rest}))
    return path


AXES = [
    {"policy": ["off", "static:k=2"]},
    {"workload.arrivals.rate": [5, 20.0], "workload.num_requests": [8, 9]},
]


def test_the_grid_is_the_product_of_the_axes_and_fields_of_one_axis_change_together(
    tmp_path: Path,
) -> None:
    points = list(Sweep.load(sweep_file(tmp_path, AXES, replications=2), ["seed=7"]).points())
    rows = [(*point.axes.values(), point.replication, point.seed) for point in points]
    assert rows == [
        ("off", 5, 8, 0, 7), ("off", 5, 8, 1, 8), ("off", 20.0, 9, 0, 7), ("off", 20.0, 9, 1, 8),
        ("static:k=2", 5, 8, 0, 7), ("static:k=2", 5, 8, 1, 8),
        ("static:k=2", 20.0, 9, 0, 7), ("static:k=2", 20.0, 9, 1, 8),
    ]  # fmt: skip
    assert points[5].experiment().seed == 8
    assert points[5].experiment().workload.num_requests == 8


def test_a_sweep_writes_its_points_and_one_table(cli: Run, tmp_path: Path) -> None:
    code, out, err = cli("sweep", sweep_file(tmp_path, AXES), "--workers", 1, "--out", "done")
    assert (code, err) == (0, "")
    assert "4 points" in out
    table = pq.read_table(tmp_path / "done" / "points.parquet")
    assert table["policy"].to_pylist() == ["off"] * 2 + ["static:k=2"] * 2
    assert table["workload.arrivals.rate"].to_pylist() == [5.0, 20.0] * 2
    assert table["completed"].to_pylist() == [8, 9] * 2
    record = json.loads((tmp_path / "done" / "points" / "00003.json").read_text())
    assert record["metrics"]["mean_tpot_ms"] == table["mean_tpot_ms"][3].as_py()
    assert len(record["distributions"]["ttft_ms"]) == 101
    assert sum(record["breakdown"].values()) > 0
    assert len(SweepFolder.open(tmp_path / "done").records()) == 4


@pytest.mark.parametrize(
    ("axes", "message"),
    [
        ([], "axes"),
        ([{"policy": []}], "'policy' has no value, so the grid is empty"),
        ([{"workload.arrivals.ratee": [1, 2]}], "did you mean 'rate'"),
    ],
)
def test_a_bad_grid_is_one_line_that_names_it(axes: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        Sweep.load(sweep_file(tmp_path, axes))
