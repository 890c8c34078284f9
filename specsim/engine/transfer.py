"""Transfer: how KV entries come from another replica, host memory or disk, and what that takes."""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from specsim.core.settings import Settings
from specsim.engine.front import Lanes
from specsim.engine.table import LOAD_ENDED
from specsim.hardware import GIB

if TYPE_CHECKING:
    from specsim.engine.cluster import Cluster, EventClock
    from specsim.engine.replica import Replica


class LinkConfig(Settings):
    """How fast KV entries come through a link."""

    bandwidth_gb_s: Annotated[float, Field(gt=0)] = 50.0
    """In 1e9 bytes a second, of all GPUs of a replica together; by default 400 Gbit/s."""
    latency_ms: Annotated[float, Field(ge=0)] = 0.0
    """What each transfer takes besides, without occupying the link."""
    max_transfers: Annotated[int, Field(ge=1, le=4096)] = 1
    """Transfers at once on one link, first come first served; each has its share of the bandwidth,
    whether the others are used or not."""


class TierConfig(LinkConfig):
    """Room for KV blocks, and the way from there."""

    blocks: Annotated[int, Field(ge=1, le=1 << 26)] | None = None
    gib: Annotated[float, Field(gt=0, le=1 << 20)] | None = None
    """In place of `blocks`, the memory of one replica."""

    @model_validator(mode="after")
    def _check_size(self) -> Self:
        if (self.blocks is None) == (self.gib is None):
            raise ValueError("give either blocks or gib")
        return self

    def num_blocks(self, block_bytes: float) -> int:
        """Return how many blocks there is room for; at least one."""
        return self.blocks or min(1 << 26, max(1, int((self.gib or 0.0) * GIB / block_bytes)))


class OffloadConfig(TierConfig):
    """Host memory behind the GPU's cache, and disk behind that (vLLM: OffloadingConnector)."""

    offload_prompt_only: bool = True
    """If false, blocks of outputs are copied, too."""
    disk: TierConfig | None = None
    """What is read from it comes through host memory."""


class TransferConfig(LinkConfig):
    """The links between the pools, and what crosses them."""

    link: Literal["decode", "prefill", "all"] = "decode"
    """Whose links they are: one of each decode replica, of each prefill replica, or one of all."""
    overlap: Literal["none", "layers"] = "none"
    """``layers``: layers are sent while later ones are computed, so that after the prefill only the
    last one is left, or what the link has not managed until then."""
    draft_kv: Literal["moved", "recomputed", "cold"] = "moved"
    """The KV entries of a drafter that reads prompts: made by the prefill pool and ``moved`` with
    the others, ``recomputed`` by the drafter of the decode replica, or missing (``cold``), so that
    nothing is drafted for the request."""


class KVPart(NamedTuple):
    """Layers of which a transfer moves as much."""

    per_token: float
    """Bytes, over all GPUs of a replica."""
    most_tokens: float
    """That are moved: the last ones, which a window reads."""


@dataclass(frozen=True)
class KVSize:
    """What a transfer moves.

    Source: vLLM 0.33.0 ``nixl/base_scheduler.py get_exchange_clipped_blocks``.
    """

    parts: tuple[KVPart, ...]
    last_share: float
    """Part of it that the last layer is."""
    state_bytes: float = 0.0
    """States of layers that keep one, whatever the length."""

    def of(self, tokens: int) -> float:
        """Return the bytes of so many tokens, which end where a prompt does."""
        moved = (part.per_token * min(tokens, part.most_tokens) for part in self.parts)
        return sum(moved) + self.state_bytes


class Link:
    """One link: lanes, each of which makes one transfer at a time."""

    def __init__(self, config: LinkConfig) -> None:
        self._lanes = Lanes(config.max_transfers)
        self._rate = config.bandwidth_gb_s * 1e9 / config.max_transfers
        self._latency = config.latency_ms * 1e-3

    def book(self, now: float, size: float, tail_size: float, ready_at: float) -> float:
        """Return when a transfer ends that is asked for now.

        Args:
            size: All that has to cross the link, bytes.
            tail_size: What of it does not exist before now.
            ready_at: When the first byte existed; the link may have begun then.
        """
        last_at = now + tail_size / self._rate
        ends_at = self._lanes.book(now, size / self._rate, ready_at=ready_at, not_before=last_at)
        return ends_at + self._latency


TIER_FIELDS = np.dtype([("host_len", "<i4"), ("disk_len", "<i4"), ("load_time", "<f8")])
"""By request: tokens loaded from host memory and from disk for its first admission, and the time
from when loads were asked for until the last of each was there, over all admissions, seconds."""


class Offload:
    """The links between the tiers of each replica."""

    def __init__(
        self, clock: "EventClock", num_requests: int, config: OffloadConfig, block_bytes: float
    ) -> None:
        self._clock, self._block_bytes = clock, block_bytes
        self._host_links: dict[Replica, Link] = defaultdict(lambda: Link(config))
        disk = config.disk or config
        self._disk_links: dict[Replica, Link] = defaultdict(lambda: Link(disk))
        self.loads = np.zeros(num_requests, dtype=TIER_FIELDS)
        self.cluster: Cluster

    def noticed(self, replica: "Replica", notices: NDArray[np.void]) -> None:
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
        replica: "Replica",
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

    def _end(self, replica: "Replica", request: int, row: int, lens: tuple[int, int]) -> None:
        if not replica.is_up:
            return
        if not replica.table.sequences["admissions"][row]:  # as of hits in the GPU's cache
            self.loads["host_len"][request], self.loads["disk_len"][request] = lens
        self.cluster.tell(replica, LOAD_ENDED, request, row)
