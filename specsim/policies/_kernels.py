"""The inner loops of policies that numpy has no quick way for.

Plain functions over arrays (`specsim.core.compiled`): they allocate nothing, raise nothing and
add up in the order that the text says, so that they return the same bits, compiled or not.

What a loop works on lies on a desk: arrays with room for a step, which what the loop is to know is
copied to, and arrays that last. Tables of a step, such as a gain for each token of each draft, are
one row after the other; `sizes` says how many of it all there are.
"""

from collections.abc import Callable
from functools import cache
from threading import local
from typing import Annotated, Any, Generic, NamedTuple, TypeVar, get_type_hints

import numpy as np
from numpy.typing import NDArray

from specsim.core.compiled import Loop, Pointers, inner
from specsim.latency import COEFFICIENTS, forward_time

__all__ = [
    "BUCKETS",
    "Branching",
    "Calibrating",
    "Desk",
    "Fading",
    "Grouping",
    "Late",
    "Learning",
    "LocalDesk",
    "Moving",
    "Seeing",
    "Spending",
    "Stale",
    "Stated",
    "Windows",
    "add_fading",
    "best_budget",
    "best_places",
    "blank",
    "calibrated_gains",
    "count_repeats",
    "count_visits",
    "cut_to_size",
    "enter_all",
    "find_least",
    "group",
    "lens_on_time",
    "move_entries",
    "stale_survival",
    "survivals",
    "take_largest",
    "tally",
    "time_lens",
    "time_steps",
    "tree_lens",
]

Ints = Annotated[NDArray[np.int64], (np.int64, 1)]
Floats = Annotated[NDArray[np.float64], (np.float64, 1)]
Flags = Annotated[NDArray[np.bool_], (np.bool_, 1)]
Singles = Annotated[NDArray[np.float32], (np.float32, 1)]
IntRows = Annotated[NDArray[np.int64], (np.int64, 2)]
FloatRows = Annotated[NDArray[np.float64], (np.float64, 2)]
Arrays = TypeVar("Arrays")

_ROOMS = ("specsim.policies._kernels", "specsim.latency._form")


@cache
def _types(arrays: Any) -> dict[str, tuple[Any, int]]:
    hints = get_type_hints(arrays, include_extras=True)
    return {name: hint.__metadata__[0] for name, hint in hints.items()}


def _loop(function: Callable[[Any], int], arrays: Any) -> Loop:
    return Loop(function, _types(arrays), name="policies", rooms=_ROOMS)


def blank(arrays: Callable[..., Arrays], room: int, **given: NDArray[Any]) -> Arrays:
    """Return arrays of zeros, with room for so many numbers and at least eight, except some."""
    kinds = {name: kind for name, (kind, _) in _types(arrays).items() if name not in given}
    return arrays(**{name: np.zeros(max(room, 8), kind) for name, kind in kinds.items()}, **given)


class Desk(Generic[Arrays]):
    """Arrays for loops to work on, made anew where a step needs more room, and the loops on them.

    `make` returns the arrays, with room for so many numbers, given what lasts.
    """

    runs: list[Callable[[], int]]
    """The loops on the arrays that `fit` returned last."""

    def __init__(self, make: Callable[[int, Any], Arrays], *loops: Loop) -> None:
        self._make = make
        self._loops = loops
        self._room = -1
        self.lasting: Any = None
        self._arrays: Arrays

    def fit(self, num: int, lasting: Any = None) -> Arrays:
        """Return arrays with room for so many numbers; anew if another thing is to last, too."""
        if num > self._room or lasting is not self.lasting:
            if num > self._room:
                self._room = num + num // 2
            self.lasting = lasting
            self._arrays = self._make(self._room, lasting)
            pointers = Pointers(self._arrays, self._loops[0].types)
            self.runs = [loop.bind(pointers) for loop in self._loops]
        return self._arrays


class LocalDesk(Desk[Arrays], local):
    """A desk that nothing lasts on, of which every thread has its own."""


# How likely drafts are accepted


