"""Which k serves each batch size fastest, and the trials that show it.

A batch is held at a size by as many clients, who send their next request when the last one is
answered, on a server that drafts k tokens at every step; if ranks, stages or a decode pool divide
them, by as many for each. A server with a schedule by batch size does the same while its batch
stays at that size, so each k is tried in such a server, k = 0 included: look-ahead slots and the
drafter's memory are those of the longest draft.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from specsim.core.processes import LocalProcesses
from specsim.core.runner import Runner
from specsim.policies.static import Schedule
from specsim.profile.model_error import TimeError
from specsim.results.metrics import latency
from specsim.results.stability import Stability
from specsim.run.deployment import Deployment
from specsim.run.simulate import simulate
from specsim.run.summary import Summary
from specsim.run.validity import Beyond
from specsim.study.loads import Loads, Trial, steady_window
from specsim.study.paired import SpeedUp, mean_and_half_width, speed_up

K = TypeVar("K")


@dataclass(frozen=True)
class Measurement:
    """The results that are kept of a trial."""

    time_per_token: float
    """1 / output throughput while all clients still have requests, seconds."""
    e2e_latency: float
    """Mean latency of the requests without the first two fifths and the last fifth, in which the
    server fills up or empties; seconds."""
    mean_batch_size: float  # sequences per step that decodes, over the time of `time_per_token`
    mean_output_len: float  # tokens per request
    beyond: Beyond
    stability: Stability
    time_error: TimeError | None


class Trials(Runner):
    """Runs trials, each of them once."""

    def __init__(self, workers: int, on_progress: Callable[[int], None] | None = None) -> None:
        super().__init__(LocalProcesses(workers), on_progress)
        self._known: dict[tuple[str, int], Measurement] = {}

    def measure(self, groups: dict[K, list[Trial]]) -> dict[K, list[Measurement]]:
        new = {trial.key: trial for group in groups.values() for trial in group}
        new = {key: trial for key, trial in new.items() if key not in self._known}
        [measured] = self.run(_measure, [list(new.values())])
        self._known |= zip(new, measured, strict=True)
        return {name: [self._known[trial.key] for trial in group] for name, group in groups.items()}


def latency_ratio(baseline: list[Measurement], candidate: list[Measurement]) -> SpeedUp:
    """Return the speed-up of the mean latency, paired by replication."""
    return speed_up(
        [m.e2e_latency for m in baseline],
        [m.e2e_latency for m in candidate],
        (baseline[0].time_error, candidate[0].time_error),
    )


def _measure(trial: Trial) -> Measurement:
    summary = Summary(simulate(trial.experiment, requests=trial.requests()))
    tables = summary.tables
    requests, steps = tables.requests, tables.steps
    start, end = steady_window(requests, trial.experiment.workload.arrivals)
    is_steady = (steps["ended_at"] > start) & (steps["ended_at"] <= end)
    pools = trial.experiment.pools
    decodes = is_steady
    if pools:
        decodes = is_steady & (tables.step_replicas < pools.decode.slots)
    fifth = len(requests) // 5
    return Measurement(
        time_per_token=float((end - start) / steps["output_tokens"][is_steady].sum()),
        e2e_latency=float(latency(requests[2 * fifth : len(requests) - fifth]).mean()),
        mean_batch_size=float(steps["num_requests"][decodes].mean()),
        mean_output_len=float(requests["output_len"].mean()),
        beyond=summary.beyond,
        stability=summary.stability,
        time_error=summary.time_error,
    )


_UNMEASURED_ROUNDS = 3  # requests per client: two until batches are mixed, one at the end
_MIN_MEASURED = 100  # requests, and at least one per client


@dataclass(frozen=True)
class BatchPoint:
    """The trials of all k at one batch size."""

    batch_size: int
    measurements: list[list[Measurement]]  # by k from 0, then by replication

    @property
    def times(self) -> NDArray[np.float64]:
        """Time per output token, seconds, shape (k + 1, replications)."""
        return np.array([[m.time_per_token for m in group] for group in self.measurements])

    @property
    def gains(self) -> list[SpeedUp]:
        """Output throughput of each k relative to k = 0."""
        return [self.gain_over(k, 0) for k in range(len(self.measurements))]

    @property
    def best_k(self) -> int:
        """The fastest k, or the smallest k that cannot be told from it."""
        return best_k(np.log(self.times))

    @property
    def next_best_k(self) -> int:
        order = np.argsort(np.log(self.times).mean(axis=1), kind="stable").tolist()
        return int(next(k for k in order if k != self.best_k))

    @property
    def fastest_k(self) -> int:
        """The k of the highest mean throughput, even if it cannot be told from others."""
        return int(np.log(self.times).mean(axis=1).argmin())

    def gain_over(self, k: int, other: int) -> SpeedUp:
        """Return the output throughput of one k relative to another."""
        times = self.times
        errors = self.measurements[other][0].time_error, self.measurements[k][0].time_error
        return speed_up(times[other].tolist(), times[k].tolist(), errors)

    def requests_per_second(self, k: int) -> float:
        """Return the requests/s that a server with batches of this size answers."""
        group = self.measurements[k]
        return float(np.mean([1 / m.time_per_token / m.mean_output_len for m in group]))

    @property
    def mean_batch_size(self) -> float:
        """Sequences per step without drafts; below the batch size if the KV cache is full."""
        return float(np.mean([m.mean_batch_size for m in self.measurements[0]]))


@dataclass(frozen=True)
class BatchTuning:
    """The best k of every batch size."""

    points: list[BatchPoint]  # by batch size, from 1 to the largest that was reached
    beyond: list[BatchPoint]  # sizes that fit but were not reached, with what they measured
    ranges: tuple[tuple[int, int, int], ...]
    """(first batch size, last batch size, k), both inclusive; the last range ends at
    max_num_seqs."""
    max_num_seqs: int
    is_smoothed: bool
    """Whether noise made the best k rise with the batch size somewhere, which `ranges` smooth
    out."""


def tune_batches(loads: Loads, trials: Trials) -> BatchTuning:
    """Find the best k of every batch size."""
    max_num_seqs, largest = _largest_batch(loads)
    sizes = sorted({*(2**i for i in range(largest.bit_length()) if 2**i < largest), largest})
    points = _try_all(loads, trials, sizes)
    held = _num_held(points)
    ks, gains = _best_ks(points[:held])
    smooth = ks if all(a >= b for a, b in pairwise(ks)) else non_increasing(gains)
    ranges = _ranges(smooth, max_num_seqs)
    return BatchTuning(points[:held], points[held:], ranges, max_num_seqs, smooth != ks)


def _largest_batch(loads: Loads) -> tuple[int, int]:
    """Return max_num_seqs, and the largest batch per stage that also fits into the KV cache.

    At a random instant running requests are a length-biased sample, each half done on average.
    """
    deployment = Deployment.of(loads.experiment)
    engine = deployment.engine
    assert engine.max_num_seqs is not None
    assert engine.num_gpu_blocks is not None
    prompts, outputs = loads.sample.prompt_lens, loads.sample.output_lens
    held = float((outputs * (prompts + outputs / 2)).sum() / outputs.sum())
    held += loads.experiment.max_draft_len + engine.block_size / 2
    fitting = int(deployment.kv_capacity(int(held)) / held)
    limit = min(engine.max_num_seqs, engine.max_num_active_seqs or engine.max_num_seqs)
    return engine.max_num_seqs, max(1, min(limit, fitting) // loads.num_stages)


def _try_all(loads: Loads, trials: Trials, sizes: list[int]) -> list[BatchPoint]:
    loads.check_batches()
    ks, batches = range(loads.experiment.max_draft_len + 1), loads.num_batches
    groups = {}
    for size in sizes:
        count = _UNMEASURED_ROUNDS * size + max(_MIN_MEASURED, size)
        for k in ks:
            policy = Schedule(ranges=((1, size, k),))
            groups[size, k] = loads.closed_trials(policy, size * batches, count * batches)
    measured = trials.measure(groups)
    return [BatchPoint(size, [measured[size, k] for k in ks]) for size in sizes]


def _num_held(points: list[BatchPoint]) -> int:
    """Return how many points, from the first, had batches nearer to their size than to half of it.

    If clients wait for something else, such as a prefill pool or a LoRA slot, more clients make no
    larger batch, and all k would look alike.
    """
    few = (n for n, point in enumerate(points) if point.mean_batch_size < point.batch_size / 2**0.5)
    return max(1, next(few, len(points)))


def best_k(log_times: NDArray[np.float64]) -> int:
    """Return the smallest k that the paired 95 % interval does not tell from the fastest.

    `log_times` are logarithms of times per token, shape (k + 1, replications).
    """
    excess = log_times - log_times[log_times.mean(axis=1).argmin()]
    intervals = (mean_and_half_width(samples.tolist()) for samples in excess)
    return next(k for k, (mean, half) in enumerate(intervals) if half is not None and mean <= half)


def _best_ks(points: list[BatchPoint]) -> tuple[list[int], NDArray[np.float64]]:
    """Return the best k at every batch size, and the mean log gains over k = 0 behind them.

    Between simulated sizes, gains are interpolated over the logarithm of the size, per replication;
    the gains have shape (largest batch size, k + 1).
    """
    log_times = np.array([np.log(point.times) for point in points])
    log_times -= log_times[:, :1]
    if len(points) > 1:
        # Imported here: processes that run trials do not need it.
        from scipy.interpolate import PchipInterpolator

        known = np.log([point.batch_size for point in points])
        wanted = np.log(np.arange(1, points[-1].batch_size + 1))
        log_times = PchipInterpolator(known, log_times, axis=0)(wanted)
    return [best_k(table) for table in log_times], -log_times.mean(axis=2)


def non_increasing(gains: NDArray[np.float64]) -> list[int]:
    """Return the k of every batch size, never rising, with the greatest total gain.

    `gains`, shape (n, k + 1), are of batch sizes 1 to n, weighted by their share of a logarithmic
    axis.
    """
    ks = range(gains.shape[1])
    total = np.zeros(len(ks))
    choices: list[list[int]] = []
    for size, row in enumerate(gains, start=1):
        before = [k + int(total[k:].argmax()) for k in ks]  # the best k of the previous size
        choices.append(before)
        total = row / size + total[before]
    k = int(total.argmax())
    chosen = []
    for before in reversed(choices):
        chosen.append(k)
        k = before[k]
    return chosen[::-1]


def _ranges(ks: list[int], max_num_seqs: int) -> tuple[tuple[int, int, int], ...]:
    runs = [list(run) for _, run in groupby(enumerate(ks, start=1), key=lambda pair: pair[1])]
    ends = [*(run[-1][0] for run in runs[:-1]), max_num_seqs]
    return tuple((run[0][0], end, run[0][1]) for run, end in zip(runs, ends, strict=True))
