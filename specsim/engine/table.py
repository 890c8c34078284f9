"""The state of one replica, as a tuple of arrays that compiled loops work on.

    sequences   a row per live sequence; rows are used again
    queue       waiting rows as a heap, if scheduled by priority; else they are a linked list
    running     running rows, in order of admission
    entries     what each sequence of a step processes and emits; a ring of steps
    steps       one record of each step in flight
    blocks      the KV blocks: the free queue and the index of prefixes are links in here
    tables      block ids of each running sequence and KV cache group
    *_out       rows of results until they are flushed

Rows of a record array are views: ``sequence = table.sequences[row]`` and then
``sequence.known_len += 1`` changes the table. All lengths are tokens, all flags 0 or 1.
"""

from typing import Any, NamedTuple, Protocol, get_args, get_origin, get_type_hints

import numpy as np
from numpy.typing import NDArray

from specsim.core.compiled import Rows, Types, element_of, record_of, types_of
from specsim.decisions.loops import Asking, View
from specsim.engine.engine_limits import Limits
from specsim.results.records import GAP_FIELDS, REQUEST_FIELDS, SECOND_FIELDS, TOTAL_FIELDS

NEVER = 1 << 62
"""A length that no sequence reaches."""
NO_ROW = -1
NO_BLOCK = 0
"""Block 0 is a permanent null block, as in vLLM, so it can stand for "no block"."""
NO_KEY = 1 << 62
"""Key of a block that is not in the prefix cache."""

FULL, SLIDING, CHUNKED, STATE = range(4)
"""Kinds of KV cache groups, as in `specsim.hardware.kv_groups.KINDS`."""

FREE, WAITING, RUNNING, FINISHED, LOADING, LOADED, WITHDRAWN = range(7)
"""Status of a row of `sequences`. FREE: unused. FINISHED: ended, but a step is in flight or its
blocks are still to be read. LOADING, LOADED: has blocks into which KV entries are being, or have
been, loaded (vLLM: WAITING_FOR_REMOTE_KVS). WITHDRAWN: its client has gone, and
`specsim.engine.order.drop` will remove it."""

REQUEST, LOAD_ENDED, LOAD_FAILED, BLOCKS_READ = range(4)
"""Kinds of arrivals: a new request, or news of a load, or blocks kept for a reader were read."""
LOAD_BEGINS, BLOCKS_HELD = range(2)
"""Kinds of notices: a load begins, or the blocks of an ended request are kept to be read."""


class Sequence(Protocol):
    """The state of one request in the engine, from its arrival until its last step comes back.

    There is no prefill or decode phase. A sequence has `computed_len` tokens with KV entries, and
    asks every step to compute the rest:

        known_len + draft_len + placeholder_len - computed_len

    tokens, be they of the prompt, the last sampled token or drafts.
    """

    request: int  # index of its request
    status: int
    arrived_at: float
    first_scheduled_at: float
    first_token_at: float
    delivered_at: float  # time of its last delivery of tokens
    prompt_len: int
    requested_len: int  # prompt plus max_tokens
    max_len: int  # length at which it ends
    known_len: int  # prompt tokens plus output tokens delivered so far
    computed_len: int  # tokens scheduled so far, drafts in flight included
    draft_len: int  # draft tokens to verify in its next step
    placeholder_len: int
    """Output tokens in flight that are counted as computed (asynchronous scheduling)."""
    decodes_from: int  # index of the first step that may hold its next decode (pipeline stages)
    sampled_at: float  # when the last pipeline stage has sampled its last token
    in_chunk: int  # in mid-prefill: its last scheduled piece stopped short of the known tokens
    tables_at: int  # its first block table in `tables` and `holdings`, one per group; -1: none
    capacity_len: int
    """Length up to which it needs no block allocation, nor frees one that leaves a window."""
    next_publish_len: int  # length at which the next block can be put into the prefix cache
    cached_len: int  # prefix-cache hit of its first admission
    admissions: int
    preemptions: int
    preempted_in: int  # index of the step that last preempted it
    preempted_as: int  # sequences that this step had preempted before it
    requeues: int  # replicas that failed while they had it
    in_flight_len: int  # its tokens in steps that have been scheduled and have not come back
    next_row: int  # in the queue; of an unused row, in the list of unused rows
    previous_row: int
    passed_as: int
    """Running number given when admission passed it over or its load began; 0 if neither has
    happened since it began to wait."""
    drafter: int  # which of several drafters serves it
    is_undrafted: int
    """Whether the drafter no longer serves it (`Policy.drops`), so that it is never drafted for."""
    fate_at: int  # where its accepted lengths by output position begin in `fates`
    deliveries: int
    drafts: int
    draft_tokens: int
    accepted_tokens: int
    junction_len: int  # how far a prefix was cached in some groups, but not in all of them
    external_len: int  # tokens whose KV entries another replica has, and which are to be loaded
    is_sending: int  # whether it has ended, and its blocks are kept until they have been read
    fence: int  # 1 + index of the step after which its blocks are given back; 0: none
    use: int  # running number of its use of the offload tiers; 0 before the first
    loads_from: int  # tokens computed before its last load, which begins there
    load_blocks: int  # KV blocks that this load fills, in all groups
    disk_blocks: int  # of those, blocks that only the disk tier has
    left_len: int  # tokens whose blocks the tiers are offered when it has ended
    is_left: int  # whether it has ended, and these blocks have not been offered yet


