"""Whether samples agree with a theory: batch means, and an interval that must be narrow.

The first tenth of the samples is dropped and the rest cut into 30 batches. The 99.9 % interval of
their mean must hold the theory, and be narrower than 15 % of it to either side, so that vagueness
cannot pass.
"""

import numpy as np
from scipy.stats import t as student

NUM_BATCHES = 30


def interval(samples: np.ndarray) -> tuple[float, float]:
    """Mean and 99.9 % half-width by batch means."""
    kept = samples[len(samples) // 10 :]
    means = np.array([batch.mean() for batch in np.array_split(kept, NUM_BATCHES)])
    quantile = student.ppf(0.9995, NUM_BATCHES - 1)
    return means.mean(), quantile * means.std(ddof=1) / NUM_BATCHES**0.5


def assert_agrees(samples: np.ndarray, theory: float) -> None:
    mean, half_width = interval(samples)
    assert half_width < 0.15 * theory, f"{mean:.4f} ± {half_width:.4f} is too vague"
    assert abs(mean - theory) < half_width, f"{mean:.4f} ± {half_width:.4f}, theory {theory:.4f}"
