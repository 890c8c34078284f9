"""What steps cost in a run, beside what the same steps cost in a grid.

Between two steps of a run a server schedules, counts and writes down, and the caches hold less of
the models afterwards. So a grid settles how the costs of steps compare, and runs settle their
level.
"""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from specsim.core.step import StepLoad
from specsim.reality.calibration.fitting import Costs
from specsim.reality.calibration.run_writer import StepRow
from specsim.reality.calibration.served import Spans

__all__ = ["Levels", "in_situ_levels"]

_DISTURBED = 3.0
"""How many times as much above prediction as usual a step may be and still count."""


class Levels(NamedTuple):
    """How many times as much something costs in runs as in the grid."""

    target: float = 1.0
    draft: float = 1.0


def in_situ_levels(costs: Costs, steps: Iterable[tuple[StepRow, Spans, float]]) -> Levels:
    """Compare steps of runs with what a grid says.

    Args:
        costs: Fitted to the grid.
        steps: And how many times as slow as usual the machine was.

    Returns:
        1 of what no step has.
    """
    targets, drafts = [], []
    for row, spans, slowness in steps:
        load = StepLoad(
            row["context_tokens"], row["batched_tokens"], row["num_requests"], row["prefill_tokens"]
        )
        requests = costs.request_us * load.num_requests / 1e6
        target = costs.target.forward_time(load) + requests
        draft = costs.draft.draft_time(load, row.get("made_drafts", 0), target)
        targets.append((spans.target, slowness * target))
        drafts.append((spans.draft, slowness * draft))
    return Levels(_level(targets), _level(drafts))


def _level(pairs: list[tuple[float, float]]) -> float:
    found = np.array([(real, ours) for real, ours in pairs if real > 0 and ours > 0])
    if not len(found):
        return 1.0
    ratios = found[:, 0] / found[:, 1]
    real, ours = found[ratios < _DISTURBED * np.median(ratios)].sum(axis=0)
    return float(real / ours)
