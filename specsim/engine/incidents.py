"""Incidents: a replica fails, or gets slow, at a given time."""

from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Annotated, Literal, Protocol, Self

from pydantic import BeforeValidator, Field, model_validator

from specsim.core.settings import Settings


class Replicas(Protocol):
    """What incidents happen to; see `specsim.engine.cluster.Cluster`."""

    def fail(self, number: int) -> None:
        """Let a replica die."""

    def restore(self, number: int) -> None:
        """Start a replica that has died."""

    def slow_down(self, number: int, factor: float) -> None:
        """Let a replica take `factor` times as long for everything; 1 ends it."""


class _Incident(Settings):
    replica: Annotated[int, Field(ge=0)]
    """Its number, from 0."""
    pool: Literal["prefill", "decode"] | None = None
    """The pool in which it has that number, where there are pools."""
    at: Annotated[float, Field(ge=0)]
    """When it begins, seconds after the start of the run."""
    until: float | None = None
    """When it is over, seconds after the start of the run; left out, never."""

    @model_validator(mode="after")
    def _check_times(self) -> Self:
        if self.until is not None and self.until <= self.at:
            raise ValueError(f"until = {self.until} must be after at = {self.at}")
        return self


class Failure(_Incident):
    """A replica dies, and comes back with empty caches and no memory.

    The step that it is in is lost. Its requests, running and waiting, are queued again at other
    replicas: tokens that were delivered stay delivered, and the prompt and these tokens are
    prefilled again, as after a preemption.
    """

    kind: Literal["failure"] = "failure"

    def begin(self, replicas: Replicas) -> None:
        """Let the replica fail."""
        replicas.fail(self.replica)

    def end(self, replicas: Replicas) -> None:
        """Start it again."""
        replicas.restore(self.replica)


class Slowdown(_Incident):
    """Every step that a replica schedules takes longer: target, drafts and overhead alike.

    Policies are not told; one that times its steps can notice.
    """

    kind: Literal["slowdown"] = "slowdown"
    factor: Annotated[float, Field(gt=0, le=1e6)]
    """How many times as long; below 1 it is faster than its profile says."""

    def begin(self, replicas: Replicas) -> None:
        """Slow the replica down."""
        replicas.slow_down(self.replica, self.factor)

    def end(self, replicas: Replicas) -> None:
        """Let it run as usual."""
        replicas.slow_down(self.replica, 1.0)


def _of_known_kind(value: object) -> object:
    kind = value.get("kind") if isinstance(value, dict) else getattr(value, "kind", None)
    if kind not in ("failure", "slowdown"):
        raise ValueError(f"{value!r} must be a mapping with kind: failure or kind: slowdown")
    return value


Incident = Annotated[
    Failure | Slowdown, Field(discriminator="kind"), BeforeValidator(_of_known_kind)
]
"""One entry of ``incidents`` in an experiment."""


def check_incidents(
    incidents: Iterable[Failure | Slowdown], sizes: Mapping[str | None, int]
) -> None:
    """Raise a ValueError unless there are such replicas and each has one incident at a time.

    `sizes` are replicas by pool; of None, where there are no pools.
    """
    by_replica: dict[tuple[str | None, int], list[Failure | Slowdown]] = {}
    for number, incident in enumerate(incidents):
        if incident.pool not in sizes:
            say = "leave it out, for there are no pools"
            if None not in sizes:
                say = "say which pool the replica is in, prefill or decode"
            raise ValueError(f"incidents.{number}.pool = {incident.pool}: {say}")
        replicas = sizes[incident.pool]
        if incident.replica >= replicas:
            raise ValueError(
                f"incidents.{number}.replica = {incident.replica}: replicas = {replicas}, so their "
                f"numbers are 0 to {replicas - 1}"
            )
        by_replica.setdefault((incident.pool, incident.replica), []).append(incident)
    for (_, replica), mine in by_replica.items():
        mine.sort(key=lambda incident: incident.at)
        for first, second in pairwise(mine):
            if first.until is None or first.until > second.at:
                end = "for good" if first.until is None else f"until {first.until}"
                raise ValueError(
                    f"incidents of replica {replica} overlap: {first.kind} from {first.at} {end}, "
                    f"and {second.kind} from {second.at}; let one end before the next begins"
                )
