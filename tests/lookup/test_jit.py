"""Lookups compile where they can, and give the same drafts where they cannot."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import specsim

SCRIPT = """
import numpy as np
from specsim.lookup.ngram import find_ngram
print(find_ngram(np.array([5, 1, 2, 3, 1, 2], dtype=np.int32), 6, 1, 3, False))
"""
NO_NUMBA = "import sys; sys.modules['numba'] = None\n"
NO_FOLDER = "from numba.core.caching import CacheImpl; CacheImpl._locator_classes = []\n"


@pytest.mark.parametrize(
    ("before", "said"),
    [(NO_NUMBA, ["numba is not installed; pip install numba"]), (NO_FOLDER, [])],
    ids=["no numba", "nothing may be written"],
)
def test_a_lookup_finds_the_same(before: str, said: list[str]) -> None:
    root = str(Path(specsim.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-c", before + SCRIPT],
        env={**os.environ, "PYTHONPATH": root},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "3\n"
    assert [line.rpartition(": ")[2] for line in done.stderr.splitlines()] == said
