"""A policy at work in a real engine: each step is written to one place, which compiled loops read.

In a server the model has emptied the caches before each step, so every Python or numpy call takes
several microseconds. Therefore the engine's numbers of a step are copied here once; their sums, and
the decision of a policy made of loops, are computed by one compiled loop. Step times are learned
while the server works.
"""

from collections.abc import Sequence
from struct import Struct
from typing import Annotated, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from specsim.core.compiled import Hook, has, inner, raise_kept, run
from specsim.core.desk import Desk, Floats, Ints, loop_on
from specsim.core.step import BatchView, StepLoad, StepOutcome
from specsim.decisions.loops import ROOMS, LoopMemory, View, common_len, no_view
from specsim.decisions.policy import LoopPolicy, Policy, ServerView, pricing_of
from specsim.profile.step_time import PRICING_SIZES, Pricing, priced, priced_plain, put_load

_BELIEVED = np.array([0.02, 2e-5, 1e-8, 1e-4, 1e-3])
"""Step times assumed before anything is measured, seconds: per step, batched token, context token,
step that drafts, and token of its drafts."""
_UNSURE = 10.0  # standard deviation of the assumed times, as a multiple of them
_NOISE = 0.1  # standard deviation of a measured time, as a share of it
_KEPT = 0.999  # weight of earlier steps after each step, since machines change
_SHORTEST = 1e-6  # seconds


class _Known(NamedTuple):
    """The current estimate of step times."""

    seconds: Floats  # seconds, as `_BELIEVED`
    spread: Floats  # covariance of the estimate, row after row
    most: Floats  # upper limits of the variances: those of untried directions must not grow forever
    row: Floats  # as `LearnedTimes.row`
    gain: Floats  # scratch


@loop_on(_Known)
def learn(known: _Known) -> int:
    """Update the estimate with one step, by recursive least squares with forgetting."""
    seconds, spread, row, gain = known.seconds, known.spread, known.row, known.gain
    measured, num = row[5], len(seconds)
    error, variance = measured, (_NOISE * measured) * (_NOISE * measured)
    for i in range(num):
        gain[i] = 0.0
        for j in range(num):
            spread[num * i + j] /= _KEPT
            gain[i] += spread[num * i + j] * row[j]
        error -= row[i] * seconds[i]
        variance += row[i] * gain[i]
    for i in range(num):
        seconds[i] += gain[i] / variance * error
        for j in range(num):
            spread[num * i + j] -= gain[i] / variance * gain[j]
    for i in range(num):
        own = spread[num * i + i]
        if own > known.most[i]:
            scale = (known.most[i] / own) ** 0.5
            for j in range(num):
                spread[num * i + j] *= scale
                spread[num * j + i] *= scale
    return 0


class _Answering(NamedTuple):
    """A question for a step time, `Pricing`, that loops ask."""

    load: Ints
    asked: Ints
    answer: Floats
    seconds: Floats


@loop_on(_Answering)
def answer(asking: _Answering) -> int:
    """Answer with the time of the step, like `LearnedTimes.step_time`."""
    load, asked, seconds = asking.load, asking.asked, asking.seconds
    longest = 0 if asked[2] else load[4]
    time = seconds[0] + seconds[1] * asked[1] + seconds[2] * load[0]
    time = time + seconds[3] * (longest > 0) + seconds[4] * longest
    asking.answer[0] = max(time, _SHORTEST)
    return 0


class LearnedTimes:
    """Step times that are linear in the contents of a step, learned from measured steps.

    References:
        Haykin, "Adaptive Filter Theory", chapter 10 (exponentially weighted RLS).
    """

    def __init__(self) -> None:
        most = (_UNSURE * _BELIEVED) ** 2
        self.seconds: NDArray[np.float64] = _BELIEVED.copy()
        self.row: NDArray[np.float64] = np.array([1.0, 0.0, 0.0, 0.0, 0.0, 0.0])
        """The step for `learn`: 1, batched tokens, context tokens, whether it drafts, draft length;
        then its time, seconds."""
        known = _Known(self.seconds, np.diag(most).ravel(), most, self.row, np.zeros(5))
        self.learn = learn.bind(known)
        load, asked = np.zeros(PRICING_SIZES["load"], np.int64), np.array([1, 0, 0, 0])
        found = np.zeros(1)
        ask = answer.bind(_Answering(load, asked, found, self.seconds))
        self.answers: Desk[Pricing] = Desk(
            Pricing, rows=256, costs=8, load=load, asked=asked, answer=found, ask=ask
        )
        """Answers questions of compiled loops."""

    def step_time(self, load: StepLoad, draft_len: int | list[int] | Ints) -> float:
        """Return the seconds of a step that then drafts at most `draft_len` tokens per sequence."""
        longest = draft_len if isinstance(draft_len, int) else int(np.max(draft_len))
        return float(self.step_times(load, load.batched_tokens, longest))

    def step_times(
        self, load: StepLoad, batched_tokens: int | Ints, draft_len: int | list[int] | Ints
    ) -> NDArray[np.float64]:
        """Return the same for many numbers of batched tokens, in their shape."""
        start, per_token, per_context, drafting, per_draft = self.seconds.tolist()
        lens = np.asarray(draft_len)
        times = start + per_token * batched_tokens + per_context * load.context_tokens
        times = times + drafting * (lens > 0) + per_draft * lens
        found: NDArray[np.float64] = np.maximum(times, _SHORTEST)
        return found

    def draft_time(self, draft_len: int) -> float:
        """Return the part of the step time for drafting, seconds; at least 0."""
        return max(float(self.seconds[3] * (draft_len > 0) + self.seconds[4] * draft_len), 0.0)


