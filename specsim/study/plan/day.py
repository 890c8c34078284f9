"""Day: how many servers a day of changing load needs: fixed, by schedule, or autoscaled.

Nothing is simulated. A server keeps the limits at every instant at which its load is at most its
capacity; what changes is the number of servers, and starting one takes time.
"""

import re
from dataclasses import dataclass
from itertools import pairwise
from math import ceil, inf
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from specsim.autoscaling import Autoscaler
from specsim.autoscaling.targets import TargetConcurrency
from specsim.core.errors import ConfigError
from specsim.core.reading import short
from specsim.workload.readers import Row, TraceFile

_HOURS = 24
_COLUMNS = {  # of a table of the day, in lower case
    "hour": {"hour", "time", "hour of day"},
    "rate": {"rate", "qps", "rps", "requests s", "requests per second"},
}
_ENDINGS = (".csv", ".tsv", ".json", ".jsonl", ".parquet")
_CLOCK = re.compile(r"(\d{1,2}):([0-5]\d)(?::([0-5]\d)(?:\.0+)?)?")
_DEFAULTS: dict[str, float] = {
    name: Autoscaler.model_fields[name].default
    for name in ("interval_s", "start_up_s", "scale_in_delay_s", "tolerance")
}
_LOOK, START_UP = _DEFAULTS["interval_s"], _DEFAULTS["start_up_s"]
_STAYS = round(_DEFAULTS["scale_in_delay_s"] / _LOOK)  # looks for which fewer must do
_SEEN = TargetConcurrency.model_fields["window_s"].default / 2  # age of averages
BEHIND = START_UP + _LOOK + _SEEN
"""Seconds from a rise of the load until a server that was started for it serves."""
_STEEPEST = 3.0  # growth of the load until a server has started; for more, others must already run
_SEGMENT = 0.25  # hours for which the rate of an experiment is constant


class DayServers(NamedTuple):
    """How many servers there are over a day."""

    way: str
    least: int
    most: int
    server_hours: float


