"""Indexed randomness: known values, and independence of how it is asked for."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specsim.core.rng import Luck, generator, indexed_hash, splitmix64, stream_id

U64 = st.integers(0, 2**64 - 1)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (splitmix64(0), 0xE220A8397B1DCDAF),
        (indexed_hash(1, 1, 0, 0), 0xC965D6348C188782),
        (indexed_hash(1, 1, 2, 5), 0x5EF8DB257C98A53E),
    ],
)
def test_hash_is_that_of_the_recordings(value: int, expected: int) -> None:
    assert value == expected


def test_uniform_is_that_of_the_recordings() -> None:
    assert Luck(1, 1).uniforms([2], [6])[5] == 0.3709847418327592


@given(U64, U64, st.lists(st.tuples(U64, st.integers(1, 9)), min_size=1, max_size=5))
def test_vectorised_uniforms_equal_the_scalar_hash(
    seed: int, stream: int, rows: list[tuple[int, int]]
) -> None:
    requests, counts = zip(*rows, strict=True)
    expected = [
        (indexed_hash(seed, stream, request, position) >> 11) * 2.0**-53
        for request, count in rows
        for position in range(count)
    ]
    assert Luck(seed, stream).uniforms(requests, counts).tolist() == expected


def test_uniforms_look_uniform() -> None:
    values = Luck(7, stream_id("acceptance", "eagle3")).uniforms(range(200), [500] * 200)
    assert abs(values.mean() - 0.5) < 4 * (1 / 12 / len(values)) ** 0.5
    counts = np.histogram(values, bins=20, range=(0, 1))[0]
    assert ((counts - 5000) ** 2 / 5000).sum() < 45.3  # chi-square, 19 degrees, 99.9 % is 43.8


def test_streams_have_fixed_numbers_and_differ() -> None:
    # A golden value: were it to change, every result of every seed would.
    assert stream_id("acceptance", "eagle3") == 0xA9E89BB573E0D5D8
    assert stream_id("acceptance", "ngram") != stream_id("acceptance", "eagle3")


def test_named_generators_are_reproducible_and_independent() -> None:
    first = generator(3, "lengths").random(4)
    assert first.tolist() == generator(3, "lengths").random(4).tolist()
    assert first.tolist() != generator(3, "arrivals").random(4).tolist()
    assert first.tolist() != generator(4, "lengths").random(4).tolist()
