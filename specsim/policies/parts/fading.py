"""What the last of many numbers say, the newest most."""

from specsim.core.compiled import inner
from specsim.core.desk import FloatRows, Floats, Ints

FADING = 0.85
"""What a number weighs by that after it."""


@inner
def keep(rings: FloatRows, counts: Ints, row: int, number: float) -> None:
    """Put a number into one of some rings, of which it is known how many they have had."""
    rings[row, counts[row] % rings.shape[1]] = number
    counts[row] += 1


@inner
def change_of_variance(ring: Floats, count: int) -> float:
    """Return the variance of the last third of `count` numbers over that of all in the ring.

    Each weighs less than the next. Of fewer than two numbers 0; 20 where there is none over all.

    Args:
        ring: The last ones, the newest at (count - 1) % its size.
    """
    weight, total, first, second, late = 1.0, 0.0, 0.0, 0.0, 0.0
    num, place = min(count, len(ring)), (count - 1) % len(ring)
    if num < 2:
        return 0.0
    for age in range(num):
        number = ring[place]
        place = place - 1 if place else len(ring) - 1
        total, first = total + weight, first + weight * number
        second += weight * number * number
        weight *= FADING
        if age < max(num // 3, 1):
            late = second / total - (first / total) ** 2
    steady = second / total - (first / total) ** 2
    return max(late, 0.0) / steady if steady >= 1e-6 else 20.0
