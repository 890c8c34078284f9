"""Draft lengths by size of batch, and which range of sizes a batch falls in."""

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
"""Draft lengths by the least size of batch that they are for; a list is for all sizes."""


def rising_from(least: int) -> AfterValidator:
    """Return what refuses lengths that do not rise, or are shorter than that."""

    def check(tiers: dict[int, tuple[int, ...]]) -> dict[int, tuple[int, ...]]:
        for lens in tiers.values():
            if lens[0] < least or any(b <= a for a, b in pairwise(lens)):
                raise ValueError(f"tiers {list(lens)} must be at least {least} and rising")
        return tiers

    return AfterValidator(check)


def cut_tiers(tiers: dict[int, tuple[int, ...]], longest: int) -> tuple[list[int], list[list[int]]]:
    """Return the least sizes, rising, and the lengths of each, cut to the longest there may be."""
    ranges = sorted(tiers.items())
    cut = [sorted({min(k, longest) for k in lens}) for _, lens in ranges]
    return [size for size, _ in ranges], cut


def first_tier(tiers: dict[int, tuple[int, ...]], longest: int) -> int:
    """Return the longest draft if it is a tier of any size, else the smallest's middle one."""
    _, lens_of = cut_tiers(tiers, longest)
    is_tier = any(longest in lens for lens in lens_of)
    return longest if is_tier else lens_of[0][middle(lens_of[0])]


def middle(lens: list[int]) -> int:
    """Return where a policy stands in its tiers before it has learned anything."""
    return len(lens) // 2


LensUpTo = Annotated[
    dict[Annotated[int, Field(ge=1, le=MOST)], Annotated[int, Field(ge=0)]], Field(min_length=1)
]
"""A draft length by the largest batch that it is for."""


def lens_up_to(schedule: dict[int, int] | None, longest: int) -> NDArray[np.int64]:
    """Return the length of each size of batch, given by the largest size that it is for.

    None beyond the last, which stands for all that are larger; without a schedule the longest.
    """
    if schedule is None:
        return np.array([longest])
    sizes = sorted(schedule)
    of_each = [*(schedule[size] for size in sizes), 0]
    by_size = np.searchsorted(sizes, np.arange(sizes[-1] + 2))
    return np.minimum(of_each, longest)[by_size]


@inner
def power_of(size: int) -> int:
    """Return the logarithm of the next power of two, as batches of like sizes share it."""
    power = 0
    while 1 << power < size:
        power += 1
    return power


@inner
def range_of(sizes: Sequence[int] | Ints, size: int) -> int:
    """Return which range a batch falls in, by the least size of each, rising.

    The last that it reaches; the first if it reaches none.
    """
    place = 0
    while place + 1 < len(sizes) and sizes[place + 1] <= size:
        place += 1
    return place


class Tiers(NamedTuple):
    """Lengths by size of batch, as loops see them."""

    sizes: Ints  # least size of each range, rising;
    middles: Ints  # its middle length;
    has: Flags  # and whether it has a length of 0, 1, ..., range after range


@inner
def has_len(tiers: Tiers, place: int, k: int) -> bool:
    """Return whether a range has a length."""
    return bool(tiers.has[place * (len(tiers.has) // len(tiers.sizes)) + k])


def tiers_desk(tiers: dict[int, tuple[int, ...]], longest: int) -> Desk[Tiers]:
    """Return lengths by the least size that they are for, cut to the longest there may be."""
    sizes, lens_of = cut_tiers(tiers, longest)
    has = np.zeros((len(sizes), longest + 1), dtype=np.bool_)
    for place, lens in enumerate(lens_of):
        has[place, lens] = True
    middles = np.array([lens[middle(lens)] for lens in lens_of])
    return Desk(Tiers, sizes=np.array(sizes), middles=middles, has=has.ravel())
