"""Lengths as they were recorded: the rows in their order, or drawn from them."""

from pathlib import Path
from typing import Literal, final

import numpy as np

from specsim.core.errors import TraceError
from specsim.workload.lengths import Lengths
from specsim.workload.readers import read_trace
from specsim.workload.trace import Trace


@final
class TraceRows(Lengths):
    """The rows of a file in their order, with token ids and recorded acceptance if it has them."""

    kind: Literal["trace"] = "trace"
    examples = ({"path": "traces/chat.parquet"},)
    path: Path
    """A workload of any known format; shipped ones, ``traces/...``, are found from anywhere."""

    @property
    def num_rows(self) -> int:
        """Rows of the file."""
        return len(read_trace(self.path))

    @property
    def in_sessions(self) -> bool:
        """Whether the file says which session each row is of."""
        return read_trace(self.path).sessions is not None

    @property
    def mean_turns(self) -> float:
        """How many requests a session has in the mean."""
        trace = read_trace(self.path)
        return len(trace) / trace.num_sessions

    def draw(self, rng: np.random.Generator, count: int) -> Trace:
        """Return the first rows; a TraceError if the file has fewer."""
        trace = read_trace(self.path)
        if count > len(trace):
            raise TraceError(
                f"{self.path}: has {len(trace)} requests, {count} are asked for; lower "
                "num_requests or draw with lengths of kind 'empirical'"
            )
        return trace.take(np.arange(count))


@final
class Empirical(Lengths):
    """Each request is a row of a file, drawn with replacement.

    Prompt and output stay together, so their correlation is kept. Not to be confused with `trace`,
    which takes the rows in their order, once each.
    """

    kind: Literal["empirical"] = "empirical"
    examples = ({"path": "traces/chat.parquet"},)
    path: Path
    """A workload of any known format; shipped ones, ``traces/...``, are found from anywhere."""

    def draw(self, rng: np.random.Generator, count: int) -> Trace:
        """Return rows drawn with replacement; only the lengths, for the requests are new ones."""
        trace = read_trace(self.path)
        rows = rng.integers(0, len(trace), count)
        return Trace(trace.prompt_lens[rows], trace.output_lens[rows])
