"""Limits: what a server must keep for a load to count as sustained."""

from specsim.core.errors import ConfigError
from specsim.core.settings import nearest, validated
from specsim.results.slo import Slo

__all__ = ["parse_slo"]


def parse_slo(text: str) -> Slo:
    """Return the limits that ``--slo`` names.

    Args:
        text: Such as ``ttft:500,tpot:50,e2el:10000``, in milliseconds.

    Raises:
        ConfigError: A metric is unknown or given twice, or a limit is not a number above 0.
    """
    known = [name.removesuffix("_ms") for name in Slo.model_fields]
    limits: dict[str, str] = {}
    for part in text.split(","):
        name, colon, limit = (piece.strip() for piece in part.partition(":"))
        if not colon or not name:
            raise ConfigError(f"--slo {text}: '{part}' is not METRIC:MILLISECONDS, as ttft:500 is")
        metric = name.removesuffix("_ms")
        if metric not in known:
            raise ConfigError(f"--slo {text}: no metric '{name}'; {nearest(metric, known)}")
        if f"{metric}_ms" in limits:
            raise ConfigError(f"--slo {text}: '{metric}' is given twice; leave it out once")
        limits[f"{metric}_ms"] = limit
    with validated(f"--slo {text}", ConfigError):
        return Slo.model_validate(limits)
