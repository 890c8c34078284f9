"""The command line, as a user types it."""

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from io import StringIO
from itertools import takewhile
from pathlib import Path
from typing import Any

import jsonschema
import pyarrow.parquet as pq
import pytest
import yaml
from conftest import ROOT, Run, tiny_config
from rich._emoji_codes import EMOJI
from rich.console import Console

from specsim.cli.options import keep_numbers_whole, say, show, warn
from specsim.core.version import __version__
from specsim.reality import acceptance_fit
from specsim.reality.acceptance_fit import fits
from specsim.results.folder import RESULT_FILES
from specsim.show.render import new_table
from specsim.study.tune.crossover import Check


@pytest.fixture
def experiment(tmp_path: Path) -> Callable[..., Path]:
    """Write a tiny experiment, with changes, and return its path."""

    def write(**changes: Any) -> Path:
        path = tmp_path / "exp.yaml"
        path.write_text(yaml.safe_dump(tiny_config(**changes)))
        return path

    return write


def test_run_prints_a_table_and_fills_the_folder(
    cli: Run, experiment: Callable[..., Path], tmp_path: Path
) -> None:
    code, out, err = cli("run", experiment(), "--out", "results", "--check")
    assert (code, err) == (0, "")
    for word in ("TTFT", "TPOT", "ITL", "E2E", "preemptions", "draft acceptance"):
        assert word in out
    files = {path.name for path in (tmp_path / "results").iterdir()}
    assert files == {"summary.json", "requests.parquet", "steps.parquet", "config.yaml"}
    assert files == set(RESULT_FILES)


def test_set_and_seed_replace_fields(
    cli: Run, experiment: Callable[..., Path], tmp_path: Path
) -> None:
    args = ("--set", "policy.kind=static", "--set", "policy.k=2", "--seed", 7, "--out", "r")
    assert cli("run", experiment(), *args)[0] == 0
    config = yaml.safe_load((tmp_path / "r" / "config.yaml").read_text())
    assert config["policy"] == {"kind": "static", "k": 2}
    assert config["seed"] == 7


def test_run_takes_another_policy(
    cli: Run, experiment: Callable[..., Path], tmp_path: Path
) -> None:
    assert cli("run", experiment(), "--policy", "static:k=2", "--out", "r")[0] == 0
    config = yaml.safe_load((tmp_path / "r" / "config.yaml").read_text())
    assert config["policy"] == {"kind": "static", "k": 2}
    code, _, err = cli("run", experiment(), "--policy", "off", "--set", "policy.k=2")
    assert code == 2
    assert "--set policy.k=2: is not used, for --policy sets 'policy'" in err


def test_compare_takes_many_policies_after_one_flag(
    cli: Run, experiment: Callable[..., Path], tmp_path: Path
) -> None:
    args = ("--policies", "off", "static:k=1", "static:k=3", "--replications", 2, "--workers", 1)
    code, out, _ = cli("compare", experiment(), *args, "--out", "cmp")
    assert code == 0
    for word in ("static:k=1", "static:k=3", "speed-up", "95 % interval"):
        assert word in out
    names = {path.name for path in (tmp_path / "cmp").iterdir()}
    assert names == {"comparison.json", "plot.png", "off", "static-k=1", "static-k=3"}
    assert (tmp_path / "cmp" / "plot.png").read_bytes().startswith(b"\x89PNG")


def test_policies_may_stand_before_the_experiment(
    cli: Run, experiment: Callable[..., Path]
) -> None:
    path = experiment()
    code, out, _ = cli("compare", "--policies", "off", "static:k=1", path, "--replications", 1)
    assert code == 0
    assert "static:k=1" in out


