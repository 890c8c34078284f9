"""The price of a second in tokens, corrected step times, and the best drafts at that price."""

from typing import Annotated, Any, NamedTuple, Protocol

import numpy as np

from specsim.core.compiled import Loop, Rows, as_records, inner
from specsim.core.desk import Desk, Floats, Ints
from specsim.core.step import BatchView, DraftView, StepLoad, StepOutcome
from specsim.decisions.loops import row_of
from specsim.decisions.policy import ServerView
from specsim.policies.parts.spending import Spending, spend_best, spending_desk, spent_time
from specsim.profile.step_time import Pricing, price_steps, priced, priced_plain, put_len, put_load

_TRUST = 4.0  # steps that the profile counts for at first
SIZES = 10  # classes of batch sizes that have a rate each
_SHARED = 8.0  # weight, in steps, of the rate of all sizes in the rate of a class
_ROUNDING = 1e-9  # share of a step: smaller differences are rounding errors


class Rate(Protocol):
    """Tokens emitted per time: sums over the last steps, fading.

    The unit of time is a step of the same batch without drafts, so that batches can be compared.
    """

    keep: float  # share of the sums kept per step
    tokens: float
    sequences: float
    time: float
    steps: float
    plain: float  # seconds of the next step without drafts; 1 if not known


class Bounds(Protocol):
    """Limits on the drafts of a step, and how their cost depends on length."""

    max_len: int  # tokens of the longest draft
    free_slots: int  # KV slots for drafts
    one_cost: int  # whether a draft of any length costs the same
    by_model: int  # whether a model drafts
    has_plain: int  # whether step times without a drafter are known


class Taken(Protocol):
    """Times, seconds, of the running step and of the next one, which is decided about."""

    running: float  # running step, if it drafts nothing
    running_plain: float  # running step without a drafter
    first: float  # running step, if it drafts one token per sequence
    last: float  # running step, if it drafts as many as there is room for
    next: float  # next step, if it verifies and drafts nothing
    next_plain: float  # next step without a drafter
    next_single: float  # next step without a drafter, with one token per sequence


class Learned(Protocol):
    """Measured times relative to those of the profile."""

    target: float  # factor on steps without a drafter
    drafting: float  # factor on the time that a drafter adds, relative to `target`
    target_ratios: float  # sum over steps, fading
    target_steps: float  # number of these steps, fading
    drafting_ratios: float
    drafting_steps: float
    dearer: float  # extra seconds per verified token beside prompts: sum over all steps, fading
    priced_steps: float  # number of these steps, fading
    asked: int  # steps that have asked for drafts (`stated`)
    answered: int  # of those, steps whose drafting time has been measured


class Trade(NamedTuple):
    """Step times, the price of a second, and the value of each choice of draft lengths."""

    gains: Floats  # as in `Spending`
    draft_lens: Ints  # of a step whose drafts are to be trimmed
    spending: Annotated[Any, Spending]
    exchange: Rows[Rate]
    learned: Rows[Learned]
    stated: Floats
    """Ring: drafting time of the last steps by the profile, seconds; 0: not to be compared."""
    limits: Rows[Bounds]
    running: Ints
    """Load of the running step: context, batched tokens, sequences, prefill tokens."""
    decodes: Ints
    """Load of the next step if it verifies no drafts, likewise."""
    times: Rows[Taken]
    drafting: Floats
    """Seconds to draft 0, 1, ... tokens per sequence."""
    tokens: Floats
    """Draft tokens verified, for drafts of 1, 2, ... tokens, by choice; (longest, choices)."""
    gained: Floats
    """Draft tokens accepted of these, in the same shape."""
    values: Floats
    """Value of drafting 0, 1, ... tokens for every sequence, with the best choice."""
    emitted: Floats
    """Tokens emitted with that choice."""
    lens: Ints  # output: tokens of each sequence to draft, or to verify
    sizes: Ints  # number of choices; then, of `gains`, sequences and longest draft
    outcome: Floats
    """Of a step that has ended: sequences that emitted tokens, tokens emitted, seconds in all, and
    seconds spent on making the drafts that it verified."""


