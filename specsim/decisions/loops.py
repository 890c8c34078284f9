"""What policies see of a step and say of it, as arrays; and the loops of those that are loops.

A policy in the compilable style is a `NamedTuple` of arrays that it remembers, and plain functions
of two arguments, a `View` and that memory, which read the one, change the other, and put down what
they decide in the view. The engine's loop calls them through one hook whichever policy it is, as
machine code where they compile and as Python where they do not.
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
    """A step, as the server sees it; lengths in tokens, times in seconds, flags 0 or 1."""

    num_rows: int  # sequences that the view has rows of
    num_decodes: int  # those that are not in mid-prefill
    num_undrafted: int  # those that the drafter has left out
    num_admitted: int  # those that the step admits for the first time
    draft_tokens: int  # drafts that are in the step
    accepted_tokens: int  # what was accepted of them; this and the next where it is learned from
    output_tokens: int  # what the step emitted, bonus tokens included
    now: float  # when the step was scheduled
    num_running: int  # sequences that run, those included that the step leaves out
    free_slots: int  # room for drafts, where `decide` is asked
    context_tokens: int  # of the step that is running, as in `StepLoad`, like the next three
    batched_tokens: int
    num_requests: int
    prefill_tokens: int
    next_context_tokens: int  # what is read if the next step decodes one token of each
    target_time: float  # of the forward pass; this and the next two where it is learned from
    draft_time: float  # that it took to make the drafts that it verified
    overhead_time: float
    max_draft_len: int  # longest draft that may be asked for
    width: int  # tokens of the longest draft whose confidences are shown
    has_found: int  # whether `decide` is shown those that a lookup has found for the next step
    alpha: float  # said: the acceptance rate that it believes in, for timelines
    may_drop: int  # said: whether `drop` is to be asked in steps that read no prompts, too
    may_stop: int  # said: whether `stop` is to be asked
    stop_len: int  # said by `stop`: tokens after which all drafts end, if not before


class View(NamedTuple):
    """The sequences of a step in scheduling order, one row each, and what is decided about them."""

    step: Rows[Shown]
    """One row."""
    requests: Ints
    prompt_lens: Ints
    known_lens: Ints
    """As in `BatchView`."""
    in_prefill: Flags
    is_undrafted: Flags
    is_admitted: Flags
    draft_lens: Ints
    """Drafts in the step; of drafts whose confidences are shown, their lengths; where it is learned
    from, those that were verified."""
    accepted_lens: Ints
    confidences: Floats
    """Shape (size, width), row after row: the drafter's probability of each token, 0 beyond the
    end."""
    lens: Ints
    """Said: how much each sequence is to draft, or (`verify`) how many of its drafts to verify."""
    let_go: Flags
    """Said by `drop`: whom the drafter serves no more."""
    pricing: Annotated[Any, Pricing]


@inner
def common_len(view: View) -> int:
    """Return the mean of the lengths of those that decode and are drafted for, at least 1 if any.

    A step scheduled ahead has one length (vLLM 0.32.0 ``v1/core/sched/output.py
    SchedulerOutput.num_spec_tokens_to_schedule``).
    """
    num, tokens = 0, 0
    for row in range(view.step[0].num_rows):
        if not view.in_prefill[row] and not view.is_undrafted[row]:
            num += 1
            tokens += view.lens[row]
    return max(1, (2 * tokens + num) // (2 * num)) if tokens else 0


class Asking(NamedTuple):
    """How the engine's loop asks a policy; nothing is there that it has no function for."""

    decide: Hook | None = None
    stop: Hook | None = None
    verify: Hook | None = None
    drop: Hook | None = None
    observe: Hook | None = None
    prefix: Hook | None = None  # how many that run the next step may hold


class _Both(NamedTuple):
    seen: Any
    memory: Any
    has_raised: Hook | None  # called where machine code has


VIEW_TYPES = types_of(View)
SHOWN = record_of(Shown)
_LOAD = StepLoad._fields[:4]
_OF_BATCH = ["num_decodes", "num_undrafted", "num_admitted", "draft_tokens", "next_context_tokens"]
_OF_BATCH += ["now", "num_running", "free_slots", "has_found", *_LOAD]
_OF_OUTCOME = ["accepted_tokens", "output_tokens", "target_time", "draft_time", "overhead_time"]
_OF_OUTCOME += _LOAD
Act = Callable[[Any, Any], None]


