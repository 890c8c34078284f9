"""The desk of `joint`: a step, and all that it remembers."""

from typing import Annotated, Any, NamedTuple

from specsim.core.desk import Flags, FloatRows, Floats, Ints
from specsim.policies._estimate import Fading
from specsim.policies._exchange import TRADE_ROOMS, Trade
from specsim.policies._prospects import Seen
from specsim.policies.draft_goodput import Calibrating

NEW, SERVED, LET_GO = range(3)
"""What is in `Joining.states`."""
HAS_SEEN_DRAFTS, IDLE_STEPS, IS_PROBING, SEEN, NOTED, PRIOR, NUM_STATES = 0, 1, 2, 3, 4, 5, 15
"""Places of `Joining.state`: whether drafts were looked at as they were made, and what is verified
are parts of them; steps since something was drafted that did not seem to pay; whether this is such
a step; drafts that prospects are made of; steps that gains are means of; alpha before any draft."""
FOR_ALL, WITH_PREFILLS, FOR_SERVED = range(6, 9)
"""And what drafting is worth more than a server without a drafter, over what a step is worth, as
means over steps, fading: for all; for all, with the drafter's prefills; for whom it serves."""
IS_CLOSED, STEPS_SINCE_NEW, IS_OFF, PROBE, PROBES_LEFT, MAY_STOP = range(9, 15)
"""And whether the drafter is not worth reading the prompts of more requests; steps since one was
admitted, until which it may come to serve more of the batch; whether it is not worth its upkeep for
those that it has read; a request that is drafted for nevertheless, to see whether that pays by now,
or -1; drafts that are to be made for it; and, where the drafter can stop as it drafts, what is
drafted if it does not, else 0."""
NUM, WIDTH, HAS_CONFIDENCES, HAS_FOUND, HAS_UNDRAFTED, VERB = range(6)
"""Places of `Joining.sizes`: sequences; tokens of the longest draft; whether the drafter knows
confidences, a lookup shows what it has found, and some are left out; what is to be done."""
DROPS, DRAFTS, STOPS, VERIFIES, LEARNS = range(5)
"""Verbs."""


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
    kinds: Ints
    """Of each request: how its last drafts fared, in classes from poor to good. Text is easy or
    hard to draft for a while, which confidences know nothing of."""
    fates: FloatRows
    """Of each request: accepted tokens and trials, which fade with every draft."""
    begun: Floats
    """Of each request: the step it was admitted in."""
    states: Ints
    """Of each request: new to the drafter, served, or let go of."""
    len_kinds: Ints
    """Classes of drafts by their length."""
    let_go: Flags
    state: Floats
    lives: Floats
    """See `specsim.policies._lives`."""
    sizes: Ints


_IN_POLICIES = (
    "_joining",
    "_joint_desk",
    "_serving",
    "_estimate",
    "_lives",
    "_prospects",
    "draft_goodput",
)
JOINING_ROOMS = (*TRADE_ROOMS, *(f"specsim.policies.{room}" for room in _IN_POLICIES))
"""Modules whose functions a loop on a `Joining` calls."""