class Fading(NamedTuple):
    """Counts that fade, and the step that is added to them."""

    counts: FloatRows
    """Accepted tokens and trials of each request, shape (requests, 2)."""
    totals: Floats
    """The same of all requests."""
    rates: Floats
    """Share that stays; accepted tokens and trials that every request is given besides."""
    requests: Ints
    accepted_lens: Ints
    draft_lens: Ints
    in_prefill: Flags
    """Whose drafts would be ignored."""
    powers: Floats
    """Shape (longest, n): the rate of each request to the power of 1, 2, ..."""
    sizes: Ints
    """n, longest."""


def _add_fading(desk: Fading) -> int:
    """Let the counts of a step's requests fade, and add what became of their drafts.

    A rejected token ends a draft, so a step tries each of its drafts once more than it accepts,
    unless it accepts all of it.
    """
    counts, requests = desk.counts, desk.requests
    accepted_lens, draft_lens, keep = desk.accepted_lens, desk.draft_lens, desk.rates[0]
    all_accepted = 0
    all_trials = 0
    for row in range(desk.sizes[0]):
        request = requests[row]
        accepted = accepted_lens[row]
        trials = accepted
        if accepted < draft_lens[row]:
            trials += 1
        counts[request, 0] = keep * counts[request, 0] + accepted
        counts[request, 1] = keep * counts[request, 1] + trials
        all_accepted += accepted
        all_trials += trials
    desk.totals[0] = keep * desk.totals[0] + all_accepted
    desk.totals[1] = keep * desk.totals[1] + all_trials
    return 0


add_fading = _loop(_add_fading, Fading)


def _survivals(desk: Fading) -> int:
    """Work out how likely the first tokens of some drafts are accepted; 0 in mid-prefill."""
    counts, requests, powers = desk.counts, desk.requests, desk.powers
    accepted, trials = desk.rates[1], desk.rates[2]
    num, longest = desk.sizes[0], desk.sizes[1]
    for row in range(num):
        request = requests[row]
        rate = 0.0
        if not desk.in_prefill[row]:
            rate = (counts[request, 0] + accepted) / (counts[request, 1] + trials)
        powers[row] = rate
    for place in range(1, longest):
        for row in range(num):
            powers[place * num + row] = powers[(place - 1) * num + row] * powers[row]
    return 0


survivals = _loop(_survivals, Fading)


class Windows(NamedTuple):
    """Rates, and what windows of 0, 1, ... tokens take."""

    alphas: Floats
    times: Floats
    best: Ints
    """Filled in."""
    sizes: Ints
    """Rates, times."""


def _best_places(desk: Windows) -> int:
    """Find the first k that maximises (1 - alpha^(k + 1)) / time_k for each alpha."""
    alphas, times = desk.alphas, desk.times
    for row in range(desk.sizes[0]):
        alpha = alphas[row]
        power = alpha
        place = 0
        rate = (1.0 - power) / times[0]
        for k in range(1, desk.sizes[1]):
            power = power * alpha
            other = (1.0 - power) / times[k]
            if other > rate:
                place = k
                rate = other
        desk.best[row] = place
    return 0


best_places = _loop(_best_places, Windows)


# What steps take


_OVERHEAD_STEP, _OVERHEAD_REQUEST, _HAS_DRAFTER, _HAS_LATENCY, _BASIS = range(5)
_TARGET_SHARE, _TOKEN, _STEP, _REQUEST = range(5, 9)  # places in `CompiledCosts.numbers`


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
    """Of a step that spends 0, 1, ... of them."""
    found: Floats
    """What is emitted in any case, then the highest goodput; the last gain that is spent; goodput
    if nothing were even drafted, where times are not given."""
    counts: Ints
    """Of each sequence: what it drafts, or is to verify."""
    sizes: Ints
    """Gains, times, sequences, gains to be taken; whether the times are given; how many `counts`
    say what is drafted."""
    target: Floats
    """Form of the target's forward pass."""
    drafter: Floats
    """Form of the drafter's."""
    costs: Floats
    """What else a step costs, in the order of `specsim.latency.COSTS`."""
    load: Ints
    """Context, batched tokens without drafts, sequences and prefill tokens of a step; then the
    longest draft that it makes, and tokens of all that it makes."""
    rows: Ints
    """Sequences that draft a first token, a second and so on."""


