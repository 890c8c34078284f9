"""`specsim validate TABLE.csv`: made-up tables that are reproduced exactly, and real ones."""

import csv
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import ROOT, Run, data_folder, load_script, needs

from specsim.core.errors import ConfigError, ProfileError, SpecsimError
from specsim.core.step import StepLoad
from specsim.hardware import load_model
from specsim.profile import load_profile
from specsim.reality.validation import (
    MeasuredLengths,
    MeasuredRun,
    Prediction,
    Replayer,
    TableErrors,
    predict,
    read_table,
    select_rows,
    with_lengths,
)
from specsim.reality.validation.measured_table import runs_of_rows
from specsim.reality.validation.prediction_errors import speed_ups
from specsim.reality.validation.table_replay import (
    check_same,
    compose_row,
    in_blocks,
    is_same_gpu,
    simulate_row,
)
from specsim.run.deployment import Deployment

REAL = data_folder() / "gpu-runs"
cleaned = load_script(ROOT / "experiments" / "gpu-runs" / "clean.py").cleaned
PROFILE = "h100/llama-3.1-8b"
BASE = {
    "model": "meta-llama/Llama-3.1-8B-Instruct",
    "gpu": "NVIDIA H100 80GB HBM3",
    "tp": "1",
    "engine_version": "0.24.0",
    "isl": "uniform 100..300",
    "osl": "uniform 20..60",
    "dataset": "random tokens",
    "seed": "7",
    "max_num_batched_tokens": "2048",
    "max_num_seqs": "64",
    "max_model_len": "4096",
    "num_gpu_blocks": "32000 tokens",
    "block_size": "16.0",
    "prefix_caching": "off",
    "num_prompts": "40",
    "num_warmups": "4",
}
NONE = {"method": "none", "num_speculative_tokens": "0"}
K3 = {"method": "eagle3", "num_speculative_tokens": "3.0", "accept_rate_per_pos": "0.7;0.5;0.35"}


def made_up(path: Path, *rows: dict[str, str]) -> Path:
    """Write a table whose rows have some value for every metric."""
    table = [
        {"run_id": f"r{n}", **BASE, "ttft_p50_ms": "1", "concurrency": "4", **row}
        for n, row in enumerate(rows)
    ]
    names = list(dict.fromkeys(name for row in table for name in row))
    with path.open("w", newline="") as stream:
        writer = csv.DictWriter(stream, names)
        writer.writeheader()
        writer.writerows(table)
    return path


def simulated(path: Path, *rows: dict[str, str]) -> Path:
    """Write a table whose measured values are those of a simulation.

    But for what was accepted: that of all drafts together would correct the rates by position.
    """
    measured = [
        {name: repr(value) for name, value in each.values.items() if "accept" not in name}
        for each in predict(read_table(made_up(path, *rows)), PROFILE)
    ]
    return made_up(path, *({**row, **found} for row, found in zip(rows, measured, strict=True)))


@pytest.fixture
def table(tmp_path: Path) -> Path:
    rows = [{**each, "concurrency": c} for c in ("1", "8") for each in (NONE, K3)]
    rows.append({**NONE, "concurrency": "", "request_rate": "5"})
    return simulated(tmp_path / "runs.csv", *rows)


def one(tmp_path: Path, **cells: str) -> MeasuredRun:
    (run,) = read_table(made_up(tmp_path / "one.csv", {**NONE, **cells}))
    return run


def test_rows_are_read_as_a_table_of_them_is(tmp_path: Path) -> None:
    path = made_up(tmp_path / "t.csv", {**NONE, "rate": "5"}, {**K3, "isl": " 300 "})
    rows = [{**row, "num_prompts": int(row["num_prompts"])} for row in written(str(path))]
    assert repr(runs_of_rows(rows, path, first_line=2)) == repr(read_table(path))
    with pytest.raises(ConfigError, match=r"rows, line 1: .*num_prompts"):
        runs_of_rows([{**rows[0], "num_prompts": 0.5}])


def written(path: str) -> list[dict[str, str]]:
    with Path(path).open() as stream:
        return list(csv.DictReader(stream))


def refused(tmp_path: Path, **cells: str) -> str:
    with pytest.raises(ConfigError) as error:
        one(tmp_path, **cells)
    return str(error.value)


@pytest.mark.slow
def test_what_the_simulator_made_it_reproduces(table: Path, cli: Run) -> None:
    code, output, errors = cli(
        "validate", table, "--profile", PROFILE, "--predictions", "p.csv", "--json", "p.json"
    )
    assert (code, errors) == (0, "")
    assert "speed-up over no speculation (2 of 2 with the right sign)" in output
    rows = [row for row in written("p.csv") if row["error"]]
    assert {row["metric"] for row in rows} >= {"ttft_p99_ms", "itl_p50_ms", "num_drafts"}
    assert {row["num_speculative_tokens"] for row in rows} == {"0", "3"}
    assert all(abs(float(row["error"])) < 1e-6 for row in rows)
    report = json.loads(Path("p.json").read_text())
    assert {each["metric"] for each in report["errors"]["by_metric"]} >= {"ttft_p99_ms"}
    assert [each["agrees"] for each in report["errors"]["speed_ups"]] == [True, True]
    assert [each["loss"] for each in report["errors"]["best"]] == [0.0, 0.0]


@pytest.mark.slow
def test_the_same_bytes_for_any_number_of_processes(table: Path, cli: Run) -> None:
    for workers in ("1", "2"):
        arguments = ("--profile", PROFILE, "--seed", "3", "--workers", workers)
        out = ("--predictions", f"{workers}.csv", "--out", f"out{workers}")
        assert cli("validate", table, *arguments, *out)[0] == 0
    assert Path("1.csv").read_bytes() == Path("2.csv").read_bytes()
    for name in ("report.json", "report.png"):
        assert Path("out1", name).read_bytes() == Path("out2", name).read_bytes()


def test_a_profile_object_again_and_again(table: Path) -> None:
    runs = read_table(table)
    profile = load_profile(PROFILE)
    slower = profile.model_copy(
        update={"overhead": profile.overhead.model_copy(update={"step_ms": 50.0})}
    )
    with Replayer(runs) as replayer:
        first = replayer.predict(profile)
        other = replayer.predict(slower)
        assert replayer.predict(profile) == first == predict(runs, PROFILE)
    for one_, two in zip(first, other, strict=True):
        assert two.values["tpot_mean_ms"] > one_.values["tpot_mean_ms"] + 40 / 4


