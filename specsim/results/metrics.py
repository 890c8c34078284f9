"""Metrics: pure functions from the tables of a run to numbers.

Names and units are those of ``vllm bench serve`` (0.32.0 ``benchmarks/serve.py``): latencies in
milliseconds, throughput per second. Every latency is defined here and nowhere else. Three are per
token: ITL, the gap between two deliveries; TPOT, (last - first) / (n - 1) per request; and
`amortised_itl`, the gap divided among the tokens that it delivered.

The TPOT of a request with one output token is NaN, and statistics leave it out. Only where vLLM
counts it as 0 (goodput, the histogram of ``/metrics``) is it 0 here, too.
"""

import sys
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, Protocol, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from specsim.core.settings import Settings
from specsim.results.records import ReplicaRecords
from specsim.results.tables import RunTables, WeightedSample


class Slo(Settings):
    """Limits of latency; a request counts as good if it keeps all of them."""

    ttft_ms: float | None = Field(default=None, gt=0)
    """Time to first token."""
    tpot_ms: float | None = Field(default=None, gt=0)
    """Time per output token after the first."""
    e2el_ms: float | None = Field(default=None, gt=0)
    """End-to-end latency."""

    @model_validator(mode="after")
    def _check_not_empty(self) -> Self:
        if not self.model_dump(exclude_none=True):
            raise ValueError("names no limit; give ttft_ms, tpot_ms or e2el_ms")
        return self


PERCENTILES = (50, 90, 95, 99)

TITLES = {"ttft": "TTFT", "tpot": "TPOT", "itl": "ITL", "e2el": "E2E latency"}
"""Names of latencies in tables and charts."""
SHOWN = ("mean", "p50", "p90", "p99")  # statistics of latencies that tables and the report show

Seconds = NDArray[np.float64]


class Requests(Protocol):
    """A table of requests with columns by name: a structured array, or a table read from a file."""

    def __getitem__(self, name: str, /) -> NDArray[np.float64]:
        """Return a column of `specsim.results.tables.TABLE_FIELDS`, of shape (n,)."""
        ...


def ttft(requests: Requests) -> Seconds:
    """Return the time from arrival to the first token, seconds."""
    return requests["first_token_at"] - requests["arrived_at"]


def latency(requests: Requests) -> Seconds:
    """Return the time from arrival to the last token, seconds (vLLM's e2el)."""
    return requests["ended_at"] - requests["arrived_at"]


def queue_time(requests: Requests) -> Seconds:
    """Return the time from arrival to the first step, seconds."""
    return requests["scheduled_at"] - requests["arrived_at"]


def decode_time(requests: Requests) -> Seconds:
    """Return the time from the first token to the last, seconds."""
    return requests["ended_at"] - requests["first_token_at"]


def tpot(requests: Requests, *, of_one_token: float = np.nan) -> Seconds:
    """Return the time per output token after the first, s; `of_one_token` if there is none."""
    later = requests["output_len"] - 1
    return np.where(later > 0, decode_time(requests) / np.maximum(later, 1), of_one_token)


def latencies(requests: Requests) -> dict[str, Seconds]:
    """Return ``ttft``, ``tpot``, ``e2el`` and ``queue`` of each request, seconds."""
    return {
        "ttft": ttft(requests),
        "tpot": tpot(requests),
        "e2el": latency(requests),
        "queue": queue_time(requests),
    }


def token_latencies(tables: RunTables) -> dict[str, WeightedSample]:
    """Return ``itl`` per delivery and ``amortised_itl`` per token after the first delivery, s."""
    gaps = tables.gaps
    return {"itl": WeightedSample(gaps), "amortised_itl": WeightedSample(gaps, per_token=True)}


def latency_statistics(samples: Seconds | WeightedSample) -> dict[str, float]:
    """Return ``mean``, ``median``, ``std``, ``p50``, ``p90``, ``p95`` and ``p99``, milliseconds.

    `samples` are in seconds; NaN is left out. All statistics of no samples are 0, as in vLLM.
    """
    if isinstance(samples, np.ndarray):
        samples = samples[~np.isnan(samples)]
    if not len(samples):
        return dict.fromkeys(["mean", "median", "std", *(f"p{p}" for p in PERCENTILES)], 0.0)
    if isinstance(samples, WeightedSample):
        values = samples.percentiles(PERCENTILES)
    else:
        values = np.percentile(samples, PERCENTILES).tolist()
    named = {f"p{p}": value * 1e3 for p, value in zip(PERCENTILES, values, strict=True)}
    return {
        "mean": float(samples.mean()) * 1e3,
        "median": named["p50"],
        "std": float(samples.std()) * 1e3,
        **named,
    }


