"""Times of matrices between measured sizes: of kernels that compute in tiles, and of others."""

from collections.abc import Callable
from itertools import product
from math import ceil

import numpy as np
import pyarrow as pa
import pytest

from specsim.profile.kernel_tables import MeasuredTable
from specsim.profile.kernel_times import MatrixTimes

MULTIPROCESSORS = 108
Law = Callable[[int, int, int], float]


def reading(n: int, k: int) -> float:
    return 5 + 1.25e-6 * n * k


def in_tiles(m: int, n: int, k: int) -> float:
    """Microseconds: a wave of tiles of up to 128 x 256 computes as long as one of them."""
    waves = ceil(ceil(m / 128) * ceil(n / 256) / MULTIPROCESSORS)
    return max(reading(n, k), 5 + 0.025 * k * waves * min(1, m / 128))


def by_size(m: int, n: int, k: int) -> float:
    return max(reading(n, k), 5 + 0.025 * k * m * n / (128 * 256 * MULTIPROCESSORS))


def reading_alone(m: int, n: int, k: int) -> float:
    return reading(n, k)


def matrices(law: Law, multiprocessors: int | None = MULTIPROCESSORS) -> MatrixTimes:
    tokens = [1, 16, 64, 128, 192, 256, 384, 512, 768, 1024, 2048, 4096, 8192]
    outputs = [1024, 2048, 3072, 4096, 5120, 6144, 7168, 8192, 10240, 12288, 16384, 65536]
    rows = [
        {
            "gemm_dtype": "bfloat16",
            "kernel_source": "y",
            "m": m,
            "n": n,
            "k": k,
            "latency": law(m, n, k) / 1e3,
        }
        for m, n, k in product(tokens, outputs, [2048, 4096, 16384])
    ]
    return MatrixTimes(
        MeasuredTable(pa.Table.from_pylist(rows), "t"), "bfloat16", None, multiprocessors
    )


def at(found: MatrixTimes, tokens: int, outputs: int) -> float:
    return float(np.interp(tokens, found.tokens, found.times(outputs, 4096)))


@pytest.mark.parametrize("tokens", [384, 717, 768, 1500])
def test_tiles_are_found_and_waves_counted(tokens: int) -> None:
    found, straight = matrices(in_tiles), matrices(in_tiles, None)
    truth = in_tiles(tokens, 28672, 4096)
    assert at(found, tokens, 28672) == pytest.approx(truth, rel=0.01)
    assert abs(at(straight, tokens, 28672) / truth - 1) > 0.03


def test_kernels_without_tiles_keep_straight_lines() -> None:
    found, straight = matrices(by_size), matrices(by_size, None)
    assert found.tokens.tolist() == straight.tokens.tolist()
    assert found.times(28672, 4096).tolist() == straight.times(28672, 4096).tolist()


def test_steps_that_read_know_no_waves() -> None:
    found = matrices(in_tiles)
    assert at(found, 16, 28672) == pytest.approx(reading(28672, 4096))


def test_larger_is_never_faster() -> None:
    assert np.diff(matrices(in_tiles).times(28672, 4096)).min() >= 0


def test_weights_are_read_from_memory_where_smaller_ones_came_from_the_cache() -> None:
    """Those of less than 100 MB were measured three times as fast as memory is."""

    def cached(m: int, n: int, k: int) -> float:
        return reading(n, k) / (3 if 2 * n * k < 1e8 else 1)

    memory, cache = matrices(reading_alone, None), matrices(cached, None)
    assert memory.us_per_byte == 0
    fastest = reading(65536, 16384) / (2 * 65536 * 16384)
    assert cache.us_per_byte == pytest.approx(fastest)
    assert cache.times(8192, 4096)[0] == pytest.approx(fastest * 2 * 8192 * 4096)
    assert cache.times(65536, 4096)[0] == memory.times(65536, 4096)[0]  # too large for a cache
