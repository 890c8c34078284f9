"""Fits of acceptance models by maximum likelihood or, if that has no simple form, by simulation.

First the decoding with drafts of one length, and the distance of two decodings. A fit by simulation
finds the parameters whose decoding is closest to that of the data. Every trial has the same luck
and starts from the data alone, so that the discrepancy is a fixed function of the parameters. For
`layered` these are its spreads, lengths and drift; its rates follow from them, by a few rounds of
matching to the rates of the data.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import betaincinv, betaln, expit, logit, logsumexp, ndtr, ndtri

from specsim.acceptance.base import Acceptance
from specsim.acceptance.bernoulli import Bernoulli, Beta, BetaPosition, PerPosition
from specsim.acceptance.layered import Layered, Markov, Regime, RegimeLayer
from specsim.core.request import Request
from specsim.core.rng import Luck, stream_id

WINDOW = 8  # consecutive steps over which accepted tokens are summed

_LAGS = (1, 2, 4, 8)  # steps apart at which the correlation of accepted tokens is measured

Sample = NDArray[Any]

_CHUNK = 1024  # requests per call, as in a run


@dataclass(frozen=True)
class Decoded:
    """The decode steps of some requests, with drafts of k tokens."""

    draft_len: int
    output_lens: NDArray[np.int64]  # shape (n_requests,), tokens, each at least 2
    accepted_lens: NDArray[np.uint8]  # shape (n_steps,), in order, request after request
    num_steps: NDArray[np.int64]  # shape (n_requests,)
    is_cut: NDArray[np.bool_]  # shape (n_steps,); whether the output ended before any rejection

    @cached_property
    def tokens_per_step(self) -> NDArray[np.float64]:
        """Output tokens per decode step of each request, shape (n_requests,)."""
        return np.asarray((self.output_lens - 1) / self.num_steps)

    @property
    def steps_per_token(self) -> float:
        """Decode steps per output token, over all requests."""
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
        """Correlation of accepted tokens with those `_LAGS` steps later, shape (len(_LAGS),)."""
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
        accepted, rejected = (each.sum(axis=0) for each in self.counts())
        return np.asarray(accepted / np.maximum(accepted + rejected, 1))

    @cached_property
    def drift(self) -> float:
        """Slope of the accepted tokens per step over the logarithm of the output length."""
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
        ended, rejected = (
            np.bincount(each, minlength=shape[0] * shape[1]).reshape(shape)
            for each in (places, places[~self.is_cut])
        )
        accepted = ended[:, ::-1].cumsum(axis=1)[:, ::-1][:, 1:]
        return accepted, rejected[:, :-1]


def decode(tables: Sequence[bytes], draft_len: int) -> Decoded:
    """Return the decoding of requests, given their survival tables, with drafts of one length.

    The first output token comes from prefill; every later step emits the accepted tokens and the
    bonus token until the output ends. Tokens after the end are unknown: a draft that is accepted up
    to there may be rejected later.
    """
    lens = np.array([len(table) for table in tables])
    flat = np.minimum(np.frombuffer(b"".join(tables), dtype=np.uint8), draft_len).astype(np.uint8)
    ends = np.cumsum(lens)
    positions, active = ends - lens + 1, np.arange(len(lens))
    accepted, cuts, owners = [], [], []
    while len(active):
        left = ends[active] - positions
        survived = np.minimum(flat[positions], left).astype(np.uint8)
        accepted.append(survived)
        cuts.append((survived == left) & (survived < draft_len))
        owners.append(active)
        positions = positions + survived + 1
        goes_on = positions < ends[active]
        positions, active = positions[goes_on], active[goes_on]
    owner = np.concatenate(owners)
    order = np.argsort(owner, kind="stable")
    num_steps = np.bincount(owner, minlength=len(lens))
    accepted_lens, is_cut = (np.concatenate(each)[order] for each in (accepted, cuts))
    return Decoded(draft_len, lens, accepted_lens, num_steps, is_cut)


class Twin:
    """Requests of the same lengths as decoded data, to decode under any model with fixed luck.

    They are repeated until they have about the wanted number of output positions, each copy with
    other luck.
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
    steps_error: float  # relative error of decode steps per output token: 0.05 is 5 % too many

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
        """Sum of the distances and of the absolute error, by which models are chosen."""
        return self.per_step + self.per_request + self.per_window + abs(self.steps_error)


