"""Whole small runs, kept: a change of behaviour shows here first.

These values are not theory. If a change is meant, write them anew with ``pytest --regen`` and say
in the commit why they moved.
"""

from pathlib import Path
from typing import Any

import pytest
from conftest import tiny_config

from specsim.run.experiment import Experiment
from specsim.run.simulate import simulate
from specsim.run.summary import Summary

HERE = Path(__file__).parent
ENGINE = tiny_config()["engine"]
CASES: dict[str, dict[str, Any]] = {
    "off": {"policy": "off"},
    "static": {"policy": "static:k=3"},
    "synchronous": {"engine": {**ENGINE, "async_scheduling": False}},
    "oracle": {"policy": "oracle"},
    "schedule": {"policy": "schedule:ranges=[[1, 2, 3], [3, 9, 1], [10, 99, 0]]"},
    "few_blocks": {"engine": {**ENGINE, "num_gpu_blocks": 66},
                   "workload": {**tiny_config()["workload"], "arrivals": {"kind": "burst"}}},
    "prefill_first": {"engine": {**ENGINE, "scheduler": "prefill_first",
                                 "max_num_batched_tokens": 1024}},
    "two_replicas": {"replicas": 2},
}  # fmt: skip
COLUMNS = ("request", "replica", "arrived_at", "scheduled_at", "first_token_at", "ended_at",
           "prompt_len", "output_len", "preemptions", "drafts", "accepted_tokens")  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_runs_are_what_they_were(name: str, request: pytest.FixtureRequest) -> None:
    experiment = Experiment.parse(tiny_config(**CASES[name]), name)
    rows = Summary(simulate(experiment, check=True)).tables.requests
    lines = [",".join(COLUMNS)]
    lines += [",".join(f"{row[column]:.9g}" for column in COLUMNS) for row in rows]
    path = HERE / f"{name}.csv"
    if request.config.getoption("--regen"):
        path.write_text("\n".join(lines) + "\n")
    assert path.read_text().splitlines() == lines