def row_of(kind: type, policy: BaseModel | None = None, /, **values: float) -> NDArray[Any]:
    """Return a record array of one row with the fields of a class, 0 but for these.

    And but for those that a policy has, too, under the same name.
    """
    row = np.zeros(1, dtype=record_of(kind))
    shared = row.dtype.fields.keys() & type(policy).model_fields if policy is not None else ()
    for field, value in {**{name: getattr(policy, name) for name in shared}, **values}.items():
        row[field] = value
    return row


def no_view(most: int, longest: int) -> View:
    """Return room for steps of so many sequences with drafts of so many tokens."""
    desk = Desk(View, step=_no_step(longest), pricing=Desk(Pricing), confidences=most * longest + 1)
    return desk.fit(most)


def _no_step(longest: int) -> Any:
    step = np.zeros(1, dtype=SHOWN)
    step["max_draft_len"], step["alpha"] = longest, nan
    return step


ROOMS = ("specsim.latency.form", "specsim.profile.step_time", "specsim.policies.parts")
"""Modules and packages whose functions loops over a view may call."""


class Loops:
    """The functions of a policy over a `View` and what it remembers.

    They use numbers and arrays (`specsim.core.compiled.may_allocate`), and functions that they call
    are marked as `specsim.core.compiled.inner`. All stand in one module, at its top.

    Args:
        memory: A `NamedTuple` of arrays. A field of the name of one of the view is the view's.
        decide: Says in `lens` how much each sequence drafts at the end of the step.
        stop: Says in `stop_len` after how many tokens the drafter stops, by their confidences, and
            may cut `lens` besides, where drafts end one by one.
        verify: Says in `lens` how many drafts of each sequence the step verifies.
        drop: Says in `let_go` whom the drafter lets go of for good; in steps that read prompts, and
            where it `may_drop`.
        observe: Learns from a step that has ended. Its view has fewer rows than that of `decide`:
            only sequences that emitted tokens.
        rooms: Other modules of specsim than `ROOMS` whose functions they call; when one changes,
            they are compiled again.
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
        """Whether they are machine code, which is made when this is first asked."""
        return all(loop.is_compiled for loop in self.loops.values())

    @contextmanager
    def as_python(self) -> Iterator[None]:
        """Let what is bound meanwhile run as Python, where an index out of range is an error."""
        for loop in self.loops.values():
            loop.may_compile = False
        try:
            yield
        finally:
            for loop in self.loops.values():
                loop.may_compile = True


def _of_both(function: Act) -> Callable[[Any], int]:
    """Return a function as one of a tuple of both arguments."""
    act = inner(function)

    def both(both: Any) -> int:
        act(both.seen, both.memory)
        return 0

    both.__name__, both.__module__ = function.__name__, function.__module__
    return both


def _raise(loop: Loop, seen: Any, memory: Any) -> int:
    """Raise what a loop does in Python, once its machine code has raised, which knows no text."""
    with catch_warnings():
        filterwarnings("error", "invalid value encountered in cast")  # of arrays numpy only warns
        loop.function(as_records(_Both(seen, memory, None)))
    raise RuntimeError(
        "its loops raised an error as machine code, and none as Python, where whole numbers may be "
        "of any size"
    )


class LoopMemory:
    """What a policy with loops remembers of one replica, and how Python asks it.

    The engine's loop asks it without Python where all that it is shown lies in tables.

    Args:
        loops: Of the policy.
        call: What calls them where they are Python, so that it is known whose they are.
        server: What `Policy.start` was told.
        pricing: What steps take.
        fields: Of its memory, as a `Desk` is given them; what is not given is scratch with room for
            all drafts of a step.
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
        """One row, in which the loops say what they say of a whole step."""
        self._views = Desk(View, step=self.step, pricing=pricing)
        self._room = self._num_requests = -1
        self._bound: dict[str, Hook] = {}
        self._shown: BatchView | None = None

    def bind(self, view: View, most: int, num_requests: int) -> dict[str, Hook]:
        """Return the loops over a view, for steps of so many of so many requests at most."""
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
        """Return a view of its own with a step, and with such drafts."""
        if drafts is None or batch is not self._shown:
            self._show_batch(batch)
        view = self._views.arrays
        if drafts is not None:
            num, stated = len(drafts.draft_lens), drafts.confidences
            view.confidences[: stated.size] = stated.ravel()
            view.draft_lens[:num], view.step["width"] = drafts.draft_lens, stated.shape[1]
        return view

    def show_outcome(self, outcome: StepOutcome) -> None:
        """Show what became of the drafts of a step that has ended."""
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
        """Run one of the loops over what is shown."""
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
        """Return the view with room for a step's requests, and these."""
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
