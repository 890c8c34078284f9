"""What steps take, and how many of the largest gains make goodput highest: the loops."""

from typing import Annotated, Any, NamedTuple

from specsim.core.compiled import inner
from specsim.core.desk import Floats, Ints, loop_on
from specsim.latency import COEFFICIENTS
from specsim.policies.parts import ROOMS
from specsim.profile.step_time import BASIS, PASS, Pricing, step_time_of


class Spending(NamedTuple):
    """Gains, and what it takes to have them."""

    gains: Floats
    """Shape (longest, n): of the first token of every sequence, then of the second and so on; at
    most 1, and all negative ones equal."""
    kept: Floats
    """Those that may be worth it."""
    places: Ints
    """Buckets, or batched tokens."""
    ends: Ints
    """Shape (BUCKETS,)."""
    falling: Floats
    """Gains, the largest first."""
    times: Floats
    """Of a step that spends 0, 1, ... of them, without"""
    extra: Floats
    """what any such step takes besides, and each of them, seconds."""
    found: Floats
    """What is emitted in any case, then the highest goodput; the last gain that is spent; goodput
    if nothing were even drafted, where times are not given; what a second is worth, tokens: if it
    is not 0, tokens - worth x time stands for goodput."""
    counts: Ints
    """Of each sequence: what it drafts, or is to verify."""
    sizes: Ints
    """Gains, times, sequences, gains to be taken; whether the times are given; how many `counts`
    say what is drafted."""
    pricing: Annotated[Any, Pricing]
    """What steps take."""


@inner
def _has_line(desk: Spending) -> bool:
    """Return whether a step's time rises with its tokens along a line, the drafter's included."""
    return bool(desk.pricing.target[0] == COEFFICIENTS and desk.pricing.drafter[0] == COEFFICIENTS)


@inner
def _draw_line(desk: Spending, size: int) -> None:
    """Work out what steps take of 0, 1, ... tokens more, which lies on a line."""
    tokens, longest, times = desk.pricing.load[1], desk.pricing.load[4], desk.times
    first = step_time_of(desk.pricing, tokens, longest)
    rise = (step_time_of(desk.pricing, tokens + size, longest) - first) / size
    for index in range(size):
        times[index] = first + index * rise


@inner
def _add_drafts(desk: Spending) -> None:
    """Work out what a step drafts altogether, if it was said what each sequence does."""
    load, rows, counts, num = desk.pricing.load, desk.pricing.rows, desk.counts, desk.sizes[5]
    for row in range(num):
        load[4] = max(load[4], counts[row])
        load[5] += counts[row]
    if num and desk.pricing.costs[BASIS] == PASS:
        for place in range(load[4]):
            rows[place] = 0
            for row in range(num):
                rows[place] += 1 if counts[row] > place else 0


@loop_on(Spending, *ROOMS)
def time_steps(desk: Spending) -> int:
    """Work out what steps take that batch so many tokens each."""
    _add_drafts(desk)
    for index in range(desk.sizes[1]):
        desk.times[index] = step_time_of(desk.pricing, desk.places[index], desk.pricing.load[4])
    return 0


@loop_on(Spending, *ROOMS)
def time_lens(desk: Spending) -> int:
    """Work out what a step takes that verifies 0, 1, ... drafts of every sequence."""
    num = desk.pricing.load[2]
    for k in range(desk.sizes[1]):
        desk.pricing.load[5] = k * num
        desk.times[k] = step_time_of(desk.pricing, num * (1 + k), k)
    return 0


@inner
def spent_time(desk: Spending, spent: int) -> float:
    """Return what a step takes that spends so many gains."""
    if desk.sizes[4]:
        time = desk.times[spent]
    else:
        time = step_time_of(desk.pricing, desk.pricing.load[1] + spent, desk.pricing.load[4])
    total: float = time + (desk.extra[0] + desk.extra[1] * spent)
    return total


# The largest gains


BUCKETS = 2048
"""Of equal width, that gains are dealt out to before they are sorted."""
_ALL = -2.0  # less than any gain


@inner
def _worthless(desk: Spending) -> float:
    """Return what a gain has to be larger than to be worth its token.

    A token that takes gamma or more raises no goodput above R if it gains less than R gamma, and R
    is at least what nothing spent yields, or all that is worth it by that. The margins are far
    wider than what rounding does to sums of gains.
    """
    target, last = desk.pricing.target, desk.sizes[1] - 1
    is_given = desk.sizes[4]
    if is_given or not _has_line(desk):
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
def _best_budget(desk: Spending) -> int:
    """Return how many of the largest gains make goodput highest; of equal choices the fewest."""
    num = min(_sort_falling(desk, _worthless(desk)), desk.sizes[1] - 1)
    falling, times, found, extra = desk.falling, desk.times, desk.found, desk.extra
    emitted_before, tokens, is_given = found[0], desk.pricing.load[1], desk.sizes[4]
    longest = desk.pricing.load[4]
    worth = found[3]
    gained = 0.0
    best = 0
    best_rate = -1e300
    if not is_given and not _has_line(desk):
        for budget in range(num + 1):
            times[budget] = step_time_of(desk.pricing, tokens + budget, longest)
    elif not is_given:
        _draw_line(desk, num + 1)
    for budget in range(num + 1):
        if budget:
            gained += falling[budget - 1]
        time = times[budget] + (extra[0] + extra[1] * budget)
        if worth > 0.0:
            rate = gained + emitted_before - worth * time
        else:
            rate = (gained + emitted_before) / time
        if rate > best_rate:
            best = budget
            best_rate = rate
    found[0] = best_rate
    found[1] = falling[best - 1] if best else 2.0
    if not is_given:
        found[2] = emitted_before / step_time_of(desk.pricing, tokens, 0)
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


@loop_on(Spending, *ROOMS)
def best_budget(desk: Spending) -> int:
    """Return how many of the largest gains make goodput highest; of equal choices the fewest."""
    _add_drafts(desk)
    return _best_budget(desk)


@loop_on(Spending, *ROOMS)
def take_largest(desk: Spending) -> int:
    """Count each sequence's share of the largest gains; the smallest is `found`'s second number."""
    _take_largest(desk)
    return 0


@inner
def _take_worthwhile(desk: Spending) -> bool:
    """Count what is worth more than its token takes, if a token always takes the same.

    False if that leaves doubt: at a given price of time, gains are to be compared with the price of
    a token, unless one is so near to it that roundings of sums decide.
    """
    gains, counts, num, last = desk.gains, desk.counts, desk.sizes[2], desk.sizes[1] - 1
    worth = desk.found[3]
    if desk.sizes[4] or worth <= 0.0 or last < desk.sizes[0] or not last or not _has_line(desk):
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
    desk.sizes[3] = _best_budget(desk)
    for row in range(desk.sizes[2]):
        desk.counts[row] = 0
    if desk.sizes[3]:
        _take_largest(desk)
