"""What decoding with drafts of one length gives, and how far two such decodings are apart."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specsim.acceptance.base import Acceptance
from specsim.core.request import Request
from specsim.core.rng import Luck, stream_id

WINDOW = 8  # consecutive steps over which accepted tokens are summed

_LAGS = (1, 2, 4, 8)  # steps apart at which the correlation of accepted tokens is measured

Sample = NDArray[Any]

_CHUNK = 1024  # requests asked about at once, as in a run


@dataclass(frozen=True)
class Decoded:
    """The steps of some requests, each decoded from its first token on with drafts of k tokens."""

    draft_len: int
    output_lens: NDArray[np.int64]  # shape (n_requests,), tokens, each at least 2
    accepted_lens: NDArray[np.uint8]  # shape (n_steps,), in order, request after request
    num_steps: NDArray[np.int64]  # shape (n_requests,)

    @cached_property
    def tokens_per_step(self) -> NDArray[np.float64]:
        """Output tokens per decode step of each request, shape (n_requests,)."""
        return np.asarray((self.output_lens - 1) / self.num_steps)

    @property
    def steps_per_token(self) -> float:
        """Decode steps of all requests per output token of theirs."""
        return float(self.num_steps.sum() / (self.output_lens - 1).sum())

    @cached_property
    def _requests(self) -> NDArray[np.int64]:
        """The request of each step, shape (n_steps,)."""
        return np.repeat(np.arange(len(self.num_steps)), self.num_steps)

    @cached_property
    def window_sums(self) -> NDArray[np.int16]:
        """Accepted tokens in every `WINDOW` consecutive steps of a request."""
        before = np.concatenate([[0], np.cumsum(self.accepted_lens, dtype=np.int64)])
        sums, requests = before[WINDOW:] - before[:-WINDOW], self._requests
        is_within = requests[WINDOW - 1 :] == requests[: len(sums)]
        return np.asarray(sums[is_within], dtype=np.int16)

    @cached_property
    def autocorrelations(self) -> NDArray[np.float64]:
        """Correlation of accepted tokens with those so many steps later, shape (len(_LAGS),)."""
        requests, deviations = self._requests, self.accepted_lens - self.accepted_lens.mean()
        variance = max(float(deviations.var()), 1e-12)
        found = np.zeros(len(_LAGS))
        for row, lag in enumerate(_LAGS):
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
        """Accepted tokens per step gained as output grows by e: a slope over its logarithm."""
        ends = np.cumsum(self.accepted_lens + np.int64(1))
        first = np.cumsum(self.num_steps) - self.num_steps
        starts = ends - self.accepted_lens
        logs = np.log(starts - np.repeat(starts[first] - 1, self.num_steps))
        spread = logs.var()
        return float(np.cov(logs, self.accepted_lens, bias=True)[0, 1] / spread) if spread else 0.0

    def counts(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return accepted and rejected j-th draft tokens, each of shape (n_requests, draft_len)."""
        shape = (len(self.num_steps), self.draft_len + 1)
        places = self._requests * shape[1] + self.accepted_lens
        ended = np.bincount(places, minlength=shape[0] * shape[1]).reshape(shape)
        accepted = ended[:, ::-1].cumsum(axis=1)[:, ::-1][:, 1:]
        return accepted, ended[:, :-1]


def decode(tables: Sequence[bytes], draft_len: int) -> Decoded:
    """Decode requests, each with a survival table, with drafts of one length.

    The first output token comes from the prefill; every step after it emits the accepted tokens
    and the bonus token, until the output is over.
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
    return Decoded(draft_len, lens, np.concatenate(accepted)[order], num_steps)


class Twin:
    """Requests as long as those of decoded data, to be decoded under any model, on the same luck.

    They are repeated until they have about so many output positions; other names, other luck.
    """

    def __init__(self, data: Decoded, positions: int, name: str) -> None:
        self._draft_len = data.draft_len
        repeats = max(1, positions // int(data.output_lens.sum()))
        self._requests = [
            Request(index=index, prompt_len=1, output_len=output_len)
            for index, output_len in enumerate(data.output_lens.tolist() * repeats)
        ]
        self._luck = Luck(0, stream_id("acceptance_fit", name))

    def decode(self, model: Acceptance) -> Decoded:
        tables: list[bytes] = []
        for start in range(0, len(self._requests), _CHUNK):
            some = self._requests[start : start + _CHUNK]
            tables += model.survival_lens(some, self._luck, self._draft_len)
        return decode(tables, self._draft_len)


@dataclass(frozen=True)
class Distances:
    """Kolmogorov-Smirnov distances of three distributions, and the error of the total."""

    per_step: float  # of accepted tokens per step
    per_request: float  # of output tokens per step of each request
    per_window: float  # of accepted tokens in 8 consecutive steps
    steps_error: float  # decode steps per output token, relative to the data: 0.05 is 5 % too many

    @classmethod
    def between(cls, model: Decoded, data: Decoded) -> "Distances":
        return cls(
            per_step=kolmogorov_smirnov(model.accepted_lens, data.accepted_lens),
            per_request=kolmogorov_smirnov(model.tokens_per_step, data.tokens_per_step),
            per_window=kolmogorov_smirnov(model.window_sums, data.window_sums),
            steps_error=model.steps_per_token / data.steps_per_token - 1,
        )

    def rounded(self) -> dict[str, float]:
        return {name: round(value, 4) for name, value in vars(self).items()}

    @property
    def total(self) -> float:
        """Sum of the distances and of the error's size, by which models are chosen."""
        return self.per_step + self.per_request + self.per_window + abs(self.steps_error)


def kolmogorov_smirnov(first: Sample, second: Sample) -> float:
    """Return the largest difference of two distribution functions; 1 if one is empty."""
    if not len(first) or not len(second):
        return 1.0
    return float(np.abs(_cdf_differences(first, second)[0]).max())


def discrepancy(model: Decoded, data: Decoded) -> float:
    """Return what fits by simulation minimise.

    The Cramér-von Mises distances of the three distributions, smoother than Kolmogorov-Smirnov's,
    and the squared errors of the total, of the drift along the output and of the autocorrelations,
    without which short strong regimes could not be told from long weak ones.
    """
    return (
        _cramer_von_mises(model.accepted_lens, data.accepted_lens)
        + 2 * _cramer_von_mises(model.tokens_per_step, data.tokens_per_step)
        + 2 * _cramer_von_mises(model.window_sums, data.window_sums)
        + float(np.log(model.steps_per_token / data.steps_per_token)) ** 2
        + 0.1 * (model.drift - data.drift) ** 2
        + 0.3 * float(((model.autocorrelations - data.autocorrelations) ** 2).mean())
    )


def _cramer_von_mises(first: Sample, second: Sample) -> float:
    if not len(first) or not len(second):
        return 1.0
    differences, weights = _cdf_differences(first, second)
    return float(np.average(differences**2, weights=weights))


def _cdf_differences(
    first: Sample, second: Sample
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the differences of the distribution functions, and how many values lie there."""
    first, second = np.sort(first), np.sort(second)
    values = np.unique(np.concatenate([first, second]))
    counted = [np.searchsorted(sample, values, side="right") for sample in (first, second)]
    differences = counted[0] / len(first) - counted[1] / len(second)
    return differences, np.diff(counted[0] + counted[1], prepend=0).astype(np.float64)