def test_a_row_with_drafts_is_the_median_of_three_draws(tmp_path: Path) -> None:
    runs = read_table(made_up(tmp_path / "t.csv", {**BASE, **NONE}, {**BASE, **K3}))
    profile = load_profile(PROFILE)
    with Replayer(runs, seed=5) as replayer:
        assert replayer.num_simulations == 1 + 3
        plain, drafted = (each.values for each in replayer.predict(profile))
    draws = [simulate_row(profile, compose_row(runs[1], seed=seed)) for seed in (5, 6, 7)]
    assert len({draw["e2e_mean_ms"] for draw in draws}) == 3
    assert drafted == {name: sorted(draw[name] for draw in draws)[1] for name in drafted}
    assert plain == simulate_row(profile, compose_row(runs[0], seed=5))


def test_errors_are_told_by_what_differs(table: Path) -> None:
    found = predict(read_table(table), PROFILE)
    wrong = [
        each if each.run.num_speculative_tokens else _with(each, output_tok_s=2.0) for each in found
    ]
    errors = TableErrors.of(wrong)
    by_k = errors.by_group["k"]
    assert set(by_k) == {"k = 0", "k = 3"}
    assert set(errors.by_group["load"]) == {"C = 1", "C = 8", "5 requests/s"}
    assert by_k["k = 0"][0].metric == "output_tok_s"
    assert by_k["k = 0"][0].worst_abs == pytest.approx(1.0, abs=1e-6)
    assert {each.predicted / each.measured < 0.6 for each in errors.speed_ups} == {True}


def _with(prediction: Any, **factors: float) -> Any:
    values = {name: v * factors.get(name, 1.0) for name, v in prediction.values.items()}
    return type(prediction)(prediction.run, values)


def test_the_loss_is_what_the_predicted_best_really_costs(tmp_path: Path) -> None:
    path = made_up(
        tmp_path / "t.csv",
        {**NONE, "output_tok_s": "100"},
        {**K3, "output_tok_s": "80", "repeat": "0"},
        {**K3, "output_tok_s": "70", "repeat": "1"},
    )
    errors = TableErrors.of(predict(read_table(path), PROFILE))
    (best,) = errors.best
    assert (best.measured, best.predicted) == ("none", "k = 3")
    assert best.loss == pytest.approx(0.25)
    (up,) = errors.speed_ups
    assert up.measured == pytest.approx(0.75)
    assert not up.agrees


def test_itl_stands_for_tpot_where_that_is_missing(tmp_path: Path) -> None:
    path = made_up(tmp_path / "t.csv", {**NONE, "itl_mean_ms": "5"}, {**NONE, "tpot_mean_ms": "5"})
    found = TableErrors.of(predict(read_table(path), PROFILE)).by_metric
    counts = {each.metric: each.count for each in found}
    assert counts["tpot_or_itl_mean_ms"] == 2
    assert counts["itl_mean_ms"] == counts["tpot_mean_ms"] == 1


def test_lengths_are_drawn_as_load_generators_do(tmp_path: Path) -> None:
    run = one(tmp_path)
    rng = np.random.RandomState(7)
    prompts, outputs = rng.randint(100, 301, 40), rng.randint(20, 61, 40)
    (found,) = predict([run], PROFILE)
    assert run.lengths_seed == 7
    assert found.values["output_tok_s"] * found.values["duration_s"] == pytest.approx(outputs.sum())
    lines = [f"r0,{n},{p},{o},1.0" for n, (p, o) in enumerate(zip(prompts, outputs, strict=True))]
    file = tmp_path / "requests.csv"
    file.write_text("run_id,request_index,input_len,output_len,ttft_ms\n" + "\n".join(lines))
    given = with_lengths([one(tmp_path, isl="", osl="", dataset="")], file)
    assert predict(given, PROFILE)[0].values == found.values


def test_answers_count_as_they_were_not_as_they_were_asked_for(tmp_path: Path) -> None:
    run = one(tmp_path, osl="256", total_output_tokens="4000")
    assert run.output is not None
    assert run.output.mean == 100
    assert run.output.draw(np.random.RandomState(0), 40).tolist() == [100] * 40
    differing = one(tmp_path, osl="256", total_output_tokens="4010").output
    assert differing is not None
    assert set(differing.draw(np.random.RandomState(0), 40)) != {100, 101}
    assert differing.draw(np.random.RandomState(0), 40).mean() == pytest.approx(100.25, abs=0.5)
    fixed = one(tmp_path, osl="256", total_output_tokens="4010", ignore_eos="yes").output
    assert fixed is not None
    assert fixed.mean == 256
    at_limit = one(tmp_path, osl="256", total_output_tokens="10230").output
    assert at_limit is not None
    assert set(at_limit.draw(np.random.RandomState(0), 40)) == {255, 256}


def test_lengths_around_a_median_have_that_and_the_mean_that_was_counted(tmp_path: Path) -> None:
    rates = {"request_throughput": "2", "output_tok_s": "300", "total_tok_s": "1500"}
    run = one(tmp_path, isl="median 500", osl="median 100", num_prompts="400", **rates)
    for lengths, median, mean in ((run.prompt, 500, 600), (run.output, 100, 150)):
        assert lengths == MeasuredLengths(mean, median=median)
        lens = lengths.draw(np.random.RandomState(0), 400)
        assert np.median(lens) == pytest.approx(median, rel=0.01)
        assert lens.mean() == pytest.approx(mean, rel=1e-3)
    few = MeasuredLengths(2000, median=500).draw(np.random.RandomState(0), 30)
    assert (few.mean(), np.median(few)) == pytest.approx((2000, 500), rel=5e-3)
    assert run.max_tokens is None
    totals = {"total_output_tokens": "40000", "num_prompts": "400"}
    alike = one(tmp_path, osl="median 100", **totals).output
    assert set(alike.draw(np.random.RandomState(0), 9)) == {100}


def test_a_shared_prefix_is_cached(tmp_path: Path) -> None:
    cells = {"isl": "1600 shared prefix + 32 suffix", "concurrency": "1"}
    values = [
        predict([one(tmp_path, prefix_caching=word, **cells)], PROFILE)[0].values["ttft_p50_ms"]
        for word in ("off", "on")
    ]
    assert values[1] < 0.7 * values[0]


