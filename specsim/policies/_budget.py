"""How to spend verification on a batch: the lengths of highest estimated goodput."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from specsim.policies._estimate import expected_len
from specsim.policies.base import ServerView
from specsim.step import StepLoad

__all__ = ["best_common_len", "best_lens", "largest"]


def best_lens(
    survival: NDArray[np.float64],
    load: StepLoad,
    step_times: Callable[[StepLoad, NDArray[np.int64], int], NDArray[np.float64]],
    floor: NDArray[np.intp] | None = None,
    free_slots: int = 1 << 40,
) -> NDArray[np.intp]:
    """Return the draft lengths k_1..k_n that maximise the goodput of the step that verifies them.

    Goodput is (n + sum_i sum_{j <= k_i} S_ij) / T(n + sum_i k_i, max_i k_i), n the sequences of the
    load and S_ij the probability that the first j drafts of sequence i are all accepted. Rows of
    zeros may stand for sequences that the load leaves out.

    Why a sort finds the optimum. Fix the longest draft v and the budget B = sum_i k_i: T is then a
    constant, and the sum of gains is to be maximised. S_ij does not rise with j, so the B largest
    gains with j <= v, ties taken by smaller j, are a legal choice: whenever (i, j + 1) is among
    them, so is (i, j). No choice of B gains can sum to more. Prefix sums of the sorted gains give
    every budget. A choice whose longest draft turns out shorter than v is charged for v here, never
    less than it costs, and is found again, rightly charged, at the smaller v. So the maximum over v
    and B is exact wherever T depends on the batch through B and max k only, and does not fall with
    max k.

    O(n V (V + log n V)) for n sequences and longest draft V, if one sort serves every v; the few
    sorts made here are faster than picking the gains of each v out of one. Where a longer draft
    takes no more time than one token, one sort is all there is.

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
    free_slots : int, tokens
        KV slots that drafts may take; a floor that does not fit is disregarded.

    Returns
    -------
    ndarray of int, shape (n,)
    """
    num, longest = survival.shape
    if floor is None or floor.sum() > free_slots:
        floor = np.zeros(num, dtype=np.intp)
    if not load.num_requests or not longest:
        return floor
    gains = survival.T.ravel()  # first tokens first
    spent = int(floor.sum())
    emitted_before = float(load.num_requests)
    if spent:
        is_spent = (np.arange(longest)[:, np.newaxis] < floor).ravel()
        emitted_before += float(gains[is_spent].sum())
        gains = np.where(is_spent, -1.0, gains)
    most = min(gains.size, free_slots) - spent
    tokens = load.batched_tokens + spent + np.arange(most + 1)
    shortest = int(floor.max(initial=0))
    times = step_times(load, tokens, longest)
    limits = range(shortest, longest + 1)
    if np.array_equal(step_times(load, tokens, max(shortest, 1)), times):
        # One token takes as long as the longest draft, and so does every length between.
        limits = range(0, longest + 1, longest) if shortest == 0 else range(longest, longest + 1)
    best_goodput, best_limit, best_budget = -1.0, shortest, 0
    for limit in limits:
        sizes = tokens[: max(limit * num - spent, 0) + 1]
        emitted = np.empty(len(sizes))
        emitted[0] = 0.0
        np.cumsum(np.sort(gains[: limit * num])[::-1][: len(sizes) - 1], out=emitted[1:])
        emitted += emitted_before
        emitted /= times if limit == longest else step_times(load, sizes, limit)
        budget = int(emitted.argmax())
        if emitted[budget] > best_goodput:
            best_goodput, best_limit, best_budget = float(emitted[budget]), limit, budget
    return floor + largest(gains[: best_limit * num], best_budget, num)


def largest(gains: NDArray[np.floating], budget: int, num: int) -> NDArray[np.intp]:
    """Return how many of the largest gains fall on each sequence.

    Parameters
    ----------
    gains : ndarray of float, shape (longest * num,)
        The first token of every sequence, then the second and so on; of equal gains the earlier
        goes first.
    budget : int
        Gains to choose.
    num : int
        Sequences.

    Returns
    -------
    ndarray of int, shape (num,)
    """
    if not budget:
        return np.zeros(num, dtype=np.intp)
    limit = np.partition(gains, gains.size - budget)[gains.size - budget]
    is_above = gains > limit
    is_chosen = is_above.copy()
    equal = np.flatnonzero(gains == limit)
    is_chosen[equal[: budget - int(np.count_nonzero(is_above))]] = True
    counts: NDArray[np.intp] = is_chosen.reshape(-1, num).sum(axis=0)
    return counts


def best_common_len(server: ServerView, load: StepLoad, alpha: float, free_slots: int) -> int:
    """Return the k of highest goodput if all sequences draft k tokens.

    Parameters
    ----------
    server : ServerView
    load : StepLoad
        Of the step without drafts.
    alpha : float
        Of all sequences.
    free_slots : int, tokens
        KV slots that the drafts may take.

    Returns
    -------
    int, tokens
    """
    num = load.num_requests
    if not num:
        return 0  # all are in mid-prefill
    best_k, best_rate = 0, 0.0
    for k in range(server.max_draft_len + 1):
        if k * num > free_slots:
            break
        verified = StepLoad(load.context_tokens, num * (1 + k), num)
        rate = expected_len(alpha, k) / server.step_time(verified, k)
        if rate > best_rate:
            best_k, best_rate = k, rate
    return best_k