class Fact(Protocol):
    """What does not change about a request; one row for all replicas."""

    prompt_len: int
    output_len: int
    max_tokens: int  # limit of the request, at least output_len; the scheduler plans for it
    priority: int
    adapter: int  # LoRA adapter that it is for; 0: none
    rank: int  # place of its id among all ids, which breaks ties of priority
    key_at: int  # where its shared block keys begin
    num_keys: int
    output_at: int
    """Output tokens of all requests before it: where it begins in arrays by output position."""


class Arrival(Protocol):
    """A new request, or news of one, that the engine has not looked at yet."""

    at: float
    request: int
    row: int  # its row in `sequences`, if it has one already; else `NO_ROW`
    kind: int
    external_len: int


class Notice(Protocol):
    """A transfer of KV entries that has to be done outside the engine for a row."""

    kind: int
    at: float
    request: int
    row: int
    tokens: int  # to be loaded, or held
    blocks: int  # KV blocks to be loaded, in all groups
    disk_blocks: int  # of those, blocks that only the disk tier has


class Entry(Protocol):
    """One sequence of a step."""

    row: int
    request: int
    start: int  # tokens with KV entries before the step
    scheduled_len: int  # tokens to process, drafts included
    prefill_len: int  # of those, tokens of a prefill
    draft_len: int  # of those, draft tokens
    verified_len: int  # draft tokens that are verified: all, unless the policy trims the step
    read_anew: int  # context tokens that each draft token reads again under batch expansion
    is_partial: int  # whether it ends before the last known token, so that it emits nothing
    is_padded: int  # whether it was admitted with dummy drafts, which are never accepted
    is_resumed: int  # whether the step admits it after a preemption
    is_admitted: int  # whether the step admits it for the first time
    is_loaded: int  # whether the step admits it after a load
    accepted_len: int
    emitted_len: int
    asked_len: int  # draft tokens asked of the drafter at the end of the step
    offered_len: int  # draft tokens that it proposes, to be verified in the next step
    found_len: int  # draft tokens that a lookup has found, before the policy cuts them
    unread_len: int  # tokens cached for the target only, which the drafter has to read itself


