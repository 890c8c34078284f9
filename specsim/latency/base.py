"""What every latency model answers: how long a forward pass lasts."""

from abc import abstractmethod

from specsim.families import Member
from specsim.step import StepLoad

__all__ = ["LatencyModel"]


class LatencyModel(Member):
    """Duration of one forward pass of one model on one kind of GPU."""

    kind: str

    @abstractmethod
    def forward_time(self, load: StepLoad) -> float:
        """Return how long a forward pass lasts.

        Parameters
        ----------
        load : StepLoad
            With at least one batched token. Any count may be an array, the result then is one.

        Returns
        -------
        float, seconds
            Positive, and not falling with the context or the batched tokens.
        """
