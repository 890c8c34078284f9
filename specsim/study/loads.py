"""Loads: how an experiment is run at batch sizes and loads other than its own."""

from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import ceil, inf, isinf

import numpy as np
from numpy.typing import NDArray

from specsim.acceptance.nested import Shift
from specsim.core.errors import ConfigError
from specsim.core.figures import percent
from specsim.core.request import Request
from specsim.core.rng import generator
from specsim.policies import Policy
from specsim.policies.static import Off, Static
from specsim.profile import load_profile
from specsim.run.experiment import Experiment
from specsim.study.paired import replicated
from specsim.workload import WorkloadConfig
from specsim.workload.arrivals import Arrivals, OpenArrivals, drawn_times
from specsim.workload.arrivals.patterns import ClosedLoop, TraceReplay
from specsim.workload.lengths import Lengths, drawn
from specsim.workload.lengths.distributions import ShiftedLengths, TraceRows
from specsim.workload.readers import read_named
from specsim.workload.trace import Trace, mean_rate

_SAMPLE = 2000  # requests from which mean lengths are estimated if lengths are drawn
_NORMAL = 1.96  # two-sided 95 %
_SPANS = 5.0  # sessions arrive for at least this many times the duration of one session


@dataclass(frozen=True)
class Recording:
    """A recorded trace as the source of a trial's requests.

    Each replication starts at another row, so that replications differ by more than the luck of
    their drafts; the first row follows the last. Turns of sessions do not wait for each other.
    """

    workload: WorkloadConfig  # the experiment's own
    seed: int  # for lengths that the trace does not have
    share: float  # part of the trace before the first request, in [0, 1)

    def all_requests(self) -> Trace:
        return _all_requests(self.workload, self.seed)


@lru_cache(maxsize=1)
def _all_requests(workload: WorkloadConfig, seed: int) -> Trace:
    # Cached: a process runs many trials of one file.
    if isinstance(workload.arrivals, TraceReplay):
        return workload.build(seed).without_sessions()
    assert workload.lengths is not None
    assert workload.lengths.num_rows is not None
    rows = workload.lengths.num_rows
    trace = drawn(workload.lengths, generator(seed, "lengths"), rows).without_sessions()
    return workload.completed(trace, seed)


@dataclass(frozen=True)
class Trial:
    """One simulation at some load with some policy."""

    experiment: Experiment
    recording: Recording | None = None

    @property
    def key(self) -> tuple[str, int]:
        """Identity of the trial: equal keys give the same measurement."""
        return self.experiment.hash, self.experiment.seed

    def requests(self) -> list[Request] | None:
        """Return the recorded requests; None if the experiment's workload draws them."""
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
            times = drawn_times(arrivals, rng, count=count)
        return list(source.take(rows).at_times(times).requests())


def _replayed(source: Trace, rows: NDArray[np.int64], rate: float) -> NDArray[np.float64]:
    """Return arrival times with the recorded gaps between `rows`, stretched to a mean `rate`."""
    assert source.arrived_at is not None
    gaps = np.diff(source.arrived_at)
    # There is no recorded gap between the last row and the first.
    gaps = np.append(gaps, gaps.mean() if len(gaps) else 0.0)
    times = np.concatenate([[0.0], np.cumsum(gaps[rows[:-1]])])
    stretch = (len(rows) - 1) / rate / times[-1] if times[-1] > 0 else 1.0
    return times * float(stretch)


def steady_window(requests: NDArray[np.void], arrivals: Arrivals) -> tuple[float, float]:
    """Return begin and end of the time in which a server's load is steady, seconds.

    In a closed loop, where all clients begin at once, it begins when each client has had two
    answers on average. It ends at the last arrival, after which clients finish one by one.
    """
    ends, arrived_at = np.sort(requests["ended_at"]), requests["arrived_at"]
    if isinstance(arrivals, ClosedLoop) and len(ends) > 3 * arrivals.concurrency:
        return float(ends[2 * arrivals.concurrency - 1]), float(arrived_at.max())
    return float(arrived_at.min()), float(ends[-1])


def fixed_policy(k: int) -> Policy:
    """Return the policy of a server that was started with k, or, for 0, without speculation."""
    return Static(k=k) if k else Off()


