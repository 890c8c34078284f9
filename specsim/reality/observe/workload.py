"""Sending a workload: the requests as token ids, and their times."""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from specsim.core.errors import ConfigError
from specsim.core.request import UNRECORDED, Request
from specsim.core.rng import generator
from specsim.core.settings import Settings, load_mapping, overridden, validated
from specsim.engine.config import EngineConfig
from specsim.policies import POLICIES, Policy
from specsim.reality.observe.client import INTERRUPTED, Client, StreamedAnswer
from specsim.run.experiment import Experiment
from specsim.workload import WorkloadConfig
from specsim.workload.arrivals.patterns import ClosedLoop, TraceReplay


class _Observed(Settings):
    """A file with only those parts of an experiment that apply to a real server."""

    workload: WorkloadConfig
    engine: EngineConfig = EngineConfig()
    """The server's options, as it was started."""
    policy: Annotated[Policy, POLICIES] | None = None
    """The policy in the server, if it is not vLLM itself."""
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0


@dataclass(frozen=True)
class Workload:
    """Requests, and when to send them."""

    requests: list[Request]
    seed: int
    engine_kwargs: dict[str, Any]  # section ``engine``: the server's options by the user
    concurrency: int | None  # clients of a closed loop; None for an open one
    think_times: list[float]  # in a closed loop, each client's wait before each request, seconds
    policy: Any = None  # section ``policy``: the server's policy by the user
    replicas: dict[str, Any] = field(default_factory=dict)
    """Of an experiment with several replicas: its fields ``replicas`` and ``routing``, and names of
    parts that are ``not_recorded``."""
    notes: tuple[str, ...] = ()  # differences from a simulation


def load_workload(path: Path, overrides: list[str]) -> Workload:
    """Return the requests of an experiment, or of its ``workload`` (``engine``, ``seed``) alone.

    A ``policy`` is the server's. Overrides are like those of ``specsim run``:
    ``workload.arrivals.rate=4``.
    """
    data = overridden(load_mapping(path, ConfigError), overrides)
    if "workload" not in data:
        raise ConfigError(
            f"{path}: has no section 'workload' (arrivals, lengths, num_requests); add it, or "
            "name an experiment"
        )
    config: Experiment | _Observed
    if "profile" not in data:
        with validated(str(path), ConfigError):
            config = _Observed.model_validate(data)
    else:
        config = Experiment.parse(data, str(path))
    requests = list(config.workload.build(config.seed).requests())
    arrivals, notes = config.workload.arrivals, _turns_alone(config.workload, requests, path)
    if any(request.adapter for request in requests):
        notes += (
            "all requests are for one model: the adapters of the workload were not asked for",
        )
    concurrency, think_times = None, [0.0] * len(requests)
    if isinstance(arrivals, ClosedLoop):
        concurrency = arrivals.concurrency
        rng = generator(config.seed, "think_times")  # the simulator's stream
        think_times = arrivals.think_times(rng, len(requests)).tolist()
    replicas = _replicas(config)
    if missing := replicas.get("not_recorded"):
        notes += (
            f"{', '.join(missing)} of the experiment are not recorded: specsim validate simulates "
            "the run without",
        )
    return Workload(
        requests,
        config.seed,
        data.get("engine", {}),
        concurrency,
        think_times,
        data.get("policy"),
        replicas,
        notes,
    )


def _replicas(config: "Experiment | _Observed") -> dict[str, Any]:
    """Return the fields of ``meta.json`` on an experiment's replicas, and what it cannot hold."""
    if not isinstance(config, Experiment):
        return {}
    found: dict[str, Any] = {}
    if config.replicas > 1:
        routing = config.routing.model_dump(mode="json", exclude_none=True)
        found |= {"replicas": config.replicas, "routing": routing}
    missing = [name for name in ("pools", "autoscaling", "incidents") if getattr(config, name)]
    return found | ({"not_recorded": missing} if missing else {})