def test_synchronous_scheduling_for_the_sake_of_one_is_said(
    cli: Run, experiment: Callable[..., Path], tmp_path: Path
) -> None:
    args = ("--policies", "static", "oracle", "--replications", 1, "--workers", 1, "--out", "cmp")
    code, _, err = cli("compare", experiment(), *args)
    note = "synchronous scheduling for all, because oracle needs it"
    assert (code, err) == (0, f"warning: {note}\n")
    data = json.loads((tmp_path / "cmp" / "comparison.json").read_text())
    assert data["static"]["warnings"] == [note]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("compare", "--policies", "static:k=1", "static:k=1"), "--policies static:k=1: is given"),
        (
            ("compare", "--policies", "static", "medusa_tree:widths=[1,1,1,1,1,1]"),
            "--policies medusa_tree:widths=[1,1,1,1,1,1]: ",
        ),
        (("run", "--seed", "-1"), "--seed -1: should be a whole number"),
        (("tune", "--max-k", "300"), "--max-k 300: engine.speculative_config"),
    ],
)
def test_the_option_at_fault_is_named(
    args: tuple[str, ...], message: str, cli: Run, experiment: Callable[..., Path]
) -> None:
    code, out, err = cli(args[0], experiment(), *args[1:], "--out", "results")
    assert (code, out) == (2, "")
    assert err.startswith(f"error: {message}")
    assert err.count("\n") == 1


def test_many_policies_become_rows_in_order_of_speed(
    cli: Run, experiment: Callable[..., Path], tmp_path: Path
) -> None:
    policies = ["static:k=1", "static:k=2", "static:k=3", "oracle", "schedule:ranges=[[1,4,3]]"]
    args = ("--policies", *policies, "--replications", 2, "--workers", 1, "--out", "cmp")
    code, out, _ = cli("compare", experiment(), *args)
    assert code == 0
    data = json.loads((tmp_path / "cmp" / "comparison.json").read_text())
    assert data.pop("specsim_version") == __version__
    assert data["oracle"]["rank"] is None
    ranked = sorted(data.keys() - {"oracle"}, key=lambda label: data[label]["rank"])
    places = [out.index(f"  {label} ") for label in ranked]
    assert places == sorted(places)
    assert "regret against" in out
    assert data[ranked[0]]["tied_with_rank_above"] is None
    assert data["off"]["regret_oracle"]["reference"] == "oracle"


def overload() -> dict[str, Any]:
    return {
        "arrivals": {"kind": "poisson", "rate": 2000.0},
        "lengths": {"kind": "constant", "prompt": 200, "output": 20},
        "num_requests": 300,
    }


def test_overload_is_named(cli: Run, experiment: Callable[..., Path]) -> None:
    code, out, err = cli("run", experiment(workload=overload()))
    assert code == 0
    assert "OVERLOADED" in out
    assert "queue kept growing" in err
    few = experiment(workload={**overload(), "num_requests": 30})
    said = " ".join(cli("run", few)[1].split())
    assert "undecided whether the server keeps up; more requests decide it" in said
    out = cli("compare", experiment(workload=overload()), "--policies", "off", "--replications", 1)[
        1
    ]
    assert "OVERLOADED" in out


def few_seqs() -> dict[str, Any]:
    return {**tiny_config()["engine"], "max_num_seqs": 2}


@pytest.mark.slow
def test_tune_prints_tables_and_fills_the_folder(
    cli: Run, experiment: Callable[..., Path], tmp_path: Path
) -> None:
    args = ("--max-k", 1, "--replications", 2, "--workers", 1)
    code, out, err = cli("tune", experiment(engine=few_seqs()), *args, "--out", "tuned")
    assert (code, len(err.splitlines())) == (0, 3)
    assert all(line.endswith(" ...") for line in err.splitlines())  # what is looked at
    for word in ("best k", "load below which", "oracle", "own", "schedule:  {", "use:       {"):
        assert word in out
    assert {path.name for path in (tmp_path / "tuned").iterdir()} == {"tune.json", "plot.png"}
    data = json.loads((tmp_path / "tuned" / "tune.json").read_text())
    assert data["seeds"] == [0, 1]


EMIT = ("--max-k", 1, "--replications", 2, "--workers", 1, "--seed", 3, "--emit", "vllm")


@pytest.mark.slow
def test_tune_emits_nothing_but_json_for_vllm(
    cli: Run, experiment: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Check, "schedule_pays", True)
    code, out, err = cli("tune", experiment(engine=few_seqs()), *EMIT)
    assert code == 0
    assert json.loads(out) == {
        "method": "eagle3",
        "num_speculative_tokens": 1,
        "num_speculative_tokens_per_batch_size": [[1, 2, 1]],
    }
    assert "best k" in err


