"""A replica's current step as Python sees it: columns, in scheduling order."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specsim.core.step import Ints, Pieces, StepLoad
from specsim.decisions.loops import View
from specsim.engine.table import FINISHED, Table


class StepView:
    """The step at a place of the ring: views of the table, valid until the verb is done."""

    __slots__ = ("entries", "record", "rows", "size", "table")

    def __init__(self, table: Table, place: int) -> None:
        steps: Any = table.steps
        self.record: Any = steps[place]
        self.size = int(self.record["num_requests"])
        self.entries: Any = table.entries[place, : self.size]
        self.rows: Ints = self.entries["row"]
        self.table = table

    def __getitem__(self, name: str) -> Ints:
        """Return a column of the entries, a view."""
        column: Ints = self.entries[name]
        return column

    def of_sequences(self, name: str) -> Ints:
        """Return a column of the sequences, a copy."""
        column: Ints = self.table.sequences[name][self.rows]
        return column

    @property
    def view(self) -> View:
        """The policy's view of the step, as gathered for this verb."""
        return self.table.seen

    def shown(self, name: str) -> int:
        """Return a field of `Shown` that was gathered for this verb."""
        return int(self.table.seen.step[name][0])

    def each(self, name: str) -> Iterator[tuple[int, int, int]]:
        """Yield each sequence's request, output tokens so far, and entry of a column."""
        columns = (self.requests, self.output_lens, self.entries[name])
        return zip(*(column.tolist() for column in columns), strict=True)

    @property
    def requests(self) -> Ints:
        """Index of the request of each sequence, a copy."""
        return np.array(self.entries["request"])

    @property
    def output_lens(self) -> Ints:
        """Output tokens of each sequence that are known by now, a copy."""
        return self.of_sequences("known_len") - self.of_sequences("prompt_len")

    @property
    def emits(self) -> NDArray[np.bool_]:
        """Whether each sequence delivers anything when the step comes back."""
        emits: NDArray[np.bool_] = self.entries["is_partial"] == 0
        emits &= self.of_sequences("status") != FINISHED
        return emits

    @property
    def load(self) -> StepLoad:
        """Load of the target's forward pass."""
        return self._load("context_tokens", "batched_tokens")

    @property
    def own_load(self) -> StepLoad:
        """Load of the target's forward pass, with every context counted once."""
        return self._load("own_context_tokens", "batched_tokens")

    @property
    def drafter_load(self) -> StepLoad:
        """Load of a drafter that serves all sequences, after the step."""
        return self._load("drafter_context_tokens", "drafter_batched_tokens")

    def _load(self, context_tokens: str, batched_tokens: str) -> StepLoad:
        record = self.record
        return StepLoad(
            int(record[context_tokens]),
            int(record[batched_tokens]),
            self.size,
            int(record["prefill_tokens"]),
        )

    def pieces(self) -> Pieces:
        """Return the query and context lengths of each sequence."""
        query_lens = self["scheduled_len"] - self["draft_len"] + self["verified_len"]
        return Pieces(query_lens.tolist(), self["start"].tolist())
