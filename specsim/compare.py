"""Compare policies on identical luck.

Every policy meets the same requests at the same times, and a draft token at a given output
position survives for all of them or for none. So the difference between two policies is paired,
replication by replication, and its confidence interval is narrow.
"""

import re
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np
from scipy.special import stdtrit

from specsim.errors import ConfigError
from specsim.experiment import Experiment
from specsim.policies import POLICIES, Policy
from specsim.policies.off import Off
from specsim.settings import validated
from specsim.simulate import simulate
from specsim.summary import Summary

__all__ = [
    "Comparison",
    "PolicyResult",
    "SpeedUp",
    "compare",
    "folder_name",
    "parse_policies",
    "speed_up",
]


@dataclass(frozen=True)
class SpeedUp:
    """How many times faster than the baseline, with a paired 95 % confidence interval."""

    mean: float
    """Geometric mean over the replications."""
    low: float | None
    """None with a single replication, which says nothing about spread."""
    high: float | None


@dataclass(frozen=True)
class PolicyResult:
    """One policy over all replications."""

    label: str
    policy: Policy
    summaries: list[dict[str, Any]]
    """As in ``summary.json``, one per replication."""
    speed_up: SpeedUp
    """Of the mean end-to-end latency over no speculation."""

    def mean(self, field: str) -> float:
        """Return the mean of a field of the summaries; nan where a summary lacks it."""
        values = [summary.get(field) for summary in self.summaries]
        return fmean(float("nan") if value is None else value for value in values)

    @property
    def is_unstable(self) -> bool:
        """Whether any replication could not keep up with its arrivals."""
        return any(summary["specsim"]["unstable"] for summary in self.summaries)

    @property
    def warnings(self) -> list[str]:
        """Warnings of the first replication."""
        return list(self.summaries[0]["specsim"]["warnings"])


@dataclass(frozen=True)
class Comparison:
    """All policies, the baseline first."""

    results: list[PolicyResult]
    num_replications: int

    def to_dict(self) -> dict[str, Any]:
        """Return the comparison as plain values: per policy its speed-up and all summaries."""
        return {
            result.label: {"speed_up": asdict(result.speed_up), "summaries": result.summaries}
            for result in self.results
        }


def parse_policies(texts: list[str]) -> dict[str, Policy]:
    """Return policies by their short forms, no speculation first.

    Parameters
    ----------
    texts : list of str
        Such as ``static:k=3``.

    Returns
    -------
    dict of str to Policy

    Raises
    ------
    ConfigError
        A policy is unknown or a field of it wrong.
    """
    policies: dict[str, Policy] = {"off": Off()}
    for text in texts:
        with validated(f"--policies {text}", ConfigError):
            policies[text] = POLICIES.parse(text)
    return policies


def compare(
    experiment: Experiment,
    policies: dict[str, Policy],
    *,
    replications: int,
    workers: int = 1,
    folder: Path | None = None,
    on_progress: Callable[[int], None] | None = None,
) -> Comparison:
    """Run every policy on the same requests and the same luck.

    Parameters
    ----------
    experiment : Experiment
        Its policy is replaced; replication i runs with seed ``experiment.seed + i``. If a policy
        needs synchronous scheduling, all of them run with it.
    policies : dict of str to Policy
        By label; must contain ``off``, the baseline.
    replications : int
    workers : int
        Processes; the results do not depend on their number.
    folder : Path or None
        Where to save the results of replication 0, one folder per policy.
    on_progress : callable, optional
        Told the number of runs that have ended.

    Returns
    -------
    Comparison

    Raises
    ------
    SpecsimError
        A policy cannot be run with this experiment.
    """
    if any(policy.needs_sync for policy in policies.values()):
        # All policies on one engine: not some with synchronous scheduling and some without.
        engine = experiment.engine.model_copy(update={"async_scheduling": False})
        experiment = experiment.replace(engine=engine)
    tasks = [
        (
            experiment.replace(policy=policy, seed=experiment.seed + number),
            folder / folder_name(label) if folder and number == 0 else None,
        )
        for label, policy in policies.items()
        for number in range(replications)
    ]
    summaries: list[dict[str, Any]] = []
    for summary in _run_all(tasks, workers):
        summaries.append(summary)
        if on_progress is not None:
            on_progress(len(summaries))
    groups = {
        label: summaries[start : start + replications]
        for label, start in zip(policies, range(0, len(tasks), replications), strict=True)
    }
    baseline = [summary["mean_e2el_ms"] for summary in groups["off"]]
    return Comparison(
        [
            PolicyResult(
                label,
                policies[label],
                group,
                speed_up(baseline, [summary["mean_e2el_ms"] for summary in group]),
            )
            for label, group in groups.items()
        ],
        replications,
    )


def folder_name(label: str) -> str:
    """Return the label of a policy as the name of a folder."""
    return re.sub(r"[^A-Za-z0-9.=_-]+", "-", label)


Task = tuple[Experiment, Path | None]


def _run_all(tasks: list[Task], workers: int) -> Iterator[dict[str, Any]]:
    if min(workers, len(tasks)) <= 1:
        yield from map(_run_one, tasks)
        return
    with ProcessPoolExecutor(min(workers, len(tasks))) as pool:
        yield from pool.map(_run_one, tasks)


def _run_one(task: Task) -> dict[str, Any]:
    experiment, folder = task
    summary = Summary(simulate(experiment))
    if folder is not None:
        summary.save(folder)
    return summary.data


def speed_up(baseline: list[float], candidate: list[float]) -> SpeedUp:
    """Return the paired speed-up of latencies over those of a baseline.

    Parameters
    ----------
    baseline, candidate : list of float
        Mean latency of each replication, in the same order.

    Returns
    -------
    SpeedUp
        Geometric mean of the ratios, and its 95 % interval by Student's t on their logarithms.
    """
    pairs = zip(baseline, candidate, strict=True)
    logs = [float(np.log(before / after)) for before, after in pairs]
    mean = fmean(logs)
    if len(logs) < 2:
        return SpeedUp(float(np.exp(mean)), None, None)
    half_width = float(stdtrit(len(logs) - 1, 0.975)) * stdev(logs) / len(logs) ** 0.5
    return SpeedUp(*(float(np.exp(mean + shift)) for shift in (0.0, -half_width, half_width)))
