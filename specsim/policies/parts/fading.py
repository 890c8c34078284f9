"""What the last of many numbers say, the newest most."""

from specsim.core.compiled import inner
from specsim.core.desk import FloatRows, Floats, Ints


@inner
def keep(rings: FloatRows, counts: Ints, row: int, number: float) -> None:
    """Put a number into one of some rings, of which it is known how many they have had."""
    rings[row, counts[row] % rings.shape[1]] = number
    counts[row] += 1


@inner
def change_of_variance(ring: Floats, count: int, window: int, fading: float) -> float:
    """Return the variance of the last few of `count` numbers over that of all in the ring.

    Each weighs less than the next.

    Args:
        ring: The last ones, the newest at (count - 1) % its size.
        window: How many at most are the last few.
    """
    weight, total, first, second, short = 1.0, 0.0, 0.0, 0.0, 0.0
    num, place = min(count, len(ring)), (count - 1) % len(ring)
    for age in range(num):
        number = ring[place]
        place = place - 1 if place else len(ring) - 1
        total, first = total + weight, first + weight * number
        second += weight * number * number
        weight *= fading
        if age < window:
            short = second / total - (first / total) ** 2
    steady = second / total - (first / total) ** 2 if num else 0.0
    return max(short, 0.0) / steady if steady > 0.0 else 1.0
