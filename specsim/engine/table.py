"""The table of sequences: everything that one replica knows, as columns of numbers.

    sequences   a row per live sequence; rows are used again
    queue       rows that wait, as a heap, where priorities decide; else they are linked
    running     rows that run, in order of admission
    entries     what each sequence of a step gets, does and becomes; a ring of steps
    steps       one record of each step in flight
    blocks      the KV blocks: the free queue and the index of prefixes are links in here
    tables      block ids of each running sequence and KV cache group
    buffers     rows of results until somebody takes them

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
"""Block 0 is a permanent null block, as in vLLM, so it can stand for none."""
NO_KEY = 1 << 62
"""Key of a block whose content is not published."""

FULL, SLIDING, CHUNKED, STATE = range(4)
"""Kinds of groups, as in `specsim.hardware.kv_groups.KINDS`."""

FREE, WAITING, RUNNING, FINISHED, LOADING, LOADED, WITHDRAWN = range(7)
"""Where a row of `sequences` is: unused, in the queue, running, ended with a step in flight or with
blocks that somebody is still to read, holding blocks into which KV entries are being loaded or
have been (vLLM: WAITING_FOR_REMOTE_KVS), or waiting or running for a client that has gone, until
`specsim.engine.order.drop` is called."""

REQUEST, LOAD_ENDED, LOAD_FAILED, BLOCKS_READ = range(4)
"""Kinds of arrivals: a new request, and what has become of the KV entries of a row."""
LOAD_BEGINS, BLOCKS_HELD = range(2)
"""Kinds of notices: blocks wait for KV entries, or hold those of a request that has ended."""


class Sequence(Protocol):
    """How far one request has come; a row from its arrival until its last step has come back.

    There is no prefill and no decode phase. A sequence has `computed_len` tokens whose KV entries
    exist and asks, at every step, for the rest of

        known_len + draft_len + placeholder_len - computed_len

    tokens, whether they are prompt, the last sampled token or drafts.
    """

    request: int  # index of its request
    status: int
    arrived_at: float
    first_scheduled_at: float
    first_token_at: float
    delivered_at: float  # when it last got tokens
    prompt_len: int
    requested_len: int  # prompt plus max_tokens
    max_len: int  # length at which it ends
    known_len: int  # prompt plus output tokens that the scheduler has been told about
    computed_len: int  # tokens scheduled so far; optimistic by the drafts in flight
    draft_len: int  # drafts that wait to be verified
    placeholder_len: int
    """Output tokens in flight that are counted as computed (asynchronous scheduling)."""
    decodes_from: int  # number of the step that may hold its next decode (vLLM: with a pipeline)
    sampled_at: float  # when its last token leaves the last stage, which the first one waits for
    in_chunk: int  # whether the last scheduled piece stopped short of the known tokens
    tables_at: int  # its first block table in `tables` and `holdings`, one per group; -1: none
    capacity_len: int
    """Tokens that its blocks can hold, or fewer if one of them leaves a window before."""
    next_publish_len: int  # length at which the next block can be published to the prefix cache
    cached_len: int  # prefix-cache hit of its first admission
    admissions: int
    preemptions: int
    preempted_in: int  # number of the step that last preempted it
    preempted_as: int  # how many that step had preempted before it
    requeues: int  # replicas that failed while they had it
    in_flight_len: int  # its tokens in steps that have been scheduled and have not come back
    next_row: int  # in the queue
    previous_row: int
    passed_as: int
    """The number of those that admission had passed over, or that had begun to load, when it passed
    over this one; 0 if it has not since this one began to wait."""
    drafter: int  # which of several drafters serves it
    is_undrafted: int
    """Whether the drafter has left its prompt out, so that it is never drafted for."""
    fate_at: int  # where its drafter's fates begin: what survives of a draft, by output position
    deliveries: int
    drafts: int
    draft_tokens: int
    accepted_tokens: int
    junction_len: int  # how far a prefix was cached in some groups, but not in all of them
    external_len: int  # tokens whose KV entries another replica has, and which are to be loaded
    is_sending: int  # whether it has ended, and its blocks are kept until they have been read
    fence: int  # one more than the index of the step after which its blocks are given back, or 0
    use: int  # number of its use of the tiers; 0 before the first
    loads_from: int  # tokens before those that it loads, or has loaded last
    load_blocks: int  # into which it loads them, in all groups
    disk_blocks: int  # of those, what only the disk has
    left_len: int  # tokens that it leaves to the tiers when it has ended
    is_left: int  # whether it has ended, and the tiers have not been offered that yet


class Fact(Protocol):
    """What does not change about a request; one row for all replicas."""

    prompt_len: int
    output_len: int
    max_tokens: int  # asked for; what is beyond output_len the scheduler must expect
    priority: int
    adapter: int  # LoRA adapter that it is for; 0: none
    rank: int  # place of its id among all ids, which breaks ties of priority
    key_at: int  # where its shared block keys begin
    num_keys: int
    output_at: int
    """Output tokens of all requests before it: where it begins in arrays by output position."""


class Arrival(Protocol):
    """A request that has been submitted, or news of one, that the engine has not looked at."""

    at: float
    request: int
    row: int  # where it came from another replica, or is not new: the row that is its own
    kind: int
    external_len: int


class Notice(Protocol):
    """What has to be done outside for a row."""

    kind: int
    at: float
    request: int
    row: int
    tokens: int  # to be loaded, or held
    blocks: int  # KV blocks to be loaded, in all groups
    disk_blocks: int  # of those, what only the disk has


class Entry(Protocol):
    """One sequence of a step."""

    row: int
    request: int
    start: int  # its KV entries before the step
    scheduled_len: int  # tokens that it processes, its drafts included
    prefill_len: int  # those that belong to its prefill
    draft_len: int  # drafts among them
    verified_len: int  # drafts that are verified: all of them, unless the policy trims the step
    read_anew: int  # under batch expansion, the context that each draft reads again
    is_partial: int  # whether its piece stops short of the known tokens: it emits nothing
    is_padded: int  # whether it was admitted with dummy drafts, which are never accepted
    is_resumed: int  # whether the step admits it after a preemption
    is_admitted: int  # whether the step admits it for the first time
    is_loaded: int  # whether the step admits it after a load
    accepted_len: int
    emitted_len: int
    asked_len: int  # draft tokens that the drafter is run for at the end of the step
    offered_len: int  # draft tokens that it comes up with, and that are verified next
    found_len: int  # draft tokens that a lookup has found for it then
    unread_len: int  # cached tokens that the drafter, which had left them out, has to read itself


class Step(Protocol):
    """One step: its load, what it costs, and what came of it."""

    index: int
    num_requests: int  # sequences in it
    scheduled_at: float
    started_at: float  # when the GPU begins with it
    ended_at: float  # when its tokens are delivered
    target_time: float
    draft_time: float  # how much longer it takes for drafts
    drafter_time: float  # how long the drafter is at work, which may be beside the target
    overhead_time: float
    verified_draft_time: float  # what it took to make the drafts that it verifies
    own_context_tokens: int  # KV entries that exist when it starts, over its sequences
    context_tokens: int  # those that it reads: under batch expansion once more for every draft
    batched_tokens: int
    prefill_tokens: int
    drafter_context_tokens: int  # what the drafter reads after it
    drafter_batched_tokens: int
    drafter_prefill_tokens: int
    drafter_requests: int  # sequences that it serves
    tokens_left: int  # max_num_scheduled_tokens; what is left of it as sequences are added
    inputs_left: int  # max_num_batched_tokens, likewise; draft slots are paid from it as well
    piece_limit: int  # longest piece that any sequence may get
    num_adapters: int  # LoRA adapters that it serves, where `Limits.max_loras` bounds them
    defers_prefills: int  # whether it reads no prompts (vLLM: prefill_schedule_interval)
    defers_decodes: int  # whether sequences of an earlier step wait for their turn (pipeline)
    admits_prefill: int  # whether it admits anybody of whom more than a token is to be computed
    has_chunk: int  # whether a running sequence came into it in the middle of its prefill
    num_running: int
    num_waiting: int
    free_blocks: int
    preemptions: int
    skips_drafts: int  # `specsim.engine.engine_limits.SKIPPED` or `IDLE` if nobody can use drafts
    drafts_on_top: int  # whether drafts came on top of the token budget (vLLM V0)
    alpha_estimate: float  # what the policy believed about acceptance at its end
    drafts: int  # of this and the next five: without sequences that had ended before it came back
    draft_tokens: int
    accepted_tokens: int
    output_tokens: int
    deliveries: int
    asked_tokens: int
    asked_draft_len: float  # the mean over its sequences


class Block(Protocol):
    """One KV block."""

    key: int  # what it holds, if that is published, free or held; `NO_KEY` if not
    holders: int  # sequences that hold it; kept for published blocks only
    following: int  # in the free queue; of the null block the first, and the last as
    preceding: int
    next_alike: int
    """The next one, by time of publication, whose key has the same place in the index."""


class BlockNote(Protocol):
    """What else there is to know of a KV block; apart, for few servers need it.

    Blocks are taken in turn, so that those of a large cache are seldom in the processor's.
    """

    is_undrafted: int
    """Whether the drafter has no entries of what it holds; kept only where it may leave out prompts
    and prefixes are cached."""
    published_in: int
    """Number of the step in which a state with its key was last published."""
    shown_in: int
    """Number of the step whose sequences last got it, if the tiers have been told."""


class Group(Protocol):
    """Layers that share a block table (vLLM: KV cache group); see `specsim.hardware.kv_groups`."""

    kind: int  # one of `FULL`, `SLIDING`, `CHUNKED` and `STATE`
    span_len: int  # window or chunk
    block_size: int
    hashes: int  # identities of prefixes that are computed per block
    most_admitted: int  # blocks that an admission reckons with at most
    drops: int  # whether the last block of a hit is recomputed
    shift: int  # blocks that are dropped of what a window needs; a state needs itself
    tail_blocks: int  # blocks that a sliding window needs of a prefix, the one dropped included
    wanted_blocks: int  # scratch: blocks that a sequence is to hold after an allocation
    period: int  # blocks after which such a tail is kept; 1 if all are, 0 if none
    num_spare: int  # of a state: blocks for those after each draft, which lie behind it
    saved_len: int  # scratch: tokens after which a step saves one inside its piece; 0: it does not


class Bucket(Protocol):
    """Groups that are alike, and are looked up together; those of full attention come first."""

    first: int  # its groups lie side by side
    last: int  # the one behind them
    found_len: int  # scratch: what it has of a prefix; -1 before it was looked up
    has_dropped: int  # scratch: whether the last block has been dropped from that


class TierGroup(Protocol):
    """What of a group the tiers are offered, and what of it is loaded."""

    looked_up: int  # number of the group that is looked up in the turn that this row is for
    has_drafter: int  # whether its last block may yet change, as drafts are rejected
    has_dropped: int  # scratch: whether a lookup has dropped the last block for that
    window_blocks: int  # of a sliding window: blocks that a hit has to end with
    read_len: int  # tokens before a hit's end that the window reads
    period: int  # blocks after which a tail is offered; 1 if all are, 0 if none
    tail_blocks: int  # that such a tail has
    segment_blocks: int  # after which blocks of full attention end, where the last tail may move


class GroupOffers(Protocol):
    """What the tiers know of a sequence in one group."""

    next_place: int  # place of the first block that they may yet be offered
    num_shown: int  # blocks of its table that they have been told of


class Place(Protocol):
    """What the tiers know of one place in the table of a sequence."""

    block: int  # the one that was there when they were told; the null block if it is none any more
    shown_in: int  # number of the step that told them
    is_used: int  # whether the sequence has offered or loaded what is stored of it


class Pick(Protocol):
    """A block of a sequence that the tiers are offered now, or from which it is loaded."""

    key: int
    group: int
    number: int  # of the prefix up to its end, as in `specsim.engine.blocks.prefix_key`
    place: int  # in the table of the sequence
    is_first: int  # whether the sequence uses it for the first time


class Stored(Protocol):
    """Room for one KV block in a tier; the first row is nobody's."""

    key: int
    rank: int  # what has the lowest is given up first; negative where there is nothing
    heap_at: int  # where it is among what may be given up; -1 if it may not
    held_for: int  # why it may not: `specsim.engine.tiers.READING`, or `WRITING`
    next_written: int
    offered_in: int  # number of the last offer that it was part of
    next_alike: int