def test_a_warm_up_fills_the_prefix_cache(tmp_path: Path) -> None:
    cells = {"isl": "3200 shared prefix + 32 suffix", "num_warmups": "", "prefix_caching": "on"}
    cold, warm, off = (
        predict([one(tmp_path, **{**cells, **more}, engine_steps="1")], PROFILE)[0].values
        for more in ({}, {"num_warmups": "2"}, {"num_warmups": "2", "prefix_caching": "off"})
    )
    worst = [each["ttft_p99_ms"] for each in (warm, cold, off)]
    assert 2 * worst[0] < worst[1] < worst[2]
    # Whatever filled the cache is neither waited for nor counted.
    assert warm["duration_s"] < cold["duration_s"]
    assert warm["engine_steps"] == pytest.approx(cold["engine_steps"], abs=2)
    assert warm["output_tok_s"] * warm["duration_s"] == pytest.approx(
        cold["output_tok_s"] * cold["duration_s"]
    )


@pytest.mark.parametrize("column", ["replicas", "data_parallel_size"])
def test_a_row_of_several_servers_is_refused(column: str, tmp_path: Path) -> None:
    """Their load, on one server, would be another."""
    (run,) = read_table(made_up(tmp_path / "a.csv", {column: "1"}))
    assert run.missing == ()
    (run,) = read_table(made_up(tmp_path / "b.csv", {column: "2"}))
    assert f"{column} = 2: a row is simulated on one server" in run.missing[0]


def test_lines_of_json_are_no_table(tmp_path: Path) -> None:
    """Of which numbers alone were read: no method, no version, no lengths that are text."""
    path = tmp_path / "runs.jsonl"
    path.write_text(json.dumps({"run_id": "a", "concurrency": 4, "ttft_p50_ms": 3.0}) + "\n")
    with pytest.raises(ConfigError, match="save a table as CSV or Parquet"):
        read_table(path)


@pytest.mark.parametrize("load", [{"concurrency": "1"}, {"concurrency": "", "request_rate": "5"}])
def test_the_first_request_finds_what_copies_of_it_left(
    tmp_path: Path, load: dict[str, str]
) -> None:
    """Also of prompts that have nothing in common: only the first of two is found."""
    cells = {"isl": "3200", "osl": "2", "num_prompts": "2", "prefix_caching": "on", **load}
    cold, warm = (
        predict([one(tmp_path, num_warmups=count, **cells)], PROFILE)[0].values["ttft_mean_ms"]
        for count in ("", "1")
    )
    assert 0.3 * cold < warm < 0.7 * cold


def test_prompts_were_cached_if_not_even_the_first_was_computed(tmp_path: Path) -> None:
    cells = {"isl": "400 shared prefix + 96 suffix", "num_warmups": "", "prefix_caching": "on"}
    rates = {"": False, "0.80": False, "0.8387": True}
    found = {rate: one(tmp_path, **cells, prefix_hit_rate=rate).is_warm for rate in rates}
    assert found == rates


def test_a_row_has_its_own_lengths_whatever_else_is_in_the_file(tmp_path: Path) -> None:
    row = {**NONE, "isl": "", "osl": "256", "total_output_tokens": "10230"}
    others = {"isl": "300"}, {"total_output_tokens": "6010", "osl": "150.25"}
    alone, *beside = (
        read_table(made_up(tmp_path / "t.csv", row, *({**NONE, **each} for each in more)))[0]
        for more in ((), others[:1], others)
    )
    assert [(each.prompt, each.output) for each in beside] == 2 * [(alone.prompt, alone.output)]
    assert "isl = '' gives no length" in alone.missing[0]


def test_acceptance_is_that_of_the_row_however_requests_differ(tmp_path: Path) -> None:
    rates = "0.8;0.62;0.5;0.42;0.35"
    cells = {"num_speculative_tokens": "5", "accept_rate_per_pos": rates, "num_prompts": "400"}
    run = one(tmp_path, **{**K3, **cells, "concurrency": "64"})
    for spread in (5.0, 30.0, math.inf):
        (found,) = predict([run], PROFILE, spread=spread)
        assert found.values["acceptance_length"] == pytest.approx(1 + 2.69, rel=0.02)


@pytest.mark.parametrize(
    ("version", "k", "named", "tokens"),
    [
        ("0.12.0", 3, "", 16),
        ("0.13.0", 3, "", 64),
        ("v0.24.0", 63, "", 512),
        ("0.12.0", 3, "32", 32),
        ("0.28.0", 3, "", None),  # as the engine does
        ("", 0, "", None),
    ],
)
def test_graphs_are_of_as_many_tokens_as_vllm_captures(
    tmp_path: Path, version: str, k: int, named: str, tokens: int | None
) -> None:
    cells = {"engine_version": version, "max_cudagraph_capture_size": named}
    drafts = {"num_speculative_tokens": str(k), "accept_rate_per_pos": ";".join(["0.5"] * k)}
    row = {**K3, **drafts} if k else NONE
    assert one(tmp_path, **row, **cells, max_num_seqs="8").graph_tokens == tokens
    if not named and tokens:  # of 256 sequences and more all are as large
        assert one(tmp_path, **row, **cells, max_num_seqs="").graph_tokens == 512


def test_an_eager_row_takes_what_its_launches_take(tmp_path: Path) -> None:
    known = load_profile("h200/llama-3.1-8b")
    own = {**NONE, "model": known.model, "gpu": known.gpu}
    eager, usual = (
        predict([one(tmp_path, **own, enforce_eager=cell)], known)[0].values["itl_p50_ms"]
        for cell in ("on", "off")
    )
    assert eager == pytest.approx(32 * 0.8, rel=0.01)
    assert eager > 2 * usual


def test_verification_beyond_the_largest_graph_takes_what_its_launches_take(tmp_path: Path) -> None:
    known = load_profile("h200/llama-3.1-8b")
    target = known.target.model_copy(update={"eager_at_least_us": 50_000.0})
    profile = known.model_copy(update={"target": target})
    own = {"model": known.model, "gpu": known.gpu}
    cells = {**K3, **own, "max_num_seqs": "8", "concurrency": "8"}
    old, new = (
        predict([one(tmp_path, **cells, engine_version=version)], profile)[0].values
        for version in ("0.12.0", "0.13.0")
    )
    assert old["itl_p50_ms"] > 50 > 2 * new["itl_p50_ms"]


