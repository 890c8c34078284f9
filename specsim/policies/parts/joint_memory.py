"""All that `joint` remembers of a replica."""

from typing import Annotated, Any, NamedTuple, Protocol

from numpy.typing import NDArray

from specsim.core.compiled import Rows
from specsim.core.desk import Flags, FloatRows, Floats, Ints
from specsim.decisions.loops import row_of
from specsim.policies.draft_goodput import Calibrating
from specsim.policies.parts.estimate import Fading
from specsim.policies.parts.exchange import Trade
from specsim.policies.parts.prospects import Seen

NEW, SERVED, TRIED, LET_GO = range(4)
"""What is in `Joining.states`."""
PRIOR_REQUESTS = 5.0
"""Requests that count for a prior: they are expected to decode for as many steps as"""
STEADY = 100.0
"""those over which a drafter has to be worth its upkeep."""


class JointState(Protocol):
    """Where it stands; flags are 0 or 1."""

    believed: float  # alpha before any draft
    prior: float  # in the long run; at first, what is believed
    num_trials: float  # that it is a mean of, the first few being a belief
    num_rows: int  # sequences that the verb is about
    width: int  # tokens of the longest draft that is shown
    has_confidences: int  # whether the drafter knows how sure it is
    drafts_alike: int  # whether all sequences draft equally many tokens
    has_found: int  # whether a lookup shows what it has found
    has_undrafted: int  # whether some sequences are left out
    has_seen_drafts: int
    """Whether drafts were looked at as they were made, and what is verified are parts of them."""
    may_stop: int
    """Where the drafter can stop as it drafts, what is drafted if it does not, else 0."""
    idle_steps: int  # since something was drafted that did not seem to pay
    is_probing: int  # whether this is such a step
    has_begun: int  # whether any step was decided about
    num_seen: int  # drafts that prospects are made of
    num_tried: int  # requests that were drafted for
    num_noted: int  # steps that these are means of, fading:
    batch: float  # sequences; and for each of them
    for_all: float
    """what drafting saves of a step of a server without a drafter (`exchange.saved_by`),"""
    with_prefills: float  # that less the drafter's prefills,
    batch_served: float  # and, over fewer steps, sequences, and for each of them
    for_served: float  # what it saves if it drafts for those alone whom it serves
    is_closed: int  # whether the drafter is not worth reading the prompts of more requests
    steps_since_new: int
    """Since a request was admitted, until which it may come to serve more of the batch."""
    is_off: int  # whether it is not worth its upkeep for those that it has read
    may_let_go: int  # whether it is ever asked whom the drafter lets go of
    pays: int  # whether drafting for all is, by what this step would gain, prefills included
    is_trying: int
    """Whether new requests are drafted for nevertheless, to see whether that pays by now;"""
    num_taken: int  # requests of this try,
    tries_left: int  # steps that are still to draft for them,
    try_loss: float  # share of a step that each such step costs,
    spent: float  # steps that the last try and what came of it have cost, more than they gained
    promise: float  # share of a step that would be gained if drafts were as good as believed


class Lives(Protocol):
    """For how many steps and tokens a prompt that was read is of use."""

    step: float
    age: float  # steps since the requests of the last step began, added up,
    running: float  # and how many these were
    admitted: float  # requests, fading,
    reading: float  # and seconds that the drafter would have read their prompts
    ended: float  # requests, fading,
    lived: float  # and the steps in which they decoded
    decoded: float  # sequences of all steps, fading,
    emitted: float  # and the tokens that they emitted


def no_lives() -> NDArray[Any]:
    """Return the prior."""
    lived = PRIOR_REQUESTS * STEADY
    return row_of(Lives, ended=PRIOR_REQUESTS, lived=lived, decoded=lived, emitted=lived)


class Joining(NamedTuple):
    """A step, and all that `joint` remembers."""

    requests: Ints
    in_prefill: Flags
    is_undrafted: Flags
    draft_lens: Ints
    accepted_lens: Ints
    confidences: Floats
    gains: Floats
    tokens: Floats
    gained: Floats
    trade: Annotated[Any, Trade]
    calibrating: Annotated[Any, Calibrating]
    seen: Annotated[Any, Seen]
    fading: Annotated[Any, Fading]
    misses: Floats
    """Squared errors, fading, of what requests are expected to accept, by how much of that is what
    all of them do."""
    kinds: Ints
    """Of each request: how its last drafts fared, in classes from poor to good. Text is easy or
    hard to draft for a while, which confidences know nothing of."""
    fates: FloatRows  # of each request: accepted tokens and trials, which fade with every draft
    begun: Floats  # of each request: the step it was admitted in
    states: Ints
    """Of each request: new to the drafter, served, tried though it was given up, or let go of."""
    len_kinds: Ints  # classes of drafts by their length
    let_go: Flags
    state: Rows[JointState]
    lives: Rows[Lives]
