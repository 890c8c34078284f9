"""Setup: what one replica is made of, and the requests of its run, before it has seen any."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from specsim.core.request import BlockKey, Columns, Request
from specsim.core.step import Ints
from specsim.decisions.loops import Asking, no_view
from specsim.engine.order import VERBS
from specsim.engine.speculation import Speculation
from specsim.engine.table import (
    ARRAY_TYPES,
    CHUNKED,
    FULL,
    NEVER,
    NO_KEY,
    NO_ROW,
    SLIDING,
    STATE,
    Table,
)
from specsim.engine.view import StepView
from specsim.hardware.kv_groups import KINDS, KVLayout
from specsim.profile import StepCosts
from specsim.profile.step_time import NUM_COSTS
from specsim.results.records import Deliveries, ReplicaRecords

_ROWS = 256  # of sequences, arrivals and gaps to begin with


@dataclass(frozen=True)
class Setup:
    """An engine: its scheduler's limits, in which order it does its verbs, and its KV blocks."""

    order: str
    """One of `specsim.engine.order.ORDERS`."""
    limits: Mapping[str, int]
    """By the names of `specsim.engine.engine_limits.Limits`; what is missing is 0."""
    kv: KVLayout
    """The groups of layers that have KV blocks of their own."""
    stages: tuple[float, ...] = (1.0,)
    """Share of each stage of the pipeline in the time of a pass."""
    num_results: int = 1024
    """Steps and requests that are held back at most."""

    @property
    def is_async(self) -> bool:
        """Whether the next step is scheduled while one runs."""
        return self.order == "asynchronous"

    @property
    def num_usable_blocks(self) -> int:
        """KV blocks without the null block."""
        return self.limits["num_blocks"] - 1

    def table(self, longest_len: int = NEVER, **shared: NDArray[Any]) -> Table:
        """Return the empty table of one replica.

        Args:
            longest_len: No request will be longer, max_tokens included, tokens.
            shared: Arrays of the run, by their names.
        """
        limits = self._limits()
        depth, num_groups = int(limits["depth"][0]), len(self.kv.groups)
        most, num_blocks = int(limits["max_num_running"][0]), int(limits["num_blocks"][0])
        num_results, longest_draft = self.num_results, int(limits["max_draft_len"][0])
        width = self._most_blocks(longest_len)
        most_holding = int(max(most, limits["most_holding"][0]))
        limits["most_holding"] = most_holding
        arrays: dict[str, Any] = {
            **{name: zeros(name, *[1] * axes) for name, (_, axes) in ARRAY_TYPES.items()},
            "limits": limits,
            "state": _state(most, most_holding, num_blocks),
            "sequences": linked_rows(_ROWS),
            "blank_sequence": _blank_sequence(),
            "arrivals": zeros("arrivals", _ROWS),
            "queue": zeros("queue", _ROWS),
            "running": zeros("running", most),
            "loading": zeros("loading", most_holding),
            "notices": zeros("notices", most_holding),
            "free_tables": np.arange(most_holding - 1, -1, -1, dtype=np.int64) * num_groups,
            "entries": zeros("entries", depth, most),
            "steps": zeros("steps", depth),
            "stages": _stages(self.stages),
            "groups": self._groups(depth),
            "buckets": self._buckets(),
            "blocks": _blocks(num_blocks).copy(),
            "block_notes": zeros("block_notes", num_blocks),
            **self._tiers(limits, width),
            "chains": zeros("chains", 1 << max(4, (num_blocks - 1).bit_length())),
            "adapters": _adapters(),
            "tables": zeros("tables", most_holding * num_groups, width),
            "holdings": zeros("holdings", most_holding * num_groups),
            "hits": zeros("hits", num_groups, width),
            "in_python": zeros("in_python", VERBS),
            "seen": no_view(most, longest_draft),
            "asking": Asking(),
            "lens_by_size": zeros("lens_by_size", most + 1),
            "costs": zeros("costs", NUM_COSTS),
            "rows": zeros("rows", longest_draft + 1),
            "steps_out": zeros("steps_out", num_results),
            "requests_out": zeros("requests_out", num_results + most),
            "gaps_out": zeros("gaps_out", 8 * num_results + most),  # a few per step
            "seconds_out": zeros("seconds_out", num_results),
            "outcomes": zeros("outcomes", longest_draft + 1, longest_draft + 1),
            **shared,
        }
        return Table(**arrays)

    def _limits(self) -> NDArray[Any]:
        """Return what does not change about a replica."""
        limits = zeros("limits", 1)
        for name, value in self.limits.items():
            limits[name] = value
        limits["decode_stagger"] = len(self.stages)
        limits["depth"] = 1 + len(self.stages) if self.is_async else 1
        limits["prefill_first"] = self.order == "prefill_first"
        limits["asks_last"] = self.order == "synchronous"
        limits["overlaps"] = self.order == "overlapped"
        limits["num_groups"] = len(self.kv.groups)
        limits["has_windows"] = self.kv.has_windows
        if self.limits.get("enable_prefix_caching"):
            sizes = (each.block_size for each in self.kv.groups if each.kind == KINDS[STATE])
            limits["state_block_size"] = size = next(sizes, 0)
            limits["saves_inside"] = any(each.saves_inside for each in self.kv.groups)
            limits["claims_states"] *= size > 0
        limits["common_block_size"] = common = self.kv.common_block_size
        limits["blocks_per_common"] = sum(common // each.block_size for each in self.kv.groups)
        limits["hash_block_size"] = self.kv.hash_block_size
        return limits

    def _most_blocks(self, longest_len: int) -> int:
        """Return how many blocks of a group a sequence can have."""
        limits = self.limits
        # Past its end it has blocks for drafts of the steps in flight, and for look-ahead.
        drafts_len = 4 * (1 + limits.get("max_draft_len", 0))
        reach = min(
            limits["max_model_len"], longest_len + drafts_len + limits.get("lookahead_len", 0)
        )
        return max(-(-reach // group.block_size) + group.num_spare for group in self.kv.groups)

    def _groups(self, depth: int) -> NDArray[Any]:
        """Return what each group needs and keeps; `depth` steps may be in flight."""
        limits, size = self.limits, self.kv.common_block_size
        groups = zeros("groups", len(self.kv.groups))
        in_flight_tokens = depth * limits.get("max_num_batched_tokens", 0)
        for row, group in zip(groups, self.kv.groups, strict=True):
            row["kind"] = kind = KINDS.index(group.kind)
            row["span_len"] = group.span_len
            row["block_size"] = group.block_size
            row["hashes"] = group.block_size // self.kv.hash_block_size if group.is_found else 1
            row["most_admitted"] = NEVER
            row["num_spare"] = group.num_spare
            if kind in (SLIDING, CHUNKED):
                read_tokens = in_flight_tokens + limits.get("reread_len", 0)
                row["most_admitted"] = group.most_blocks(limits["max_model_len"], read_tokens)
            in_last = group.has_last_layer or not limits.get("drops_in_last")
            row["drops"] = drops = bool(limits.get("drops_last_hit")) and in_last
            row["period"] = 1
            if kind in (SLIDING, STATE):
                span_len = group.span_len - 1 if kind == SLIDING else group.block_size
                row["shift"] = shift = drops and kind == SLIDING
                row["tail_blocks"] = tail = -(-span_len // group.block_size) + shift
                kept_len = limits.get("retention_len", 0)
                period = (size if kept_len < 0 else kept_len) // group.block_size
                keeps_all = period > 0 and tail >= period
                row["period"] = 1 if keeps_all else period if period > 1 else 0
        return groups

    def _tiers(self, limits: NDArray[Any], width: int) -> dict[str, NDArray[Any]]:
        """Return the empty tiers behind the GPU's cache, if there are any."""
        sizes = [int(limits[name][0]) for name in ("host_blocks", "disk_blocks")]
        sizes = [size for size in sizes if size]
        limits["num_tiers"] = len(sizes)
        if not sizes:
            return {}
        stored = zeros("stored", 1 + sum(sizes))
        stored["key"], stored["rank"] = NO_KEY, -1
        heaps = zeros("tier_heaps", len(sizes), max(sizes))
        begin = 1
        for heap, size in zip(heaps, sizes, strict=True):
            heap[:size] = np.arange(begin, begin + size)
            stored["heap_at"][begin : begin + size] = np.arange(size)
            begin += size
        chains = 1 << max(4, (2 * max(sizes) - 1).bit_length())
        num_groups = len(self.kv.groups)
        return {
            "tier_groups": self._tier_groups(limits),
            "offered": zeros("offered", _ROWS, num_groups),
            "places": zeros("places", _ROWS * num_groups, width),
            "picks": zeros("picks", num_groups * width),
            "stored": stored,
            "tier_chains": zeros("tier_chains", len(sizes), chains),
            "tier_heaps": heaps,
            "tier_lens": np.array(sizes, dtype=np.int64),
            "tier_written": zeros("tier_written", len(sizes)),
            "ended": zeros("ended", int(limits["most_holding"][0])),
        }

    def _tier_groups(self, limits: NDArray[Any]) -> NDArray[Any]:
        """Return what of each group the tiers are offered, and how it is looked up."""
        groups = self.kv.groups
        full = {group.block_size for group in groups if group.kind == KINDS[FULL]}
        # Several sizes: no tail of a window is told from other blocks.
        sizes = full or {max(group.block_size for group in groups)}
        limits["aligned_len"] = aligned_len = min(sizes) if len(sizes) == 1 else 0
        limits["num_full_groups"] = sum(group.kind == KINDS[FULL] for group in groups)
        reread_len, kept_len = int(limits["reread_len"][0]), int(limits["retention_len"][0])
        rows = zeros("tier_groups", len(groups))
        for number, (row, group) in enumerate(zip(rows, groups, strict=True)):
            row["has_drafter"] = limits["drops_stored"][0] and number == self.kv.last_group
            row["period"], size = 1, group.block_size
            if group.kind == KINDS[FULL]:
                continue
            row["read_len"] = read_len = group.span_len - 1 + reread_len
            row["window_blocks"] = -(-max(group.span_len, read_len) // size)
            if not aligned_len or aligned_len % size:
                continue
            row["tail_blocks"] = tail = -(-read_len // size) + row["has_drafter"]
            period = (aligned_len if kept_len < 0 else kept_len) // size
            row["period"] = 1 if 0 < period <= tail else period
            if kept_len < 0 and not row["has_drafter"]:
                row["segment_blocks"] = aligned_len // size
        widest_first = sorted(range(len(groups)), key=lambda each: -rows["window_blocks"][each])
        is_full = [group.kind == KINDS[FULL] for group in groups]
        rows["looked_up"] = sorted(widest_first, key=lambda each: not is_full[each])
        return rows

    def _buckets(self) -> NDArray[Any]:
        """Return the groups that are alike, those of full attention first."""
        found: dict[int, list[int]] = {}
        for number, group in enumerate(self.kv.groups):
            if group.is_found:
                found.setdefault(group.bucket, []).append(number)
        in_turn = sorted(found.values(), key=lambda mine: self.kv.groups[mine[0]].kind != KINDS[0])
        buckets = zeros("buckets", len(in_turn))
        buckets["first"] = [mine[0] for mine in in_turn]
        buckets["last"] = [mine[-1] + 1 for mine in in_turn]
        return buckets


@dataclass(frozen=True)
class Facts:
    """The requests of a run, and where each begins in arrays by output position."""

    rows: NDArray[np.void]
    """Records `specsim.engine.table.Fact`, by index of the request."""
    keys: Ints
    """Shared block keys of all requests, end to end; negative, equal where the keys are."""
    starts: Ints
    """Shape (n + 1,): output tokens of all requests before each."""
    longest_len: int = NEVER
    """No request is longer, max_tokens included, tokens."""

    @classmethod
    def of(
        cls,
        requests: Sequence[Request],
        block_size: int,
        *,
        with_keys: bool,
        lookahead_len: int = 0,
    ) -> "Facts":
        """Return the facts of a run, with keys if prefixes are cached.

        Args:
            lookahead_len: Tokens after a block that its key covers.
        """
        columns = Columns.of(requests)
        rows = np.zeros(len(requests), dtype=ARRAY_TYPES["facts"][0])
        rows["prompt_len"] = columns.prompt_lens
        rows["output_len"] = columns.output_lens
        rows["max_tokens"] = columns.max_tokens
        rows["priority"] = columns.priorities
        rows["adapter"] = columns.adapters
        if columns.ids is not None:
            rows["rank"] = np.unique(columns.ids, return_inverse=True)[1]
        starts = np.zeros(len(requests) + 1, dtype=np.int64)
        np.cumsum(rows["output_len"], out=starts[1:])
        rows["output_at"] = starts[:-1]
        longest_len = int((rows["prompt_len"] + rows["max_tokens"]).max(initial=1))
        rows["key_at"] = 1
        keys = np.zeros(1, dtype=np.int64)
        if with_keys and columns.may_share:
            keys = _shared_keys(requests, block_size, lookahead_len, rows)
        return cls(rows, keys, starts, longest_len)

    @property
    def num_adapters(self) -> int:
        """The highest number of a LoRA adapter."""
        return int(self.rows["adapter"].max(initial=0))

    @property
    def num_outputs(self) -> int:
        """Output tokens of all requests."""
        return int(self.starts[-1])


def _shared_keys(
    requests: Sequence[Request], block_size: int, lookahead_len: int, rows: NDArray[np.void]
) -> Ints:
    """Return the block keys that requests may share, numbered; enter in `rows` whose they are."""
    numbers: dict[BlockKey, int] = {}
    keys: list[Ints] = [np.zeros(1, dtype=np.int64)]
    size = 1
    for index, request in enumerate(requests):
        rows["key_at"][index] = size
        if found := request.shared_block_keys(block_size, lookahead_len):
            mine = [-1 - numbers.setdefault(key, len(numbers)) for key in found]
            keys.append(np.array(mine, dtype=np.int64))
            rows["num_keys"][index] = len(mine)
            size += len(mine)
    return np.concatenate(keys)


class Observer(Protocol):
    """Whoever watches a replica: invariant checks, the parity log."""

    def scheduled(self, step: StepView) -> None:
        """See a step that has just been scheduled."""

    def delivered(self, step: StepView) -> None:
        """See a step that has just come back."""


@dataclass(frozen=True)
class Wiring:
    """What a replica shares with the rest of the run, and whom it tells what."""

    facts: Facts
    records: ReplicaRecords
    fates: NDArray[np.uint8] | None = None
    """Of all drafters one after the other; None if they are asked of the draft source."""
    offers: NDArray[np.uint8] | None = None
    """What the proposer comes up with; None if it always offers what it is asked for."""
    deliveries: Deliveries | None = None
    observers: Sequence[Observer] = ()
    on_end: Callable[[Ints, NDArray[np.float64]], None] | None = None
    """Told the indices of requests that have ended, and when, some time afterwards; see
    `announces_ends`."""
    announces_ends: bool = False
    """Whether the replica stops where requests end, so that others hear of it in time."""
    origin: float = 0.0
    """First arrival of the run, seconds."""


def table_of(setup: Setup, costs: StepCosts, speculation: Speculation, wiring: Wiring) -> Table:
    """Return the table of a replica, which sees what is shared and what it decides by itself."""
    records, deliveries = wiring.records, wiring.deliveries
    compiled = costs.compiled()
    lens_by_size = speculation.lens_by_size(setup.limits["max_num_running"])
    may_differ = lens_by_size is None and not speculation.drafts_trees
    limits = {
        "keeps_steps": int(records.step_log is not None),
        "keeps_deliveries": int(deliveries is not None),
        "announces_ends": int(wiring.announces_ends),
        "has_offers": int(wiring.offers is not None),
        "leaves_out": int(speculation.leaves_out),
        "drafts_alike": int(setup.is_async and may_differ),
        "charges_pieces": int(costs.target.uses_pieces and compiled.target is not None),
    }
    shared: dict[str, Any] = {
        "facts": wiring.facts.rows,
        "keys": wiring.facts.keys,
        "totals": records.totals,
        "outcomes": records.outcomes,
        "costs": compiled.numbers,
        "adapters": _adapters(wiring.facts.num_adapters),
        "adapter_costs": np.array(costs.adapters.numbers),
    }
    if wiring.fates is not None:
        shared["fates"] = wiring.fates
    if wiring.offers is not None:
        shared["offers"] = wiring.offers
    if deliveries is not None:
        shared["delivered_at"] = deliveries.at
        shared["delivered_lens"] = deliveries.lens
        shared["drafted_lens"] = deliveries.drafted
        shared["accepted_lens"] = deliveries.accepted
    for name, form in (("target", compiled.target), ("drafter", compiled.drafter)):
        if form is not None:
            shared[name] = form
    if lens_by_size is not None:
        shared["lens_by_size"] = lens_by_size
    shared |= speculation.shared()
    if speculation.is_loops:  # others are told what the source says
        seen = ("sees_confidences", "shows_drafts")
        limits |= {name: int(getattr(speculation, name)) for name in seen}
    setup = replace(setup, limits={**setup.limits, **limits})
    return setup.table(wiring.facts.longest_len, **shared)


def zeros(name: str, *shape: int) -> NDArray[Any]:
    """Return an array of a table, of its type, all zero."""
    return np.zeros(shape, dtype=ARRAY_TYPES[name][0])


def linked_rows(size: int, first: int = 0) -> NDArray[Any]:
    """Return unused rows of sequences, of which each leads to the next; numbered from `first`."""
    rows = zeros("sequences", size)
    rows["next_row"] = np.arange(first + 1, first + size + 1)
    rows["next_row"][-1] = NO_ROW
    rows["tables_at"] = -1
    return rows


def _blank_sequence() -> NDArray[Any]:
    blank = linked_rows(1)
    blank["next_publish_len"] = NEVER
    blank["preempted_in"] = -1
    return blank


def _state(most: int, most_holding: int, num_blocks: int) -> NDArray[Any]:
    state = zeros("state", 1)
    state["slowness"] = 1.0
    state["queue_head"] = state["queue_tail"] = state["fenced_head"] = NO_ROW
    state["num_free_tables"], state["most_run"] = most_holding, most
    state["num_free"] = num_blocks - 1
    return state


def _stages(shares: Sequence[float]) -> NDArray[Any]:
    stages = zeros("stages", len(shares))
    stages["share"] = shares
    return stages


def _adapters(count: int = 0) -> NDArray[Any]:
    """Return LoRA adapters, from 1, of which none has been used."""
    adapters = zeros("adapters", 1 + count)
    adapters["scheduled_in"] = adapters["charged_in"] = -1
    return adapters


@lru_cache(maxsize=1)
def _blocks(num_blocks: int) -> NDArray[Any]:
    """Return the pool, to be copied: every block but the null block is free, in order."""
    blocks = zeros("blocks", num_blocks)
    blocks["key"] = NO_KEY
    numbers: Ints = np.arange(num_blocks)
    blocks["following"], blocks["preceding"] = np.roll(numbers, -1), np.roll(numbers, 1)
    blocks.flags.writeable = False
    return blocks
