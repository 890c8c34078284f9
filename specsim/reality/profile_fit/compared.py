"""A profile beside measured steps."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from specsim.core.errors import ProfileError
from specsim.profile import Profile
from specsim.reality.profile_fit.points import Points
from specsim.reality.profile_fit.study import Error

__all__ = ["Comparison"]


@dataclass(frozen=True)
class Comparison:
    """What a profile says of the target's forward pass, and what was measured."""

    points: Points
    predicted: NDArray[np.float64]
    """Seconds, one per point; without drafting and the engine's overhead."""
    errors: dict[str, Error]
    """Of ``all`` steps, and of each kind that occurs."""
    num_outside: int
    """Steps beyond the profile's valid range."""

    @classmethod
    def of(cls, profile: Profile, points: Points, source: str) -> "Comparison":
        """Compare.

        Args:
            source: Where they come from, for the error message.

        Raises:
            ProfileError: There is no step to compare with.
        """
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
