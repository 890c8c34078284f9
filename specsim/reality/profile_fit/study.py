"""How well a fit does on steps that it has not seen, and how many it needs."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from specsim.core.errors import ProfileError
from specsim.latency.base import LatencyModel
from specsim.reality.profile_fit.estimate import fit_model
from specsim.reality.profile_fit.points import Points

__all__ = ["Error", "Study", "run_study"]

_HELD_OUT = 0.2
_SIZES = (10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000)
_REPEATS = 10


@dataclass(frozen=True)
class Error:
    """Sizes of the relative errors of single steps."""

    median: float
    mean: float
    p90: float
    worst: float

    @classmethod
    def of(cls, model: LatencyModel, points: Points) -> "Error":
        """Return the errors of a model on some steps."""
        predicted = np.asarray(model.forward_time(points.load))
        shares = np.abs(predicted / points.seconds - 1)
        return cls(
            median=float(np.median(shares)),
            mean=float(shares.mean()),
            p90=float(np.percentile(shares, 90)),
            worst=float(shares.max()),
        )

    @classmethod
    def by_kind(cls, model: LatencyModel, points: Points) -> "dict[str, Error]":
        """Return the errors on ``all`` steps, and on each kind (decode, mixed) that occurs."""
        errors = {"all": cls.of(model, points)}
        for name, rows in (("decode", ~points.mixed), ("mixed", points.mixed)):
            if rows.any():
                errors[name] = cls.of(model, points.take(rows))
        return errors


@dataclass(frozen=True)
class Study:
    """A fit to all points, and how such a fit does on a fifth of them that it has not seen."""

    kind: str
    model: LatencyModel
    num_points: int
    num_mixed: int
    held_out: dict[str, Error]
    """Errors on the held-out steps: of ``all`` of them, and of each kind that occurs."""
    learning_curve: list[tuple[int, float]]
    """Points fitted, and the median error on the held-out steps; the median of 10 draws."""

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain values."""
        return {
            "model": self.model.model_dump(mode="json"),
            "num_points": self.num_points,
            "num_mixed": self.num_mixed,
            "held_out": {name: vars(error) for name, error in self.held_out.items()},
            "learning_curve": [
                {"points": size, "median_error": error} for size, error in self.learning_curve
            ],
        }


def run_study(
    points: Points, kind: str, seed: int, source: str, *, keeps_sum: bool = False
) -> Study:
    """Fit a latency model to steps and measure it.

    Args:
        kind: ``two_regime`` or ``linear``.
        seed: Of the division into fitted and held-out steps.
        source: For error messages.
        keeps_sum: Whether they are a server's; see `fit_model`.

    Raises:
        ProfileError: The points are too few, or collinear.
    """
    fit = partial(fit_model, kind=kind, keeps_sum=keeps_sum)
    model = fit(points, source=source)
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(points))
    cut = max(1, int(_HELD_OUT * len(points)))
    held_out, rest = points.take(order[:cut]), points.take(order[cut:])
    to_rest = fit(rest, source=f"{source} (four fifths of it)")
    held_out_errors = Error.by_kind(to_rest, held_out)
    curve = []
    for size in (*(size for size in _SIZES if size < len(rest)), len(rest)):
        draws = [
            found
            for _ in range(_REPEATS if size < len(rest) else 1)
            if (found := _draw(rest, size, fit, rng, held_out)) is not None
        ]
        if draws:
            curve.append((size, float(np.median(draws))))
    return Study(kind, model, len(points), int(points.mixed.sum()), held_out_errors, curve)


def _draw(
    points: Points,
    size: int,
    fit: Callable[..., LatencyModel],
    rng: np.random.Generator,
    held_out: Points,
) -> float | None:
    """Return the error of a fit to so many points; None if they determine none."""
    # Half of either kind, as far as there are that many: in a table one may be rare.
    decode, mixed = (rng.permutation(np.flatnonzero(points.mixed == each)) for each in (0, 1))
    num_decode = min(len(decode), max(size // 2, size - len(mixed)))
    rows = np.concatenate([decode[:num_decode], mixed[: size - num_decode]])
    try:
        return Error.of(fit(points.take(rows), source=""), held_out).median
    except ProfileError:
        return None
