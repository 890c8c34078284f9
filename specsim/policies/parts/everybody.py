"""Decisions for all sequences of a step at once, and rules by which drafters stop."""

from math import floor, inf, log
from typing import NamedTuple, Protocol

from specsim.core.compiled import Rows, inner
from specsim.core.desk import Ints
from specsim.decisions.loops import View


@inner
def ask_all(view: View, k: int) -> None:
    """Set `lens` of every sequence to `k`."""
    for row in range(view.step[0].num_rows):
        view.lens[row] = k


@inner
def say_each(view: View, lens: Ints) -> None:
    """Set `lens` of each sequence to the given one."""
    for row in range(view.step[0].num_rows):
        view.lens[row] = lens[row]


@inner
def shown_tokens(view: View) -> int:
    """Return the sum of `view.draft_lens`, tokens."""
    tokens = 0
    for row in range(view.step[0].num_rows):
        tokens += view.draft_lens[row]
    return tokens


@inner
def verify_all(view: View) -> None:
    """Set `lens` so that every draft is verified whole."""
    for row in range(view.step[0].num_rows):
        view.lens[row] = view.draft_lens[row]


@inner
def let_go_of(view: View, everybody: bool, new_ones: bool) -> None:
    """Set `let_go` for every sequence, for those that the step admits (`new_ones`), or none."""
    for row in range(view.step[0].num_rows):
        view.let_go[row] = everybody or (new_ones and view.is_admitted[row])


class StopRule(Protocol):
    """Parameters of a rule that ends drafts."""

    threshold: float
    least_len: int  # tokens


class Stopping(NamedTuple):
    """The memory of a policy that learns nothing."""

    rule: Rows[StopRule]  # one row


@inner
def draft_on(view: View) -> None:
    """Ask for the longest drafts, and for a call of the policy's `stop`, which cuts them."""
    ask_all(view, view.step[0].max_draft_len)
    view.step[0].may_stop = 1


@inner
def least_entropy(likeliest: float) -> float:
    """Return the least entropy, nats, of a distribution whose largest probability is `likeliest`.

    Entropy is concave, so its minimum is at a corner: floor(1 / likeliest) outcomes of that
    probability, and one with the rest.
    """
    if likeliest <= 0.0:
        return inf
    whole = floor(1.0 / likeliest)
    rest = 1.0 - whole * likeliest
    entropy = -whole * likeliest * log(likeliest)
    return entropy - rest * log(rest) if rest > 1e-12 else entropy