@dataclass(frozen=True)
class Day:
    """Load over a day, linear between the given hours, and from the last to the first."""

    hours: tuple[float, ...]  # from 0, ascending, below 24
    rates: tuple[float, ...]  # requests per second of the whole service

    @property
    def peak(self) -> float:
        return max(self.rates)

    def at(self, hours: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the rates at some hours, requests per second."""
        return np.interp(hours, self.hours, self.rates, period=_HOURS)

    @property
    def requests(self) -> float:
        return float(self._looks.mean()) * _HOURS * 3600

    @property
    def _looks(self) -> NDArray[np.float64]:
        """The rate at each look of an autoscaler, requests per second."""
        return self.at(np.arange(0.0, _HOURS, _LOOK / 3600))

    def headroom(self, capacity: float) -> float:
        """Return the factor of the load for which an autoscaler must keep servers.

        It covers the rise of the load until a server has started, and the tolerance of HPA. Loads
        that one server takes, and rises too steep to follow, do not count.
        """
        rates, rises = self._rises
        ahead = rises[(rates > capacity) & (rises <= _STEEPEST)].max(initial=1.0)
        return float(ahead) * (1 + _DEFAULTS["tolerance"])

    def floor(self, capacity: float) -> int:
        """Return the servers that must always run, because the load rises too steeply."""
        rates, rises = self._rises
        return self._needed(float(rates[rises > _STEEPEST].max(initial=0.0)), capacity)

    @property
    def _rises(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """The rate at each look, and its ratio to the rate that running servers started for."""
        rates = self._looks
        behind = np.roll(rates, ceil(BEHIND / _LOOK))
        return rates, np.divide(rates, behind, out=np.full_like(rates, inf), where=behind > 0)

    def fleets(self, capacity: float, spare: int) -> list[DayServers]:
        """Return the servers by way of scaling, for a capacity in requests/s; `spare` more always.

        By schedule, each hour has the servers for its highest load, started before it begins.
        Autoscaled is as Kubernetes' HPA does it, with the defaults of `specsim.autoscaling`.
        """
        fixed = self._needed(self.peak, capacity) + spare
        scheduled = self._scheduled(capacity) + spare
        around = pairwise([*scheduled.tolist(), int(scheduled[0])])  # the last hour, then the first
        starts = sum(max(0, after - before) for before, after in around)
        begun = starts * START_UP / 3600
        scaled = self._scaled(capacity) + spare
        return [
            DayServers("fixed", fixed, fixed, float(fixed * _HOURS)),
            DayServers("by schedule", *_ends(scheduled), float(scheduled.sum()) + begun),
            DayServers("autoscaled", *_ends(scaled), float(scaled.mean()) * _HOURS),
        ]

    @staticmethod
    def _needed(rate: float, capacity: float) -> int:
        return max(1, ceil(rate / capacity))

    def _scheduled(self, capacity: float) -> NDArray[np.int64]:
        own = np.array(self.hours)
        highest = []
        for hour in range(_HOURS):
            within = own[(own > hour) & (own < hour + 1)]
            highest.append(self.at(np.array([hour, hour + 1.0, *within])).max())
        return np.array([self._needed(rate, capacity) for rate in highest])

    def _scaled(self, capacity: float) -> NDArray[np.int64]:
        wanted = np.ceil(self._looks * self.headroom(capacity) / capacity)
        wanted = np.clip(wanted, self.floor(capacity), self._needed(self.peak, capacity))
        late = [np.roll(wanted, by) for by in range(_STAYS + 1)]
        most: NDArray[np.float64] = np.max(late, axis=0)
        return most.astype(np.int64)

    def segments(self, turns: float) -> list[list[float]]:
        """Return (seconds, sessions per second) for arrivals of kind ``piecewise``."""
        middles = np.arange(_SEGMENT / 2, _HOURS, _SEGMENT)
        return [[_SEGMENT * 3600, round(float(rate), 6)] for rate in self.at(middles) / turns]


def _ends(counts: NDArray[np.int64]) -> tuple[int, int]:
    return int(counts.min()), int(counts.max())


def read_day(text: str) -> Day:
    """Return the day in ``0:20,8:100,18:60``, or in a table with columns ``hour`` and ``rate``.

    Raises a SpecsimError if it is neither, or hours do not ascend.
    """
    if text.lower().removesuffix(".gz").endswith(_ENDINGS):
        return _checked(Path(text).name, *_of_table(Path(text)))
    try:
        pairs = [tuple(map(float, part.split(":"))) for part in text.split(",")]
        hours, rates = (list(column) for column in zip(*pairs, strict=True))
    except ValueError as error:
        raise ConfigError(
            f"--daily {text:.80}: should be hours and requests/s, such as 0:20,8:100,18:60, or a "
            "CSV file with columns hour and rate"
        ) from error
    return _checked(text, hours, rates)


def _of_table(path: Path) -> tuple[list[float], list[float]]:
    """Return hours, which may be ``06:30`` or ``06:30:15``, and rates of a table."""
    file = TraceFile(path)
    found: dict[str, str] = {}
    for name in file.columns:
        plain = re.sub(r"[\W_]+", " ", name.lower()).strip()
        for what in (what for what, names in _COLUMNS.items() if plain in names):
            if what in found:
                raise ConfigError(
                    f"--daily {path}: {found[what]} and {name} may both be the {what}; leave one "
                    "out, or rename it"
                )
            found[what] = name
    if found.keys() != _COLUMNS.keys():
        raise ConfigError(
            f"--daily {path}: needs the columns hour (from 0, or as 06:30) and rate (requests/s); "
            f"found: {', '.join(file.columns) or 'no row'}"
        )
    rows = list(file.objects("row") if file.container == "json" else file.rows())
    hours = [_hour(row, found["hour"]) for row in rows]
    return hours, [row.number(found["rate"]) for row in rows]


def _hour(row: Row, name: str) -> float:
    value = row.get(name)
    if ":" not in str(value):
        return row.number(name)
    clock = _CLOCK.fullmatch(str(value).strip())
    if clock is None:
        raise ConfigError(
            f"{row.place}: {name} = {short(value)} is no time of day, such as 06:30 or 06:30:15; "
            "correct or remove the row"
        )
    hours, minutes, seconds = (int(part or 0) for part in clock.groups())
    return hours + minutes / 60 + seconds / 3600


def _checked(text: str, hours: list[float], rates: list[float]) -> Day:
    rising = all(before < after for before, after in pairwise(hours))
    for rule, holds in (
        ("needs at least two hours", len(hours) > 1),
        ("hours must rise, from 0 and below 24",
         rising and all(0 <= hour < _HOURS for hour in hours)),
        ("requests/s must be at least 0, one above 0, all at most 1,000,000",
         all(0 <= rate < inf for rate in rates) and 0 < max(rates, default=0) <= 1e6),
    ):  # fmt: skip
        if not holds:
            raise ConfigError(f"--daily {text:.80}: {rule}")
    return Day(tuple(hours), tuple(rates))
