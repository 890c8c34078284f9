"""Pools: prompts are computed by some replicas, and answered by others.

A request is prefilled in one cluster, which keeps its blocks. Another then decodes it: its
scheduler reserves blocks for the prompt, whose KV entries are transferred; then the prefill blocks
are free, and the decode replica computes the last token of the prompt again, which yields the
first output token.

Sources: vLLM 0.32.0 ``distributed/kv_transfer/kv_connector/v1/nixl/pull_scheduler.py``:
`request_finished`, `get_num_new_matched_tokens`, `update_state_after_alloc`.
"""

from collections import defaultdict
from collections.abc import Callable
from functools import partial
from math import inf
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from specsim.core.errors import InvariantError
from specsim.core.request import Request
from specsim.core.step import Ints
from specsim.engine.cluster import Cluster, EventClock
from specsim.engine.front import Front
from specsim.engine.replica import Replica
from specsim.engine.table import BLOCKS_HELD, BLOCKS_READ, LOAD_ENDED, LOAD_FAILED
from specsim.engine.transfer import KVSize, Link, TransferConfig

TRANSFER_FIELDS = np.dtype(
    [
        ("prefilled_at", "<f8"),
        ("transfer_began_at", "<f8"),
        ("transfer_ended_at", "<f8"),
        ("transferred_len", "<i4"),
        ("transfers", "<i4"),
    ]
)
"""By request: when its prefill ended; of its last transfer when it was asked for and when it ended;
the tokens that crossed a link, in how many transfers. Times in seconds, not a number if never."""


class PoolCluster(Cluster):
    """The replicas of one pool."""

    is_alone = False
    has_notices = True

    def __init__(self, clock: EventClock, *parts: Any, **more: Any) -> None:
        super().__init__(clock, *parts, keeps_up=True, **more)
        self.before_failure: Callable[[Replica], None] = lambda _: None
        self.has_gone: Callable[[Replica], None] = lambda _: None
        self.keeps: Callable[[Replica], bool] = lambda _: False
        self.held_len: Callable[[int], int] = lambda _: 0

    def external_len(self, request: int) -> int:
        """Return how many tokens of a request's KV entries wait in the prefill pool."""
        return self.held_len(request)

    def fail(self, number: int) -> None:
        """Let a replica die, after what it held or loaded has been given up."""
        self.before_failure(self._at_now(number))
        super().fail(number)

    def retire(self, number: int) -> float | None:
        """Let a draining replica go whose blocks nobody has yet to read; else return None."""
        replica = self._at_now(number)
        if self.keeps(replica) or replica.next_at < inf:
            return None
        done_at = super().retire(number)
        if done_at is not None:
            self.has_gone(replica)
        return done_at

    def forget_external(self, request: int) -> None:
        """Let a request that waits anywhere compute its whole prompt."""
        for replica in self.up:
            replica.forget_external(request)


class _Place(NamedTuple):
    replica: Replica
    row: int


