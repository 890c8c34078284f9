"""Setup: what one replica is made of, before it has seen a request."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specsim.core.step import Ints
from specsim.engine.order import BEGIN, LANDED, LAUNCHED, ORDERS, TAKE_IN, VERBS
from specsim.engine.table import NO_BLOCK, NO_KEY, NO_ROW, TABLE_TYPES, Table
from specsim.latency._form import COSTS

_ROWS = 256  # of sequences, arrivals and gaps to begin with
_RESULTS = 1024  # steps and requests that are held back at most


@dataclass(frozen=True)
class Setup:
    """An engine: its scheduler's limits, in which order it does its verbs, and its KV blocks."""

    order: str
    """One of `specsim.engine.order.ORDERS`."""
    limits: Mapping[str, int]
    """By the names of `specsim.engine.table.Limits`; what is missing is 0."""
    block_sizes: tuple[int, ...]
    """Of each KV cache group."""

    @property
    def is_async(self) -> bool:
        """Whether the next step is scheduled while one runs."""
        return self.order == "asynchronous"

    @property
    def num_usable_blocks(self) -> int:
        """KV blocks without the null block."""
        return self.limits["num_blocks"] - 1

    def table(self, **shared: NDArray[Any]) -> Table:
        """Return the empty table of one replica; `shared` are arrays of the run, by their names."""
        limits = zeros("limits", 1)
        for name, value in self.limits.items():
            limits[name] = value
        launch, land = ORDERS[self.order]
        depth = 2 if self.is_async else 1
        limits["depth"], limits["land_at"] = depth, len(launch) + 3
        limits["prefill_first"] = self.order == "prefill_first"
        limits["num_groups"] = num_groups = len(self.block_sizes)
        most, num_blocks = int(limits["max_num_running"][0]), int(limits["num_blocks"][0])
        width = -(-int(limits["max_model_len"][0]) // min(self.block_sizes))
        longest = int(limits["max_draft_len"][0])
        arrays = {
            **{name: zeros(name, *[1] * axes) for name, (_, axes) in TABLE_TYPES.items()},
            "limits": limits,
            "state": _state(most, num_blocks, num_groups),
            "sequences": linked_rows(_ROWS),
            "arrivals": zeros("arrivals", _ROWS),
            "queue": zeros("queue", _ROWS),
            "running": zeros("running", most),
            "slots": np.arange(most - 1, -1, -1, dtype=np.int64) * num_groups,
            "entries": zeros("entries", depth, most),
            "steps": zeros("steps", depth),
            "groups": zeros("groups", num_groups),
            "blocks": _blocks(num_blocks),
            "chains": zeros("chains", 1 << max(4, (2 * num_blocks - 1).bit_length())),
            "tables": zeros("tables", most * num_groups, width),
            "holdings": zeros("holdings", most * num_groups),
            "hits": zeros("hits", width),
            "order": np.array([TAKE_IN, BEGIN, *launch, LAUNCHED, *land, LANDED], dtype=np.int64),
            "in_python": zeros("in_python", VERBS),
            "lens_by_size": zeros("lens_by_size", most + 1),
            "costs": zeros("costs", len(COSTS)),
            "steps_out": zeros("steps_out", _RESULTS),
            "requests_out": zeros("requests_out", _RESULTS + most),
            "gaps_out": zeros("gaps_out", 8 * _RESULTS + most),  # a few per step
            "seconds_out": zeros("seconds_out", _RESULTS),
            "outcomes": zeros("outcomes", longest + 1, longest + 1),
            **shared,
        }
        arrays["groups"]["block_size"] = self.block_sizes
        return Table(**arrays)  # type: ignore[arg-type]


def zeros(name: str, *shape: int) -> NDArray[Any]:
    """Return an array of a table, of its type, all zero."""
    return np.zeros(shape, dtype=TABLE_TYPES[name][0])


def linked_rows(size: int, first: int = 0) -> NDArray[Any]:
    """Return unused rows of sequences, of which each leads to the next; numbered from `first`."""
    rows = zeros("sequences", size)
    rows["next_row"] = np.arange(first + 1, first + size + 1)
    rows["next_row"][-1] = NO_ROW
    rows["slot"] = -1
    return rows


def _state(most: int, num_blocks: int, num_groups: int) -> NDArray[Any]:
    state = zeros("state", 1)
    state["slowness"] = 1.0
    state["queue_head"] = state["queue_tail"] = NO_ROW
    state["num_free_slots"] = most
    state["first_free"] = 1 if num_blocks > 1 else NO_BLOCK
    state["last_free"] = num_blocks - 1
    state["num_free"] = num_blocks - 1
    return state


def _blocks(num_blocks: int) -> NDArray[Any]:
    """Return the pool: every block but the null block is free, in order of their numbers."""
    blocks = zeros("blocks", num_blocks)
    blocks["key"] = NO_KEY
    numbers: Ints = np.arange(num_blocks)
    blocks["next_free"] = numbers + 1
    blocks["previous_free"] = numbers - 1
    blocks["next_free"][-1] = NO_BLOCK
    return blocks