_QUANTILES = np.linspace(0.0, 1.0, 101)


def distributions(requests: Requests) -> dict[str, list[Any]]:
    """Return the percentiles 0 to 100 of each latency, ms; an empty list without values."""
    found = latencies(requests)
    known = {name: found[name][~np.isnan(found[name])] for name in ("ttft", "tpot", "e2el")}
    return {
        f"{name}_ms": short(np.quantile(values, _QUANTILES) * 1e3) if len(values) else []
        for name, values in known.items()
    }


def short(values: Seconds) -> list[Any]:
    """Return numbers rounded to six digits, for charts; None stands for NaN."""
    return [None if np.isnan(value) else float(f"{value:.6g}") for value in values.tolist()]


def throughput_metrics(tables: RunTables, slo: Slo | None) -> dict[str, float | int | None]:
    """Return counts and rates of a run under vLLM's names; goodput is None without limits."""
    requests = tables.requests
    start = float(requests["arrived_at"].min())
    duration = float(requests["ended_at"].max()) - start
    input_tokens = int(requests["prompt_len"].sum())
    output_tokens = int(requests["output_len"].sum())
    # Several replicas may deliver in the same second.
    _, places = np.unique(tables.seconds["second"], return_inverse=True)
    per_second = np.bincount(places, weights=tables.seconds["tokens"])
    return {
        "duration": duration,
        "completed": len(requests),
        "failed": 0,
        "total_input_tokens": input_tokens,
        "total_output_tokens": output_tokens,
        "request_throughput": len(requests) / duration,
        "request_goodput": None if slo is None else int(keeps_limits(tables, slo).sum()) / duration,
        "output_throughput": output_tokens / duration,
        "total_token_throughput": (input_tokens + output_tokens) / duration,
        "max_output_tokens_per_s": float(per_second.max()),
        "max_concurrent_requests": most_at_once(requests["arrived_at"], requests["ended_at"]),
    }


def keeps_limits(tables: RunTables, slo: Slo) -> NDArray[np.bool_]:
    """Return which requests kept all limits, shape (n,); the TPOT of one token keeps its limit."""
    kept = [samples <= limit for samples, limit in limited(tables.requests, slo).values()]
    return np.asarray(np.all(kept, axis=0), dtype=bool)


_LIMITED: dict[str, Callable[[Requests], Seconds]] = {
    "ttft_ms": ttft,
    "tpot_ms": partial(tpot, of_one_token=0.0),
    "e2el_ms": latency,
}


def limited(requests: Requests, slo: Slo) -> dict[str, tuple[Seconds, float]]:
    """Return each limited latency and its limit, milliseconds; the TPOT of one token is 0."""
    limits = slo.model_dump(exclude_none=True)
    return {name: (_LIMITED[name](requests) * 1e3, limit) for name, limit in limits.items()}


class LimitUse:
    """The share of their limits that requests use, read while a run goes on."""

    def __init__(self, records: Sequence[ReplicaRecords], slo: Slo | None) -> None:
        self._records = records
        self._slo = slo
        self._num_seen = [0] * len(records)

    def since_last(self) -> Seconds:
        """Return max(latency / limit) of each request that was recorded since the last call."""
        assert self._slo is not None
        found = [np.zeros(0)]
        for place, records in enumerate(self._records):
            for rows in records.request_chunks[self._num_seen[place] :]:
                uses = [samples / limit for samples, limit in limited(rows, self._slo).values()]
                found.append(np.max(uses, axis=0))
            self._num_seen[place] = len(records.request_chunks)
        return np.concatenate(found)


_FIRST_TURNS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 17, 33, 65, 129, 257)
"""First turn of each row of ``by_turn``: turns 1 to 8 have a row each, later ones share rows."""
_TURN_COLUMNS = (
    "turn", "arrived_at", "scheduled_at", "first_token_at", "ended_at", "prompt_len", "output_len",
    "cached_len",
)  # fmt: skip


