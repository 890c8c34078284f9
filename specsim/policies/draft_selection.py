"""Which of several draft models a request gets."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import fsum, log2
from typing import Literal, NamedTuple, final

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from specsim.core.desk import PerRequest
from specsim.core.step import BatchView, Ints, StepOutcome
from specsim.decisions.policy import PicksDrafter, ServerView
from specsim.policies.parts.estimate import alpha_of_all

SAME = 1e-9
"""Two features count as one if the share of variance that they do not share is below this."""


class AlphaWeights(NamedTuple):
    """alpha = base + by_len * tokens / 1000 + by_log * log2 tokens."""

    base: float
    by_len: float
    by_log: float

    def alpha(self, prompt_len: float) -> float:
        """Return the predicted alpha for a prompt of `prompt_len` >= 1 tokens, unbounded."""
        by_len, by_log = _features(prompt_len)
        return self.base + self.by_len * by_len + self.by_log * by_log


def least_squares(prompt_lens: Sequence[float], rates: Sequence[float]) -> AlphaWeights:
    """Return the least-squares weights, identical to the bit on every machine.

    In closed form with exact sums, since LAPACK adds in an order that depends on the processor.
    `by_log` is 0 where the lengths do not tell the two features apart, and `by_len` too where all
    lengths are equal.

    Args:
        prompt_lens: Prompt lengths, tokens, at least 1 each.
        rates: Acceptance rate measured for each prompt; at least one.
    """
    features = [_features(prompt_len) for prompt_len in prompt_lens]
    len_mean, lens = _centred([of_len for of_len, _ in features])
    log_mean, logs = _centred([of_log for _, of_log in features])
    rate_mean, rates = _centred(rates)
    len_squares, log_squares, both = _dot(lens, lens), _dot(logs, logs), _dot(lens, logs)
    len_rates, log_rates = _dot(lens, rates), _dot(logs, rates)
    by_len, by_log = 0.0, 0.0
    determinant = len_squares * log_squares - both * both
    if determinant > SAME * len_squares * log_squares:
        by_len = (log_squares * len_rates - both * log_rates) / determinant
        by_log = (len_squares * log_rates - both * len_rates) / determinant
    elif len_squares:
        by_len = len_rates / len_squares
    return AlphaWeights(rate_mean - by_len * len_mean - by_log * log_mean, by_len, by_log)


def _features(prompt_len: float) -> tuple[float, float]:
    """Return tokens / 1000 and log2 tokens, rounded since libraries differ in its last digits."""
    return prompt_len / 1000.0, round(log2(prompt_len), 12)


def _centred(values: Sequence[float]) -> tuple[float, list[float]]:
    """Return the mean, and each value's distance above it."""
    mean = fsum(values) / len(values)
    return mean, [value - mean for value in values]


def _dot(first: Sequence[float], second: Sequence[float]) -> float:
    return fsum(a * b for a, b in zip(first, second, strict=True))


Rates = NDArray[np.float64]


@dataclass(slots=True)
class _Memory:
    server: ServerView
    verify_time: float
    history: PerRequest = field(default_factory=lambda: PerRequest(0.0, 4))
    """Per request: drafter, prompt length, accepted draft tokens and trials."""
    counts: PerRequest = field(default_factory=lambda: PerRequest(0.0, 2))
    """Per request: accepted draft tokens and trials, fading."""
    totals: NDArray[np.float64] = field(default_factory=lambda: np.zeros(2))
    """Accepted draft tokens and trials of all requests, fading."""
    num_arrived: int = 0
    weights: list[AlphaWeights] | None = None  # of each drafter, once they have been fitted


