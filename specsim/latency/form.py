"""How long a forward pass lasts: each formula once, for loops and for Python.

A form is an array of numbers. The first says which formula, the rest are its constants:

- `COEFFICIENTS`, then alpha, gamma and delta of a step without prefill and of one with;
- `TABLE`, then where the table for steps with prefill begins, and both tables: the lengths of their
  two axes, the axes, and the times.
- `ROOFLINE`, then what is fixed and what is exchanged per token, what attention takes per pair, per
  context token and per token, and the number of matrices; of each what a token takes to compute,
  the weights to read and a token to move, whether it sees sampled tokens only, and of experts the
  share that a token leaves out.
- `STAIRCASE`, then what a step without a graph takes more, and how many numbers of tokens are
  padded; what each is padded to; and another form.
- `COMPOSED`, then what is fixed, whether every decoded token is sampled after, where the tables of
  the matrices and of the head begin, how many kinds of layers there are, and what a step with
  prompts takes at least, one without, and one of more tokens than the largest CUDA graph, which
  is next; of each kind its window, the query tokens of a tile, the time of a pair and of a launch,
  and where its tables of decodes, of chunks of prompts and of whole prompts begin; then all tables,
  as above, in seconds.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from specsim.core.compiled import inlined, inner

Form = NDArray[np.float64]

COEFFICIENTS, TABLE, ROOFLINE, STAIRCASE, COMPOSED = 0.0, 1.0, 2.0, 3.0, 4.0

NO_WINDOW = float(1 << 40)  # a window that no context reaches
HEAD_LEN, GROUP_LEN = 10, 7
"""Numbers at the beginning of a composed form, and of each of its kinds of layers."""
MOST_VERIFIED = 64.0
"""Query tokens of a sequence up to which attention treats it as a decode, its drafts included."""


@inlined
def forward_time(
    form: Form, context_tokens: int, batched_tokens: int, num_requests: int, prefill_tokens: int
) -> float:
    """Return how long a forward pass lasts, seconds."""
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
        return _looked_up(form, table, float(context_tokens), float(batched_tokens)) * 1e-3
    if form[first] == COMPOSED:
        return _composed_by_sums(form, context_tokens, batched_tokens, num_requests, prefill_tokens)
    return _roofline_time(form, first, context_tokens, batched_tokens, num_requests, prefill_tokens)


@inner
def composed_time(
    form: Form, batched_tokens: int, prefill_tokens: int, entries: Any, current: int, size: int
) -> float:
    """Return how long a forward pass lasts of which every sequence is known, seconds.

    Args:
        form: A composed one.
        entries: Records with `start` (context tokens before the step), `scheduled_len`, `draft_len`
            and `verified_len`; shape (steps, sequences).
        current: Its first index.
        size: How many sequences the step has.
    """
    total = _tokens_time(form, batched_tokens, batched_tokens - prefill_tokens, size)
    for number in range(int(form[5])):
        at = HEAD_LEN + GROUP_LEN * number
        decodes, longest, seen, pairs, prompts = 0, 0.0, 0.0, 0.0, 0.0
        launched = _launched(form, at)
        for place in range(size):
            entry = entries[current, place]
            query_len = float(entry.scheduled_len - entry.draft_len + entry.verified_len)
            start, longest = float(entry.start), max(longest, query_len)
            if query_len > MOST_VERIFIED:
                prompts += _prompt_time(form, at, query_len, start) - launched
            else:
                decodes += 1
                seen += min(start + query_len, form[at])
                pairs += _tiled_pairs(form, at, query_len, start)
        if decodes < size:
            total += launched + prompts
        if decodes:
            total += _decode_time(form, at, decodes, seen / decodes, pairs if longest > 1 else 0.0)
    return max(total, _least(form, batched_tokens, prefill_tokens))


@inner
def _composed_by_sums(form: Form, context: int, tokens: int, size: int, prefill: int) -> float:
    """Return it where only sums are known: all contexts are the mean, all prefills one chunk."""
    decode_tokens, decodes, prefills = tokens - prefill, size, 0
    if prefill:
        prefills = 1 if decode_tokens else size
        decodes = size - prefills
    elif tokens > MOST_VERIFIED * size:
        decode_tokens, decodes, prefills, prefill = 0, 0, size, tokens
    total = _tokens_time(form, tokens, decode_tokens, size)
    mean, query_len = context / size, decode_tokens / max(1, decodes)
    for number in range(int(form[5])):
        at = HEAD_LEN + GROUP_LEN * number
        if prefills:
            launched = _launched(form, at)
            each = _prompt_time(form, at, prefill / prefills, mean) - launched
            total += launched + prefills * each
        if decodes:
            pairs = decodes * _tiled_pairs(form, at, query_len, mean)
            seen = min(mean + query_len, form[at])
            is_plain = query_len <= 1.0 and not prefills
            total += _decode_time(form, at, decodes, seen, 0.0 if is_plain else pairs)
    return max(total, _least(form, tokens, prefills))


@inlined
def _least(form: Form, tokens: int, prefills: int) -> float:
    """Return what the host takes to launch the kernels of a step one by one; in graphs nothing."""
    least = form[6] if prefills else form[7]
    return float(max(least, form[8]) if tokens > form[9] else least)


@inner
def _tokens_time(form: Form, tokens: int, decode_tokens: int, size: int) -> float:
    """Return what depends on numbers of tokens only: matrices, and the head on sampled ones."""
    rows = max(size, decode_tokens) if form[2] else size
    total = form[1] + _looked_up(form, int(form[3]), 0.0, float(tokens))
    return float(total + _looked_up(form, int(form[4]), 0.0, float(rows)))


@inlined
def _tiled_pairs(form: Form, at: int, query_len: float, context_len: float) -> float:
    """Return the pairs of query and key that tiles compute of which a few rows are used."""
    tile = form[at + 1]
    rows = tile * np.ceil(query_len / tile)
    return float(rows * min(context_len + 0.5 * rows, form[at]))


@inlined
def _launched(form: Form, at: int) -> float:
    """Return what attention of prompts takes once in a step, as a prompt of no tokens would."""
    table = int(form[at + 6])
    return float(form[table + 3 + int(form[table + 1])])


@inner
def _prompt_time(form: Form, at: int, query_len: float, context_len: float) -> float:
    """Return what attention of a chunk of a prompt takes: a prompt of that end less its start.

    Not less than a whole prompt of as many tokens, than a decode of that context, nor than the
    longest draft that counts as one.
    """
    end = context_len + query_len
    time = _looked_up(form, int(form[at + 6]), 0.0, _reach(form, at, query_len))
    if context_len > 0:
        chunks = int(form[at + 5])
        before = _looked_up(form, chunks, 0.0, _reach(form, at, context_len))
        chunk = _looked_up(form, chunks, 0.0, _reach(form, at, end)) - before
        time = max(time, _launched(form, at) + chunk)
    pairs = _tiled_pairs(form, at, MOST_VERIFIED, context_len)
    return max(time, _decode_time(form, at, 1, min(end, form[at]), pairs))


@inlined
def _reach(form: Form, at: int, prompt_len: float) -> float:
    """Return what attention of a whole prompt rises with: its square, or its length in a window."""
    return float(prompt_len * (prompt_len if form[at] >= NO_WINDOW else 1.0))


@inner
def _decode_time(form: Form, at: int, decodes: int, seen: float, pairs: float) -> float:
    """Return what attention takes of sequences that each see so many tokens.

    Decodes of one query token are as measured. With drafts the tiles of the kernel are computed
    whole, which may take longer than reading the context; their pairs are 0 without.
    """
    time = _looked_up(form, int(form[at + 4]), seen, float(decodes))
    return max(time, float(form[at + 3] + form[at + 2] * pairs)) if pairs else time


@inner
def _roofline_time(
    form: Form, first: int, context: int, tokens: int, size: int, prefill: int
) -> float:
    """Return the sum over operators of the longer of computing and moving data."""
    decodes = tokens - prefill
    total = form[first + 1] + form[first + 2] * tokens
    for number in range(int(form[first + 6])):
        at = first + 7 + 5 * number
        count = max(size, decodes) if form[at + 3] else tokens
        read = form[at + 1]
        if form[at + 4]:
            # Of a whole exponent compiled code would make a chain of products.
            read = read * (1.0 - form[at + 4] ** float(count))
        total += max(form[at] * count, read + form[at + 2] * count)
    # Pairs of query token and key: with the context, and causally among the query tokens.
    pairs = tokens * (context / size + 0.5)
    pairs += 0.5 * (decodes * decodes / size + prefill * prefill / max(1, size - decodes))
    moved = form[first + 4] * context + form[first + 5] * tokens
    return float(total + max(form[first + 3] * pairs, moved))


@inner
def _looked_up(form: Form, table: int, context_tokens: float, batched_tokens: float) -> float:
    """Interpolate linearly in a table.

    Beyond its last point an axis goes on with the slope of its last cell; below the first it is
    constant. Whole numbers of tokens are floats here, too: for each mixture of types loops would
    compile it once more.
    """
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
def _cell(form: Form, axis: int, size: int, at: float) -> int:
    """Return the number of the cell of a rising axis that a point lies in or goes on from."""
    if size == 1 or at <= form[axis]:
        return 0
    below, above = 0, size - 1
    while above - below > 1:
        middle = (below + above) // 2
        if form[axis + middle] <= at:
            below = middle
        else:
            above = middle
    return below


@inner
def _share(form: Form, axis: int, size: int, cell: int, at: float) -> float:
    """Return how far into its cell a point lies: 0 at its lower end, 1 at its upper."""
    if size == 1 or at <= form[axis]:
        return 0.0
    low = form[axis + cell]
    return float((at - low) / (form[axis + cell + 1] - low))
