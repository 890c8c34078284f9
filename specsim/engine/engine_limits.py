"""Limits: what of a replica does not change, as one row of its table."""

from typing import Protocol

NOT_SKIPPED, SKIPPED, IDLE = range(3)
"""Of drafts that nobody can use: they are made; the scheduler says that they need not be; and the
drafter heeds it."""


class Limits(Protocol):
    """Everything that bounds a step, in vLLM's own terms, and how the engine runs."""

    max_num_scheduled_tokens: int
    max_num_batched_tokens: int
    max_num_running: int  # vLLM's max_num_seqs, or max_num_active_seqs where that is given
    max_model_len: int
    num_blocks: int
    num_groups: int
    has_windows: int  # whether blocks of a sequence that runs may be given back
    state_block_size: int
    """Tokens after which a state is kept for others, where prefills stop; 0 if none is kept."""
    common_block_size: int  # tokens after which blocks of all groups end
    blocks_per_common: int  # blocks of all groups that hold so many tokens
    hash_block_size: int  # tokens after which the identity of a prefix is computed
    enable_prefix_caching: int
    drops_last_hit: int
    """EAGLE-type drafters recompute the last block of a hit to have its hidden states."""
    hash_lookahead_len: int
    """Tokens after a block that its identity covers, `versions.Rules.hashes_look_ahead`."""
    saves_inside: int  # whether a state is saved inside the last piece of a prefill
    reread_len: int
    """Tokens at the end of what is computed that the later of several MTP modules read once more
    with the next step: each looks one token further ahead than the one before it. So many or fewer
    are never left of a prompt, and they are not published."""
    passes_on: int  # these are of `specsim.engine.versions.Rules`
    publishes_outputs: int
    keeps_below_junction: int
    claims_states: int
    spares_in_flight: int
    loads_first: int
    trims_ended: int
    reserves_drafts: int
    reserves_together: int
    looks_to_end: int
    leaves_state_early: int
    lone_runs_whole: int
    returns_first: int
    keeps_dropped: int
    leaves_past_gaps: int
    pads_after_hits: int
    pads_with_sample: int
    counts_running_loras: int
    passes_over_short: int
    ranks_requests: int
    offers_anew: int
    drops_stored: int
    skips_drafts: int  # `NOT_SKIPPED`, `SKIPPED` or `IDLE`
    drops_in_last: int  # whether only the groups that the last layer's bucket has drop it
    retention_len: int
    """Tokens after which a sliding window's prefix is kept for others (vLLM: prefix cache retention
    interval); 0 where prompts end only, -1 wherever a hit may end."""
    watermark_blocks: int
    reserve_full_prompt: int
    by_priority: int
    max_loras: int  # LoRA adapters that a step may serve, and that the GPU holds; 0: any
    max_cpu_loras: int  # that host memory holds
    enable_chunked_prefill: int
    long_prefill_token_threshold: int
    long_prefill_token_threshold_adaptive: int
    prefill_interval: int  # steps of which one may read prompts, while anybody decodes
    counts_passes: int  # whether these are passes that data-parallel ranks make together
    charges_alone: int  # whether a rank in lock-step says itself what its own pass would take
    max_draft_len: int
    lookahead_len: int  # extra KV slots per sequence that the drafting method writes to
    draft_slots: int  # input slots that the drafting method takes per scheduled sequence
    pads_admissions: int
    """Whether an admission that has one token to compute is padded with dummy drafts."""
    expands_batch: int
    """Whether every draft token reads the whole context again to be verified (vLLM V0)."""
    prefill_first: int  # whether waiting prompts run first, in a step of their own (vLLM V0)
    asks_last: int  # whether it is known what a step accepts before drafts are asked for
    overlaps: int  # whether drafts are made while the target verifies those before
    depth: int  # steps in flight at once
    decode_stagger: int  # steps from a decode of a sequence to its next one: stages of a pipeline
    land_at: int  # where in the order of the verbs a step that has been launched comes back
    leaves_out: int  # whether the drafter may leave out prompts; such a sequence `is_undrafted`
    drafts_alike: int  # whether drafts of a step that may differ are made equally long
    sees_confidences: int  # whether a policy that is loops is shown how sure the drafter is
    shows_drafts: int  # and that before it says how much of what a lookup finds it takes
    charges_pieces: int  # whether the target's time depends on each sequence, not on sums only
    has_offers: int  # whether a proposer comes up with fewer drafts than asked for, by a table
    keeps_steps: int
    keeps_deliveries: int
    announces_ends: int  # whether somebody waits for requests to end
    num_tiers: int  # behind the GPU's cache
    host_blocks: int
    disk_blocks: int
    offloads_outputs: int  # whether the tiers get more than prompts
    num_full_groups: int  # groups of full attention, which tiers are asked about first
    aligned_len: int  # tokens after which their blocks end, where the tail of a window may
    most_holding: int  # sequences that may hold blocks at once
    holds_ended: int  # whether blocks of what has ended are kept until they have been read
    lacks_loaded: int  # whether the drafter has no entries of what has been loaded
    skips_loaded: int  # whether it then serves no such sequence, rather than reading it first
    has_connector: int  # whether KV entries come from elsewhere, or go there
    defers_frees: int
    """Whether blocks are given back only after all steps that write to them have come back."""
    valid_context_tokens: int  # beyond which the costs are extrapolated
    valid_batched_tokens: int
