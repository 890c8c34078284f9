"""A real hour: the whole Azure 2023 conversation trace, as recorded, on four replicas."""

import csv
from pathlib import Path

import pytest
from conftest import ROOT, data_folder, needs

from specsim.run.experiment import Experiment
from specsim.run.simulate import simulate
from specsim.run.summary import Summary

TRACE = data_folder() / "traces" / "AzureLLMInferenceTrace_conv.csv"
FOLDER = ROOT / "experiments" / "azure-replay"


@needs(TRACE)
def test_azure_conversations_replayed(tmp_path: Path) -> None:
    override = f"workload.arrivals.path={TRACE}"
    summary = Summary(simulate(Experiment.load(FOLDER / "experiment.yaml", [override])))
    rows = summary.tables.requests
    assert len(rows) == 19_366
    assert int(rows["prompt_len"].sum()) == 22_361_870
    assert int(rows["output_len"].sum()) == 4_088_665
    assert summary.stability != "overloaded"
    published = csv.DictReader((FOLDER / "results.csv").read_text().splitlines())
    kept = next(row for row in published if row["policy"] == "static:k=3")
    for field in ("mean_ttft_ms", "mean_tpot_ms", "mean_e2el_ms", "p99_e2el_ms"):
        assert summary.data[field] == pytest.approx(float(kept[field]), rel=1e-3)