@pytest.mark.slow
def test_tune_emits_a_fixed_k_that_the_schedule_does_not_beat(
    cli: Run, experiment: Callable[..., Path]
) -> None:
    code, out, err = cli("tune", experiment(engine=few_seqs()), *EMIT)
    assert code == 0
    assert json.loads(out) == {"method": "eagle3", "num_speculative_tokens": 1}
    assert "does not beat k = 1" in err


@pytest.mark.slow
def test_tune_emits_nothing_where_speculation_never_pays(
    cli: Run, experiment: Callable[..., Path], tmp_path: Path
) -> None:
    hopeless = {"kind": "bernoulli", "alpha": 0.0}
    path = experiment(engine=few_seqs(), acceptance=hopeless)
    code, out, err = cli("tune", path, *EMIT, "--out", "tuned")
    assert (code, out) == (1, "")
    assert err.splitlines()[-1] == "nothing to emit: the server is faster without speculation"
    data = json.loads((tmp_path / "tuned" / "tune.json").read_text())
    assert data["recommended"] is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"engine": {}}, "engine.speculative_config is missing"),
        ({"acceptance": None}, "needs acceptance"),
        ({"workload": overload() | {"arrivals": {"kind": "burst"}}}, "has no rate"),
    ],
)
def test_what_tune_cannot_use_is_one_line_and_nothing_written(
    changes: dict[str, Any], message: str, cli: Run, experiment: Callable[..., Path], tmp_path: Path
) -> None:
    code, out, err = cli("tune", experiment(**changes), "--out", "tuned")
    assert (code, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1
    assert not (tmp_path / "tuned").exists()


def test_parity_agrees_differs_and_writes(cli: Run, tmp_path: Path) -> None:
    scenario = ROOT / "tests" / "parity" / "recorded" / "worked.scenario.json"
    code, out, _ = cli("parity", scenario, "--out", "ours.json")
    assert code == 0
    assert "agree" in out
    log = json.loads((tmp_path / "ours.json").read_text())
    log["steps"][4]["sched"][0][1] += 1
    (tmp_path / "other.json").write_text(json.dumps(log))
    code, out, _ = cli("parity", scenario, "--log", "other.json")
    assert code == 1
    assert "step 4, request A, field sched.n: ours 3, theirs 4" in out


def test_trace_commands(cli: Run) -> None:
    synth = ("--arrivals", "gamma:rate=5,burstiness=0.5", "--lengths", "dataset:name=gsm8k")
    assert cli("trace", "synth", "w.parquet", *synth, "--num-requests", 50)[0] == 0
    assert cli("trace", "convert", "w.parquet", "w.jsonl.gz")[0] == 0
    code, out, _ = cli("trace", "describe", "w.jsonl.gz")
    assert code == 0
    assert "burstiness" in out
    data = json.loads(cli("trace", "describe", "w.parquet", "--json")[1])
    assert data["num_requests"] == 50


def test_synth_is_reproducible(cli: Run, tmp_path: Path) -> None:
    args = ("--arrivals", "poisson:rate=5", "--lengths", "dataset:name=gsm8k", "--duration", 30)
    for name in ("a.parquet", "b.parquet"):
        assert cli("trace", "synth", name, *args)[0] == 0
    assert (tmp_path / "a.parquet").read_bytes() == (tmp_path / "b.parquet").read_bytes()


def write_tokens(path: Path, count: int = 12) -> None:
    """Write a token trace of a proposer that alternates between hits and misses."""
    lens = [1] + [4, 3, 2, 1, 1, 2, 1, 1] * 30
    row = {"prompt_token_ids": [1], "generated_token_ids": list(range(len(lens)))}
    lines = (
        json.dumps(
            {**row, "id": str(i), "acc_eagle": {"acc_len": [1, *lens[1 + i :], *lens[1 : 1 + i]]}}
        )
        for i in range(count)
    )
    path.write_text("\n".join(lines) + "\n")


@pytest.fixture
def quick_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fits, "POSITIONS", 3000)
    monkeypatch.setattr(fits, "MAX_TRIALS", 10)
    monkeypatch.setattr(acceptance_fit, "POSITIONS", 10_000)


