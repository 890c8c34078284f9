"""Points with known coefficients, for tests of fits."""

from typing import Any

import numpy as np

from specsim.reality.profile_fit import Points

DECODE, MIXED = (100.0, 20.0, 10.0), (170.0, 50.0, 9.0)


def made_up(count: int = 400, noise: float = 0.0, outliers: int = 0) -> Points:
    rng = np.random.default_rng(0)
    mixed = rng.random(count) < 0.5
    context = rng.integers(0, 100_000, count).astype(float)
    batched = np.where(mixed, rng.integers(16, 2048, count), rng.integers(1, 128, count))
    units = np.array([1e-9, 1e-6, 1e-3])
    costs = np.where(mixed[:, None], np.array(MIXED) * units, np.array(DECODE) * units)
    seconds = (costs * np.column_stack([context, batched, np.ones(count)])).sum(axis=1)
    seconds *= np.exp(noise * rng.standard_normal(count))
    seconds[:outliers] *= 10
    return Points(context, batched.astype(float), np.ones(count), mixed, seconds)


def coefficients(model: Any) -> tuple[float, float, float]:
    return (model.alpha_ns, model.gamma_us, model.delta_ms)