Count = Annotated[int, Field(ge=0, lt=2**40)]


class Scheduled(NamedTuple):
    """A sequence of a scheduled step, in vLLM's counts; lengths in tokens."""

    number: Count  # requests are numbered as they arrive; numbers are not reused
    prompt_len: Count
    output_len: Count
    """Output tokens known when the step is scheduled, and those awaited from running steps."""
    awaited_len: Count  # the awaited part, drafts included
    context_len: Count
    batched_len: Count

    @property
    def in_prefill(self) -> bool:
        """Whether the step leaves part of the prompt to a later step."""
        return self.context_len + self.batched_len < self.prompt_len + self.output_len

    @property
    def draft_len(self) -> int:
        """Draft tokens that the step verifies, part of its batched tokens."""
        return max(0, self.context_len + self.batched_len - self.prompt_len - self.output_len)


Columns = list[int]
"""The fields of `Scheduled` for all sequences of a step, field after field."""


class _ShownStep(NamedTuple):
    """The engine's numbers of a step, and the view of it that a policy gets."""

    told: Ints
    """The numbers listed at `_NUM`; then the emitted tokens of each sequence of an ended step, then
    the `Columns` of a scheduled step."""
    times: Floats
    """Seconds: instant of scheduling; of the ended step its time, target time and draft time; time
    of the drafts that it made."""
    kept: Ints
    """Of each running step: its load, its requests, their draft lengths."""
    sizes: Ints
    """Room for requests; then results: the load of the last step, its decodes, and their context
    tokens if each decodes one token; of an ended step, the sequences that emitted tokens and their
    output tokens."""
    shown: Annotated[Any, View]
    learned: Floats  # as `LearnedTimes.row`
    learn: Hook | None = None
    decide: Hook | None = None
    observe: Hook | None = None  # updates step times, and for loops the policy


MOST_RUNNING = 32
"""Steps that may run at once: vLLM has two, or one per pipeline stage."""
_NOWHERE = -1  # no scheduled step, or no ended step
_NUM, _RUNNING, _FREE, _AT, _NUM_ENDED, _K, _ENDED_AT, _FIRST = range(8)
"""Indices in `_ShownStep.told`: scheduled sequences, running requests, free slots, place of the
step in `kept`; sequences of the ended step, its k, its place in `kept`; the first number after
these."""
_ROOM, _LOAD, _DECODES, _NEXT, _NUM_EMITTED, _OUTPUT = 0, 1, 5, 6, 7, 8  # of `_ShownStep.sizes`


@inner
def _look(seen: Any) -> int:
    """Fill the view with a scheduled step and keep it; return the largest request number."""
    told, view, kept, sizes = seen.told, seen.shown, seen.kept, seen.sizes
    num, most, largest = told[_NUM], len(view.requests), 0
    first, slot = _FIRST + told[_NUM_ENDED], told[_AT] * (4 + 2 * most)
    contexts, batched, prefills, decodes, known_tokens, drafts = 0, 0, 0, 0, 0, 0
    for row in range(num):
        at = first + row
        number, prompt_len, output_len = told[at], told[at + num], told[at + 2 * num]
        context_len, batched_len = told[at + 4 * num], told[at + 5 * num]
        known_len = prompt_len + output_len - told[at + 3 * num]
        ahead_len = context_len + batched_len - prompt_len - output_len
        draft_len = max(0, ahead_len)
        view.requests[row], view.prompt_lens[row] = number, prompt_len
        view.known_lens[row], view.draft_lens[row] = known_len, draft_len
        view.in_prefill[row] = ahead_len < 0
        kept[slot + 4 + row], kept[slot + 4 + most + row] = number, draft_len
        largest = max(largest, number)
        contexts += context_len
        batched += batched_len
        drafts += draft_len
        if context_len < prompt_len or batched_len > 1 + draft_len:
            prefills += batched_len
        if ahead_len >= 0:
            decodes += 1
            known_tokens += known_len
    step = view.step[0]
    step.num_rows, step.num_decodes, step.draft_tokens = num, decodes, drafts
    step.next_context_tokens, step.now = known_tokens - decodes, seen.times[0]
    step.num_running, step.free_slots = told[_RUNNING], told[_FREE]
    step.context_tokens, step.batched_tokens = contexts, batched
    step.num_requests, step.prefill_tokens = num, prefills
    sizes[_DECODES], sizes[_NEXT] = decodes, known_tokens - decodes
    kept[slot], kept[slot + 1], kept[slot + 2], kept[slot + 3] = contexts, batched, num, prefills
    for place in range(4):
        sizes[_LOAD + place] = kept[slot + place]
    return int(largest)