@inner
def _step_time(desk: Spending, batched_tokens: int, longest: int) -> float:
    """Return what a step of so many tokens takes; to the bit as `StepCosts.step_time`."""
    costs, load = desk.costs, desk.load
    context_tokens, num, prefill_tokens = load[0], load[2], load[3]
    target_time = forward_time(desk.target, context_tokens, batched_tokens, num, prefill_tokens)
    total: float = target_time + (costs[_OVERHEAD_STEP] + costs[_OVERHEAD_REQUEST] * num)
    if not costs[_HAS_DRAFTER]:
        return total
    draft_time: float = 0.0
    if longest:
        draft_time = costs[_TARGET_SHARE] * target_time + costs[_TOKEN] * load[5]
        draft_time = draft_time + costs[_STEP] + costs[_REQUEST] * num
    if not costs[_HAS_LATENCY]:
        return total + draft_time
    if costs[_BASIS] == 0.0:
        draft_time += forward_time(
            desk.drafter, context_tokens, batched_tokens, num, prefill_tokens
        )
        context_tokens += batched_tokens
        for place in range(1, longest):
            rows = desk.rows[place]
            draft_time += forward_time(desk.drafter, context_tokens, rows, rows, 0)
            context_tokens += rows
    elif longest:
        if costs[_BASIS] == 1.0:
            draft_time += forward_time(
                desk.drafter, context_tokens, batched_tokens, num, prefill_tokens
            )
        else:
            draft_time += forward_time(desk.drafter, 0, num, num, 0)
    return total + draft_time


@inner
def _add_drafts(desk: Spending) -> None:
    """Work out what a step drafts altogether, if it was said what each sequence does."""
    load, rows, counts, num = desk.load, desk.rows, desk.counts, desk.sizes[5]
    for row in range(num):
        load[4] = max(load[4], counts[row])
        load[5] += counts[row]
    if num and desk.costs[_BASIS] == 0.0:
        for place in range(load[4]):
            rows[place] = 0
            for row in range(num):
                rows[place] += 1 if counts[row] > place else 0


def _time_steps(desk: Spending) -> int:
    """Work out what steps take that batch so many tokens each."""
    _add_drafts(desk)
    for index in range(desk.sizes[1]):
        desk.times[index] = _step_time(desk, desk.places[index], desk.load[4])
    return 0


def _time_lens(desk: Spending) -> int:
    """Work out what a step takes that verifies 0, 1, ... drafts of every sequence."""
    num = desk.load[2]
    for k in range(desk.sizes[1]):
        desk.load[5] = k * num
        desk.times[k] = _step_time(desk, num * (1 + k), k)
    return 0


time_steps = _loop(_time_steps, Spending)
time_lens = _loop(_time_lens, Spending)


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
    target, last = desk.target, desk.sizes[1] - 1
    is_given = desk.sizes[4]
    if is_given or target[0] != COEFFICIENTS or desk.drafter[0] != COEFFICIENTS:
        return _ALL
    gamma = target[5] if desk.load[3] else target[2]
    tokens, longest = desk.load[1], desk.load[4]
    share = 0.999 * gamma - 1e-9 * _step_time(desk, tokens + last, longest)
    emitted: float = desk.found[0]
    least: float = emitted / _step_time(desk, tokens, longest) * share
    if least <= 0.0:
        return _ALL
    spent = 0
    for index in range(desk.sizes[0]):
        is_worth = 1 if desk.gains[index] > least else 0
        emitted += desk.gains[index] * is_worth
        spent += is_worth
    if spent <= last:
        least = max(least, emitted / _step_time(desk, tokens + spent, longest) * share)
    return least


