"""From records to numbers and files, against values worked out by hand."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import yaml
from conftest import tiny_config

from specsim.core.errors import ConfigError
from specsim.core.request import Request
from specsim.core.version import __version__
from specsim.results.folder import load_requests, load_steps
from specsim.results.metrics import Slo, keeps_limits, latencies, tpot
from specsim.run.experiment import Experiment
from specsim.run.simulate import simulate
from specsim.run.summary import Summary


@pytest.fixture
def worked(constant_step: Callable[..., str]) -> Summary:
    """Two requests, half-second steps, every draft of two accepted."""
    config = tiny_config(
        profile=constant_step(delta_ms=500, drafts={"ngram": {}}),
        engine={
            **tiny_config()["engine"],
            "speculative_config": {"method": "ngram", "num_speculative_tokens": 2},
            "async_scheduling": False,
        },
        acceptance={"kind": "bernoulli", "alpha": 1.0},
        slo={"ttft_ms": 600, "tpot_ms": 250},
    )
    requests = [
        Request(index=0, arrived_at=0.0, prompt_len=10, output_len=8, id="a"),
        Request(index=1, arrived_at=0.25, prompt_len=20, output_len=1, id="b"),
    ]
    # a: tokens at 0.5 (1), 1.0 (4), 1.5 (7), 2.0 (8);  b: its only token at 1.0.
    experiment = Experiment.parse(config, "worked")
    return Summary(simulate(experiment, requests=requests, keeps_deliveries=True))


def test_a_closed_loop_says_how_long_clients_think(tiny: Callable[..., Experiment]) -> None:
    experiment = tiny()
    clients = {"kind": "closed_loop", "concurrency": 2, "think_time": 0.25}
    closed = {**experiment.workload.model_dump(exclude_none=True), "arrivals": clients}
    found = [Summary(simulate(each)).data for each in (experiment, tiny(workload=closed))]
    assert [each["specsim"].get("think_time") for each in found] == [None, 0.25]
    assert [each["max_concurrency"] for each in found] == [None, 2]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("completed", 2),
        ("failed", 0),
        ("duration", 2.0),
        ("total_input_tokens", 30),
        ("total_output_tokens", 9),
        ("request_throughput", 1.0),
        ("output_throughput", 4.5),
        ("total_token_throughput", 19.5),
        ("mean_ttft_ms", 625.0),  # 500 and 750
        ("median_ttft_ms", 625.0),
        ("std_ttft_ms", 125.0),
        ("mean_tpot_ms", 1500 / 7),  # only a has more than one token
        ("mean_itl_ms", 500.0),
        ("p99_itl_ms", 500.0),
        ("mean_e2el_ms", 1375.0),  # 2000 and 750
        ("p90_e2el_ms", 1875.0),
        ("request_goodput", 0.5),  # b misses its 600 ms to the first token
        ("max_concurrent_requests", 2),
        ("max_output_tokens_per_s", 7.0),  # 3 + 1 at 1.0 and 3 at 1.5
        ("spec_decode_num_drafts", 3),
        ("spec_decode_draft_tokens", 6),
        ("spec_decode_accepted_tokens", 6),
        ("spec_decode_acceptance_rate", 100.0),
        ("spec_decode_acceptance_length", 3.0),
        ("spec_decode_per_position_acceptance_rates", [1.0, 1.0]),
    ],
)
def test_summary_fields(worked: Summary, field: str, value: Any) -> None:
    assert worked.data[field] == pytest.approx(value)


def test_one_token_has_no_tpot_and_keeps_its_limit(worked: Summary, tmp_path: Path) -> None:
    requests = worked.tables.requests
    assert tpot(requests)[0] == 1.5 / 7
    assert np.isnan(tpot(requests)[1])
    assert tpot(requests, of_one_token=0.0)[1] == 0.0
    assert keeps_limits(worked.tables, Slo(tpot_ms=1.0)).tolist() == [False, True]
    worked.save(tmp_path)
    columns = pq.read_table(tmp_path / "requests.parquet")
    found = latencies(load_requests(tmp_path))
    for name in ("ttft", "tpot", "e2el"):
        assert np.array_equal(columns[name].to_numpy(), found[name], equal_nan=True)


def test_gaps_are_shared_out_among_the_tokens_they_deliver(worked: Summary) -> None:
    own = worked.data["specsim"]
    assert own["amortised_itl_ms"]["mean"] == pytest.approx(1500 / 7)
    assert own["tokens_per_step"] == pytest.approx(9 / 5)
    assert own["time_shares"] == {"target": 1.0, "draft": 0.0, "overhead": 0.0}


def test_vllm_scripts_can_read_the_file(worked: Summary, tmp_path: Path) -> None:
    worked.save(tmp_path)
    data = json.loads((tmp_path / "summary.json").read_text())
    assert data["input_lens"] == [10, 20]
    assert data["output_lens"] == [8, 1]
    assert data["ttfts"] == [0.5, 0.75]
    assert data["itls"] == [[0.5, 0.5, 0.5], []]
    assert data["latencies"] == [2.0, 0.75]
    assert data["start_times"] == [0.0, 0.25]
    assert data["errors"] == ["", ""]
    header = ["date", "endpoint_type", "backend", "label", "model_id", "tokenizer_id"]
    assert list(data)[:6] == header
    assert data["num_prompts"] == 2


def test_every_row_says_where_it_comes_from(worked: Summary, tmp_path: Path) -> None:
    worked.save(tmp_path)
    for name, length in (("requests", 2), ("steps", 4)):
        table = pq.read_table(tmp_path / f"{name}.parquet")
        assert table.num_rows == length
        assert set(table["config_hash"].to_pylist()) == {worked.run.experiment.hash}
        assert set(table["seed"].to_pylist()) == {0}
        assert set(table["specsim_version"].to_pylist()) == {__version__}
    requests = pq.read_table(tmp_path / "requests.parquet").to_pydict()
    assert requests["id"] == ["a", "b"]
    assert requests["ttft"] == [0.5, 0.75]


def test_what_there_is_not_is_null_which_every_reader_leaves_out_of_a_mean(
    worked: Summary, tmp_path: Path
) -> None:
    worked.save(tmp_path)
    for name in ("requests", "steps"):
        table = pq.read_table(tmp_path / f"{name}.parquet")
        for column in filter(lambda each: pa.types.is_floating(each.type), table.columns):
            assert not pc.any(pc.is_nan(column)).as_py()
    tpots = pq.read_table(tmp_path / "requests.parquet")["tpot"]
    assert (tpots.null_count, pc.mean(tpots).as_py()) == (1, 1.5 / 7)
    assert np.isnan(load_steps(tmp_path)["alpha_estimate"]).all()


def test_a_run_of_thousands_of_years_takes_no_memory(tiny: Callable[..., Experiment]) -> None:
    rare = {**tiny_config()["workload"], "arrivals": {"kind": "poisson", "rate": 1e-11}}
    data = Summary(simulate(tiny(workload=rare))).data
    assert data["duration"] > 1e11
    # Alone in the system, a request of at most 40 tokens is answered within a second.
    assert 10 < data["max_output_tokens_per_s"] <= 40


def test_the_resolved_config_runs_to_the_same_numbers(
    tiny: Callable[..., Experiment], tmp_path: Path
) -> None:
    summary = Summary(simulate(tiny()))
    summary.save(tmp_path)
    again = Summary(simulate(Experiment.load(tmp_path / "config.yaml")))
    assert again.data == summary.data


def test_requests_of_a_run_replay_with_their_priorities(
    constant_step: Callable[..., str], tmp_path: Path
) -> None:
    rows = [
        {"arrived_at": 0.1 * n, "prompt_len": 8, "output_len": 20, "priority": -n % 3 - 1}
        for n in range(12)
    ]
    replayed = tmp_path / "given.jsonl"
    replayed.write_text("\n".join(map(json.dumps, rows)))
    ends = []
    for name in ("first", "again"):
        config = tiny_config(
            workload={"arrivals": {"kind": "trace", "path": str(replayed)}},
            engine={**tiny_config()["engine"], "scheduling_policy": "priority", "max_num_seqs": 2},
            profile=constant_step(delta_ms=100),
            policy="off",
        )
        Summary(simulate(Experiment.parse(config, name))).save(tmp_path / name)
        requests = pq.read_table(tmp_path / name / "requests.parquet").to_pydict()
        assert requests["priority"] == [row["priority"] for row in rows]
        ends.append(requests["ended_at"])
        replayed = tmp_path / name / "requests.parquet"
    assert ends[0] == ends[1] != sorted(ends[0])


def test_same_run_same_bytes(tiny: Callable[..., Experiment], tmp_path: Path) -> None:
    for name in ("one", "two"):
        Summary(simulate(tiny(), keeps_deliveries=True)).save(tmp_path / name)
    for file in ("summary.json", "requests.parquet", "steps.parquet", "config.yaml"):
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes()


def test_a_failed_save_leaves_nothing(
    worked: Summary, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("specsim.run.summary.write_summary", fail)
    with pytest.raises(ConfigError, match="No space left"):
        worked.save(tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_folder_that_cannot_be_written_is_a_clear_error(worked: Summary, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be written"):
        worked.save(tmp_path / "file" / "out")


def test_a_load_beyond_the_profile_is_mentioned(constant_step: Callable[..., str]) -> None:
    path = constant_step(delta_ms=1)
    data = yaml.safe_load(Path(path).read_text())
    data["valid_range"] = {"context_tokens": 10, "batched_tokens": 10**6}
    Path(path).write_text(yaml.safe_dump(data))
    summary = Summary(simulate(Experiment.parse(tiny_config(profile=path, policy="off"), "x")))
    assert len(summary.warnings) == 1
    assert "outside the profile's valid range" in summary.warnings[0]
