"""The verbs of a step that are done in Python: with the same state before and after as in a loop.

A latency model without a form, several drafters, real drafts, and whoever watches. Policies in
Python are asked by the loop itself (`specsim.engine.asking`).
"""

from collections.abc import Callable

import numpy as np

from specsim.core.step import StepLoad
from specsim.decisions.policy import PicksDrafter
from specsim.engine.cost import keep_up, note_drafting, read_prefixes
from specsim.engine.draft import offer
from specsim.engine.engine_limits import IDLE
from specsim.engine.ledger import Ledger
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
)
from specsim.engine.schedule import take_in
from specsim.engine.setup import Wiring
from specsim.engine.sources import Drafted
from specsim.engine.speculation import Speculation
from specsim.engine.table import FINISHED, REQUEST
from specsim.profile import StepCosts


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
