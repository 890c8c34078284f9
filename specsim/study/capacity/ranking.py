"""Ranking: what is best, and no order that the intervals do not show."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Ranked:
    """A hardware and a policy, by one number."""

    hardware: str
    policy: str
    value: float
    badness: float
    """The value, turned so that less is better."""
    between: tuple[float, float] | None
    """The 95 % interval of `badness`; None where nothing says how sure it is."""


@dataclass(frozen=True)
class Ranking:
    """Those that are best, as far as can be told."""

    leaders: list[Ranked]
    """The best, and all whose interval overlaps with its own, by rising badness."""
    others: list[Ranked]
    """Those that are worse beyond doubt."""

    def to_dict(self) -> dict[str, Any]:
        """Return the leaders as plain values."""
        return {
            "is_shown": len(self.leaders) == 1,
            "leaders": [
                {"hardware": each.hardware, "policy": each.policy, "value": each.value}
                for each in self.leaders
            ],
        }


def best(ranked: list[Ranked]) -> Ranking:
    """Return what is best; intervals that overlap, or are not known, show no difference."""
    rising = sorted(ranked, key=lambda each: each.badness)
    leaders = [each for each in rising if not _is_worse(each, rising[0])]
    return Ranking(leaders, [each for each in rising if each not in leaders])


def _is_worse(one: Ranked, other: Ranked) -> bool:
    return (
        one.between is not None and other.between is not None and one.between[0] > other.between[1]
    )
