"""What worker processes begin with: the server that they are forked from imports this, once."""

from specsim.profile import Profile
from specsim.run.experiment import Experiment

# Else each worker would build them for itself: see `Settings`.
Experiment.model_rebuild()
Profile.model_rebuild()
