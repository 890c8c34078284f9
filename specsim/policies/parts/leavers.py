"""Requests that have left the batch since the last step: they ended or were preempted."""

from typing import Annotated, Any, NamedTuple, Protocol

import numpy as np

from specsim.core.compiled import Rows, inner
from specsim.core.desk import Desk, Floats, Ints, PerRequest
from specsim.decisions.loops import View, row_of

MOST = 1 << 20  # what engine.max_num_seqs may be


class NumPresent(Protocol):
    """Number of requests in the last step."""

    num: int


class Present(NamedTuple):
    """The requests of the last step."""

    size: Rows[NumPresent]  # one row
    requests_before: Ints
    left: Ints  # output: requests of the last step that are not in this one
    marks: Floats  # scratch, per request: 1 if it is in this step


PresentPart = Annotated[Any, Present]
"""`Present` as a field of a policy's memory."""


@inner
def find_leavers(view: View, present: Present) -> int:
    """Note the requests of a step; put those that have left since into `left`, return their number.

    Steps without some running sequences are ignored.
    """
    step, left = view.step[0], 0
    if step.num_rows != step.num_running:
        return 0
    for row in range(step.num_rows):
        present.marks[view.requests[row]] = 1.0
    for place in range(present.size[0].num):
        if not present.marks[present.requests_before[place]]:
            present.left[left] = present.requests_before[place]
            left += 1
    for row in range(step.num_rows):
        present.marks[view.requests[row]] = 0.0
        present.requests_before[row] = view.requests[row]
    present.size[0].num = step.num_rows
    return left


def nobody_present() -> Desk[Present]:
    """Return the state before the first step: no requests."""
    before = np.zeros(MOST, dtype=np.int64)
    size, marks = row_of(NumPresent), PerRequest(0.0)
    return Desk(Present, size=size, requests_before=before, marks=marks)
