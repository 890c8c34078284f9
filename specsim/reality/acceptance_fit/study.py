"""Study: fit every model to one half of the requests, and measure it on the other."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from specsim.acceptance.base import Acceptance
from specsim.core.errors import ConfigError, TraceError
from specsim.core.rng import Luck, stream_id
from specsim.core.settings import nearest
from specsim.reality.acceptance_fit.distance import Distances
from specsim.reality.acceptance_fit.estimate import (
    fit_bernoulli,
    fit_beta,
    fit_beta_position,
    fit_per_position,
)
from specsim.reality.acceptance_fit.records import Records
from specsim.reality.acceptance_fit.replay import WINDOW, Replay, Twin, replay
from specsim.reality.acceptance_fit.simulated import fit_layered, fit_markov

__all__ = ["FITS", "Candidate", "Study", "run_study", "split_halves"]

FITS: dict[str, Callable[[Replay], Acceptance]] = {
    "bernoulli": fit_bernoulli,
    "per_position": fit_per_position,
    "beta": fit_beta,
    "markov": fit_markov,
    "beta_position": fit_beta_position,
    "layered": fit_layered,
}
"""Every model that can be fitted, by kind, simplest first."""

_POSITIONS = 1_000_000  # output positions simulated to measure a model: its own noise vanishes


@dataclass(frozen=True)
class Candidate:
    """A model fitted to one half of the requests, and how far it is from the other half."""

    model: Acceptance
    held_out: Distances


@dataclass(frozen=True)
class Study:
    """What came of fitting all models."""

    num_fitted: int
    """Requests in the half that models were fitted to."""
    num_held_out: int
    halves: Distances
    """Between the two halves of the data: what a perfect model would still be apart."""
    candidates: dict[str, Candidate]
    """By kind."""
    best: str
    """Kind of the candidate that is closest to the held-out half."""
    chosen_kind: str
    """The best, unless another one was asked for."""
    chosen: Acceptance
    """A model of that kind, fitted to all requests."""


def run_study(
    records: Records, draft_len: int, split_seed: int, chosen_kind: str | None = None
) -> Study:
    """Fit all models and choose the best.

    Args:
        draft_len: In tokens.
        split_seed: Other seeds divide the requests in other ways.
        chosen_kind: Choose this kind, whatever is best.

    Raises:
        ConfigError: There is no such kind, or it cannot be fitted.
        TraceError: The records are too few or too short, or drafts in them are shorter than
            `draft_len`.
    """
    if chosen_kind not in (None, *FITS):
        raise ConfigError(
            f"no kind '{chosen_kind}' to fit; {nearest(str(chosen_kind), list(FITS))}"
        )
    _check(records, draft_len)
    fitted, held_out = (replay(half, draft_len) for half in split_halves(records, split_seed))
    if not (len(fitted.window_sums) and len(held_out.window_sums)):
        raise TraceError(
            f"{records.file}: no request in one of the halves takes {WINDOW} steps; a fit needs "
            "longer outputs, or more of them"
        )
    twin = Twin(held_out, _POSITIONS, "measure")
    candidates = {}
    for kind, fit in FITS.items():
        model = fit(fitted)
        candidates[kind] = Candidate(model, Distances.between(twin.replay(model), held_out))
    best = min(candidates, key=lambda kind: candidates[kind].held_out.total)
    return Study(
        num_fitted=len(fitted.output_lens),
        num_held_out=len(held_out.output_lens),
        halves=Distances.between(fitted, held_out),
        candidates=candidates,
        best=best,
        chosen_kind=chosen_kind or best,
        chosen=FITS[chosen_kind or best](replay(records.tables, draft_len)),
    )


def _check(records: Records, draft_len: int) -> None:
    if len(records.tables) < 4:
        raise TraceError(
            f"{records.file}: {len(records.tables)} requests are too few to fit to one half and "
            "measure on the other; at least 4 are needed"
        )
    longest = max(map(max, records.tables))
    if draft_len > longest:
        raise TraceError(
            f"{records.file}: k = {draft_len}, but no recorded draft survived longer than "
            f"{longest} tokens; choose a k of at most that"
        )


def split_halves(records: Records, split_seed: int) -> tuple[list[bytes], list[bytes]]:
    """Divide the requests at random, in a way that depends on the seed and their number alone.

    Returns:
        Survival tables, in the order of the file.
    """
    count = len(records.tables)
    luck = Luck(split_seed, stream_id("acceptance_fit", "split"))
    order = np.argsort(luck.per_request(range(count)))
    middle = (count + 1) // 2
    first, second = np.sort(order[:middle]).tolist(), np.sort(order[middle:]).tolist()
    return [records.tables[row] for row in first], [records.tables[row] for row in second]
