"""What steps take, and how many of the largest gains make goodput highest: the loops."""

from math import inf
from typing import Annotated, Any, NamedTuple

import numpy as np

from specsim.core.compiled import inner
from specsim.core.desk import Desk, Floats, Ints
from specsim.decisions.loops import View
from specsim.latency import COEFFICIENTS
from specsim.profile.step_time import (
    Pricing,
    price_steps,
    priced,
    put_len,
    put_lens,
    put_load,
    step_time_of,
)

BUCKETS = 2048
"""Of equal width, that gains are dealt out to before they are sorted."""
_ALL = -2.0  # less than any gain


class Spending(NamedTuple):
    """Gains, and what it takes to have them."""

    gains: Floats
    """Shape (longest, n): of the first token of every sequence, then of the second and so on; at
    most 1, and all negative ones equal."""
    kept: Floats  # those that may be worth it
    places: Ints  # buckets, or batched tokens
    ends: Ints  # shape (BUCKETS,)
    falling: Floats  # gains, the largest first
    times: Floats
    """Of a step that spends 0, 1, ... of them, without"""
    extra: Floats
    """what any such step takes besides, and each of them, seconds."""
    found: Floats
    """What is emitted in any case, then the highest goodput; the last gain that is spent; seconds
    that a step may take, unless it takes more in any case, if it is not 0; what a second is worth,
    tokens: if it is not 0, tokens - worth x time stands for goodput."""
    counts: Ints  # of each sequence: what it drafts, or is to verify
    sizes: Ints  # gains, times, sequences, gains to be taken
    pricing: Annotated[Any, Pricing]  # what steps take


def spending_desk(
    pricing: Desk[Pricing] | None = None, longest_time: float = 0.0
) -> Desk[Spending]:
    """Return a desk to spend gains on; steps take what the policy's view says, or `pricing`.

    They may take `longest_time` seconds at most, if that is not 0 (see `Spending.found`).
    """
    given: dict[str, Any] = {} if pricing is None else {"pricing": pricing}
    given["found"] = np.array([0.0, 0.0, longest_time, 0.0])
    return Desk(Spending, ends=BUCKETS, extra=2, sizes=4, **given)


@inner
def _has_line(desk: Spending) -> bool:
    """Return whether a step's time rises with its tokens along a line, the drafter's included."""
    pricing = desk.pricing
    is_line = pricing.target[0] == COEFFICIENTS and pricing.drafter[0] == COEFFICIENTS
    return bool(is_line and not pricing.asked[0])


@inner
def _draw_line(desk: Spending, size: int) -> None:
    """Work out what steps take of 0, 1, ... tokens more, which lies on a line."""
    tokens, longest, times = desk.pricing.load[1], desk.pricing.load[4], desk.times
    first = step_time_of(desk.pricing, tokens, longest)
    rise = (step_time_of(desk.pricing, tokens + size, longest) - first) / size
    for index in range(size):
        times[index] = first + index * rise


@inner
def spent_time(desk: Spending, spent: int) -> float:
    """Return what a step takes that spends so many gains."""
    if desk.pricing.asked[0]:
        time = desk.times[spent]
    else:
        time = step_time_of(desk.pricing, desk.pricing.load[1] + spent, desk.pricing.load[4])
    total: float = time + (desk.extra[0] + desk.extra[1] * spent)
    return total


# The largest gains


