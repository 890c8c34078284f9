"""Drafters that stop by themselves: what policies share that judge tokens as they are drafted."""

from math import floor, inf, log
from typing import NamedTuple, Protocol

from specsim.core.compiled import Rows, inner
from specsim.decisions.loops import View
from specsim.policies.parts.asking import ask_all


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
