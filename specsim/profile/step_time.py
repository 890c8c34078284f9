"""The time of a step: one formula for loops, for single steps in Python, and for arrays of steps.

T = T_target + T_draft (Liu et al. 2024, "SmartSpec", eq. 4), plus the engine's overhead.
"""

from collections.abc import Callable
from math import nan
from typing import Any, NamedTuple

from specsim.core.compiled import Hook, inner, run
from specsim.core.desk import Floats, Ints
from specsim.latency.form import forward_time

OVERHEAD_STEP, OVERHEAD_REQUEST, HAS_DRAFTER, HAS_LATENCY, BASIS = range(5)
TARGET_SHARE, TOKEN, STEP, REQUEST, OVERLAPS = range(5, 10)
BLOCK_LEN, READS_STEP, PASSES, HIDES_OVERHEAD = range(10, 14)
NUM_COSTS = 14
"""Length of the array of costs besides the forward passes: seconds of `specsim.profile.Overhead`;
those of `specsim.profile.DraftCost`, whose basis is a place in `BASES`; whether the drafter runs
while the target does; the `BlockPass`; whether the overhead passes while the GPU works on the step
before."""
BASES = ("pass", "draft", "heads")
PASS, HEADS = 0.0, 2.0  # places in it

PassTime = Callable[[Any, Any, Any, Any, Any], Any]
"""Seconds of a forward pass of a model: context, batched tokens, sequences and prefill tokens."""


class BlockPass(NamedTuple):
    """What a drafter reads in each forward pass, if the number of passes is fixed.

    Parallel drafting makes one pass, with a mask token for each token to be drafted. Several MTP
    modules make one pass each, which read what the target has just read.
    """

    block_len: int = 0  # tokens read per sequence
    reads_step: bool = True  # whether a pass also reads what the target has just read
    passes: int = 1  # passes per step; 0: one for each token of the longest draft


NO_BLOCK = BlockPass(passes=0)


class DraftLoad(NamedTuple):
    """What a drafter reads after a step, and how much it drafts.

    In Python batched tokens may be an array; times are then arrays, too.
    """

    context_tokens: int
    batched_tokens: int
    num_requests: int
    prefill_tokens: int
    longest: int  # tokens of the longest draft, of trees along a path
    draft_tokens: int  # of all drafts


@inner
def overhead_time(costs: Any, num_requests: int) -> float:
    """Return the engine's overhead for a step of `num_requests` sequences, seconds."""
    time: float = costs[OVERHEAD_STEP] + costs[OVERHEAD_REQUEST] * num_requests
    return time


@inner
def with_overhead(costs: Any, target_time: Any, added: Any, num_requests: int) -> Any:
    """Return the seconds of a step: `target_time`, `added` for its drafts, and overhead.

    Under asynchronous scheduling, the longer of GPU time and overhead, since the overhead passes
    while the GPU works on the step before (vLLM 0.32.0 ``v1/engine/core.py
    step_with_batch_queue``).
    """
    own = overhead_time(costs, num_requests)
    if costs[HIDES_OVERHEAD]:
        on_gpu = target_time + added
        return on_gpu + (own - on_gpu) * (own > on_gpu)
    return target_time + own + added


@inner
def draft_time(
    costs: Any, drafter: Any, pass_time: PassTime, made: DraftLoad, rows: Any, target_time: Any
) -> Any:
    """Return how long it takes to draft for the sequences of a step, seconds.

    The sum over max(k) passes (SmartSpec, eq. 5). The first pass reads what the target has just
    read, to keep the drafter's KV cache up to date, and yields the first draft token; each later
    pass reads one token of every sequence that still drafts. vLLM runs the first pass also for
    drafts of length 0 (``v1/spec_decode/llm_base_proposer.py propose``; V0, 0.6.4,
    ``spec_decode/spec_decode_worker.py _run_no_spec``, but for requests whose speculation
    `disable_by_batch_size` has ended for good, as `Policy.drops` does); a fit to whole drafts says
    nothing about that case and charges nothing. A `BlockPass` fixes the number of passes.

    Args:
        costs: Array of costs, by places such as `OVERHEAD_STEP`.
        drafter: Latency model of the drafter, in the form that `pass_time` takes.
        rows: Number of sequences that draft a 1st, 2nd, ... token; for trees, the tokens that the
            drafter reads at each depth, of which those of one sequence read its context once.
        target_time: Seconds of the target's forward pass.
    """
    total = 0.0
    if made.longest:
        total = costs[TARGET_SHARE] * target_time + costs[TOKEN] * made.draft_tokens
        total = total + costs[STEP] + costs[REQUEST] * made.num_requests
    if not costs[HAS_LATENCY]:
        return total
    context_tokens, batched_tokens = made.context_tokens, made.batched_tokens
    num_requests, prefill_tokens = made.num_requests, made.prefill_tokens
    num_passes = max(1, made.longest) if costs[BASIS] == PASS else min(1, made.longest)
    if costs[BASIS] == HEADS:
        context_tokens, batched_tokens, prefill_tokens = 0, num_requests, 0
    if costs[PASSES] and costs[BASIS] == PASS:
        num_passes = int(costs[PASSES])
        if not costs[READS_STEP]:
            context_tokens, batched_tokens = context_tokens + batched_tokens, 0
            prefill_tokens = 0
        batched_tokens = batched_tokens + int(costs[BLOCK_LEN]) * num_requests
    # One call for all passes, since the compiler inlines the callee at every call.
    for number in range(num_passes):
        if number and not costs[PASSES]:
            context_tokens = context_tokens + batched_tokens
            batched_tokens = rows[number]
            num_requests = min(batched_tokens, rows[0])
            prefill_tokens = 0
        total = total + pass_time(
            drafter, context_tokens, batched_tokens, num_requests, prefill_tokens
        )
    return total