class Step(Protocol):
    """One step: its load, its times and its results."""

    index: int
    num_requests: int  # sequences in it
    scheduled_at: float
    started_at: float  # when the GPU begins with it
    ended_at: float  # when its tokens are delivered
    target_time: float
    draft_time: float  # time that drafting adds to the step
    drafter_time: float  # time that the drafter works, part of it perhaps beside the target
    overhead_time: float
    verified_draft_time: float  # `draft_time` of the step that made the drafts verified here
    own_context_tokens: int  # KV entries that exist when it starts, over its sequences
    context_tokens: int  # KV entries that it reads: under batch expansion once more per draft token
    batched_tokens: int
    prefill_tokens: int
    drafter_context_tokens: int  # load of the drafter after this step, like the next three
    drafter_batched_tokens: int
    drafter_prefill_tokens: int
    drafter_requests: int
    tokens_left: int  # what is left of max_num_scheduled_tokens while sequences are added
    inputs_left: int  # what is left of max_num_batched_tokens, from which draft slots are paid, too
    piece_limit: int  # most tokens that one sequence may get
    num_adapters: int  # LoRA adapters that it serves, where `Limits.max_loras` bounds them
    defers_prefills: int  # whether it reads no prompts (vLLM: prefill_schedule_interval)
    defers_decodes: int  # whether a sequence must wait for a later step to decode (pipeline)
    admits_prefill: int  # whether it admits a sequence that misses more than its last token
    has_chunk: int  # whether it continues the prefill of a running sequence
    num_running: int
    num_waiting: int
    free_blocks: int
    preemptions: int
    skips_drafts: int  # `engine_limits.SKIPPED` or `IDLE` if no sequence can use drafts
    drafts_on_top: int  # whether drafts came on top of the token budget (vLLM V0)
    alpha_estimate: float  # the policy's estimate of alpha at the end of the step
    drafts: int  # here and in the next five, without sequences that ended before it came back
    draft_tokens: int
    accepted_tokens: int
    output_tokens: int
    deliveries: int
    asked_tokens: int
    asked_draft_len: float  # mean over its sequences, tokens


class Block(Protocol):
    """One KV block."""

    key: int  # identity of its content in the prefix cache; `NO_KEY` if it is not in there
    holders: int  # sequences that hold it; kept for cached blocks only
    following: int  # next in the free queue; of the null block, the first in the queue
    preceding: int  # previous in the free queue; of the null block, the last in the queue
    next_alike: int
    """Next block, by time of publication, whose key has the same hash in `chains`."""


class BlockNote(Protocol):
    """Further fields of a KV block, which few servers need.

    They are apart from `Block` to keep that small: the blocks of a large cache seldom fit into the
    processor's cache.
    """

    is_undrafted: int
    """Whether the drafter lacks KV entries for its tokens; kept only where `Policy.drops` may
    leave out prompts and prefixes are cached."""
    published_in: int
    """Index of the step in which a state with its key was last published."""
    shown_in: int
    """Index of the step in which a sequence last got it, once the tiers have been told."""


class Group(Protocol):
    """Layers that share a block table (vLLM: KV cache group); see `specsim.hardware.kv_groups`."""

    kind: int  # one of `FULL`, `SLIDING`, `CHUNKED` and `STATE`
    span_len: int  # window or chunk
    block_size: int
    hashes: int  # prefix hashes per block
    most_admitted: int  # most blocks that an admission counts on
    drops: int  # whether the last block of a prefix-cache hit is dropped and recomputed
    shift: int  # of a window: blocks dropped from the end of its tail, 0 or 1; of a state 0
    tail_blocks: int  # blocks that a sliding window needs of a prefix, the one dropped included
    wanted_blocks: int  # scratch: blocks that a sequence is to hold after an allocation
    period: int  # blocks after which such a tail is kept; 1 if all are, 0 if none
    num_spare: int  # of a state: further blocks, for the states after each draft token
    saved_len: int  # scratch: length at which a step saves a state inside its piece; 0: none


class Bucket(Protocol):
    """Groups of one kind, which are looked up together; those of full attention come first."""

    first: int  # number of its first group
    last: int  # one more than the number of its last group
    found_len: int  # scratch: cached tokens of a prefix; -1 before it was looked up
    has_dropped: int  # scratch: whether the last block has been dropped from those


