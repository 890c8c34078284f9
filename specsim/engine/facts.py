"""Facts: what does not change about the requests of a run, as columns that all replicas share."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from specsim.core.request import BlockKey, Columns, Request
from specsim.core.step import Ints
from specsim.engine.table import ARRAY_TYPES, NEVER


@dataclass(frozen=True)
class Facts:
    """The requests of a run, and where each begins in arrays by output position."""

    rows: NDArray[np.void]
    """Records `specsim.engine.table.Fact`, by index of the request."""
    keys: Ints
    """Shared block keys of all requests, end to end; negative, equal where the keys are."""
    starts: Ints
    """Shape (n + 1,): output tokens of all requests before each."""
    longest_len: int = NEVER
    """No request is longer, max_tokens included, tokens."""

    @classmethod
    def of(
        cls,
        requests: Sequence[Request],
        block_size: int,
        *,
        with_keys: bool,
        lookahead_len: int = 0,
    ) -> "Facts":
        """Return the facts of a run, with keys if prefixes are cached.

        Args:
            lookahead_len: Tokens after a block that its key covers.
        """
        columns = Columns.of(requests)
        rows = np.zeros(len(requests), dtype=ARRAY_TYPES["facts"][0])
        rows["prompt_len"] = columns.prompt_lens
        rows["output_len"] = columns.output_lens
        rows["max_tokens"] = columns.max_tokens
        rows["priority"] = columns.priorities
        rows["adapter"] = columns.adapters
        if columns.ids is not None:
            rows["rank"] = np.unique(columns.ids, return_inverse=True)[1]
        starts = np.zeros(len(requests) + 1, dtype=np.int64)
        np.cumsum(rows["output_len"], out=starts[1:])
        rows["output_at"] = starts[:-1]
        longest_len = int((rows["prompt_len"] + rows["max_tokens"]).max(initial=1))
        rows["key_at"] = 1
        keys = np.zeros(1, dtype=np.int64)
        if with_keys and columns.may_share:
            keys = _shared_keys(requests, block_size, lookahead_len, rows)
        return cls(rows, keys, starts, longest_len)

    @property
    def num_adapters(self) -> int:
        """The highest number of a LoRA adapter."""
        return int(self.rows["adapter"].max(initial=0))

    @property
    def num_outputs(self) -> int:
        """Output tokens of all requests."""
        return int(self.starts[-1])


def _shared_keys(
    requests: Sequence[Request], block_size: int, lookahead_len: int, rows: NDArray[np.void]
) -> Ints:
    """Return the block keys that requests may share, numbered; enter in `rows` whose they are."""
    numbers: dict[BlockKey, int] = {}
    keys: list[Ints] = [np.zeros(1, dtype=np.int64)]
    size = 1
    for index, request in enumerate(requests):
        rows["key_at"][index] = size
        if found := request.shared_block_keys(block_size, lookahead_len):
            mine = [-1 - numbers.setdefault(key, len(numbers)) for key in found]
            keys.append(np.array(mine, dtype=np.int64))
            rows["num_keys"][index] = len(mine)
            size += len(mine)
    return np.concatenate(keys)
