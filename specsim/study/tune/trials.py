"""Trials: the simulations that a tuning asks for, each run once, and what is kept of them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from specsim.results.metrics import latency
from specsim.run.simulate import simulate
from specsim.run.summary import Summary
from specsim.study.loads import Trial, steady_window
from specsim.study.paired import SpeedUp, speed_up
from specsim.study.runner import LocalProcesses, Runner

K = TypeVar("K")


@dataclass(frozen=True)
class Measurement:
    """What is kept of a trial."""

    time_per_token: float
    """Inverse of the output throughput while no client has run out of requests, seconds."""
    e2e_latency: float
    """Mean over the requests but for the first two fifths and the last, which meet a server that
    fills up or drains; seconds."""
    mean_batch_size: float
    """Sequences per step over the same time as `time_per_token`."""
    mean_output_len: float
    """Tokens per request."""
    context_tokens: int
    """Of the largest step."""
    batched_tokens: int
    """Of the largest step."""


class Trials(Runner):
    """Runs trials, each once."""

    def __init__(self, workers: int, on_progress: Callable[[int], None] | None = None) -> None:
        super().__init__(LocalProcesses(workers), on_progress)
        self._known: dict[tuple[str, int], Measurement] = {}

    def measure(self, groups: dict[K, list[Trial]]) -> dict[K, list[Measurement]]:
        """Return the measurements of each group of trials, such as those of one k at one load."""
        new = {trial.key: trial for group in groups.values() for trial in group}
        new = {key: trial for key, trial in new.items() if key not in self._known}
        [measured] = self.run(_measure, [list(new.values())])
        self._known |= zip(new, measured, strict=True)
        return {name: [self._known[trial.key] for trial in group] for name, group in groups.items()}


def latency_ratio(baseline: list[Measurement], candidate: list[Measurement]) -> SpeedUp:
    """Return the speed-up of the mean latency, paired by replication."""
    return speed_up([m.e2e_latency for m in baseline], [m.e2e_latency for m in candidate])


def _measure(trial: Trial) -> Measurement:
    tables = Summary(simulate(trial.experiment, requests=trial.requests())).tables
    requests, steps = tables.requests, tables.steps
    start, end = steady_window(requests, trial.experiment.workload.arrivals)
    is_steady = (steps["ended_at"] > start) & (steps["ended_at"] <= end)
    fifth = len(requests) // 5
    return Measurement(
        time_per_token=float((end - start) / steps["output_tokens"][is_steady].sum()),
        e2e_latency=float(latency(requests[2 * fifth : len(requests) - fifth]).mean()),
        mean_batch_size=float(steps["num_requests"][is_steady].mean()),
        mean_output_len=float(requests["output_len"].mean()),
        context_tokens=int(steps["context_tokens"].max()),
        batched_tokens=int(steps["batched_tokens"].max()),
    )