class TierGroup(Protocol):
    """Which blocks of a group the offload tiers are offered, and which are loaded."""

    looked_up: int  # number of the group that comes at this place in the order of lookups
    has_drafter: int  # whether its last block may yet change, as drafts are rejected
    has_dropped: int  # scratch: whether a lookup has dropped that last block
    window_blocks: int  # of a sliding window: blocks that a hit has to end with
    read_len: int  # tokens before a hit's end that the window reads
    period: int  # blocks after which a tail is offered; 1 if all are, 0 if none
    tail_blocks: int  # blocks of such a tail
    segment_blocks: int  # blocks per block of full attention, to whose end the last tail may move


class GroupOffers(Protocol):
    """What the tiers have been told of a sequence's blocks in one group."""

    next_place: int  # place in its block table of the first block that may yet be offered
    num_shown: int  # blocks of its table that the tiers have been told of


class Place(Protocol):
    """What the tiers have been told of one place in the block table of a sequence."""

    block: int  # the block that was there then; the null block if it is there no longer
    shown_in: int  # index of the step that told the tiers
    is_used: int  # whether the sequence has offered or loaded the stored copy


class Pick(Protocol):
    """A block of a sequence that is offered to the tiers, or loaded from them, right now."""

    key: int
    group: int
    number: int  # of the prefix up to its end, as in `specsim.engine.blocks.prefix_key`
    place: int  # in the block table of the sequence
    is_first: int  # whether the sequence uses it for the first time


class Stored(Protocol):
    """Room for one KV block in a tier; row 0 is unused."""

    key: int
    rank: int  # the lowest is evicted first; negative where nothing is stored
    heap_at: int  # its place in the heap of rows that may be evicted; -1 if it may not be
    held_for: int  # why it may not be evicted: `specsim.engine.tiers.READING`, or `WRITING`
    next_written: int
    offered_in: int  # number of the last offer that included it
    next_alike: int


class Adapter(Protocol):
    """One LoRA adapter; its number is its place in `adapters`."""

    scheduled_in: int  # index of the last step that serves it
    charged_in: int  # index of the last step that it was made ready for
    active_at: int  # running number of its last use, if it is on the GPU; 0 if not
    held_at: int  # running number of its last use, if it is in host memory; 0 if not


class Holding(Protocol):
    """The blocks of one sequence in one group."""

    num_blocks: int  # entries of its block table, those that have left the window included
    null_blocks: int  # leading entries that have left the window
    published_blocks: int  # entries that are in the prefix cache, or were considered for it
    has_taken: int  # of a state: whether it has blocks beyond those of its prefix-cache hit
    last_state: int  # of a state: place of the state before; -1 if there is none
    saved_len: int  # length at which the last step saves a state inside its piece; 0: none
    saved_at: int  # place of that state, which need not be that of a block ending at `saved_len`


class Stage(Protocol):
    """A pipeline stage: GPUs that hold some of the layers."""

    share: float  # of the time of a forward pass
    free_at: float


