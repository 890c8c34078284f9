"""Tables: what all of them have in common, and what that of a run says of its KV entries."""

from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from conftest import Run, tiny_config
from rich.console import Console
from rich.table import Table

from specsim.core.figures import percent
from specsim.core.request import Request
from specsim.run.experiment import Experiment
from specsim.run.simulate import simulate
from specsim.run.summary import Summary
from specsim.show.render import new_table, shown
from specsim.show.render.run_tables import comparison_table, run_table
from specsim.show.render.study_tables import sweep_tables
from specsim.show.report import load_study, page_data
from specsim.study.compare import compare
from specsim.study.sweep import sweep


@pytest.mark.parametrize(("remark", "num_columns"), [("", 2), ("FAILED", 3)])
def test_a_column_of_remarks_is_there_if_there_are_any(remark: str, num_columns: int) -> None:
    table = new_table("title", ["row", "x", ""], [["a", "1", ""], ["b", "2", remark]])
    assert len(table.columns) == num_columns
    assert [list(column.cells) for column in table.columns[:2]] == [["a", "b"], ["1", "2"]]


def rows_of(summary: Summary) -> dict[str, str]:
    names, values = (list(column.cells) for column in run_table(summary, "run").columns[:2])
    return dict(zip(names, values, strict=True))


def page_of(summary: Summary, folder: Path) -> dict[str, float]:
    """Return the numbers of the page's only run, by name."""
    summary.save(folder)
    data: dict[str, Any] = page_data(load_study(folder))
    names = [metric["name"] for metric in data["metrics"]]
    return dict(zip(names, data["cells"][0]["mean"], strict=True))


def test_of_pools_it_says_what_was_transferred(tmp_path: Path) -> None:
    config = tiny_config(pools={"transfer": {"bandwidth_gb_s": 10}})
    summary = Summary(simulate(Experiment.parse(config, "pools")))
    found, rows = summary.data["specsim"]["pools"], rows_of(summary)
    assert rows["30 transfers, mean"] == f"{found['mean_transfer_ms']:.2f} ms"
    assert rows["transferred tokens"] == f"{summary.data['total_input_tokens']:,}"
    share = found["mean_prefill_ms"] / summary.data["mean_ttft_ms"]
    assert 0 < share < 1
    assert (
        rows["of TTFT until prefilled"]
        == f"{found['mean_prefill_ms']:.2f} ms ({percent(share, 0)})"
    )
    page = page_of(summary, tmp_path / "run")
    for name in ("mean_prefill_ms", "mean_transfer_ms", "transferred_tokens"):
        assert page[f"pools.{name}"] == pytest.approx(found[name], rel=1e-5)


def test_of_kv_tiers_it_says_where_prefixes_were_found(tmp_path: Path) -> None:
    engine = {"block_size": 8, "num_gpu_blocks": 7, "max_model_len": 40, "max_num_seqs": 4,
              "max_num_batched_tokens": 64, "kv_offload": {"blocks": 100}}  # fmt: skip
    prompts = [np.arange(33) + 100 * name for name in (1, 2, 1, 1)]
    requests = [
        Request(index=i, arrived_at=10.0 * i, prompt_len=33, output_len=1, prompt_token_ids=prompt)
        for i, prompt in enumerate(prompts)
    ]
    experiment = Experiment.parse(tiny_config(engine=engine, policy="off"), "tiers")
    summary = Summary(simulate(experiment, requests=requests))
    found = summary.data["specsim"]["hits"]
    gpu, host = (found[f"{tier}_tokens"] / 132 for tier in ("gpu", "host"))
    assert gpu > 0 < host
    assert (
        rows_of(summary)["prefix hits: GPU, host, disk"]
        == f"{percent(gpu)}, {percent(host)}, 0.0 %"
    )
    page = page_of(summary, tmp_path / "run")
    assert page["hits.gpu_share"] == pytest.approx(gpu, rel=1e-5)
    assert page["hits.host_share"] == pytest.approx(host, rel=1e-5)
    assert page["hits.disk_share"] == 0


