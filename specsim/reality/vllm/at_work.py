"""How a policy in a real engine is asked: a step is shown in one place, which loops fill in.

In a server a step finds the caches emptied by the model, and every function of numpy's then takes
several microseconds; so a step's columns are copied here once, and what they add up to, and what a
policy that is loops makes of them, is worked out without Python.
"""

from struct import pack_into
from typing import Annotated, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from specsim.core.compiled import Hook
from specsim.core.desk import Floats, Ints, loop_on
from specsim.core.step import BatchView, StepLoad, StepOutcome
from specsim.decisions.loops import LoopMemory, View, no_view
from specsim.decisions.policy import LoopPolicy, Policy, ServerView, pricing_of
from specsim.profile.step_time import priced, priced_plain, put_load


class Scheduled(NamedTuple):
    """A sequence of a step that has been scheduled; lengths in tokens."""

    number: int
    """Requests are counted as they come, and a number is not used again."""
    prompt_len: int
    known_len: int
    """Prompt and output that are known when the step is scheduled."""
    in_prefill: bool
    context_len: int
    batched_len: int
    draft_len: int
    """Drafts that the step verifies, of the batched tokens."""


class Emitted(NamedTuple):
    """What came of a sequence in a step; lengths in tokens."""

    number: int
    draft_len: int
    accepted_len: int
    output_len: int


Rows = list[int]
"""Of a step: the fields of all its sequences, one sequence after the other; a tuple for each would
take twice the time."""


def in_rows(rows: Rows, width: int) -> list[tuple[int, ...]]:
    """Return them with a tuple for each sequence."""
    return list(zip(*[iter(rows)] * width, strict=True))


class _ShownStep(NamedTuple):
    """What the engine says of a step, and what of it a policy is shown."""

    told: Ints
    """Rows of `Scheduled`, or of `Emitted`, one after the other."""
    sizes: Ints
    """Of the step: rows; how many sequences run; free slots; its load; what was decided for it;
    then the largest number of a request, sequences that decode, what is read if each of them
    decodes one token, and tokens that the step emitted."""
    times: Floats
    """Seconds: when it was scheduled; what it took; what its target did, and its drafts did; what
    the drafts did that it made."""
    shown: Annotated[Any, View]


_ROWS, _RUNNING, _FREE, _LOAD, _K, _LARGEST, _DECODES, _NEXT, _OUTPUT = 0, 1, 2, 3, 7, 8, 9, 10, 11
_ROOMS = ("specsim.decisions.loops", "specsim.latency.form", "specsim.profile.step_time")


def _buffer_of(values: Any) -> Any:
    """Return a view of numbers of eight bytes that takes one at a time faster than numpy's own."""
    return memoryview(values).cast("B").cast("q" if values.dtype == int else "d")


@loop_on(_ShownStep, *_ROOMS)
def look(seen: _ShownStep) -> int:
    """Show a step that has been scheduled."""
    told, view, num = seen.told, seen.shown, seen.sizes[_ROWS]
    step, largest = view.step[0], 0
    contexts, batched, prefills, decodes, known_tokens, drafts = 0, 0, 0, 0, 0, 0
    for row in range(num):
        at = 7 * row
        prompt_len, known_len, draft_len = told[at + 1], told[at + 2], told[at + 6]
        context_len, batched_len = told[at + 4], told[at + 5]
        view.requests[row], view.prompt_lens[row] = told[at], prompt_len
        view.known_lens[row], view.draft_lens[row] = known_len, draft_len
        view.in_prefill[row] = told[at + 3] != 0
        largest = max(largest, told[at])
        contexts += context_len
        batched += batched_len
        drafts += draft_len
        if context_len < prompt_len or batched_len > 1 + draft_len:
            prefills += batched_len
        if not view.in_prefill[row]:
            decodes += 1
            known_tokens += known_len
    step.num_rows, step.num_decodes, step.draft_tokens = num, decodes, drafts
    step.next_context_tokens, step.now = known_tokens - decodes, seen.times[0]
    step.num_running, step.free_slots = seen.sizes[_RUNNING], seen.sizes[_FREE]
    step.context_tokens, step.batched_tokens = contexts, batched
    step.num_requests, step.prefill_tokens = num, prefills
    seen.sizes[_LARGEST], seen.sizes[_DECODES] = largest, decodes
    seen.sizes[_NEXT] = known_tokens - decodes
    seen.sizes[_LOAD], seen.sizes[_LOAD + 1] = contexts, batched
    seen.sizes[_LOAD + 2], seen.sizes[_LOAD + 3] = num, prefills
    return 0


