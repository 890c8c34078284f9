"""Gates that shut for good once the mean of the last numbers is too low."""

from typing import Protocol

from specsim.core.compiled import inner
from specsim.core.desk import Floats


class Gate(Protocol):
    """What is known of the numbers, and when it shuts."""

    window: int  # numbers that a mean is taken over; 0: it stays open
    threshold: float
    num: int  # all that have been counted
    total: float  # of those in the window
    is_shut: int


@inner
def count(gate: Gate, ring: Floats, number: float) -> None:
    """Take in a number, unless it is shut; shut it where the mean of a whole window is too low.

    Args:
        ring: The last numbers; one place more than the window, so that it has one.
    """
    if gate.is_shut or not gate.window:
        return
    place = gate.num % gate.window
    gate.total = gate.total + number - ring[place]
    ring[place] = number
    gate.num += 1
    if gate.num >= gate.window:
        gate.is_shut = gate.total / gate.window < gate.threshold
