"""Searching for the best options: ``draft-eval --grid``."""

import json
from pathlib import Path

import pytest
from conftest import Run

from specsim.core.errors import ConfigError
from specsim.tokens.draft_eval import grid_options


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "trace.jsonl"
    row = {"prompt_token_ids": [1, 2, 3, 9, 2], "generated_token_ids": [3, 9, 2, 3, 9, 2, 3]}
    path.write_text(json.dumps(row) + "\n")
    return path


def test_every_combination_is_there_once() -> None:
    assert grid_options([]) == [{}]
    assert grid_options(["a=1,2", "b=x.jsonl,null,no"]) == [
        {"a": a, "b": b} for a in (1, 2) for b in ("x.jsonl", None, False)
    ]
    assert grid_options(["a=1,yes", "b=[1, 2],[3]"])[1:3] == [
        {"a": 1, "b": [3]},
        {"a": True, "b": [1, 2]},
    ]


@pytest.mark.parametrize(
    ("grid", "message"),
    [
        (["a"], "expected NAME=V1,V2"),
        (["=1"], "expected NAME=V1,V2"),
        (["a="], "no values"),
        (["a= "], "no values"),
        (["a=1,,2"], "not YAML"),
        (["a=1]"], "not YAML"),
        (["a=1,2,1"], "1 is there twice"),
        (["a=1", "a=2"], "a is there twice"),
        ([f"{name}={','.join(map(str, range(22)))}" for name in "abc"], "10,648 combinations"),
    ],
)
def test_silly_grids_are_refused(grid: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        grid_options(grid)


def test_the_best_combination_comes_first(cli: Run, trace: Path, tmp_path: Path) -> None:
    out = tmp_path / "grid.json"
    arguments = ["--proposer", "ngram", "--tokens", str(trace), "--json", str(out)]
    grid = ["--opt", "prompt_lookup_max=4", "--grid", "prompt_lookup_min=4,1"]
    code, shown, _ = cli("draft-eval", *arguments, *grid, "--grid", "num_speculative_tokens=1,2")
    assert code == 0
    assert "host us per step" in shown
    combinations = json.loads(out.read_text())["combinations"]
    rates = [combination["tokens_per_step"] for combination in combinations]
    assert len(rates) == 4
    assert rates == sorted(rates, reverse=True)
    assert combinations[0]["options"] == {"prompt_lookup_min": 1, "num_speculative_tokens": 2}
    assert combinations[0]["proposer"]["prompt_lookup_max"] == 4
    assert "per_request" not in combinations[0]
    assert combinations[0]["drafts_first_token"] is False  # suffix begins with it, and says so


def test_a_grid_agrees_with_single_evaluations(cli: Run, trace: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    arguments = ["--proposer", "sssd", "--tokens", str(trace), "--json", str(out)]
    grid = ("--grid", f"corpus=null,{trace}")
    cli("draft-eval", *arguments, *grid, "--opt", "num_speculative_tokens=2")
    combinations = json.loads(out.read_text())["combinations"]
    assert len(combinations) == 2
    for combination in combinations:
        given = [
            part
            for name, value in combination["options"].items()
            for part in ("--opt", f"{name}={json.dumps(value)}")
        ]
        cli("draft-eval", *arguments, *given, "--opt", "num_speculative_tokens=2")
        alone = json.loads(out.read_text())
        both = alone.keys() & combination.keys()
        assert "tokens_per_step" in both
        assert all(alone[name] == combination[name] for name in both)


@pytest.mark.parametrize(
    ("grid", "message"),
    [
        ("no_such=1,2", "unknown field 'no_such'"),
        ("prompt_lookup_min=1,0", "= 0: should be"),
        ("prompt_lookup_min=", "no values"),
    ],
)
def test_nothing_runs_if_one_combination_is_wrong(
    cli: Run, trace: Path, tmp_path: Path, grid: str, message: str
) -> None:
    out = tmp_path / "out.json"
    code, _, errors = cli(
        *("draft-eval", "--proposer", "ngram", "--tokens", str(trace), "--json", str(out)),
        *("--opt", "num_speculative_tokens=2", "--grid", grid),
    )
    assert code == 2
    assert message in errors
    assert all(line.startswith("error: ") for line in errors.splitlines())
    assert not out.exists()