@loop_on(_ShownStep, *_ROOMS)
def settle(seen: _ShownStep) -> int:
    """Return what is nearest to one length per sequence: the mean; at least 1 if any drafts."""
    view, num, tokens, drafting = seen.shown, 0, 0, 0
    for row in range(view.step[0].num_rows):
        if not view.in_prefill[row]:
            num += 1
            tokens += view.lens[row]
            drafting += view.lens[row] != 0
    return max(1, (2 * tokens + num) // (2 * num)) if drafting else 0


@loop_on(_ShownStep, *_ROOMS)
def look_back(seen: _ShownStep) -> int:
    """Show what came of a step; an engine tells the whole of what it took, drafting included."""
    told, view, num, sizes = seen.told, seen.shown, seen.sizes[_ROWS], seen.sizes
    step, accepted, output = view.step[0], 0, 0
    for row in range(num):
        view.requests[row], view.draft_lens[row] = told[4 * row], told[4 * row + 1]
        view.accepted_lens[row] = told[4 * row + 2]
        accepted += told[4 * row + 2]
        output += told[4 * row + 3]
    step.num_rows, step.accepted_tokens, step.output_tokens = num, accepted, output
    step.context_tokens, step.batched_tokens = sizes[_LOAD], sizes[_LOAD + 1]
    step.num_requests, step.prefill_tokens = sizes[_LOAD + 2], sizes[_LOAD + 3]
    target_time = seen.times[1]
    if sizes[_K]:  # as is believed; vLLM does not tell them apart
        batched_tokens = step.batched_tokens
        put_load(view.pricing, sizes[_LOAD], batched_tokens, step.num_requests, sizes[_LOAD + 3])
        plain = priced_plain(view.pricing, batched_tokens)
        target_time *= min(1.0, plain / priced(view.pricing, batched_tokens, sizes[_K]))
    seen.times[2], seen.times[3], sizes[_OUTPUT] = target_time, seen.times[4], output
    step.target_time, step.draft_time = target_time, seen.times[4]
    seen.times[4] = seen.times[1] - target_time
    return 0


class AtWork:
    """A policy at work in an engine.

    Args:
        most: Sequences of a step, at most.
    """

    def __init__(self, policy: Policy, server: ServerView, most: int) -> None:
        self._policy, self._memory, self._most = policy, policy.start(server), most
        pricing: Any = pricing_of(server).made(server.max_draft_len, np.zeros(0, int), {})
        self._view = no_view(most, server.max_draft_len)._replace(pricing=pricing)
        seen = _ShownStep(np.zeros(7 * most, int), np.zeros(12, int), np.zeros(5), self._view)
        self._look, self._settle, self._look_back = (
            loop.bind(seen) for loop in (look, settle, look_back)
        )
        self._rows = seen.told
        self._told, self._sizes, self._times = map(_buffer_of, seen[:3])
        self._in_loops = isinstance(self._memory, LoopMemory) and (
            isinstance(policy, LoopPolicy) and policy.is_asked_in_loops
        )
        self._num_numbers = 0
        self._verbs: dict[str, Hook] = {}
        self._make_room(1023)

    def _make_room(self, number: int) -> None:
        """Have room for what is remembered of requests up to a number."""
        self._num_numbers = 2 * (number + 1)
        if self._in_loops:
            self._verbs = self._memory.bind(self._view, self._most, self._num_numbers)

    def _tell(self, rows: Rows, width: int) -> int:
        pack_into(f"{len(rows)}q", self._told, 0, *rows)
        self._sizes[_ROWS] = num = len(rows) // width
        return num

    def decide(
        self, rows: Rows, now: float, num_running: int, free_slots: int
    ) -> tuple[int, StepLoad]:
        """Return how much to draft, as the policy says, and what the step holds."""
        num, sizes = self._tell(rows, len(Scheduled._fields)), self._sizes
        sizes[_RUNNING], sizes[_FREE], self._times[0] = num_running, free_slots, now
        self._look()
        load = StepLoad(*sizes[_LOAD:_K])
        if not num:
            return 0, load
        if self._in_loops:
            if sizes[_LARGEST] >= self._num_numbers:
                self._make_room(sizes[_LARGEST])
            self._verbs["decide"]()
            return self._settle(), load
        lens: Any = self._policy.draft_lens(self._batch(num, load), self._memory)
        if not isinstance(lens, int | np.integer):
            self._view.lens[:num] = lens
            lens = self._settle()
        return int(lens), load

    def _columns(self, num: int, width: int) -> NDArray[np.int64]:
        return self._rows[: num * width].reshape(num, width).T.copy()

    def _batch(self, num: int, load: StepLoad) -> BatchView:
        columns, sizes = self._columns(num, len(Scheduled._fields)), self._sizes
        return BatchView(
            columns[0],
            columns[1],
            columns[2],
            columns[3] != 0,
            load,
            now=self._times[0],
            free_slots=sizes[_FREE],
            num_running=sizes[_RUNNING],
            draft_lens=columns[6],
            decodes=StepLoad(sizes[_NEXT], sizes[_DECODES], sizes[_DECODES]),
        )

    def observe(self, load: StepLoad, k: int, seconds: float, rows: Rows) -> None:
        """Tell the policy what came of a step that took so long, and for which k was decided."""
        width, times = len(Emitted._fields), self._times
        num = self._tell(rows, width)
        pack_into("5q", self._sizes, 8 * _LOAD, *load[:4], k)
        times[1] = seconds
        self._look_back()
        if self._in_loops:
            if "observe" in self._verbs:
                self._verbs["observe"]()
            return
        numbers, draft_lens, accepted_lens, _ = self._columns(num, width)
        output = self._sizes[_OUTPUT]
        outcome = StepOutcome(numbers, draft_lens, accepted_lens, load, output, times[2], times[3])
        self._policy.observe(outcome, self._memory)
