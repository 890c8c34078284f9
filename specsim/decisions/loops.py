"""The arrays in which a policy sees a step and answers, and policies written as compilable loops.

Such a policy has a `NamedTuple` of arrays as its memory, and plain functions of two arguments, a
`View` of the step and that memory. They read the view, update the memory and write their decisions
into the view. The engine's loop calls them through hooks (`Asking`): as machine code where they
compile, as Python where they do not.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from math import nan
from typing import Annotated, Any, NamedTuple, Protocol
from warnings import catch_warnings, filterwarnings

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel

from specsim.core.compiled import (
    HOOK,
    Hook,
    Loop,
    Pointers,
    Rows,
    Types,
    as_records,
    inner,
    record_of,
    types_of,
)
from specsim.core.desk import Desk, Flags, Floats, Ints
from specsim.core.settings import nearest
from specsim.core.step import BatchView, DraftView, StepLoad, StepOutcome
from specsim.profile.step_time import Pricing


class Shown(Protocol):
    """Numbers of a whole step; lengths in tokens, times in seconds, flags 0 or 1."""

    num_rows: int  # sequences in the view
    num_decodes: int  # of those, not in mid-prefill
    num_undrafted: int  # of those, no longer served by the drafter
    num_admitted: int  # of those, admitted by this step for the first time
    draft_tokens: int  # draft tokens in the step
    accepted_tokens: int  # draft tokens accepted; in `observe` only
    output_tokens: int  # tokens emitted, bonus tokens included; in `observe` only
    now: float  # when the step was scheduled
    num_running: int  # running sequences, including those that are not in this step
    free_slots: int  # room for drafts, as in `BatchView`; in `decide` only
    context_tokens: int  # load of the step, as in `StepLoad`, like the next three
    batched_tokens: int
    num_requests: int
    prefill_tokens: int
    next_context_tokens: int  # context tokens if the next step decodes one token per sequence
    target_time: float  # of the forward pass; in `observe` only, like the next two
    draft_time: float  # to make the drafts that the step verified
    overhead_time: float  # of the engine's own work, for which the GPU waited
    max_draft_len: int  # longest draft that the policy may ask for
    width: int  # longest draft whose confidences are shown
    has_found: int  # whether `decide` is shown drafts that a lookup has found for the next step
    alpha: float  # set by the policy: its estimate of alpha, for timelines
    may_drop: int  # set by the policy: whether to call `drop` in steps that read no prompts, too
    may_stop: int  # set by the policy: whether to call `stop`
    stop_len: int  # set by `stop`: longest length of any draft of this step


class View(NamedTuple):
    """The sequences of a step in scheduling order, one row each, and the policy's decisions."""

    step: Rows[Shown]
    """One row."""
    requests: Ints
    prompt_lens: Ints
    known_lens: Ints
    """Prompt and output tokens known at the time of the decision, as in `BatchView`."""
    in_prefill: Flags
    is_undrafted: Flags
    is_admitted: Flags
    draft_lens: Ints
    """Draft tokens in the step; in `observe`, those verified; in `stop`, and in `decide` if
    `has_found`, the drafts for the next step, whose confidences are shown."""
    accepted_lens: Ints
    confidences: Floats
    """The drafter's probability of each draft token, 0 beyond the end of a draft; shape
    (num_rows, width), flattened row by row."""
    lens: Ints
    """Set by the policy: tokens to draft for each sequence; in `verify`, draft tokens to verify."""
    let_go: Flags
    """Set by `drop`: sequences that the drafter stops serving for good."""
    pricing: Annotated[Any, Pricing]