@inner
def _look_back(seen: Any) -> None:
    """Fill the view with the outcome of an ended step, and learn its time."""
    told, view, kept, times, learned = seen.told, seen.shown, seen.kept, seen.times, seen.learned
    most, k = len(view.requests), told[_K]
    slot = told[_ENDED_AT] * (4 + 2 * most)
    context, batched, size, prefills = kept[slot], kept[slot + 1], kept[slot + 2], kept[slot + 3]
    if has(seen.learn) and times[1] > 0.0:
        learned[1], learned[2], learned[3] = batched, context, k > 0
        learned[4], learned[5] = k, times[1]
        run(seen.learn)
    step, num, accepted = view.step[0], 0, 0
    for row in range(size):
        emitted = told[_FIRST + row]
        if emitted:
            view.requests[num] = kept[slot + 4 + row]
            view.draft_lens[num] = kept[slot + 4 + most + row]
            view.accepted_lens[num] = emitted - 1
            accepted += emitted - 1
            num += 1
    step.num_rows, step.accepted_tokens, step.output_tokens = num, accepted, accepted + num
    step.context_tokens, step.batched_tokens = context, batched
    step.num_requests, step.prefill_tokens = size, prefills
    for place in range(4):
        seen.sizes[_LOAD + place] = kept[slot + place]
    seen.sizes[_NUM_EMITTED], seen.sizes[_OUTPUT] = num, accepted + num
    target_time = times[1]  # of the whole step, drafting included
    if k:  # estimated, because vLLM does not measure them apart
        put_load(view.pricing, context, batched, size, prefills)
        plain = priced_plain(view.pricing, batched)
        target_time *= min(1.0, plain / priced(view.pricing, batched, k))
    times[2], times[3] = target_time, times[4]
    step.target_time, step.draft_time = target_time, times[4]
    times[4] = times[1] - target_time


@loop_on(_ShownStep, "specsim.decisions.loops", *ROOMS)
def settle(seen: _ShownStep) -> int:
    """Return one draft length for the lengths that a policy in Python gave."""
    return common_len(seen.shown)


@loop_on(_ShownStep, "specsim.decisions.loops", *ROOMS)
def act(seen: _ShownStep) -> int:
    """Process an ended step, if any, then a scheduled step, if any.

    A policy made of loops observes the first and decides on the second. Returns the draft length;
    below 0 if the policy raised an error, or needs more room for its memory.
    """
    told = seen.told
    if told[_ENDED_AT] != _NOWHERE:
        _look_back(seen)
        told[_ENDED_AT] = _NOWHERE
        if has(seen.observe) and run(seen.observe):
            return -1
    if told[_AT] == _NOWHERE:
        return 0
    if _look(seen) >= seen.sizes[_ROOM]:
        return -1
    if not has(seen.decide) or not told[_NUM]:
        return 0
    return -1 if run(seen.decide) else common_len(seen.shown)


