"""The same experiment on a machine whose speed is known: given to a simulation as arrivals are."""

from math import isinf

from specsim.engine.incidents import Slowdown
from specsim.reality.host_speed import HostSpeed
from specsim.run.experiment import Experiment

__all__ = ["at_speed"]


def at_speed(experiment: Experiment, speed: HostSpeed, usual: float, start: float) -> Experiment:
    """Return an experiment in which everything takes as much longer as on a measured machine.

    Args:
        experiment: Of one replica.
        speed: Of the measured run.
        usual: What a probe took on the machine that the costs of the experiment are of, in seconds.
        start: The experiment's time 0 on the clock of `speed`, in seconds.

    Returns:
        Policies are not told.
    """
    slowdowns = tuple(
        Slowdown(
            replica=0,
            at=window.start,
            until=None if isinf(window.end) else window.end,
            factor=window.slowness,
        )
        for window in speed.windows(usual, start)
    )
    return experiment.model_copy(update={"incidents": slowdowns})