def kolmogorov_smirnov(first: Sample, second: Sample) -> float:
    """Return the largest difference of two distribution functions; 1 if one is empty."""
    if not len(first) or not len(second):
        return 1.0
    return float(np.abs(_cdf_differences(first, second)[0]).max())


def discrepancy(model: Decoded, data: Decoded) -> float:
    """Return the discrepancy that fits by simulation minimise.

    It adds the Cramér-von Mises distances of the three distributions, which are smoother than
    Kolmogorov-Smirnov's, and the squared errors of the total, of the drift along the output, and of
    the autocorrelations, which tell short strong regimes from long weak ones.
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
    """Return the differences of the distribution functions, and the number of values at each."""
    first, second = np.sort(first), np.sort(second)
    values = np.unique(np.concatenate([first, second]))
    counted = [np.searchsorted(sample, values, side="right") for sample in (first, second)]
    differences = counted[0] / len(first) - counted[1] / len(second)
    return differences, np.diff(counted[0] + counted[1], prepend=0).astype(np.float64)


Vector = NDArray[np.float64]

_NODES = (np.arange(200) + 0.5) / 200  # quantiles over which Beta is integrated
POSITIONS = 60_000  # output positions per trial: their noise is far below that of the data
MAX_TRIALS = 250  # per start
_MAX_ROUNDS = 6  # per trial of `layered`: replays to match its rates, fewer once they agree


def _rounded(value: float) -> float:
    """Return a value rounded to four digits."""
    return float(f"{value:.4g}")


def fit_bernoulli(data: Decoded) -> Bernoulli:
    """Return the model of accepted / verified tokens; drafts are verified up to a rejection."""
    accepted, rejected = (counts.sum() for counts in data.counts())
    return Bernoulli(alpha=_rounded(accepted / (accepted + rejected)))


def fit_per_position(data: Decoded) -> PerPosition:
    """Return the model of the share of accepted tokens at each draft position."""
    return PerPosition(conditional_rates=tuple(map(_rounded, data.conditional_rates.tolist())))


def fit_beta(data: Decoded) -> Beta:
    """Return the most likely beta-binomial distribution of accepted among verified tokens."""
    a, b = _fit_beta(*(counts.sum(axis=1) for counts in data.counts()))
    return Beta(a=_rounded(a), b=_rounded(b))


def _fit_beta(accepted: NDArray[np.int64], rejected: NDArray[np.int64]) -> tuple[float, float]:
    mean = (accepted.sum() + 1) / (accepted.sum() + rejected.sum() + 2)

    def loss(x: NDArray[np.float64]) -> float:
        a, b = _shape(x)
        return -float((betaln(a + accepted, b + rejected) - betaln(a, b)).sum())

    start = np.array([logit(mean), np.log(10.0)])
    return _shape(minimize(loss, start, method="Nelder-Mead").x)


def _shape(x: NDArray[np.float64]) -> tuple[float, float]:
    """Return a and b from logit(a / (a + b)) and ln(a + b), within numerical limits."""
    mean, size = expit(np.clip(x[0], -12, 12)), np.exp(np.clip(x[1], -3, 12))
    return float(mean * size), float((1 - mean) * size)


def fit_beta_position(data: Decoded) -> BetaPosition:
    """Return the most likely factors and distribution of alpha, integrated numerically."""
    accepted, rejected = data.counts()

    def loss(x: NDArray[np.float64]) -> float:
        alphas = np.clip(betaincinv(*_shape(x), _NODES), 1e-9, 1 - 1e-9)
        rates = np.outer(expit(x[2:]), alphas)
        likelihoods = accepted @ np.log(rates) + rejected @ np.log1p(-rates)
        return -float(logsumexp(likelihoods, axis=1).sum())

    a, b = _fit_beta(accepted[:, 0], rejected[:, 0])
    factors = logit(np.clip(data.conditional_rates / data.conditional_rates.max(), 0.01, 0.97))
    start = np.array([np.log(a / b), np.log(a + b), *factors])
    bounds = [(-12, 12), (-3, 12), *[(-12, 12)] * len(factors)]
    x = minimize(loss, start, method="L-BFGS-B", bounds=bounds).x
    a, b = _shape(x)
    return BetaPosition(
        a=_rounded(a), b=_rounded(b), factors=tuple(map(_rounded, expit(x[2:]).tolist()))
    )


def fit_markov(data: Decoded) -> Markov:
    """Return the closest chain of two regimes."""
    twin = Twin(data, POSITIONS, "fit")
    middle = logit(np.clip(fit_bernoulli(data).alpha, 0.05, 0.95))
    starts = [(0.0, middle - 1.5, middle + 1.5, np.log(length)) for length in (3.0, 20.0)]
    steps = (0.7, 0.7, 0.7, 0.7)
    x = closest(lambda x: discrepancy(twin.decode(_markov(x)), data), starts, steps)
    return _markov(x)


def _markov(x: Vector) -> Markov:
    easy = float(expit(np.clip(x[0], -6, 6)))
    low, high = (_rounded(float(expit(value))) for value in x[1:3])
    return Markov(
        regimes=(
            Regime(weight=_rounded(1 - easy), alpha=low),
            Regime(weight=_rounded(easy), alpha=high),
        ),
        regime_len=_mean_len(x[3], shortest=1),
    )


def fit_layered(data: Decoded) -> Layered:
    """Return the closest layered model, whose rates agree with those of the data."""
    twin = Twin(data, POSITIONS, "fit")
    starts = [
        (np.log(own), np.log(short), np.log(2.0), np.log(long), np.log(20.0), 0.1)
        for own, short, long in ((0.5, 0.7, 0.4), (0.4, 0.3, 1.2))
    ]
    steps = (0.7, 0.7, 0.7, 0.7, 0.7, 0.2)
    x = closest(lambda x: _matched(x, twin, data)[1], starts, steps)
    return _matched(x, twin, data)[0]


def _layered(x: Vector, rates: Vector) -> Layered:
    return Layered(
        rates=tuple(map(_rounded, rates.tolist())),
        request_spread=_spread(x[0]),
        regimes=(
            RegimeLayer(spread=_spread(x[1]), mean_len=_mean_len(x[2], shortest=1)),
            RegimeLayer(spread=_spread(x[3]), mean_len=_mean_len(x[4], shortest=8)),
        ),
        drift=_rounded(float(np.clip(x[5], -2, 2))),
    )


def _matched(x: Vector, twin: Twin, data: Decoded) -> tuple[Layered, float]:
    """Return the model whose conditional rates are those of the data, and its discrepancy.

    Conditional rates depend on the spread among survivors, so there is no formula; repeated probit
    steps lead there from the rates of the data.
    """
    target = np.clip(data.conditional_rates, 0.002, 0.998)
    rates = target
    for _ in range(_MAX_ROUNDS):
        model = _layered(x, rates)
        trial = twin.decode(model)
        reached = np.clip(trial.conditional_rates, 0.002, 0.998)
        if np.abs(reached - target).max() < 0.003:
            break
        rates = np.clip(ndtr(ndtri(rates) + ndtri(target) - ndtri(reached)), 1e-4, 1 - 1e-4)
    return model, discrepancy(trial, data)


def _spread(log_spread: float) -> float:
    """Return a spread of at most twice a token's own, above which little changes."""
    return _rounded(float(np.exp(np.clip(log_spread, -5, np.log(2)))))


def _mean_len(log_excess: float, shortest: int) -> float:
    """Return a mean length above `shortest` and not beyond outputs."""
    return _rounded(shortest + float(np.exp(np.clip(log_excess, -5, 5))))


def closest(
    loss: Callable[[Vector], float], starts: Sequence[tuple[float, ...]], steps: tuple[float, ...]
) -> Vector:
    """Return the best point that Nelder and Mead's method finds from any of the starts."""
    found = [
        minimize(
            loss,
            start,
            method="Nelder-Mead",
            options={
                "maxfev": MAX_TRIALS,
                "xatol": 1e-2,
                "fatol": 1e-6,
                "initial_simplex": np.vstack([start, np.array(start) + np.diag(steps)]),
            },
        )
        for start in starts
    ]
    return np.asarray(min(found, key=lambda result: result.fun).x)


FITS: dict[str, Callable[[Decoded], Acceptance]] = {
    "bernoulli": fit_bernoulli,
    "per_position": fit_per_position,
    "beta": fit_beta,
    "markov": fit_markov,
    "beta_position": fit_beta_position,
    "layered": fit_layered,
}
"""The fit of every model, by kind, the simplest first."""
