"""Replay: what decoding with drafts of one length gives, step by step."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from specsim.acceptance.base import Acceptance
from specsim.core.request import Request
from specsim.core.rng import Luck, stream_id

__all__ = ["LAGS", "WINDOW", "Replay", "Twin", "replay"]

WINDOW = 8
"""Consecutive steps over which accepted tokens are summed."""

LAGS = (1, 2, 4, 8)
"""Steps apart at which the correlation of accepted tokens is measured."""

_CHUNK = 1024  # requests asked about at once, as in a run


@dataclass(frozen=True)
class Replay:
    """The steps of some requests, each decoded from its first token on with drafts of k tokens."""

    draft_len: int
    output_lens: NDArray[np.int64]
    """Shape (n_requests,), tokens, each at least 2."""
    accepted_lens: NDArray[np.uint8]
    """Shape (n_steps,), the steps of one request after those of another, in order."""
    num_steps: NDArray[np.int64]
    """Shape (n_requests,)."""

    @cached_property
    def tokens_per_step(self) -> NDArray[np.float64]:
        """Output tokens per decode step of each request, shape (n_requests,)."""
        return np.asarray((self.output_lens - 1) / self.num_steps)

    @property
    def steps_per_token(self) -> float:
        """Decode steps of all requests per output token of theirs."""
        return float(self.num_steps.sum() / (self.output_lens - 1).sum())

    @cached_property
    def window_sums(self) -> NDArray[np.int16]:
        """Accepted tokens in every `WINDOW` consecutive steps of a request."""
        before = np.concatenate([[0], np.cumsum(self.accepted_lens, dtype=np.int64)])
        sums = before[WINDOW:] - before[:-WINDOW]
        requests = np.repeat(np.arange(len(self.num_steps)), self.num_steps)
        is_within = requests[WINDOW - 1 :] == requests[: len(sums)]
        return np.asarray(sums[is_within], dtype=np.int16)

    @cached_property
    def autocorrelations(self) -> NDArray[np.float64]:
        """Correlation of accepted tokens with those so many steps later, shape (len(LAGS),)."""
        requests = np.repeat(np.arange(len(self.num_steps)), self.num_steps)
        deviations = self.accepted_lens - self.accepted_lens.mean()
        variance = max(float(deviations.var()), 1e-12)
        found = np.zeros(len(LAGS))
        for row, lag in enumerate(LAGS):
            is_within = requests[lag:] == requests[:-lag]
            products = (deviations[lag:] * deviations[:-lag])[is_within]
            found[row] = products.mean() / variance if len(products) else 0.0
        return found

    @cached_property
    def conditional_rates(self) -> NDArray[np.float64]:
        """P(token j accepted | all before it in the draft were), shape (draft_len,)."""
        reached = np.array([(self.accepted_lens >= j).sum() for j in range(self.draft_len + 1)])
        return np.asarray(reached[1:] / np.maximum(reached[:-1], 1))

    @cached_property
    def drift(self) -> float:
        """Accepted tokens per step gained whenever the output grows by a factor e.

        Slope of a linear regression on the logarithm of the output length so far.
        """
        ends = np.cumsum(self.accepted_lens + np.int64(1))
        first = np.cumsum(self.num_steps) - self.num_steps
        starts = ends - self.accepted_lens
        logs = np.log(starts - np.repeat(starts[first] - 1, self.num_steps))
        spread = logs.var()
        return float(np.cov(logs, self.accepted_lens, bias=True)[0, 1] / spread) if spread else 0.0

    def counts(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return how often each request accepted and rejected the j-th token of a draft.

        Returns:
            Of shape (n_requests, draft_len).
        """
        shape = (len(self.num_steps), self.draft_len + 1)
        requests = np.repeat(np.arange(shape[0]), self.num_steps)
        ended = np.bincount(requests * shape[1] + self.accepted_lens, minlength=shape[0] * shape[1])
        ended = ended.reshape(shape)
        accepted = ended[:, ::-1].cumsum(axis=1)[:, ::-1][:, 1:]
        return accepted, ended[:, :-1]


def replay(tables: Sequence[bytes], draft_len: int) -> Replay:
    """Decode requests with drafts of one length.

    The first output token comes from the prefill; every step after it emits the accepted tokens
    and the bonus token, until the output is over.

    Args:
        tables: Survival table of every request.
        draft_len: In tokens.
    """
    lens = np.array([len(table) for table in tables])
    flat = np.minimum(np.frombuffer(b"".join(tables), dtype=np.uint8), draft_len).astype(np.uint8)
    ends = np.cumsum(lens)
    positions, active = ends - lens + 1, np.arange(len(lens))
    accepted, owners = [], []
    while len(active):
        survived = flat[positions]
        accepted.append(survived)
        owners.append(active)
        positions = positions + survived + 1
        goes_on = positions < ends[active]
        positions, active = positions[goes_on], active[goes_on]
    owner = np.concatenate(owners)
    order = np.argsort(owner, kind="stable")
    num_steps = np.bincount(owner, minlength=len(lens))
    return Replay(draft_len, lens, np.concatenate(accepted)[order], num_steps)


class Twin:
    """Requests as long as those of a replay, to be decoded under any model, on the same luck.

    Args:
        positions: About how many output positions; the requests are repeated as often as needed.
        name: Other names give other luck.
    """

    def __init__(self, data: Replay, positions: int, name: str) -> None:
        self._draft_len = data.draft_len
        repeats = max(1, positions // int(data.output_lens.sum()))
        self._requests = [
            Request(index=index, prompt_len=1, output_len=output_len)
            for index, output_len in enumerate(data.output_lens.tolist() * repeats)
        ]
        self._luck = Luck(0, stream_id("acceptance_fit", name))

    def replay(self, model: Acceptance) -> Replay:
        """Return what decoding gives under a model."""
        chunks = range(0, len(self._requests), _CHUNK)
        tables = [
            table
            for start in chunks
            for table in model.survival_lens(
                self._requests[start : start + _CHUNK], self._luck, self._draft_len
            )
        ]
        return replay(tables, self._draft_len)
