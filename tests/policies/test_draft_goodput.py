"""Goodput by the drafter's own probabilities, driven by hand."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from driving import batch, drafts_of, outcome, started, sure_drafts

from specsim.core.step import DraftView, StepLoad


def step_time(load: StepLoad, lens: Any) -> float:
    """A step of 8 ms that takes 1 ms more per token beyond eight."""
    return 8.0 + max(0, load.batched_tokens - 8)


def verified(view: DraftView, policy: str = "draft_goodput:calibrate=false", **kwargs: Any) -> Any:
    parsed, memory = started(policy, 6, step_time)
    size = len(view.draft_lens)
    return parsed.verify_lens(
        batch(*range(size), drafts=int(view.draft_lens.sum()), **kwargs), view, memory
    )


def goodput(rows: list[list[float]], lens: Sequence[int]) -> float:
    """Tokens per millisecond if so many of each draft are verified."""
    survival = [np.cumprod(np.float32(row), dtype=np.float64) for row in rows]
    gained = sum(row[:length].sum() for row, length in zip(survival, lens, strict=True))
    return float(len(rows) + gained) / step_time(StepLoad(0, len(rows) + sum(lens), len(rows)), 0)


def test_free_tokens_are_all_verified() -> None:
    assert verified(sure_drafts([0.9, 0.1], [0.5])) == [2, 1]


def test_beyond_them_only_what_pays() -> None:
    # Two sequences leave six of the eight free places, and the surest drafts fill them; a seventh
    # would have to bring an eighth of what the step emits.
    sure, unsure = [0.95] * 6, [0.3] * 6
    assert verified(sure_drafts(sure, unsure)) == [6, 0]


def test_the_best_lengths_are_those_of_an_enumeration() -> None:
    rng = np.random.default_rng(0)
    for _ in range(50):
        rows = [rng.uniform(0.1, 1.0, size=rng.integers(1, 5)).tolist() for _ in range(3)]
        view = sure_drafts(*rows)
        best = max(goodput(rows, lens) for lens in np.ndindex(*(len(row) + 1 for row in rows)))
        assert goodput(rows, verified(view)) == pytest.approx(best, rel=1e-12)


def test_prefills_get_nothing() -> None:
    view = sure_drafts([0.9, 0.9], [0.0])
    assert verified(drafts_of([2, 0], view.confidences), chunks=(1,))[1] == 0


def test_a_drafter_that_is_never_right_is_not_believed() -> None:
    parsed, memory = started("draft_goodput", 6, lambda load, lens: 8.0 + load.batched_tokens)
    view = sure_drafts([0.9] * 4, [0.9] * 4)
    lens = []
    for _ in range(60):
        kept = parsed.verify_lens(batch(0, 1, drafts=8), view, memory)
        lens.append(sum(kept))
        parsed.observe(outcome(kept, [0, 0]), memory)
    assert lens[0] == 8
    assert lens[-1] == 0


def test_a_drafter_that_is_better_than_it_says_is_believed_more() -> None:
    parsed, memory = started("draft_goodput", 6, lambda load, lens: 3.0 + load.batched_tokens)
    view = sure_drafts([0.45] * 3, [0.45] * 3)
    first = parsed.verify_lens(batch(0, 1, drafts=6), view, memory)
    for _ in range(60):
        parsed.verify_lens(batch(0, 1, drafts=6), view, memory)
        parsed.observe(outcome([3, 3], [3, 3]), memory)
    assert sum(parsed.verify_lens(batch(0, 1, drafts=6), view, memory)) > sum(first)
