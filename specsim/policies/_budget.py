"""How to spend verification on a batch: the exact optimum of estimated goodput."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from specsim.step import StepLoad

__all__ = ["best_lens"]


def best_lens(
    survival: NDArray[np.float64],
    load: StepLoad,
    step_times: Callable[[StepLoad, NDArray[np.int64], int], NDArray[np.float64]],
    floor: NDArray[np.intp] | None = None,
) -> NDArray[np.intp]:
    """Return the draft lengths k_1..k_n that maximise the goodput of the step that verifies them.

    Goodput is (n + sum_i sum_{j <= k_i} S_ij) / T(n + sum_i k_i, max_i k_i), n the sequences of the
    load and S_ij the probability that the first j drafts of sequence i are all accepted. Rows of
    zeros may stand for sequences that the load leaves out.

    Why a sort finds the optimum. Fix the longest draft v and the budget B = sum_i k_i: T is then a
    constant, and the sum of gains is to be maximised. S_ij does not rise with j, so the B largest
    gains with j <= v, ties taken by smaller j, are a legal choice: whenever (i, j + 1) is among
    them, so is (i, j). No choice of B gains can sum to more. One sort of all gains serves every v,
    since dropping those with j > v keeps the order; prefix sums give every budget. A choice whose
    longest draft turns out shorter than v is charged for v here, never less than it costs, and is
    found again, rightly charged, at the smaller v. So the maximum over v and B is exact wherever T
    depends on the batch through B and max k only, and does not fall with max k.

    O(n V (V + log n V)) for n sequences and longest draft V.

    Parameters
    ----------
    survival : ndarray of float, shape (at least n, V)
        Rows non-increasing.
    load : StepLoad
        Of the step without drafts; without sequences it gets no drafts beyond the floor.
    step_times : callable
        Seconds of a step of this load by its batched tokens and a longest draft.
    floor : ndarray of int, shape (n,), optional
        Draft lengths that are spent in any case; the optimum is over what is added.

    Returns
    -------
    ndarray of int, shape (n,)
    """
    num, longest = survival.shape
    base = np.zeros(num, dtype=np.intp) if floor is None else floor
    if not load.num_requests:
        return base
    gains = survival.T.ravel()  # first tokens first, so that a stable sort breaks ties by j
    if floor is not None:
        is_spent = (np.arange(longest)[:, np.newaxis] < floor).ravel()
        gains = np.where(is_spent, -1.0, gains)
    order = np.argsort(-gains, kind="stable")[: gains.size - int(base.sum())]
    ranks = order // num
    emitted_before = load.num_requests + float(
        survival[np.arange(longest) < base[:, np.newaxis]].sum()
    )
    tokens_before = load.batched_tokens + int(base.sum())
    best_goodput, best_choice = -1.0, order[:0]
    for limit in range(int(base.max(initial=0)), longest + 1):
        chosen = order if limit == longest else order[ranks < limit]
        emitted = np.empty(len(chosen) + 1)
        emitted[0] = emitted_before
        np.cumsum(gains[chosen], out=emitted[1:])
        emitted[1:] += emitted_before
        tokens = np.arange(tokens_before, tokens_before + len(emitted))
        goodputs = emitted / step_times(load, tokens, limit)
        budget = int(goodputs.argmax())
        if goodputs[budget] > best_goodput:
            best_goodput, best_choice = float(goodputs[budget]), chosen[:budget]
    return base + np.bincount(best_choice % num, minlength=num)
