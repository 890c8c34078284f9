"""Versions of vLLM: what their schedulers do differently, and from which one on.

Whatever differs between them is a field of `Rules`; the engine asks for it by name, and nothing
else knows of versions. Sources: vLLM 0.28.0 to 0.33.0 ``v1/core/`` and ``v1/core/sched/``.
"""

import re
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BeforeValidator


class Rules(NamedTuple):
    """What schedulers of some versions do, and of others not."""

    pads_with_sample: bool
    """An admission of one token is padded with dummy drafts only where a position is left for the
    token that it will sample; before, one that drafts would not fit behind waited."""
    keeps_few_prefixes: bool
    """By default, sliding windows and states keep what they need where prompts end; before,
    wherever a hit may end (``prefix_cache_retention_interval``)."""
    pads_after_hits: bool
    """One with a cached prefix is padded, too, where no running request is in the step."""
    keeps_dropped: bool
    """Where hits drop their last block, a sliding window keeps what lies before the block before
    the end of a prompt, where such hits end; before, what lies before the end itself."""
    leaves_past_gaps: bool
    """All states that no later one begins from are given back; before, those between which and the
    newest of them there is none missing."""
    spares_in_flight: bool
    """Where blocks are given back late (KV connectors, asynchronously), nobody is preempted of whom
    a step is in flight; before, whoever was gave them back when that had come back, and, if KV
    entries are handed over, what it had sampled was dropped."""
    lone_runs_whole: bool
    """The long-prefill threshold does not hold for a request that is alone in the engine."""
    returns_first: bool
    """Who is preempted waits before all others; before, behind those that admission has passed over
    for their LoRA adapters."""
    drops_in_last: bool
    """With MTP, only KV cache groups with layers like the last drop the last block of a hit."""
    drops_where_drafted: bool
    """With EAGLE, too, only those with layers like the drafter's do, which are the last."""
    loads_first: bool
    """Of sequences that wait, those whose KV entries have been loaded are admitted first, but for a
    prompt of one token that waits for its LoRA adapter; before, by priority, each in its turn."""
    reserves_drafts: bool
    """Whoever begins to load leaves blocks for the first drafts, its own and those of prompts under
    way; before, for what is left of those prompts alone."""
    reserves_together: bool
    """What a load leaves to another prompt, whose blocks have to suffice for its first drafts, too,
    is counted for both as one; before, in blocks of their own."""
    looks_to_end: bool
    """Of several KV cache groups, those that drop their last block look for it up to the end of
    what is known; before, up to one token less."""
    leaves_state_early: bool
    """Of a prompt that ends right behind a block, the last state that it leaves to others is that
    one block before, which the same prompt can hit; before, that at the end, which it cannot."""
    claims_states: bool
    """While a request computes what follows the last state that its prompt leaves to others, each
    of its steps counts as making that state anew, so that nobody is admitted who hits it."""
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
    skips_drafts: bool
    """In a step after which nobody can use drafts, an EAGLE or MTP head makes none: it only reads
    (``v1/worker/gpu/model_runner.py``; a draft model makes them nevertheless)."""

    counts_running_loras: bool
    """LoRA adapters of all that run count towards `max_loras`. Before, those of sequences in the
    step did, so that one that sits a step out let another adapter in, and vLLM stopped at an
    assertion of its own when both came into one step (here both are served)."""
    passes_over_short: bool
    """A waiting request of whose prompt no piece may be read, since several MTP modules would have
    too few tokens left behind it, does not end admission; before, it did."""
    ranks_requests: bool
    """What a request uses of host memory counts as used when it used any first, until it has ended;
    before, each block as used when it was stored (``v1/kv_offload/cpu/policies/lru.py``)."""
    offers_anew: bool
    """Who is admitted again offers host memory all that it has computed again; before, only what it
    had not offered."""
    drops_stored: bool
    """With EAGLE and MTP the last block that host memory has is not loaded, nor is the last one
    offered while its request decodes; before, where a model has one KV cache group, both were."""
    looks_up_on_gpu: bool
    """n-grams are looked up on the GPU, by the second model runner, which drafts all tokens for
    every request, whether or not it finds any (`ngram_gpu`)."""
    trims_ended: bool
    """Drafts that were accepted beyond the end of a request do not count as computed; before, they
    did, so that windows had left more when a KV connector was told of the end."""
    saves_inside: bool
    """Mamba2 and FlashKDA save a state inside a piece of a prefill; before, no layers did."""
    delta_nets_save_inside: bool
    """FlashInfer's delta nets do, too."""
    keeps_blocks_apart: bool
    """DFlash and DSpark, which draft in a pass of their own from what the target has read alone,
    drop no block of a hit and take no input slots; before, as an EAGLE head with a mask for each
    token (``config/speculative.py needs_eagle_block_drop, max_num_new_slots_for_drafting``)."""


NO_LIMITS = (
    *("keeps_few_prefixes", "drops_where_drafted", "hashes_look_ahead", "keeps_blocks_apart"),
    *("looks_up_on_gpu", "drops_stored", "saves_inside", "delta_nets_save_inside"),
)
"""Rules that decide what other limits are."""

_0_28 = Rules(*[False] * len(Rules._fields))
_0_29 = _0_28._replace(pads_with_sample=True, keeps_few_prefixes=True)
_0_30 = _0_29._replace(
    pads_after_hits=True, keeps_dropped=True, leaves_past_gaps=True, spares_in_flight=True
)
_0_31 = _0_30._replace(
    lone_runs_whole=True,
    returns_first=True,
    drops_in_last=True,
    loads_first=True,
    reserves_drafts=True,
)
_0_32 = _0_31._replace(
    reserves_together=True,
    looks_to_end=True,
    leaves_state_early=True,
    claims_states=True,
    looks_up_on_gpu=True,
    saves_inside=True,
)
_0_33 = _0_32._replace(
    drops_where_drafted=True,
    hashes_look_ahead=True,
    passes_on=True,
    publishes_outputs=True,
    keeps_below_junction=True,
    claims_states=False,
    skips_drafts=True,
    counts_running_loras=True,
    passes_over_short=True,
    ranks_requests=True,
    offers_anew=True,
    drops_stored=True,
    trims_ended=True,
    delta_nets_save_inside=True,
    keeps_blocks_apart=True,
)
RULES = {"0.28": _0_28, "0.29": _0_29, "0.30": _0_30, "0.31": _0_31, "0.32": _0_32, "0.33": _0_33}
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


VllmVersion = Annotated[
    Literal["0.28", "0.29", "0.30", "0.31", "0.32", "0.33"], BeforeValidator(minor_version)
]
DEFAULT_VERSION: VllmVersion = "0.33"


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