@inner
def rate_of(exchange: Rows[Rate], num: int) -> float:
    """Return the long-run tokens per second of a batch of `num` sequences; 0 if not known yet.

    A policy that maximises tokens - rate x time in every step, where rate is the ratio of the two
    that it attains, maximises that ratio over all steps (Dinkelbach 1967); maximising the ratio of
    each step does not. The time for prompts is left out, since prompts are read in any case. A
    second saved in a small batch cannot be spent in a large one, so each class of batch sizes has a
    rate of its own, shrunk to that of all.
    """
    if not exchange[0].time:
        return 0.0
    steps = exchange[size_class(num)].steps
    own = _yield(exchange, size_class(num)) if steps else 0.0
    shared = _yield(exchange, 0)
    rate: float = num / exchange[0].plain * (steps * own + _SHARED * shared) / (steps + _SHARED)
    return rate


@inner
def _yield(exchange: Rows[Rate], place: int) -> float:
    """Return the tokens per sequence in the time of a step without drafts."""
    rate = exchange[place]
    found: float = rate.tokens / rate.sequences * rate.steps / rate.time
    return found


@inner
def size_class(num: int) -> int:
    """Return the class of a batch size, from 1: sizes 1, 2 to 3, 4 to 7, ..."""
    place = 1
    while num > 1 and place < SIZES:
        num //= 2
        place += 1
    return place


@inner
def value_of(tokens: float, time: float, rate: float) -> float:
    """Return the value of a step: tokens - rate x time, or tokens / time if no rate is known."""
    return tokens - rate * time if rate else tokens / time


@inner
def ask_ahead(desk: Trade, most: int) -> None:
    """Fill `times` for `spent_time` with one call of Python, if loops cannot compute step times.

    Covers the next step with 0 to `most` further tokens.
    """
    spending, load = desk.spending, desk.decodes
    if spending.pricing.asked[0]:
        put_load(spending.pricing, load[0], load[1], load[2], load[3])
        put_len(spending.pricing, 0)
        price_steps(spending.times, spending.pricing, load[1], most + 1)


@inner
def _correct(desk: Trade) -> None:
    """Multiply the time that a drafter adds by the measured factor."""
    times, factor = desk.times[0], desk.learned[0].drafting
    times.running += (factor - 1.0) * (times.running - times.running_plain)
    times.first += (factor - 1.0) * (times.first - times.running_plain)
    times.last += (factor - 1.0) * (times.last - times.running_plain)
    times.next += (factor - 1.0) * (times.next - times.next_plain)


@inner
def _set_load(desk: Spending, load: Ints, longest: int) -> None:
    """Load a step into `pricing`, in which every sequence drafts `longest` tokens."""
    put_load(desk.pricing, load[0], load[1], load[2], load[3])
    put_len(desk.pricing, longest)
    desk.extra[0] = desk.extra[1] = 0.0


@inner
def _time(desk: Trade, load: Ints, longest: int) -> float:
    _set_load(desk.spending, load, longest)
    return priced(desk.spending.pricing, load[1], longest)


@inner
def set_times(desk: Trade, longest: int) -> None:
    """Compute the times of the running and of the next step."""
    times, pricing = desk.times[0], desk.spending.pricing
    times.running = _time(desk, desk.running, 0)
    times.running_plain = priced_plain(pricing, desk.running[1])
    times.last = _time(desk, desk.running, longest)
    times.first = _time(desk, desk.running, 1) if longest else times.last
    times.next = times.next_plain = 0.0
    if desk.decodes[2]:
        times.next = _time(desk, desk.decodes, 0)
        times.next_plain = priced_plain(pricing, desk.decodes[1])
        times.next_single = priced_plain(pricing, desk.decodes[2])
        desk.exchange[0].plain = times.next_single if desk.limits[0].has_plain else 1.0
    _correct(desk)


@inner
def note_step(desk: Trade) -> None:
    """Add the outcome of the step `running` to the rates, its time divided by `target`."""
    exchange, load, times = desk.exchange, desk.running, desk.times[0]
    num, tokens, time = desk.outcome[0], desk.outcome[1], desk.outcome[2]
    time /= desk.learned[0].target
    if not num or load[1] <= load[3]:
        return
    least = 0.0
    if load[3]:
        set_times(desk, 0)
        time -= times.running - times.next
        least = times.next_plain  # a decode step without a drafter; less is no valid time
    if time <= least:
        return
    plain = 1.0
    if desk.limits[0].has_plain:
        _set_load(desk.spending, desk.decodes, 0)
        plain = priced_plain(desk.spending.pricing, desk.decodes[2])
    _add(exchange[0], num, tokens, time / plain)
    _add(exchange[size_class(int(num))], num, tokens, time / plain)


