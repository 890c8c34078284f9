"""Trials: the simulations that a tuning asks for, each run once, and what is kept of them."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from specsim.results.metrics import latency
from specsim.run.simulate import simulate
from specsim.run.summary import Summary
from specsim.study.loads import Trial, steady_window
from specsim.study.runner import LocalProcesses, Runner

__all__ = ["Measurement", "Trials"]


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

    def measure(self, groups: Iterable[list[Trial]]) -> list[list[Measurement]]:
        """Return the measurements of each group of trials, in their order.

        Raises:
            SpecsimError: A trial cannot be run.
        """
        keyed = [[(trial.key, trial) for trial in group] for group in groups]
        new = {key: trial for group in keyed for key, trial in group if key not in self._known}
        [measured] = self.run(_measure, [list(new.values())])
        self._known |= zip(new, measured, strict=True)
        return [[self._known[key] for key, _ in group] for group in keyed]


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
