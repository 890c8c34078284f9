"""describe: what a workload looks like, in a few numbers."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from specsim.workload.trace import Trace, mean_rate

_WINDOW = 10.0


@dataclass(frozen=True)
class LengthSummary:
    """Lengths of prompts or of outputs, tokens."""

    total: int
    mean: float
    std: float
    quantiles: dict[str, float]  # ``min``, ``p10``, ``p50``, ``p90``, ``p99``, ``max``


@dataclass(frozen=True)
class TraceDescription:
    """A workload in a few numbers."""

    format: str
    num_requests: int
    num_dropped: int  # rows of failed requests, left out
    num_sessions: int | None  # None if no turn waits for another
    note: str
    duration: float | None  # seconds from the first arrival to the last; None without arrivals
    mean_rate: float | None  # requests per second
    peak_rate: float | None  # requests per second in the busiest ten seconds
    burstiness: float | None
    """Shape of the gamma distribution with the spread of the gaps: 1 is Poisson, less is burstier
    (the meaning of ``vllm bench serve``)."""
    prompt: LengthSummary
    output: LengthSummary
    reused_prefix_share: float | None
    """Share of the prompt tokens whose whole prefix came before in the trace; None if the trace
    has neither token ids nor prefix ids."""
    recorded_acceptance: tuple[str, ...]  # proposers whose accepted lengths the trace carries


def describe(trace: Trace) -> TraceDescription:
    """Return a description of a workload."""
    arrivals = trace.arrived_at
    duration = None if arrivals is None else float(arrivals[-1])
    spread = arrivals if duration else None
    return TraceDescription(
        format=trace.format,
        num_requests=len(trace),
        num_dropped=trace.num_dropped,
        num_sessions=None if trace.sessions is None else trace.num_sessions,
        note=trace.note,
        duration=duration,
        mean_rate=None if spread is None else mean_rate(spread),
        peak_rate=None if spread is None else _peak_rate(spread),
        burstiness=None if spread is None else _burstiness(spread),
        prompt=_summary(trace.prompt_lens),
        output=_summary(trace.output_lens),
        reused_prefix_share=_reused_share(trace),
        recorded_acceptance=tuple(trace.recorded_lens),
    )


def _summary(lens: NDArray[np.int64]) -> LengthSummary:
    names = ("min", "p10", "p50", "p90", "p99", "max")
    values = np.quantile(lens, (0.0, 0.1, 0.5, 0.9, 0.99, 1.0))
    return LengthSummary(
        total=int(lens.sum()),
        mean=float(lens.mean()),
        std=float(lens.std()),
        quantiles={name: float(value) for name, value in zip(names, values, strict=True)},
    )


def _peak_rate(arrivals: NDArray[np.float64]) -> float:
    ends = np.searchsorted(arrivals, arrivals + _WINDOW, side="left")
    return float((ends - np.arange(len(arrivals))).max() / min(_WINDOW, arrivals[-1]))


def _burstiness(arrivals: NDArray[np.float64]) -> float | None:
    gaps = np.diff(arrivals)
    spread = gaps.var()
    return float(gaps.mean() ** 2 / spread) if spread > 0 else None


def _reused_share(trace: Trace) -> float | None:
    if trace.prompt_token_ids is None and trace.prefix_ids is None:
        return None
    seen: set[object] = set()
    reused = 0
    for request in trace.requests():
        size = request.prefix_ids.block_size if request.prefix_ids else 16
        keys = request.block_keys(size)[: request.prompt_len // size]
        hits = next((number for number, key in enumerate(keys) if key not in seen), len(keys))
        reused += hits * size
        seen.update(keys)
    return reused / int(trace.prompt_lens.sum())
