"""Ledger: the table of one replica as Python reads and writes it, and the loop over it."""

from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specsim.core.compiled import Bound, Pointers, as_records
from specsim.engine.order import advance, come
from specsim.engine.setup import linked_rows
from specsim.engine.table import NO_ROW, TABLE_TYPES, Table
from specsim.engine.view import StepView


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
