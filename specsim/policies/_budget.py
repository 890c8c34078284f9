"""How to spend verification on a batch: the lengths of highest estimated goodput."""

from collections.abc import Callable
from threading import local

import numpy as np
from numpy.typing import NDArray

from specsim.core.step import Ints, StepLoad
from specsim.policies._estimate import expected_len
from specsim.policies._kernels import Desk, Spending
from specsim.policies._times import Lens, StepTimes, TimesOf, spending_desk
from specsim.policies.base import ServerView

__all__ = ["best_common_len", "best_lens", "best_spending", "largest"]


class _LocalDesk(local):
    """A desk for times that Python works out, one for every thread."""

    def __init__(self) -> None:
        self.desk = spending_desk()


_LOCAL = _LocalDesk()


def _desk_of(step_times: TimesOf) -> Desk[Spending]:
    return step_times.desk if isinstance(step_times, StepTimes) else _LOCAL.desk


def best_lens(  # noqa: PLR0913
    survival: NDArray[np.float64],
    load: StepLoad,
    step_times: TimesOf,
    floor: Ints | None = None,
    free_slots: int = 1 << 40,
    *,
    one_cost: bool | None = None,
    step_time: Callable[[StepLoad, int], float] | None = None,
    drafts: Ints | None = None,
) -> Ints:
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

    Args:
        survival: Rows non-increasing, of shape (at least n, V).
        load: Of the step without drafts; without sequences it gets no drafts beyond the floor.
        step_times: Seconds of a step of this load by its batched tokens and a longest draft.
        floor: Draft lengths that are spent in any case; the optimum is over what is added. Of shape
            (n,).
        free_slots: KV slots that drafts may take; a floor that does not fit is disregarded. In
            tokens.
        one_cost: Whether a draft of any length costs what one of one token does (`ServerView`);
            None: to be found out.
        step_time: Seconds of one step, quicker than `step_times`; None, with `one_cost`: not even
            no draft at all costs anything else.
        drafts: What the step drafts, whatever is verified.

    Returns:
        Of shape (n,).
    """
    num, longest = survival.shape
    if floor is not None and (floor.sum() > free_slots or not floor.any()):
        floor = None
    if not load.num_requests or not longest:
        return np.zeros(num, dtype=np.int64) if floor is None else floor
    gains = survival.T.ravel()  # first tokens first
    start, spent, shortest, emitted_before = load, 0, 0, float(load.num_requests)
    if floor is not None:
        spent, shortest = int(floor.sum()), int(floor.max())
        start = load._replace(batched_tokens=load.batched_tokens + spent)
        is_spent = (np.arange(longest)[:, np.newaxis] < floor).ravel()
        emitted_before += float(gains[is_spent].sum())
        gains = np.where(is_spent, -1.0, gains)
    most = min(gains.size, free_slots) - spent
    best_goodput, best_limit, budget, least = -1.0, shortest, 0, 0.0
    may_skip = one_cost and shortest == 0 and step_time is not None
    if may_skip and step_time is not None and not isinstance(step_times, StepTimes):
        best_goodput = emitted_before / step_time(load, 0)
    limits = range(longest, longest + 1)
    if not one_cost:
        limits = _limits(step_times, start, most, range(shortest, longest + 1), one_cost)
    for limit in limits:
        places, goodput, last, undrafted = best_spending(
            gains[: limit * num],
            step_times,
            start,
            limit if drafts is None else drafts,
            emitted_before,
            min(most, max(limit * num - spent, 0)),
        )
        if may_skip:
            best_goodput = max(best_goodput, undrafted)
        if goodput > best_goodput:
            best_limit, budget, best_goodput, least = limit, places, goodput, last
    if not budget:
        return np.zeros(num, dtype=np.int64) if floor is None else floor.copy()
    rest = gains[: best_limit * num] if best_limit < longest else None
    return _with_largest(_desk_of(step_times), rest, least, budget, floor, num)


def _limits(
    step_times: TimesOf, load: StepLoad, most: int, limits: range, one_cost: bool | None
) -> range:
    """Return which longest drafts are worth trying where no draft may cost less than any."""
    shortest, longest = limits[0], limits[-1]
    if one_cost is None:
        tokens = np.arange(load.batched_tokens, load.batched_tokens + most + 1)
        times = step_times(load, tokens, longest)
        if np.array_equal(step_times(load, tokens, max(shortest, 1)), times):
            return limits[-1:] if shortest else limits[::longest]
    return limits


def best_spending(
    gains: NDArray[np.float64],
    step_times: TimesOf,
    load: StepLoad,
    drafts: Lens,
    emitted_before: float,
    most: int,
) -> tuple[int, float, float, float]:
    """Return how many of the largest gains make goodput highest; of equal choices the fewest.

    The load is that of the step that spends none of them and makes such drafts; `emitted_before` is
    emitted in any case, and `most` may be spent, at most all. Returned are the number, the goodput,
    the smallest gain that is spent, and the goodput of a step that makes no drafts either, if
    `step_times` is a `StepTimes`; else -1.
    """
    num = len(gains)
    room = max(num, most + 1)
    if isinstance(step_times, StepTimes):
        owner, desk = step_times.desk, step_times.fit(room, load, drafts)
        desk.sizes[4] = False
    else:
        tokens = np.arange(load.batched_tokens, load.batched_tokens + most + 1)
        times = step_times(load, tokens, drafts)
        owner = _LOCAL.desk
        desk = owner.fit(room)
        desk.times[: most + 1] = times
        desk.sizes[4], desk.sizes[5] = True, 0
        desk.found[2] = -1.0
    desk.gains[:num] = gains
    desk.found[0] = emitted_before
    desk.sizes[0], desk.sizes[1] = num, most + 1
    number = owner.runs[0]()
    return (number, *desk.found.tolist())


def _with_largest(
    owner: Desk[Spending],
    gains: NDArray[np.float64] | None,
    least: float,
    budget: int,
    floor: Ints | None,
    num: int,
) -> Ints:
    """Return a floor with the largest gains on top, down to the least one.

    Without gains it is those that the desk has been used for last.
    """
    desk = owner.fit(num, owner.lasting)
    if gains is not None:
        desk.gains[: len(gains)] = gains
        desk.sizes[0] = len(gains)
    desk.counts[:num] = 0 if floor is None else floor
    desk.found[1] = least
    desk.sizes[2], desk.sizes[3] = num, budget
    owner.runs[1]()
    return desk.counts[:num].copy()


def largest(gains: NDArray[np.float64], budget: int, num: int) -> Ints:
    """Return how many of so many largest gains fall on each of some sequences.

    The gains are of the first token of every sequence, then of the second and so on; of equal ones
    the earlier goes first.
    """
    if not budget:
        return np.zeros(num, dtype=np.int64)
    size, owner = len(gains), _LOCAL.desk
    desk = owner.fit(size)
    desk.gains[:size] = gains
    desk.counts[:num] = 0
    desk.sizes[0], desk.sizes[2], desk.sizes[3] = size, num, budget
    owner.runs[2]()
    owner.runs[1]()
    return desk.counts[:num].copy()


def best_common_len(server: ServerView, load: StepLoad, alpha: float, free_slots: int) -> int:
    """Return the k of highest goodput if all sequences draft k tokens, for which slots are free.

    The load is that of the step without drafts, alpha that of all sequences.
    """
    num = load.num_requests
    if not num:
        return 0  # all are in mid-prefill
    lens = range(min(server.max_draft_len, free_slots // num) + 1)
    if isinstance(server.step_times, StepTimes):
        times = server.step_times.by_len(load, len(lens))
    else:
        loads = [StepLoad(load.context_tokens, num * (1 + k), num) for k in lens]
        times = [server.step_time(verified, k) for k, verified in zip(lens, loads, strict=True)]
    best_k, best_rate = 0, 0.0
    for k, time in zip(lens, times, strict=True):
        rate = expected_len(alpha, k) / time
        if rate > best_rate:
            best_k, best_rate = k, rate
    return best_k
