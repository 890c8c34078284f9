"""Fitting profiles: coefficients from measured steps or from kernel tables."""

from specsim.reality.profile_fit.estimate import (
    KINDS,
    ModelFit,
    ProfileErrors,
    fit_and_test,
    fit_model,
    fitted_profile,
)
from specsim.reality.profile_fit.points import (
    Points,
    kernel_folder,
    kernel_points,
    kernels_of,
    measured_steps,
    read_points,
)

__all__ = [
    "KINDS", "ModelFit", "Points", "ProfileErrors", "fit_and_test", "fit_model",
    "fitted_profile", "kernel_folder", "kernel_points", "kernels_of", "measured_steps",
    "read_points",
]  # fmt: skip
