"""Text: the tokens of one request in the engine, and how far each model has read them."""

import numpy as np
from numpy.typing import NDArray

from specsim.reality.torch_engine.batch import Span

__all__ = ["Text"]


class Text:
    """Prompt, output so far, and behind them the drafts that wait to be verified.

    Args:
        slot_len: Longest text that the KV cache holds, in tokens.
    """

    def __init__(self, prompt: NDArray[np.int64], slot_len: int) -> None:
        self.token_ids = np.zeros(slot_len + 1, dtype=np.int64)
        self.token_ids[: len(prompt)] = prompt
        self.slot: int | None = None
        """Row of the KV caches; None while it does not run."""
        self.draft_read_len = 0
        """Tokens in the draft model's KV cache."""

    def span(self, start: int, end: int, asked: range) -> Span:
        """Return the tokens from one position up to another, to be read."""
        assert self.slot is not None
        return Span(self.slot, start, self.token_ids[start:end], asked)

    def write(self, position: int, token_ids: list[int]) -> None:
        """Put tokens at a position, over whatever stood there."""
        self.token_ids[position : position + len(token_ids)] = token_ids
