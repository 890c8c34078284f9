"""The verbs of a step that are done in Python: with the same state before and after as in a loop.

A policy that is more than a table of lengths, a latency model without a form, real drafts, and
whoever watches.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from specsim.core.compiled import as_records
from specsim.core.step import Ints
from specsim.engine.cost import read_prefixes
from specsim.engine.draft import offer
from specsim.engine.engine_limits import IDLE
from specsim.engine.facts import Facts
from specsim.engine.order import (
    ASK,
    CHARGE_DRAFTS,
    CHARGE_FORWARD,
    DELIVERED,
    IF_ADMITTED,
    OBSERVE,
    OFFER,
    SCHEDULED,
    TRIM,
    VERIFY,
)
from specsim.engine.speculation import Speculation
from specsim.engine.table import FINISHED, Table
from specsim.engine.view import StepView
from specsim.profile import StepCosts
from specsim.results.deliveries import Deliveries
from specsim.results.records import ReplicaRecords


class Observer(Protocol):
    """Whoever watches a replica: invariant checks, the parity log."""

    def scheduled(self, replica: "PythonVerbs", step: StepView) -> None:
        """See a step that has just been scheduled."""

    def delivered(self, replica: "PythonVerbs", step: StepView) -> None:
        """See a step that has just come back."""


@dataclass(frozen=True)
class Wiring:
    """What a replica shares with the rest of the run, and whom it tells what."""

    facts: Facts
    records: ReplicaRecords
    fates: NDArray[np.uint8] | None = None
    """Of all drafters one after the other; None if they are asked of the draft source."""
    offers: NDArray[np.uint8] | None = None
    """What the proposer comes up with; None if it always offers what it is asked for."""
    deliveries: Deliveries | None = None
    observers: Sequence[Observer] = ()
    on_end: Callable[[Ints, NDArray[np.float64]], None] | None = None
    """Told the indices of requests that have ended, and when, some time afterwards; see
    `announces_ends`."""
    announces_ends: bool = False
    """Whether the replica stops where requests end, so that others hear of it in time."""
    on_notices: Callable[["PythonVerbs", NDArray[np.void]], None] | None = None
    """Told `specsim.engine.table.Notice`, with `announces_ends`, before the ends of that time."""
    origin: float = 0.0
    """First arrival of the run, seconds."""


class PythonVerbs:
    """A replica's table, and the verbs on it that are done in Python."""

    def __init__(
        self, table: Table, costs: StepCosts, speculation: Speculation, wiring: Wiring
    ) -> None:
        self.table = table
        self.speculation = speculation
        self._costs = costs
        self._wiring = wiring
        names = ("common_block_size", "blocks_per_common", "lookahead_len", "prefill_first")
        self._room = tuple(int(table.limits[name][0]) for name in names)

    def _python_verbs(self) -> dict[int, Callable[[], None]]:
        """Return what has to be done in Python, by verb."""
        speculation, costs = self.speculation, self._costs.compiled()
        decides = not speculation.is_loops
        wanted: dict[int, tuple[bool, Callable[[], None]]] = {
            TRIM: (decides and (speculation.trims or speculation.leaves_out), self._trim),
            ASK: (decides and speculation.lens_by_size(1) is None, self._ask),
            OFFER: (speculation.offers and not self.is_async, self._offer),
            CHARGE_FORWARD: (costs.target is None, self._charge_forward),
            CHARGE_DRAFTS: (not costs.drafts or speculation.is_shared_out, self._charge_drafts),
            VERIFY: (speculation.verifies, self._verify),
            OBSERVE: (decides and speculation.observes, self._observe),
            SCHEDULED: (bool(self._wiring.observers), self._scheduled),
            DELIVERED: (bool(self._wiring.observers) or speculation.minds_ends, self._delivered),
        }
        return {verb: handler for verb, (is_wanted, handler) in wanted.items() if is_wanted}

    @property
    def is_async(self) -> bool:
        """Whether it schedules a step while another runs."""
        return len(self.table.steps) > 1

    @property
    def num_running(self) -> int:
        """Requests that run."""
        return self._field("num_running")

    def _field(self, name: str) -> int:
        return int(self.table.state[name][0])

    def _set(self, **fields: float) -> None:
        for name, value in fields.items():
            self.table.state[name] = value

    def _records(self) -> Table:
        """Return the table as functions see it that run uncompiled."""
        records: Table = as_records(self.table)
        return records

    @property
    def step(self) -> StepView:
        """The step that the verbs are about."""
        return StepView(self.table, self._field("current"))

    def _trim(self) -> None:
        self.speculation.trim(self.step)

    def _ask(self) -> None:
        step = self.step
        common, blocks_per_common, lookahead_len, is_late = self._room
        if is_late and step.record["prefill_tokens"]:
            return
        free_slots = self._field("num_free") * common // blocks_per_common
        free_slots += lookahead_len * step.size
        knows_accepted = not (is_late or self.is_async)
        self.speculation.ask(step, free_slots, knows_accepted=knows_accepted)
        self._mind_trims()
        if self.speculation.picks_prefix:
            running = self.table.running[: self.num_running]
            known_lens = self.table.sequences["known_len"][running]
            self._set(most_run=self.speculation.prefix_size(step, known_lens))

    def _refuse(self) -> None:
        """Say what the policy, which is loops, has said that nobody can do."""
        is_asked = self.table.order[self._field("place")] == ASK
        self.speculation.refuse(self.step, is_asked=is_asked)

    def _observe(self) -> None:
        self.speculation.observe(self.step)
        self._mind_trims()

    def _mind_trims(self) -> None:
        """Pass over steps whose drafts and drafter the policy cannot want to trim."""
        in_python = self.table.in_python
        if in_python[TRIM] and not self.speculation.trims:
            in_python[TRIM] = 1 if self.speculation.leaves_out_now else IF_ADMITTED

    def _offer(self) -> None:
        step = self.step
        step["offered_len"][:] = self.speculation.offered_lens(step)
        offer(self._records())

    def _charge_forward(self) -> None:
        step = self.step
        load = step.load
        if load.batched_tokens:
            # Under batch expansion a context is read several times: only the sums tell.
            is_read_once = step.record["context_tokens"] == step.record["own_context_tokens"]
            if self._costs.uses_pieces and is_read_once:
                load = load._replace(pieces=step.pieces())
            step.record["target_time"] = self._slowness * self._costs.target_time(load)
        if step.size:
            overhead_time = self._costs.overhead_time(step.size)
            step.record["overhead_time"] = self._slowness * overhead_time

    @property
    def _slowness(self) -> float:
        return float(self.table.state["slowness"][0])

    def _charge_drafts(self) -> None:
        step, slowness = self.step, self._slowness
        usual_time = float(step.record["target_time"]) / slowness
        loads = [(0, step.drafter_load, np.array(step["asked_len"]))]
        if self.speculation.leaves_out:
            read_prefixes(self._records())
        if self.speculation.is_shared_out or self.speculation.leaves_out:
            loads = self.speculation.drafter_loads(step)
        if step.record["skips_drafts"] == IDLE:
            loads = [(drafter, load, np.zeros_like(lens)) for drafter, load, lens in loads]
        draft_time = sum(
            slowness * self._costs.draft_time(load, draft_lens, usual_time, drafter)
            for drafter, load, draft_lens in loads
        )
        step.record["draft_time"] = draft_time
        self._set(last_draft_time=draft_time)
        if self.table.limits["prefill_first"][0]:
            step.record["verified_draft_time"] = draft_time

    def _verify(self) -> None:
        assert self.speculation.source is not None
        step = self.step
        accepted_lens = self.speculation.source.accepted_lens(step)
        accepted_lens[step["is_padded"] == 1] = 0
        step["accepted_len"][:] = np.minimum(accepted_lens, step["verified_len"])

    def _scheduled(self) -> None:
        for observer in self._wiring.observers:
            observer.scheduled(self, self.step)

    def _delivered(self) -> None:
        step = self.step
        for observer in self._wiring.observers:
            observer.delivered(self, step)
        source = self.speculation.source
        if source is not None and self.speculation.minds_ends:
            has_ended = (step.of_sequences("status") == FINISHED) & (step["emitted_len"] > 0)
            for request in step.requests[has_ended].tolist():
                source.end(request)