class State(Protocol):
    """The scalars of a replica: its clock, its place in the verbs, and counters."""

    place: int  # place in `order` of the next verb
    now: float
    until: float  # next instant at which something outside may happen; the replica stops before it
    next_at: float  # when the engine acts next by itself
    origin: float  # first arrival of the run
    comes_by: float  # of a rank in lock-step: `until`, for the next common forward pass
    pass_time: float  # target time of that pass for this rank alone; later, for all ranks together
    pass_overhead: float  # overhead of that pass, likewise
    pass_tokens: int  # batched tokens of this rank in that pass
    pass_state: int  # `specsim.engine.order.FAR`, ...
    is_midway: int  # whether the rank resumes after a verb done in Python
    gpu_free_at: float
    slowness: float  # factor on all times, 1 at normal speed
    num_loading: int  # rows in `loading`
    is_stuck: int  # whether the last step was empty, and nothing has happened since
    noted_late: int  # sequences that were preempted since a step was last written to the results
    preempted_in_vain: int  # preemptions since a token was last emitted
    num_running: int
    most_run: int  # running sequences that a step may hold, in order of admission
    num_waiting: int
    num_passed_over: int  # waiting sequences that admission has passed over
    num_passed: int  # running number for `Sequence.passed_as`
    queue_head: int
    queue_tail: int
    free_row: int  # first unused row; unused rows are a linked list
    fenced_head: int  # first row that has ended and has a fence, of a linked list
    fenced_tail: int
    num_free_tables: int
    num_free: int  # free KV blocks
    blocks_used: int  # 1 + the highest number of a block that was ever taken
    num_steps: int
    num_executed: int  # steps that had tokens
    prefills_from: int  # value of `num_executed` from which on prompts may be read again
    num_passes: int  # common passes of the ranks since all were idle
    is_backed_up: int
    """Whether requests waited for room after the last step that could read prompts."""
    adapter_uses: int  # counter of uses of LoRA adapters, which orders them
    num_active: int  # LoRA adapters on the GPU
    num_held: int  # LoRA adapters in host memory
    num_uses: int  # counter of uses of the tiers, which orders them
    num_offers: int  # counter of offers to the tiers
    num_ended: int  # rows in `ended`
    num_picked: int  # rows in `picks`
    num_empty: int  # steps in a row that were empty when a policy in loops was asked
    has_left_out: int  # whether the drafter has ever skipped tokens that the target read
    has_unflushed: int  # whether a request has ended since the last schedule
    in_flight: int  # steps that have been launched and have not come back
    current: int  # place in the ring of the step that the verbs are about
    oldest: int  # place in the ring of the step that comes back next
    num_arrivals: int
    first_arrival: int  # place of the first arrival that is not queued yet
    unannounced: int  # notices and ended requests that have not been announced yet
    num_notices: int
    steps_len: int  # rows in the buffers
    requests_len: int
    gaps_len: int
    seconds_len: int


