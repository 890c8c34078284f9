"""A replica's table as Python reads and writes it, and the verbs of a step that are done in Python.

They leave the same state as loops do: a latency model without a form, several drafters, real
drafts, and whoever watches. Policies in Python are asked by the loop (`specsim.engine.asking`).
"""

from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specsim.core.compiled import Bound, Pointers, as_records
from specsim.core.step import StepLoad
from specsim.decisions.policy import PicksDrafter
from specsim.engine.cost import keep_up, note_drafting, read_prefixes
from specsim.engine.draft import offer
from specsim.engine.engine_limits import IDLE
from specsim.engine.order import (
    ASK,
    CHARGE_DRAFTS,
    CHARGE_FORWARD,
    DELIVERED,
    OFFER,
    REFUSED,
    SCHEDULED,
    TAKE_IN,
    VERIFY,
    advance,
    come,
)
from specsim.engine.schedule import take_in
from specsim.engine.setup import Wiring, linked_rows
from specsim.engine.speculation import Drafted, Speculation
from specsim.engine.table import FINISHED, NO_ROW, REQUEST, TABLE_TYPES, Table
from specsim.engine.view import StepView
from specsim.profile import StepCosts


class Ledger:
    """What all parts of a replica share; `table` gives way to a longer one as requests come."""

    def __init__(self, table: Table) -> None:
        self.table = table

    def replace(self, **arrays: Any) -> None:
        """Put other arrays in the place of some of the table's."""
        self.table = self.table._replace(**arrays)
        for bound in ("pointers", "run", "come", "records"):
            self.__dict__.pop(bound, None)

    @cached_property
    def pointers(self) -> Pointers:
        """To the table as it is now; made when a loop is asked for: most of many idle."""
        return Pointers(self.table, TABLE_TYPES)

    @cached_property
    def run(self) -> Bound:
        """The loop over the table."""
        return advance.bind(self.pointers)

    @cached_property
    def come(self) -> Bound:
        """The loop of a rank in lock-step."""
        return come.bind(self.pointers)

    def __getitem__(self, name: str) -> int:
        """Return a whole number of the state."""
        return int(self.table.state[name][0])

    def set(self, **fields: float) -> None:
        """Set fields of the state."""
        for name, value in fields.items():
            self.table.state[name] = value

    @cached_property
    def records(self) -> Table:
        """The table as functions see it that run uncompiled."""
        records: Table = as_records(self.table)
        return records

    @property
    def step(self) -> StepView:
        """The step that the verbs are about."""
        return StepView(self.table, self["current"])

    @property
    def is_async(self) -> bool:
        """Whether a step is scheduled while another runs."""
        return len(self.table.steps) > 1

    @property
    def unseen(self) -> NDArray[Any]:
        """The arrivals that the engine has not looked at."""
        return self.table.arrivals[self["first_arrival"] : self["num_arrivals"]]

    def unused_row(self) -> int:
        """Return a row of sequences, which is not free any more."""
        if self["free_row"] == NO_ROW:
            self.grow()
        row = self["free_row"]
        self.set(free_row=int(self.table.sequences["next_row"][row]))
        return row

    def grow(self) -> None:
        """Double the rows of sequences."""
        sequences = self.table.sequences
        size = len(sequences)
        more: Any = np.concatenate([sequences[:], linked_rows(size, first=size)])
        more["next_row"][-1] = self["free_row"]
        self.set(free_row=size)
        queue = np.concatenate([self.table.queue, np.zeros(size, dtype=np.int64)])
        self.replace(sequences=more, queue=queue)
        if self.table.limits["num_tiers"][0]:
            rows: dict[str, Any] = {n: getattr(self.table, n) for n in ("offered", "places")}
            self.replace(**{n: np.concatenate([r[:], np.zeros_like(r)]) for n, r in rows.items()})