def test_of_neither_it_says_nothing(tmp_path: Path) -> None:
    summary = Summary(simulate(Experiment.parse(tiny_config(), "plain")))
    names = [*rows_of(summary), *page_of(summary, tmp_path / "run")]
    assert not [name for name in names if any(w in name for w in ("transfer", "hits", "prefilled"))]


def test_commands_show_a_metric_alike(tmp_path: Path) -> None:
    """A run, a comparison (as columns, and ranked) and a sweep of the same one."""
    config = tiny_config(policy={"kind": "static", "k": 1})
    summary = Summary(simulate(Experiment.parse(config, "run")))
    own = rows_of(summary)
    experiment = Experiment.parse(config, "compared")
    policies = ["static:k=1", "static:k=2", "goodput", "ema_tiers"]
    few = comparison_table(compare(experiment, policies[:1], replications=1), "few")
    many = comparison_table(compare(experiment, policies, replications=1), "many")
    path = tmp_path / "s.yaml"
    path.write_text(yaml.safe_dump({"base": config, "axes": [{"policy": ["static:k=1"]}]}))
    [swept] = sweep_tables(sweep(path, tmp_path / "swept"), "swept")
    console = Console(width=250, file=StringIO(), record=True)
    assert isinstance(few, Table)
    columns = [list(column.cells) for column in few.columns]
    by_name = dict(zip(columns[0], columns[2], strict=True))
    assert by_name["output tokens/s"] == own["output tokens/s"]
    console.print(many)
    [line] = [line for line in console.export_text().splitlines() if "static:k=1" in line]
    row = {str(column.header): next(iter(column.cells)) for column in swept.columns}
    for metric in ("E2E latency mean, ms", "TTFT mean, ms", "TPOT mean, ms", "output tokens/s"):
        assert row[metric] == by_name[metric]
        assert row[metric] in line.split()


def test_of_replications_a_sweep_shows_the_interval(tmp_path: Path) -> None:
    metrics = dict.fromkeys(("mean_ttft_ms", "mean_tpot_ms", "mean_e2el_ms"), 5.0)
    records = [
        {
            "labels": {"policy": "off"}, "error": None,
            "metrics": {**metrics, "output_throughput": rate, "overloaded": 0, "undecided": 0},
        }
        for rate in (99.0, 101.0)
    ]  # fmt: skip
    [found] = sweep_tables(records, "swept")
    row = [next(iter(column.cells)) for column in found.columns]
    assert row == ["off", *["5.00 ± 0"] * 3, "100 ± 13"]  # Student's t of one degree: 12.7
    assert found.caption == "±: 95 % interval of the mean over replications"


def test_columns_of_a_sweep_have_names_of_their_own(tmp_path: Path) -> None:
    axes = {f"workload.lengths.{name}": [[8, 9]] for name in ("prompt", "output")}
    axes |= {f"pools.{name}.replicas": [1] for name in ("prefill", "decode")}
    axes["replicas"] = [1]
    record = {"labels": dict.fromkeys(axes, "1"), "metrics": {}, "error": "none"}
    [found] = sweep_tables([record], "swept")
    assert [column.header for column in found.columns][:5] == [
        "prompt", "output", "prefill.replicas", "decode.replicas", "replicas",
    ]  # fmt: skip


def test_few_preemptions_in_the_mean_are_not_none() -> None:
    values = (0.0, 1 / 3, 5.0, 1234.5)
    assert [shown("num_preemptions", each) for each in values] == ["0", "0.333", "5", "1,234"]


def test_a_note_on_a_trace_does_not_widen_its_table(tmp_path: Path, cli: Run) -> None:
    extra = [f"a_column_of_mine_{number}" for number in range(8)]
    row = ",".join(["7", "3", *map(str, range(8))])
    (tmp_path / "t.csv").write_text(
        "\n".join([",".join(["prompt_len", "output_len", *extra]), *[row] * 5])
    )
    code, out, _ = cli("trace", "describe", "t.csv")
    assert code == 0
    assert max(map(len, out.splitlines())) < 120
    assert extra[-1] in out
