"""Verify: how many drafts of each sequence of a step are accepted."""

from specsim.core.compiled import inner
from specsim.engine.table import Table


@inner
def verify(table: Table) -> None:
    """Look up the fate of every draft: it belongs to the request and its output position.

    Every earlier step has been delivered, so positions are known. Trees, and drafts whose fate is
    not in a table, are verified in Python (`specsim.engine.sources`).
    """
    if not table.limits[0].max_draft_len:
        return
    current = table.state[0].current
    for place in range(table.steps[current].num_requests):
        entry = table.entries[current, place]
        if entry.verified_len == 0 or entry.is_padded:
            continue
        sequence = table.sequences[entry.row]
        output_len = sequence.known_len - sequence.prompt_len
        # A step may still be in flight for a sequence that has ended.
        if output_len < table.facts[entry.request].output_len:
            fate = int(table.fates[sequence.fate_at + output_len])
            entry.accepted_len = min(fate, entry.verified_len)