@inner
def _worthless(desk: Spending) -> float:
    """Return what a gain has to be larger than to be worth its token.

    A token that takes gamma or more raises no goodput above R if it gains less than R gamma, and R
    is at least what nothing spent yields, or all that is worth it by that. The margins are far
    wider than what rounding does to sums of gains.
    """
    target, last = desk.pricing.target, desk.sizes[1] - 1
    if not _has_line(desk) or 0.0 < desk.found[2] < inf:
        return _ALL
    gamma = target[5] if desk.pricing.load[3] else target[2]
    share = 0.999 * gamma - 1e-9 * spent_time(desk, last)
    emitted: float = desk.found[0]
    worth: float = desk.found[3]
    least: float = worth * share
    if worth > 0.0:
        return least if least > 0.0 else _ALL
    least = emitted / spent_time(desk, 0) * share
    if least <= 0.0:
        return _ALL
    spent = 0
    for index in range(desk.sizes[0]):
        is_worth = 1 if desk.gains[index] > least else 0
        emitted += desk.gains[index] * is_worth
        spent += is_worth
    if spent <= last:
        least = max(least, emitted / spent_time(desk, spent) * share)
    return least


@inner
def _num_buckets(desk: Spending) -> int:
    """Return how many buckets are used: to empty more takes longer than it saves in sorting."""
    return int(min(len(desk.ends), max(64, desk.sizes[0] // 2)))


@inner
def _deal_out(desk: Spending, least: float) -> int:
    """Deal the gains above `least` out to narrow buckets, falling; count each, return how many."""
    gains, kept, places, ends = desk.gains, desk.kept, desk.places, desk.ends
    buckets = _num_buckets(desk)
    last = buckets - 1.0
    scale = last / (1.0 - min(max(least, 0.0), 0.999))
    for bucket in range(buckets):
        ends[bucket] = 0
    num = 0
    for index in range(desk.sizes[0]):
        value = gains[index]
        is_kept = 1 if value > least else 0  # branch-free
        bucket = int(max(min((1.0 - value) * scale, last), 0.0))
        kept[num] = value
        places[num] = bucket
        ends[bucket] += is_kept
        num += is_kept
    return num


@inner
def _sort(falling: Floats, num: int) -> None:
    """Sort what is nearly sorted by insertion; if it is not, first from afar (Shell)."""
    moves_left = 8 * num
    gap = 1
    while gap:
        for index in range(gap, num):
            value = falling[index]
            before = index - gap
            while before >= 0 and falling[before] < value:
                falling[before + gap] = falling[before]
                before -= gap
            falling[before + gap] = value
            moves_left -= (index - before) // gap - 1
            if gap == 1 and moves_left < 0:
                moves_left = 1 << 60
                while gap < num // 9:
                    gap = 3 * gap + 1
                gap = 3 * gap + 1
                break
        gap //= 3


@inner
def _sort_falling(desk: Spending, least: float) -> int:
    """Sort the gains above `least`, the largest first; return how many there are."""
    num = _deal_out(desk, least)
    kept, places, ends, falling = desk.kept, desk.places, desk.ends, desk.falling
    total = 0
    for bucket in range(_num_buckets(desk)):
        count = ends[bucket]
        ends[bucket] = total
        total += count
    for index in range(num):
        bucket = places[index]
        falling[ends[bucket]] = kept[index]
        ends[bucket] += 1
    _sort(falling, num)
    return num


@inner
def best_budget(desk: Spending) -> int:
    """Return how many of the largest gains make goodput highest; of equal choices the fewest."""
    num = min(_sort_falling(desk, _worthless(desk)), desk.sizes[1] - 1)
    falling, times, found, extra = desk.falling, desk.times, desk.found, desk.extra
    emitted_before, tokens = found[0], desk.pricing.load[1]
    worth = found[3]
    gained = 0.0
    best = 0
    best_rate = -1e300
    if _has_line(desk):
        _draw_line(desk, num + 1)
    else:
        price_steps(times, desk.pricing, tokens, num + 1)
    limit = found[2] if 0.0 < times[0] <= found[2] else inf
    for budget in range(num + 1):
        if budget:
            gained += falling[budget - 1]
        time = times[budget] + (extra[0] + extra[1] * budget)
        if time > limit:
            continue
        if worth > 0.0:
            rate = gained + emitted_before - worth * time
        else:
            rate = (gained + emitted_before) / time
        if rate > best_rate:
            best = budget
            best_rate = rate
    found[0] = best_rate
    found[1] = falling[best - 1] if best else 2.0
    return best


@inner
def _take_largest(desk: Spending) -> None:
    """Add each sequence's share of so many largest gains, the least of them given, to `counts`."""
    gains, counts, least = desk.gains, desk.counts, desk.found[1]
    num, left = desk.sizes[2], desk.sizes[3]
    for first in range(0, desk.sizes[0], num):
        for row in range(num):
            counts[row] += 1 if gains[first + row] > least else 0
    for index in range(desk.sizes[0]):
        left -= 1 if gains[index] > least else 0
    for index in range(desk.sizes[0]):
        if left <= 0:
            break
        if gains[index] == least:
            counts[index % num] += 1
            left -= 1


@inner
def _take_worthwhile(desk: Spending) -> bool:
    """Count what is worth more than its token takes, if a token always takes the same.

    False if that leaves doubt: at a given price of time, gains are to be compared with the price of
    a token, unless one is so near to it that roundings of sums decide.
    """
    gains, counts, num, last = desk.gains, desk.counts, desk.sizes[2], desk.sizes[1] - 1
    worth = desk.found[3]
    if worth <= 0.0 or last < desk.sizes[0] or not last or not _has_line(desk):
        return False
    least, most = spent_time(desk, 0), spent_time(desk, last)
    price = worth * (most - least) / last
    margin = 1e-9 * (desk.found[0] + last + worth * most)
    if margin >= 0.5 * price:
        return False
    gained_of = desk.falling
    for row in range(num):
        counts[row], gained_of[row] = 0, 0.0
    doubtful, taken, gained = 0, 0, 0.0
    for first in range(0, desk.sizes[0], num):
        for row in range(num):
            gain = gains[first + row]
            is_worth = 1 if gain > price else 0
            counts[row] += is_worth
            gained_of[row] += is_worth * gain
            doubtful += 1 if abs(gain - price) <= margin else 0
    for row in range(num):
        taken += counts[row]
        gained += gained_of[row]
    desk.found[0] += gained - worth * spent_time(desk, taken)
    return doubtful == 0


@inner
def spend_best(desk: Spending) -> None:
    """Count each sequence's share of what makes goodput highest, or worth at a price of time."""
    emitted = desk.found[0]
    if _take_worthwhile(desk):
        return
    desk.found[0] = emitted
    spend(desk)


@inner
def spend(desk: Spending) -> None:
    """Count each sequence's share of what makes goodput highest, by all sums of gains."""
    _take(desk, best_budget(desk))


@inner
def _take(desk: Spending, budget: int) -> None:
    """Do what `take_largest` does where the least of these gains is known."""
    desk.sizes[3] = budget
    for row in range(desk.sizes[2]):
        desk.counts[row] = 0
    if budget:
        _take_largest(desk)


@inner
def take_largest(desk: Spending, budget: int) -> None:
    """Count each sequence's share of so many largest gains; of equal ones the earlier go first."""
    num, bucket, falling = _deal_out(desk, _ALL) if budget else 0, 0, desk.falling
    place, among = budget - 1, 0  # of the least of them, in its bucket
    while num and place >= desk.ends[bucket]:
        place -= desk.ends[bucket]
        bucket += 1
    for index in range(num):
        if desk.places[index] == bucket:
            falling[among] = desk.kept[index]
            among += 1
    _sort(falling, among)
    if num:
        desk.found[1] = falling[place]
    _take(desk, budget)


@inner
def spend_by_len(desk: Spending, longest: int, free_slots: int, one_cost: bool) -> None:
    """Add to `counts` what makes the goodput of the step in `pricing.load` highest.

    Goodput is (n + sum_i sum_{j <= k_i} S_ij) / T(n + sum_i k_i, max_i k_i), n the sequences of the
    load and S_ij the probability that the first j drafts of sequence i are all accepted.

    Fix the longest draft v and the budget B = sum_i k_i: the B largest gains S_ij with j <= v are a
    legal choice, and none is better (proof: `goodput_exact`). One sort gives every budget. The
    maximum over v and B is exact wherever T depends on the batch through B and max k only, and does
    not fall with max k. The few sorts made here, one for each v, are faster than picking the gains
    of each v out of one; where a longer draft takes no more time than one token, one sort is all
    there is.

    Args:
        desk: With gains that do not rise along a draft. `counts` are spent in any case; the optimum
            is over what is added. Neither load nor `found` has them yet.
        longest: Tokens.
        free_slots: KV slots that drafts may take, tokens.
        one_cost: Whether a draft of any length costs what one of one token does.
    """
    num, found, pricing, spent, shortest = desk.sizes[2], desk.found, desk.pricing, 0, 0
    for row in range(num):
        spent += desk.counts[row]
        shortest = max(shortest, desk.counts[row])
    pricing.load[1] += spent
    for place in range(shortest):
        for row in range(num):
            if desk.counts[row] > place:
                found[0] += desk.gains[place * num + row]
                desk.gains[place * num + row] = -1.0
    emitted, best, best_len, best_rate, least = found[0], 0, shortest, -1.0, 0.0
    if one_cost and not shortest:  # not even to draft nothing costs anything else
        best_rate = emitted / priced(pricing, pricing.load[1], 0)
    for limit in range(longest if one_cost else shortest, longest + 1):
        put_len(pricing, limit)
        desk.sizes[0], found[0] = limit * num, emitted
        most = min(longest * num, free_slots) - spent
        desk.sizes[1] = 1 + min(most, max(limit * num - spent, 0))
        budget = best_budget(desk)
        if found[0] > best_rate:
            best, best_len, best_rate, least = budget, limit, found[0], found[1]
    desk.sizes[0], desk.sizes[3], found[0], found[1] = best_len * num, best, best_rate, least
    if best:
        _take_largest(desk)


@inner
def put_stated(view: View, gains: Floats) -> None:
    """Take drafters at their word on how likely each token is accepted; 0 beyond a draft's end."""
    step = view.step[0]
    for row in range(step.num_rows):
        stated = 1.0
        for place in range(step.width):
            stated *= view.confidences[row * step.width + place]
            is_drafted = place < view.draft_lens[row]
            gains[place * step.num_rows + row] = stated if is_drafted else 0.0


@inner
def stated_at(view: View, gains: Floats, k: int) -> tuple[float, float, int]:
    """Return of the k-th tokens of drafts their gains and confidences, summed, and how many count.

    After `put_stated`. A token beyond the end of an answer gains nothing and does not count.
    """
    step, gain, stated, num = view.step[0], 0.0, 0.0, 0
    for row in range(step.num_rows):
        if k <= view.draft_lens[row]:
            gained = gains[(k - 1) * step.num_rows + row]
            gain, num = gain + gained, num + (1 if gained > 0.0 else 0)
            stated += view.confidences[row * step.width + k - 1]
    return gain, stated, num


@inner
def spend_on_drafts_made(view: View, desk: Spending) -> None:
    """Say how many tokens of each draft that a step has made are worth verifying.

    The drafts are made already; the next ones will take about as long. Many sequences have short
    ones or none, so that is not as long as the longest one for each.
    """
    step, pricing, num = view.step[0], view.pricing, view.step[0].num_rows
    put_lens(pricing, view.draft_lens, num)
    tokens = step.batched_tokens - pricing.load[5]
    put_load(pricing, step.context_tokens, tokens, step.num_decodes, step.prefill_tokens)
    desk.sizes[0] = desk.sizes[1] = num * step.width
    desk.sizes[1] += 1
    desk.sizes[2], desk.found[0] = num, step.num_decodes
    spend(desk)
    for row in range(num):
        view.lens[row] = min(desk.counts[row], view.draft_lens[row])