def test_a_lookup_drafts_as_often_as_the_row_says(tmp_path: Path) -> None:
    cells = {**K3, "method": "ngram", "num_prompts": "100", "isl": "200", "osl": "100"}
    always, seldom = (
        predict([one(tmp_path, **cells, match_probability=share)], PROFILE)[0].values
        for share in ("", "0.25")
    )
    assert seldom["acceptance_length"] == pytest.approx(always["acceptance_length"], rel=0.05)
    # Tokens are drafts and what they gained, or steps without.
    tokens = 100 * 99
    drafts = tokens / (seldom["acceptance_length"] + 3)
    assert seldom["num_drafts"] == pytest.approx(drafts, rel=0.1)
    suffix = {**cells, "method": "suffix", "mean_match_len": "1.5"}
    found = predict([one(tmp_path, **suffix)], PROFILE)[0].values
    assert 1.5 < found["num_draft_tokens"] / found["num_drafts"] < 2.5  # of those not empty
    with pytest.raises(ConfigError, match=r"match_probability = '1\.2' must be a share"):
        one(tmp_path, **cells, match_probability="1.2")


def test_requests_that_differ_spread_latency(tmp_path: Path) -> None:
    cells = {**K3, "osl": "100", "isl": "200", "num_prompts": "200"}
    alike = predict([one(tmp_path, **cells)], PROFILE, spread=math.inf)[0].values
    differing = predict([one(tmp_path, **cells, acceptance_spread="5")], PROFILE)[0].values
    spreads = [each["e2e_p99_ms"] / each["e2e_p50_ms"] for each in (alike, differing)]
    assert spreads[1] > 1.1 * spreads[0]


def test_only_the_mean_acceptance_is_told_to_be_a_guess(tmp_path: Path) -> None:
    run = one(tmp_path, **{**K3, "accept_rate_per_pos": "", "acceptance_length": "2.5"})
    assert sum(run.rates) == pytest.approx(1.5)
    assert run.rates[1] / run.rates[0] == pytest.approx(run.rates[0])
    assert "no accept_rate_per_pos" in run.notes[0]


def test_counters_include_the_warm_up_where_the_server_counted_it(tmp_path: Path) -> None:
    cells = {**K3, "osl": "100", "num_warmups": "8", "total_output_tokens": "4000"}
    tokens = {"num_accepted_tokens": "2000", "engine_steps": "1"}
    without = one(tmp_path, **cells, **tokens, num_drafts="2000")
    including = one(tmp_path, **cells, **tokens, num_drafts="2800")
    assert (without.counts_warmups, including.counts_warmups) == (False, True)
    first, second = (predict([run], PROFILE)[0].values for run in (without, including))
    for name in ("engine_steps", "num_accepted_tokens"):
        assert second[name] > first[name] * 1.1
    same = [name for name in first if name.endswith("_ms") or name == "duration_s"]
    assert [second[name] for name in same] == pytest.approx([first[name] for name in same], rel=0.2)


@pytest.mark.parametrize(
    ("cells", "method", "is_async"),
    [
        ({"engine_version": "0.33.0"}, "ngram_gpu", True),
        ({"engine_version": "0.33.0", "async_scheduling": "on"}, "ngram_gpu", True),
        ({"engine_version": "0.33.0", "gpu": "CPU"}, "ngram", False),
        ({"engine_version": "0.32.1"}, "ngram_gpu", False),
        ({"engine_version": "0.31.0"}, "ngram", False),
        ({"engine_version": ""}, "ngram", False),
        ({"engine_version": "0.30.0", "method": "ngram_gpu"}, "ngram_gpu", True),
    ],
)
def test_where_ngrams_were_looked_up_follows_from_the_version(
    tmp_path: Path, cells: dict[str, str], method: str, is_async: bool
) -> None:
    drafts = {"num_speculative_tokens": "3", "acceptance_length": "1.5"}
    row = one(tmp_path, **{"method": "ngram", "match_probability": "0.5", **drafts, **cells})
    experiment = compose_row(row).experiment
    proposer = experiment.engine.speculative_config
    assert proposer is not None
    assert (proposer.method, experiment.is_async) == (method, is_async)
    fields = proposer.model_dump()
    assert fields["match_probability"] == (1.0 if method == "ngram_gpu" else 0.5)


@pytest.mark.parametrize(
    ("cells", "version"),
    [
        ({"engine_version": "0.24.0"}, "0.28"),
        ({"engine_version": "0.31.0"}, "0.31"),
        ({"engine_version": "main + PR #49652 @ fd355781"}, "0.28"),
        ({"engine_version": ""}, None),
        ({"engine": "sglang", "engine_version": "0.5.9"}, None),
    ],
)
def test_a_row_is_scheduled_as_by_the_version_next_to_its_own(
    tmp_path: Path, cells: dict[str, str], version: str | None
) -> None:
    assert one(tmp_path, **cells).engine.get("vllm_version") == version


@pytest.mark.parametrize(
    ("cells", "share"),
    [
        ({"engine_version": "0.19.1"}, 0.9),
        ({"engine_version": "0.20.0"}, 0.92),
        ({"engine_version": ""}, None),
        ({"engine": "sglang", "engine_version": "0.5.9"}, None),
        ({"engine_version": "0.19.1", "gpu_memory_utilization": "0.8"}, 0.8),
    ],
)
def test_memory_is_shared_out_as_by_the_version(
    tmp_path: Path, cells: dict[str, str], share: float | None
) -> None:
    assert one(tmp_path, **cells).engine.get("gpu_memory_utilization") == share


def test_async_scheduling_by_word_and_by_version(tmp_path: Path) -> None:
    assert one(tmp_path, engine_version="0.11.2").engine["async_scheduling"] is False
    assert "async_scheduling" not in one(tmp_path).engine
    assert one(tmp_path, async_scheduling="off").engine["async_scheduling"] is False
    said = one(tmp_path, engine_version="0.11.2", async_scheduling="on")
    assert said.engine["async_scheduling"] is True
    for engine in ("sglang", "TensorRT-LLM"):  # whose versions say nothing of vLLM's
        row = one(tmp_path, engine=engine, engine_version="0.5.9")
        assert ("async_scheduling" in row.engine, row.graph_tokens) == (False, None)
        assert row.notes == (f"engine = '{engine}': it is scheduled as by vLLM",)
    assert one(tmp_path).engine["num_gpu_blocks"] == 2000


