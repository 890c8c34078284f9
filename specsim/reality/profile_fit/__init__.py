"""Profiles fitted to measured steps by robust regression, with their errors."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specsim.core.errors import ProfileError
from specsim.core.figures import percent
from specsim.hardware.specs import RESERVED_GIB
from specsim.latency import LatencyModel
from specsim.latency.measured import Coefficients, Linear, TwoRegime
from specsim.profile import Profile
from specsim.reality.profile_fit.points import (
    UNITS,
    Origin,
    Points,
    are_collinear,
    kernel_points,
    kernels_of,
    measured_steps,
    read_points,
    robust_fit,
)

__all__ = [
    "KINDS", "ModelFit", "Points", "ProfileErrors", "fit_and_test", "fit_model", "fitted_profile",
    "kernel_points", "kernels_of", "measured_steps", "read_points",
]  # fmt: skip

KINDS = ("two_regime", "linear")
DISTURBED = 3.0  # times its usual duration that a step may take and still count in a sum
_MIN_POINTS = 6  # twice as many as there are coefficients
_HELD_OUT = 0.2
_SIZES = (10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000)
_REPEATS = 10


def fit_model(points: Points, kind: str, source: str, *, keeps_sum: bool = False) -> LatencyModel:
    """Return the latency model of a kind in `KINDS` that fits measured steps best.

    Huber's loss of the error in seconds: the time of a run is the sum of its steps, so seconds
    count, not shares of a step; and outliers must not decide. Raises a ProfileError if the points
    are too few, or collinear, to determine the coefficients.

    Args:
        keeps_sum: Whether to scale the coefficients of each kind of step so that its steps together
            last as long as measured. Right for steps of a server, whose times have a tail that
            Huber's loss cuts and a run does not; wrong for a designed grid, whose sum means
            nothing.
    """
    if kind == "linear":
        return Linear(**_coefficients(points, f"{source}: steps", keeps_sum))
    decode, mixed = points.take(~points.mixed), points.take(points.mixed)
    return TwoRegime(
        decode=Coefficients(**_coefficients(decode, f"{source}: decode-only steps", keeps_sum)),
        mixed=Coefficients(**_coefficients(mixed, f"{source}: steps with prefill", keeps_sum)),
    )


def _coefficients(points: Points, what: str, keeps_sum: bool) -> dict[str, float]:
    if len(points) < _MIN_POINTS:
        raise ProfileError(
            f"{what}: {len(points)} are too few to fit 3 coefficients; measure at least "
            f"{_MIN_POINTS}, or fit kind linear if one kind of step is missing"
        )
    columns = np.column_stack([points.context_tokens, points.batched_tokens, np.ones(len(points))])
    if are_collinear(columns):
        raise ProfileError(
            f"{what}: context tokens, batched tokens and a constant are collinear, so their costs "
            "cannot be told apart; measure the same batch with other context lengths"
        )
    found = robust_fit(columns * UNITS, points.seconds)
    if keeps_sum:
        predicted = columns * UNITS @ found
        usual = points.seconds < DISTURBED * predicted
        found *= points.seconds[usual].sum() / predicted[usual].sum()
    if found[1] == 0 and found[2] == 0:
        raise ProfileError(
            f"{what}: their times depend on nothing but the context; measure steps of other sizes"
        )
    return dict(zip(("alpha_ns", "gamma_us", "delta_ms"), found.tolist(), strict=True))


@dataclass(frozen=True)
class Error:
    """Absolute relative errors of single steps."""

    median: float
    mean: float
    p90: float
    worst: float

    @classmethod
    def of(cls, model: LatencyModel, points: Points) -> "Error":
        shares = np.abs(np.asarray(model.forward_time(points.load)) / points.seconds - 1)
        found = (np.median(shares), shares.mean(), np.percentile(shares, 90), shares.max())
        return cls(*map(float, found))

    @classmethod
    def by_kind(cls, model: LatencyModel, points: Points) -> "dict[str, Error]":
        """Return the errors of ``all`` steps, and of each kind (decode, mixed) that occurs."""
        kinds = {"decode": ~points.mixed, "mixed": points.mixed}
        found = {name: points.take(rows) for name, rows in kinds.items() if rows.any()}
        return {name: cls.of(model, some) for name, some in {"all": points, **found}.items()}


@dataclass(frozen=True)
class ModelFit:
    """A fit to all points, and the errors of such a fit on a fifth of them, held out."""

    kind: str
    model: LatencyModel
    num_points: int
    num_mixed: int
    held_out: dict[str, Error]  # from `Error.by_kind`
    learning_curve: list[tuple[int, float]]  # points, median error of held-out steps (10 draws)

    def to_dict(self) -> dict[str, Any]:
        return {
            "model": self.model.model_dump(mode="json"),
            "num_points": self.num_points,
            "num_mixed": self.num_mixed,
            "held_out": {name: vars(error) for name, error in self.held_out.items()},
            "learning_curve": [
                {"points": size, "median_error": error} for size, error in self.learning_curve
            ],
        }


def fit_and_test(
    points: Points, kind: str, seed: int, source: str, *, keeps_sum: bool = False
) -> ModelFit:
    """Fit a latency model as `fit_model` does, and test such a fit on held-out steps.

    `seed` divides the steps. Raises a ProfileError if the points are too few, or collinear.
    """
    fit = partial(fit_model, kind=kind, keeps_sum=keeps_sum)
    model = fit(points, source=source)
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(points))
    cut = max(1, int(_HELD_OUT * len(points)))
    held_out, rest = points.take(order[:cut]), points.take(order[cut:])
    errors = Error.by_kind(fit(rest, source=f"{source} (four fifths of it)"), held_out)
    curve = []
    for size in (*(size for size in _SIZES if size < len(rest)), len(rest)):
        repeats = range(_REPEATS if size < len(rest) else 1)
        draws = [_draw(rest, size, fit, rng, held_out) for _ in repeats]
        if known := [error for error in draws if error is not None]:
            curve.append((size, float(np.median(known))))
    return ModelFit(kind, model, len(points), int(points.mixed.sum()), errors, curve)


def _draw(
    points: Points,
    size: int,
    fit: Callable[..., LatencyModel],
    rng: np.random.Generator,
    held_out: Points,
) -> float | None:
    # Half of either kind, if there are as many: a kind may be rare in a table.
    decode, mixed = (rng.permutation(np.flatnonzero(points.mixed == each)) for each in (0, 1))
    num_decode = min(len(decode), max(size // 2, size - len(mixed)))
    rows = np.concatenate([decode[:num_decode], mixed[: size - num_decode]])
    try:
        return Error.of(fit(points.take(rows), source=""), held_out).median
    except ProfileError:
        return None


def fitted_profile(fit: ModelFit, points: Points, origin: Origin, source: str) -> Profile:
    """Return the profile of a fit to some points.

    Its overhead is 0: it is hidden by asynchronous scheduling, and otherwise part of the measured
    times. So is drafting if all steps have drafts of one length: its cost is 0, and the profile is
    for that draft length only.
    """
    error = fit.held_out["all"]
    drafting = origin.drafting
    return Profile.model_validate(
        {
            "model": origin.model,
            "gpu": origin.gpu,
            "tensor_parallel_size": origin.tensor_parallel_size,
            "provenance": {
                "engine": "as in the source",
                "source": source,
                "date": "as in the source",
                "notes": f"{fit.kind} fitted by `specsim profile fit` to {fit.num_points} "
                f"steps ({fit.num_mixed} with prefill); error of a held-out step: median "
                f"{percent(error.median, 2)}, 90th percentile {percent(error.p90, 2)}"
                f"{drafting.notes if drafting else ''}",
            },
            "target": fit.model,
            "drafts": {drafting.method: drafting.cost} if drafting else {},
            "only_draft_lens": drafting.only_lens if drafting else None,
            "valid_range": {
                "context_tokens": max(1, int(points.context_tokens.max())),
                "batched_tokens": int(points.batched_tokens.max()),
            },
            "reserved_gib": RESERVED_GIB,
        }
    )


@dataclass(frozen=True)
class ProfileErrors:
    """A profile's predictions of the target's forward pass, and the measurements."""

    points: Points
    predicted: NDArray[np.float64]  # seconds, without drafting and the engine's overhead
    errors: dict[str, Error]  # from `Error.by_kind`
    num_outside: int  # steps beyond the profile's valid range

    @classmethod
    def of(cls, profile: Profile, points: Points, source: str) -> "ProfileErrors":
        """Compare a profile with steps from `source`; a ProfileError if there are none."""
        if not len(points):
            raise ProfileError(
                f"{source}: has no step with tokens that could run; measure some, or allow larger "
                "steps"
            )
        valid = profile.valid_range
        outside = points.context_tokens > valid.context_tokens
        outside |= points.batched_tokens > valid.batched_tokens
        return cls(
            points=points,
            predicted=np.asarray(profile.target.forward_time(points.load)),
            errors=Error.by_kind(profile.target, points),
            num_outside=int(outside.sum()),
        )
