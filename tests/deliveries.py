"""The deliveries of a run, without the room that is left between those of two requests."""

import numpy as np

from specsim.results.records import Deliveries
from specsim.run.simulate import Run
from specsim.run.summary import Summary


def every_delivery(run: Run) -> Deliveries:
    """Return them request after request; the run must have kept them."""
    assert run.deliveries is not None
    counts = Summary(run).tables.requests["deliveries"]
    starts = np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])
    names = ("at", "lens", "drafted", "accepted")
    return Deliveries(starts, *(run.deliveries.column(name, counts) for name in names))


def of_request(run: Run, request: int) -> Deliveries:
    """Return those of one request."""
    packed = every_delivery(run)
    mine = slice(packed.starts[request], packed.starts[request + 1])
    columns = (packed.at, packed.lens, packed.drafted, packed.accepted)
    return Deliveries(np.array([0, len(packed.at[mine])]), *(column[mine] for column in columns))


def gaps(run: Run) -> list[list[float]]:
    """Return the time between the deliveries of each request."""
    packed = every_delivery(run)
    return [np.diff(times).tolist() for times in np.split(packed.at, packed.starts[1:-1])]