@pytest.mark.parametrize(("version", "is_async"), [("0.22.1", False), ("0.23.0", True)])
def test_vllm_schedules_draft_models_ahead_from_0_23_on(
    tmp_path: Path, version: str, is_async: bool
) -> None:
    drafts = {"num_speculative_tokens": "3", "acceptance_length": "2.7"}
    for method, expected in (("draft_model", is_async), ("eagle3", True)):
        row = one(tmp_path, method=method, engine_version=version, **drafts)
        assert compose_row(row).experiment.is_async is expected


def test_prompts_that_a_server_had_met_before_are_in_its_cache(tmp_path: Path) -> None:
    """Of Gemma-4-31B without speculation: all but what fills no block of 32 tokens."""
    given = {"isl": "400 shared prefix + 96 suffix"}
    assert one(tmp_path, **given).prompt == MeasuredLengths(496, shared=400)
    assert one(tmp_path, **given, prefix_hit_rate="0.9677").prompt == MeasuredLengths(
        496, shared=480
    )
    assert one(tmp_path, **given, prefix_hit_rate="0.71").prompt == MeasuredLengths(496, shared=400)
    assert one(tmp_path, isl="496", prefix_hit_rate="0.9").prompt == MeasuredLengths(496)


def test_tokens_of_kv_cache_are_blocks_of_the_models_groups(tmp_path: Path) -> None:
    profile = load_profile("h200/gpt-oss-120b")
    given = {"max_model_len": "10240", "max_num_batched_tokens": "8192", "num_gpu_blocks":
             "600000 tokens", "concurrency": "4"}  # fmt: skip
    (run,) = read_table(made_up(tmp_path / "t.csv", {**BASE, **NONE, **given, "model": ""}))
    row = compose_row(run)
    held = Deployment.of(in_blocks(row, profile), profile).kv_capacity(10240)
    assert held == pytest.approx(600_000, rel=1e-4)
    plain = load_profile(PROFILE)
    assert in_blocks(row, plain).engine.num_gpu_blocks == 600_000 // 16


def test_columns_of_measurements_that_are_not_read_are_named(tmp_path: Path) -> None:
    others = {"output_toks_s": "505", "TPOT (ms)": "7.8", "mean_ttft": "22", "max_num_seq": "64"}
    others |= {"enable_chunked_prefill": "off", "dp": "1"}
    [run] = read_table(made_up(tmp_path / "t.csv", {**NONE, **others, "remarks": "itless"}))
    assert run.notes == (
        "column 'output_toks_s' is not read; did you mean 'output_tok_s'?",
        "column 'TPOT (ms)' is not read",
        "column 'mean_ttft' is not read",
        "column 'max_num_seq' is not read; did you mean 'max_num_seqs'?",
        "column 'enable_chunked_prefill' is not read",
    )


@pytest.mark.parametrize("burstiness", ["1", "0.2"])
def test_requests_come_at_the_rate_whatever_the_luck(tmp_path: Path, burstiness: str) -> None:
    """As in vLLM's benchmark, whose last of 40 requests at 5/s is sent after 8 s."""
    run = one(tmp_path, concurrency="", request_rate="5", burstiness=burstiness)
    for seed in range(3):
        arrived_at = compose_row(run, seed=seed).requests.arrived_at
        assert arrived_at is not None
        assert arrived_at[-1] == pytest.approx(8.0)
        assert np.diff(arrived_at).std() > 0.1


@pytest.mark.parametrize("warmups", ["", "1"])
def test_a_run_at_a_rate_begins_a_gap_before_its_first_request(
    tmp_path: Path, warmups: str
) -> None:
    """As vLLM's benchmark counts: of 40 requests at 5/s, 8 s and the last answer."""
    cells = {"osl": "2", "prefix_caching": "on", "num_warmups": warmups}
    (found,) = predict([one(tmp_path, concurrency="", request_rate="5", **cells)], PROFILE)
    latency = found.values["e2e_mean_ms"] / 1e3
    assert found.values["duration_s"] == pytest.approx(8.0 + latency, abs=0.5 * latency)


@pytest.mark.parametrize("column", ["acceptance_rate", "prefix_hit_rate"])
def test_shares_are_no_percentages(tmp_path: Path, column: str) -> None:
    with pytest.raises(ConfigError, match=f"{column} = '45' must be a share between 0 and 1"):
        one(tmp_path, isl="400 shared prefix + 96 suffix", **{column: "45"})


def test_a_pipeline_says_on_how_many_gpus_it_was(tmp_path: Path) -> None:
    assert "pp = 2, and num_gpus is empty" in one(tmp_path, pp="2").missing[0]
    assert one(tmp_path, pp="2", num_gpus="2").missing == ()


def test_lengths_that_were_counted_otherwise_are_noticed(tmp_path: Path) -> None:
    own = {"isl": "500", "osl": "100", "ignore_eos": "on"}
    near = one(tmp_path, **own, total_input_tokens="21000", total_output_tokens="3900")
    assert near.notes == ()
    far = one(tmp_path, **own, total_input_tokens="80000", total_output_tokens="800")
    assert far.notes == (
        "isl says 500 tokens, what was counted 2,000: the former counts",
        "osl says 100 tokens, what was counted 20: the former counts",
    )


@pytest.mark.parametrize(
    ("column", "own", "other"),
    [("enforce_eager", "off", "on"), ("async_scheduling", "on", "off"), ("burstiness", "1", "0.2")],
)
def test_runs_of_other_engines_or_loads_are_no_repetitions(
    tmp_path: Path, column: str, own: str, other: str
) -> None:
    runs = read_table(
        made_up(
            tmp_path / "t.csv",
            {**NONE, column: own, "output_tok_s": "900"},
            {**NONE, column: other, "output_tok_s": "600"},
            {**K3, column: own, "output_tok_s": "1800"},
        )
    )
    [up], _ = speed_ups([Prediction(run, {"output_tok_s": 1000.0}) for run in runs])
    assert up.measured == pytest.approx(2.0)
    assert up.runs.startswith(f"{column} {own}, C = 4") is (column != "async_scheduling")


def test_a_drafter_that_vllm_schedules_synchronously_is_compared_all_the_same(
    tmp_path: Path,
) -> None:
    runs = read_table(
        made_up(
            tmp_path / "t.csv",
            {**NONE, "async_scheduling": "on", "output_tok_s": "900"},
            {**K3, "async_scheduling": "off", "output_tok_s": "1800"},
        )
    )
    [up], _ = speed_ups([Prediction(run, {"output_tok_s": 1000.0}) for run in runs])
    assert up.measured == pytest.approx(2.0)


