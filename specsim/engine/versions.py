"""Versions of vLLM: what their schedulers do differently, and from which one on.

Whatever differs between them is a field of `Rules`; the engine asks for it by name, and nothing
else knows of versions. Sources: vLLM 0.28.0 to 0.33.0 ``v1/core/`` and ``v1/core/sched/``.
"""

import re
from typing import Annotated, Any, Literal, NamedTuple, get_args

from pydantic import BeforeValidator


class Rules(NamedTuple):
    """What schedulers of some versions do, and of others not.

    Beside each, the version from which on it is so, and from which on it is no more.
    """

    pads_with_sample: Annotated[bool, "0.29"]
    """An admission of one token is padded with dummy drafts only where a position is left for the
    token that it will sample; before, one that drafts would not fit behind waited."""
    keeps_few_prefixes: Annotated[bool, "0.29"]
    """By default, sliding windows and states keep what they need where prompts end; before,
    wherever a hit may end (``prefix_cache_retention_interval``)."""
    pads_after_hits: Annotated[bool, "0.30"]
    """One with a cached prefix is padded, too, where no running request is in the step."""
    keeps_dropped: Annotated[bool, "0.30"]
    """Where hits drop their last block, a sliding window keeps what lies before the block before
    the end of a prompt, where such hits end; before, what lies before the end itself."""
    leaves_past_gaps: Annotated[bool, "0.30"]
    """All states that no later one begins from are given back; before, those between which and the
    newest of them there is none missing."""
    spares_in_flight: Annotated[bool, "0.30"]
    """Where blocks are given back late (KV connectors, asynchronously), nobody is preempted of whom
    a step is in flight; before, whoever was gave them back when that had come back, and, if KV
    entries are handed over, what it had sampled was dropped."""
    lone_runs_whole: Annotated[bool, "0.31"]
    """The long-prefill threshold does not hold for a request that is alone in the engine."""
    returns_first: Annotated[bool, "0.31"]
    """Who is preempted waits before all others; before, behind those that admission has passed over
    for their LoRA adapters."""
    drops_in_last: Annotated[bool, "0.31"]
    """With MTP, only KV cache groups with layers like the last drop the last block of a hit."""
    drops_where_drafted: Annotated[bool, "0.33"]
    """With EAGLE, too, only those with layers like the drafter's do, which are the last."""
    loads_first: Annotated[bool, "0.31"]
    """Of sequences that wait, those whose KV entries have been loaded are admitted first, but for a
    prompt of one token that waits for its LoRA adapter; before, by priority, each in its turn."""
    reserves_drafts: Annotated[bool, "0.31"]
    """Whoever begins to load leaves blocks for the first drafts, its own and those of prompts under
    way; before, for what is left of those prompts alone."""
    reserves_together: Annotated[bool, "0.32"]
    """What a load leaves to another prompt, whose blocks have to suffice for its first drafts, too,
    is counted for both as one; before, in blocks of their own."""
    looks_to_end: Annotated[bool, "0.32"]
    """Of several KV cache groups, those that drop their last block look for it up to the end of
    what is known; before, up to one token less."""
    leaves_state_early: Annotated[bool, "0.32"]
    """Of a prompt that ends right behind a block, the last state that it leaves to others is that
    one block before, which the same prompt can hit; before, that at the end, which it cannot."""
    claims_states: Annotated[bool, "0.32", "0.33"]
    """While a request computes what follows the last state that its prompt leaves to others, each
    of its steps counts as making that state anew, so that nobody is admitted who hits it."""
    hashes_look_ahead: Annotated[bool, "0.33"]
    """With EAGLE and MTP the identity of a block covers the token after it, which the drafter has
    read, so that the last block of a hit is good; before, it was dropped. KV connectors keep that
    (``config/vllm.py num_hash_lookahead_tokens``)."""
    passes_on: Annotated[bool, "0.33"]
    """By priority, a running request that is its own victim does not end the pass over those that
    run."""
    publishes_outputs: Annotated[bool, "0.33"]
    """With drafts, blocks are published when their tokens are known, not when the next step is
    scheduled; so those of a request that ends are (asynchronously they always were)."""
    keeps_below_junction: Annotated[bool, "0.33"]
    """Where hits drop their last block, a sliding window keeps what lies before the block below a
    junction, too."""
    skips_drafts: Annotated[bool, "0.33"]
    """In a step after which nobody can use drafts, an EAGLE or MTP head makes none: it only reads
    (``v1/worker/gpu/model_runner.py``; a draft model makes them nevertheless)."""

    counts_running_loras: Annotated[bool, "0.33"]
    """LoRA adapters of all that run count towards `max_loras`. Before, those of sequences in the
    step did, so that one that sits a step out let another adapter in, and vLLM stopped at an
    assertion of its own when both came into one step (here both are served)."""
    passes_over_short: Annotated[bool, "0.33"]
    """A waiting request of whose prompt no piece may be read, since several MTP modules would have
    too few tokens left behind it, does not end admission; before, it did."""
    ranks_requests: Annotated[bool, "0.33"]
    """What a request uses of host memory counts as used when it used any first, until it has ended;
    before, each block as used when it was stored (``v1/kv_offload/cpu/policies/lru.py``)."""
    offers_anew: Annotated[bool, "0.33"]
    """Who is admitted again offers host memory all that it has computed again; before, only what it
    had not offered."""
    drops_stored: Annotated[bool, "0.33"]
    """With EAGLE and MTP the last block that host memory has is not loaded, nor is the last one
    offered while its request decodes; before, where a model has one KV cache group, both were."""
    looks_up_on_gpu: Annotated[bool, "0.32"]
    """n-grams are looked up on the GPU, by the second model runner, which drafts all tokens for
    every request, whether or not it finds any (`ngram_gpu`)."""
    trims_ended: Annotated[bool, "0.33"]
    """Drafts that were accepted beyond the end of a request do not count as computed; before, they
    did, so that windows had left more when a KV connector was told of the end."""
    saves_inside: Annotated[bool, "0.32"]
    """Mamba2 and FlashKDA save a state inside a piece of a prefill; before, no layers did."""
    delta_nets_save_inside: Annotated[bool, "0.33"]
    """FlashInfer's delta nets do, too."""
    keeps_blocks_apart: Annotated[bool, "0.33"]
    """DFlash and DSpark, which draft in a pass of their own from what the target has read alone,
    drop no block of a hit and take no input slots; before, as an EAGLE head with a mask for each
    token (``config/speculative.py needs_eagle_block_drop, max_num_new_slots_for_drafting``)."""


