"""Results of ``vllm bench serve --save-result`` as rows: what `validate` and `fit` make of them."""

import csv
import json
from pathlib import Path
from typing import Any

import pytest
from composed_profile import START, truth
from conftest import Run

from specsim.cli.options import write_profile
from specsim.core.errors import ConfigError
from specsim.profile import load_profile
from specsim.reality.validation import MeasuredRun, predict, read_table
from specsim.reality.validation.table_replay import compose_row
from specsim.run.experiment import Experiment
from specsim.run.simulate import simulate
from specsim.run.summary import Summary

RESULT: dict[str, Any] = {
    "date": "20260101-120000",
    "endpoint_type": "openai",
    "model_id": "meta-llama/Llama-3.1-8B-Instruct",
    "tokenizer_id": "meta-llama/Llama-3.1-8B-Instruct",
    "num_prompts": 32,
    "request_rate": "inf",
    "burstiness": 1.0,
    "max_concurrency": 8,
    "duration": 10.0,
    "completed": 32,
    "failed": 0,
    "total_input_tokens": 6400,
    "total_output_tokens": 3200,
    "request_throughput": 3.2,
    "output_throughput": 320.0,
    "mean_ttft_ms": 30.0,
    "median_ttft_ms": 28.0,
    "std_ttft_ms": 3.0,
    "p99_ttft_ms": 60.0,
    "mean_tpot_ms": 9.0,
    "median_tpot_ms": 8.9,
    "mean_itl_ms": 9.1,
    "median_itl_ms": 8.8,
    "mean_e2el_ms": 900.0,
}
DRAFTS = {
    "spec_decode_acceptance_rate": 40.0,
    "spec_decode_acceptance_length": 2.2,
    "spec_decode_num_drafts": 1500,
    "spec_decode_draft_tokens": 4500,
    "spec_decode_accepted_tokens": 1800,
    "spec_decode_per_position_acceptance_rates": [0.6, 0.4, 0.2],
}


def write(path: Path, **changes: Any) -> Path:
    path.write_text(json.dumps({**RESULT, **changes}))
    return path


def read(tmp_path: Path, given: dict[str, str] | None = None, **changes: Any) -> MeasuredRun:
    (run,) = read_table(write(tmp_path / "run.json", **changes), given)
    return run


def test_a_closed_loop_without_drafts(tmp_path: Path) -> None:
    run = read(tmp_path)
    assert (run.run_id, run.load, run.num_prompts) == ("run", "C = 8", 32)
    assert (run.num_speculative_tokens, run.missing) == (0, ())
    assert run.prompt is not None
    assert run.prompt.mean == 200
    assert run.measured["output_tok_s"] == 320
    assert run.measured["ttft_p50_ms"] == 28
    assert run.measured["e2e_mean_ms"] == 900
    assert "ttft_std_ms" not in run.measured


def test_drafts_are_known_but_for_the_method(tmp_path: Path) -> None:
    run = read(tmp_path, **DRAFTS)
    assert "method is empty: say what drafts 3 tokens" in run.missing[0]
    with pytest.raises(ConfigError, match=r"eagle3 \(--set COLUMN=VALUE fills empty cells\); or"):
        compose_row(run)
    run = read(tmp_path, {"method": "eagle3", "gpu": "H100"}, **DRAFTS)
    assert run.missing == ()
    assert (run.method, run.num_speculative_tokens) == ("eagle3", 3)
    assert run.rates == pytest.approx((0.6, 0.4, 0.2))
    assert "acceptance_rate" not in run.measured  # theirs is in percent, of all drafted tokens
    assert run.cells["gpu"] == "H100"


def test_metadata_has_every_column_of_a_table(tmp_path: Path) -> None:
    run = read(tmp_path, tensor_parallel_size="2", match_probability="0.5", engine_steps="900")
    assert (run.tensor_parallel_size, run.lookup) == (2, {"match_probability": 0.5})
    assert run.measured["engine_steps"] == 900
    assert "a row is simulated on one server" in read(tmp_path, data_parallel_size="4").missing[0]


def test_a_rate_that_rises_is_no_load_that_can_be_repeated(tmp_path: Path) -> None:
    """Its request_rate is inf, as if all requests had come at once."""
    found = read(
        tmp_path,
        max_concurrency=None,
        ramp_up_strategy="linear",
        ramp_up_start_rps=1,
        ramp_up_end_rps=40,
    )
    assert "ramp_up_strategy = 'linear': a rate that changes" in found.missing[0]


