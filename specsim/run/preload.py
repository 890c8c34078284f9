"""Imports that worker processes share: the server that they are forked from runs this once."""

from specsim.profile import Profile
from specsim.run.experiment import Experiment

# Otherwise each worker would build these classes for itself: see `Settings`.
Experiment.model_rebuild()
Profile.model_rebuild()