@inner
def _add(rate: Rate, num: float, tokens: float, time: float) -> None:
    rate.tokens = rate.keep * rate.tokens + tokens
    rate.sequences = rate.keep * rate.sequences + num
    rate.time = rate.keep * rate.time + time
    rate.steps = rate.keep * rate.steps + 1.0


@inner
def set_prices(desk: Trade) -> int:
    """Set `drafting`, the time added to the running step; return the longest draft with room."""
    limits, drafting, times = desk.limits[0], desk.drafting, desk.times[0]
    longest: int = min(limits.max_len, limits.free_slots // desk.decodes[2])
    set_times(desk, longest)
    last = times.last - times.running
    drafting[0] = drafting[1] = 0.0
    for k in range(1, longest + 1):
        drafting[k] = last
    if longest > 1 and not limits.one_cost:
        # Linear: each further token takes nearly the same time.
        first = times.first - times.running
        each = (last - first) / (longest - 1)
        for k in range(longest - 1):
            drafting[1 + k] = k * each + first
    return longest


@inner
def note_dearer(desk: Trade) -> None:
    """Note the extra time of verified tokens in steps that read prompts, for `weigh_choices`."""
    learned, num, keep = desk.learned[0], desk.decodes[2], desk.exchange[0].keep
    learned.dearer = keep * learned.dearer
    learned.priced_steps = keep * learned.priced_steps + 1.0
    if desk.running[3]:
        dearer = (_added(desk, desk.running, num) - _added(desk, desk.decodes, num)) / num
        learned.dearer += dearer if dearer > _ROUNDING * desk.times[0].next_plain else 0.0


@inner
def _added(desk: Trade, load: Ints, tokens: int) -> float:
    """Return the seconds that `tokens` further tokens add to a step."""
    _set_load(desk.spending, load, 0)
    pricing = desk.spending.pricing
    return priced(pricing, load[1] + tokens, 0) - priced(pricing, load[1], 0)


@inner
def weigh_choices(desk: Trade, known: int, longest: int, rate: float) -> None:
    """Set `values` and `emitted` for the best choice of each draft length; one is to verify none.

    `known` tokens are drafted already. If a longer draft costs no more and can be trimmed (several
    choices), it is never worse, so that shorter ones are skipped.
    """
    values, emitted, choices, num = desk.values, desk.emitted, desk.sizes[0], desk.decodes[2]
    _set_load(desk.spending, desk.decodes, 0)
    none = desk.times[0].next
    wrong = none - spent_time(desk.spending, 0)
    dearer = desk.learned[0].dearer / max(desk.learned[0].priced_steps, 1.0)
    values[0], emitted[0] = value_of(num, none, rate), num
    for place in range(known, longest):
        values[1 + place] = -np.inf
        if desk.limits[0].one_cost and choices > 1 and place < longest - 1:
            continue
        drafting = desk.drafting[1 + place] + wrong
        values[1 + place], emitted[1 + place] = value_of(num, none - wrong + drafting, rate), num
        spent, time = -1, 0.0
        for index in range(place * choices, (place + 1) * choices):
            if round(desk.tokens[index]) != spent:
                spent = round(desk.tokens[index])
                time = spent_time(desk.spending, spent) + drafting + dearer * spent
            value = value_of(num + desk.gained[index], time, rate)
            if value > values[1 + place]:
                values[1 + place], emitted[1 + place] = value, num + desk.gained[index]


@inner
def time_of(desk: Trade, place: int, rate: float) -> float:
    """Return the seconds of a step with the choice at `place`, recovered from its value."""
    tokens, value = desk.emitted[place], desk.values[place]
    time: float = (tokens - value) / rate if rate else tokens / value
    return time


@inner
def saved_by(desk: Trade, place: int, rate: float) -> float:
    """Return the time that a choice saves per token, as a share of a step without a drafter.

    Such a step emits one token per sequence. Unlike the value at a rate, this share can be added up
    over a request.
    """
    time, tokens = time_of(desk, place, rate), desk.emitted[place]
    saved: float = 1.0 - time * desk.decodes[2] / (tokens * desk.times[0].next_plain)
    return saved


@inner
def best_of(values: Floats, first: int, last: int) -> int:
    """Return the first place of the largest value from `first` to `last`."""
    best = first
    for place in range(first, last + 1):
        if values[place] > values[best]:
            best = place
    return best


@inner
def _spend(desk: Trade, longest: int, most: int, rate: float) -> None:
    """Set the counts of each sequence to the best choice of at most `most` gains."""
    spending, num = desk.spending, desk.sizes[1]
    size = longest * num
    spending.found[0], spending.found[3] = desk.decodes[2], rate
    spending.sizes[0], spending.sizes[1] = size, min(size, most) + 1
    spending.sizes[2] = num
    spend_best(spending)


@inner
def _spend_before(desk: Trade, limit: int, longest: int, rate: float) -> float:
    """Choose lengths up to `longest`, drafting being paid up to `limit`; return their value.

    Nothing of the drafts is trimmed afterwards.
    """
    _set_load(desk.spending, desk.decodes, 0)
    extra = desk.spending.extra
    extra[0] = desk.drafting[limit]
    if not desk.limits[0].by_model:  # a lookup pays per drafted token, all of which are verified
        extra[0], extra[1] = 0.0, desk.drafting[1] / desk.decodes[2]
    _spend(desk, longest, desk.limits[0].free_slots, rate)
    value: float = desk.spending.found[0]
    return value


@inner
def spend_on_found(desk: Trade, rate: float) -> None:
    """Set `lens`: how much of each draft that a lookup has found is proposed and verified."""
    _spend_before(desk, 1, desk.sizes[2], rate)
    for row in range(desk.sizes[1]):
        desk.lens[row] = desk.spending.counts[row]


@inner
def spend_on_drafts(desk: Trade, rate: float) -> None:
    """Set `lens`: how much of each draft of a step is verified."""
    desk.decodes[1], longest = desk.running[1], 0
    for row in range(desk.sizes[1]):
        desk.decodes[1] -= desk.draft_lens[row]
        longest = max(longest, desk.draft_lens[row])
    # With goodput, the next step's drafting counts: it takes about as long as this step's.
    _set_load(desk.spending, desk.decodes, 0 if rate else longest)
    _spend(desk, desk.sizes[2], desk.sizes[1] * desk.sizes[2], rate)
    for row in range(desk.sizes[1]):
        desk.lens[row] = min(desk.spending.counts[row], desk.draft_lens[row])


@inner
def spend_before(desk: Trade, longest: int, rate: float) -> None:
    """Set `lens`: the draft lengths of highest value, if nothing is trimmed afterwards."""
    best_value = value_of(desk.decodes[2], desk.times[0].next, rate)
    for row in range(desk.sizes[1]):
        desk.lens[row] = 0
    limits = desk.limits[0]
    has_limits = limits.by_model and not limits.one_cost
    for limit in range(1 if has_limits else max(longest, 1), longest + 1):
        value = _spend_before(desk, limit, limit, rate)
        if value > best_value:
            best_value = value
            for row in range(desk.sizes[1]):
                desk.lens[row] = desk.spending.counts[row]


def trade_desk(
    server: ServerView, window: float, *loops: Loop, pricing: Desk[Pricing] | None = None
) -> Desk[Trade]:
    """Return a desk without observations.

    Args:
        server: The view that `Policy.start` gets.
        window: Steps after which an observation has faded to 1/e.
        loops: Loops on the desk.
        pricing: The cost model; None: that of the policy's view.
    """
    return Desk(
        Trade,
        *loops,
        spending=spending_desk(pricing),
        exchange=np.repeat(row_of(Rate, keep=1.0 - 1.0 / window, plain=1.0), 1 + SIZES),
        learned=row_of(
            Learned,
            **dict.fromkeys(("target", "drafting"), 1.0),
            **dict.fromkeys(("target_ratios", "target_steps"), _TRUST),
            **dict.fromkeys(("drafting_ratios", "drafting_steps"), _TRUST),
            answered=-server.drafts_alike,
        ),
        stated=np.zeros(8),
        limits=row_of(
            Bounds,
            max_len=server.max_draft_len,
            one_cost=server.drafts_at_one_cost is True,
            by_model=server.drafts_by_model,
            has_plain=server.plain_time is not None,
        ),
        times=1,
    )


def known_rate(desk: Trade, num: int) -> float:
    """Return `rate_of` a batch of `num` sequences, for callers in Python."""
    return rate_of(as_records(desk.exchange), num)


def put_loads(desk: Trade, running: StepLoad, decodes: StepLoad, most: int = -1) -> None:
    """Load the running and the next step, in which at most `most` draft tokens are verified."""
    numbers = desk.running
    numbers[0], numbers[1], numbers[2], numbers[3] = running[:4]  # quicker than all at once
    numbers = desk.decodes
    numbers[0], numbers[1], numbers[2], numbers[3] = decodes[:4]
    ask_ahead(desk, most)


def put_drafts(desk: Trade, batch: BatchView, drafts: DraftView) -> None:
    """Load a step and its drafts, for `spend_on_drafts`."""
    load, num = batch.load, batch.size - int(np.count_nonzero(batch.in_prefill))
    put_loads(desk, load, StepLoad(load.context_tokens, 0, num, load.prefill_tokens))
    desk.draft_lens[: batch.size] = drafts.draft_lens


def put_outcome(desk: Trade, outcome: StepOutcome) -> None:
    """Load the outcome of a step, for `note_step`."""
    load, numbers = outcome.load, desk.outcome
    tokens = load.batched_tokens - load.prefill_tokens
    put_loads(desk, load, StepLoad(load.context_tokens, tokens, load.num_requests))
    numbers[0], numbers[1] = len(outcome.requests), outcome.output_tokens
    numbers[2] = outcome.target_time + outcome.draft_time + outcome.overhead_time
    numbers[3] = outcome.draft_time


_KEPT = 0.99  # share of the sums kept per step
_SOON = 20.0  # steps after which only one step in _ONE_OF is compared, to save time
_ONE_OF = 8
_MOST_OFF = 4.0  # bound on the ratio of measured to stated time, and on its inverse


@inner
def note_asked(desk: Trade, longest: int, tokens: int, is_comparable: bool) -> None:
    """Note the profile's drafting time of the running step: `longest`, and `tokens` in all."""
    learned, limits, times = desk.learned[0], desk.limits[0], desk.times[0]
    drafting = desk.drafting[longest]
    if not (limits.by_model or limits.one_cost) and longest:
        drafting = desk.drafting[1] * tokens / desk.decodes[2]
    drafting += times.running - times.running_plain
    desk.stated[learned.asked % len(desk.stated)] = drafting / learned.drafting * is_comparable
    learned.asked += 1


@inner
def restate(desk: Trade, longest: int) -> None:
    """Correct the last `note_asked`: the drafter has stopped after `longest` tokens."""
    desk.learned[0].asked -= 1
    note_asked(desk, longest, 0, True)


@inner
def learn_prices(desk: Trade) -> None:
    """Compare the measured time of the step `running` with that of the profile."""
    learned, limits, outcome = desk.learned[0], desk.limits[0], desk.outcome
    if not limits.has_plain:
        return
    if learned.target_steps < _SOON or learned.asked % _ONE_OF == 0:
        _set_load(desk.spending, desk.running, 0)
        plain = priced_plain(desk.spending.pricing, desk.running[1])
        ratio = _bounded((outcome[2] - outcome[3]) / plain)
        learned.target_ratios = _KEPT * learned.target_ratios + ratio
        learned.target_steps = _KEPT * learned.target_steps + 1.0
    if learned.answered < learned.asked:
        stated = 0.0 if learned.answered < 0 else desk.stated[learned.answered % len(desk.stated)]
        learned.answered += 1
        if stated > 0.0 and outcome[3] > 0.0:
            ratio = _bounded(outcome[3] / stated)
            learned.drafting_ratios = _KEPT * learned.drafting_ratios + ratio
            learned.drafting_steps = _KEPT * learned.drafting_steps + 1.0
    learned.target = learned.target_ratios / learned.target_steps
    learned.drafting = learned.drafting_ratios / learned.drafting_steps / learned.target


@inner
def _bounded(ratio: float) -> float:
    return min(max(ratio, 1.0 / _MOST_OFF), _MOST_OFF)