def test_rows_are_chosen_by_their_cells(table: Path, cli: Run) -> None:
    runs = read_table(table)
    chosen = select_rows(runs, ["num_speculative_tokens=0", "concurrency=1", "concurrency=8.0"])
    assert [run.run_id for run in chosen] == ["r0", "r2"]
    for text, message in (("k", "COLUMN=VALUE"), ("x=1", "no table has"), ("tp=9", "leaves none")):
        code, _, errors = cli("validate", table, "--profile", PROFILE, "--rows", text)
        assert code == 2
        assert message in errors


@pytest.mark.parametrize(
    ("cells", "words"),
    [
        ({"num_prompts": "many"}, ["line 2", "num_prompts = 'many'", "a number of at least 0"]),
        ({"num_prompts": "2.5"}, ["num_prompts = '2.5'", "a whole number of at least 1"]),
        ({"ttft_p50_ms": "-1"}, ["ttft_p50_ms = '-1'", "at least 0"]),
        ({"prefix_caching": "perhaps"}, ["prefix_caching = 'perhaps' must be on or off"]),
        ({"isl": "uniform 9..3"}, ["isl = 'uniform 9..3'", "LOW <= HIGH"]),
        ({"isl": "200 (uniform 100..300)"}, ["isl = '200 (uniform 100..300)' must be tokens, "]),
        ({"osl": "growing"}, ["osl = 'growing' must be tokens, uniform LOW..HIGH, median N, or "]),
        ({"num_prompts": "1,000"}, ["num_prompts = '1,000'", "a number of at least 0"]),
        ({"max_num_seqs": "64 (default)"}, ["max_num_seqs = '64 (default)' must be a number of "]),
        ({"prefix_caching": "on (default)"}, ["prefix_caching = 'on (default)' must be on or off"]),
        ({"ignore_eos": "no stop strings"}, ["ignore_eos = 'no stop strings' must be on or off"]),
        ({"request_rate": "stages 5;10"}, ["request_rate = 'stages 5;10' must be a number above "]),
        ({"request_rate": "0"}, ["request_rate = '0' must be a number above 0"]),
        ({**K3, "accept_rate_per_pos": "0.5;0.6;0.1"}, ["none above the one before"]),
        ({**K3, "accept_rate_per_pos": "0.5;x;0.1"}, ["accept_rate_per_pos = '0.5;x;0.1'"]),
    ],
)
def test_a_wrong_cell_is_named(tmp_path: Path, cells: dict[str, str], words: list[str]) -> None:
    message = refused(tmp_path, **cells)
    assert "one.csv" in message
    assert all(word in message for word in words)
    assert "\n" not in message


@pytest.mark.parametrize(
    ("cells", "words"),
    [
        ({"concurrency": ""}, "no load: concurrency and request_rate are empty"),
        ({"isl": "", "dataset": "other"}, "isl = '' gives no length"),
        (
            {"isl": "median 90"},
            "isl = 'median 90' needs a mean of at least as much (found: 0): give ",
        ),
        (
            {"osl": "median 90", "total_output_tokens": "100"},
            "osl = 'median 90' needs a mean of at",
        ),
        ({"num_prompts": ""}, "num_prompts is empty"),
        ({"method": "mtp", "num_speculative_tokens": ""}, "num_speculative_tokens is empty"),
        ({"method": "eagle3", "num_speculative_tokens": "2"}, "no acceptance for"),
        ({**K3, "accept_rate_per_pos": "0.5;0.2"}, "has 2 rates for num_speculative_tokens = 3"),
        ({**K3, "method": "magic"}, "method = 'magic'"),
        ({"method": "mtp, k = 0 tier"}, "method = 'mtp, k = 0 tier'"),
        ({"ttft_p50_ms": ""}, "no measured value"),
    ],
)
def test_what_a_row_lacks(tmp_path: Path, cli: Run, cells: dict[str, str], words: str) -> None:
    path = made_up(tmp_path / "t.csv", {**NONE, "tpot_p50_ms": ""}, {**NONE, **cells})
    arguments = ("validate", path, "--profile", PROFILE, "--predictions", "p.csv")
    code, _, errors = cli(*arguments)
    assert code == 2
    assert "t.csv, line 3 (r1): " in errors
    assert words in errors
    assert not Path("p.csv").exists()
    code, _, errors = cli(*arguments, "--skip-incomplete")
    assert code == 0
    assert "left out: " in errors
    assert words in errors
    assert len({row["run_id"] for row in written("p.csv")}) == 1


@pytest.mark.parametrize(
    ("cells", "words"),
    [
        ({"model": "Qwen/Qwen3-8B"}, ["model = 'Qwen/Qwen3-8B'", "profile is of 'llama-3.1-8b'"]),
        ({"model": "meta-llama/Llama-3-8B"}, ["Llama-3-8B"]),
        ({"gpu": "NVIDIA A100-SXM4-80GB"}, ["gpu = 'NVIDIA A100-SXM4-80GB'", "--rows 'gpu="]),
        ({"gpu": "NVIDIA H100 PCIe"}, ["gpu = 'NVIDIA H100 PCIe'", "profile is of 'h100'"]),
        ({"tp": "2"}, ["tp = 2", "--rows tp=1"]),
        ({"num_gpus": "8"}, ["num_gpus = '8', but the profile is of 1; say on how many one"]),
        ({"num_gpus": "two"}, ["num_gpus = 'two', but the profile is of 1; say on how many one"]),
        ({"quantisation": "FP8 weights, kv bf16"}, ["quantisation = 'FP8", "weights have 16 bits"]),
        ({"quantisation": "w4a16"}, ["weights have 16 bits", "--dtype"]),
        ({"model": "acme/Llama-3.1-8B-Instruct-FP8"}, ["model = ", "weights have 16 bits"]),
        ({"enforce_eager": "on"}, ["engine.enforce_eager", "composed from kernels"]),
    ],
)
def test_rows_of_something_else_are_refused(
    tmp_path: Path, cells: dict[str, str], words: list[str]
) -> None:
    runs = read_table(made_up(tmp_path / "t.csv", NONE, {**NONE, **cells}))
    with pytest.raises(ProfileError) as error:
        predict(runs, PROFILE)
    assert all(word in str(error.value) for word in ("line 3 (r1)", *words))


