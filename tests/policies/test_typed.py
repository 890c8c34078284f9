"""A policy is typed by its memory: a type checker finds nothing in those of the tutorial."""

import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT
from pages import blocks


@pytest.mark.types
def test_a_type_checker_passes_the_tutorials_policies_and_no_other_memory(tmp_path: Path) -> None:
    files = {
        each.title: each.text
        for each in blocks(ROOT / "docs" / "tutorial" / "own-policy.md")
        if each.title is not None and each.language == "python"
    }
    files["another.py"] = files["learning.py"].replace("Policy[Memory]", "Policy[ServerView]")
    for name, text in files.items():
        (tmp_path / name).write_text(text)

    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", *(tmp_path / name for name in files)],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip

    wrong = [
        line.partition(": error: ") for line in done.stdout.splitlines() if ": error: " in line
    ]
    assert {Path(place).name.partition(":")[0] for place, *_ in wrong} == {"another.py"}
    assert {text.split()[-1] for *_, text in wrong} == {"[override]"}
    assert len(wrong) == 3  # start, draft_lens, observe
