"""How to spend verification on a batch: the lengths of highest estimated goodput."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from specsim.core.desk import Desk, LocalDesk
from specsim.core.step import BatchView, Ints, StepLoad
from specsim.decisions.policy import ServerView
from specsim.policies.parts.estimate import best_len
from specsim.policies.parts.spending import Spending
from specsim.policies.parts.times import Lens, StepTimes, TimesOf, spending_desk

_DESK = spending_desk(LocalDesk)  # for times that Python works out


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

    Fix the longest draft v and the budget B = sum_i k_i: the B largest gains S_ij with j <= v are a
    legal choice, and none is better (proof: `goodput_exact`). One sort gives every budget. The
    maximum over v and B is exact wherever T depends on the batch through B and max k only, and does
    not fall with max k. The few sorts made here, one for each v, are faster than picking the gains
    of each v out of one; where a longer draft takes no more time than one token, one sort is all
    there is.

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
    all_limits = range(shortest, longest + 1)
    for limit in _limits(step_times, start, most, all_limits, one_cost):
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
    owner = step_times.desk if isinstance(step_times, StepTimes) else _DESK
    if best_limit < longest:  # else all gains were the last to be looked at
        _put(owner, gains[: best_limit * num])
    owner.fit(num).found[1] = least
    return _taken(owner, budget, num, floor)


def best_of_drafts(
    batch: BatchView, draft_lens: Ints, survival: NDArray[np.float64], step_times: TimesOf
) -> Ints:
    """Return how many tokens of each draft that a step has made are worth verifying.

    The drafts are made already; the next ones will take about as long. Many sequences have short
    ones or none, so that is not as long as the longest one for each.
    """
    load = batch.load._replace(
        batched_tokens=batch.load.batched_tokens - int(np.add.reduce(draft_lens)),
        num_requests=batch.size - int(np.count_nonzero(batch.in_prefill)),
    )
    best = best_lens(survival, load, step_times, one_cost=True, drafts=draft_lens)
    lens: Ints = np.minimum(best, draft_lens)
    return lens


def _limits(
    step_times: TimesOf, load: StepLoad, most: int, limits: range, one_cost: bool | None
) -> range:
    """Return which longest drafts are worth trying where no draft may cost less than any."""
    shortest, longest = limits[0], limits[-1]
    if one_cost:
        return limits[-1:]
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
    owner, desk = _to_spend(gains, step_times, load, drafts, emitted_before, most)
    number = owner.runs[0]()
    goodput, last, undrafted, _ = desk.found.tolist()
    return number, goodput, last, undrafted


def _to_spend(
    gains: NDArray[np.float64],
    step_times: TimesOf,
    load: StepLoad,
    drafts: Lens,
    emitted_before: float,
    most: int,
) -> tuple[Desk[Spending], Spending]:
    """Return a desk on which lies what `best_spending` is told."""
    num = len(gains)
    room = max(num, most + 1)
    if isinstance(step_times, StepTimes):
        owner, desk = step_times.desk, step_times.fit(room, load, drafts)
        desk.sizes[4] = False
    else:
        tokens = np.arange(load.batched_tokens, load.batched_tokens + most + 1)
        times = step_times(load, tokens, drafts)  # which may use the desk, too
        owner, desk = _DESK, _DESK.fit(room)
        desk.times[: most + 1] = times
        desk.sizes[4], desk.sizes[5] = True, 0
        desk.found[2] = -1.0
    _put(owner, gains)
    desk.found[0] = emitted_before
    desk.sizes[1] = most + 1
    return owner, desk


def largest(gains: NDArray[np.float64], budget: int, num: int) -> Ints:
    """Return how many of so many largest gains fall on each of some sequences.

    The gains are of the first token of every sequence, then of the second and so on; of equal ones
    the earlier goes first.
    """
    if not budget:
        return np.zeros(num, dtype=np.int64)
    least = len(gains) - budget
    _put(_DESK, gains).found[1] = np.partition(gains, least)[least]
    return _taken(_DESK, budget, num)


def _put(owner: Desk[Spending], gains: NDArray[np.float64]) -> Spending:
    size = len(gains)
    desk = owner.fit(size)
    desk.gains[:size] = gains
    desk.sizes[0] = size
    return desk


def _taken(owner: Desk[Spending], budget: int, num: int, floor: Ints | None = None) -> Ints:
    """Return a floor with the largest gains of the desk on top, down to the least one there."""
    desk = owner.fit(num)
    desk.counts[:num] = 0 if floor is None else floor
    desk.sizes[2], desk.sizes[3] = num, budget
    owner.runs[1]()
    return desk.counts[:num].copy()


def emitted_of(survival: NDArray[np.float64], lens: Ints) -> float:
    """Return how many tokens of drafts of these lengths are expected to be accepted."""
    is_drafted = np.arange(survival.shape[1]) < lens[:, np.newaxis]
    return float(survival.sum(where=is_drafted))


def times_by_len(server: ServerView, load: StepLoad, num_lens: int) -> list[float]:
    """Return the seconds of steps in which all draft and verify 0, 1, ... tokens."""
    if isinstance(server.step_times, StepTimes):
        return server.step_times.by_len(load, num_lens)
    num = load.num_requests
    loads = [StepLoad(load.context_tokens, num * (1 + k), num) for k in range(num_lens)]
    return [server.step_time(verified, k) for k, verified in enumerate(loads)]


def best_common_len(server: ServerView, load: StepLoad, alpha: float, free_slots: int) -> int:
    """Return the k of highest goodput if all draft k tokens, for which slots are free."""
    num = load.num_requests
    if not num:
        return 0  # all are in mid-prefill
    num_lens = min(server.max_draft_len, free_slots // num) + 1
    return best_len(alpha, times_by_len(server, load, num_lens), num_lens)
