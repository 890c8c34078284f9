"""Confidence intervals."""

from specsim.study.paired import SpeedUp

__all__ = ["interval"]


def interval(value: SpeedUp) -> str:
    """Return the 95 % interval of a speed-up; ``-`` of a single replication."""
    if value.low is None or value.high is None:
        return "-"
    return f"{value.low:.3f} - {value.high:.3f}"
