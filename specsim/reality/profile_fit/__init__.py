"""Fitting profiles: coefficients from measured steps or from kernel tables."""

from specsim.reality.profile_fit.compared import Comparison
from specsim.reality.profile_fit.estimate import KINDS, MIN_POINTS, fit_model, robust_fit
from specsim.reality.profile_fit.points import Limits, Points, kernel_points, read_points
from specsim.reality.profile_fit.study import Error, Study, run_study
from specsim.reality.profile_fit.written import (
    Subject,
    fitted_profile,
    kernel_folder,
    kernels_of,
    measured_steps,
)

__all__ = [
    "KINDS",
    "MIN_POINTS",
    "Comparison",
    "Error",
    "Limits",
    "Points",
    "Study",
    "Subject",
    "fit_model",
    "fitted_profile",
    "kernel_folder",
    "kernel_points",
    "kernels_of",
    "measured_steps",
    "read_points",
    "robust_fit",
    "run_study",
]