def check_steady(experiment: Experiment) -> None:
    """Raise a ConfigError if the load that a server sustains changes during a run.

    Incidents, autoscaling and the shift of an acceptance model would fall at other moments in runs
    of other loads and lengths; a shift of lengths amounts to two servers.
    """
    models, lengths = [experiment.acceptance], experiment.workload.lengths
    shifts = "workload.lengths" if isinstance(lengths, ShiftedLengths) else ""
    for model in filter(None, models):
        models += model.inner
        shifts = "acceptance" if isinstance(model, Shift) else shifts
    if shifts:
        raise ConfigError(
            f"{shifts}: a load cannot be looked for while requests change; look with what is "
            "'before' the shift and with what is 'after' it, each by itself"
        )
    if experiment.incidents:
        raise ConfigError(
            "incidents: a load cannot be looked for while replicas fail or get slow; leave them "
            "out (--set incidents=null) and try the load that is found with them afterwards"
        )
    for pool in experiment.scalers:
        field = f"pools.{pool}.autoscaling" if pool else "autoscaling"
        raise ConfigError(
            f"{field}: a load cannot be looked for while replicas come and go; leave it out "
            f"(--set {field}=null) and run the load that is found with it afterwards"
        )


def few_rows(workload: WorkloadConfig, tolerance: float) -> list[str]:
    """Return a warning per trace that has too few rows to know mean lengths to `tolerance`.

    Runs draw from the rows as if there were no others, so their intervals do not include this
    error; it would only blur comparisons on the same rows.
    """
    notes, arrivals = [], workload.arrivals
    for field, path in workload.traces.items():
        if not isinstance(arrivals, TraceReplay) or field != "workload.arrivals.path":
            trace = read_named(path, field)
        elif workload.lengths is None:
            trace = arrivals.select(None, None)
        else:
            continue  # lengths of this trace are not used
        error = _length_error(trace)
        if isinf(error):
            notes.append(
                f"{path.name}: has one {'row' if trace.sessions is None else 'session'}, from "
                "which nobody can tell how long such traffic is in the mean; take more"
            )
        elif error > tolerance:
            notes.append(
                f"{path.name}: of so few rows ({len(trace):,}) mean lengths lie up to "
                f"{percent(error, 0)} from those of all such traffic (95 %), and a capacity at "
                "least as far; its interval takes the rows for all there is"
            )
    return notes


def _length_error(trace: Trace) -> float:
    """Return the relative 95 % error of the mean prompt or output length, the larger of the two.

    It is infinite for one row or one session. Sessions are taken to be independent, their turns not
    (the linearized variance of a mean over clusters; Cochran 1977, "Sampling Techniques", chapter
    9A).
    """
    owners = np.arange(len(trace)) if trace.sessions is None else trace.sessions
    _, numbers = np.unique(owners, return_inverse=True)
    if numbers.max() == 0:
        return inf
    errors = []
    for lens in (trace.prompt_lens, trace.output_lens):
        sums = np.bincount(numbers, lens - lens.mean())
        spread = np.sqrt((sums**2).sum() * len(sums) / (len(sums) - 1))
        errors.append(_NORMAL * float(spread / lens.sum()))
    return max(errors)