@inner
def added_time(costs: Any, time: Any, target_time: Any) -> Any:
    """Return the seconds that drafting of `time` seconds adds to a step.

    All of it; with a drafter that overlaps, the part that the target's forward pass does not hide,
    so that a step takes the longer of both (Liu et al. 2025, "PEARL", section 4).
    """
    return (time - target_time) * (time > target_time) if costs[OVERLAPS] else time


@inner
def step_time(
    costs: Any, drafter: Any, pass_time: PassTime, made: DraftLoad, rows: Any, target_time: Any
) -> Any:
    """Return what a step takes altogether, seconds; see `draft_time`."""
    added: Any = 0.0
    if costs[HAS_DRAFTER]:
        if costs[OVERLAPS]:  # the drafter has the KV entries of its own drafts already
            tokens = made.num_requests + made.prefill_tokens
            made = DraftLoad(made[0], tokens, made[2], made[3], made[4], made[5])
        time = draft_time(costs, drafter, pass_time, made, rows, target_time)
        added = added_time(costs, time, target_time)
    return with_overhead(costs, target_time, added, made.num_requests)


class Pricing(NamedTuple):
    """A cost model loaded with a step: as arrays, or as a hook into Python."""

    target: Floats  # form of the target's forward pass
    drafter: Floats  # form of the drafter's
    costs: Floats  # other costs of a step, by places such as `OVERHEAD_STEP`
    load: Ints
    """Context, batched tokens without drafts, sequences and prefill tokens of the step; longest
    draft that it makes; draft tokens that it makes."""
    rows: Ints  # number of sequences that draft a 1st, 2nd, ... token
    asked: Ints
    """1 if Python has to be called; the question: batched tokens of the first step, 1 if no drafter
    runs, number of steps, each with one batched token more than the last."""
    answer: Floats
    """Seconds of each of these steps, with room for the most that are asked for at once."""
    ask: Hook


PRICING_SIZES = {"costs": NUM_COSTS, "load": 6, "rows": 256, "asked": 4}
"""Lengths of the fields of `Pricing`, for a `Desk`."""


@inner
def step_time_of(pricing: Pricing, batched_tokens: int, longest: int) -> float:
    """Return the seconds of the step in `load` with other batched tokens and longest draft."""
    load, costs, rows = pricing.load, pricing.costs, pricing.rows
    target_time = forward_time(pricing.target, load[0], batched_tokens, load[2], load[3])
    made = DraftLoad(load[0], batched_tokens, load[2], load[3], longest, load[5])
    time: float = step_time(costs, pricing.drafter, forward_time, made, rows, target_time)
    return time


@inner
def priced(pricing: Pricing, batched_tokens: int, draft_len: int) -> float:
    """Return the seconds of the step in `load` if every sequence drafts `draft_len` tokens."""
    put_len(pricing, draft_len)
    if pricing.asked[0]:
        return _answered(pricing, batched_tokens, 0, 1)
    return step_time_of(pricing, batched_tokens, draft_len)


@inner
def priced_plain(pricing: Pricing, batched_tokens: int) -> float:
    """Return the seconds of the step in `load` where no drafter runs at all."""
    if pricing.asked[0]:
        return _answered(pricing, batched_tokens, 1, 1)
    load = pricing.load
    target_time = forward_time(pricing.target, load[0], batched_tokens, load[2], load[3])
    time: float = with_overhead(pricing.costs, target_time, 0.0, load[2])
    return time


@inner
def price_steps(times: Floats, pricing: Pricing, batched_tokens: int, num: int) -> None:
    """Set `times` of `num` steps with batched tokens from `batched_tokens` on, drafts as loaded."""
    if not pricing.asked[0]:
        for index in range(num):
            times[index] = step_time_of(pricing, batched_tokens + index, pricing.load[4])
        return
    room = len(pricing.answer)
    for first in range(0, num, room):
        count = min(room, num - first)
        _answered(pricing, batched_tokens + first, 0, count)
        for index in range(count):
            times[first + index] = pricing.answer[index]


@inner
def _answered(pricing: Pricing, batched_tokens: int, is_plain: int, num: int) -> float:
    pricing.asked[1], pricing.asked[2], pricing.asked[3] = batched_tokens, is_plain, num
    pricing.answer[0] = nan
    run(pricing.ask)
    return float(pricing.answer[0])


@inner
def put_len(pricing: Pricing, draft_len: int) -> None:
    """Load a common draft length for all sequences of the step."""
    load = pricing.load
    load[4], load[5] = draft_len, draft_len * load[2]
    for place in range(draft_len):
        pricing.rows[place] = load[2]


@inner
def put_lens(pricing: Pricing, lens: Ints, num: int) -> None:
    """Load the draft lengths of the `num` sequences of the step."""
    load, rows = pricing.load, pricing.rows
    load[4] = load[5] = 0
    for row in range(num):
        load[4] = max(load[4], lens[row])
        load[5] += lens[row]
    for place in range(load[4]):
        rows[place] = 0
        for row in range(num):
            rows[place] += 1 if lens[row] > place else 0


@inner
def put_load(pricing: Pricing, context: int, tokens: int, num: int, prefills: int) -> None:
    """Load a step: context, batched tokens without drafts, sequences, and prefill tokens."""
    load = pricing.load
    load[0], load[1], load[2], load[3] = context, tokens, num, prefills
