"""Trust: where a run's step times are not what was measured, in the same words everywhere."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from specsim.profile import Profile
from specsim.profile.profile import NOT_MEASURED


@dataclass(frozen=True)
class Beyond:
    """Steps beyond what a profile was fitted on, of one run or several."""

    steps: int
    """All steps."""
    beyond_context: int
    """Steps with more context tokens than the valid range."""
    beyond_batched: int
    """Steps with more batched tokens than the valid range."""
    context_tokens: int
    """Of the largest step."""
    batched_tokens: int
    """Of the largest step."""

    @classmethod
    def of(cls, totals: np.void) -> "Beyond":
        """Return those of a run, whose totals are `specsim.results.records.TOTAL_FIELDS`."""
        return cls(**{name: int(totals[name]) for name in cls.__dataclass_fields__})

    @classmethod
    def over(cls, runs: "Sequence[Beyond]") -> "Beyond":
        """Return those of several runs together."""
        return cls(
            sum(run.steps for run in runs),
            sum(run.beyond_context for run in runs),
            sum(run.beyond_batched for run in runs),
            max(run.context_tokens for run in runs),
            max(run.batched_tokens for run in runs),
        )

    @property
    def share(self) -> float:
        """Share of the steps beyond the valid range, by whichever count is larger."""
        return max(self.beyond_context, self.beyond_batched) / max(self.steps, 1)

    def warnings(self, profiles: Sequence[Profile]) -> list[str]:
        """Return a line for each way in which steps lie beyond the valid range of a profile."""
        found = []
        for kind in ("context", "batched"):
            count, largest = getattr(self, f"beyond_{kind}"), getattr(self, f"{kind}_tokens")
            if count:
                limit = min(getattr(each.valid_range, f"{kind}_tokens") for each in profiles)
                found.append(
                    f"{count / self.steps:.1%} of the steps lie outside the profile's valid range: "
                    f"up to {largest:,} {kind} tokens, fitted up to {limit:,}"
                )
        return found


ROOFLINE = (
    "steps as the roofline says, not as measured; it flatters speculation at medium batch sizes "
    "(profiles/README.md)"
)


BASES = ("fitted", "kernels", "roofline")
"""What step times rest on, the least trusted last."""


def step_times(profile: Profile) -> str:
    """Return what step times rest on: ``fitted``, ``kernels`` or ``roofline``.

    Measured steps; kernels that were measured one by one; a data sheet.
    """
    if profile.target.kind == "roofline":
        return "roofline"
    return "kernels" if NOT_MEASURED in profile.provenance.notes else "fitted"


def roofline_warnings(profile: Profile) -> list[str]:
    """Return a line if steps cost what a data sheet says."""
    is_roofline = step_times(profile) == "roofline"
    return [f"{profile.model} on {profile.gpu}: {ROOFLINE}"] if is_roofline else []
