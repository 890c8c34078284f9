"""Bad input of draft-eval: exit code 2, one line that names the place, and nothing written."""

import json
import os
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
    assert all(line.startswith("error: ") for line in err.splitlines())
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
    "of no effect": ((*NGRAM, "--opt", "match_probability=0.5"), "match_probability = 0.5 has no"),
    "of a server": ((*NGRAM, "--opt", "model=x"), "model has no effect"),
    "the same twice": (
        ("--proposer", "suffix", "--opt", "max_tree_depth=3", "--opt",
         "suffix_decoding_max_tree_depth=4"), "are the same"),
    "fixed and searched": ((*NGRAM, "--grid", "num_speculative_tokens=1,2"), "give one of them"),
    "nothing to draft from": (
        ("--proposer", "suffix", "--opt", "use_local_tree=false", "--opt",
         "max_cached_requests=0"), "leaves nothing to draft from"),
    "trees too deep": (
        ("--proposer", "suffix", "--opt", "max_tree_depth=1000000000"), "max_tree_depth = 10"),
    "too long for a machine": (
        (*NGRAM, "--opt", "prompt_lookup_max=10000000000000000000000"), "prompt_lookup_max = 10"),
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


@pytest.mark.parametrize(
    ("line", "why"),
    [("[" * 100_000, "nested more than 100 levels deep"), (f"[{'9' * 5000}]", "too many digits")],
    ids=["nested", "digits"],
)
def test_json_that_a_machine_cannot_hold(cli: Run, tmp_path: Path, line: str, why: str) -> None:
    path = token_file(tmp_path, GOOD)
    with path.open("a") as stream:
        stream.write(f'{{"prompt_token_ids": [1], "generated_token_ids": {line}}}\n')
    err = refused(cli, tmp_path, *NGRAM, "--tokens", path)
    assert "line 2: not JSON: " in err
    assert why in err


def test_the_byte_order_mark_of_windows_is_no_text(cli: Run, tmp_path: Path) -> None:
    path = token_file(tmp_path, GOOD)
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert cli("draft-eval", *NGRAM, "--tokens", path)[0] == 0


def test_a_device_is_never_replaced(cli: Run, tmp_path: Path) -> None:
    path, fifo = token_file(tmp_path, GOOD), tmp_path / "out.json"
    os.mkfifo(fifo)
    err = refused(cli, tmp_path, *NGRAM, "--tokens", path, "--json", fifo)
    assert "is no ordinary file" in err
    assert fifo.is_fifo()


def test_a_link_is_written_through(cli: Run, tmp_path: Path) -> None:
    path, link = token_file(tmp_path, GOOD), tmp_path / "link.json"
    link.symlink_to(tmp_path / "out.json")
    assert cli("draft-eval", *NGRAM, "--tokens", path, "--json", link)[0] == 0
    assert link.is_symlink()
    assert json.loads((tmp_path / "out.json").read_text())["requests"] == 1


def test_the_trace_itself_is_not_overwritten(cli: Run, tmp_path: Path) -> None:
    path = token_file(tmp_path, GOOD)
    before = path.read_bytes()
    err = refused(cli, tmp_path, *NGRAM, "--tokens", path, "--json", path)
    assert "is the trace itself" in err
    err = refused(cli, tmp_path, *NGRAM, "--tokens", "no", "--json", path)
    assert "cannot be read" in err or "was not written by specsim" in err  # whichever comes first
    assert path.read_bytes() == before


def test_a_folder_is_no_file_to_write(cli: Run, tmp_path: Path) -> None:
    path = token_file(tmp_path, GOOD)
    (tmp_path / "out.json").mkdir()
    err = refused(cli, tmp_path, *NGRAM, "--tokens", path, "--json", "out.json")
    assert "cannot be written" in err
