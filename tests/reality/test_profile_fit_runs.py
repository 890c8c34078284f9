"""`specsim profile fit` on the steps of measured runs."""

import json
from pathlib import Path
from typing import Any

import pytest
from conftest import Run
from made_up_points import DECODE, MIXED, coefficients, made_up

from specsim.latency.two_regime import TwoRegime
from specsim.profile import load_profile

NGRAM = {"method": "ngram", "num_speculative_tokens": 3}


def write_run(folder: Path, config: dict[str, Any] | None = None, count: int = 400) -> Path:
    """Write a run folder whose steps have known costs."""
    points = made_up(count)
    folder.mkdir()
    columns = (points.seconds, points.context_tokens, points.batched_tokens, points.num_requests)
    rows = zip(*(column.tolist() for column in (*columns, points.mixed)), strict=True)
    names = ("seconds", "context_tokens", "batched_tokens", "num_requests", "prefill_tokens")
    lines = [{**dict(zip(names, row, strict=True)), "scheduled": [1]} for row in rows]
    for line in lines:
        line["prefill_tokens"] = int(line["prefill_tokens"])
    (folder / "steps.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    meta = {"engine_kwargs": {"speculative_config": config}}
    (folder / "meta.json").write_text(json.dumps(meta))
    return folder


def fit(cli: Run, *folders: Path) -> tuple[int, str, str]:
    names = ("--model", "llama-3.1-8b", "--gpu", "h100", "--out", "p.yaml")
    return cli("profile", "fit", *folders, *names)


def test_several_runs_give_one_profile(tmp_path: Path, cli: Run) -> None:
    folders = [write_run(tmp_path / name, NGRAM) for name in ("low", "high")]
    code, output, errors = fit(cli, *folders)
    assert (code, errors) == (0, "")
    assert "low, high, 800 steps" in output
    profile = load_profile("p.yaml")
    assert isinstance(profile.target, TwoRegime)
    assert coefficients(profile.target.decode) == pytest.approx(DECODE, rel=1e-6)
    assert coefficients(profile.target.mixed) == pytest.approx(MIXED, rel=1e-6)
    assert "ngram, 3 draft tokens, drafting included" in profile.provenance.notes
    assert list(profile.drafts) == ["ngram"]


def test_without_speculation_there_is_no_drafter(tmp_path: Path, cli: Run) -> None:
    assert fit(cli, write_run(tmp_path / "run"))[0] == 0
    profile = load_profile("p.yaml")
    assert not profile.drafts
    assert "drafting" not in profile.provenance.notes


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (None, "the runs speculated differently: ('ngram', 3)"),
        ({**NGRAM, "num_speculative_tokens": 5}, "the runs speculated differently"),
        (
            {**NGRAM, "num_speculative_tokens_per_batch_size": [[1, 8, 3], [9, 16, 1]]},
            "its draft length changed with the batch",
        ),
        ({**NGRAM, "num_speculative_tokens": "many"}, "num_speculative_tokens = 'many' must be"),
        ({**NGRAM, "method": ["ngram"]}, "method = ['ngram'] and"),
    ],
)
def test_runs_that_cannot_be_fitted_together_are_refused(
    tmp_path: Path, cli: Run, other: dict[str, Any] | None, message: str
) -> None:
    one, two = write_run(tmp_path / "one", NGRAM), write_run(tmp_path / "two", other)
    code, output, errors = fit(cli, one, two)
    assert (code, output) == (2, "")
    assert message in errors
    assert len(errors.splitlines()) == 1
    assert not Path("p.yaml").exists()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"seconds": 1, "context', "line 2: is not JSON; it may have been cut off: remove it"),
        ("[1, 2]", "line 2: must be a mapping of names to values"),
        ('{"seconds": 1}', "line 2: context_tokens = '' must be a number"),
    ],
)
def test_a_broken_line_is_named(tmp_path: Path, cli: Run, text: str, message: str) -> None:
    folder = write_run(tmp_path / "run", count=20)
    path = folder / "steps.jsonl"
    first = path.read_text().splitlines()[0]
    path.write_text(f"{first}\n{text}\n")
    code, _, errors = fit(cli, folder)
    assert code == 2
    assert message in errors


def test_a_folder_without_steps_among_several_is_refused(tmp_path: Path, cli: Run) -> None:
    (tmp_path / "empty").mkdir()
    code, _, errors = fit(cli, write_run(tmp_path / "run"), tmp_path / "empty")
    assert code == 2
    assert "empty: has no steps.jsonl" in errors
