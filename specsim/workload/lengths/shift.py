"""Lengths that change during the run."""

from typing import Annotated, Literal, final

import numpy as np
from pydantic import Field

from specsim.workload.lengths import LENGTHS, Lengths
from specsim.workload.trace import Trace

_Nested = Annotated[Lengths, LENGTHS, LENGTHS.any_member]


@final
class ShiftedLengths(Lengths):
    """The first share of the requests comes from one source, the rest from another."""

    kind: Literal["shift"] = "shift"
    examples = (
        {
            "at": 0.5,
            "before": {"kind": "dataset", "name": "gsm8k"},
            "after": {"kind": "dataset", "name": "sharegpt"},
        },
    )
    at: float = Field(gt=0, lt=1)
    """Share of the run's requests, in the order of arrival, that comes before the change."""
    before: _Nested
    after: _Nested

    @property
    def num_rows(self) -> int | None:
        """How many requests can be drawn before either source runs out."""
        before, after = self.before.num_rows, self.after.num_rows
        bounds = [] if before is None else [before / self.at]
        bounds += [] if after is None else [after / (1 - self.at)]
        return int(min(bounds)) if bounds else None

    def draw(self, rng: np.random.Generator, count: int) -> Trace:
        """Return requests of the one source, then of the other."""
        first = int(count * self.at)
        return self.before.draw(rng, first).followed_by(self.after.draw(rng, count - first))
