"""Limits of latencies, and the share of the requests that must keep them, singly or together."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from math import floor
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from specsim.core.errors import ConfigError
from specsim.core.figures import figures
from specsim.core.settings import nearest, validated
from specsim.results.metrics import Slo

ALL = "all"
"""Name of the promise for all limits without a share of their own."""


_ROUNDING = 1e-12  # lets 7 of 100 requests miss at 93 %, though 1 - 0.07 is below 0.93


class Promise(NamedTuple):
    """The share of the requests that must keep one limit, or several of them together."""

    missed: float  # share of the requests that missed it
    share: float  # share of the requests that must keep it

    @property
    def is_kept(self) -> bool:
        return 1.0 - self.missed >= self.share - _ROUNDING


@dataclass(frozen=True)
class LatencyLimits:
    """Limits of latencies, and the shares of the requests that must keep them."""

    ms: Mapping[str, float]  # by name, such as ``ttft_ms``
    attainment: float  # share that must keep all limits without a share of their own
    shares: Mapping[str, float]  # shares by limit

    def share_of(self, limit: str) -> float:
        return self.shares.get(limit, self.attainment)

    def percentile_of(self, limit: str) -> str:
        """Return the percentile of a latency that is compared with its limit, such as ``p90``."""
        return f"p{100 * self.share_of(limit):.10g}"

    @property
    def _together(self) -> list[str]:
        return [name for name in self.ms if name not in self.shares]

    def promises(self, missed: Mapping[str, NDArray[np.bool_]]) -> dict[str, Promise]:
        """Return each promise, given which requests missed each limit, arrays of shape (n,)."""
        own = {
            name: Promise(float(missed[name].mean()), self.shares[name])
            for name in self.ms
            if name in self.shares
        }
        together = [missed[name] for name in self._together]
        if not together:
            return own
        return {ALL: Promise(float(np.any(together, axis=0).mean()), self.attainment), **own}

    @property
    def words(self) -> str:
        """Text such as ``99 % of the requests within TTFT 500 ms and TPOT 50 ms``, per share."""
        own = [(share, [name]) for name, share in self.shares.items()]
        return ", ".join(
            f"{100 * share:.10g} % of the requests within "
            + " and ".join(f"{metric_name(name)} {figures(self.ms[name], 6)} ms" for name in names)
            for share, names in [(self.attainment, self._together), *own]
            if names
        )

    def kept_words(self, kept: Mapping[str, float]) -> str:
        """Return text with the share of the requests that keeps each limit, and the share required.

        Args:
            kept: Shares by limit; those of limits without own shares are under one other name.
        """
        parts = []
        for promise, share in kept.items():
            names = [promise] if promise in self.shares else self._together
            text = LatencyLimits({name: self.ms[name] for name in names}, floored(share), {}).words
            text = text.replace("requests within", "requests are within")
            parts.append(f"{text} ({100 * self.share_of(promise):.10g} % must be)")
        return ", ".join(parts)


def metric_name(limit: str) -> str:
    """Return ``TTFT`` for ``ttft_ms``."""
    return limit.removesuffix("_ms").upper()


def floored(share: float) -> float:
    """Return a share rounded down to 0.01 %, so that 98.998 % does not read as a kept 99 %."""
    return floor(share * 1e4 + 1e-9) / 1e4


_RESOURCES = {"kv_memory": "KV memory", "step_time": "steps"} | {
    option: option for option in ("max_num_seqs", "max_loras")
}


def binding_words(binds: str | None, resource: str | None) -> str:
    """Return text such as ``TTFT (max_num_seqs)``: what is missed first, and its cause."""
    if binds is None:
        return "-"
    what = binds if binds == "backlog" else metric_name(binds)
    resource = resource or "step_time"
    return f"{what} ({_RESOURCES.get(resource, resource.replace('_', ' '))})"


class SloLimits(NamedTuple):
    """Limits as typed, and shares of the requests for limits that have their own."""

    slo: Slo
    shares: dict[str, float]  # by limit, such as ``ttft_ms``


_LIMIT = re.compile(
    r"(?P<metric>\w+?)(_ms)?([:_ -]?p(?P<percentile>\d+(\.\d+)?))?\s*(:|<=?)\s*"
    r"(?P<value>[-+.\de]+)\s*(?P<unit>ms|s)?"
)
_UNITS = {"ms": 1.0, "s": 1000.0}


def parse_slo(text: str | Slo) -> SloLimits:
    """Return the limits in ``ttft:500,tpot:p95<50ms``, ms; a ConfigError if one is wrong."""
    if isinstance(text, Slo):
        return SloLimits(text, {})
    known = [name.removesuffix("_ms") for name in Slo.model_fields]
    limits: dict[str, float | str] = {}
    shares: dict[str, float] = {}
    for part in text.split(","):
        found = _LIMIT.fullmatch(part.strip().lower())
        if found is None:
            raise ConfigError(
                f"--slo {text}: '{part.strip()}' is not METRIC:MILLISECONDS, as ttft:500 is, or "
                "METRIC:PERCENTILE<MILLISECONDS, as ttft:p90<800 or ttft:p90<0.8s is"
            )
        metric, name = found["metric"], f"{found['metric']}_ms"
        if metric not in known:
            raise ConfigError(f"--slo {text}: no metric '{metric}'; {nearest(metric, known)}")
        if name in limits:
            raise ConfigError(f"--slo {text}: '{metric}' is given twice; leave it out once")
        limits[name] = _milliseconds(found["value"], found["unit"])
        if found["percentile"] is not None:
            shares[name] = float(found["percentile"]) / 100
            if not 0.01 <= shares[name] <= 1:  # p0.9 may mean p90
                raise ConfigError(
                    f"--slo {text}: p{found['percentile']} must be from p1 to p100, as p90 is: "
                    "90 % of the requests"
                )
    with validated(f"--slo {text}", ConfigError):
        return SloLimits(Slo.model_validate(limits), shares)


def _milliseconds(value: str, unit: str | None) -> float | str:
    """Return a time in milliseconds; text that is no number is returned as it is."""
    try:
        return float(value) * _UNITS[unit or "ms"]
    except ValueError:
        return value
