"""How far two replays are apart."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specsim.reality.acceptance_fit.replay import Replay

__all__ = ["Distances", "discrepancy", "kolmogorov_smirnov"]

Sample = NDArray[Any]


@dataclass(frozen=True)
class Distances:
    """Kolmogorov-Smirnov distances of three distributions, and the error of the total."""

    per_step: float
    """Of accepted tokens per step."""
    per_request: float
    """Of output tokens per step of each request."""
    per_window: float
    """Of accepted tokens in 8 consecutive steps."""
    steps_error: float
    """Decode steps per output token, relative to the data: 0.05 is 5 % too many."""

    @classmethod
    def between(cls, model: Replay, data: Replay) -> "Distances":
        """Return how far a model is from data."""
        return cls(
            per_step=kolmogorov_smirnov(model.accepted_lens, data.accepted_lens),
            per_request=kolmogorov_smirnov(model.tokens_per_step, data.tokens_per_step),
            per_window=kolmogorov_smirnov(model.window_sums, data.window_sums),
            steps_error=model.steps_per_token / data.steps_per_token - 1,
        )

    @property
    def total(self) -> float:
        """Sum of the distances and of the error's size, by which models are chosen."""
        return self.per_step + self.per_request + self.per_window + abs(self.steps_error)


def kolmogorov_smirnov(first: Sample, second: Sample) -> float:
    """Return the largest difference of two empirical distribution functions.

    Args:
        first, second: Of shape (n,).

    Returns:
        Between 0 and 1; 1 if there is nothing to compare.
    """
    if not len(first) or not len(second):
        return 1.0
    return float(np.abs(_cdf_differences(first, second)[0]).max())


def discrepancy(model: Replay, data: Replay) -> float:
    """Return what fits by simulation minimise.

    The Cramér-von Mises distances of the three distributions, smoother than Kolmogorov-Smirnov's,
    and the squared errors of the total, of the drift along the output and of the autocorrelations,
    without which short strong regimes could not be told from long weak ones.

    Returns:
        At least 0.
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