@inner
def _deal_out(desk: Spending, least: float) -> int:
    """Deal the gains above `least` out to buckets, falling, and count each; return how many.

    The buckets are narrower than what lies between two tokens of most drafts.
    """
    gains, kept, places, ends = desk.gains, desk.kept, desk.places, desk.ends
    last = len(ends) - 1.0
    scale = last / (1.0 - min(max(least, 0.0), 0.999))
    for bucket in range(len(ends)):
        ends[bucket] = 0
    num = 0
    for index in range(desk.sizes[0]):
        value = gains[index]
        is_kept = 1 if value > least else 0  # without a jump that could not be foretold
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
    for bucket in range(len(ends)):
        count = ends[bucket]
        ends[bucket] = total
        total += count
    for index in range(num):
        bucket = places[index]
        falling[ends[bucket]] = kept[index]
        ends[bucket] += 1
    _sort(falling, num)
    return num


def _best_budget(desk: Spending) -> int:
    """Return how many of the largest gains make goodput highest; of equal choices the fewest."""
    _add_drafts(desk)
    num = min(_sort_falling(desk, _worthless(desk)), desk.sizes[1] - 1)
    falling, times, found = desk.falling, desk.times, desk.found
    emitted_before, tokens, is_given = found[0], desk.load[1], desk.sizes[4]
    longest = desk.load[4]
    gained = 0.0
    best = 0
    best_rate = -1.0
    for budget in range(num + 1):
        if budget:
            gained += falling[budget - 1]
        time = times[budget] if is_given else _step_time(desk, tokens + budget, longest)
        rate = (gained + emitted_before) / time
        if rate > best_rate:
            best = budget
            best_rate = rate
    found[0] = best_rate
    found[1] = falling[best - 1] if best else 2.0
    if not is_given:
        found[2] = emitted_before / _step_time(desk, tokens, 0)
    return best


best_budget = _loop(_best_budget, Spending)


def _find_least(desk: Spending) -> int:
    """Find the smallest of the so many largest gains, at least one; `found`'s second number."""
    num, left = _deal_out(desk, _ALL), desk.sizes[3]
    bucket = 0
    while desk.ends[bucket] < left:
        left -= desk.ends[bucket]
        bucket += 1
    size = 0
    for index in range(num):
        if desk.places[index] == bucket:
            desk.falling[size] = desk.kept[index]
            size += 1
    _sort(desk.falling, size)
    desk.found[1] = desk.falling[left - 1]
    return 0


find_least = _loop(_find_least, Spending)


def _take_largest(desk: Spending) -> int:
    """Add to each sequence's count how many of the largest gains fall on it.

    The smallest gain among them is `found`'s second number; of equals the earlier goes first.
    """
    gains, counts, least = desk.gains, desk.counts, desk.found[1]
    num, budget = desk.sizes[2], desk.sizes[3]
    for row in range(num):
        budget += counts[row]
    for first in range(0, desk.sizes[0], num):
        for row in range(num):
            counts[row] += 1 if gains[first + row] > least else 0
    for row in range(num):
        budget -= counts[row]
    row = 0
    for index in range(desk.sizes[0]):
        if budget <= 0:
            break
        if gains[index] == least:
            counts[row] += 1
            budget -= 1
        row += 1
        if row == num:
            row = 0
    return 0


take_largest = _loop(_take_largest, Spending)


# What drafters say of their tokens


class Calibrating(NamedTuple):
    """Stated probabilities, and what came of their like."""

    bins: IntRows
    """Of each token of each request's last draft, shape (requests, at least longest)."""
    len_kinds: Ints
    """By the length of a draft; a token is of the sum of this"""
    place_kinds: Ints
    """and this, by its place in it."""
    rates: Floats
    """What was observed of each bin: all kinds of the lowest stated probability, and so on; filled
    in."""
    counts: FloatRows
    """Accepted tokens and verified ones, fading, shape (2, bins)."""
    constants: Floats
    """Share of the counts that stays; trials that a bin's prior counts for."""
    seen: FloatRows
    """Accepted tokens and verified ones of a step, shape (2, bins)."""
    requests: Ints
    draft_lens: Ints
    accepted_lens: Ints
    confidences: Floats
    """Shape (n, longest): of each token, if all before it were accepted."""
    gains: Floats
    """Shape (longest, n); filled in."""
    sizes: Ints
    """n, longest, whether the drafts are new; kinds."""


