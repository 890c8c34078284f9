"""Robust regression without negative coefficients."""

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

UNITS = np.array([1e-9, 1e-6, 1e-3])  # of alpha_ns, gamma_us and delta_ms, seconds
_HUBER = 1.345  # standard deviations; 95 % efficient where the errors are normal (Huber 1981)
_ROUNDS = 20
_MOST_COLLINEAR = 1e6  # largest over smallest singular value


def are_collinear(columns: NDArray[np.float64]) -> bool:
    """Return whether columns, shape (n, m), cannot be told apart."""
    scaled = columns / np.maximum(columns.max(axis=0), 1e-300)
    return bool(np.linalg.cond(scaled) > _MOST_COLLINEAR)


def robust_fit(columns: NDArray[np.float64], seconds: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the coefficients, none negative, of least Huber loss, of shape (m,).

    Args:
        columns: Of shape (n, m).
        seconds: Of shape (n,).
    """
    rows = np.column_stack([columns, seconds])
    weights = np.ones(len(seconds))
    found = np.zeros(columns.shape[1])
    for _ in range(_ROUNDS):
        # Least squares depends on the rows only by the triangle of their QR decomposition.
        triangle = np.linalg.qr(np.sqrt(weights)[:, None] * rows).R
        found = nnls(triangle[:, :-1], triangle[:, -1])[0]
        errors = np.abs(columns @ found - seconds)
        # Of an exact fit the errors are rounding, and no reason to weigh points differently.
        limit = max(_HUBER * 1.4826 * float(np.median(errors)), 1e-9 * float(seconds.max()))
        weights = limit / np.maximum(errors, limit)
    return np.asarray(found)
