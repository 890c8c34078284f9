"""A step made by hand, as whoever decides or verifies in Python sees it."""

from typing import Any

from specsim.core.compiled import as_records
from specsim.engine.asking import look
from specsim.engine.setup import Facts, Setup
from specsim.engine.table import Table
from specsim.engine.view import StepView
from specsim.hardware.kv_groups import one_group

__all__ = ["step_of"]


def step_of(*entries: dict[str, int], **step: int) -> tuple[Table, StepView]:
    """Return a table and its one step.

    Parameters
    ----------
    *entries : dict
        One per sequence: any fields of `Entry` and of `Sequence`, by name; of requests 0, 1, ...
        unless said otherwise.
    **step
        Fields of `Step`.

    Returns
    -------
    table : Table
    step : StepView
    """
    limits = {"max_num_running": len(entries), "num_blocks": 2, "max_model_len": 4}
    facts = Facts.of([], 4, with_keys=False)
    table = Setup("synchronous", limits, one_group(4)).table(facts=facts.rows, keys=facts.keys)
    everything: Any = table
    for place, fields in enumerate(entries):
        everything.entries["row"][0, place] = place
        for name, value in {"request": place, **fields}.items():
            for rows in (everything.entries[0], everything.sequences):
                if name in rows.dtype.names:
                    rows[name][place] = value
    everything.steps["num_requests"] = len(entries)
    for name, value in step.items():
        everything.steps[name] = value
    look(Table(*map(as_records, table)), is_verified=False)
    return table, StepView(table, 0)