@inner
def _sum(counts: Floats, row: int, first: int, size: int) -> float:
    """Add up part of a row as numpy does up to 128: by eights, these in pairs, then the rest."""
    if size < 8:
        total = 0.0
        for index in range(first, first + size):
            total += counts[row, index]
        return total
    a, b, c, d = 0.0, 0.0, 0.0, 0.0
    e, f, g, h = 0.0, 0.0, 0.0, 0.0
    end = first + size - size % 8
    for index in range(first, end, 8):
        a += counts[row, index]
        b += counts[row, index + 1]
        c += counts[row, index + 2]
        d += counts[row, index + 3]
        e += counts[row, index + 4]
        f += counts[row, index + 5]
        g += counts[row, index + 6]
        h += counts[row, index + 7]
    total = ((a + b) + (c + d)) + ((e + f) + (g + h))
    for index in range(end, first + size):
        total += counts[row, index]
    return total


@inner
def _observe_rates(desk: Calibrating) -> None:
    """Work out the rate of each bin, shrunk to that of its level, shrunk to what was stated."""
    counts, rates, weight = desk.counts, desk.rates, desk.constants[1]
    num_kinds = desk.sizes[3]
    num_levels = len(rates) // num_kinds
    for level in range(num_levels):
        first = level * num_kinds
        accepted, trials = _sum(counts, 0, first, num_kinds), _sum(counts, 1, first, num_kinds)
        alike = (accepted + weight * ((level + 0.5) / num_levels)) / (trials + weight)
        for kind in range(num_kinds):
            trials = counts[1, first + kind] + weight
            rates[first + kind] = (counts[0, first + kind] + weight * alike) / trials


def _calibrated_gains(desk: Calibrating) -> int:
    """Work out how likely each token of some drafts is accepted, by what was observed of its like.

    Bins of new tokens are noted. Gains do not rise along a draft, and are 0 beyond its end.
    """
    _observe_rates(desk)
    bins, rates, gains = desk.bins, desk.rates, desk.gains
    num, longest, are_new = desk.sizes[0], desk.sizes[1], desk.sizes[2]
    num_kinds = desk.sizes[3]
    num_levels = len(rates) // num_kinds
    for row in range(num):
        request = desk.requests[row]
        stated = 1.0
        lowest = 2.0
        for place in range(longest):
            if are_new:
                stated = stated * desk.confidences[row * longest + place]
                level = int(min(stated * num_levels, num_levels - 1.0))
                kind = desk.len_kinds[desk.draft_lens[row]] + desk.place_kinds[place]
                bins[request, place] = level * num_kinds + kind
            rate = rates[bins[request, place]]
            if rate < lowest:
                lowest = rate
            gains[place * num + row] = lowest if place < desk.draft_lens[row] else 0.0
    return 0


calibrated_gains = _loop(_calibrated_gains, Calibrating)


def _tally(desk: Calibrating) -> int:
    """Count the tokens of a step that were verified and accepted, by their bins."""
    bins, seen, counts = desk.bins, desk.seen, desk.counts
    longest, num_bins, keep = bins.shape[1], seen.shape[1], desk.constants[0]
    for kind in range(2):
        for index in range(num_bins):
            seen[kind, index] = 0.0
    for row in range(desk.sizes[0]):
        request = desk.requests[row]
        for place in range(min(desk.draft_lens[row], longest)):
            bin_ = bins[request, place]
            seen[1, bin_] += 1.0
            if place < desk.accepted_lens[row]:
                seen[0, bin_] += 1.0
    for kind in range(2):
        for index in range(num_bins):
            counts[kind, index] = keep * counts[kind, index] + seen[kind, index]
    return 0


