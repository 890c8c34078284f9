"""Bad input of draft-eval: exit code 2, one line that names the place, and nothing written."""

import json
from pathlib import Path
from typing import Any

import pytest
from conftest import Run

GOOD: dict[str, Any] = {"prompt_token_ids": [1, 2, 3, 1, 2], "generated_token_ids": [3, 1, 2, 4]}
NGRAM = ("--proposer", "ngram", "--opt", "num_speculative_tokens=3")


def token_file(folder: Path, *rows: dict[str, Any]) -> Path:
    path = folder / "tokens.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def refused(cli: Run, folder: Path, *args: object) -> str:
    """Run a command that must fail, and return its message."""
    before = sorted(folder.iterdir())
    code, out, err = cli("draft-eval", *args)
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert sorted(folder.iterdir()) == before
    return err


OUTPUTS = {
    "negative": ([1, -2], "line 2: generated_token_ids"),
    "fraction": ([1, 2.5], "line 2: generated_token_ids"),
    "text": ([1, "2"], "line 2: generated_token_ids"),
    "truth value": ([1, True], "line 2: generated_token_ids"),
    "above int32": ([2**31], "line 2: generated_token_ids"),
    "no list": (7, "line 2: generated_token_ids"),
    "missing": (None, "line 2: no value for 'generated_token_ids'"),
    "empty": ([], "1 of 2 requests have no output tokens"),
}


@pytest.mark.parametrize("name", OUTPUTS)
def test_bad_token_ids(cli: Run, tmp_path: Path, name: str) -> None:
    value, message = OUTPUTS[name]
    path = token_file(tmp_path, GOOD, {**GOOD, "generated_token_ids": value})
    assert message in refused(cli, tmp_path, *NGRAM, "--tokens", path, "--json", "out.json")


def test_the_largest_token_id_is_read(cli: Run, tmp_path: Path) -> None:
    largest = {"prompt_token_ids": [2**31 - 1, 0], "generated_token_ids": [2**31 - 1]}
    path = token_file(tmp_path, largest)
    assert cli("draft-eval", *NGRAM, "--tokens", path)[0] == 0


def test_a_workload_without_tokens(cli: Run, tmp_path: Path) -> None:
    path = tmp_path / "azure.csv"
    path.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44\n")
    err = refused(cli, tmp_path, *NGRAM, "--tokens", path, "--json", "out.json")
    assert "azure.csv" in err
    assert "specsim tokens from-text" in err


def test_no_such_file(cli: Run, tmp_path: Path) -> None:
    err = refused(cli, tmp_path, *NGRAM, "--tokens", "no.jsonl", "--json", "new/out.json")
    assert "no.jsonl" in err


OPTIONS = {
    "unknown proposer": (("--proposer", "ngrams"), "did you mean 'ngram'"),
    "a model drafts": (
        ("--proposer", "eagle", "--opt", "num_speculative_tokens=3"), "its recorded acceptance"),
    "unknown option": ((*NGRAM, "--opt", "prompt_lookup_mx=3"), "prompt_lookup_mx"),
    "no k": (("--proposer", "ngram"), "num_speculative_tokens"),
    "k of zero": (("--proposer", "ngram", "--opt", "num_speculative_tokens=0"), "num_specul"),
    "k of text": (("--proposer", "ngram", "--opt", "num_speculative_tokens=x"), "num_specul"),
    "no value": (("--proposer", "ngram", "--opt", "num_speculative_tokens"), "expected"),
    "bounds crossed": (
        (*NGRAM, "--opt", "prompt_lookup_min=5", "--opt", "prompt_lookup_max=3"), "not exceed"),
}  # fmt: skip


@pytest.mark.parametrize("name", OPTIONS)
def test_bad_options(cli: Run, tmp_path: Path, name: str) -> None:
    args, message = OPTIONS[name]
    path = token_file(tmp_path, GOOD)
    assert message in refused(cli, tmp_path, *args, "--tokens", path, "--json", "out.json")


def test_a_path_that_cannot_be_written_to_is_found_before_the_work(
    cli: Run, tmp_path: Path
) -> None:
    path = token_file(tmp_path, GOOD)
    err = refused(cli, tmp_path, *NGRAM, "--tokens", path, "--json", path / "out.json")
    assert "out.json" in err
    assert "cannot be written" in err


def test_a_folder_is_no_file_to_write(cli: Run, tmp_path: Path) -> None:
    path = token_file(tmp_path, GOOD)
    (tmp_path / "out.json").mkdir()
    err = refused(cli, tmp_path, *NGRAM, "--tokens", path, "--json", "out.json")
    assert "cannot be written" in err
