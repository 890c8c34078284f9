"""Replica: one engine with its own clock, which runs from one outside event to the next."""

from collections.abc import Callable, Mapping
from math import inf
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from specsim.core.errors import CapacityError
from specsim.core.step import Ints
from specsim.decisions.loops import Asking
from specsim.engine.order import FULL, GROW, LAUNCHED, VERBS, WAITS, drop, order_of
from specsim.engine.python_verbs import Ledger, PythonVerbs
from specsim.engine.schedule import IN_VAIN
from specsim.engine.setup import Setup, Wiring, table_of, zeros
from specsim.engine.speculation import Speculation
from specsim.engine.table import (
    FREE,
    LOADED,
    LOADING,
    NEVER,
    NO_ROW,
    REQUEST,
    RUNNING,
    WAITING,
    WITHDRAWN,
    Table,
)
from specsim.engine.view import StepView
from specsim.engine.waiting import begin
from specsim.profile import StepCosts

if TYPE_CHECKING:
    from specsim.engine.lock_step import LockStep

Record = NDArray[np.void]

_AS_IN_A_QUEUE = {  # what a sequence has lost when its replica fails
    "status": FREE,
    "computed_len": 0,
    "draft_len": 0,
    "placeholder_len": 0,
    "decodes_from": 0,
    "sampled_at": 0.0,
    "in_chunk": 0,
    "tables_at": -1,
    "capacity_len": 0,
    "next_publish_len": NEVER,
    "junction_len": 0,
    "preempted_in": -1,
    "in_flight_len": 0,
    "drafter": 0,
    "is_undrafted": 0,
    "external_len": 0,
}


class Departure(NamedTuple):
    """A request that was unfinished when its replica failed."""

    request: int
    arrived_at: float
    row: Record | None = None
    """Its `table.Sequence` record, to resume from; None if no engine had looked at it yet."""
    requeues: int = 0
    """Replicas that have failed while they held the request; used where `row` is None."""


Handler = Callable[[], bool | None]
"""A verb in Python. It returns True if it must wait for other ranks and is not done yet."""