tally = _loop(_tally, Calibrating)


class Stated(NamedTuple):
    """What a drafter says of its drafts."""

    draft_lens: Ints
    survival: Singles
    """Shape (n, longest): of each token, if all before it were accepted; made that of all."""
    budgets: Ints
    """Tokens of the drafts when cut to 0, 1, ..., longest; filled in."""
    sizes: Ints
    """n, longest."""


def _cut_to_size(desk: Stated) -> int:
    """Work out how likely drafts survive, and how many tokens they have when cut."""
    survival, budgets, num, longest = desk.survival, desk.budgets, desk.sizes[0], desk.sizes[1]
    for place in range(longest + 1):
        budgets[place] = 0
    for row in range(num):
        budgets[desk.draft_lens[row]] += 1
        first = row * longest
        for index in range(first + 1, first + longest):
            survival[index] = survival[index - 1] * survival[index]
    longer = num
    tokens = 0
    for place in range(longest + 1):
        ending = budgets[place]
        budgets[place] = tokens
        longer -= ending
        tokens += longer
    return 0


cut_to_size = _loop(_cut_to_size, Stated)


class Stale(NamedTuple):
    """Confidences of this step, and of the last drafts."""

    stale: FloatRows
    """Of each request's last draft; those of this one take their place."""
    requests: Ints
    draft_lens: Ints
    confidences: Floats
    """Shape (n, longest)."""
    survival: Floats
    """Of the drafts of all sequences, in no particular order; filled in."""
    fresh: Floats
    """Shape (longest, n): the same by this step's confidences, -1 beyond the end of a draft."""
    sizes: Ints
    """n, longest."""


def _stale_survival(desk: Stale) -> int:
    """Work out how likely drafts are accepted, and were if one believed the last confidences.

    Returns how many tokens they have. Fresh products are as exact as what drafters state: single
    precision.
    """
    stale, fresh, num, longest = desk.stale, desk.fresh, desk.sizes[0], desk.sizes[1]
    index = 0
    for row in range(num):
        request = desk.requests[row]
        draft_len = desk.draft_lens[row]
        product = 1.0
        stated = 1.0
        for place in range(longest):
            if place >= draft_len:
                fresh[place * num + row] = -1.0
                continue
            confidence = desk.confidences[row * longest + place]
            product = product * stale[request, place]
            stale[request, place] = confidence
            desk.survival[index] = product
            index += 1
            stated = float(np.float32(stated * confidence))
            fresh[place * num + row] = stated
    return index


stale_survival = _loop(_stale_survival, Stale)


# What requests have been through


class Late(NamedTuple):
    """Requests that have to be on time."""

    first_token_at: Floats
    """When the step was scheduled that showed each request's first token, seconds; NaN before."""
    requests: Ints
    output_lens: Ints
    gains: Floats
    """Shape (longest, n): how likely each token of the drafts is accepted."""
    clock: Floats
    """When the step was scheduled, what it takes, and the limit on time per token."""
    needed: Ints
    """Filled in."""
    sizes: Ints
    """n, longest."""


def _lens_on_time(desk: Late) -> int:
    """Find the shortest drafts that are expected to bring late requests back on time."""
    first_token_at, output_lens, needed = desk.first_token_at, desk.output_lens, desk.needed
    now, step_time, tpot = desk.clock[0], desk.clock[1], desk.clock[2]
    num, longest = desk.sizes[0], desk.sizes[1]
    for row in range(num):
        request = desk.requests[row]
        first = first_token_at[request]
        if first != first:  # noqa: PLR0124 - not a number
            first = now
            if output_lens[row] > 0:
                first_token_at[request] = now
        # The next step ends two steps from now, the first token came one step after `first`.
        due = (now - first + step_time) / tpot
        wanted = due - (output_lens[row] - 1)  # tokens after the first, by the next step's end
        needed[row] = 0
        if wanted > 1.0:
            gained = 0.0
            too_short = 0
            for place in range(longest):
                gained += desk.gains[place * num + row]
                if 1.0 + gained < wanted - 1e-9:
                    too_short += 1
            needed[row] = min(too_short + 1, longest)
    return 0


