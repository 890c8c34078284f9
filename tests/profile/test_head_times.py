"""What attention takes where nothing was measured, and what a scan takes of it."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specsim.profile.kernel_times import HeadTimes

SEQUENCES = (1, 2, 4, 8, 16, 32, 64)
CONTEXTS = (2, 65, 513, 1025, 1537, 2049, 6145, 8193, 32769)


@given(
    fixed=st.floats(1, 100),
    each=st.floats(0, 2),
    per_token=st.floats(0, 0.01),
    most_tokens=st.integers(6, 18).map(lambda power: 2**power),
    alone=st.sets(st.sampled_from(CONTEXTS[1:-1])),
)
def test_what_is_affine_in_sequences_and_tokens_is_found_again(
    fixed: float, each: float, per_token: float, most_tokens: int, alone: set[int]
) -> None:
    """Measured until memory ends, and some contexts of a single sequence only."""
    points = [
        (sequences, context)
        for context in CONTEXTS
        for sequences in SEQUENCES
        if sequences == 1
        or context == CONTEXTS[0]
        or (sequences * context <= most_tokens and context not in alone)
    ]
    batch, lens = np.array(points, dtype=float).T

    contexts, sequences, grid = HeadTimes(
        batch, lens, fixed + each * batch + per_token * batch * lens
    ).grid()

    assert contexts.tolist() == list(CONTEXTS)
    assert sequences.tolist() == list(SEQUENCES)
    law = fixed + each * sequences + per_token * np.outer(contexts, sequences)
    assert grid == pytest.approx(law, rel=1e-9)


@given(
    dense=st.floats(1, 50),
    fixed=st.floats(0, 200),
    per_token=st.floats(0.01, 0.1),
    square=st.floats(0, 1e-5),
    longest=st.integers(4, 7),
)
def test_a_scan_is_what_rises_with_the_square_of_prompts_that_are_scanned(
    dense: float, fixed: float, per_token: float, square: float, longest: int
) -> None:
    """Prompts that read all of their tokens run another kernel, so that times jump."""
    lens = 1024.0 * 2.0 ** np.arange(-5, longest + 1)
    chosen = fixed + per_token * lens
    times = np.where(lens <= 2048, dense, dense + chosen + square * lens**2)

    at, attention, scanned = HeadTimes(np.ones(len(lens)), lens, times).chosen_prompts(2048)

    assert at == pytest.approx(lens)
    assert scanned == pytest.approx(square * lens**2, rel=1e-3, abs=1e-2)
    is_long = lens > 2048
    assert attention[is_long] == pytest.approx(dense + chosen[is_long], rel=1e-3)


def test_one_scanned_prompt_tells_nothing_of_a_scan() -> None:
    lens = np.array([1024.0, 2048.0, 4096.0])
    _, attention, scanned = HeadTimes(np.ones(3), lens, lens / 100).chosen_prompts(2048)
    assert scanned.tolist() == [0, 0, 0]
    assert attention == pytest.approx(lens / 100)


def test_what_was_not_measured_gives_way_to_what_was() -> None:
    """512 sequences were measured with a short context only, by a kernel that is faster."""
    times = {(64, 2): 600, (128, 2): 1700, (512, 2): 300, (64, 1024): 700, (128, 1024): 1720}
    batch, lens = np.array(list(times), dtype=float).T
    contexts, sequences, grid = HeadTimes(batch, lens, np.array([*times.values()], float)).grid()
    assert (contexts.tolist(), sequences.tolist()) == ([2, 1024], [64, 128, 512])
    assert grid[1, :2] == pytest.approx([700, 1720], rel=1e-3)
    assert grid[1, 2] >= grid[1, 1]


@given(st.data())
def test_more_sequences_and_longer_contexts_are_never_faster(data: st.DataObject) -> None:
    """However times fall in a table, and whatever it lacks."""
    points = [(n, context) for context in CONTEXTS for n in SEQUENCES]
    kept = data.draw(st.sets(st.sampled_from(points), min_size=4))
    batch, lens = np.array(sorted(kept), dtype=float).T
    times = data.draw(st.lists(st.floats(1, 1e4), min_size=len(kept), max_size=len(kept)))
    _, _, grid = HeadTimes(batch, lens, np.array(times)).grid()
    assert np.isfinite(grid).all()
    for axis in (0, 1):
        assert (np.diff(grid, axis=axis) >= -1e-9 * grid.max()).all()