class Pools:
    """What happens between the prefill pool and the decode pool."""

    def __init__(
        self,
        clock: EventClock,
        requests: list[Request],
        config: TransferConfig,
        size: KVSize,
        kept_back_len: int = 0,
    ) -> None:
        """Begin with nothing kept or moved.

        Args:
            kept_back_len: Tokens at the end of a prompt that are computed where it is decoded.
        """
        self._clock, self._requests, self._kept_back_len = clock, requests, kept_back_len
        self._config, self.size = config, size
        self._links: dict[Any, Link] = defaultdict(lambda: Link(config))
        self._held: dict[int, _Place] = {}
        """Where the prefill pool keeps blocks of a request."""
        self._loads: dict[int, _Place] = {}
        """Where the decode pool has blocks that are being loaded into."""
        self.transfers = np.zeros(len(requests), dtype=TRANSFER_FIELDS)
        for name in ("prefilled_at", "transfer_began_at", "transfer_ended_at"):
            self.transfers[name] = np.nan
        self._prefill_began_at = np.zeros(len(requests))

    def join(self, prefill: PoolCluster, decode: PoolCluster, front: Front) -> None:
        """Put the pools together; a request goes through a front end from one to the other."""
        self._prefill, self._decode, self._front = prefill, decode, front
        prefill.before_failure, decode.before_failure = self._lose_held, self._lose_loads
        prefill.keeps, decode.held_len = self._keeps, self.held_len

    def _keeps(self, replica: Replica) -> bool:
        return any(place.replica is replica for place in self._held.values())

    def held_len(self, request: int) -> int:
        """Return how many tokens of a request's KV entries the prefill pool has for another."""
        if request not in self._held:
            return 0
        prompt_len = self._requests[request].prompt_len
        kept_back_len = self._kept_back_len if prompt_len > self._kept_back_len else 0
        return prompt_len - kept_back_len

    def prefilled(self, requests: Ints, at: NDArray[np.float64]) -> None:
        """Send requests that have been prefilled on to the decode pool."""
        for request, instant in zip(requests.tolist(), at.tolist(), strict=True):
            self.transfers["prefilled_at"][request] = instant
            sent = self._requests[request]
            reaches_at = self._front.reaches_at(instant, request, sent.prompt_len)
            self._clock.call_at(reaches_at, partial(self._decode.submit, sent))

    def noticed(self, replica: Replica, notices: NDArray[np.void]) -> None:
        """Begin what replicas wait for."""
        for notice in notices:
            request, place = int(notice["request"]), _Place(replica, int(notice["row"]))
            if notice["kind"] == BLOCKS_HELD:
                self._held[request] = place
                row: Any = replica.table.sequences[place.row]
                self._prefill_began_at[request] = row["first_scheduled_at"]
            else:
                self._begin(request, place, int(notice["tokens"]))

    def _begin(self, request: int, target: _Place, tokens: int) -> None:
        """Transfer KV entries of a request."""
        now, source = self._clock.now, self._held[request]
        links = {"decode": target.replica, "prefill": source.replica, "all": None}
        size = self.size.of(tokens)
        overlaps = self._config.overlap == "layers"
        ends_at = self._links[links[self._config.link]].book(
            now,
            size,
            size * self.size.last_share if overlaps else size,
            self._prefill_began_at[request] if overlaps else now,
        )
        self._loads[request] = target
        row: Any = self.transfers[request]
        row["transfer_began_at"] = now
        row["transferred_len"] += tokens
        row["transfers"] += 1
        self._clock.call_at(ends_at, partial(self._end, request, target))

    def _end(self, request: int, target: _Place) -> None:
        """End a transfer, unless it has been given up."""
        if self._loads.get(request) is not target:
            return
        del self._loads[request]
        self.transfers["transfer_ended_at"][request] = self._clock.now
        self._decode.tell(target.replica, LOAD_ENDED, request, target.row)
        source = self._held.pop(request)
        self._prefill.tell(source.replica, BLOCKS_READ, request, source.row)

    def _lose_held(self, replica: Replica) -> None:
        """Give up what a prefill replica kept: who waits for it computes its prompt itself."""
        self._links.pop(replica, None)
        for request, place in list(self._held.items()):
            if place.replica is not replica:
                continue
            del self._held[request]
            target = self._loads.pop(request, None)
            if target is None:
                self._decode.forget_external(request)
            else:
                self._decode.tell(target.replica, LOAD_FAILED, request, target.row)

    def _lose_loads(self, replica: Replica) -> None:
        """Give up what a decode replica loaded; it can be transferred to another."""
        self._links.pop(replica, None)
        for request, place in list(self._loads.items()):
            if place.replica is replica:
                del self._loads[request]

    def check(self, replicas: list[Replica]) -> None:
        """Raise if blocks are in use, kept or loaded into, when everything has ended.

        Raises:
            InvariantError
        """
        if self._held or self._loads:
            raise InvariantError(
                f"{len(self._held)} requests hold prefill blocks and {len(self._loads)} load when "
                "all have ended"
            )
        for replica in replicas:
            check_free(replica)


def check_free(replica: Replica) -> None:
    """Raise an InvariantError if any block of a replica that has nothing left is in use."""
    free, blocks = int(replica.table.state["num_free"][0]), len(replica.table.blocks)
    if free + 1 != blocks:
        raise InvariantError(f"free blocks ({free}) + null (1) != total ({blocks}) at last")