NO_LIMITS = (
    *("keeps_few_prefixes", "drops_where_drafted", "hashes_look_ahead", "keeps_blocks_apart"),
    *("looks_up_on_gpu", "drops_stored", "saves_inside", "delta_nets_save_inside"),
)
"""Rules that decide what other limits are."""

SINCE = {
    "max_num_active_seqs": "0.31",
    "long_prefill_token_threshold_adaptive": "0.31",
    "prefill_schedule_interval": "0.33",
}
"""From which version on vLLM has a setting."""
OF_RANKS = {"prefill_schedule_interval"}
"""Those that data-parallel ranks of a mixture of experts have in all versions."""


def minor_version(given: Any) -> Any:
    """Return 0.33 for 0.33.0 as text, and 0.30 for 0.3, which YAML makes of it."""
    if isinstance(given, float) and given == round(given, 2):
        return f"{given:.2f}"
    return ".".join(given.split(".")[:2]) if isinstance(given, str) else given


_Known = Literal["0.28", "0.29", "0.30", "0.31", "0.32", "0.33"]
VllmVersion = Annotated[_Known, BeforeValidator(minor_version)]
DEFAULT_VERSION: VllmVersion = "0.33"


def _rules_of(version: str) -> Rules:
    spans = (each.__metadata__ for each in Rules.__annotations__.values())
    return Rules(*(since <= version < min(until, default="1") for since, *until in spans))


RULES: dict[str, Rules] = {version: _rules_of(version) for version in get_args(_Known)}


def nearest_version(given: Any) -> str:
    """Return the known version next to one, the oldest for 0.19.0; the default for None.

    A build between releases, which says no number, counts as old: such as were measured so far
    (SPECSIM_DATA/gpu-runs) are older than the oldest known.
    """
    if given is None:
        return DEFAULT_VERSION
    found = re.search(r"(\d+)\.(\d+)", str(minor_version(given)))
    if found is None:
        return min(RULES)
    major, minor = int(found[1]), int(found[2])
    if major:
        return max(RULES)
    return min(RULES, key=lambda known: abs(int(known.split(".")[1]) - minor))


def usual_utilization(given: Any) -> float:
    """Return the ``gpu_memory_utilization`` that a version has where none is set; None: default."""
    found = re.search(r"(\d+)\.(\d+)", str(minor_version(given)))
    return 0.9 if found and (int(found[1]), int(found[2])) < (0, 20) else 0.92
