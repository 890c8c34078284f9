"""Versions of vLLM: what their schedulers do differently, and from which one on.

Whatever differs between them is a field of `Rules`; the engine asks for it by name, and nothing
else knows of versions. Sources: vLLM 0.32.0 and 0.33.0 ``v1/core/`` and ``v1/core/sched/``.
"""

from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BeforeValidator


class Rules(NamedTuple):
    """What schedulers of some versions do, and of others not."""

    hashes_look_ahead: bool
    """With EAGLE and MTP the identity of a block covers the token after it, which the drafter has
    read, so that the last block of a hit is good; before, it was dropped. KV connectors keep that
    (``config/vllm.py num_hash_lookahead_tokens``)."""
    passes_on: bool
    """By priority, a running request that is its own victim does not end the pass over those that
    run."""
    publishes_outputs: bool
    """With drafts, blocks are published when their tokens are known, not when the next step is
    scheduled; so those of a request that ends are (asynchronously they always were)."""
    keeps_below_junction: bool
    """Where hits drop their last block, a sliding window keeps what lies before the block below a
    junction, too."""
    claims_states: bool
    """While a request computes what follows the last state that its prompt leaves to others, each
    of its steps counts as making that state anew, so that nobody is admitted who hits it."""
    skips_drafts: bool
    """In a step after which nobody can use drafts, an EAGLE or MTP head makes none: it only reads
    (``v1/worker/gpu/model_runner.py``; a draft model makes them nevertheless)."""


RULES = {
    "0.32": Rules(False, False, False, False, True, False),
    "0.33": Rules(True, True, True, True, False, True),
}


def minor_version(given: Any) -> Any:
    """Return 0.33 for 0.33.0, or for the number that YAML makes of it, as text."""
    text = str(given) if isinstance(given, str | float) and not isinstance(given, bool) else given
    return ".".join(text.split(".")[:2]) if isinstance(text, str) else given


VllmVersion = Annotated[Literal["0.32", "0.33"], BeforeValidator(minor_version)]
DEFAULT_VERSION: VllmVersion = "0.32"