def test_acceptance_fit_prints_distances_and_what_an_experiment_takes(
    cli: Run, experiment: Callable[..., Path], tmp_path: Path, quick_fit: None
) -> None:
    write_tokens(tmp_path / "tokens.jsonl")
    args = ("acceptance", "fit", "tokens.jsonl", "--proposer", "eagle", "--k", 3)
    preset = Path("profiles") / "acceptance" / "mine.yaml"
    code, out, err = cli(*args, "--json", "fit.json", "--preset", preset, "--source", "a test")
    assert code == 0
    assert [line.split()[:2] for line in err.splitlines()] == [
        ["fitting", kind] for kind in acceptance_fit.FITS
    ]
    for word in ("other half of the data", "beta_position", "layered", "0 requests of more than"):
        assert word in out
    found = json.loads((tmp_path / "fit.json").read_text())
    assert (found["num_fitted"], found["num_held_out"], found["k"]) == (6, 6, 3)
    printed = yaml.safe_load(out[out.index("\nacceptance:") :])
    assert printed["acceptance"] == found["acceptance"]
    assert found["acceptance"]["kind"] == found["best"]
    again = cli(*args, "--json", "again.json")
    assert again[0] == 0
    assert (tmp_path / "again.json").read_bytes() == (tmp_path / "fit.json").read_bytes()
    for acceptance in (printed["acceptance"], {"kind": "preset", "name": "mine"}):
        assert cli("run", experiment(acceptance=acceptance))[0] == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"--proposer": "medusa"}, "what was accepted; name one that was recorded"),
        ({"FILE": "none.jsonl"}, "'accepted_lens_eagle', in which a trace of format 'native' says"),
        ({"FILE": "ids.jsonl"}, "'acc_eagle', in which a trace of format 'token_trace' says"),
        ({"--k": 9}, "tokens.jsonl: k = 9, but no recorded draft survived longer than 3"),
        ({"--max-output-len": 100}, "no request with 2 to 100 recorded output tokens"),
        ({"FILE": "empty.jsonl"}, "empty.jsonl: is empty"),
        ({"FILE": "nowhere.jsonl"}, "nowhere.jsonl: cannot be read"),
        ({"FILE": "few.jsonl"}, "few.jsonl: 2 requests are too few"),
        ({"FILE": "never.jsonl"}, "never.jsonl: no draft token was ever accepted"),
        ({"--kind": "beto"}, "no kind 'beto' to fit; did you mean 'beta'?"),
        ({"--json": "tokens.jsonl/fit.json"}, "tokens.jsonl is a file; name another folder"),
    ],
)
def test_acceptance_fit_on_bad_input(
    options: dict[str, Any], message: str, cli: Run, tmp_path: Path, quick_fit: None
) -> None:
    write_tokens(tmp_path / "tokens.jsonl")
    write_tokens(tmp_path / "few.jsonl", 2)
    never = '{"prompt_len": 3, "output_len": 2, "accepted_lens_eagle": [0, 0]}\n'
    (tmp_path / "never.jsonl").write_text(4 * never)
    (tmp_path / "empty.jsonl").write_text("")
    (tmp_path / "none.jsonl").write_text('{"prompt_len": 3, "output_len": 2}\n')
    ids = {"prompt_token_ids": [1], "generated_token_ids": [1, 2], "accepted_lens_eagle": [0, 0]}
    (tmp_path / "ids.jsonl").write_text(json.dumps(ids) + "\n")
    given = {"FILE": "tokens.jsonl", "--proposer": "eagle", "--k": 3, **options}
    file = given.pop("FILE")
    code, _, err = cli(
        "acceptance", "fit", file, *(part for pair in given.items() for part in pair)
    )
    assert code == 2
    assert message in err
    assert err.startswith("error: ")
    assert err.count("\n") == 1


@pytest.mark.parametrize("k", ["0", "-1", "many"])
def test_acceptance_fit_rejects_a_k_that_is_no_draft_length(k: str, cli: Run) -> None:
    assert cli("acceptance", "fit", "tokens.jsonl", "--proposer", "eagle", "--k", k)[0] == 2