lens_on_time = _loop(_lens_on_time, Late)


@inner
def _hashed(table: Ints, key: int) -> int:
    """Return where to look for a key first."""
    return (((key & 0x7FFFFFFF) * 2654435761 >> 12) + (key >> 32) * 40503) & (len(table) - 1)


@inner
def _entry(table: Ints, key: int) -> int:
    """Return where a key is, or where it belongs."""
    place = _hashed(table, key)
    while table[place] >= 0 and table[place] != key:
        place = (place + 1) & (len(table) - 1)
    return place


class Moving(NamedTuple):
    """Two tables of `Seeing`."""

    table: Ints
    larger: Ints


def _move_entries(desk: Moving) -> int:
    """Enter all that is in one table of tokens into another."""
    for index in range(len(desk.table)):
        key = desk.table[index]
        if key >= 0:
            desk.larger[_entry(desk.larger, key)] = key
    return 0


move_entries = _loop(_move_entries, Moving)


class Seeing(NamedTuple):
    """Which tokens requests have seen, and those of a step."""

    table: Ints
    """By hash, request and token in one number; -1 where nothing is. A power of two, never full."""
    lens: Ints
    """Of each request: moved up or down, and kept from 0 to the longest."""
    requests: Ints
    """Each below 2^31."""
    draft_lens: Ints
    accepted_lens: Ints
    tokens: Ints
    """Of the first request, then of the second and so on."""
    num_tokens: Ints
    """Of each request, at least one."""
    sizes: Ints
    """n, longest, and what keeps the compiler from leaving out a look ahead."""


@inner
def _look_ahead(desk: Seeing) -> int:
    """Look all tokens up once: the memory then loads them side by side, not one by one."""
    found = 0
    start = 0
    for row in range(desk.sizes[0]):
        for index in range(start, start + desk.num_tokens[row]):
            key = (desk.requests[row] << 32) | (desk.tokens[index] & 0x7FFFFFFF)
            found ^= desk.table[_hashed(desk.table, key)]
        start += desk.num_tokens[row]
    return found


@inner
def _enter(desk: Seeing, row: int, start: int, end: int) -> int:
    """Enter tokens of one request; return how many were new."""
    table = desk.table
    num_new = 0
    for index in range(start, end):
        key = (desk.requests[row] << 32) | (desk.tokens[index] & 0x7FFFFFFF)
        place = _entry(table, key)
        if table[place] < 0:
            table[place] = key
            num_new += 1
    return num_new


def _enter_all(desk: Seeing) -> int:
    """Enter the tokens of each request into the table; return how many were new."""
    num_new = 0
    start = 0
    for row in range(desk.sizes[0]):
        end = start + desk.num_tokens[row]
        num_new += _enter(desk, row, start, end)
        start = end
    return num_new


enter_all = _loop(_enter_all, Seeing)


def _count_repeats(desk: Seeing) -> int:
    """Count each request up or down by whether it has seen its tokens before, and enter them.

    Returns how many entries are new.
    """
    table, lens, longest = desk.table, desk.lens, desk.sizes[1]
    draft_lens, accepted_lens = desk.draft_lens, desk.accepted_lens
    desk.sizes[2] = _look_ahead(desk)
    num_new = 0
    start = 0
    for row in range(desk.sizes[0]):
        request = desk.requests[row]
        end = start + desk.num_tokens[row]
        first, last = end - 1, end  # where nothing was drafted, the bonus token counts
        if draft_lens[row] > 0:
            first, last = start, min(start + accepted_lens[row], end)
        is_seen = False
        for index in range(first, last):
            key = (request << 32) | (desk.tokens[index] & 0x7FFFFFFF)
            if table[_entry(table, key)] == key:
                is_seen = True
        num_new += _enter(desk, row, start, end)
        change = 1 if is_seen else 0
        if draft_lens[row] > 0:
            change = 1 if is_seen else -1
            if accepted_lens[row] == draft_lens[row]:
                change += 1
        lens[request] = min(max(lens[request] + change, 0), longest)
        start = end
    return num_new


