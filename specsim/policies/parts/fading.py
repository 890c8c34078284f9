"""What the last of many numbers say, the newest most."""

from specsim.core.compiled import inner
from specsim.core.desk import FloatRows, Floats, Ints


@inner
def keep(rings: FloatRows, counts: Ints, row: int, number: float) -> None:
    """Put a number into one of some rings, of which it is known how many they have had."""
    rings[row, counts[row] % rings.shape[1]] = number
    counts[row] += 1


@inner
def variance_of(ring: Floats, count: int, window: int, fading: float) -> float:
    """Return the variance of the last of `count` numbers, each weighing less than the next.

    Args:
        ring: The last ones, the newest at (count - 1) % its size.
        window: How many at most.
    """
    weight, total, first, second = 1.0, 0.0, 0.0, 0.0
    for age in range(min(count, window)):
        number = ring[(count - 1 - age) % len(ring)]
        total, first = total + weight, first + weight * number
        second += weight * number * number
        weight *= fading
    return max(second / total - (first / total) ** 2, 0.0) if total > 0.0 else 0.0


@inner
def change_of_variance(ring: Floats, count: int, window: int, fading: float) -> float:
    """Return the variance of the last few of `count` numbers over that of all in the ring."""
    steady = variance_of(ring, count, len(ring), fading)
    return variance_of(ring, count, window, fading) / steady if steady > 0.0 else 1.0
