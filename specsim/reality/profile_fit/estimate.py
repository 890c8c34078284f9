"""Robust regression with coefficients that are not negative."""

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

from specsim.core.errors import ProfileError
from specsim.latency.base import LatencyModel
from specsim.latency.linear import Coefficients, Linear
from specsim.latency.two_regime import TwoRegime
from specsim.reality.profile_fit.points import Points

__all__ = ["KINDS", "MIN_POINTS", "fit_model", "robust_fit"]

KINDS = ("two_regime", "linear")
MIN_POINTS = 6
"""Twice as many as there are coefficients."""

_HUBER = 1.345  # standard deviations; 95 % efficient where the errors are normal (Huber 1981)
_ROUNDS = 20
_DISTURBED = 3.0
"""How many times its usual duration a step may take and still count in the sum."""
_UNITS = np.array([1e-9, 1e-6, 1e-3])
"""Of alpha_ns, gamma_us and delta_ms, seconds."""


def fit_model(points: Points, kind: str, source: str, *, keeps_sum: bool = False) -> LatencyModel:
    """Return the latency model that fits measured steps best.

    Huber's loss of the error in seconds: the time of a run is the sum of its steps', so seconds
    count and not shares of a step; and outliers must not decide.

    Args:
        kind: One of `KINDS`.
        source: Where they come from, for error messages.
        keeps_sum: Whether all coefficients of a kind of step are scaled so that its steps together
            last as long as measured. Right for the steps of a server: times have a tail, which
            Huber's loss cuts and a run does not. Wrong for a designed grid, whose sum means
            nothing.

    Raises:
        ProfileError: The points are too few or collinear, so that they determine no coefficients.
    """
    if kind == "linear":
        return Linear(**_coefficients(points, f"{source}: steps", keeps_sum))
    decode, mixed = points.take(~points.mixed), points.take(points.mixed)
    return TwoRegime(
        decode=Coefficients(**_coefficients(decode, f"{source}: decode-only steps", keeps_sum)),
        mixed=Coefficients(**_coefficients(mixed, f"{source}: steps with prefill", keeps_sum)),
    )


def _coefficients(points: Points, what: str, keeps_sum: bool) -> dict[str, float]:
    if len(points) < MIN_POINTS:
        raise ProfileError(
            f"{what}: {len(points)} are too few to fit 3 coefficients; measure at least "
            f"{MIN_POINTS}, or fit kind linear if one kind of step is missing"
        )
    columns = np.column_stack([points.context_tokens, points.batched_tokens, np.ones(len(points))])
    _check_rank(columns, what)
    found = robust_fit(columns * _UNITS, points.seconds)
    if keeps_sum:
        predicted = columns * _UNITS @ found
        usual = points.seconds < _DISTURBED * predicted
        found *= points.seconds[usual].sum() / predicted[usual].sum()
    if found[1] == 0 and found[2] == 0:
        raise ProfileError(
            f"{what}: their times depend on nothing but the context; measure steps of other sizes"
        )
    return dict(zip(("alpha_ns", "gamma_us", "delta_ms"), found.tolist(), strict=True))


def _check_rank(columns: NDArray[np.float64], what: str) -> None:
    scaled = columns / np.maximum(columns.max(axis=0), 1e-300)
    values = np.linalg.svd(scaled, compute_uv=False)
    if values[-1] < 1e-6 * values[0]:
        raise ProfileError(
            f"{what}: context tokens, batched tokens and a constant are collinear, so their costs "
            "cannot be told apart; measure the same batch with other context lengths"
        )


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