def test_list_shows_every_member_with_its_fields(cli: Run) -> None:
    code, out, _ = cli("list")
    assert code == 0
    for word in (
        "poisson",
        "burstiness: float",
        "static",
        "eagle3",
        "llama-3.1-8b-kernels",
        "arena",
        "llama-3.1-8b/ngram/cnn",
    ):
        assert word in out


def test_schema_is_json_schema(cli: Run) -> None:
    schema = json.loads(cli("schema")[1])
    assert {"workload", "profile", "policy"} <= set(schema["properties"])
    policies = json.dumps(schema["properties"]["policy"])
    assert '"const": "static"' in policies
    assert '"const": "schedule"' in policies


def fits_schema(cli: Run, config: dict[str, Any]) -> bool:
    return jsonschema.Draft202012Validator(json.loads(cli("schema")[1])).is_valid(config)


@pytest.mark.parametrize(
    "changes",
    [
        {"policy": "static"},
        {"policy": "static:k=2", "routing": "least_outstanding"},
        {"policy": {"kind": "my_parts:Mine", "own": 3}},
        {"policy": {"kind": "ema_tiers", "tiers": [0, 2, 4]}},
        {"workload": {"arrivals": "burst", "lengths": "dataset:name=sharegpt", "num_requests": 3}},
        {"workload": {"arrivals": "burst", "num_requests": 3, "lengths": {
            "kind": "sessions", "turns": 2, "first_prompt": 90, "new_input": "1e2", "output": 5}}},
        {"engine": {"speculative_config": {"method": "suffix"}}},
        {"engine": {"speculative_config": {
            "method": "hybrid", "lookup": {"method": "suffix"},
            "fallback": {"method": "eagle3", "num_speculative_tokens": 3}}}},
    ],
)  # fmt: skip
def test_schema_has_what_an_experiment_may_say_in_short(cli: Run, changes: dict[str, Any]) -> None:
    assert fits_schema(cli, {**tiny_config(), **changes})


@pytest.mark.parametrize("kind", ["statik", 3])
def test_schema_refuses_what_is_no_kind(cli: Run, kind: object) -> None:
    assert not fits_schema(cli, {**tiny_config(), "policy": {"kind": kind}})


def test_help_teaches(cli: Run) -> None:
    code, out, _ = cli("run", "--help")
    assert code == 0
    assert "vllm bench serve" in " ".join(out.replace("│", " ").split())


def test_help_is_wrapped_at_the_width_of_the_terminal_alone(cli: Run) -> None:
    lines = cli("calibrate", "--help")[1].splitlines()
    first = next(place for place, line in enumerate(lines) if line.startswith(" torch, an engine"))
    paragraph = [*takewhile(str.strip, lines[first:])]
    following = [line.split()[0] for line in paragraph[1:]]
    for line, word in zip(paragraph, following, strict=False):
        assert len(f"{line.rstrip()} {word}") >= 80


def test_a_wrong_choice_is_said_in_plain_words(cli: Run) -> None:
    code, _, errors = cli("calibrate", "--engine", "tensor", "--out", "new")
    assert code == 2
    assert errors.startswith("error: specsim calibrate: Invalid value for '--engine': 'tensor' is ")


def requests_file(path: Path, **columns: Any) -> None:
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


