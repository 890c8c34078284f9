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

from typing import Any, NamedTuple, Protocol, TypeVar, get_type_hints, overload

import numpy as np
from numpy.typing import NDArray

from specsim.results.records import (
    GAP_FIELDS,
    REQUEST_FIELDS,
    SECOND_FIELDS,
    STEP_FIELDS,
    TOTAL_FIELDS,
)

__all__ = [
    "FINISHED",
    "FREE",
    "NEVER",
    "NO_BLOCK",
    "NO_KEY",
    "NO_ROW",
    "RUNNING",
    "TABLE_TYPES",
    "WAITING",
    "Arrival",
    "Block",
    "Entry",
    "Fact",
    "Group",
    "Holding",
    "Limits",
    "Sequence",
    "State",
    "Step",
    "Table",
]

NEVER = 1 << 62
"""A length that no sequence reaches."""
NO_ROW = -1
NO_BLOCK = 0
"""Block 0 is a permanent null block, as in vLLM, so it can stand for none."""
NO_KEY = 1 << 62
"""Key of a block whose content is not published."""

FREE, WAITING, RUNNING, FINISHED = range(4)
"""Where a row of `sequences` is: unused, in the queue, running, or ended with a step in flight."""


class Sequence(Protocol):
    """How far one request has come; a row from its arrival until its last step has come back.

    There is no prefill and no decode phase. A sequence has `computed_len` tokens whose KV entries
    exist and asks, at every step, for the rest of

        known_len + draft_len + placeholder_len - computed_len

    tokens, whether they are prompt, the last sampled token or drafts.
    """

    request: int
    """Index of its request."""
    status: int
    arrived_at: float
    first_scheduled_at: float
    first_token_at: float
    delivered_at: float
    """When it last got tokens."""
    prompt_len: int
    requested_len: int
    """Prompt plus max_tokens."""
    max_len: int
    """Length at which it ends."""
    known_len: int
    """Prompt plus output tokens that the scheduler has been told about."""
    computed_len: int
    """Tokens scheduled so far; optimistic by the drafts in flight."""
    draft_len: int
    """Drafts that wait to be verified."""
    placeholder_len: int
    """Output tokens in flight that are counted as computed (asynchronous scheduling)."""
    in_chunk: int
    """Whether the last scheduled piece stopped short of the known tokens."""
    slot: int
    """Its first row in `tables` and `holdings`, one per group; -1 unless it runs."""
    capacity_len: int
    """Tokens that its blocks can hold."""
    next_publish_len: int
    """Length at which the next block can be published to the prefix cache."""
    cached_len: int
    """Prefix-cache hit of its first admission."""
    admissions: int
    preemptions: int
    preempted_in: int
    """Number of the step that last preempted it."""
    preempted_as: int
    """How many that step had preempted before it."""
    requeues: int
    """Replicas that failed while they had it."""
    in_flight: int
    """Steps that have been scheduled with it and have not come back."""
    next_row: int
    previous_row: int
    """Neighbours in the queue."""
    drafter: int
    """Which of several drafters serves it."""
    is_undrafted: int
    """Whether the drafter has left its prompt out, so that it is never drafted for."""
    fate_at: int
    """Where its drafter's fates begin: what survives of a draft made at each output position."""
    deliveries: int
    drafts: int
    draft_tokens: int
    accepted_tokens: int


class Fact(Protocol):
    """What does not change about a request; one row for all replicas."""

    prompt_len: int
    output_len: int
    priority: int
    rank: int
    """Place of its id among all ids, which breaks ties of priority."""
    key_at: int
    """Where its shared block keys begin."""
    num_keys: int
    output_at: int
    """Output tokens of all requests before it: where it begins in arrays by output position."""


class Arrival(Protocol):
    """A request that has been submitted and that the engine has not looked at."""

    at: float
    request: int
    row: int
    """Where it came from another replica: the row that has been filled in for it."""


class Entry(Protocol):
    """One sequence of a step."""

    row: int
    request: int
    start: int
    """Its KV entries before the step."""
    scheduled_len: int
    """Tokens that it processes, its drafts included."""
    prefill_len: int
    """Those that belong to its prefill."""
    draft_len: int
    """Drafts among them."""
    verified_len: int
    """Drafts that are verified: all of them, unless the policy trims the step."""
    read_anew: int
    """Under batch expansion, the context that each draft reads again."""
    is_partial: int
    """Whether its piece stops short of the known tokens: it emits nothing."""
    is_padded: int
    """Whether it was admitted with dummy drafts, which are never accepted."""
    is_resumed: int
    """Whether the step admits it after a preemption."""
    is_admitted: int
    """Whether the step admits it for the first time."""
    accepted_len: int
    emitted_len: int
    asked_len: int
    """Draft tokens that the drafter is run for at the end of the step."""
    offered_len: int
    """Draft tokens that it comes up with, and that are verified next."""
    found_len: int
    """Draft tokens that a lookup has found for it then."""


