"""What drafting costs, from the steps of runs with several draft lengths."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from specsim.core.errors import ProfileError
from specsim.reality.profile_fit.robust import UNITS, are_collinear, robust_fit

if TYPE_CHECKING:
    from specsim.reality.profile_fit.points import Points

_LEAST_LEFT = 0.1  # share of a measured step that is the target's at least, whatever drafting takes


@dataclass(frozen=True)
class DraftingOfRuns:
    """How measured runs drafted, and what their differences say that it costs."""

    method: str
    draft_lens: tuple[int, ...]  # of the runs, rising; 0: without speculation
    step_seconds: float = 0.0
    pass_seconds: float = 0.0

    @property
    def only_lens(self) -> tuple[int, ...] | None:
        """Return the draft lengths that the runs say something of; None: of all.

        What a step and what a pass takes is known from two lengths and runs without drafts.
        """
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
        """What a profile says of it."""
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

    Args:
        lens: Draft length of each part, tokens.
        source: For error messages.

    Raises:
        ProfileError: Draft lengths and batches are collinear.
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
