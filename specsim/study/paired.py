"""Paired runs: policies on the same luck, compared replication by replication.

Ratios of latencies are averaged as logarithms, so that a speed-up of 2 and one of 1/2 cancel, and
the regret of a policy agrees with the speed-ups that it can be computed from.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

import numpy as np

from specsim.core.blame import is_whole
from specsim.core.errors import ConfigError
from specsim.core.reading import short
from specsim.profile.model_error import QUANTILE, TimeError
from specsim.run.experiment import Experiment

_T_95 = (
    12.706204736174694, 4.302652729749462, 3.1824463052837078, 2.7764451051977934,
    2.5705818356363146, 2.4469118511449786, 2.364624251592784, 2.306004135204166, 2.262157162798205,
    2.228138851986274, 2.200985160091639, 2.1788128296672284, 2.1603686564627913, 2.144786687917804,
    2.131449545559776, 2.1199052992212546, 2.1098155778333156, 2.1009220402410382,
    2.0930240544083087, 2.085963447265864, 2.0796138447276795, 2.0738730679040254,
    2.0686576104190486, 2.0638985616280245, 2.0595385527532972, 2.0555294386428735,
    2.0518305164802846, 2.0484071417952454, 2.045229642132703, 2.0422724563012378,
)  # fmt: skip
"""scipy's stdtrit(n, 0.975) for n = 1, 2, ...: usual intervals without importing scipy, 0.2 s."""
_FREEDOMS = range(1, len(_T_95) + 1)
MOST_REPLICATIONS = 10_000


def replicated(
    experiment: Experiment, replications: int, source: str = "experiment", /, **changes: object
) -> list[Experiment]:
    """Return one experiment per replication; replication i has the experiment's seed plus i.

    Whatever else is varied meets the same requests and luck (common random numbers). Raises a
    ConfigError, naming `source`, if `changes` are wrong, or if `replications` is below 1 or too
    large.
    """
    if not is_whole(replications) or not 1 <= replications <= MOST_REPLICATIONS:
        raise ConfigError(
            f"{source}: replications = {short(replications)} must be a whole number from 1 to "
            f"{MOST_REPLICATIONS:,}"
        )
    seeds = range(experiment.seed, experiment.seed + replications)
    return [experiment.replace(source, **changes, seed=seed) for seed in seeds]


@dataclass(frozen=True)
class SpeedUp:
    """How many times faster than the baseline, with a paired 95 % confidence interval."""

    mean: float  # geometric mean over the replications
    low: float | None  # None with a single replication
    high: float | None
    model_low: float | None = None
    """Ends of the interval if step times are off as on four in five measured servers; None if that
    error is not known."""
    model_high: float | None = None


@dataclass(frozen=True)
class Regret:
    """How much slower than a reference, percent, with a paired 95 % confidence interval."""

    reference: str  # label of the policy that it is compared with
    mean: float  # geometric mean over the replications; negative if faster than the reference
    low: float | None  # None with a single replication
    high: float | None


def speed_up(
    baseline: list[float],
    candidate: list[float],
    errors: tuple[TimeError | None, TimeError | None] = (None, None),
) -> SpeedUp:
    """Return the geometric mean of paired latency ratios, and its 95 % interval (t, of logs).

    Args:
        errors: Estimated errors of the times of baseline and candidate.
    """
    mean, half_width = _log_ratio(baseline, candidate)
    ends: list[float | None] = [None, None]
    if half_width is not None:
        ends = [float(np.exp(mean + sign * half_width)) for sign in (-1, 1)]
    of_baseline, of_candidate = errors
    if of_baseline is not None and of_candidate is not None:
        half = QUANTILE * of_baseline.spread_against(of_candidate)
        ends += [float(np.exp(mean + sign * half)) for sign in (-1, 1)]
    return SpeedUp(float(np.exp(mean)), *ends)


def regret(reference: list[float], candidate: list[float], label: str) -> Regret:
    """Return by how many percent latencies exceed the reference's, averaged as in `speed_up`."""
    mean, half_width = _log_ratio(candidate, reference)
    if half_width is None:
        return Regret(label, _percent_above(mean), None, None)
    values = (_percent_above(mean + shift) for shift in (0.0, -half_width, half_width))
    return Regret(label, *values)


def _percent_above(log_ratio: float) -> float:
    return 100.0 * float(np.expm1(log_ratio))


def _log_ratio(above: list[float], below: list[float]) -> tuple[float, float | None]:
    """Return the mean log ratio and half its 95 % interval; None in its place for one pair."""
    return mean_and_half_width([float(np.log(a / b)) for a, b in zip(above, below, strict=True)])


def mean_and_half_width(
    samples: Sequence[float], error: float = 0.05
) -> tuple[float, float | None]:
    """Return the mean of samples and half its confidence interval, by Student's t.

    The interval misses with probability `error`; its half-width is None for a single sample.
    """
    mean, count = fmean(samples), len(samples)
    if count < 2:
        return mean, None
    return mean, student_t(count - 1, error) * stdev(samples) / count**0.5


def student_t(freedom: float, error: float = 0.05) -> float:
    """Return the quantile of Student's t for a two-sided interval that misses with `error`."""
    if error == 0.05 and freedom in _FREEDOMS:
        return _T_95[int(freedom) - 1]
    from scipy.special import stdtrit

    return float(stdtrit(freedom, 1.0 - error / 2))
