"""Cells: replicas that have nothing to do with each other, each simulated by itself.

Where the router looks at no replica and nobody waits for an answer, it is known beforehand which
requests a replica gets. Then a replica is run from its first request to its last, and forgotten,
before the next one begins; and cells of some replicas each can be run by several processes. What
comes of a replica depends neither on its cell nor on its process.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Any, NamedTuple, NoReturn

import numpy as np
from numpy.typing import NDArray

from specsim.core.errors import PluginError
from specsim.core.request import Request
from specsim.core.runner import Backend, Runner
from specsim.core.step import Ints
from specsim.engine.front_end import instants
from specsim.engine.integrity import IntegrityCheck
from specsim.engine.python_verbs import Wiring
from specsim.engine.replica import Replica
from specsim.results.records import (
    Deliveries,
    FrontTimes,
    ReplicaRecords,
    Share,
    records_of_run,
)
from specsim.routing import PromptView, ReplicaView
from specsim.run.deployment import Deployment
from specsim.run.drafting import Drafting
from specsim.run.ends import Ends
from specsim.run.experiment import Experiment
from specsim.workload.arrivals.synthetic import ClosedLoop
from specsim.workload.trace import Columns, TraceRequests

FEWEST, _MOST = 20_000, 100_000
"""Requests of a cell: fewer are not worth a process, more take more memory at a time."""


def why_whole(
    experiment: Experiment, deployment: Deployment, requests: Sequence[Request]
) -> str | None:
    """Return why the replicas of a run cannot be told apart; None if they can."""
    is_closed = isinstance(experiment.workload.arrivals, ClosedLoop)
    chooses = experiment.num_engines > 1 and experiment.routing.looks_at_replicas
    reasons = {
        "clients wait for their answers": is_closed,
        "turns of a session wait for the one before": Columns.of(requests).has_sessions,
        "one pool passes requests on to the other": experiment.pools is not None,
        "loads from host memory end on one clock": deployment.engine.kv_offload is not None,
        "replicas come and go": experiment.autoscaling is not None,
        "incidents move requests from replica to replica": bool(experiment.incidents),
        "data-parallel ranks wait for each other": deployment.is_lock_step,
        f"router '{experiment.routing.kind}' looks at the replicas": chooses,
    }
    return next((reason for reason, holds in reasons.items() if holds), None)


@dataclass(frozen=True)
class Kept:
    """What a run records, and whether its invariants are checked."""

    steps: bool
    deliveries: bool
    check: bool = False


class _Cell(NamedTuple):
    """Some replicas, and the requests that they get."""

    experiment: Experiment
    deployment: Deployment
    first_replica: int
    requests: Sequence[Request]
    numbers: Ints
    """Shape (n,): index of each of these requests in the run."""
    rows: list[Ints]
    """Of each replica: places of its requests in `requests`."""
    arrived_at: NDArray[np.float64]
    """When each reaches the engine, seconds."""
    front_times: FrontTimes
    origin: float
    kept: Kept
    is_whole: bool
    """Whether the run has no other requests."""


class _Outcome(NamedTuple):
    first_replica: int
    shares: list[Share]
    """What each of its replicas has recorded."""
    numbers: Ints
    deliveries: Deliveries | None


def run_cells(
    experiment: Experiment,
    deployment: Deployment,
    requests: Sequence[Request],
    kept: Kept,
    *,
    backend: Backend | None = None,
    on_progress: Callable[[int], None] | None = None,
) -> tuple[list[ReplicaRecords], Deliveries | None]:
    """Return what all replicas of a divisible run record, and its deliveries if they are kept.

    Args:
        backend: Where cells are run; None for this process, one after the other.
        on_progress: Told how many requests have ended, from time to time.

    Raises:
        SpecsimError: Of the first cell that cannot be run.
    """
    records = _records(deployment, kept, experiment.num_engines)
    deliveries = None
    if kept.deliveries:
        deliveries = Deliveries.room_for(Columns.of(requests).output_lens)
    cells = _cells(experiment, deployment, requests, kept)
    if backend is None or len(requests) <= FEWEST:
        _run_here(cells, records, deliveries, on_progress)
        return records, deliveries
    for outcome in _outcomes(list(cells), backend, len(requests), on_progress):
        for number, share in enumerate(outcome.shares, outcome.first_replica):
            records[number].take_over(share)
        if deliveries is not None and outcome.deliveries is not None:
            deliveries.take_over(outcome.deliveries, outcome.numbers)
    return records, deliveries


def _records(deployment: Deployment, kept: Kept, num_replicas: int) -> list[ReplicaRecords]:
    return records_of_run(num_replicas, deployment.max_draft_len, keeps_steps=kept.steps)


def _run_here(
    cells: Iterator[_Cell],
    records: list[ReplicaRecords],
    deliveries: Deliveries | None,
    on_progress: Callable[[int], None] | None,
) -> None:
    """Run one cell after the other, and let replicas write into what the run records."""
    num_ended = 0
    for cell in cells:
        tell = None if on_progress is None else partial(_tell_sum, on_progress, num_ended)
        mine = records[cell.first_replica : cell.first_replica + len(cell.rows)]
        if deliveries is None or cell.is_whole:
            _run_cell(cell, mine, deliveries, tell)
        else:
            own = Deliveries.room_for(Columns.of(cell.requests).output_lens)
            _run_cell(cell, mine, own, tell)
            deliveries.take_over(own, cell.numbers)
        num_ended += len(cell.numbers)


def _outcomes(
    cells: list[_Cell],
    backend: Backend,
    num_requests: int,
    on_progress: Callable[[int], None] | None,
) -> Iterator[_Outcome]:
    """Yield what comes of each cell, in their order."""

    def tell_share(num_cells: int) -> None:
        if on_progress is not None:
            on_progress(num_requests * num_cells // len(cells))

    with Runner(backend, tell_share) as runner:
        yield from runner.each(_run_apart, cells)


def _tell_sum(on_progress: Callable[[int], None], before: int, now: int) -> None:
    on_progress(before + now)


def _cells(
    experiment: Experiment,
    deployment: Deployment,
    requests: Sequence[Request],
    kept: Kept,
) -> Iterator[_Cell]:
    """Yield the cells of a run: neighbouring replicas, until they have enough requests."""
    front_end = deployment.front_end(len(requests), experiment.num_engines)
    columns = Columns.of(requests)
    arrivals = columns.arrived_at.tolist()
    reached_at = map(front_end.passed, count(), columns.prompt_lens.tolist(), arrivals)
    arrived_at = np.fromiter(instants(reached_at), dtype=np.float64)
    times = front_end.times
    by_replica = _routed(experiment, requests)
    most = max(FEWEST, min(_MOST, len(requests) // 8))
    first = 0
    while first < len(by_replica):
        size, end = 0, first
        while end < len(by_replica) and (end == first or size + len(by_replica[end]) <= most):
            size += len(by_replica[end])
            end += 1
        numbers = np.sort(np.concatenate(by_replica[first:end]))
        yield _Cell(
            experiment=experiment,
            deployment=deployment,
            first_replica=first,
            requests=_taken(requests, numbers),
            numbers=numbers,
            rows=[np.searchsorted(numbers, mine) for mine in by_replica[first:end]],
            arrived_at=arrived_at[numbers],
            front_times=times[numbers] if isinstance(times, np.ndarray) else times,
            origin=arrivals[0] if arrivals else 0.0,
            kept=kept,
            is_whole=len(numbers) == len(requests),
        )
        first = end


def _taken(requests: Sequence[Request], numbers: Ints) -> Sequence[Request]:
    if len(numbers) == len(requests):
        return requests
    if isinstance(requests, TraceRequests):
        return requests.take(numbers)
    return [requests[number] for number in numbers.tolist()]


class _Unseen(Sequence[ReplicaView]):
    """Replicas that can be counted only, for a router that has said that it looks at none."""

    def __init__(self, count: int) -> None:
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, place: Any) -> NoReturn:
        raise PluginError("a router that looks at replicas must not say looks_at_replicas = False")


def _routed(experiment: Experiment, requests: Sequence[Request]) -> list[Ints]:
    """Return the indices of the requests that each replica gets, in order."""
    count = experiment.num_engines
    if count == 1:
        return [np.arange(len(requests))]
    router, replicas = experiment.routing, _Unseen(count)
    memory = router.start(experiment.seed)
    chosen = np.array(
        [
            router.choose(PromptView(index, requests), replicas, memory)
            for index in range(len(requests))
        ],
        dtype=np.int64,
    )
    in_order = np.argsort(chosen, kind="stable")
    return np.split(in_order, np.cumsum(np.bincount(chosen, minlength=count))[:-1])


def _run_apart(cell: _Cell) -> _Outcome:
    """Run a cell in a process of its own."""
    records = _records(cell.deployment, cell.kept, len(cell.rows))
    deliveries = None
    if cell.kept.deliveries:
        deliveries = Deliveries.room_for(Columns.of(cell.requests).output_lens)
    _run_cell(cell, records, deliveries)
    shares = [each.share() for each in records]
    return _Outcome(cell.first_replica, shares, cell.numbers, deliveries)


def _run_cell(
    cell: _Cell,
    records: list[ReplicaRecords],
    deliveries: Deliveries | None,
    on_progress: Callable[[int], None] | None = None,
) -> None:
    """Run the replicas of a cell, one after the other, each of which fills its records."""
    deployment = cell.deployment
    drafting = Drafting(cell.experiment, deployment, list(cell.requests))
    ends = Ends(len(cell.numbers), on_progress)
    for place, (rows, mine) in enumerate(zip(cell.rows, records, strict=True)):
        if not len(rows):
            continue
        mine.numbers = None if cell.is_whole else cell.numbers
        mine.front_times = cell.front_times
        wiring = Wiring(
            facts=drafting.facts,
            records=mine,
            fates=drafting.survival_lens if len(drafting.survival_lens) else None,
            offers=drafting.offers,
            deliveries=deliveries,
            observers=[IntegrityCheck()] if cell.kept.check else [],
            on_end=ends.tell,
            origin=cell.origin,
        )
        speculation = drafting.start(cell.first_replica + place)
        replica = Replica(deployment.setup, deployment.costs, speculation, wiring)
        replica.submit_all(rows, cell.arrived_at[rows])
        replica.finish()
    ends.check()
