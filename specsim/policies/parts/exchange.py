"""What a second is worth in tokens, what steps really take, and what is best drafted at that."""

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
SIZES = 10  # classes of batches that have a rate each
_SHARED = 8.0  # steps that the rate of all counts for in the rate of a class
_ROUNDING = 1e-9  # of a step: what would decide between choices that are worth the same


class Rate(Protocol):
    """What the last steps emitted in what time: sums over them, fading.

    Time is counted in what such a step takes without drafts: what a batch explains of it is known.
    """

    keep: float  # share that a step leaves of the others
    tokens: float
    sequences: float
    time: float
    steps: float
    plain: float  # seconds of the step that is decided about, without drafts; 1 if not known


class Bounds(Protocol):
    """What bounds the drafts of a step, and how they are paid."""

    max_len: int  # tokens of the longest draft
    free_slots: int  # KV slots for drafts
    one_cost: int  # whether a draft of any length costs the same
    by_model: int  # whether a model drafts
    has_plain: int  # whether it is known what they take without a drafter


class Taken(Protocol):
    """What steps take, seconds: that which is running, and that which is decided about."""

    running: float  # the one that runs, if it drafts nothing
    running_plain: float  # without a drafter
    first: float  # if it drafts one token per sequence,
    last: float  # and as many as there is room for
    next: float  # the one that is decided about, if it verifies and drafts nothing
    next_plain: float
    next_single: float  # without a drafter, of a token of each sequence


class Learned(Protocol):
    """What steps take, over what the profile says."""

    target: float  # those without a drafter
    drafting: float  # what a drafter adds, over the same of such steps
    target_ratios: float  # sums over steps, fading, and
    target_steps: float  # of how many
    drafting_ratios: float
    drafting_steps: float
    dearer: float  # seconds that a verified token takes more beside prompts; sums over steps,
    priced_steps: float  # fading, those that read none included, and of how many
    asked: int  # steps that have asked for drafts, of which `stated` tells,
    answered: int  # and those of which it has shown what the drafts took


class Trade(NamedTuple):
    """What steps take, what a second is worth, and what comes of each choice."""

    gains: Floats  # as in `Spending`
    draft_lens: Ints  # of a step that is to be trimmed
    spending: Annotated[Any, Spending]
    exchange: Rows[Rate]
    learned: Rows[Learned]
    stated: Floats
    """What drafting takes in the last steps by the profile, seconds, in a ring; 0: not compared."""
    limits: Rows[Bounds]
    running: Ints
    """Of the step that is running: context, batched tokens, sequences and prefill tokens;"""
    decodes: Ints
    """and of the step that is decided about, if it verifies nothing."""
    times: Rows[Taken]
    drafting: Floats
    """What drafting 0, 1, ... tokens per sequence takes, seconds."""
    tokens: Floats
    """That might be verified of drafts of 1, 2, ... tokens, shape (longest, choices);"""
    gained: Floats
    """and those of them that would be accepted."""
    values: Floats
    """Of drafting 0, 1, ... tokens for every sequence,"""
    emitted: Floats
    """and the tokens of such a step, with the choice that is worth most."""
    lens: Ints  # of each sequence: what it is best to draft, or to verify
    sizes: Ints  # choices; sequences, and tokens of the longest draft, that gains are of
    outcome: Floats
    """Of a step that has ended: sequences that emitted tokens, these, seconds in all, and those
    that it took to make its drafts."""


