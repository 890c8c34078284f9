"""Metrics: pure functions from the tables of a run to numbers.

Names and units are those of ``vllm bench serve`` (0.32.0 ``benchmarks/serve.py``): latencies in
milliseconds, throughput per second. Three per-token latencies are different things, and all are
given: ITL, the gap between two deliveries; TPOT, (last - first) / (n - 1) per request; and the gap
shared out among the tokens that it delivered (`amortised_itl`).
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from specsim.results.slo import Slo
from specsim.results.tables import RunTables
from specsim.results.weighted import WeightedSample

__all__ = [
    "PERCENTILES",
    "keeps_limits",
    "latencies",
    "latency_statistics",
    "speculation_metrics",
    "throughput_metrics",
    "time_shares",
    "token_latencies",
]

PERCENTILES = (50, 90, 95, 99)


def latencies(tables: RunTables) -> dict[str, NDArray[np.float64]]:
    """Return the latencies of the requests of a run.

    Returns:
        ``ttft``, ``e2el`` and ``queue`` per request, ``tpot`` per request with more than one token,
        in seconds.
    """
    requests = tables.requests
    several = requests["output_len"] > 1
    decode_time = (requests["ended_at"] - requests["first_token_at"])[several]
    return {
        "ttft": requests["first_token_at"] - requests["arrived_at"],
        "tpot": decode_time / (requests["output_len"][several] - 1),
        "e2el": requests["ended_at"] - requests["arrived_at"],
        "queue": requests["scheduled_at"] - requests["arrived_at"],
    }


def token_latencies(tables: RunTables) -> dict[str, WeightedSample]:
    """Return the latencies of the deliveries and of the tokens of a run.

    Returns:
        ``itl`` per delivery after the first, ``amortised_itl`` per token after the first delivery,
        in seconds.
    """
    gaps = tables.gaps
    return {
        "itl": WeightedSample(gaps),
        "amortised_itl": WeightedSample(gaps, per_token=True),
    }


def latency_statistics(samples: NDArray[np.float64] | WeightedSample) -> dict[str, float]:
    """Return mean, median, standard deviation and percentiles, in milliseconds.

    Args:
        samples: In seconds.

    Returns:
        ``mean``, ``median``, ``std``, ``p50``, ``p90``, ``p95`` and ``p99``; 0 without samples, as
        in vLLM.
    """
    if not len(samples):
        return dict.fromkeys(["mean", "median", "std", *(f"p{p}" for p in PERCENTILES)], 0.0)
    if isinstance(samples, WeightedSample):
        values = [samples.percentile(percent) for percent in PERCENTILES]
    else:
        values = np.percentile(samples, PERCENTILES).tolist()
    named = {f"p{p}": value * 1e3 for p, value in zip(PERCENTILES, values, strict=True)}
    return {
        "mean": float(samples.mean()) * 1e3,
        "median": named["p50"],
        "std": float(samples.std()) * 1e3,
        **named,
    }


def throughput_metrics(tables: RunTables, slo: Slo | None) -> dict[str, float | int | None]:
    """Return counts and rates of a run, under vLLM's names.

    Args:
        slo: For ``request_goodput``: requests per second that keep all limits; None without limits.
    """
    requests = tables.requests
    start = float(requests["arrived_at"].min())
    duration = float(requests["ended_at"].max()) - start
    input_tokens = int(requests["prompt_len"].sum())
    output_tokens = int(requests["output_len"].sum())
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
        "max_output_tokens_per_s": _max_tokens_per_second(tables.seconds),
        "max_concurrent_requests": _max_concurrent(requests),
    }


def keeps_limits(tables: RunTables, slo: Slo) -> NDArray[np.bool_]:
    """Return, for each request, whether it kept all limits.

    Returns:
        vLLM counts the TPOT of a one-token answer as 0, so that it keeps that limit, of shape (n,).
    """
    requests = tables.requests
    ttft = requests["first_token_at"] - requests["arrived_at"]
    decode_time = requests["ended_at"] - requests["first_token_at"]
    tpot = decode_time / np.maximum(requests["output_len"] - 1, 1)
    good = np.ones(len(requests), dtype=bool)
    for samples, limit_ms in (
        (ttft, slo.ttft_ms),
        (tpot, slo.tpot_ms),
        (ttft + decode_time, slo.e2el_ms),
    ):
        if limit_ms is not None:
            good &= samples * 1e3 <= limit_ms
    return good


def _max_tokens_per_second(seconds: NDArray[np.void]) -> float:
    # Several replicas deliver in the same second.
    _, places = np.unique(seconds["second"], return_inverse=True)
    return float(np.bincount(places, weights=seconds["tokens"]).max())


def _max_concurrent(requests: NDArray[np.void]) -> int:
    arrivals, ends = np.sort(requests["arrived_at"]), np.sort(requests["ended_at"])
    ended = np.searchsorted(ends, arrivals, side="right")  # at one instant, ends before arrivals
    return int((np.arange(1, len(arrivals) + 1) - ended).max())


def speculation_metrics(tables: RunTables) -> dict[str, Any]:
    """Return what speculation achieved, under vLLM's names; nothing if there was none.

    vLLM's counters leave out steps without a draft, so ``spec_decode_acceptance_length``,
    1 + accepted / drafts, is not the number of tokens per step.

    Returns:
        Acceptance rate in percent, per-position rates unconditional in [0, 1].
    """
    outcomes = tables.outcomes  # (drafted, accepted)
    drafts = int(outcomes.sum())
    if not drafts:
        return {}
    lens = np.arange(len(outcomes))
    draft_tokens = int(outcomes.sum(axis=1) @ lens)
    accepted_tokens = int(outcomes.sum(axis=0) @ lens)
    reached = outcomes.sum(axis=0)[::-1].cumsum()[::-1]  # drafts that accepted at least j
    return {
        "spec_decode_acceptance_rate": 100.0 * accepted_tokens / draft_tokens,
        "spec_decode_acceptance_length": 1.0 + accepted_tokens / drafts,
        "spec_decode_num_drafts": drafts,
        "spec_decode_draft_tokens": draft_tokens,
        "spec_decode_accepted_tokens": accepted_tokens,
        "spec_decode_per_position_acceptance_rates": (reached[1:] / drafts).tolist(),
    }


def time_shares(tables: RunTables) -> dict[str, float]:
    """Return how the engines' busy time divides.

    Returns:
        Shares of target forward passes, drafting and overhead; they add up to 1.
    """
    sums = {name: float(tables.totals[f"{name}_time"]) for name in ("target", "draft", "overhead")}
    total = sum(sums.values())
    return {name: value / total for name, value in sums.items()}