def session_spans(requests: Requests) -> tuple[Seconds, Seconds]:
    """Return when each session's first turn arrived and when its last answer ended, seconds."""
    names, places = np.unique(requests["session"], return_inverse=True)
    starts, ends = np.full(len(names), np.inf), np.zeros(len(names))
    np.minimum.at(starts, places, requests["arrived_at"])
    np.maximum.at(ends, places, requests["ended_at"])
    return starts, ends


def session_metrics(requests: Requests) -> dict[str, Any]:
    """Return metrics of sessions, as wholes and turn by turn.

    ``duration_ms`` is the time from a session's first arrival to the end of its last answer;
    ``served_share`` the part of it in which an answer was pending (the rest is think time and
    tools); ``hit_share`` the share of prompt tokens found in the prefix cache.
    """
    starts, ends = session_spans(requests)
    turns, total = requests["turn"], float((ends - starts).sum())
    served = float(latency(requests).sum()) - _waited_for_again(requests)
    of_turns = [
        {name: requests[name][mine] for name in _TURN_COLUMNS}
        for first, beyond in pairwise((*_FIRST_TURNS, sys.maxsize))
        if (mine := (turns >= first) & (turns < beyond)).any()
    ]
    return {
        "count": len(starts),
        "mean_turns": len(turns) / len(starts),
        "duration_ms": latency_statistics(ends - starts),
        "served_share": served / total if total else 1.0,
        "by_turn": list(map(_turn_row, of_turns)),
    }


def _waited_for_again(requests: Requests) -> float:
    """Return the part of latencies, s, in which an agent still waited for an earlier turn, too."""
    again, until = 0.0, dict[int, float]()
    names = ("session", "arrived_at", "ended_at")
    order = np.argsort(requests["arrived_at"], kind="stable")
    columns = (requests[name][order].tolist() for name in names)
    for session, start, end in zip(*columns, strict=True):
        before = until.get(session, start)
        again += max(0.0, min(before, end) - start)
        until[session] = max(before, end)
    return again


def _turn_row(requests: dict[str, Any]) -> dict[str, float]:
    found = {kind: latency_statistics(latencies(requests)[kind]) for kind in ("ttft", "tpot")}
    return {
        "turn": int(requests["turn"].min()),
        "requests": len(requests["turn"]),
        "hit_share": float(requests["cached_len"].sum() / requests["prompt_len"].sum()),
        **{f"{name}_{kind}_ms": found[kind][name] for kind in found for name in ("mean", "p99")},
    }


def most_at_once(starts: Seconds, ends: Seconds) -> int:
    """Return how many intervals overlap at most; one that ends as another begins does not."""
    ended = np.searchsorted(np.sort(ends), np.sort(starts), side="right")
    return int((np.arange(1, len(starts) + 1) - ended).max())


def speculation_metrics(tables: RunTables, most_positions: int) -> dict[str, Any]:
    """Return the metrics of speculation under vLLM's names; empty if nothing was drafted.

    vLLM's counters leave out steps without a draft, so ``spec_decode_acceptance_length``, 1 +
    accepted / drafts, is not the number of tokens per step. The acceptance rate is in percent;
    rates by position are unconditional, in [0, 1].

    Args:
        most_positions: Longest draft, tokens; for trees, of a path.
    """
    outcomes = tables.outcomes  # (drafted, accepted)
    drafts = int(outcomes.sum())
    if not drafts:
        return {}
    lens = np.arange(len(outcomes))
    draft_tokens = int(outcomes.sum(axis=1) @ lens)
    accepted_tokens = int(outcomes.sum(axis=0) @ lens)
    reached = outcomes.sum(axis=0)[::-1].cumsum()[::-1]  # drafts that accepted >= j
    rates = reached[1 : most_positions + 1] / drafts
    return {
        "spec_decode_acceptance_rate": 100.0 * accepted_tokens / draft_tokens,
        "spec_decode_acceptance_length": 1.0 + accepted_tokens / drafts,
        "spec_decode_num_drafts": drafts,
        "spec_decode_draft_tokens": draft_tokens,
        "spec_decode_accepted_tokens": accepted_tokens,
        "spec_decode_per_position_acceptance_rates": rates.tolist(),
    }


def time_shares(tables: RunTables) -> dict[str, float]:
    """Return the shares of target, drafting and overhead in the sum of their times.

    Overhead counts in full, even where asynchronous scheduling hides it behind the GPU's work.
    """
    sums = {name: float(tables.totals[f"{name}_time"]) for name in ("target", "draft", "overhead")}
    total = sum(sums.values())
    return {name: value / total for name, value in sums.items()}
