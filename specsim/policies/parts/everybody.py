"""What loops see and say of all sequences of a step at once, and when they let drafters stop."""

from math import floor, inf, log
from typing import NamedTuple, Protocol

from specsim.core.compiled import Rows, inner
from specsim.core.desk import Ints
from specsim.decisions.loops import View


@inner
def ask_all(view: View, k: int) -> None:
    """Have every sequence draft so many tokens."""
    for row in range(view.step[0].num_rows):
        view.lens[row] = k


@inner
def say_each(view: View, lens: Ints) -> None:
    """Have each sequence draft, or be verified, as many tokens as are given for it."""
    for row in range(view.step[0].num_rows):
        view.lens[row] = lens[row]


@inner
def shown_tokens(view: View) -> int:
    """Return how many tokens the drafts have that are shown."""
    tokens = 0
    for row in range(view.step[0].num_rows):
        tokens += view.draft_lens[row]
    return tokens


@inner
def verify_all(view: View) -> None:
    """Have all be verified that was drafted."""
    for row in range(view.step[0].num_rows):
        view.lens[row] = view.draft_lens[row]


@inner
def let_go_of(view: View, everybody: bool, new_ones: bool) -> None:
    """Let go of everybody, or of whom the step admits, or of nobody."""
    for row in range(view.step[0].num_rows):
        view.let_go[row] = everybody or (new_ones and view.is_admitted[row])


class StopRule(Protocol):
    """When drafts end."""

    threshold: float
    least_len: int  # tokens


class Stopping(NamedTuple):
    """What a policy remembers that learns nothing."""

    rule: Rows[StopRule]  # one row


@inner
def draft_on(view: View) -> None:
    """Ask for the longest drafts, which the policy's `stop` is to cut."""
    ask_all(view, view.step[0].max_draft_len)
    view.step[0].may_stop = 1


@inner
def least_entropy(likeliest: float) -> float:
    """Return the least entropy of a distribution whose likeliest outcome is so likely, in nats.

    Entropy is concave, so it is least at a corner: as many outcomes as likely as that as there is
    room for, and one with the rest.
    """
    if likeliest <= 0.0:
        return inf
    whole = floor(1.0 / likeliest)
    rest = 1.0 - whole * likeliest
    entropy = -whole * likeliest * log(likeliest)
    return entropy - rest * log(rest) if rest > 1e-12 else entropy