@dataclass(frozen=True)
class Loads:
    """An experiment, and how to run it at other loads.

    The load of an open workload is its mean rate, requests/s; that of a closed loop its
    concurrency.
    """

    experiment: Experiment
    replications: int

    def __post_init__(self) -> None:
        check_steady(self.experiment)
        arrivals = self.experiment.workload.arrivals
        if not self.is_closed and "rate" not in type(arrivals).model_fields:
            raise ConfigError(
                f"workload.arrivals.kind = '{arrivals.kind}' has no rate that could be varied to "
                "find crossover loads; use poisson, gamma, constant, trace or, for offline work, "
                "closed_loop with the concurrency that you want to tune for"
            )

    @property
    def is_closed(self) -> bool:
        return isinstance(self.experiment.workload.arrivals, ClosedLoop)

    @property
    def unit(self) -> str:
        return "clients" if self.is_closed else "requests/s"

    @cached_property
    def own(self) -> float:
        arrivals = self.experiment.workload.arrivals
        if isinstance(arrivals, ClosedLoop):
            return float(arrivals.concurrency)
        rate = getattr(arrivals, "rate", None)
        return self._recorded_rate if rate is None else float(rate) * self.turns

    @property
    def _recorded_rate(self) -> float:
        times = self.sample.arrived_at
        assert times is not None
        rate = mean_rate(times)
        if rate is None:
            raise ConfigError(
                "workload.arrivals: all requests of the trace arrive at once, so its rate cannot "
                "be varied; use arrivals of kind poisson and lengths: {kind: trace, path: ...}"
            )
        return rate

    def check_batches(self) -> None:
        """Raise a ConfigError if clients have think time, and so do not hold a batch size."""
        if self._lengths.in_sessions:
            raise ConfigError(
                "workload: sessions, which think in between, hold no batch at a size; tune with "
                "lengths of another kind, or use capacity or a sweep"
            )

    def possible(self, load: float) -> float:
        """Return the nearest load that can be run: in a closed loop a whole number, at least 1."""
        return float(max(1, round(load))) if self.is_closed else load

    @cached_property
    def sample(self) -> Trace:
        """A sample of the requests: the recorded trace, or requests drawn from the workload."""
        recording = self._recording(0)
        if recording is not None:
            return recording.all_requests()
        return drawn(self._lengths, generator(self.experiment.seed, "lengths"), _SAMPLE)

    @cached_property
    def num_stages(self) -> int:
        """Number of pipeline stages, 1 without a pipeline; each has a step of its own."""
        return len(load_profile(self.experiment.serving.profile).stage_shares)

    @property
    def has_stages(self) -> bool:
        """Whether any server is a pipeline, which has no synchronous scheduling."""
        pools = self.experiment.pools
        others = [] if pools is None else [self.experiment.of_pool("prefill").profile]
        names = [self.experiment.serving.profile, *others]
        return any(len(load_profile(name).stage_shares) > 1 for name in names)

    @property
    def num_batches(self) -> int:
        """Number of batches among which the decodes of one server are divided.

        It counts pipeline stages, times replicas of a decode pool or data-parallel ranks.
        """
        pools = self.experiment.pools
        ranks = pools.decode.slots if pools else self.experiment.engine.data_parallel_size or 1
        return self.num_stages * ranks

    def closed_trials(self, policy: Policy, concurrency: int, count: int) -> list[Trial]:
        """Return the trials of one server with `concurrency` clients, one per replication.

        Without think time the clients hold `num_batches` batches at a size in all; a batch is
        smaller if the KV cache does not hold it, or clients are in a prefill pool.
        """
        arrivals = ClosedLoop(concurrency=concurrency)
        workload = self._workload(arrivals=arrivals, lengths=self._lengths, num_requests=count)
        return self._trials(self.experiment.replace(replicas=1), policy, workload)

    def trials(
        self, policy: Policy, load: float, count: int, *, synchronous: bool = False
    ) -> list[Trial]:
        """Return the trials of a policy at a load, one per replication."""
        own = self.experiment.workload.arrivals
        count = count if self.is_closed else max(count, ceil(load * self._least_time))
        changes: dict[str, object] = (
            {"concurrency": int(load)} if self.is_closed else {"rate": load / self.turns}
        )
        if isinstance(own, TraceReplay):
            changes["time_scale"] = 1.0
        arrivals = own.model_copy(update=changes)
        workload = self._workload(arrivals=arrivals, num_requests=count)
        experiment = self.experiment
        if synchronous:
            experiment = experiment.with_engine(async_scheduling=False)
        return self._trials(experiment, policy, workload)

    def _workload(self, **changes: object) -> WorkloadConfig:
        """Return the experiment's workload with changed fields and without its end."""
        return self.experiment.workload.model_copy(update={"duration": None, **changes})

    def _trials(
        self, experiment: Experiment, policy: Policy, workload: WorkloadConfig
    ) -> list[Trial]:
        runs = replicated(experiment, self.replications, workload=workload, policy=policy)
        return [Trial(run, self._recording(number)) for number, run in enumerate(runs)]

    def _recording(self, number: int) -> Recording | None:
        if not self._is_recorded:
            return None
        experiment = self.experiment
        return Recording(experiment.workload, experiment.seed, number / self.replications)

    @cached_property
    def _is_recorded(self) -> bool:
        is_replayed = isinstance(self.experiment.workload.arrivals, TraceReplay)
        return is_replayed or self._lengths.num_rows is not None

    @cached_property
    def turns(self) -> float:
        return 1.0 if self._is_recorded else self._lengths.mean_turns

    @cached_property
    def _least_time(self) -> float:
        """How long sessions must arrive until as many are open as at any later time, seconds."""
        waits = self.sample.think_times
        return 0.0 if waits is None else _SPANS * float(waits.sum()) / self.sample.num_sessions

    @property
    def _lengths(self) -> Lengths:
        workload = self.experiment.workload
        if workload.lengths is not None:
            return workload.lengths
        assert isinstance(workload.arrivals, TraceReplay)
        return TraceRows(path=workload.arrivals.path)
