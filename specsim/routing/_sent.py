"""What a router has sent to whom: an index of prefixes that nobody else has to tell it."""

from collections import OrderedDict
from collections.abc import Sequence

from specsim.core.request import BlockKey

Sent = OrderedDict[BlockKey, None]
"""Blocks of prompts that a replica was sent, the one sent longest ago first."""


def remember(keys: Sequence[BlockKey], sent: Sent, most: int) -> None:
    """Note the blocks of a prompt; of more than `most`, those sent longest ago are forgotten."""
    # The end of a prompt first, so that it is forgotten before what leads up to it.
    for key in reversed(keys):
        sent[key] = None
        sent.move_to_end(key)
    while len(sent) > most:
        sent.popitem(last=False)


def known_len(keys: Sequence[BlockKey], sent: Sent | None) -> int:
    """Return how many leading blocks of a prompt a replica was sent before."""
    if not sent:
        return 0
    return next((place for place, key in enumerate(keys) if key not in sent), len(keys))
