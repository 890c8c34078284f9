"""Offload: what it takes to load KV blocks from host memory and disk into a GPU's cache."""

from collections import defaultdict
from collections.abc import Callable
from functools import partial

import numpy as np
from numpy.typing import NDArray

from specsim.engine.cluster import Cluster, EventClock
from specsim.engine.replica import Replica
from specsim.engine.table import LOAD_ENDED
from specsim.engine.transfer import Link, OffloadConfig

TIER_FIELDS = np.dtype([("host_len", "<i4"), ("disk_len", "<i4"), ("load_time", "<f8")])
"""By request: tokens loaded from host memory and from disk for its first admission, and the time
from when loads were asked for until the last of each was there, over all admissions, seconds."""


class Offload:
    """The links between the tiers of each replica."""

    def __init__(
        self, clock: EventClock, num_requests: int, config: OffloadConfig, block_bytes: float
    ) -> None:
        self._clock, self._block_bytes = clock, block_bytes
        self._host_links: dict[Replica, Link] = defaultdict(lambda: Link(config))
        disk = config.disk or config
        self._disk_links: dict[Replica, Link] = defaultdict(lambda: Link(disk))
        self.loads = np.zeros(num_requests, dtype=TIER_FIELDS)
        self.cluster: Cluster

    def noticed(self, replica: Replica, notices: NDArray[np.void]) -> None:
        """Begin the loads that a replica asks for; what is on disk comes through host memory."""
        for notice in notices:
            # A replica that runs ahead asks later than the clock shows.
            request, now = int(notice["request"]), float(notice["at"])
            blocks, disk_blocks = int(notice["blocks"]), int(notice["disk_blocks"])
            disk_len = int(notice["tokens"]) * disk_blocks // blocks
            lens = int(notice["tokens"]) - disk_len, disk_len
            end = partial(self._end, replica, request, int(notice["row"]), lens)
            load = partial(self._load, replica, request, blocks, end, now)
            if disk_blocks:
                size = disk_blocks * self._block_bytes
                read_at = self._disk_links[replica].book(now, size, size, now)
                self._clock.call_at(read_at, partial(load, read_at))
            else:
                load(now)

    def _load(
        self,
        replica: Replica,
        request: int,
        blocks: int,
        end: Callable[[], None],
        asked_at: float,
        at: float,
    ) -> None:
        """Load from host memory, where all is at an instant."""
        size = blocks * self._block_bytes
        ends_at = self._host_links[replica].book(at, size, size, at)
        self.loads["load_time"][request] += ends_at - asked_at
        self._clock.call_at(ends_at, end)

    def _end(self, replica: Replica, request: int, row: int, lens: tuple[int, int]) -> None:
        if not replica.is_up:
            return
        if not replica.table.sequences["admissions"][row]:  # as of hits in the GPU's cache
            self.loads["host_len"][request], self.loads["disk_len"][request] = lens
        self.cluster.tell(replica, LOAD_ENDED, request, row)
