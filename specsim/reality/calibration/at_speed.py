"""The same experiment on a machine whose speed is known: given to a simulation as arrivals are."""

from math import isinf

from specsim.engine.incidents import Slowdown
from specsim.reality.host_speed import HostSpeed
from specsim.run.experiment import Experiment

__all__ = ["at_speed"]


def at_speed(experiment: Experiment, speed: HostSpeed, usual: float, start: float) -> Experiment:
    """Return an experiment in which everything takes as much longer as on a measured machine.

    Parameters
    ----------
    experiment : Experiment
        Of one replica.
    speed : HostSpeed
        Of the measured run.
    usual : float, seconds
        What a probe took on the machine that the costs of the experiment are of.
    start : float, seconds
        The experiment's time 0 on the clock of `speed`.

    Returns
    -------
    Experiment
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
