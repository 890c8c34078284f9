"""Host speed: how fast a machine was while something was measured on it.

A CPU that others use too may change its speed by half within tenths of a second. So measurements
are interrupted by probes: a small piece of work, always the same, while the clock of the
measurement stands still. Its duration shows how slow the machine was around that instant.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from specsim.core.columns import first_line, read_columns
from specsim.core.errors import ProfileError
from specsim.engine.incidents import Slowdown

_WINDOW = 0.25  # seconds; a single probe of two milliseconds is too noisy

Seconds = NDArray[np.float64]


@dataclass(frozen=True)
class HostSpeed:
    """The probes of one measurement, at least one."""

    at: Seconds  # instants of the probes, ascending, on the clock of the measurement; shape (n,)
    seconds: Seconds  # duration of each probe, shape (n,)

    @classmethod
    def of(cls, probes: Iterable[tuple[float, float]]) -> "HostSpeed":
        """Return the probes in (instant, duration) pairs, in any order."""
        at, seconds = np.array(sorted(probes), dtype=np.float64).T
        return cls(at, seconds)

    @classmethod
    def of_run(cls, folder: Path) -> "HostSpeed | None":
        """Return the probes in ``host_speed.jsonl`` of a run folder; None if it has none.

        Its lines have ``at``, on the clock of ``steps.jsonl``, and ``seconds``. Raises a
        ProfileError if there is no line, a value is not a number of at least 0, or a probe took no
        time.
        """
        path = folder / "host_speed.jsonl"
        if not path.exists():
            return None
        columns, _ = read_columns(path, ("at", "seconds"))
        if not columns["seconds"].all():
            line = int(np.argmin(columns["seconds"])) + first_line(path)
            raise ProfileError(
                f"{path}, line {line}: seconds = 0: a probe takes time; correct or remove the line"
            )
        return cls.of(zip(columns["at"], columns["seconds"], strict=True))

    @staticmethod
    def usual(measured: "Iterable[HostSpeed | None]") -> float | None:
        """Return the mean probe time over measurements, seconds; None if none has probes."""
        known = [each.seconds for each in measured if each is not None]
        return float(np.concatenate(known).mean()) if known else None

    def mean_slowness(self, usual: float) -> float:
        """Return mean probe time / `usual` (s)."""
        return float(self.seconds.mean()) / usual

    def slowness(self, instants: Seconds, usual: float) -> Seconds:
        """Return how many times as long as usual work took around some instants.

        The mean over a quarter of a second, or the nearest probe if none is in it. `usual` is the
        probe time of the machine that results are for, seconds.
        """
        sums = np.concatenate([[0.0], np.cumsum(self.seconds)])
        first = np.searchsorted(self.at, instants - _WINDOW / 2)
        end = np.searchsorted(self.at, instants + _WINDOW / 2)
        places = np.interp(instants, self.at, np.arange(len(self.at)))
        nearest = np.ceil(places - 0.5).astype(np.intp)  # of two equally near ones the earlier
        alone = end <= first
        first, end = np.where(alone, nearest, first), np.where(alone, nearest + 1, end)
        found: Seconds = (sums[end] - sums[first]) / (end - first) / usual
        return found

    def slowdowns(self, usual: float, start: float) -> tuple[Slowdown, ...]:
        """Return the speed as incidents of an experiment with one replica, unknown to policies.

        They begin at `start`, seconds, which becomes time 0; the last has no end.
        """
        count = max(1, int(np.ceil((self.at[-1] - start) / _WINDOW)))
        starts: Seconds = _WINDOW * np.arange(count, dtype=np.float64)
        found = self.slowness(starts + _WINDOW / 2 + start, usual)
        ends = [*starts[1:].tolist(), None]
        return tuple(
            Slowdown(replica=0, at=at, until=until, factor=factor)
            for at, until, factor in zip(starts.tolist(), ends, found.tolist(), strict=True)
        )
