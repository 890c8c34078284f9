"""Drafts of requests, for the estimators of acceptance of vLLM and of specsim."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

RECORDED = Path(__file__).with_name("estimator.json")
NUM, LONGEST, WORDS, STEPS = 8, 3, 12, 320
Ints, Floats = NDArray[np.int32], NDArray[np.float32]


def steps() -> Iterator[tuple[Ints, Ints, Floats]]:
    """Yield what was verified, what was accepted, and the drafter's next logits.

    Shapes (NUM,), (NUM,) and (LONGEST, NUM, WORDS).
    """
    rng = np.random.default_rng(11)
    verified = np.zeros(NUM, dtype=np.int32)
    accepted = np.zeros(NUM, dtype=np.int32)
    for _ in range(STEPS):
        logits = rng.normal(0.0, 2.2, (LONGEST, NUM, WORDS)).astype(np.float32)
        yield verified, accepted, logits
        probs = np.exp(logits.max(axis=2)) / np.exp(logits).sum(axis=2)
        is_good = rng.random((LONGEST, NUM)) < probs**0.6 - 0.05 * np.arange(LONGEST)[:, np.newaxis]
        verified = rng.integers(0, LONGEST + 1, NUM).astype(np.int32)
        run = np.logical_and.accumulate(is_good).sum(axis=0)
        accepted = np.minimum(run, verified).astype(np.int32)