class Step(Protocol):
    """One step: its load, what it costs, and what came of it."""

    index: int
    num_requests: int
    """Sequences in it."""
    scheduled_at: float
    started_at: float
    """When the GPU begins with it."""
    ended_at: float
    """When its tokens are delivered."""
    target_time: float
    draft_time: float
    overhead_time: float
    verified_draft_time: float
    """What it took to make the drafts that it verifies."""
    own_context_tokens: int
    """KV entries that exist when it starts, over its sequences."""
    context_tokens: int
    """Those that it reads: under batch expansion once more for every draft."""
    batched_tokens: int
    prefill_tokens: int
    drafter_context_tokens: int
    drafter_batched_tokens: int
    drafter_prefill_tokens: int
    drafter_requests: int
    """What the drafter reads after it, and of how many sequences."""
    tokens_left: int
    """max_num_scheduled_tokens; what is left of it as sequences are added."""
    inputs_left: int
    """max_num_batched_tokens, likewise; draft slots are paid from it as well."""
    piece_limit: int
    """Longest piece that any sequence may get."""
    has_chunk: int
    """Whether a running sequence came into it in the middle of its prefill."""
    num_running: int
    num_waiting: int
    free_blocks: int
    preemptions: int
    drafts_on_top: int
    """Whether drafts came on top of the token budget (vLLM V0)."""
    alpha_estimate: float
    """What the policy believed about acceptance at its end."""


class Block(Protocol):
    """One KV block."""

    key: int
    """What it holds, if that is published, free or held; `NO_KEY` if not."""
    holders: int
    """Sequences that hold it; kept for published blocks only."""
    next_free: int
    previous_free: int
    """Neighbours in the free queue."""
    next_alike: int
    """The next one, by time of publication, whose key has the same place in the index."""


class Group(Protocol):
    """Layers that share a block table (vLLM: KV cache group)."""

    block_size: int


class Holding(Protocol):
    """Blocks of one running sequence in one group."""

    num_blocks: int
    published_blocks: int


class Limits(Protocol):
    """Everything that bounds a step, in vLLM's own terms, and how the engine runs."""

    max_num_scheduled_tokens: int
    max_num_batched_tokens: int
    max_num_running: int
    """vLLM's max_num_seqs, or max_num_active_seqs where that is given."""
    max_model_len: int
    num_blocks: int
    num_groups: int
    enable_prefix_caching: int
    drops_last_hit: int
    """EAGLE-type drafters recompute the last block of a hit to have its hidden states."""
    watermark_blocks: int
    reserve_full_prompt: int
    by_priority: int
    enable_chunked_prefill: int
    long_prefill_token_threshold: int
    long_prefill_token_threshold_adaptive: int
    max_draft_len: int
    lookahead_len: int
    """Extra KV slots per sequence that the drafting method writes to."""
    draft_slots: int
    """Input slots that the drafting method takes per scheduled sequence."""
    pads_admissions: int
    """Whether an admission that has one token to compute is padded with dummy drafts."""
    expands_batch: int
    """Whether every draft token reads the whole context again to be verified (vLLM V0)."""
    prefill_first: int
    """Whether waiting prompts run first, in a step of their own (vLLM V0)."""
    depth: int
    """Steps in flight at once."""
    land_at: int
    """Where in the order of the verbs a step that has been launched comes back."""
    leaves_out: int
    """Whether the drafter may leave out prompts; such a sequence `is_undrafted`."""
    has_offers: int
    """Whether a proposer comes up with fewer drafts than asked for, by a table."""
    keeps_steps: int
    keeps_deliveries: int
    announces_ends: int
    """Whether somebody waits for requests to end."""
    valid_context_tokens: int
    valid_batched_tokens: int
    """Beyond which the costs are extrapolated."""


class State(Protocol):
    """Where a replica is."""

    place: int
    """In the order of the verbs."""
    now: float
    until: float
    """The next thing that may happen outside; nothing is done at or after it."""
    next_at: float
    """When the engine would go on by itself."""
    origin: float
    """First arrival of the run."""
    gpu_free_at: float
    last_draft_time: float
    slowness: float
    """How many times as long everything takes."""
    num_running: int
    num_waiting: int
    queue_head: int
    queue_tail: int
    free_row: int
    """First unused row; they are linked."""
    num_free_slots: int
    first_free: int
    last_free: int
    """Ends of the free queue of blocks."""
    num_free: int
    num_steps: int
    has_unflushed: int
    """Whether a request has ended since the last schedule."""
    in_flight: int
    """Steps that have been launched and have not come back."""
    current: int
    """Place in the ring of the step that the verbs are about."""
    oldest: int
    """Place in the ring of the step that comes back next."""
    num_arrivals: int
    first_arrival: int
    """Those not taken in begin here."""
    unannounced: int
    """Requests that have ended since somebody was told."""
    steps_len: int
    requests_len: int
    gaps_len: int
    seconds_len: int
    """Rows in the buffers."""


Row_co = TypeVar("Row_co", covariant=True)


