"""Trials: the simulations that a tuning asks for, each run once, on any number of processes."""

from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from functools import lru_cache
from types import TracebackType
from typing import Self

import numpy as np
from numpy.typing import NDArray

from specsim.core.processes import worker_pool
from specsim.core.request import Request
from specsim.core.rng import generator
from specsim.run.experiment import Experiment
from specsim.run.simulate import Run, simulate
from specsim.run.summary import Summary
from specsim.workload import WorkloadConfig
from specsim.workload.arrivals import OpenArrivals
from specsim.workload.arrivals.closed_loop import ClosedLoop
from specsim.workload.arrivals.trace import TraceReplay
from specsim.workload.trace import Trace

__all__ = ["Measurement", "Recording", "Trial", "Trials"]


@dataclass(frozen=True)
class Recording:
    """Where a trial's requests come from, if they were recorded.

    Every replication starts at another row, so that replications differ by more than the luck of
    their drafts; after the last row comes the first.
    """

    workload: WorkloadConfig
    """The experiment's own."""
    seed: int
    """For lengths that were not recorded with the arrivals."""
    share: float
    """Part of the recording that lies before the first request, in [0, 1)."""

    def all_requests(self) -> Trace:
        """Return the whole recording."""
        return _all_requests(self.workload, self.seed)


@lru_cache(maxsize=1)
def _all_requests(workload: WorkloadConfig, seed: int) -> Trace:
    # Cached, for a process runs many trials on one file.
    if isinstance(workload.arrivals, TraceReplay):
        return workload.build(seed)
    assert workload.lengths is not None
    assert workload.lengths.num_rows is not None
    return workload.lengths.draw(generator(seed, "lengths"), workload.lengths.num_rows)


@dataclass(frozen=True)
class Trial:
    """One simulation."""

    experiment: Experiment
    recording: Recording | None = None

    @property
    def key(self) -> tuple[str, int]:
        """Identity: equal keys give the same measurement."""
        return self.experiment.hash, self.experiment.seed

    def requests(self) -> list[Request] | None:
        """Return the recorded requests; None where the experiment's workload draws them."""
        if self.recording is None:
            return None
        source, workload = self.recording.all_requests(), self.experiment.workload
        count, arrivals = workload.num_requests, workload.arrivals
        assert count is not None
        rows = (int(self.recording.share * len(source)) + np.arange(count)) % len(source)
        times = np.zeros(count)
        if isinstance(arrivals, TraceReplay):
            assert arrivals.rate is not None
            times = _replayed(source, rows, arrivals.rate)
        elif isinstance(arrivals, OpenArrivals):
            rng = generator(self.experiment.seed, "arrivals")
            times = arrivals.times(rng, count=count, duration=None)
        return list(source.take(rows).at_times(times).requests())


def _replayed(source: Trace, rows: NDArray[np.int64], rate: float) -> NDArray[np.float64]:
    """Return the recorded gaps between some rows, stretched to a mean rate."""
    assert source.arrived_at is not None
    gaps = np.diff(source.arrived_at)
    # No gap was recorded between the last row and the first.
    gaps = np.append(gaps, gaps.mean() if len(gaps) else 0.0)
    times = np.concatenate([[0.0], np.cumsum(gaps[rows[:-1]])])
    stretch = (len(rows) - 1) / rate / times[-1] if times[-1] > 0 else 1.0
    return times * float(stretch)


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


class Trials:
    """Runs trials, each once.

    A context manager: its processes end with the block.

    Args:
        workers: Processes; the measurements do not depend on their number.
        on_progress: Told the number of trials that have ended.
    """

    def __init__(self, workers: int, on_progress: Callable[[int], None] | None = None) -> None:
        self._workers = workers
        self._on_progress = on_progress
        self._known: dict[tuple[str, int], Measurement] = {}
        self._resources = ExitStack()
        self._pool: ProcessPoolExecutor | None = None

    def __enter__(self) -> Self:
        if self._workers > 1:
            self._pool = self._resources.enter_context(worker_pool(self._workers))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None and self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
        self._resources.close()

    def run(self, trials: Iterable[Trial]) -> list[Measurement]:
        """Return the measurement of each trial.

        Returns:
            In their order.

        Raises:
            SpecsimError: A trial cannot be run.
        """
        keyed = [(trial.key, trial) for trial in trials]
        new = {key: trial for key, trial in keyed if key not in self._known}
        run_all = map if self._pool is None else self._pool.map
        results: Iterable[Measurement] = run_all(_measure, new.values())
        for key, measurement in zip(new, results, strict=True):
            self._known[key] = measurement
            if self._on_progress is not None:
                self._on_progress(len(self._known))
        return [self._known[key] for key, _ in keyed]


def _measure(trial: Trial) -> Measurement:
    run = simulate(trial.experiment, requests=trial.requests())
    tables = Summary(run).tables
    requests, steps = tables.requests, tables.steps
    start, end = _steady_window(run, requests)
    is_steady = (steps["ended_at"] > start) & (steps["ended_at"] <= end)
    fifth = len(requests) // 5
    latency = (requests["ended_at"] - requests["arrived_at"])[2 * fifth : len(requests) - fifth]
    return Measurement(
        time_per_token=float((end - start) / steps["output_tokens"][is_steady].sum()),
        e2e_latency=float(latency.mean()),
        mean_batch_size=float(steps["num_requests"][is_steady].mean()),
        mean_output_len=float(requests["output_len"].mean()),
        context_tokens=int(steps["context_tokens"].max()),
        batched_tokens=int(steps["batched_tokens"].max()),
    )


def _steady_window(run: Run, requests: NDArray[np.void]) -> tuple[float, float]:
    """Return from when to when all clients of a closed loop are busy, and their requests mixed.

    At first all are as young; once each client has been answered twice on average that has passed.
    """
    arrivals = run.experiment.workload.arrivals
    ends = np.sort(requests["ended_at"])
    if isinstance(arrivals, ClosedLoop) and len(requests) > 3 * arrivals.concurrency:
        return float(ends[2 * arrivals.concurrency - 1]), float(requests["arrived_at"].max())
    return float(requests["arrived_at"].min()), float(ends[-1])
