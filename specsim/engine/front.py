"""The front end of engines: what takes requests in before an engine sees them."""

import numpy as np

from specsim.engine.lanes import Lanes


class Front:
    """HTTP and handing over, which only delay, and tokenization, one prompt after the other.

    Each engine has one tokenizer, and whichever is free first takes the next prompt (vLLM 0.32
    ``renderers/base.py``: one executor per API server).

    Args:
        front_time: What each request takes, seconds.
        token_time: What each token of a prompt takes, seconds.
        num_requests: Of the run.
    """

    def __init__(
        self, front_time: float, token_time: float, num_engines: int, num_requests: int
    ) -> None:
        self.front_time = front_time
        self.has_queue = token_time > 0
        self.delays = np.full(num_requests, front_time)
        """By the index of the request: what it has taken to reach the engine, seconds."""
        self._token_time = token_time
        self._tokenizers = Lanes(num_engines)

    def reaches_at(self, sent_at: float, index: int, prompt_len: int) -> float:
        """Return when a request reaches the engine; to be asked in the order of sending."""
        if not self.has_queue:
            return sent_at + self.front_time
        ready_at = self._tokenizers.book(sent_at, self._token_time * prompt_len)
        self.delays[index] = ready_at + self.front_time - sent_at
        return ready_at + self.front_time