@inner
def rate_of(exchange: Rows[Rate], num: int) -> float:
    """Return the tokens per second of a batch of so many sequences; 0 while it is not known.

    The long-run rate: a policy that maximises tokens - rate x time in every step, where rate is the
    ratio of the two that it arrives at, maximises that ratio over all steps (Dinkelbach 1967); the
    best ratio within each step does not. Prompts are to be read whatever is drafted, so their time
    is left out. A second that is saved with few sequences cannot be spent with many, so that
    batches of about this size have a rate of their own, shrunk to that of all.
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
    """Return tokens per sequence, in the time of a step without drafts."""
    rate = exchange[place]
    found: float = rate.tokens / rate.sequences * rate.steps / rate.time
    return found


@inner
def size_class(num: int) -> int:
    """Return the place of the rate of batches of 1, 2 or 3, 4 to 7, ... sequences."""
    place = 1
    while num > 1 and place < SIZES:
        num //= 2
        place += 1
    return place


@inner
def value_of(tokens: float, time: float, rate: float) -> float:
    """Return what a step is worth that emits so many tokens in so many seconds."""
    return tokens - rate * time if rate else tokens / time


@inner
def ask_ahead(desk: Trade, most: int) -> None:
    """Have Python work out at once, if loops cannot, what the next step takes for `spent_time`.

    Of up to so many tokens more.
    """
    spending, load = desk.spending, desk.decodes
    if spending.pricing.asked[0]:
        put_load(spending.pricing, load[0], load[1], load[2], load[3])
        put_len(spending.pricing, 0)
        price_steps(spending.times, spending.pricing, load[1], most + 1)


@inner
def _correct(desk: Trade) -> None:
    """Charge what a drafter adds as it was found to be."""
    times, factor = desk.times[0], desk.learned[0].drafting
    times.running += (factor - 1.0) * (times.running - times.running_plain)
    times.first += (factor - 1.0) * (times.first - times.running_plain)
    times.last += (factor - 1.0) * (times.last - times.running_plain)
    times.next += (factor - 1.0) * (times.next - times.next_plain)


@inner
def _set_load(desk: Spending, load: Ints, longest: int) -> None:
    """Put down a step and the length of all drafts that it makes."""
    put_load(desk.pricing, load[0], load[1], load[2], load[3])
    put_len(desk.pricing, longest)
    desk.extra[0] = desk.extra[1] = 0.0


@inner
def _time(desk: Trade, load: Ints, longest: int) -> float:
    _set_load(desk.spending, load, longest)
    return priced(desk.spending.pricing, load[1], longest)


@inner
def set_times(desk: Trade, longest: int) -> None:
    """Work out what both steps take."""
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
    """Take in the outcome of the step `running`, its time as if the profile were right."""
    exchange, load, times = desk.exchange, desk.running, desk.times[0]
    num, tokens, time = desk.outcome[0], desk.outcome[1], desk.outcome[2]
    time /= desk.learned[0].target
    if not num or load[1] <= load[3]:
        return
    least = 0.0
    if load[3]:
        set_times(desk, 0)
        time -= times.running - times.next
        least = times.next_plain  # its drafts were made before these prompts were read
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
    """Work out what drafting adds to the running step; return the length that there is room for."""
    limits, drafting, times = desk.limits[0], desk.drafting, desk.times[0]
    longest: int = min(limits.max_len, limits.free_slots // desk.decodes[2])
    set_times(desk, longest)
    last = times.last - times.running
    drafting[0] = drafting[1] = 0.0
    for k in range(1, longest + 1):
        drafting[k] = last
    if longest > 1 and not limits.one_cost:
        # Each further token takes the same, nearly: contexts grow by a token.
        first = times.first - times.running
        each = (last - first) / (longest - 1)
        for k in range(longest - 1):
            drafting[1 + k] = k * each + first
    return longest


@inner
def note_dearer(desk: Trade) -> None:
    """Note how much dearer verified tokens are beside prompts, which `weigh_choices` counts in."""
    learned, num, keep = desk.learned[0], desk.decodes[2], desk.exchange[0].keep
    learned.dearer = keep * learned.dearer
    learned.priced_steps = keep * learned.priced_steps + 1.0
    if desk.running[3]:
        dearer = (_added(desk, desk.running, num) - _added(desk, desk.decodes, num)) / num
        learned.dearer += dearer if dearer > _ROUNDING * desk.times[0].next_plain else 0.0


@inner
def _added(desk: Trade, load: Ints, tokens: int) -> float:
    """Return what so many more tokens take in a step, seconds."""
    _set_load(desk.spending, load, 0)
    pricing = desk.spending.pricing
    return priced(pricing, load[1] + tokens, 0) - priced(pricing, load[1], 0)


@inner
def weigh_choices(desk: Trade, known: int, longest: int, rate: float) -> None:
    """Work out what the best choice of each length is worth; nothing verified is one of them.

    So many tokens are drafted already. Where a longer draft costs no more, it is no worse if it can
    be trimmed: there are several choices; shorter ones are not worth a look then.
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
    """Return how long a step takes with a choice, by what it is worth, seconds."""
    tokens, value = desk.emitted[place], desk.values[place]
    time: float = (tokens - value) / rate if rate else tokens / value
    return time


@inner
def saved_by(desk: Trade, place: int, rate: float) -> float:
    """Return by what share of a step without a drafter a choice makes its tokens sooner.

    Per token of a sequence, of which plain steps emit one each: unlike what a step is worth at a
    rate, that can be added up over a request.
    """
    time, tokens = time_of(desk, place, rate), desk.emitted[place]
    saved: float = 1.0 - time * desk.decodes[2] / (tokens * desk.times[0].next_plain)
    return saved


@inner
def best_of(values: Floats, first: int, last: int) -> int:
    """Return the first place of the largest of some values."""
    best = first
    for place in range(first, last + 1):
        if values[place] > values[best]:
            best = place
    return best


@inner
def _spend(desk: Trade, longest: int, most: int, rate: float) -> None:
    """Count each sequence's share of so many gains at most that are worth most."""
    spending, num = desk.spending, desk.sizes[1]
    size = longest * num
    spending.found[0], spending.found[3] = desk.decodes[2], rate
    spending.sizes[0], spending.sizes[1] = size, min(size, most) + 1
    spending.sizes[2] = num
    spend_best(spending)


