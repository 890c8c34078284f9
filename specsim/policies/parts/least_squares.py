"""Acceptance as a function of the prompt's length, fitted alike on every machine."""

from collections.abc import Sequence
from math import fsum, log2
from typing import NamedTuple

SAME = 1e-9
"""Share of variance that two features must not have in common, to be told apart."""


class AlphaWeights(NamedTuple):
    """alpha = base + by_len * tokens / 1000 + by_log * log2 tokens."""

    base: float
    by_len: float
    by_log: float

    def alpha(self, prompt_len: float) -> float:
        """Return what they predict for a prompt of so many tokens, at least 1; not bounded."""
        by_len, by_log = _features(prompt_len)
        return self.base + self.by_len * by_len + self.by_log * by_log


def least_squares(prompt_lens: Sequence[float], rates: Sequence[float]) -> AlphaWeights:
    """Return the weights of least squares, the same to the bit on every machine.

    In closed form with exact sums, since LAPACK adds in an order that depends on the processor.
    Where the lengths do not tell the two features apart there is one slope, of the length; where
    all are the same, none.

    Args:
        prompt_lens: Tokens, at least 1 each.
        rates: What was accepted of the drafts for each of these prompts, at least one.
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
    """Return thousands of tokens and their logarithm, whose last digits libraries differ in."""
    return prompt_len / 1000.0, round(log2(prompt_len), 12)


def _centred(values: Sequence[float]) -> tuple[float, list[float]]:
    """Return the mean, and by how much each is above it."""
    mean = fsum(values) / len(values)
    return mean, [value - mean for value in values]


def _dot(first: Sequence[float], second: Sequence[float]) -> float:
    return fsum(a * b for a, b in zip(first, second, strict=True))
