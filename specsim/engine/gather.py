"""Gather: what a policy is shown of a step, gathered side by side before Python is asked.

A column of `sequences` is a number in every few hundred bytes, and numpy takes longer to collect it
than most policies take to decide.
"""

from specsim.core.compiled import inner
from specsim.engine.table import FINISHED, Table

REQUEST, PROMPT_LEN, KNOWN_LEN, IN_CHUNK, IS_UNDRAFTED, DRAFT_LEN = range(6)
"""Rows of `Table.columns` where a policy decides, by `look`."""
VERIFIED_LEN, ACCEPTED_LEN = range(1, 3)
"""Those beside `REQUEST` where it learns, of the sequences that emit anything, by `look_back`."""
NUM_COLUMNS = 6

SIZE, DECODES, CONTEXT_TOKENS, UNDRAFTED, ADMITTED, DRAFT_TOKENS, ACCEPTED_TOKENS = range(7)
"""Places of `Table.sums`: columns filled in; sequences that are not in mid-prefill, and tokens that
are known of them; sequences that are never drafted for, and admitted for the first time; and two
sums."""
NUM_SUMS = 7


@inner
def look(table: Table, is_verified: bool) -> None:
    """Gather the sequences of the current step; if it is verified, with what it accepted."""
    state, columns, sums = table.state[0], table.columns, table.sums
    size = table.steps[state.current].num_requests
    sums[:] = 0
    sums[SIZE] = size
    for place in range(size):
        entry = table.entries[state.current, place]
        sequence = table.sequences[entry.row]
        known_len = sequence.known_len
        if not sequence.in_chunk:
            if is_verified:
                known_len += entry.accepted_len + 1
            sums[DECODES] += 1
            sums[CONTEXT_TOKENS] += known_len
        columns[REQUEST, place] = entry.request
        columns[PROMPT_LEN, place] = sequence.prompt_len
        columns[KNOWN_LEN, place] = known_len
        columns[IN_CHUNK, place] = sequence.in_chunk
        columns[IS_UNDRAFTED, place] = sequence.is_undrafted
        columns[DRAFT_LEN, place] = entry.draft_len
        sums[UNDRAFTED] += sequence.is_undrafted
        sums[ADMITTED] += entry.is_admitted
        sums[DRAFT_TOKENS] += entry.draft_len


@inner
def look_back(table: Table) -> None:
    """Gather what became of the drafts of the current step."""
    state, columns, sums = table.state[0], table.columns, table.sums
    sums[:] = 0
    num = 0
    for place in range(table.steps[state.current].num_requests):
        entry = table.entries[state.current, place]
        if entry.is_partial or table.sequences[entry.row].status == FINISHED:
            continue
        columns[REQUEST, num] = entry.request
        columns[VERIFIED_LEN, num] = entry.verified_len
        columns[ACCEPTED_LEN, num] = entry.accepted_len
        sums[ACCEPTED_TOKENS] += entry.accepted_len
        num += 1
    sums[SIZE] = num