@pytest.mark.parametrize(
    ("profile", "fitting", "other"),
    [
        ("h200/llama-3.1-8b", "weights fp16, kv fp8", "weights w4a16, kv fp16"),
        ("b200/qwen3-8b-fp8", "FP8 dynamic weights", "BF16"),
        ("h200/gpt-oss-120b", "MXFP4 (VLLM_MXFP4_USE_MARLIN=1)", "fp8"),
        ("h200/deepseek-v3-tp8", "fp8", "nvfp4"),
        ("h200/llama-3.1-8b", "kv fp8", "GPTQ-Int8"),
        ("b200/qwen3-8b-fp8", "fp8_block", "FP8 KV, bf16 weights"),
    ],
)
def test_bits_of_weights_follow_from_their_memory(
    tmp_path: Path, profile: str, fitting: str, other: str
) -> None:
    known = load_profile(profile)
    own = {"model": known.model, "gpu": known.gpu, "tp": str(known.tensor_parallel_size)}
    for cell in (fitting, "", "not stated"):
        check_same([one(tmp_path, **own, quantisation=cell)], known)
    with pytest.raises(ProfileError, match=r"quantisation = .* weights have"):
        check_same([one(tmp_path, **own, quantisation=other)], known)


@pytest.mark.parametrize("stages", [2, 3, 4])
def test_rows_of_a_pipeline_say_on_how_many_gpus_it_was(tmp_path: Path, stages: int) -> None:
    """Weights of a stage are an embedding, or a head, and the layers of the fullest."""
    known = load_profile("h200/llama-3.1-8b")
    assert known.weights_gib is not None
    embedding = 2 * 128256 * 4096 / 2**30
    layers = (known.weights_gib - 2 * embedding) * -(-32 // stages) / 32
    update = {"stage_shares": (1 / stages,) * stages, "weights_gib": embedding + layers}
    staged = known.model_copy(update=update)
    own = {"model": known.model, "gpu": known.gpu, "quantisation": "fp16"}
    check_same([one(tmp_path, **own, num_gpus=str(stages))], staged)
    for cell in ("", "1"):
        with pytest.raises(ProfileError, match=f"of {stages}, in {stages} stages; say on how many"):
            check_same([one(tmp_path, **own, num_gpus=cell)], staged)
    fp8 = {**own, "quantisation": "fp8", "num_gpus": str(stages)}
    with pytest.raises(ProfileError, match="weights have 16 bits"):
        check_same([one(tmp_path, **fp8)], staged)


def test_rows_with_graphs_are_refused_under_a_profile_without(tmp_path: Path) -> None:
    known = load_profile("h200/llama-3.1-8b")
    target = known.target.model_copy(update={"decodes_at_least_us": 25_600.0})
    eager = known.model_copy(update={"target": target})
    own = {"model": known.model, "gpu": known.gpu}
    check_same([one(tmp_path, **own, enforce_eager=cell) for cell in ("on", "")], eager)
    check_same([one(tmp_path, **own, enforce_eager=cell) for cell in ("off", "")], known)
    with pytest.raises(ProfileError, match="enforce_eager is off, but the profile is without CUDA"):
        check_same([one(tmp_path, **own, enforce_eager="off")], eager)


def test_weights_of_32_bits_are_no_16(tmp_path: Path) -> None:
    shape = load_model("llama-3.1-8b").model_copy(update={"torch_dtype": "float32"})
    (tmp_path / "llama-3.1-8b.json").write_text(shape.model_dump_json())
    update = {"model": str(tmp_path / "llama-3.1-8b.json"), "weights_gib": None}
    profile = load_profile(PROFILE).model_copy(update=update)
    with pytest.raises(ProfileError, match="weights have 32 bits"):
        check_same([one(tmp_path, model="llama-3.1-8b", quantisation="bf16")], profile)


@pytest.mark.parametrize(
    ("cell", "name", "are_same"),
    [
        ("A100-SXM4-80GB", "a100-80gb", True),
        ("NVIDIA H100 80GB HBM3", "h100", True),
        ("H100 NVL 94GB", "h100-nvl", True),
        ("H100", "h100-nvl", False),
        ("H200 NVL", "h200", False),
        ("L40", "l40s", False),
        ("NVIDIA L40S 48GB", "l40s", True),
        ("RTX 4090", "rtx4090", True),
    ],
)
def test_cards_of_one_name_are_told_apart(cell: str, name: str, are_same: bool) -> None:
    assert is_same_gpu(cell, name) == are_same


def test_a_profile_without_the_drafter_names_the_row(tmp_path: Path) -> None:
    runs = read_table(made_up(tmp_path / "t.csv", {**K3, "method": "medusa"}))
    with pytest.raises(ProfileError, match=r"line 2 \(r0\): .* no drafting cost"):
        predict(runs, PROFILE)


def test_a_server_that_never_drafts_still_runs_its_drafter(tmp_path: Path) -> None:
    """k = 0 by schedule: a pass of the drafter in each step, which is not `none`."""
    rows = [{**NONE, "concurrency": "4"}, {**NONE, "method": "eagle3", "concurrency": "4"}]
    profile = load_profile("a100-80gb/llama-3.1-8b")
    names = {"gpu": "A100 80GB", "output_tok_s": "1"}
    table = read_table(made_up(tmp_path / "t.csv", *({**row, **names} for row in rows)))
    plain, tier = predict(table, profile)
    drafter = profile.drafts["eagle3"].latency
    least = drafter.forward_time(StepLoad(4, 4, 4)) * 1e3
    assert tier.values["itl_p50_ms"] - plain.values["itl_p50_ms"] == pytest.approx(least, rel=0.2)
    assert tier.values["num_draft_tokens"] == 0
    [up] = TableErrors.of([plain, tier]).speed_ups
    assert (up.choice, up.predicted < 1) == ("k = 0", True)


def test_files_that_are_no_tables(tmp_path: Path, cli: Run, table: Path) -> None:
    (tmp_path / "no.csv").write_text("a,b\n1,2\n")
    (tmp_path / "twice.csv").write_text("ttft_p50_ms,ttft_p50_ms\n1,2\n")
    (tmp_path / "long.csv").write_text("ttft_p50_ms,isl\n1,2,3\n")
    for name, words in (
        ("no.csv", "has no measured column (found: a, b); each row is a whole run, not a request"),
        ("twice.csv", "has two columns 'ttft_p50_ms'"),
        ("long.csv", "line 2: 3 values for 2 columns; the line may have a comma too many"),
        ("absent.csv", "cannot be read"),
    ):
        code, _, errors = cli("validate", tmp_path / name, "--profile", PROFILE)
        assert code == 2
        assert words in errors
    (tmp_path / "other.json").write_text("{}")
    code, _, errors = cli("validate", tmp_path / "other.json")  # a profile would not mend it
    assert code == 2
    assert "other.json: duration is missing" in errors
    for arguments, words in (
        ((), "--profile: is missing"),
        (("--profile", PROFILE, "--tokens", "x"), "--tokens: is for the folder of a run"),
        (("--profile", PROFILE, "--acceptance-spread", "0"), "--acceptance-spread"),
    ):
        code, _, errors = cli("validate", table, *arguments)
        assert code == 2
        assert words in errors
    code, _, errors = cli("validate", tmp_path, "--rows", "a=b")
    assert code == 2
    assert "--rows: is for tables" in errors


def test_a_requests_file_must_fit(tmp_path: Path) -> None:
    run = one(tmp_path, num_prompts="2")
    file = tmp_path / "requests.csv"
    header = "run_id,request_index,input_len,output_len\n"
    for text, words in (
        ("r0,0,5,5\nr0,2,5,5\n", "must be 0 to 1, each once"),
        ("r0,0,5,5\nr0,1,5,0\n", "line 3: input_len and output_len"),
        ("r0,0,5,5\n", "has 1 requests, but"),
        ("other,0,5,5\n", "has none of the rows' run_id"),
    ):
        file.write_text(header + text)
        with pytest.raises(SpecsimError) as error:
            with_lengths([run], file)
        assert words in str(error.value)


SETS = [
    "a100_llama-3.1-8b_eagle3.csv",
    "a100class_suffix-ngram-eagle3.csv",
    "h100_no-speculation_loads.csv",
    "h100_no-speculation_means.csv",
    "h100_qwen3-8b_eagle3.csv",
    "h100nvl_gemma-4-31b_mtp.csv",
    "h200_gpt-oss-120b_eagle3.csv",
]
"""Those of the folder that are results of load generators, a row per run."""


def test_remarks_of_others_go_into_columns_of_their_own(tmp_path: Path) -> None:
    (tmp_path / "clean").mkdir()
    told = {
        **K3,
        "method": "mtp (schedule fixed K=3)",
        "isl": "system 100 + question 466 multi-turn",
        "osl": "1000 (uniform 800..1000)",
        "dataset": "random tokens (seed 3)",
        "seed": "",
        "ignore_eos": "no (max_tokens=900, no stop strings)",
        "max_num_batched_tokens": "2048 (default seen in log)",
        "prefix_caching": "on (default)",
        "other_flags": "x; async scheduling on; y",
        "engine_version": "0.11.2",
        "request_rate": "closed loop",
    }
    path = made_up(tmp_path / "told.csv", told)
    with pytest.raises(ConfigError, match=r"told.csv, line 2: \w+ = '.*' must be "):
        read_table(path)
    (run,) = read_table(cleaned(path, tmp_path / "clean"))
    assert (run.method, run.cells["method_as_written"]) == ("mtp", told["method"])
    assert run.prompt == MeasuredLengths(566, shared=100)
    assert run.output == MeasuredLengths(900, (800, 1000))
    assert (run.lengths_seed, run.cells["max_tokens"], run.request_rate) == (3, "900", None)
    assert run.engine["async_scheduling"] is run.engine["enable_prefix_caching"] is True
    assert run.engine["max_num_batched_tokens"] == 2048


@pytest.mark.parametrize("flags", ["suffix: max_cudagraph_capture_size 1024; more", "", "more"])
def test_the_largest_graph_of_suffix_decoding_is_in_the_flags_or_left_to_vllm(
    tmp_path: Path, flags: str
) -> None:
    counted = {"running_mean": "4", "prefix_hit_rate": "0.5", "engine_steps": "100"}
    drafted = {"num_drafts": "200", "num_draft_tokens": "600", "num_accepted_tokens": "300"}
    told = {**K3, **counted, **drafted, "method": "suffix", "gpu": "not named", "isl": "96"}
    (tmp_path / "clean").mkdir()
    path = made_up(tmp_path / "told.csv", told | {"other_flags": flags})
    (run,) = read_table(cleaned(path, tmp_path / "clean"))
    assert run.method == "suffix"
    assert run.cells["max_cudagraph_capture_size"] == ("1024" if "1024" in flags else "")


@needs(REAL)
def test_all_real_rows_can_be_read(tmp_path: Path) -> None:
    runs = {name: read_table(cleaned(REAL / name, tmp_path)) for name in SETS}
    assert sum(map(len, runs.values())) > 300
    assert all(run.measured for each in runs.values() for run in each)
    for name, each in runs.items():
        complete = sum(not run.missing for run in each)
        least = 0 if "means" in name else 0.6
        assert complete >= least * len(each)
    requests = REAL / "h200_gpt-oss-120b_requests.csv"
    h200 = runs["h200_gpt-oss-120b_eagle3.csv"]
    for run, given in zip(h200, with_lengths(h200, requests), strict=True):
        drawn = run.output.draw if run.output else None
        assert drawn is not None
        if given.lens is not None:  # the recipe of the cells gives what was recorded
            rng = np.random.RandomState(run.lengths_seed)
            assert run.prompt is not None
            assert np.array_equal(run.prompt.draw(rng, run.num_prompts), given.lens[:, 0])
            assert np.array_equal(drawn(rng, run.num_prompts), given.lens[:, 1])


@pytest.mark.parametrize(
    ("cells", "asked"),
    [
        ({"osl": "256", "total_output_tokens": "4000"}, 256),
        ({"osl": "100.25"}, 1 << 20),
        ({"osl": "100.253", "total_output_tokens": "4010"}, 1 << 20),
        ({"osl": "100.25", "max_tokens": "512"}, 512),
        ({"osl": "100.25", "ignore_eos": "no", "max_tokens": "300"}, 300),
        ({"osl": "255", "ignore_eos": "no", "max_tokens": "256"}, None),  # most end there
        ({"osl": "100.25", "ignore_eos": "yes"}, None),
        ({"osl": "100"}, None),
    ],
)
def test_what_ends_by_itself_was_asked_for_longer(
    tmp_path: Path, cells: dict[str, str], asked: int | None
) -> None:
    assert one(tmp_path, **cells).max_tokens == asked