class Adapter(Protocol):
    """One LoRA adapter; a place in `adapters` is its number."""

    scheduled_in: int  # number of the last step that serves it
    charged_in: int  # number of the last step that it was made ready for
    active_at: int  # when it was last used, if it is on the GPU; 0 if not
    held_at: int  # the same, if host memory has it


class Holding(Protocol):
    """Blocks of one running sequence in one group."""

    num_blocks: int  # those that have left the window included
    null_blocks: int  # those that have left it, the leading ones
    published_blocks: int  # those that were published, or might have been
    has_taken: int  # of a state: whether it has blocks that are not those of its hit
    last_state: int  # of a state: the place of the one before; -1 if there is none
    saved_len: int  # tokens after which the last step saves one inside its piece; 0: it does not
    saved_at: int  # its place, which need not be where a block of so many tokens lies


class Stage(Protocol):
    """A stage of the pipeline, which has a part of the layers; GPUs of its own."""

    share: float  # of the time of a pass
    free_at: float


class State(Protocol):
    """Where a replica is."""

    place: int  # in the order of the verbs
    now: float
    until: float  # when something may happen outside next; nothing is done then or later
    next_at: float  # when the engine would go on by itself
    origin: float  # first arrival of the run
    comes_by: float  # of a rank in lock-step: as `until`, of the next pass that it comes to
    pass_time: float  # what that pass would take by itself, and then what it takes
    pass_overhead: float
    pass_tokens: int  # batched tokens that it brings
    pass_state: int  # `specsim.engine.order.FAR`, ...
    is_midway: int  # whether it goes on from where Python has done a verb
    gpu_free_at: float
    slowness: float  # how many times as long everything takes
    num_loading: int  # rows in `loading`
    is_stuck: int  # whether the last step was empty, and nothing has happened since
    noted_late: int  # sequences that were preempted since a step was last written down
    preempted_in_vain: int  # sequences, since a token was last handed out
    num_running: int
    most_run: int  # of those, how many a step may hold, first come first
    num_waiting: int
    num_passed_over: int  # of those
    num_passed: int  # sequences that admission has passed over, or that have begun to load
    queue_head: int
    queue_tail: int
    free_row: int  # first unused row; they are linked
    fenced_head: int  # first row that has ended and has a fence; they are linked
    fenced_tail: int
    num_free_tables: int
    num_free: int
    blocks_used: int  # the number behind the last block that was ever taken
    num_steps: int
    num_executed: int  # steps that had tokens
    prefills_from: int  # number of such a step, from 1, from which on prompts may be read again
    num_passes: int  # that ranks have made together since all were idle
    is_backed_up: int
    """Whether somebody waited for room after the last step that might read prompts."""
    adapter_uses: int  # counts uses of LoRA adapters, to know which was used first
    num_active: int  # LoRA adapters on the GPU
    num_held: int  # and in host memory
    num_uses: int  # counts uses of the tiers, to know which was first
    num_offers: int  # blocks that the tiers have been offered, counted in offers
    num_ended: int  # rows in `ended`
    num_picked: int  # rows in `picks`
    num_empty: int  # steps in a row in which a policy that is loops was shown nobody
    has_left_out: int  # whether the drafter has ever left out what the target read
    has_unflushed: int  # whether a request has ended since the last schedule
    in_flight: int  # steps that have been launched and have not come back
    current: int  # place in the ring of the step that the verbs are about
    oldest: int  # place in the ring of the step that comes back next
    num_arrivals: int
    first_arrival: int  # those not taken in begin here
    unannounced: int  # notices, and requests that have ended, since somebody was told
    num_notices: int
    steps_len: int  # rows in the buffers
    requests_len: int
    gaps_len: int
    seconds_len: int


