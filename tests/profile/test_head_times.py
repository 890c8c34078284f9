"""The grid of decodes, completed where nothing was measured."""

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