class PythonVerbs:
    """The verbs that are done in Python, on a replica's table."""

    def __init__(
        self, ledger: Ledger, costs: StepCosts, speculation: Speculation, wiring: Wiring
    ) -> None:
        self.ledger = ledger
        self._speculation = speculation
        self._costs = costs
        self._wiring = wiring

    def handlers(self) -> dict[int, Callable[[], None]]:
        """Return what has to be done in Python, by verb."""
        speculation, costs = self._speculation, self._costs.compiled()
        wanted: dict[int, tuple[bool, Callable[[], None]]] = {
            TAKE_IN: (isinstance(speculation.policy, PicksDrafter), self.take_in),
            OFFER: (speculation.offers and not self.ledger.is_async, self._offer),
            CHARGE_FORWARD: (costs.target is None, self.charge_forward),
            CHARGE_DRAFTS: (
                not costs.drafts or speculation.is_shared_out or self._reads_trees,
                self._charge_drafts,
            ),
            VERIFY: (speculation.verifies, self._verify),
            SCHEDULED: (bool(self._wiring.observers), self._scheduled),
            DELIVERED: (bool(self._wiring.observers) or speculation.minds_ends, self._delivered),
            REFUSED: (True, self._refuse),
        }
        return {verb: handler for verb, (is_wanted, handler) in wanted.items() if is_wanted}

    @property
    def _reads_trees(self) -> bool:
        """Whether what it takes to draft depends on the shapes of trees."""
        return self._speculation.drafts_trees and not self._costs.drafts_at_one_cost

    def take_in(self) -> None:
        """Queue the requests that have arrived by now, and choose who drafts for each."""
        ledger, facts = self.ledger, self._wiring.facts
        first = ledger["first_arrival"]
        while not take_in(ledger.records):
            ledger.grow()
        table = ledger.records
        for arrival in table.arrivals[first : ledger["first_arrival"]]:
            if arrival.kind != REQUEST:
                continue
            sequence = table.sequences[arrival.row]
            request, prompt_len = int(arrival.request), int(sequence.prompt_len)
            drafter = self._speculation.choose_drafter(request, prompt_len)
            sequence.drafter = drafter
            sequence.fate_at = facts.starts[request] + drafter * facts.num_outputs

    def _refuse(self) -> None:
        """Say what the policy has said that nobody can do."""
        is_asked = self.ledger.table.order[self.ledger["place"]] == ASK
        self._speculation.refuse(self.ledger.step, is_asked=is_asked)

    def _offer(self) -> None:
        step = self.ledger.step
        step["offered_len"][:] = self._speculation.offered_lens(step)
        offer(self.ledger.records)

    def charge_forward(self) -> None:
        """Say what the step takes without its drafts."""
        step = self.ledger.step
        load = step.load
        if load.batched_tokens:
            # Under batch expansion a context is read several times: only the sums tell.
            is_read_once = step.record["context_tokens"] == step.record["own_context_tokens"]
            if self._costs.target.uses_pieces and is_read_once:
                load = load._replace(pieces=step.pieces())
            step.record["target_time"] = self._slowness * self._costs.target_time(load)
        if step.size:
            overhead_time = self._costs.overhead_time(step.size)
            step.record["overhead_time"] = self._slowness * overhead_time

    @property
    def _slowness(self) -> float:
        return float(self.ledger.table.state["slowness"][0])

    def _charge_drafts(self) -> None:
        step, slowness = self.ledger.step, self._slowness
        if self.ledger.table.limits["overlaps"][0]:
            keep_up(self.ledger.records)
        usual_time = float(step.record["target_time"]) / slowness
        loads: list[tuple[int, StepLoad, Drafted]]
        loads = [(0, step.drafter_load, np.array(step["asked_len"]))]
        if self._speculation.leaves_out:
            read_prefixes(self.ledger.records)
        speculation = self._speculation
        if speculation.is_shared_out or speculation.leaves_out or self._reads_trees:
            loads = self._speculation.drafter_loads(step)
        if step.record["skips_drafts"] == IDLE:
            nothing = np.zeros(step.size, dtype=np.int64)
            loads = [(drafter, load, nothing[: len(lens)]) for drafter, load, lens in loads]
        draft_time = sum(
            slowness * self._costs.draft_time(load, draft_lens, usual_time, drafter)
            for drafter, load, draft_lens in loads
        )
        draft_time = note_drafting(self.ledger.records, draft_time)
        if self.ledger.table.limits["prefill_first"][0]:
            step.record["verified_draft_time"] = draft_time

    def _verify(self) -> None:
        assert self._speculation.source is not None
        step = self.ledger.step
        accepted_lens = self._speculation.source.accepted_lens(step)
        accepted_lens[step["is_padded"] == 1] = 0
        step["accepted_len"][:] = np.minimum(accepted_lens, step["verified_len"])

    def _scheduled(self) -> None:
        step = self.ledger.step
        for observer in self._wiring.observers:
            observer.scheduled(step)

    def _delivered(self) -> None:
        step = self.ledger.step
        for observer in self._wiring.observers:
            observer.delivered(step)
        source = self._speculation.source
        if source is not None and self._speculation.minds_ends:
            has_ended = (step.of_sequences("status") == FINISHED) & (step["emitted_len"] > 0)
            for request in step.requests[has_ended].tolist():
                source.end(request)