class Replica:
    """One replica: its table, the verbs of its steps, and its clock.

    `advance` runs everything before an instant, so the replica's clock may be ahead of the event
    clock, but never past an outside event that could change what it does.

    Args:
        verbs: Replacements for single verbs, by number: for example the forward pass of a real
            model, which takes time on a real clock.
        group: The data-parallel ranks that this replica runs in lock-step with, if any.
        on_notices: Called with records of `specsim.engine.table.Notice`, before the requests that
            end at the same time are announced (`announces_ends`).
    """

    def __init__(
        self,
        setup: Setup,
        costs: StepCosts,
        speculation: Speculation,
        wiring: Wiring,
        start: float = 0.0,
        *,
        verbs: Mapping[int, Handler] | None = None,
        group: "LockStep | None" = None,
        on_notices: "Callable[[Replica, NDArray[np.void]], None] | None" = None,
    ) -> None:
        self.ledger = ledger = Ledger(table_of(setup, costs, speculation, wiring))
        ledger.replace(asking=speculation.asking(lambda: ledger.step))
        self.costs, self.facts = costs, wiring.facts
        self.verbs = PythonVerbs(ledger, costs, speculation, wiring)
        self.is_up = True
        """False once the replica has failed."""
        self._wiring, self._group, self._on_notices = wiring, group, on_notices
        self._num_told = 0
        """Rows of `requests_out` that `on_end` has been told of."""
        ledger.set(now=start, next_at=inf, gpu_free_at=start, origin=wiring.origin)
        self._handlers: dict[int, Handler] = {
            **self.verbs.handlers(),
            FULL: self.flush,
            GROW: ledger.grow,
            **(verbs or {}),
            **(group.join(self) if group else {}),
        }
        for verb in self._handlers:
            if verb < VERBS:
                ledger.table.in_python[verb] = 1
        order = order_of(setup.order, ledger.table, self._handlers)
        ledger.table.limits["land_at"] = order.index(LAUNCHED) + 1
        self._replace(order=np.array(order))

    def _replace(self, **arrays: NDArray[Any]) -> None:
        """Replace some arrays of the table."""
        self.ledger.replace(**arrays)
        state, arrivals = self.table.state, self.table.arrivals
        self._place, self._until = state["place"], state["until"]
        self._next_at, self._num_arrivals = state["next_at"], state["num_arrivals"]
        self._now = state["now"]
        self._in_vain = state["preempted_in_vain"]
        names = ("at", "request", "row", "kind", "external_len")
        self._arrivals = tuple(arrivals[name] for name in names)

    def keep_state_in(self, states: Record, number: int) -> None:
        """Move the state into row `number` of `states`, which all replicas share."""
        state = states[number : number + 1]
        state[:] = self.table.state[:]
        self._replace(state=state)
        if self._group is not None:
            self._group.keep_states_in(states)

    @property
    def table(self) -> Table:
        """The arrays of the replica, up to date."""
        return self.ledger.table

    @property
    def step(self) -> StepView:
        """The step that the verbs are about."""
        return self.ledger.step

    @property
    def num_running(self) -> int:
        """Running requests."""
        return self.ledger["num_running"]

    @property
    def num_waiting(self) -> int:
        """Requests that have been submitted but do not run."""
        ledger = self.ledger
        waiting, unseen = ledger["num_waiting"] + ledger["num_loading"], ledger.unseen
        return waiting + (int((unseen["kind"] == REQUEST).sum()) if len(unseen) else 0)

    @property
    def now(self) -> float:
        """Time on the replica's clock, seconds."""
        return float(self._now[0])

    @now.setter
    def now(self, instant: float) -> None:
        """Set the clock, after a replaced verb has taken real time."""
        self._now[0] = instant

    @property
    def next_at(self) -> float:
        """When the replica or its group acts next by itself, seconds; inf if it has no requests."""
        return float(self._next_at[0]) if self._group is None else self._group.next_at

    @property
    def is_grouped(self) -> bool:
        """Whether the replica runs in lock-step with others."""
        return self._group is not None

    @property
    def leader(self) -> "Replica":
        """The replica that the event clock runs: this one, or the first of its group."""
        return self if self._group is None else self._group.leader

    def advance(self, until: float) -> None:
        """Run everything before the instant `until`; requests that arrive then may be submitted."""
        (self.go_on if self._group is None else self._group.advance)(until)

    def go_on(self, until: float) -> None:
        """Run everything before `until`, without a group."""
        self._until[0] = until
        while (verb := self.ledger.run()) != WAITS:
            self._do(verb)
        self._has_waited()

    def answer(self, verb: int) -> None:
        """Do the verb that the loop of a rank in lock-step has returned for."""
        if verb != WAITS:
            self._do(verb)
        self._has_waited()

    def _do(self, verb: int) -> None:
        if not self._handlers[verb]() and verb < VERBS:
            self._place[0] += 1

    def _has_waited(self) -> None:
        if self._in_vain[0] >= IN_VAIN:
            raise CapacityError(
                f"engine.num_gpu_blocks = {self.table.limits['num_blocks'][0]}: {IN_VAIN:,} "
                "preemptions without a token in between: requests preempt each other in turn, as "
                "those of one priority and one instant of arrival do in vLLM; let them arrive one "
                "after another, or raise num_gpu_blocks"
            )
        if self._wiring.announces_ends:
            self._tell_ends()

    def finish(self) -> None:
        """Run all requests to the end and hand over the results; the replica is then unusable."""
        self.advance(float("inf"))
        self.flush()
        # Handlers and hooks refer to the replica, a cycle that would keep its table in memory.
        self._handlers = {}
        self.ledger.replace(asking=Asking())

    def submit(self, request: int, at: float, external_len: int = 0) -> None:
        """Take in a request that arrives at the instant `at`, not before the replica's clock.

        The KV entries of the first `external_len` prompt tokens can be loaded from elsewhere.
        """
        self._arrive(at, request, NO_ROW, external_len=external_len)

    def tell(self, kind: int, request: int, row: int, at: float) -> None:
        """Take in news, at an instant, of a load or of blocks kept for others (`table.REQUEST`)."""
        self._arrive(at, request, row, kind)

    def forget_external(self, request: int) -> None:
        """Let a waiting request compute its whole prompt: its KV entries are gone elsewhere."""
        sequences, arrivals = self.table.sequences, self.ledger.unseen
        is_mine = sequences["request"] == request
        # Also FREE: the row of a request taken over from another replica is not queued yet.
        sequences["external_len"][is_mine & np.isin(sequences["status"], (FREE, WAITING))] = 0
        arrivals["external_len"][arrivals["request"] == request] = 0

    def submit_all(self, requests: Ints, at: NDArray[np.float64]) -> None:
        """Take in the requests of a whole run before it begins, in order of arrival."""
        arrivals: Any = zeros("arrivals", len(requests))
        arrivals["at"], arrivals["request"], arrivals["row"] = at, requests, NO_ROW
        self._replace(arrivals=arrivals)
        self.ledger.set(num_arrivals=len(requests))
        self.ledger.set(next_at=self.next_arrival_at)

    def take_over(self, departure: Departure, at: float, external_len: int = 0) -> None:
        """Take in a request that was submitted to a replica that has failed."""
        row = self.ledger.unused_row()
        sequences = self.table.sequences
        if departure.row is None:
            begin(self.ledger.records, row, departure.request, departure.arrived_at)
            sequences["requeues"][row] = departure.requeues
        else:
            sequences[row] = departure.row
            sequences["fate_at"][row] = self.facts.starts[departure.request]
            sequences["use"][row] = 0  # of tiers that are gone
        sequences["external_len"][row] = external_len
        self._arrive(at, departure.request, row)

    def _arrive(
        self, at: float, request: int, row: int, kind: int = REQUEST, external_len: int = 0
    ) -> None:
        place = int(self._num_arrivals[0])
        if place == len(self.table.arrivals):
            self._make_room_for_arrivals(at)
            place = int(self._num_arrivals[0])
        times, requests, rows, kinds, external_lens = self._arrivals
        times[place], requests[place], rows[place] = at, request, row
        if kind or external_len:  # each place is used once, and begins as 0
            kinds[place], external_lens[place] = kind, external_len
        self._num_arrivals[0] = place + 1
        self._next_at[0] = min(self._next_at[0], at)

    def _make_room_for_arrivals(self, at: float) -> None:
        """Drop queued requests from the arrivals buffer; double it if it is still half full."""
        self.advance(at)
        unseen, size = self.ledger.unseen, len(self.table.arrivals)
        arrivals: Any = zeros("arrivals", 2 * size if 2 * len(unseen) > size else size)
        arrivals[: len(unseen)] = unseen
        self._replace(arrivals=arrivals)
        self.ledger.set(first_arrival=0, num_arrivals=len(unseen))

    def fail(self) -> list[Departure]:
        """Stop for good, and return the unfinished requests: running, loading, then waiting ones.

        Steps in flight and all caches are lost.
        """
        self.is_up = False
        self.flush()
        sequences: Any = self.table.sequences
        running = self.table.running[: self.num_running].tolist()
        loading = self.table.loading[: self.ledger["num_loading"]].tolist()
        rows = [*running, *loading, *self._waiting_rows()]
        for name, value in _AS_IN_A_QUEUE.items():
            sequences[name][rows] = value
        left = [self._departure(row) for row in rows]
        for at, request, row, kind, _ in self.ledger.unseen.tolist():
            if kind != REQUEST:
                continue
            new = Departure(request, at, requeues=1)
            left.append(new if row == NO_ROW else self._departure(row))
        return left

    def withdraw(self, request: int) -> bool:
        """Drop a request whose client has gone; False if it is unknown here, or has ended."""
        unseen = self.ledger.unseen
        is_new = (unseen["kind"] == REQUEST) & (unseen["request"] == request)
        for place in np.flatnonzero(is_new).tolist():
            if (row := int(unseen["row"][place])) != NO_ROW:
                self.table.sequences["next_row"][row] = self.ledger["free_row"]
                self.ledger.set(free_row=row)
            unseen[place:-1] = unseen[place + 1 :].copy()
            unseen[-1] = 0  # see `_arrive`
            self._num_arrivals[0] -= 1
            return True
        sequences: Any = self.table.sequences
        is_live = np.isin(sequences["status"], (WAITING, RUNNING, LOADING, LOADED))
        rows = np.flatnonzero(is_live & (sequences["request"] == request))
        sequences["is_sending"][rows] = sequences["status"][rows] == LOADING
        sequences["status"][rows] = WITHDRAWN
        return bool(drop.bind(self.table)())

    def _departure(self, row: int) -> Departure:
        sequences: Any = self.table.sequences
        record = sequences[row].copy()
        record["requeues"] += 1
        return Departure(int(record["request"]), float(record["arrived_at"]), record)

    def _waiting_rows(self) -> list[int]:
        """Return the waiting rows in the order in which they would be admitted."""
        sequences = self.table.sequences
        facts = self.facts.rows
        if self.table.limits["by_priority"][0]:
            rows = np.flatnonzero(sequences["status"] == WAITING)
            requests = sequences["request"][rows]
            ranks = facts["rank"][requests]
            order = (requests, ranks, sequences["arrived_at"][rows], facts["priority"][requests])
            return [int(row) for row in rows[np.lexsort(order)]]
        rows_in_turn, row = [], self.ledger["queue_head"]
        while row != NO_ROW:
            rows_in_turn.append(row)
            row = int(sequences["next_row"][row])
        return rows_in_turn

    def slow_down(self, factor: float) -> None:
        """Let every step scheduled from now on take `factor` times as long; 1 is normal speed."""
        self.ledger.set(slowness=factor)

    @property
    def has_unfinished(self) -> bool:
        """Whether a request runs, loads or waits; arrivals that are not queued yet do not count."""
        return bool(self.num_running or self.ledger["num_waiting"] or self.ledger["num_loading"])

    @property
    def next_arrival_at(self) -> float:
        """When the next request arrives that is not queued yet, seconds; inf if there is none."""
        unseen = self.ledger.unseen
        return float(unseen["at"][0]) if len(unseen) else float("inf")

    def flush(self) -> None:
        """Hand over the results in the buffers to `Wiring.records`."""
        self._tell_ends()
        for name in ("steps", "requests", "gaps", "seconds"):
            if num := self.ledger[f"{name}_len"]:
                rows = getattr(self.table, f"{name}_out")[:num]
                getattr(self._wiring.records, f"add_{name}")(rows)
        self.ledger.set(steps_len=0, requests_len=0, gaps_len=0, seconds_len=0)
        self._num_told = 0

    def _tell_ends(self) -> None:
        """Call `Wiring.on_end` with the requests that have ended since the last call."""
        self._tell_notices()
        num = self.ledger["requests_len"]
        if num == self._num_told:
            return
        ended = self.table.requests_out[self._num_told : num]
        self._num_told = num
        self.ledger.set(unannounced=0)
        if self._wiring.on_end is not None:
            self._wiring.on_end(ended["request"], ended["ended_at"])
        if self._group is not None:
            self._group.has_told()

    def _tell_notices(self) -> None:
        """Call `on_notices` with the notices since the last call."""
        num = self.ledger["num_notices"]
        if not num:
            return
        notices = self.table.notices[:num].copy()
        self.ledger.set(num_notices=0, unannounced=0)
        if self._on_notices is not None:
            self._on_notices(self, notices)
