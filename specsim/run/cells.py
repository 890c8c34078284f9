"""Cells: groups of replicas that do not affect one another, each group simulated by itself.

If the router does not look at the replicas and no arrival waits for an answer, the requests of each
replica are known before the run. Then replicas are simulated one after another, and cells (some
replicas and their requests) by several processes. The results of a replica depend neither on its
cell nor on its process.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, NoReturn

import numpy as np
from numpy.typing import NDArray

from specsim.core.errors import InvariantError, PluginError
from specsim.core.request import Columns, Request
from specsim.core.runner import Backend, Runner
from specsim.core.step import Ints
from specsim.engine.answers import asked_router
from specsim.engine.clients import instants
from specsim.engine.integrity import IntegrityCheck
from specsim.engine.replica import Replica
from specsim.policies import DraftsTrees
from specsim.results.records import (
    Deliveries,
    DeliveryFile,
    EveryDelivery,
    ReplicaRecords,
    Share,
    records_of_run,
)
from specsim.routing import PromptView, ReplicaView
from specsim.run.deployment import Deployment
from specsim.run.drafting import Drafting
from specsim.run.experiment import Experiment
from specsim.workload.arrivals.patterns import ClosedLoop
from specsim.workload.trace import TraceRequests


class Ends:
    """Counts the requests that have ended, and reports each end to its listeners."""

    def __init__(
        self, num_requests: int, on_progress: Callable[[int], None] | None, *, num_before: int = 0
    ) -> None:
        self._has_ended = bytearray(num_requests)
        self._num_before, self._num_ended = num_before, 0  # of earlier cells, of this cell
        self._on_progress = on_progress
        self.listener: Callable[[int, float], None] | None = None

    def tell(self, requests: Ints, at: NDArray[np.float64]) -> None:
        """Note the requests that ended, in this order, and when (`at`, seconds)."""
        for request, instant in zip(requests.tolist(), at.tolist(), strict=True):
            if self._has_ended[request]:
                raise InvariantError(f"request {request} has ended twice")
            self._has_ended[request] = True
            self._num_ended += 1
            if self.listener is not None:
                self.listener(request, instant)
            if self._on_progress is not None:
                self._on_progress(self._num_before + self._num_ended)

    def is_over(self) -> bool:
        return self._num_ended == len(self._has_ended)

    def check(self) -> None:
        left = len(self._has_ended) - self._num_ended
        if left:
            raise InvariantError(f"{left:,} of {len(self._has_ended):,} requests never ended")


FEWEST = 20_000
"""A run with no more requests than this is simulated in one process."""
_SMALL, _LARGE = 10_000, 50_000
"""Requests in one cell: with fewer the run takes longer, with more it needs more memory at once."""


def why_whole(
    experiment: Experiment, deployment: Deployment, requests: Sequence[Request]
) -> str | None:
    """Return why the replicas of a run share one clock; None if each can be run by itself."""
    is_closed = isinstance(experiment.workload.arrivals, ClosedLoop)
    chooses = experiment.num_engines > 1 and experiment.routing.looks_at_replicas
    policy, acceptance = deployment.policy, experiment.acceptance
    is_told = policy.uses_confidences or isinstance(policy, DraftsTrees)
    counts = is_told and acceptance is not None and acceptance.counts_chances
    reasons = {
        "clients wait for their answers": is_closed,
        "turns of a session wait for the one before": Columns.of(requests).has_sessions,
        "one pool passes requests on to the other": experiment.pools is not None,
        "loads from host memory end on one clock": deployment.engine.kv_offload is not None,
        "replicas come and go": experiment.autoscaling is not None,
        "incidents move requests from replica to replica": bool(experiment.incidents),
        "data-parallel ranks wait for each other": deployment.is_lock_step,
        "confidences are counted in the drafts of all": counts and experiment.num_engines > 1,
        f"router '{experiment.routing.kind}' looks at the replicas": chooses,
    }
    return next((reason for reason, holds in reasons.items() if holds), None)


@dataclass(frozen=True)
class Kept:
    """What a run records: steps, deliveries; and whether invariants are checked after each step."""

    steps: bool
    deliveries: bool
    check: bool = False


class _Cell(NamedTuple):
    """Some replicas of a run, and the requests that are routed to them."""

    experiment: Experiment
    deployment: Deployment
    first_replica: int
    requests: Sequence[Request]
    numbers: Ints  # shape (n,): index of each of these requests in the run
    rows: list[Ints]  # of each replica: places of its requests in `requests`
    arrived_at: NDArray[np.float64]  # when each reaches the engine, seconds
    delays: NDArray[np.float64]  # time from the client to the engine, seconds
    origin: float
    kept: Kept
    is_whole: bool  # whether these are all requests of the run


class _Outcome(NamedTuple):
    first_replica: int
    shares: list[Share]  # records of each replica of the cell
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
) -> tuple[list[ReplicaRecords], EveryDelivery | None]:
    """Return the records of all replicas, and the deliveries of the run if they are kept.

    The cells run in processes of `backend`, or in this process. Raises the first error of any cell.
    """
    records = _records(deployment, kept, experiment.num_engines)
    cells = _cells(experiment, deployment, requests, kept)
    if backend is None or len(requests) <= FEWEST:
        return records, _run_here(cells, records, kept, on_progress)
    apart, file = list(cells), DeliveryFile()

    def tell_share(num_cells: int) -> None:
        if on_progress is not None:
            on_progress(len(requests) * num_cells // len(apart))

    with Runner(backend, tell_share) as runner:
        for outcome in runner.each(_run_apart, apart):
            for number, share in enumerate(outcome.shares, outcome.first_replica):
                records[number].take_over(share)
            if outcome.deliveries is not None:
                file.add(outcome.numbers, outcome.deliveries)
    return records, file if kept.deliveries else None


def _records(deployment: Deployment, kept: Kept, num_replicas: int) -> list[ReplicaRecords]:
    return records_of_run(num_replicas, deployment.max_draft_len, keeps_steps=kept.steps)


def _room(kept: Kept, requests: Sequence[Request]) -> Deliveries | None:
    return Deliveries.room_for(Columns.of(requests).output_lens) if kept.deliveries else None


def _run_here(
    cells: Iterator[_Cell],
    records: list[ReplicaRecords],
    kept: Kept,
    on_progress: Callable[[int], None] | None,
) -> EveryDelivery | None:
    """Run one cell after another; the replicas write directly into the records of the run."""
    file, num_ended = DeliveryFile(), 0
    for cell in cells:
        ends = Ends(len(cell.numbers), on_progress, num_before=num_ended)
        mine = records[cell.first_replica : cell.first_replica + len(cell.rows)]
        deliveries = _room(kept, cell.requests)
        _run_cell(cell, mine, deliveries, ends)
        if cell.is_whole:
            return deliveries
        if deliveries is not None:
            file.add(cell.numbers, deliveries.packed(_counts(cell, mine)))
        num_ended += len(cell.numbers)
    return file if kept.deliveries else None


def _counts(cell: _Cell, records: list[ReplicaRecords]) -> Ints:
    """Return how many deliveries each request of a cell has had."""
    counts = np.zeros(len(cell.numbers), dtype=np.int64)
    for rows in (each.requests for each in records):
        counts[np.searchsorted(cell.numbers, rows["request"])] = rows["deliveries"]
    return counts


def _cells(
    experiment: Experiment, deployment: Deployment, requests: Sequence[Request], kept: Kept
) -> Iterator[_Cell]:
    columns, front = Columns.of(requests), deployment.front(experiment.num_engines, len(requests))
    order = np.argsort(columns.arrived_at, kind="stable")  # programs may give any order
    arrivals, lens = columns.arrived_at[order].tolist(), columns.prompt_lens[order].tolist()
    sent = zip(arrivals, order.tolist(), lens, strict=True)
    reached = np.fromiter(instants(sent, front), dtype=[("request", "<i8"), ("at", "<f8")])
    arrived_at = np.empty(len(reached))
    arrived_at[reached["request"]] = reached["at"]
    by_replica = _routed(experiment, requests, reached["request"])
    most = max(_SMALL, min(_LARGE, len(requests) // 8))
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
            delays=front.delays[numbers],
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
    """Replicas that can only be counted, for a router with ``looks_at_replicas = False``."""

    def __init__(self, count: int) -> None:
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, place: Any) -> NoReturn:
        raise PluginError("a router that looks at replicas must not say looks_at_replicas = False")


def _routed(experiment: Experiment, requests: Sequence[Request], in_turn: Ints) -> list[Ints]:
    """Return the requests of each replica, in the order in which they reach it."""
    count = experiment.num_engines
    if count == 1:
        return [in_turn]
    asked, replicas = asked_router(experiment.routing, experiment.seed), _Unseen(count)
    chosen = (asked.answer(PromptView(index, requests), replicas) for index in in_turn.tolist())
    places = np.fromiter(chosen, dtype=np.int64, count=len(in_turn))
    in_order = in_turn[np.argsort(places, kind="stable")]
    return np.split(in_order, np.cumsum(np.bincount(places, minlength=count))[:-1])


def _run_apart(cell: _Cell) -> _Outcome:
    records = _records(cell.deployment, cell.kept, len(cell.rows))
    deliveries = _room(cell.kept, cell.requests)
    _run_cell(cell, records, deliveries, Ends(len(cell.numbers), None))
    if deliveries is not None:
        deliveries = deliveries.packed(_counts(cell, records))
    shares = [each.share() for each in records]
    return _Outcome(cell.first_replica, shares, cell.numbers, deliveries)


def _run_cell(
    cell: _Cell, records: list[ReplicaRecords], deliveries: Deliveries | None, ends: Ends
) -> None:
    """Run the replicas of a cell, one after another; each fills its own records."""
    deployment = cell.deployment
    requests = cell.requests
    if not (isinstance(requests, TraceRequests) and requests.has_lengths_only):
        requests = list(requests)
    drafting = Drafting(cell.experiment, deployment, requests)
    for place, (rows, mine) in enumerate(zip(cell.rows, records, strict=True)):
        if not len(rows):
            continue
        mine.numbers, mine.delays = None if cell.is_whole else cell.numbers, cell.delays
        wiring = drafting.wiring(
            mine,
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