@inner
def _spend_before(desk: Trade, limit: int, longest: int, rate: float) -> float:
    """Count what is drafted of drafts that long, which cost what those up to a limit do.

    Nothing of it is trimmed afterwards. Return what it is worth.
    """
    _set_load(desk.spending, desk.decodes, 0)
    extra = desk.spending.extra
    extra[0] = desk.drafting[limit]
    if not desk.limits[0].by_model:  # pays for what it drafts, which is what is verified
        extra[0], extra[1] = 0.0, desk.drafting[1] / desk.decodes[2]
    _spend(desk, longest, desk.limits[0].free_slots, rate)
    value: float = desk.spending.found[0]
    return value


@inner
def spend_on_found(desk: Trade, rate: float) -> None:
    """Settle how much is handed over and verified of what a lookup has found."""
    _spend_before(desk, 1, desk.sizes[2], rate)
    for row in range(desk.sizes[1]):
        desk.lens[row] = desk.spending.counts[row]


@inner
def spend_on_drafts(desk: Trade, rate: float) -> None:
    """Settle how much of each draft of a step is verified."""
    desk.decodes[1], longest = desk.running[1], 0
    for row in range(desk.sizes[1]):
        desk.decodes[1] -= desk.draft_lens[row]
        longest = max(longest, desk.draft_lens[row])
    # The drafts of the next step will take about as long, which matters to goodput.
    _set_load(desk.spending, desk.decodes, 0 if rate else longest)
    _spend(desk, desk.sizes[2], desk.sizes[1] * desk.sizes[2], rate)
    for row in range(desk.sizes[1]):
        desk.lens[row] = min(desk.spending.counts[row], desk.draft_lens[row])


@inner
def spend_before(desk: Trade, longest: int, rate: float) -> None:
    """Settle the lengths of highest value by gains that are known before, none of it trimmed."""
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
    """Return a desk where nothing is known yet of what a second is worth.

    Args:
        window: Steps after which one has faded to 1/e.
        loops: On it.
        pricing: What steps take; None: as the policy's view says.
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
    """Return `rate_of` a batch of so many sequences, in Python."""
    return rate_of(as_records(desk.exchange), num)


def put_loads(desk: Trade, running: StepLoad, decodes: StepLoad, most: int = -1) -> None:
    """Put down both steps; the second verifies that many tokens at most."""
    numbers = desk.running
    numbers[0], numbers[1], numbers[2], numbers[3] = running[:4]  # quicker than all at once
    numbers = desk.decodes
    numbers[0], numbers[1], numbers[2], numbers[3] = decodes[:4]
    ask_ahead(desk, most)


def put_drafts(desk: Trade, batch: BatchView, drafts: DraftView) -> None:
    """Put down a step, of whose drafts `spend_on_drafts` is to settle what it verifies."""
    load, num = batch.load, batch.size - int(np.count_nonzero(batch.in_prefill))
    put_loads(desk, load, StepLoad(load.context_tokens, 0, num, load.prefill_tokens))
    desk.draft_lens[: batch.size] = drafts.draft_lens


def put_outcome(desk: Trade, outcome: StepOutcome) -> None:
    """Put down a step of which `note_step` is to take note."""
    load, numbers = outcome.load, desk.outcome
    tokens = load.batched_tokens - load.prefill_tokens
    put_loads(desk, load, StepLoad(load.context_tokens, tokens, load.num_requests))
    numbers[0], numbers[1] = len(outcome.requests), outcome.output_tokens
    numbers[2] = outcome.target_time + outcome.draft_time + outcome.overhead_time
    numbers[3] = outcome.draft_time


_KEPT = 0.99  # share of what is known of earlier steps that a step leaves
_SOON = 20.0  # steps after which one in so many is compared: it takes time to do so
_ONE_OF = 8
_MOST_OFF = 4.0  # times, either way, that a step is believed to take


@inner
def note_asked(desk: Trade, longest: int, tokens: int, is_comparable: bool) -> None:
    """Note what the running step's drafts take by the profile: so long, and so many tokens."""
    learned, limits, times = desk.learned[0], desk.limits[0], desk.times[0]
    drafting = desk.drafting[longest]
    if not (limits.by_model or limits.one_cost) and longest:
        drafting = desk.drafting[1] * tokens / desk.decodes[2]
    drafting += times.running - times.running_plain
    desk.stated[learned.asked % len(desk.stated)] = drafting / learned.drafting * is_comparable
    learned.asked += 1


@inner
def restate(desk: Trade, longest: int) -> None:
    """Note that the drafter has stopped there."""
    desk.learned[0].asked -= 1
    note_asked(desk, longest, 0, True)


@inner
def learn_prices(desk: Trade) -> None:
    """Compare what the step `running` took with what the profile says."""
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
