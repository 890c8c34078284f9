"""Validation: measured runs of real engines against their simulations."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specsim.core.version import __version__
from specsim.reality.validation.compose import Replaced, Replay, compose, composed_profile
from specsim.reality.validation.measured_run import STATISTICS, MeasuredLengths, MeasuredRun
from specsim.reality.validation.measured_table import read_table, select_rows, with_lengths
from specsim.reality.validation.prediction_errors import TableErrors
from specsim.reality.validation.run_folder import RunFolder, load_run
from specsim.reality.validation.table_replay import Prediction, Replayer, predict
from specsim.results.metrics import Requests, latency, latency_statistics, tpot, ttft
from specsim.run.summary import Summary, summarized

__all__ = [
    "METRICS", "STATISTICS", "MeasuredLengths", "MeasuredRun", "Prediction", "Replaced", "Replay",
    "Replayer", "RunFolder", "Statistic", "TableErrors", "Validation", "compose",
    "composed_profile", "load_run", "predict", "read_table", "replay", "select_rows", "validate",
    "with_lengths",
]  # fmt: skip

METRICS = {"ttft": ttft, "tpot": tpot, "latency": latency}
"""Latencies that are compared: name and function of a table of requests."""
_NUM_BINS = 20


@dataclass(frozen=True)
class Statistic:
    """One number, measured and simulated, seconds."""

    metric: str
    name: str
    measured: float
    simulated: float
    spread: float | None
    """Largest deviation of a repetition from the mean of all repetitions, as a share of that mean;
    None without repetitions."""

    @property
    def error(self) -> float:
        """(simulated - measured) / measured; NaN if measured is 0."""
        return (self.simulated - self.measured) / self.measured if self.measured else float("nan")

    def to_dict(self) -> dict[str, Any]:
        """Return plain values: milliseconds, and shares of 1."""
        return {
            "metric": self.metric,
            "statistic": self.name,
            "measured_ms": self.measured * 1e3,
            "simulated_ms": self.simulated * 1e3,
            "error": self.error,
            "spread": self.spread,
        }


@dataclass(frozen=True)
class Validation:
    """Validation: measured runs of real engines against their simulations."""

    folder: Path
    measured: Requests
    simulated: Requests
    statistics: list[Statistic]
    details: dict[str, Any]  # of the simulation: KV blocks, prefix hits, preemptions
    notes: list[str]
    num_runs: int

    @property
    def mean_error(self) -> float:
        return mean_error(self.statistics)

    @property
    def worst(self) -> Statistic:
        return max(self.statistics, key=lambda each: np.nan_to_num(abs(each.error)))

    def request_errors(self) -> dict[str, float]:
        """Return the mean absolute relative error over single requests (MAPE), by latency."""
        errors = {}
        for metric, of in METRICS.items():
            real, ours = of(self.measured), of(self.simulated)
            known = np.isfinite(real) & (real > 0)
            difference = np.abs(ours[known] - real[known]) / real[known]
            errors[metric] = float(difference.mean()) if known.any() else float("nan")
        return errors

    def throughput(self) -> list[dict[str, float]]:
        """Return output tokens per second over time, measured and simulated.

        The tokens of a request count as delivered evenly from its first to its last token.
        """
        end = max(run["ended_at"].max() for run in (self.measured, self.simulated))
        edges = np.linspace(0.0, end, _NUM_BINS + 1)
        series = [_tokens_until(run, edges) for run in (self.measured, self.simulated)]
        rates = [np.diff(tokens) / np.diff(edges) for tokens in series]
        names = ("start", "end", "measured", "simulated")
        rows = zip(*(each.tolist() for each in (edges[:-1], edges[1:], *rates)), strict=True)
        return [dict(zip(names, row, strict=True)) for row in rows]

    def to_dict(self) -> dict[str, Any]:
        """Return all fields as plain values: milliseconds, and shares of 1."""
        return {
            "specsim_version": __version__,
            "folder": str(self.folder),
            "num_requests": len(self.measured["arrived_at"]),
            "num_runs": self.num_runs,
            "mean_abs_error": self.mean_error,
            "statistics": [each.to_dict() for each in self.statistics],
            "request_mape": self.request_errors(),
            "throughput": self.throughput(),
            "simulation": self.details,
            "notes": self.notes,
        }


def validate(folder: Path, replaced: Replaced | None = None) -> Validation:
    """Simulate the measured run in a folder, with what is `replaced`, and compare them."""
    run = load_run(folder)
    return replay(run, compose(run, replaced or Replaced()))


def replay(run: RunFolder, composed: Replay) -> Validation:
    """Simulate a measured run and compare."""
    summary = summarized(composed.experiment, requests=composed.requests, profile=composed.profile)
    requests, deployment = summary.tables.requests, summary.run.deployment
    engine = deployment.engine
    drafts = _draft_counts(run, summary)
    return Validation(
        folder=run.path,
        measured=run.runs[0],
        simulated=requests,
        statistics=compare_runs(run.runs, requests),
        details={
            "profile": composed.experiment.profile,
            "replicas": composed.experiment.num_engines,
            "is_async": deployment.is_async,
            "num_gpu_blocks": engine.num_gpu_blocks,
            "block_size": engine.block_size,
            "max_num_seqs": engine.max_num_seqs,
            "max_num_batched_tokens": engine.max_num_batched_tokens,
            "num_steps": int(summary.tables.totals["steps"]),
            "prefix_hit_tokens": int(requests["cached_len"].sum()),
            "preemptions": int(requests["preemptions"].sum()),
            **drafts,
        },
        notes=[*composed.notes, *_notes_on(drafts), *_doubt_of_unit(run.runs[0])],
        num_runs=len(run.runs),
    )


def _draft_counts(run: RunFolder, summary: Summary) -> dict[str, dict[str, int]]:
    """Return counts of drafts, draft tokens and accepted tokens, measured and simulated; or {}."""
    if not any(run.accepted):
        return {}
    drafts = [draft for each in run.accepted for draft in each]
    sums = [len(drafts), sum(draft[1] for draft in drafts), sum(draft[2] for draft in drafts)]
    columns = ("drafts", "draft_tokens", "accepted_tokens")
    simulated = [int(summary.tables.requests[name].sum()) for name in columns]
    names = ("num_drafts", "draft_tokens", "accepted_tokens")
    return {
        "measured_drafts": dict(zip(names, sums, strict=True)),
        "simulated_drafts": dict(zip(names, simulated, strict=True)),
    }


_ANOTHER_LENGTH = 1.2  # ratio of mean draft lengths that is worth a warning


def _notes_on(drafts: dict[str, dict[str, int]]) -> list[str]:
    """Return a warning if the server's drafts were longer or shorter than the simulation's."""
    lens = [each["draft_tokens"] / max(1, each["num_drafts"]) for each in drafts.values()]
    if not lens or max(lens) <= _ANOTHER_LENGTH * min(lens):
        return []
    return [
        f"drafts had {lens[0]:.2f} tokens in the mean and have {lens[1]:.2f} in the simulation: "
        "meta.json does not say how long the server drafted (engine_kwargs.speculative_config, "
        "policy)"
    ]


_SLOW_TOKEN = 1.0  # seconds; slower tokens rather mean a wrong unit than a slow machine


def _doubt_of_unit(measured: Requests) -> list[str]:
    usual = np.nan_to_num(tpot(measured), nan=0.0)
    middle = float(np.median(usual[usual > 0])) if usual.any() else 0.0
    if middle <= _SLOW_TOKEN:
        return []
    return [f"the median TPOT is {middle:,.4g} s: are the times ms? They are taken as s"]


def compare_runs(runs: Sequence[Requests], simulated: Requests) -> list[Statistic]:
    """Return statistics of the first run and of its simulation, with the spread of all runs.

    Statistics that no request defines are left out.
    """
    ours = _statistics(simulated)
    measured = [_statistics(run) for run in runs]
    return [
        Statistic(metric, name, values[0], ours[metric, name], spread(values))
        for metric, name in measured[0]
        if not np.isnan((values := [each[metric, name] for each in measured])[0])
    ]


def _statistics(run: Requests) -> dict[tuple[str, str], float]:
    found: dict[tuple[str, str], float] = {}
    for metric, of in METRICS.items():
        values = of(run)
        is_known = bool(np.isfinite(values).any())
        in_ms = latency_statistics(values)
        found |= {
            (metric, name): in_ms[name] / 1e3 if is_known else float("nan") for name in STATISTICS
        }
    return found


def mean_error(statistics: Sequence[Statistic]) -> float:
    """Return the mean absolute error of all defined statistics; NaN if there is none."""
    sizes = [abs(each.error) for each in statistics if each.measured]
    return fmean(sizes) if sizes else float("nan")


def spread(values: Sequence[float]) -> float | None:
    """Return the largest distance from the mean as a share of it; None for a single value."""
    if len(values) < 2:
        return None
    mean = float(np.mean(values))
    return float(np.max(np.abs(np.array(values) - mean))) / mean if mean else None


def _tokens_until(run: Requests, edges: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return how many tokens were delivered until each instant, shape (n,)."""
    total = np.zeros(len(edges))
    columns = (run[name].tolist() for name in ("first_token_at", "ended_at", "output_len"))
    for first, last, tokens in zip(*columns, strict=True):
        span = max(last - first, 1e-9)
        total += 1.0 * (edges >= first) + (tokens - 1) * np.clip((edges - first) / span, 0, 1)
    return total
