"""Which requests a step no longer has: they have ended, or were preempted."""

from typing import Annotated, Any, NamedTuple, Protocol

import numpy as np

from specsim.core.compiled import Rows, inner
from specsim.core.desk import Desk, Floats, Ints, PerRequest
from specsim.decisions.loops import View, row_of

MOST = 1 << 20  # what engine.max_num_seqs may be


class NumPresent(Protocol):
    """How many requests the last step had."""

    num: int


class Present(NamedTuple):
    """Who was in the last step."""

    size: Rows[NumPresent]  # one row
    requests_before: Ints
    left: Ints  # filled in: who is not in this one
    marks: Floats  # of each request: whether it is in the step, while that is looked at


PresentPart = Annotated[Any, Present]
"""It as part of what a policy remembers."""


@inner
def find_leavers(view: View, present: Present) -> int:
    """Note who is in a step; return how many have left since the last, and who they are in `left`.

    A step that leaves running sequences out says nothing of them.
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
    """Return what is known before the first step."""
    before = np.zeros(MOST, dtype=np.int64)
    size, marks = row_of(NumPresent), PerRequest(0.0)
    return Desk(Present, size=size, requests_before=before, marks=marks)
