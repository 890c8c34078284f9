"""Loops that find how many of the largest gains to spend tokens on for the highest goodput."""

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
"""Number of buckets, of equal width, into which gains are put before they are sorted."""
_ALL = -2.0  # below any gain


class Spending(NamedTuple):
    """Gains of draft tokens, and the cost of verifying them."""

    gains: Floats
    """Expected accepted tokens by draft token, shape (longest, n): of the first token of every
    sequence, then of the second and so on; at most 1, and all negative ones equal."""
    kept: Floats  # scratch: gains that may be worth their cost
    places: Ints  # scratch: the bucket of each of these
    ends: Ints  # scratch, shape (BUCKETS,)
    falling: Floats  # scratch: gains, the largest first
    times: Floats
    """Seconds of a step that verifies 0, 1, ... draft tokens, without `extra`."""
    extra: Floats
    """Further seconds of each such step, and further seconds per draft token."""
    found: Floats
    """Tokens emitted in any case (input), then the highest goodput (output); the smallest gain that
    is spent (output); time limit of a step, seconds (0: none; ignored if the step exceeds it in any
    case); tokens that a second is worth (if not 0, tokens - worth x time replaces goodput)."""
    counts: Ints  # output: tokens that each sequence drafts, or verifies
    sizes: Ints  # gains, times, sequences, gains to be taken
    pricing: Annotated[Any, Pricing]  # cost model, loaded with the step


def spending_desk(
    pricing: Desk[Pricing] | None = None, longest_time: float = 0.0
) -> Desk[Spending]:
    """Return a desk with the cost model `pricing`; None: that of the policy's view.

    `longest_time` is the time limit of a step, seconds; 0: none (see `Spending.found`).
    """
    given: dict[str, Any] = {} if pricing is None else {"pricing": pricing}
    given["found"] = np.array([0.0, 0.0, longest_time, 0.0])
    return Desk(Spending, ends=BUCKETS, extra=2, sizes=4, **given)


@inner
def _has_line(desk: Spending) -> bool:
    """Return whether step times are linear in batched tokens, for target and drafter."""
    pricing = desk.pricing
    is_line = pricing.target[0] == COEFFICIENTS and pricing.drafter[0] == COEFFICIENTS
    return bool(is_line and not pricing.asked[0])


@inner
def _draw_line(desk: Spending, size: int) -> None:
    """Set `times` of a step with 0, 1, ..., size - 1 further tokens, which lie on a line."""
    tokens, longest, times = desk.pricing.load[1], desk.pricing.load[4], desk.times
    first = step_time_of(desk.pricing, tokens, longest)
    rise = (step_time_of(desk.pricing, tokens + size, longest) - first) / size
    for index in range(size):
        times[index] = first + index * rise


@inner
def spent_time(desk: Spending, spent: int) -> float:
    """Return the seconds of a step that verifies `spent` draft tokens."""
    if desk.pricing.asked[0]:
        time = desk.times[spent]
    else:
        time = step_time_of(desk.pricing, desk.pricing.load[1] + spent, desk.pricing.load[4])
    total: float = time + (desk.extra[0] + desk.extra[1] * spent)
    return total


# The largest gains


@inner
def _worthless(desk: Spending) -> float:
    """Return a bound below which a gain cannot be worth its token.

    A token that adds gamma seconds or more cannot raise the best goodput R if it gains less than
    R gamma. R is at least the goodput of verifying nothing, and of verifying all gains above the
    bound that follows from that. The margins are far wider than rounding errors in sums of gains.
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
    """Return the number of buckets in use; more would take longer to clear than they save."""
    return int(min(len(desk.ends), max(64, desk.sizes[0] // 2)))


@inner
def _deal_out(desk: Spending, least: float) -> int:
    """Put the gains above `least` into falling buckets, count each bucket, return their number."""
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
    """Sort by insertion, largest first; if that needs too many moves, by Shell's method."""
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
    """Return how many of the largest gains give the highest goodput; in ties the fewest."""
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
    """Add to `counts` each sequence's part of the `sizes[3]` largest gains, down to `found[1]`."""
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
    """Count the gains above the price of a token, if time has a price and step times are linear.

    False if that does not apply, or if a gain is so close to the price that rounding would decide.
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
    """Set `counts` for the highest goodput, or the highest value if a second has a price."""
    emitted = desk.found[0]
    if _take_worthwhile(desk):
        return
    desk.found[0] = emitted
    spend(desk)


@inner
def spend(desk: Spending) -> None:
    """Set `counts` for the highest goodput or value, by the sums of the largest gains."""
    _take(desk, best_budget(desk))


@inner
def _take(desk: Spending, budget: int) -> None:
    """Do what `take_largest` does, with the smallest of these gains already in `found[1]`."""
    desk.sizes[3] = budget
    for row in range(desk.sizes[2]):
        desk.counts[row] = 0
    if budget:
        _take_largest(desk)


@inner
def take_largest(desk: Spending, budget: int) -> None:
    """Set `counts` to each sequence's part of the `budget` largest gains; in ties the first."""
    num, bucket, falling = _deal_out(desk, _ALL) if budget else 0, 0, desk.falling
    place, among = budget - 1, 0  # place of the smallest of them in its bucket
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
    """Add to `counts` the draft tokens that maximise the goodput of the step in `pricing.load`.

    Goodput is (n + sum_i sum_{j <= k_i} S_ij) / T(n + sum_i k_i, max_i k_i), n the sequences of the
    load and S_ij the probability that the first j draft tokens of sequence i are all accepted.

    Fix the longest draft v and the budget B = sum_i k_i: the B largest gains S_ij with j <= v are a
    legal choice, and none is better (proof: `goodput_exact`). One sort gives every budget. The
    maximum over v and B is exact wherever T depends on the batch through B and max k only, and does
    not fall with max k. One sort for each v is faster than picking the gains of each v out of a
    single sort; with `one_cost`, one sort is enough.

    Args:
        desk: With gains that do not rise along a draft. The tokens in `counts` are spent in any
            case, and are not yet in the load or in `found`; the optimum is over further tokens.
        longest: Longest draft, tokens.
        free_slots: KV slots that drafts may take, tokens.
        one_cost: Whether a draft of any length costs as much as one of one token.
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
    if one_cost and not shortest:  # drafting nothing is not among the limits below
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
    """Set `gains` to the products of the confidences along each draft; 0 beyond its end."""
    step = view.step[0]
    for row in range(step.num_rows):
        stated = 1.0
        for place in range(step.width):
            stated *= view.confidences[row * step.width + place]
            is_drafted = place < view.draft_lens[row]
            gains[place * step.num_rows + row] = stated if is_drafted else 0.0


@inner
def stated_at(view: View, gains: Floats, k: int) -> tuple[float, float, int]:
    """Return the sums of gains and confidences of all drafts' k-th tokens, and their number.

    To be called after `put_stated`. A token that gains 0 (beyond the end of an answer) is not
    counted.
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
    """Set `lens`: how many tokens of each draft are worth verifying.

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