def _turns_alone(config: WorkloadConfig, requests: list[Request], path: Path) -> tuple[str, ...]:
    """Return a note that turns do not wait for answers; a ConfigError if they have no times."""
    if all(request.session is None for request in requests):
        return ()
    if not isinstance(config.arrivals, TraceReplay) or config.lengths is not None:
        raise ConfigError(
            f"{path}: workload: turns of sessions wait for answers, and their prompts hold these, "
            "which observe cannot send; use a trace with arrivals, or lengths of another kind"
        )
    return ("turns of sessions were sent when they were recorded, whatever was answered before",)


@dataclass(frozen=True)
class Prompts:
    """Token ids of prompts: those of the workload, or random ones."""

    seed: int
    low: int  # smallest random id
    high: int  # end of the random ids

    def of(self, request: Request) -> NDArray[np.int64]:
        """Return the prompt of a request, shape (prompt_len,).

        As recorded; else random, with equal tokens where requests share prefix ids.
        """
        recorded = request.prompt_token_ids
        if recorded is not None and not (len(recorded) == 1 and recorded[0] == UNRECORDED):
            return recorded
        own = self._random(request.prompt_len, "prompt", str(request.index))
        if request.prefix_ids is not None:
            size = request.prefix_ids.block_size
            pieces = [
                self._random(size, "piece", str(piece)) for piece in request.prefix_ids.hash_ids
            ]
            shared = np.concatenate([own[:0], *pieces])[: request.prompt_len]
            own[: len(shared)] = shared
        return own

    def warm_up(self, number: int, length: int) -> NDArray[np.int64]:
        """Return a prompt unlike those of all requests, shape (length,)."""
        return self._random(length, "warm-up", str(number))

    def _random(self, length: int, *names: str) -> NDArray[np.int64]:
        return generator(self.seed, "observe", *names).integers(self.low, self.high, length)


Send = Callable[[int, float], Coroutine[Any, Any, None]]


@dataclass(frozen=True)
class Sent:
    """A request that was sent."""

    index: int  # index in the workload
    due_at: float  # time to send it, seconds on the monotonic clock
    answer: StreamedAnswer

    @property
    def lateness(self) -> float:
        """Delay of sending after `due_at`, seconds."""
        return self.answer.sent_at - self.due_at


async def send_all(
    client: Client, workload: Workload, bodies: list[bytes], on_end: Callable[[Sent], None]
) -> None:
    """Send every request of a workload and wait for all answers.

    If it is cancelled, it sends no more and breaks off unfinished answers, which keep their
    received part; `on_end` is called at the end of each request.
    """
    lens = [request.output_len for request in workload.requests]

    async def send(index: int, due_at: float) -> None:
        sent = Sent(index, due_at, await client.ask(bodies[index], lens[index]))
        on_end(sent)
        if sent.answer.error == INTERRUPTED:
            raise asyncio.CancelledError

    try:
        if workload.concurrency is None:
            await _open_loop(workload, send)
        else:
            await _closed_loop(workload, workload.concurrency, send)
    except BaseExceptionGroup as group:  # raised by on_end, for a full disk
        raise group.exceptions[0] from None


async def _open_loop(workload: Workload, send: Send) -> None:
    start = monotonic() + 0.2  # seconds until the first arrival, so that it is not late
    async with asyncio.TaskGroup() as group:
        for request in workload.requests:
            due_at = start + request.arrived_at
            if (delay := due_at - monotonic()) > 0:  # late requests go before reading answers
                await asyncio.sleep(delay)
            group.create_task(send(request.index, due_at))


async def _closed_loop(workload: Workload, concurrency: int, send: Send) -> None:
    unsent = iter(zip(workload.requests, workload.think_times, strict=True))

    async def be_client() -> None:
        for request, think_time in unsent:
            due_at = monotonic() + think_time
            await asyncio.sleep(think_time)
            await send(request.index, due_at)

    async with asyncio.TaskGroup() as group:
        for _ in range(min(concurrency, len(workload.requests))):
            group.create_task(be_client())