class AtWork:
    """A policy at work in an engine.

    Args:
        most: Most sequences of a step.
        times: Where step times are learned.
    """

    def __init__(
        self, policy: Policy, server: ServerView, most: int, times: LearnedTimes | None = None
    ) -> None:
        self._policy, self._memory, self._most = policy, policy.start(server), most
        self._in_loops = isinstance(self._memory, LoopMemory) and (
            isinstance(policy, LoopPolicy) and policy.is_asked_in_loops
        )
        self._is_told = not self._in_loops and policy.overrides(Policy.observe)
        pricing: Any = pricing_of(server).made(server.max_draft_len, np.zeros(0, int), {})
        self._columns = np.zeros((5, most), int)
        requests, prompt_lens, known_lens, draft_lens, accepted_lens = self._columns
        self._view = no_view(most, server.max_draft_len)._replace(
            pricing=pricing, requests=requests, prompt_lens=prompt_lens, known_lens=known_lens,
            draft_lens=draft_lens, accepted_lens=accepted_lens,
        )  # fmt: skip
        told = np.zeros(_FIRST + (1 + len(Scheduled._fields)) * most, int)
        kept, sizes = np.zeros(MOST_RUNNING * (4 + 2 * most), int), np.zeros(9, int)
        learned = np.zeros(6) if times is None else times.row
        self._seen = _ShownStep(told, np.zeros(5), kept, sizes, self._view, learned)
        if times is not None:
            self._seen = self._seen._replace(learn=times.learn)
        self._told, self._packs = _bytes_of(told), dict[int, Any]()
        self._sizes = _bytes_of(sizes).cast("q")
        self._times = _bytes_of(self._seen.times).cast("d")
        self._ended: tuple[int, int, float, Sequence[int]] | None = None
        self._make_room(1023)

    def _make_room(self, number: int) -> None:
        """Make room for the policy's memory of requests up to a number."""
        seen, room = self._seen, 2 * (number + 1)
        self._sizes[_ROOM] = room
        if self._in_loops:
            verbs = self._memory.bind(self._view, self._most, room)
            seen = seen._replace(decide=verbs["decide"], observe=verbs.get("observe"))
        self._bound, self._settle = act.bind(seen), settle.bind(seen)
        self._act, self._pointer = self._bound.bare

    def decide(
        self, step: int, columns: Columns, now: float, num_running: int, free_slots: int
    ) -> int:
        """Return the draft length that the policy decides on.

        Args:
            step: Number of steps before this one.
        """
        num = len(columns) // len(Scheduled._fields)
        self._put(columns, num, num_running, free_slots, step % MOST_RUNNING)
        self._times[0] = now
        while (k := self._act(self._pointer)) < 0:
            raise_kept()
            self._make_room(max(columns[:num]))
        return k if self._in_loops or not num else self._ask(num)

    def _put(self, columns: Sequence[int], *scheduled: int) -> None:
        """Store a scheduled step, and the ended one, if any."""
        at, k = _NOWHERE, 0
        output_lens: Sequence[int] = ()
        if self._ended is not None:
            step, k, self._times[1], output_lens = self._ended
            at, self._ended = step % MOST_RUNNING, None
        num = len(output_lens)
        size = _FIRST + num + len(columns)
        if size not in self._packs:  # making a packer takes as long as using it
            self._packs[size] = Struct(f"{size}q").pack_into
        self._packs[size](self._told, 0, *scheduled, num, k, at, *output_lens, *columns)

    def _ask(self, num: int) -> int:
        """Ask a policy written in Python."""
        lens: Any = self._policy.draft_lens(self._batch(num), self._memory)
        if not isinstance(lens, int | np.integer):
            self._view.lens[:num] = lens
            lens = self._settle()
        return int(lens)

    def _batch(self, num: int) -> BatchView:
        requests, prompt_lens, known_lens, draft_lens, _ = self._columns[:, :num].copy()
        sizes, told = self._sizes, self._seen.told
        return BatchView(
            requests,
            prompt_lens,
            known_lens,
            self._view.in_prefill[:num].copy(),
            StepLoad(*sizes[_LOAD:_DECODES]),
            now=self._times[0],
            free_slots=int(told[_FREE]),
            num_running=int(told[_RUNNING]),
            draft_lens=draft_lens,
            decodes=StepLoad(sizes[_NEXT], sizes[_DECODES], sizes[_DECODES]),
        )

    def observe(self, step: int, k: int, seconds: float, output_lens: Sequence[int]) -> None:
        """Report an ended step to the policy: its time, seconds, and the k decided for it.

        A policy made of loops gets the report when it is next asked.

        Args:
            output_lens: Tokens that each of its sequences emitted.
        """
        if self._ended is not None:
            self._tell()
        self._ended = step, k, seconds, output_lens
        if not self._in_loops:
            self._tell()

    def _tell(self) -> None:
        self._put((), 0, 0, 0, _NOWHERE)
        if self._act(self._pointer):
            raise_kept()
        if self._is_told:
            sizes, times = self._sizes, self._times
            num, output = sizes[_NUM_EMITTED], sizes[_OUTPUT]
            requests, _, _, draft_lens, accepted_lens = self._columns[:, :num].copy()
            load = StepLoad(*sizes[_LOAD:_DECODES])
            outcome = StepOutcome(
                requests, draft_lens, accepted_lens, load, output, times[2], times[3]
            )
            self._policy.observe(outcome, self._memory)


def _bytes_of(values: Any) -> Any:
    return memoryview(values).cast("B")