def test_a_result_without_drafts_among_ones_with_drafts(tmp_path: Path) -> None:
    """So runs with k = 0, 1, 3, 5 are fitted together: ``--set method=eagle3`` is of the others."""
    run = read(tmp_path, {"method": "eagle3", "gpu": "H100"})
    assert (run.method, run.num_speculative_tokens, run.missing) == ("", 0, ())
    assert "no spec_decode fields: taken as a run without speculation" in run.notes
    said = read(tmp_path, {"method": "eagle3", "num_speculative_tokens": "3"})
    assert "no acceptance for num_speculative_tokens = 3" in said.missing[0]
    rated = read(tmp_path, {"method": "eagle3", "accept_rate_per_pos": "0.6;0.4"})
    assert "num_speculative_tokens is empty, method is 'eagle3'" in rated.missing[0]


def test_appended_results_are_a_run_each(tmp_path: Path) -> None:
    path = tmp_path / "runs.json"
    path.write_text("\n".join(json.dumps({**RESULT, "max_concurrency": c}) for c in (1, 8)))
    assert [(run.run_id, run.load) for run in read_table(path)] == [
        ("runs", "C = 1"),
        ("runs-2", "C = 8"),
    ]
    assert [run.line for run in read_table(path)] == [1, 2]


SGLANG = {
    "backend": "sglang", "request_rate": "inf", "max_concurrency": 4, "duration": 8.0,
    "completed": 40, "total_input_tokens": 20000, "total_output_tokens": 4000,
    "request_throughput": 5.0, "output_throughput": 500.0, "mean_e2e_latency_ms": 800.0,
    "mean_ttft_ms": 22.1, "mean_tpot_ms": 7.8, "p99_itl_ms": 8.0, "concurrency": 3.9,
    "accept_length": None,
}  # fmt: skip


def test_lines_of_sglang_s_benchmark_are_a_run_each(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    rows: list[dict[str, Any]] = [SGLANG, {**SGLANG, "accept_length": 2.25}]
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    plain, drafted = read_table(path)
    assert plain.concurrency == 4  # what was asked for; 3.9 were at work in the mean
    assert plain.measured == {
        "output_tok_s": 500.0, "request_throughput": 5.0, "duration_s": 8.0, "ttft_mean_ms": 22.1,
        "tpot_mean_ms": 7.8, "itl_p99_ms": 8.0, "e2e_mean_ms": 800.0,
    }  # fmt: skip
    assert plain.gaps == ()
    assert "acceptance_length = 2.25, so tokens were drafted: give method" in drafted.gaps[0]
    _, drafted = read_table(path, {"method": "eagle3", "num_speculative_tokens": "3"})
    assert (drafted.gaps, drafted.measured["acceptance_length"]) == ((), 2.25)


def test_sglang_s_client_sends_its_first_request_at_once(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    row = {**SGLANG, "request_rate": 5.0, "max_concurrency": None}
    path.write_text("".join(f"{json.dumps(row)}\n" for _ in range(2)))
    for run, begins in ((read_table(path)[0], 0.0), (read(tmp_path, request_rate=5.0), None)):
        arrived_at = compose_row(run).requests.arrived_at
        assert arrived_at is not None
        assert (arrived_at[0] == 0) == (begins == 0)


def test_one_line_with_that_ending_is_a_result_too(tmp_path: Path) -> None:
    path = write(tmp_path / "runs.jsonl")
    [run] = read_table(path)
    assert run.measured["ttft_mean_ms"] == 30.0


def test_a_result_over_several_lines_is_one(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    path.write_text(json.dumps(RESULT, indent=2))
    assert [run.run_id for run in read_table(path)] == ["run"]


def test_metadata_of_the_benchmark_are_cells(tmp_path: Path) -> None:
    run = read(tmp_path, method="eagle3", num_speculative_tokens="3", tp="2", **DRAFTS)
    assert (run.method, run.num_speculative_tokens, run.tensor_parallel_size) == ("eagle3", 3, 2)


def test_details_give_the_length_of_each_request(tmp_path: Path) -> None:
    lens = {"input_lens": [100, 200, 300, 50], "output_lens": [10, 20, 30, 0]}
    run = read(tmp_path, completed=3, failed=1, max_concurrency=None, request_rate=2.5, **lens)
    assert run.lens is not None
    assert run.lens.tolist() == [[100, 10], [200, 20], [300, 30]]
    assert (run.load, run.num_prompts) == ("2.5 requests/s", 3)
    assert run.notes == ("1 requests failed: they are left out",)  # no mean in place of lengths


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"duration": None}, "duration = None must be a number above 0"),
        ({"completed": 0}, "completed = 0 must be a number above 0"),
        ({"input_lens": [1], "output_lens": [1]}, "32 of them above 0 as 'completed' says"),
        ({"input_lens": [1], "output_lens": ["x"]}, "must be whole numbers"),
        ({"mean_ttft_ms": "fast"}, "ttft_mean_ms = 'fast' must be a number"),
    ],
)
def test_what_is_no_result_is_refused(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message) as error:
        read(tmp_path, **changes)
    assert "run.json" in str(error.value)
    assert "\n" not in str(error.value)