class Table(NamedTuple):
    """Everything that the verbs work on."""

    limits: Rows[Limits]
    state: Rows[State]
    sequences: Rows[Sequence]
    blank_sequence: Rows[Sequence]  # one row: a request that is new
    blank_entry: Rows[Entry]  # likewise, of zeros
    blank_step: Rows[Step]
    facts: Rows[Fact]
    arrivals: Rows[Arrival]
    queue: NDArray[np.int64]
    loading: NDArray[np.int64]  # rows that hold blocks but do not run, in the order they are served
    notices: Rows[Notice]
    running: NDArray[np.int64]
    free_tables: NDArray[np.int64]  # first ones of who may hold blocks next, as a stack
    stages: Rows[Stage]
    entries: Rows[Entry]  # shape (steps in flight, sequences)
    steps: Rows[Step]
    groups: Rows[Group]
    buckets: Rows[Bucket]
    blocks: Rows[Block]
    block_notes: Rows[BlockNote]
    chains: NDArray[np.int32]
    """First block of each chain of published blocks, by a hash of their keys."""
    stored: Rows[Stored]
    tier_chains: NDArray[np.int64]  # shape (tiers, chains); as `chains`, into `stored`
    tier_heaps: NDArray[np.int64]
    """Shape (tiers, blocks): what each may give up, a heap by rank, into `stored`."""
    tier_lens: NDArray[np.int64]  # how much that is
    tier_written: NDArray[np.int64]  # the block that each has stored last in this step, or none
    tier_groups: Rows[TierGroup]
    offered: Rows[GroupOffers]  # shape (rows of sequences, groups)
    places: Rows[Place]  # shape (rows of sequences x groups, blocks)
    picks: Rows[Pick]  # scratch
    ended: NDArray[np.int64]  # rows that have ended since the last step, where there are tiers
    adapters: Rows[Adapter]
    adapter_costs: NDArray[np.float64]
    """What they cost (`specsim.profile.costs.AdapterCost.numbers`)."""
    tables: NDArray[np.int32]  # shape (block tables, blocks)
    holdings: Rows[Holding]  # shape (block tables,)
    hits: NDArray[np.int32]
    """Scratch, shape (groups, blocks): the blocks of a prefix-cache hit."""
    keys: NDArray[np.int64]  # shared block keys of all requests, end to end
    fates: NDArray[np.uint8]
    """What survives of a draft, by output position of every request, end to end."""
    offers: NDArray[np.uint8]  # what a proposer comes up with, likewise, one more per request
    order: NDArray[np.int64]  # verbs in the order in which they are done
    in_python: NDArray[np.int64]  # by verb: whether it is done in Python
    seen: View  # what a policy is shown, and says (`specsim.engine.asking`)
    asking: Asking  # how it is asked (`specsim.engine.asking`)
    levels: NDArray[np.uint8]
    """How sure the drafter is of each token, by what becomes of it; `DraftLuck.stated`. Empty where
    nobody asks, or no table has it."""
    level_starts: NDArray[np.int64]  # where those of each request begin; the last is where all end
    level_steps: NDArray[np.float32]  # the confidence of each level
    lens_by_size: NDArray[np.int64]
    """Draft length by the number of sequences of a step; empty where a policy in Python decides."""
    target: NDArray[np.float64]  # how long a forward pass takes (`specsim.latency.form`)
    drafter: NDArray[np.float64]
    costs: NDArray[np.float64]  # what else a step costs (`specsim.profile.step_time.NUM_COSTS`)
    rows: NDArray[np.int64]  # scratch: sequences that draft a first token, a second and so on
    steps_out: Rows[Step]
    requests_out: Rows[Any]
    gaps_out: Rows[Any]
    seconds_out: Rows[Any]
    totals: Rows[Any]
    outcomes: NDArray[np.int64]
    """Shape (k + 1, k + 1): how many drafts of length i had an accepted length of j."""
    delivered_at: NDArray[np.float64]
    """Deliveries of every request, end to end, like the next three; empty if nobody wants them."""
    delivered_lens: NDArray[np.uint8]
    drafted_lens: NDArray[np.uint8]
    accepted_lens: NDArray[np.uint8]


_SHORT: dict[type, tuple[str, ...]] = {
    Fact: ("prompt_len", "output_len", "max_tokens", "priority", "adapter", "rank", "num_keys"),
    Block: ("holders", "following", "preceding", "next_alike"),
    BlockNote: ("is_undrafted", "published_in", "shown_in"),
    Place: ("block", "shown_in", "is_used"),
}
"""Fields of four bytes, not eight, of what there is much of."""

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
