"""Draft lengths by batch size, and the range of sizes that a batch falls in."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Annotated, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import AfterValidator, BeforeValidator, Field

from specsim.core.compiled import inner
from specsim.core.desk import Desk, Flags, Ints

MOST = 1 << 20  # what engine.max_num_seqs may be


def _for_all_sizes(tiers: Any) -> Any:
    return {1: tiers} if isinstance(tiers, list | tuple) else tiers


_Lens = Annotated[tuple[int, ...], Field(min_length=1)]
_BySize = Annotated[dict[Annotated[int, Field(ge=1)], _Lens], Field(min_length=1)]
TiersBySize = Annotated[
    _BySize, BeforeValidator(_for_all_sizes, json_schema_input_type=_BySize | _Lens)
]
"""Draft lengths by the smallest batch size they are for; a list is for all sizes."""


def rising_from(least: int) -> AfterValidator:
    """Return a validator that refuses tiers that do not rise or begin below `least`."""

    def check(tiers: dict[int, tuple[int, ...]]) -> dict[int, tuple[int, ...]]:
        for lens in tiers.values():
            if lens[0] < least or any(b <= a for a, b in pairwise(lens)):
                raise ValueError(f"tiers {list(lens)} must be at least {least} and rising")
        return tiers

    return AfterValidator(check)


def cut_tiers(tiers: dict[int, tuple[int, ...]], longest: int) -> tuple[list[int], list[list[int]]]:
    """Return the smallest size of each range, rising, and its lengths cut to `longest`."""
    ranges = sorted(tiers.items())
    cut = [sorted({min(k, longest) for k in lens}) for _, lens in ranges]
    return [size for size, _ in ranges], cut


def first_tier(tiers: dict[int, tuple[int, ...]], longest: int) -> int:
    """Return `longest` if it is a tier of any size, else the middle tier of the smallest size."""
    _, lens_of = cut_tiers(tiers, longest)
    is_tier = any(longest in lens for lens in lens_of)
    return longest if is_tier else lens_of[0][middle(lens_of[0])]


def middle(lens: list[int]) -> int:
    """Return the place of the middle tier, at which a policy starts."""
    return len(lens) // 2


LensUpTo = Annotated[
    dict[Annotated[int, Field(ge=1, le=MOST)], Annotated[int, Field(ge=0)]], Field(min_length=1)
]
"""A draft length by the largest batch size it is for."""


def lens_up_to(schedule: dict[int, int] | None, longest: int) -> NDArray[np.int64]:
    """Return the draft length by batch size; the last entry is for all larger batches.

    It is 0, as the schedule gives none beyond its last size. Without a schedule: `longest`.
    """
    if schedule is None:
        return np.array([longest])
    sizes = sorted(schedule)
    of_each = [*(schedule[size] for size in sizes), 0]
    by_size = np.searchsorted(sizes, np.arange(sizes[-1] + 2))
    return np.minimum(of_each, longest)[by_size]


@inner
def power_of(size: int) -> int:
    """Return the exponent of the next power of two: a class of similar batch sizes."""
    power = 0
    while 1 << power < size:
        power += 1
    return power


@inner
def range_of(sizes: Sequence[int] | Ints, size: int) -> int:
    """Return the place of the range that a batch size falls in, `sizes` being where each begins.

    The first range if the size is below all of them.
    """
    place = 0
    while place + 1 < len(sizes) and sizes[place + 1] <= size:
        place += 1
    return place


class Tiers(NamedTuple):
    """Draft lengths by batch size, as arrays for loops."""

    sizes: Ints  # smallest size of each range, rising
    middles: Ints  # middle length of each range
    has: Flags  # whether each range has a length of 0, 1, ..., longest; flattened by range


@inner
def has_len(tiers: Tiers, place: int, k: int) -> bool:
    """Return whether `k` is a length of a range."""
    return bool(tiers.has[place * (len(tiers.has) // len(tiers.sizes)) + k])


def tiers_desk(tiers: dict[int, tuple[int, ...]], longest: int) -> Desk[Tiers]:
    """Return the arrays of some tiers, cut to `longest`."""
    sizes, lens_of = cut_tiers(tiers, longest)
    has = np.zeros((len(sizes), longest + 1), dtype=np.bool_)
    for place, lens in enumerate(lens_of):
        has[place, lens] = True
    middles = np.array([lens[middle(lens)] for lens in lens_of])
    return Desk(Tiers, sizes=np.array(sizes), middles=middles, has=has.ravel())