count_repeats = _loop(_count_repeats, Seeing)


class Grouping(NamedTuple):
    """Drafts of a step, of which many are alike."""

    shapes: Ints
    """Number of each one's tree."""
    draft_lens: Ints
    accepted_lens: Ints
    keys: Ints
    """Of each kind of draft, as they come; filled in."""
    found: Ints
    """The place of the first of each kind; filled in."""
    times: Ints
    """How often it occurs; filled in."""
    sizes: Ints
    """Number of drafts."""


def _group(desk: Grouping) -> int:
    """Count how often each kind of draft occurs; return how many there are. They should be few."""
    keys, found, times = desk.keys, desk.found, desk.times
    num_found = 0
    for index in range(desk.sizes[0]):
        key = desk.shapes[index] << 32 | desk.draft_lens[index] << 16 | desk.accepted_lens[index]
        place = 0
        while place < num_found and keys[place] != key:
            place += 1
        if place == num_found:
            keys[place] = key
            found[place] = index
            times[place] = 0
            num_found += 1
        times[place] += 1
    return num_found


group = _loop(_group, Grouping)


class Branching(NamedTuple):
    """Trees, and how likely one of so many candidates is accepted."""

    widths: IntRows
    """Shape (trees, heads): candidates per head; 0 where a tree has ended."""
    rates: Floats
    """By the number of candidates."""
    reached: FloatRows
    """Shape (1, heads): of one tree."""
    emitted: Floats
    """Of each tree; filled in."""


def _tree_lens(desk: Branching) -> int:
    """Work out what each tree emits on average, bonus token included."""
    widths, reached = desk.widths, desk.reached
    num_heads = widths.shape[1]
    for tree in range(widths.shape[0]):
        chance = 1.0
        for head in range(num_heads):
            chance *= desk.rates[widths[tree, head]]
            reached[0, head] = chance
        desk.emitted[tree] = 1.0 + _sum(reached, 0, 0, num_heads)
    return 0


tree_lens = _loop(_tree_lens, Branching)


class Learning(NamedTuple):
    """What was done in a step, and what it was worth.

    Tables are by previous and next draft length, one row after the other.
    """

    visits: Ints
    """How often each was ever done."""
    verified: Ints
    """Length of each request's last verified draft."""
    requests: Ints
    draft_lens: Ints
    accepted_lens: Ints
    later: Floats
    """By length, what may follow it."""
    sums: Floats
    """What was gained in the step; 0 between steps."""
    times: Ints
    """How often each was done in it; 0 between steps."""
    seen: Ints
    """Places of what was done in it, rising; filled in."""
    found: FloatRows
    """Shape (3, places): of what was done, visits, times and mean gain; filled in."""
    sizes: Ints
    """Drafts; how many are not empty, filled in."""


def _count_visits(desk: Learning) -> int:
    """Count what was done, and average what it gained; return how many different things."""
    visits, sums, times, found = desk.visits, desk.sums, desk.times, desk.found
    desk.sizes[1] = 0
    for row in range(desk.sizes[0]):
        action = desk.draft_lens[row]
        if action:
            request = desk.requests[row]
            place = desk.verified[request] * len(desk.later) + action
            desk.verified[request] = action
            sums[place] += desk.accepted_lens[row] / action + desk.later[action]
            times[place] += 1
            desk.sizes[1] += 1
    num = 0
    for place in range(len(times)):
        if times[place]:
            visits[place] += times[place]
            desk.seen[num] = place
            found[0, num] = visits[place]
            found[1, num] = times[place]
            found[2, num] = sums[place] / times[place]
            sums[place] = 0.0
            times[place] = 0
            num += 1
    return num


count_visits = _loop(_count_visits, Learning)