@inner
def common_len(view: View) -> int:
    """Return the mean of `view.lens`, rounded, over the sequences that decode and are drafted for.

    At least 1 unless all are 0. Under asynchronous scheduling vLLM has one draft length per step
    (0.32.0 ``v1/core/sched/output.py SchedulerOutput.num_spec_tokens_to_schedule``).
    """
    num, tokens = 0, 0
    for row in range(view.step[0].num_rows):
        if not view.in_prefill[row] and not view.is_undrafted[row]:
            num += 1
            tokens += view.lens[row]
    return max(1, (2 * tokens + num) // (2 * num)) if tokens else 0


class Asking(NamedTuple):
    """The hooks by which the engine's loop calls a policy; None where it has no such function."""

    decide: Hook | None = None
    stop: Hook | None = None
    verify: Hook | None = None
    drop: Hook | None = None
    observe: Hook | None = None
    prefix: Hook | None = None  # sets how many running sequences the next step may hold


class _Both(NamedTuple):
    seen: Any
    memory: Any
    has_raised: Hook | None  # called after machine code has raised an error


VIEW_TYPES = types_of(View)
SHOWN = record_of(Shown)
_LOAD = StepLoad._fields[:4]
_OF_BATCH = ["num_decodes", "num_undrafted", "num_admitted", "draft_tokens", "next_context_tokens"]
_OF_BATCH += ["now", "num_running", "free_slots", "has_found", *_LOAD]
_OF_OUTCOME = ["accepted_tokens", "output_tokens", "target_time", "draft_time", "overhead_time"]
_OF_OUTCOME += _LOAD
Act = Callable[[Any, Any], None]


def row_of(kind: type, policy: BaseModel | None = None, /, **values: float) -> NDArray[Any]:
    """Return a record array of one row with the fields of `kind`.

    A field takes its value from `values`, else from the policy's field of the same name, else 0.
    """
    row = np.zeros(1, dtype=record_of(kind))
    shared = row.dtype.fields.keys() & type(policy).model_fields if policy is not None else ()
    for field, value in {**{name: getattr(policy, name) for name in shared}, **values}.items():
        row[field] = value
    return row


def no_view(most: int, longest: int) -> View:
    """Return an empty view for steps of up to `most` sequences with drafts up to `longest`."""
    desk = Desk(View, step=_no_step(longest), pricing=Desk(Pricing), confidences=most * longest + 1)
    return desk.fit(most)


def _no_step(longest: int) -> Any:
    step = np.zeros(1, dtype=SHOWN)
    step["max_draft_len"], step["alpha"] = longest, nan
    return step


ROOMS = ("specsim.latency.form", "specsim.profile.step_time", "specsim.policies.parts")
"""Modules and packages whose functions the loops of a policy may call."""


class Loops:
    """The functions of a policy, each called with a `View` and the policy's memory.

    They may use numbers and arrays (`specsim.core.compiled.may_allocate`), and call functions that
    are marked as `specsim.core.compiled.inner`. All stand at the top level of one module.

    Args:
        memory: A `NamedTuple` of arrays. A field named like one of the view is that of the view.
        decide: Sets `lens`: the tokens to draft for each sequence at the end of the step.
        stop: Sets `stop_len`, after which the drafter stops for all sequences, by the confidences
            of the tokens; may also cut `lens`, so that each draft ends at its own length.
        verify: Sets `lens`: how many draft tokens of each sequence the step verifies.
        drop: Sets `let_go`: sequences that the drafter stops serving for good. Called in steps that
            read prompts, and in others where `may_drop` is set.
        observe: Learns from a step that has ended. The view has fewer rows than in `decide`: only
            sequences that emitted tokens.
        rooms: Modules besides `ROOMS` whose functions the loops call; when one changes, they are
            compiled again.
    """

    def __init__(
        self, memory: type, *, rooms: tuple[str, ...] = (), decide: Act, **others: Act
    ) -> None:
        for verb in others.keys() - set(Asking._fields):
            raise TypeError(f"no loop '{verb}'; {nearest(verb, list(Asking._fields))}")
        self.memory = memory
        types: Types = {"seen": VIEW_TYPES, "memory": types_of(memory), "has_raised": HOOK}
        module = decide.__module__
        name = f"policies-{module.rpartition('.')[2]}"
        rooms = (module, __name__, "specsim.core.desk", *ROOMS, *rooms)
        self.loops = {
            verb: Loop(_of_both(function), types, name=name, rooms=rooms, text=function)
            for verb, function in {"decide": decide, **others}.items()
        }
        self.loops_of_module = list(self.loops.values())

    @property
    def are_compiled(self) -> bool:
        """Whether all loops are machine code; compiles them at the first access."""
        return all(loop.is_compiled for loop in self.loops.values())

    @contextmanager
    def as_python(self) -> Iterator[None]:
        """Bind loops as Python inside this context, where an index out of range raises."""
        for loop in self.loops.values():
            loop.may_compile = False
        try:
            yield
        finally:
            for loop in self.loops.values():
                loop.may_compile = True


def _of_both(function: Act) -> Callable[[Any], int]:
    """Return `function` as a function of one argument, the tuple of its two."""
    act = inner(function)

    def both(both: Any) -> int:
        act(both.seen, both.memory)
        return 0

    both.__name__, both.__module__ = function.__name__, function.__module__
    return both


def _raise(loop: Loop, seen: Any, memory: Any) -> int:
    """Run a loop again as Python, to raise its error with a message, which machine code lacks."""
    with catch_warnings():
        filterwarnings("error", "invalid value encountered in cast")  # of arrays numpy only warns
        loop.function(as_records(_Both(seen, memory, None)))
    raise RuntimeError(
        "its loops raised an error as machine code, and none as Python, where whole numbers may be "
        "of any size"
    )


class LoopMemory:
    """The memory of a `LoopPolicy` for one replica, with its loops bound to it.

    The engine's loop calls the loops directly where tables hold all that they are shown; else
    `LoopPolicy` shows each step (`show`) and runs them (`run`).

    Args:
        loops: The loops of the policy.
        call: Calls a loop that runs as Python, so that an error names the policy.
        server: The argument of `Policy.start`.
        pricing: The cost model, from which loops compute step times.
        fields: Fields of the memory, as for a `Desk`; a field that is missing becomes scratch with
            room for all draft tokens of a step.
    """

    def __init__(
        self,
        loops: Loops,
        call: Callable[[Callable[[], int]], None],
        server: Any,
        pricing: Desk[Pricing],
        **fields: Any,
    ) -> None:
        longest = server.max_draft_len
        self.server, self._loops, self._pricing = server, loops.loops, pricing
        self._call = call
        self._longest = max(longest, 1)
        self._types = loops.loops["decide"].types
        self.desk: Desk[Any] = Desk(loops.memory, **fields)
        self.step = _no_step(longest)
        """One row: the view's `Shown`, with the loops' answers that concern a whole step."""
        self._views = Desk(View, step=self.step, pricing=pricing)
        self._room = self._num_requests = -1
        self._bound: dict[str, Hook] = {}
        self._shown: BatchView | None = None

    def bind(self, view: View, most: int, num_requests: int) -> dict[str, Hook]:
        """Return the loops bound to `view`, for steps of up to `most` sequences.

        `num_requests` bounds the requests' indices.
        """
        requests = np.array([num_requests - 1], dtype=np.int64)
        room = most * self._longest
        view = view._replace(pricing=self._pricing.made(room, requests, {}))
        memory = self.desk.made(room, requests, view._asdict())
        seen = Pointers(view, VIEW_TYPES)

        def both(loop: Loop) -> Pointers:
            has_raised = Hook(partial(self._call, partial(_raise, loop, seen, memory)))
            return Pointers(_Both(seen, memory, has_raised), self._types)

        bound = {verb: loop.bind(both(loop)) for verb, loop in self._loops.items()}
        return {
            verb: each if each.is_compiled else Hook(partial(self._call, each))
            for verb, each in bound.items()
        }

    def show(self, batch: BatchView, drafts: DraftView | None = None) -> View:
        """Return the memory's own view, filled with a step and, if given, its drafts."""
        if drafts is None or batch is not self._shown:
            self._show_batch(batch)
        view = self._views.arrays
        if drafts is not None:
            num, stated = len(drafts.draft_lens), drafts.confidences
            view.confidences[: stated.size] = stated.ravel()
            view.draft_lens[:num], view.step["width"] = drafts.draft_lens, stated.shape[1]
        return view

    def show_outcome(self, outcome: StepOutcome) -> None:
        """Fill the view with the outcome of a step that has ended."""
        view, num = self._of_requests(outcome.requests), len(outcome.requests)
        view.draft_lens[:num], view.accepted_lens[:num] = outcome.draft_lens, outcome.accepted_lens
        self._of_outcome[0] = (
            np.add.reduce(outcome.accepted_lens),
            outcome.output_tokens,
            outcome.target_time,
            outcome.draft_time,
            outcome.overhead_time,
            *outcome.load[:4],
        )

    def run(self, verb: str) -> None:
        """Run one of the loops over the view as last filled."""
        self._bound[verb]()

    def _show_batch(self, batch: BatchView) -> None:
        view, size, decodes = self._of_requests(batch.requests), batch.size, batch.decode_load()
        drafted, undrafted, admitted = batch.draft_lens, batch.is_undrafted, batch.is_admitted
        view.prompt_lens[:size], view.known_lens[:size] = batch.prompt_lens, batch.known_lens
        view.in_prefill[:size] = batch.in_prefill
        view.draft_lens[:size] = 0 if drafted is None else drafted
        view.is_undrafted[:size] = False if undrafted is None else undrafted
        view.is_admitted[:size] = False if admitted is None else admitted
        self._of_batch[0] = (  # quicker than field by field
            decodes.num_requests,
            0 if undrafted is None else np.count_nonzero(undrafted),
            0 if admitted is None else np.count_nonzero(admitted),
            0 if drafted is None else np.add.reduce(drafted),
            decodes.context_tokens,
            batch.now,
            batch.num_running,
            batch.free_slots,
            batch.drafts is not None,
            *batch.load[:4],
        )
        self._shown = batch

    def _of_requests(self, requests: Ints) -> View:
        """Return the view with the requests of a step in it, enlarged if they do not fit."""
        num = len(requests)
        largest = int(np.maximum.reduce(requests, initial=0)) + 1
        if num > self._room or largest > self._num_requests:
            self._room, self._num_requests = 2 * num, 2 * largest
            view = self._views.fit(self._room * self._longest)
            self._bound = self.bind(view, self._room, self._num_requests)
            self._of_batch, self._of_outcome = view.step[_OF_BATCH], view.step[_OF_OUTCOME]
        view = self._views.arrays
        view.requests[:num], view.step["num_rows"] = requests, num
        self._shown = None
        return view