def test_a_profile_is_validated_against_and_fitted_to_results(tmp_path: Path, cli: Run) -> None:
    names = {"output_throughput": "output_tok_s", "mean_tpot_ms": "tpot_mean_ms"}
    names |= {"mean_ttft_ms": "ttft_mean_ms", "median_ttft_ms": "ttft_p50_ms"}
    names |= {"median_itl_ms": "itl_p50_ms", "mean_e2el_ms": "e2e_mean_ms"}
    files = []
    for clients in (1, 8, 16):
        path = write(tmp_path / f"c{clients}.json", max_concurrency=clients)
        (found,) = predict(read_table(path), truth())
        measured = {theirs: found.values[ours] for theirs, ours in names.items()}
        files.append(write(path, max_concurrency=clients, **measured))
    for name, profile in (("true", truth()), ("start", START)):
        write_profile(Path(f"{name}.yaml"), profile)
    options = ("--set", "gpu=H100", "--set", "quantisation=fp16", "--workers", "1")
    code, _, errors = cli(
        *("validate", *files, "--profile", "true.yaml", *options, "--predictions", "p.csv")
    )
    assert (code, errors) == (0, "")
    with Path("p.csv").open() as stream:
        predicted = {row["metric"]: row["error"] for row in csv.DictReader(stream)}
    for metric in names.values():
        assert float(predicted[metric]) == pytest.approx(0, abs=1e-4)
    fit = ("--start", "start.yaml", "--fit-rows", "run_id=c1", "--fit-rows", "run_id=c16")
    code, output, errors = cli("profile", "fit", *files, *fit, *options, "--out", "new.yaml")
    assert (code, errors) == (0, "")
    assert "of held-out rows" in output


def test_a_closed_loop_of_a_simulation_is_repeated_as_one(tmp_path: Path) -> None:
    """It had a rate, as nobody's closed loop has, and was repeated as an open one.

    By the same server: of its four clients two wait.
    """
    workload = {
        "arrivals": {"kind": "closed_loop", "concurrency": 4},
        "lengths": {"kind": "constant", "prompt": 100, "output": 20},
        "num_requests": 20,
    }
    experiment = Experiment.parse(
        {"workload": workload, "profile": "h100/llama-3.1-8b", "engine": {"max_num_seqs": 2}}, "e"
    )
    Summary(simulate(experiment, keeps_deliveries=True)).save(tmp_path / "out")
    (run,) = read_table(tmp_path / "out" / "summary.json")
    assert (run.concurrency, run.request_rate) == (4, None)
    assert "LoRA adapters, arrivals neither" in run.notes[0]
    (found,) = predict([run], load_profile("h100/llama-3.1-8b"))
    assert found.values["ttft_mean_ms"] == pytest.approx(run.measured["ttft_mean_ms"])


@pytest.mark.parametrize(
    ("own", "said"),
    [
        ({"replicas": 2}, "2 replicas or ranks"),
        ({"replicas": 1, "sessions": {}, "hits": {}}, "sessions, hits"),
        ({"replicas": 1, "policy": {"kind": "goodput"}}, "policy goodput"),
        ({"replicas": 1, "think_time": 0.5}, "think_time"),
        ({"replicas": 1, "incidents": 1}, "incidents"),
    ],
)
def test_a_simulation_that_no_row_can_say_is_refused(
    own: dict[str, Any], said: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=f"is of a simulation with {said}, which would be"):
        read(tmp_path, specsim=own)
    assert read(tmp_path, specsim={"replicas": 1, "policy": {"kind": "static"}}).concurrency == 8