class Table(NamedTuple):
    """The arrays that the verbs work on."""

    limits: Rows[Limits]
    state: Rows[State]
    sequences: Rows[Sequence]
    blank_sequence: Rows[Sequence]  # one row: a request that is new
    blank_entry: Rows[Entry]  # one row of zeros
    blank_step: Rows[Step]  # one row of zeros
    facts: Rows[Fact]
    arrivals: Rows[Arrival]
    queue: NDArray[np.int64]
    loading: NDArray[np.int64]  # rows that hold blocks but do not run, in the order they are served
    notices: Rows[Notice]
    running: NDArray[np.int64]
    free_tables: NDArray[np.int64]  # stack of unused values for `Sequence.tables_at`
    stages: Rows[Stage]
    entries: Rows[Entry]  # shape (steps in flight, sequences)
    steps: Rows[Step]
    groups: Rows[Group]
    buckets: Rows[Bucket]
    blocks: Rows[Block]
    block_notes: Rows[BlockNote]
    chains: NDArray[np.int32]
    """First block of each chain of blocks in the prefix cache, by a hash of their keys."""
    stored: Rows[Stored]
    tier_chains: NDArray[np.int64]  # shape (tiers, chains): as `chains`, but rows of `stored`
    tier_heaps: NDArray[np.int64]
    """Shape (tiers, blocks): a heap by rank of the rows of `stored` that each tier may evict."""
    tier_lens: NDArray[np.int64]  # length of each heap
    tier_written: NDArray[np.int64]  # row of `stored` that each tier wrote last in this step; or 0
    tier_groups: Rows[TierGroup]
    offered: Rows[GroupOffers]  # shape (rows of sequences, groups)
    places: Rows[Place]  # shape (rows of sequences x groups, blocks)
    picks: Rows[Pick]  # scratch
    ended: NDArray[np.int64]  # rows that have ended since the last step, where there are tiers
    adapters: Rows[Adapter]
    adapter_costs: NDArray[np.float64]
    """Costs of LoRA adapters (`specsim.profile.costs.AdapterCost.numbers`)."""
    tables: NDArray[np.int32]  # shape (block tables, blocks)
    holdings: Rows[Holding]  # shape (block tables,)
    hits: NDArray[np.int32]
    """Scratch, shape (groups, blocks): the blocks of a prefix-cache hit."""
    keys: NDArray[np.int64]  # shared block keys of all requests, end to end
    fates: NDArray[np.uint8]
    """Accepted length of a draft of full length at each output position, requests end to end."""
    offers: NDArray[np.uint8]  # draft tokens that a proposer finds, likewise; 1 more per request
    order: NDArray[np.int64]  # verbs in the order in which they are done
    in_python: NDArray[np.int64]  # by verb: whether it is done in Python
    seen: View  # the step as a policy sees it, and its answers (`specsim.engine.asking`)
    asking: Asking  # hooks that call the policy (`specsim.engine.asking`)
    levels: NDArray[np.uint8]
    """Confidence of each draft token, as a level, for each fate it can have (`DraftLuck.stated`);
    empty where no policy reads it or the draft source has no table of it."""
    level_starts: NDArray[np.int64]  # where the levels of each request begin; last: where all end
    level_steps: NDArray[np.float32]  # the confidence of each level
    lens_by_size: NDArray[np.int64]
    """Draft length by the number of sequences in a step, where nothing else decides it."""
    target: NDArray[np.float64]  # time of a target forward pass (`specsim.latency.form`)
    drafter: NDArray[np.float64]  # time of a drafter's forward pass, likewise
    costs: NDArray[np.float64]  # other times of a step (`specsim.profile.step_time.NUM_COSTS`)
    rows: NDArray[np.int64]  # scratch: sequences that draft a first token, a second and so on
    steps_out: Rows[Step]
    requests_out: Rows[Any]
    gaps_out: Rows[Any]
    seconds_out: Rows[Any]
    totals: Rows[Any]
    outcomes: NDArray[np.int64]
    """Shape (k + 1, k + 1): number of drafts of length i with accepted length j."""
    delivered_at: NDArray[np.float64]
    """Deliveries of all requests, end to end, like the next three; empty if not recorded."""
    delivered_lens: NDArray[np.uint8]
    drafted_lens: NDArray[np.uint8]
    accepted_lens: NDArray[np.uint8]


_SHORT: dict[type, tuple[str, ...]] = {
    Fact: ("prompt_len", "output_len", "max_tokens", "priority", "adapter", "rank", "num_keys"),
    Block: ("holders", "following", "preceding", "next_alike"),
    BlockNote: ("is_undrafted", "published_in", "shown_in"),
    Place: ("block", "shown_in", "is_used"),
}
"""Fields stored in four bytes instead of eight, in arrays that have many rows."""

_RESULTS = {
    "requests_out": REQUEST_FIELDS,
    "gaps_out": GAP_FIELDS,
    "seconds_out": SECOND_FIELDS,
    "totals": TOTAL_FIELDS,
}

_TWO_AXES = frozenset(
    {
        *("entries", "tables", "hits", "outcomes", "tier_chains", "tier_heaps", "levels"),
        *("offered", "places"),
    }
)


def _element(name: str, kind: Any) -> Any:
    """Return the element type of an array of a `Table`."""
    if name in _RESULTS:
        return _RESULTS[name]
    if get_origin(kind) is not Rows:
        return element_of(kind)
    (row,) = get_args(kind)
    return record_of(row, _SHORT.get(row, ()))


ARRAY_TYPES: dict[str, tuple[Any, int]] = {
    name: (_element(name, kind), 2 if name in _TWO_AXES else 1)
    for name, kind in get_type_hints(Table).items()
    if kind not in (View, Asking)
}
"""Element type and number of dimensions of each array of a `Table`."""
TABLE_TYPES: Types = {
    name: types_of(kind) if kind in (View, Asking) else ARRAY_TYPES[name]
    for name, kind in get_type_hints(Table).items()
}
