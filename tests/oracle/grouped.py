"""GroupedKVCache: the block rules of a model whose layers differ.

Sources: vLLM 0.32.0 ``v1/core/single_type_kv_cache_manager.py`` and
``v1/core/kv_cache_coordinator.py``, re-implemented from a description of their behaviour.

Slow and plain: every allocation looks at every window, every publication at every block.
"""

from dataclasses import dataclass

from oracle.block_pool import BlockPool
from oracle.kv_cache import KVLimits
from oracle.sequence import NEVER, Sequence
from specsim.hardware.kv_groups import KVGroup, KVLayout

__all__ = ["GroupedKVCache", "Windows"]

_NULL = 0


@dataclass(frozen=True, slots=True)
class Windows:
    """What a cache with groups has to know besides its limits."""

    layout: KVLayout
    in_flight_tokens: int
    """Most tokens of one sequence in steps that are in flight."""
    drops_in_last: bool
    """Whether only the groups of the last layer's bucket drop the last block of a hit."""
    retention_len: int | None
    """Tokens after which the prefix of a window is kept; None wherever a hit may end."""


class GroupedKVCache:
    """Block rules of one engine with several groups; the interface is that of `KVCache`.

    Parameters
    ----------
    limits : KVLimits
    windows : Windows
    """

    def __init__(self, limits: KVLimits, windows: Windows) -> None:
        self.pool = BlockPool(limits.num_blocks)
        self._limits = limits
        self._windows = windows
        self._groups = windows.layout.groups
        self._unit = windows.layout.hash_block_size
        self._common = windows.layout.common_block_size
        buckets: dict[int, list[int]] = {}
        for number, group in enumerate(self._groups):
            buckets.setdefault(group.bucket, []).append(number)
        full = [b for b in buckets.values() if self._groups[b[0]].kind == "full_attention"]
        self._buckets = full + [b for b in buckets.values() if b not in full]

    @property
    def num_free(self) -> int:
        """Blocks that nobody holds."""
        return self.pool.num_free

    def blocks_of(self, sequence: Sequence) -> list[int]:
        """Return what a sequence holds in all groups, without null blocks."""
        return [block for table in sequence.tables for block in table if block != _NULL]

    def cached_prefix(self, sequence: Sequence) -> list[list[int]]:
        """Return the blocks of the longest prefix that all groups have, by group."""
        if not self._limits.enable_prefix_caching:
            return [[] for _ in self._groups]
        if not sequence.block_keys:
            sequence.block_keys = sequence.request.block_keys(self._unit)
        if len(self._groups) == 1:
            return self._found(sequence, [0], sequence.known_len - 1, drops=self._drops(0))[0]
        return self._common_prefix(sequence)

    def hit_len(self, hit: list[list[int]]) -> int:
        """Return the tokens of a hit."""
        return len(hit[0]) * self._groups[0].block_size

    def _common_prefix(self, sequence: Sequence) -> list[list[int]]:
        hashed_len = sequence.known_len // self._unit * self._unit
        hit_len, longest = sequence.known_len - 1, 0
        found: dict[int, tuple[list[list[int]], int]] = {}
        dropped: set[int] = set()
        while True:
            length = hit_len
            for place, bucket in enumerate(self._buckets):
                group = self._groups[bucket[0]]
                if place in found and group.kind == "full_attention":
                    length = min(length, found[place][1])
                    continue
                drops = self._drops(bucket[0]) and place not in dropped
                most = min(length + group.block_size, hashed_len) if drops else length
                found[place] = self._found(sequence, bucket, most, drops=drops)
                if drops:
                    dropped.add(place)
                elif found[place][1] < length:
                    dropped.clear()
                length = found[place][1]
                longest = max(longest, length)
            if length >= hit_len:
                break
            hit_len = length
            first = self._groups[self._buckets[0][0]]
            if len(self._buckets) == 2 and first.kind == "full_attention":
                break
        sequence.junction_len = longest if longest > hit_len else 0
        hit: list[list[int]] = [[] for _ in self._groups]
        for place, bucket in enumerate(self._buckets):
            for number, blocks in zip(bucket, found[place][0], strict=True):
                hit[number] = blocks[: hit_len // self._groups[number].block_size]
        return hit

    def _found(
        self, sequence: Sequence, bucket: list[int], most_len: int, *, drops: bool
    ) -> tuple[list[list[int]], int]:
        """Return what a bucket has of a prefix, by group, and how long that is."""
        group = self._groups[bucket[0]]
        size = group.block_size
        cached = [self._cached(sequence, bucket, place) for place in range(most_len // size)]
        needed = range(0)
        if group.kind == "sliding_window":
            end, needed = self._window_end(group, [bool(each) for each in cached], drops=drops)
        else:
            first = 0
            if group.span_len:
                first = most_len // group.span_len * group.span_len // size
            end = first
            while end < len(cached) and cached[end]:
                end += 1
            needed = range(first, end)
        if drops and end:
            end -= 1
        while end * size % self._common:
            end -= 1
        tables = [
            [(cached[place] or [])[n] if place in needed else _NULL for place in range(end)]
            for n in range(len(bucket))
        ]
        return tables, end * size

    def _window_end(
        self, group: KVGroup, is_cached: list[bool], *, drops: bool
    ) -> tuple[int, range]:
        """Return where the hit of a window ends, the block that is dropped included, and its run.

        The rightmost run of cached blocks that is long enough, or one from the start.
        """
        size, length = group.block_size, -(-(group.span_len - 1) // group.block_size) + drops
        run: list[int] = []
        for place in reversed(range(len(is_cached))):
            may_begin = (place + 1 - drops) * size % self._common == 0
            if not is_cached[place]:
                run = []
            elif run or may_begin:
                run.insert(0, place)
                if len(run) >= length:
                    return run[-1] + 1, range(run[0], run[-1] + 1)
        end = len(run)
        while end * size % self._common:
            end -= 1
        return end, range(end)

    def _drops(self, number: int) -> bool:
        in_last = self._groups[number].has_last_layer or not self._windows.drops_in_last
        return self._limits.drops_last_hit and in_last

    def _key(self, sequence: Sequence, number: int, place: int) -> tuple[object, ...]:
        per_block = self._groups[number].block_size // self._unit
        return (number, sequence.block_keys[(place + 1) * per_block - 1])

    def _cached(self, sequence: Sequence, bucket: list[int], place: int) -> list[int] | None:
        """Return a block of each group of a bucket, if all of them have one."""
        blocks = [self.pool.find(self._key(sequence, number, place)) for number in bucket]
        return None if None in blocks else blocks

    def admit(
        self, sequence: Sequence, hit: list[list[int]], scheduled_len: int, *, is_busy: bool
    ) -> bool:
        """Give a waiting sequence the blocks of its hit and of its first piece, or nothing."""
        limits, known_len = self._limits, min(sequence.known_len, self._limits.max_model_len)
        end_len = self.hit_len(hit) + scheduled_len
        unavailable = self.pool.count_unheld(b for blocks in hit for b in blocks if b != _NULL)
        if is_busy:
            unavailable += limits.watermark_blocks
        if limits.reserve_full_prompt:
            whole = 0
            for group, blocks in zip(self._groups, hit, strict=True):
                most = -(-known_len // group.block_size)
                if group.span_len:
                    limit = limits.max_model_len, self._windows.in_flight_tokens
                    most = min(most, group.most_blocks(*limit))
                whole += max(0, most - len(blocks))
            if whole + unavailable > self.num_free:
                return False
        needed = self._needed(hit, end_len)
        if sum(needed) + unavailable > self.num_free:
            return False
        for blocks in hit:
            self.pool.share(block for block in blocks if block != _NULL)
        sequence.tables = [list(blocks) for blocks in hit]
        sequence.looked_at = [len(blocks) for blocks in hit]
        self._take(sequence, needed)
        self.publish(sequence, end_len)
        return True

    def _needed(self, tables: list[list[int]], end_len: int) -> list[int]:
        reach = min(end_len + self._limits.lookahead_len, self._limits.max_model_len)
        return [
            max(0, -(-reach // group.block_size) - len(table))
            for group, table in zip(self._groups, tables, strict=True)
        ]

    def _take(self, sequence: Sequence, counts: list[int]) -> None:
        for table, count in zip(sequence.tables, counts, strict=True):
            if count:
                table.extend(self.pool.allocate(count) or ())
        sequence.capacity_len = -1  # every step asks anew
        sequence.next_publish_len = 0 if self._limits.enable_prefix_caching else NEVER

    def extend(self, sequence: Sequence, end_len: int) -> bool:
        """Take back what has left a window; give what is lacked up to `end_len`, or nothing."""
        settled_len = sequence.computed_len - sequence.in_flight_len
        for group, table in zip(self._groups, sequence.tables, strict=True):
            left_len = 0
            if group.kind == "sliding_window":
                left_len = max(0, settled_len + 1 - group.span_len)
            elif group.span_len:
                left_len = settled_len - settled_len % group.span_len
            left = range(min(left_len // group.block_size, len(table)))
            self.pool.release([table[place] for place in left if table[place] != _NULL])
            for place in left:
                table[place] = _NULL
        needed = self._needed(sequence.tables, end_len)
        if sum(needed) > self.num_free:
            return False
        self._take(sequence, needed)
        return True

    def publish(self, sequence: Sequence, end_len: int) -> None:
        """Publish what each group keeps of the full blocks up to `end_len`."""
        if not self._limits.enable_prefix_caching:
            return
        known_len = min(end_len, sequence.known_len)
        whole_len = known_len - known_len % self._common
        for number, group in enumerate(self._groups):
            table, size = sequence.tables[number], group.block_size
            length = known_len if len(self._groups) == 1 else whole_len
            if self._drops(number) and whole_len:
                length = min(known_len, whole_len + size)
            for place in range(sequence.looked_at[number], length // size):
                if table[place] != _NULL and self._keeps(sequence, number, place):
                    self.pool.forget(table[place])
                    self.pool.publish([table[place]], [self._key(sequence, number, place)])
            sequence.looked_at[number] = max(sequence.looked_at[number], length // size)
            tail = sequence.prompt_len - sequence.prompt_len % self._unit
            if group.span_len == 0 and self._drops(number) and tail % size and tail <= length:
                block = table[tail // size]
                if not self.pool.is_published(block):
                    self.pool.publish([block], [(number, "a prompt ends here", tail, block)])

    def _keeps(self, sequence: Sequence, number: int, place: int) -> bool:
        group, shift = self._groups[number], int(self._drops(number))
        if group.kind != "sliding_window":
            return True
        size = group.block_size
        tail = -(-(group.span_len - 1) // size) + shift
        kept_len = self._windows.retention_len
        period = (self._common if kept_len is None else kept_len) // size
        if period and (
            tail >= period or (place >= shift and (place - shift) % period >= period - tail)
        ):
            return True
        if kept_len is None:
            return False
        marks = {sequence.prompt_len - 1}
        if self._limits.drops_last_hit:
            ends = {sequence.prompt_len - 1, sequence.prompt_len}
            marks = {max(0, end // self._common * self._common - self._common) for end in ends}
        if sequence.junction_len:
            marks.add(sequence.junction_len)
        ends = {mark // self._common * self._common // size + shift for mark in marks}
        return any(place in range(end - tail, end) for end in ends)

    def release(self, sequence: Sequence) -> None:
        """Take every block away from a sequence that ends or is preempted."""
        for table in sequence.tables:
            self.pool.release([block for block in table if block != _NULL])
        sequence.tables = []
        sequence.looked_at = []
        sequence.next_publish_len = NEVER