class Rows(Protocol[Row_co]):
    """A record array: rows by their place, columns by their name."""

    @overload
    def __getitem__(self, place: str, /) -> NDArray[Any]: ...
    @overload
    def __getitem__(self, place: slice | tuple[int, slice] | NDArray[Any], /) -> NDArray[Any]: ...
    @overload
    def __getitem__(self, place: int | tuple[int, int], /) -> Row_co: ...
    def __getitem__(self, place: Any, /) -> Any: ...

    def __setitem__(self, place: Any, value: Any, /) -> None: ...

    def __len__(self) -> int: ...


class Table(NamedTuple):
    """Everything that the verbs work on."""

    limits: Rows[Limits]
    state: Rows[State]
    sequences: Rows[Sequence]
    facts: Rows[Fact]
    arrivals: Rows[Arrival]
    queue: NDArray[np.int64]
    running: NDArray[np.int64]
    slots: NDArray[np.int64]
    """Unused slots, as a stack."""
    entries: Rows[Entry]
    """Shape (steps in flight, sequences)."""
    steps: Rows[Step]
    groups: Rows[Group]
    blocks: Rows[Block]
    chains: NDArray[np.int32]
    """First block of each chain of published blocks, by a hash of their keys."""
    tables: NDArray[np.int32]
    """Shape (slots * groups, blocks)."""
    holdings: Rows[Holding]
    """Shape (slots * groups,)."""
    hits: NDArray[np.int32]
    """Scratch: the blocks of a prefix-cache hit."""
    keys: NDArray[np.int64]
    """Shared block keys of all requests, end to end."""
    fates: NDArray[np.uint8]
    """What survives of a draft, by output position of every request, end to end."""
    offers: NDArray[np.uint8]
    """What a proposer comes up with, likewise, one more per request."""
    order: NDArray[np.int64]
    """Verbs in the order in which they are done."""
    in_python: NDArray[np.int64]
    """By verb: whether it is done in Python."""
    lens_by_size: NDArray[np.int64]
    """Draft length by the number of sequences of a step; empty where a policy in Python decides."""
    target: NDArray[np.float64]
    drafter: NDArray[np.float64]
    """How long a forward pass takes (`specsim.latency._form`)."""
    costs: NDArray[np.float64]
    """What else a step costs (`specsim.latency._form.COSTS`)."""
    steps_out: Rows[Any]
    requests_out: Rows[Any]
    gaps_out: Rows[Any]
    seconds_out: Rows[Any]
    totals: Rows[Any]
    outcomes: NDArray[np.int64]
    """Shape (k + 1, k + 1): how many drafts of length i had an accepted length of j."""
    delivered_at: NDArray[np.float64]
    delivered_lens: NDArray[np.uint8]
    drafted_lens: NDArray[np.uint8]
    accepted_lens: NDArray[np.uint8]
    """Deliveries of every request, end to end; empty where nobody wants them."""


def record(row: type, *short: str) -> np.dtype[np.void]:
    """Return the record type of a row class: its fields, eight bytes each, or four if short."""
    kinds = {int: "<i8", float: "<f8"}
    return np.dtype(
        [
            (name, "<i4" if name in short else kinds[kind])
            for name, kind in get_type_hints(row).items()
        ]
    )


TABLE_TYPES: dict[str, tuple[Any, int]] = {
    "limits": (record(Limits), 1),
    "state": (record(State), 1),
    "sequences": (record(Sequence), 1),
    "facts": (record(Fact, "prompt_len", "output_len", "priority", "rank", "num_keys"), 1),
    "arrivals": (record(Arrival), 1),
    "queue": (np.int64, 1),
    "running": (np.int64, 1),
    "slots": (np.int64, 1),
    "entries": (record(Entry), 2),
    "steps": (record(Step), 1),
    "groups": (record(Group), 1),
    "blocks": (np.dtype([("key", "<i8"), *[(n, "<i4") for n in (
        "holders", "next_free", "previous_free", "next_alike")]]), 1),
    "chains": (np.int32, 1),
    "tables": (np.int32, 2),
    "holdings": (record(Holding), 1),
    "hits": (np.int32, 1),
    "keys": (np.int64, 1),
    "fates": (np.uint8, 1),
    "offers": (np.uint8, 1),
    "order": (np.int64, 1),
    "in_python": (np.int64, 1),
    "lens_by_size": (np.int64, 1),
    "target": (np.float64, 1),
    "drafter": (np.float64, 1),
    "costs": (np.float64, 1),
    "steps_out": (STEP_FIELDS, 1),
    "requests_out": (REQUEST_FIELDS, 1),
    "gaps_out": (GAP_FIELDS, 1),
    "seconds_out": (SECOND_FIELDS, 1),
    "totals": (TOTAL_FIELDS, 1),
    "outcomes": (np.int64, 2),
    "delivered_at": (np.float64, 1),
    "delivered_lens": (np.uint8, 1),
    "drafted_lens": (np.uint8, 1),
    "accepted_lens": (np.uint8, 1),
}  # fmt: skip
"""Element type and number of dimensions of each array of a `Table`."""