TRACE = {"arrivals": {"kind": "trace", "path": "bad.jsonl"}}
BAD: dict[str, tuple[dict[str, Any], str | None, str]] = {
    "empty trace": ({"workload": TRACE}, "", "bad.jsonl: is empty"),
    "missing column": ({"workload": TRACE}, '{"arrived_at": 0, "prompt_len": 5}\n', "no column is"),
    "negative length": (
        {"workload": TRACE},
        '{"arrived_at": 0, "prompt_len": -5, "output_len": 3}\n',
        "line 1: prompt_len = -5 must be a whole number",
    ),
    "truncated line": (
        {"workload": TRACE},
        '{"arrived_at": 0, "prompt_len": 5, "output_len": 3}\n{"arrived_at": 1, "pro',
        "line 2: not JSON",
    ),
    "no arrivals": ({"workload": TRACE}, '{"prompt_len": 5, "output_len": 3}\n', "no arrival"),
    "NaN rate": (
        {"workload": {**tiny_config()["workload"],
                      "arrivals": {"kind": "poisson", "rate": float("nan")}}},
        None,
        "workload.arrivals.rate = nan",
    ),
    "alpha 1.2": ({"acceptance": {"kind": "bernoulli", "alpha": 1.2}}, None, "acceptance.alpha ="),
    "prompt longer than max_model_len": (
        {"workload": {**tiny_config()["workload"],
                      "lengths": {"kind": "constant", "prompt": 1024, "output": 1}}},
        None,
        "prompt of 1024 tokens must be shorter than engine.max_model_len = 1024",
    ),
    "nobody comes": (
        {"workload": {"arrivals": {"kind": "poisson", "rate": 0.01}, "duration": 0.01,
                      "lengths": tiny_config()["workload"]["lengths"]}},
        None,
        "workload: no request arrives",
    ),
    "whole prompts that never fit into a step": (
        {"engine": {**tiny_config()["engine"], "max_num_batched_tokens": 1024,
                    "enable_chunked_prefill": False, "max_num_scheduled_tokens": 64}},
        None,
        "engine.max_num_scheduled_tokens = 64 must be at least max_model_len = 1024",
    ),
    "drafts that never fit into a step": (
        {"engine": {**tiny_config()["engine"], "max_num_scheduled_tokens": 3}},
        None,
        "engine: a step has room for 3 tokens",
    ),
    "drafts that pieces of a prefill cut": (
        {"engine": {**tiny_config()["engine"], "long_prefill_token_threshold": 3}},
        None,
        "engine.long_prefill_token_threshold = 3: vLLM cuts admissions to it",
    ),
    "pieces of a prefill that never reach a block that states are kept at": (
        {"profile": "h100/qwen3-8b",
         "engine": {**tiny_config()["engine"], "max_num_seqs": 4, "max_num_batched_tokens": 16,
                    "num_gpu_blocks": 2000,
                    "kv_groups": [{"kind": "full_attention", "layers": 2},
                                  {"kind": "state", "layers": 2}],
                    "speculative_config": {"method": "draft_model", "num_speculative_tokens": 1}}},
        None,
        "engine: a step has room for 15 tokens beside the drafts",
    ),
    "prompt longer than all KV blocks": (
        {"engine": {**tiny_config()["engine"], "num_gpu_blocks": 20}},
        None,
        "num_gpu_blocks = 20 hold 304 tokens, less than one request",
    ),
    "unknown policy": ({"policy": {"kind": "godput"}}, None, "no kind 'godput'; did"),
    "zero replicas": ({"replicas": 0}, None, "replicas = 0"),
    "profile of another model": (
        {"engine": {**tiny_config()["engine"], "model": "Qwen/Qwen3-8B"}},
        None,
        "engine.model = 'Qwen/Qwen3-8B', but the profile was made for",
    ),
    "no record": ({"acceptance": {"kind": "recorded", "proposer": "eagle"}}, None, "acc_eagle"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_line_exit_code_2_and_nothing_written(
    case: str, cli: Run, experiment: Callable[..., Path], tmp_path: Path
) -> None:
    changes, trace, message = BAD[case]
    if trace is not None:
        (tmp_path / "bad.jsonl").write_text(trace)
    code, out, err = cli("run", experiment(**changes), "--out", "results")
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert message in err
    assert not (tmp_path / "results").exists()


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("run", "nowhere.yaml"), "nowhere.yaml: cannot be read"),
        (("trace", "describe", "nowhere.csv"), "nowhere.csv: cannot be read"),
        (("trace", "synth", "w.csv", "--arrivals", "poisson:rate=1", "--lengths",
          "dataset:name=gsm8k", "--num-requests", "3"), ".parquet, .jsonl"),
        (("trace", "synth", "w.parquet", "--arrivals", "poisson:rate=0", "--lengths",
          "dataset:name=gsm8k", "--num-requests", "3"), "greater than 0"),
        (("trace", "synth", "w.parquet", "--arrivals", "poisson:rate=0.01", "--lengths",
          "dataset:name=gsm8k", "--duration", "0.01"), "no request arrives"),
        (("parity", "nowhere.json"), "cannot be read"),
        (("list", "policy"), "did you mean 'policies'"),
    ],
)  # fmt: skip
def test_other_commands_fail_the_same_way(args: tuple[str, ...], message: str, cli: Run) -> None:
    code, _, err = cli(*args)
    assert code == 2
    assert message in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    "args",
    [
        ("run",),
        ("run", "a.yaml", "--sed", "3"),
        ("compre",),
        ("tune", "a.yaml", "--replications", "-1"),
        ("tune", "a.yaml", "--emit", "sglang"),
        ("export", "a", "--chrome-trace"),
        ("run", "a.yaml", "--set"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_code_2(args: tuple[str, ...], cli: Run) -> None:
    code, out, err = cli(*args)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert re.fullmatch(r"error: (specsim.*[^.;]; see --help|--replications -1: .*)\n", err)


def test_a_broken_invariant_is_found_by_check(
    cli: Run, experiment: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    # An engine that forgets to free the blocks of ended sequences.
    monkeypatch.setattr("specsim.core.compiled.address_of", lambda loop: None)
    monkeypatch.setattr("specsim.engine.deliver.release", lambda table, row: None)
    code, _, err = cli("run", experiment(), "--check")
    assert code == 2
    assert "blocks used" in err


def test_debug_shows_the_traceback(cli: Run) -> None:
    with pytest.raises(ValueError, match="cannot be read"):
        cli("--debug", "run", "nowhere.yaml")


def test_output_that_cannot_be_written_is_one_line(experiment: Callable[..., Path]) -> None:
    command = [sys.executable, "-m", "specsim", "run", str(experiment())]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (2, "error: output: No space left on device\n")


@pytest.mark.parametrize(("changes", "code"), [((), 0), (("--set", "nothing=1"), 2)])
def test_remarks_that_cannot_be_written_change_no_exit_code(
    changes: tuple[str, ...], code: int, experiment: Callable[..., Path], tmp_path: Path
) -> None:
    """Here that a trace has fewer requests than are asked for, or what is wrong."""
    trace = tmp_path / "t.csv"
    trace.write_text("arrival_time,prompt_len,output_len\n0,20,5\n1,20,5\n")
    workload = {"arrivals": {"kind": "trace", "path": str(trace)}, "num_requests": 9}
    command = [sys.executable, "-m", "specsim", "run", str(experiment(workload=workload)), *changes]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=full, check=False)
    assert done.returncode == code
    assert bool(done.stdout) == (code == 0)


def test_names_that_cannot_be_written_are_no_traceback(
    experiment: Callable[..., Path], tmp_path: Path
) -> None:
    """Neither on an output of another encoding, nor those of files that are no UTF-8."""
    path = experiment().rename(tmp_path / "caf\N{LATIN SMALL LETTER E WITH ACUTE}.yaml")
    command = [sys.executable, "-m", "specsim", "run", str(path)]
    ascii_only = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(command, env=ascii_only, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.splitlines()[0][:9]) == (0, "caf\\xe9.y")
    odd = [*map(os.fsencode, command), b"--out", os.fsencode(tmp_path) + b"/caf\xe9"]
    done = subprocess.run(odd, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "caf\\udce9" in done.stderr
    assert "cannot be written as utf-8; name it in UTF-8" in done.stderr


def test_a_narrow_terminal_breaks_no_number() -> None:
    cells = ["1,116.27", "20,789.31", "1.506 - 1.625"]
    for width in (80, 40, 20):
        table = new_table("title", ["row", "TTFT mean, ms", "max_num_batched_tokens", "x", ""], [
            ["E2E latency mean, ms", *cells, ""]
        ])  # fmt: skip
        console = Console(width=width, file=StringIO())
        keep_numbers_whole(table, console)
        console.print(table, crop=False)
        assert isinstance(console.file, StringIO)
        lines = console.file.getvalue().splitlines()
        assert all(any(word in line for line in lines) for cell in cells for word in cell.split())
        assert max(map(len, lines)) <= max(width, 51)


def test_no_word_of_a_head_is_broken_where_there_is_room() -> None:
    heads = ["row", *["simulated at the speed of the machine"] * 5]
    table = new_table("title", heads, [["one", *["41.4 %"] * 5]])
    console = Console(width=70, file=StringIO())
    keep_numbers_whole(table, console)
    with console.capture() as shown:
        console.print(table, crop=False)
    assert shown.get().count("simulated") == shown.get().count("41.4 %") == 5


def test_sentences_are_broken_between_words_on_a_terminal_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sentences = ["Rent 4 H100: 2 servers of 2 GPUs, 13.39 USD per hour.", "Assumed: nothing."]
    say(sentences)
    assert capsys.readouterr().out.splitlines() == sentences
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "30")
    say(sentences)
    assert capsys.readouterr().out.splitlines() == [
        "Rent 4 H100: 2 servers of 2", "  GPUs, 13.39 USD per hour.", "Assumed: nothing."
    ]  # fmt: skip


def test_the_module_runs_by_itself() -> None:
    command = [sys.executable, "-m", "specsim", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("specsim ")


def test_version_needs_no_simulation_code() -> None:
    script = (
        "import sys; sys.argv = ['specsim', '--version']\n"
        "from specsim.__main__ import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "heavy = {'numpy', 'pyarrow', 'pydantic', 'vl_convert', 'simpy', 'scipy'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
    )
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_requests_replayed_from_results_are_the_same(
    cli: Run, experiment: Callable[..., Path], tmp_path: Path
) -> None:
    assert cli("run", experiment(), "--out", "first")[0] == 0
    workload = {"arrivals": {"kind": "trace", "path": "first/summary.json"}}
    assert cli("run", experiment(workload=workload), "--out", "again")[0] == 0
    lens = [
        pq.read_table(tmp_path / name / "requests.parquet")["prompt_len"].to_pylist()
        for name in ("first", "again")
    ]
    assert lens[0] == lens[1]


def test_what_does_not_fit_into_memory_is_one_line(
    cli: Run, experiment: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def greedy(*_: object, **__: object) -> None:
        raise MemoryError("Unable to allocate 7.28 TiB")

    monkeypatch.setattr("specsim.run.simulate.simulate", greedy)
    code, _, err = cli("run", experiment())
    assert (code, err.count("\n")) == (2, 1)
    assert "out of memory: Unable to allocate 7.28 TiB; simulate fewer requests" in err


def test_a_name_between_colons_is_no_picture(capsys: pytest.CaptureFixture[str]) -> None:
    """rich knows :running: as a man who runs, and a policy may be mine:Running:k=3."""
    for name in random.Random(3).sample(sorted(EMOJI), 50):
        label = f"mine:{name}:k=3"
        show(new_table(label, ["policy"], [[label]]))
        warn([label])
        out, err = capsys.readouterr()
        assert out.count(label) == 2
        assert err == f"warning: {label}\n"


@pytest.mark.parametrize("output", [1, 2])
def test_answers_of_one_token_have_no_time_between_tokens(
    output: int, cli: Run, experiment: Callable[..., Path]
) -> None:
    """A 0 would read as infinitely fast."""
    lengths = f"workload.lengths=constant:prompt=9,output={output}"
    code, out, _ = cli("run", experiment(), "--set", lengths)
    assert code == 0
    for name in ("TPOT", "ITL"):
        row = next(line for line in out.splitlines() if f" {name} " in line)
        assert (row.count(" - ") == 4) is (output == 1)
    code, out, _ = cli("compare", experiment(), "--set", lengths, "--policies", "off", "static:k=1")
    rows = [line for line in out.splitlines() if "TPOT" in line]
    assert rows
    assert all((row.count(" - ") == 2) is (output == 1) for row in rows)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_an_end_from_outside_leaves_no_process_no_file_and_no_word(
    experiment: Callable[..., Path], tmp_path: Path, number: signal.Signals
) -> None:
    path = experiment()
    words = ("compare", str(path), "--policies", "off", "static:k=1", "--replications", "10000")
    command = [sys.executable, "-m", "specsim", *words, "--workers", "2", "--out", "results"]
    with subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        while list(tmp_path.iterdir()) == [path] and process.poll() is None:
            time.sleep(0.05)
        time.sleep(2)  # in the middle of it
        process.send_signal(number)
        said = process.communicate(timeout=30)
    assert (process.returncode, *said) == (128 + number, "", "")
    assert list(tmp_path.iterdir()) == [path]
