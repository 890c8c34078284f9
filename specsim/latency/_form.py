"""The compiled form of latency models: what the engine's loops compute by themselves.

A form is an array of numbers. The first says which formula, the rest are its constants:

- `COEFFICIENTS`, then alpha, gamma and delta of a step without prefill and of one with;
- `TABLE`, then where the table for steps with prefill begins, and both tables: the lengths of their
  two axes, the axes, and the times.
- `ROOFLINE`, then what is fixed and what is exchanged per token, what attention takes per pair, per
  context token and per token, and the number of matrices; of each what a token takes to compute,
  the weights to read and a token to move, and whether it sees sampled tokens only.
- `STAIRCASE`, then what a step without a graph takes more, and how many numbers of tokens are
  padded; what each is padded to; and another form.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specsim.core.compiled import inlined, inner

Form = NDArray[np.float64]

COEFFICIENTS, TABLE, ROOFLINE, STAIRCASE = 0.0, 1.0, 2.0, 3.0

COSTS = (
    "overhead_step",
    "overhead_request",
    "has_drafter",
    "has_latency",
    "basis",
    "target_share",
    "token",
    "step",
    "request",
)
"""What a step costs besides its forward passes: seconds of `specsim.profile.Overhead`, then those
of `DraftCost`, whose basis is 0 for pass, 1 for draft, 2 for heads."""


@dataclass(frozen=True)
class CompiledCosts:
    """Costs that the loops compute by themselves."""

    target: Form | None
    """None: the latency model is Python."""
    drafter: Form | None
    """None: the drafter's is, or there is none."""
    constants: Mapping[str, float]
    """By the names in `COSTS`."""
    drafts: bool
    """Whether drafting is among them."""


@inlined
def forward_time(
    form: Form, context_tokens: int, batched_tokens: int, num_requests: int, prefill_tokens: int
) -> float:
    """Return how long a forward pass lasts, seconds; the same to the bit as the model's own."""
    first, extra = 0, 0.0
    if form[0] == STAIRCASE:
        num_sizes = int(form[2])
        first = 3 + num_sizes
        if batched_tokens < num_sizes:
            batched_tokens = int(form[3 + batched_tokens])
        else:
            extra = float(form[1])
    if form[first] != COEFFICIENTS:
        return extra + _time(
            form, first, context_tokens, batched_tokens, num_requests, prefill_tokens
        )
    alpha = first + (4 if prefill_tokens else 1)
    time = form[alpha] * context_tokens + form[alpha + 1] * batched_tokens + form[alpha + 2]
    return float(time + extra)


@inner
def _time(
    form: Form,
    first: int,
    context_tokens: int,
    batched_tokens: int,
    num_requests: int,
    prefill_tokens: int,
) -> float:
    """Return the time by the formula that begins at a place of a form, if it is a longer one."""
    if form[first] == TABLE:
        table = first + (int(form[first + 1]) if prefill_tokens else 2)
        return _looked_up(form, table, context_tokens, batched_tokens) * 1e-3
    return _roofline_time(form, first, context_tokens, batched_tokens, num_requests, prefill_tokens)


@inner
def _roofline_time(
    form: Form, first: int, context: int, tokens: int, size: int, prefill: int
) -> float:
    """See `specsim.latency.roofline.Roofline.forward_time`."""
    decodes = tokens - prefill
    total = form[first + 1] + form[first + 2] * tokens
    for number in range(int(form[first + 6])):
        at = first + 7 + 4 * number
        count = max(size, decodes) if form[at + 3] else tokens
        total += max(form[at] * count, form[at + 1] + form[at + 2] * count)
    pairs = tokens * (context / size + 0.5)
    pairs += 0.5 * (decodes * decodes / size + prefill * prefill / max(1, size - decodes))
    moved = form[first + 4] * context + form[first + 5] * tokens
    return float(total + max(form[first + 3] * pairs, moved))


@inner
def _looked_up(form: Form, table: int, context_tokens: int, batched_tokens: int) -> float:
    """Interpolate linearly in a table; see `specsim.latency._grid.Grid`."""
    num_rows, width = int(form[table]), int(form[table + 1])
    rows, columns = table + 2, table + 2 + num_rows
    times = columns + width
    row = _cell(form, rows, num_rows, context_tokens)
    column = _cell(form, columns, width, batched_tokens)
    down = _share(form, rows, num_rows, row, context_tokens)
    right = _share(form, columns, width, column, batched_tokens)
    at = times + row * width + column
    if down == 0.0 and right == 0.0:
        return float(form[at])
    if right == 0.0:
        return float(0.0 + (1.0 - down) * form[at] + down * form[at + width])
    if down == 0.0:
        return float(0.0 + (1.0 - right) * form[at] + right * form[at + 1])
    return float(
        0.0
        + (1.0 - down) * (1.0 - right) * form[at]
        + (1.0 - down) * right * form[at + 1]
        + down * (1.0 - right) * form[at + width]
        + down * right * form[at + width + 1]
    )


@inner
def _cell(form: Form, axis: int, size: int, at: Any) -> int:
    """Return the number of the cell of a rising axis that a point lies in or goes on from."""
    if size == 1 or at <= form[axis]:
        return 0
    below = 0
    while below < size - 2 and form[axis + below + 1] <= at:
        below += 1
    return below


@inner
def _share(form: Form, axis: int, size: int, cell: int, at: Any) -> float:
    """Return how far into its cell a point lies: 0 at its lower end, 1 at its upper."""
    if size == 1 or at <= form[axis]:
        return 0.0
    low = form[axis + cell]
    return float((at - low) / (form[axis + cell + 1] - low))
