"""What it takes the drafter to read a prompt, and for how many steps that is of use.

Both are means over requests, fading: of those admitted, and of those that have ended, with a prior.
Prompts come in bursts; what reading them costs is borne by all steps that gain from it.
"""

import numpy as np

from specsim.core.compiled import inner
from specsim.core.desk import Floats

PRIOR_REQUESTS = 8.0
"""Requests that count for a prior: they are expected to decode for as many steps as"""
STEADY = 100.0
"""those over which a drafter has to be worth its upkeep."""
_KEPT = 0.999  # share of what is known of requests that a step leaves

ADMITTED_EVER, STEP, AGE, SIZE, ADMITTED, READING, ENDED, LIVED = range(8)
"""Places of `lives`: requests; steps; those since the requests of the last one began, added
up, and how many these were; then requests, and seconds that the drafter would have read their
prompts, fading; and requests that have ended, and the steps in which they decoded, fading."""


def no_lives() -> Floats:
    """Return the prior."""
    lives = np.zeros(8)
    lives[ENDED], lives[LIVED] = PRIOR_REQUESTS, PRIOR_REQUESTS * STEADY
    return lives


@inner
def admit(lives: Floats, num: int, seconds: float) -> None:
    """Take in how many a step admits, and how long prompts would have been read in it."""
    lives[ADMITTED_EVER] += num
    lives[ADMITTED] += num
    lives[READING] += seconds
    lives[ENDED] += num


@inner
def share_of(lives: Floats, size: int, begun: float, num: int) -> float:
    """Return what a step of so many decoding sequences bears of reading prompts, seconds.

    Its sequences, decoding or not, began in steps that add up to `begun`.
    """
    lives[STEP] += 1.0
    age = size * lives[STEP] - begun
    lives[ENDED] -= size - lives[SIZE]
    lives[LIVED] += num - (age - lives[AGE])
    lives[SIZE], lives[AGE] = size, age
    if not lives[ADMITTED]:
        return 0.0
    life = max(lives[LIVED], 1.0) / max(lives[ENDED], 1.0)
    share: float = num * lives[READING] / lives[ADMITTED] / life
    for place in (ADMITTED, READING, LIVED, ENDED):
        lives[place] *= _KEPT
    return share
