"""Robust regression of step times, and what drafting takes of them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

from specsim.core.errors import ProfileError

if TYPE_CHECKING:
    from specsim.reality.profile_fit.points import Points

UNITS = np.array([1e-9, 1e-6, 1e-3])  # of alpha_ns, gamma_us and delta_ms, seconds
_HUBER = 1.345  # standard deviations; 95 % efficient where the errors are normal (Huber 1981)
_ROUNDS = 20
_MOST_COLLINEAR = 1e6  # largest over smallest singular value
_LEAST_LEFT = 0.1  # share of a measured step that is the target's at least, whatever drafting takes


def are_collinear(columns: NDArray[np.float64]) -> bool:
    """Return whether columns, shape (n, m), cannot be told apart."""
    scaled = columns / np.maximum(columns.max(axis=0), 1e-300)
    return bool(np.linalg.cond(scaled) > _MOST_COLLINEAR)


def robust_fit(columns: NDArray[np.float64], seconds: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the coefficients (m,), none negative, of least Huber loss, of columns (n, m)."""
    rows = np.column_stack([columns, seconds])
    weights = np.ones(len(seconds))
    found = np.zeros(columns.shape[1])
    for _ in range(_ROUNDS):
        # Least squares depends on the rows only by the triangle of their QR decomposition.
        triangle: Any = np.linalg.qr(np.sqrt(weights)[:, None] * rows, mode="r")
        found = nnls(triangle[:, :-1], triangle[:, -1])[0]
        errors = np.abs(columns @ found - seconds)
        # Of an exact fit the errors are rounding, and no reason to weigh points differently.
        limit = max(_HUBER * 1.4826 * float(np.median(errors)), 1e-9 * float(seconds.max()))
        before, weights = weights, limit / np.maximum(errors, limit)
        if np.array_equal(before, weights):
            break  # all rounds to come would be this one again
    return np.asarray(found)


@dataclass(frozen=True)
class DraftingOfRuns:
    """How measured runs drafted, and what their differences say that it costs."""

    method: str
    draft_lens: tuple[int, ...]  # of the runs, rising; 0: without speculation
    step_seconds: float = 0.0
    pass_seconds: float = 0.0

    @property
    def only_lens(self) -> tuple[int, ...] | None:
        """Return the draft lengths that the runs say something of; None: of all."""
        # What a step and what a pass takes is known from two lengths and runs without drafts.
        return None if len(self.draft_lens) > 2 and not self.draft_lens[0] else self.draft_lens

    @property
    def cost(self) -> dict[str, Any]:
        """Fields of a `specsim.profile.DraftCost`."""
        pass_ms = self.pass_seconds * 1e3
        of_pass = {"kind": "linear", "alpha_ns": 0, "gamma_us": 0, "delta_ms": pass_ms}
        return {
            "step_ms": self.step_seconds * 1e3,
            **({"latency": of_pass} if self.pass_seconds else {}),
        }

    @property
    def notes(self) -> str:
        lens = ", ".join(map(str, self.draft_lens))
        if len(self.draft_lens) == 1:
            return (
                f"; a step with {self.method}, {lens} draft tokens, drafting included: of other "
                "draft lengths it says nothing"
            )
        known = f" (of no others: {self.only_lens})" if self.only_lens else ""
        return (
            f"; runs with {self.method}, {lens} draft tokens{known}: what drafting takes is told "
            "from their differences"
        )


def without_drafting(
    parts: "Sequence[Points]", lens: Sequence[int], method: str, source: str
) -> "tuple[list[Points], DraftingOfRuns]":
    """Return the steps without the time of drafting, and that time.

    One robust regression of all steps: the target's coefficients, of steps with and without
    prefill, and what a step that drafts and each of its passes takes. Without a run that does not
    draft, the former is part of the target; with only one that does, the passes are part of it.
    `lens` are the draft lengths of the parts. A ProfileError if draft lengths and batches are
    collinear, in a `source`.
    """
    drafting = DraftingOfRuns(method, tuple(sorted(set(lens))))
    if len(drafting.draft_lens) == 1:
        return list(parts), drafting
    columns, seconds = _columns(parts, lens), np.concatenate([part.seconds for part in parts])
    is_fitted = columns.max(axis=0) > 0
    is_fitted[-2:] &= [0 in lens, 0 not in lens or len(drafting.draft_lens) > 2]
    if are_collinear(columns[:, is_fitted]):
        raise ProfileError(
            f"{source}: draft length and batch are collinear, so drafting cannot be told from the "
            "target; measure each length at two loads, or fit each length by itself"
        )
    found = np.zeros(columns.shape[1])
    found[is_fitted] = robust_fit(columns[:, is_fitted], seconds)
    drafting = replace(drafting, step_seconds=float(found[-2]), pass_seconds=float(found[-1]))
    left = []
    for part, k in zip(parts, lens, strict=True):
        taken = drafting.step_seconds * (k > 0) + drafting.pass_seconds * k
        kept = np.maximum(part.seconds - taken, _LEAST_LEFT * part.seconds)
        left.append(replace(part, seconds=kept))
    return left, drafting


def _columns(parts: "Sequence[Points]", lens: Sequence[int]) -> NDArray[np.float64]:
    rows = []
    for part, k in zip(parts, lens, strict=True):
        plain = np.column_stack([part.context_tokens, part.batched_tokens, np.ones(len(part))])
        mixed = part.mixed[:, None]
        drafts = np.tile([float(k > 0), float(k)], (len(part), 1))
        rows.append(np.hstack([plain * UNITS * ~mixed, plain * UNITS * mixed, drafts]))
    return np.vstack(rows)