@final
class DraftSelection(PicksDrafter[_Memory]):
    """Predict alpha of each draft model from the prompt; take the larger where it is faster.

    "A Drop-in Solution for On-the-fly Adaptation of Speculative Decoding", section 5. The first
    requests take the models in turn. Their acceptance gives, by ordinary least squares, weights Z
    with alpha = u'Z (eq. 8). From then on a request gets the model whose best window makes most
    tokens per second, max over k of l(alpha, k) / (k a + b): eq. 3 to 5, in which the unknown
    length of the answer cancels. Windows are chosen as in `window_opt`.

    Theorem 2 (eq. 7), as printed, is not the same: by eq. 3 a larger model 2 is faster than 1 if b
    (n1 - n2) exceeds L (a2 / rho2 - a1 / rho1), where eq. 7 has L (a2 - a1) / (rho2 - rho1). Of
    random pairs they agree on about two in three (tests/policies/test_draft_selection.py).

    Of the paper's features a trace of lengths has one, the prompt's length: u = (1, length / 1000,
    log2 length). Perplexity and term frequencies would need the text.
    """

    kind: Literal["draft_selection"] = "draft_selection"
    num_probes: int = Field(default=25, ge=3)
    """Requests per draft model before the weights are fitted (there, 25 prompts)."""
    window: int = Field(default=16, ge=1)
    """Drafts of a request after which an observation of it has faded to 1/e."""
    alpha_max: float = Field(default=0.98, gt=0, lt=1)
    prior: float = Field(default=0.7, ge=0, le=1)
    """alpha before any draft has been verified."""

    def start(self, server: ServerView) -> _Memory:
        return _Memory(server, server.verify_time)

    def choose_drafter(self, request: int, prompt_len: int, memory: _Memory) -> int:
        """Return the draft model of a request that has just arrived."""
        num_drafters = len(memory.server.pass_times)
        if memory.num_arrived >= self.num_probes * num_drafters and memory.weights is None:
            memory.weights = self._fitted(memory)
        if memory.weights is None:
            chosen = memory.num_arrived % num_drafters
        else:
            alphas = np.array([each.alpha(prompt_len) for each in memory.weights]).clip(0.0)
            chosen = int(self._rates(alphas, np.arange(num_drafters), memory).max(axis=1).argmax())
        memory.num_arrived += 1
        memory.history.up_to(np.array([request]))[request, :2] = chosen, prompt_len
        return chosen

    def _fitted(self, memory: _Memory) -> list[AlphaWeights] | None:
        """Return the weights of each model; None while one has drafted for too few requests."""
        drafters, prompt_lens, accepted, trials = memory.history.values.T
        (seen,) = (trials > 0).nonzero()
        found = []
        for drafter in range(len(memory.server.pass_times)):
            rows = seen[drafters[seen] == drafter]
            if len(rows) < self.num_probes:
                return None
            rates = accepted[rows] / trials[rows]
            found.append(least_squares(prompt_lens[rows].tolist(), rates.tolist()))
        return found

    def _rates(self, alphas: NDArray[np.float64], drafters: Ints, memory: _Memory) -> Rates:
        """Return tokens per second with windows of 0, 1, ... tokens, shape (alphas, windows)."""
        lens = np.arange(memory.server.max_draft_len + 1)
        powers = np.tile(np.minimum(alphas, self.alpha_max)[:, np.newaxis], len(lens))
        powers[:, 0] = 1.0
        times = np.outer(memory.server.pass_times, lens) + memory.verify_time
        # Sums of products, since powers and matrix products end otherwise on other processors.
        rates: Rates = powers.cumprod(axis=1).cumsum(axis=1) / times[drafters]
        return rates

    def alpha_estimate(self, memory: _Memory) -> float:
        """Return the acceptance rate of all requests together, with the prior."""
        return float(alpha_of_all(memory.totals, self.prior))

    def draft_lens(self, batch: BatchView, memory: _Memory) -> Ints:
        """Return the best window of each request with its own draft model."""
        accepted, trials = memory.counts.of(batch.requests).T
        alphas = (accepted + self.alpha_estimate(memory)) / (trials + 1.0)
        drafters = memory.history.of(batch.requests)[:, 0].astype(np.intp)
        best: Ints = self._rates(alphas, drafters, memory).argmax(axis=1)
        return best

    def observe(self, outcome: StepOutcome, memory: _Memory) -> None:
        """Count accepted tokens and trials, and note the verification time."""
        memory.verify_time = outcome.target_time + outcome.overhead_time
        requests, accepted = outcome.requests, outcome.accepted_lens
        seen = np.stack([accepted, accepted + (accepted < outcome.draft_lens)], axis=1)
        memory.history.up_to(requests)[requests, 2:] += seen
        keep, counts = 1.0 - 1.0 / self.window, memory.counts.up_to(requests)
        counts[requests] = keep * counts[requests] + seen
        memory.totals = keep * memory.totals + seen.sum(axis=0)
