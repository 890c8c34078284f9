"""What is sent: the requests of a workload as token ids, and when."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specsim.core.errors import ConfigError
from specsim.core.request import UNRECORDED, PrefixIds, Request
from specsim.core.rng import generator
from specsim.core.settings import Settings, load_mapping, validated
from specsim.engine.config import EngineConfig
from specsim.run.experiment import Experiment, overridden
from specsim.workload import WorkloadConfig
from specsim.workload.arrivals.closed_loop import ClosedLoop

__all__ = ["Prompts", "Workload", "load_workload"]


class _Observed(Settings):
    """A file that holds no more of an experiment than a real server can be asked for."""

    workload: WorkloadConfig
    engine: EngineConfig = EngineConfig()
    """How the server was started."""
    seed: int = 0


@dataclass(frozen=True)
class Workload:
    """Requests, and when they are sent."""

    requests: list[Request]
    seed: int
    engine_kwargs: dict[str, Any]
    """The file's section ``engine``: how the user says that the server was started."""
    concurrency: int | None
    """Clients of a closed loop; None for an open one."""
    think_times: list[float]
    """Of a closed loop: seconds that a client waits before each request."""


def load_workload(path: Path, overrides: list[str]) -> Workload:
    """Return the requests of an experiment, or of a file with its ``workload`` alone.

    Args:
        path: YAML with ``workload`` and, optionally, ``engine`` and ``seed``; or a whole
            experiment.
        overrides: As of ``specsim run``, such as ``workload.arrivals.rate=4``.

    Raises:
        SpecsimError: The file, or one that it names, cannot be used.
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
    arrivals = config.workload.arrivals
    concurrency, think_times = None, [0.0] * len(requests)
    if isinstance(arrivals, ClosedLoop):
        concurrency = arrivals.concurrency
        rng = generator(config.seed, "think_times")  # the stream of the simulator
        think_times = arrivals.think_times(rng, len(requests)).tolist()
    return Workload(requests, config.seed, data.get("engine", {}), concurrency, think_times)


@dataclass(frozen=True)
class Prompts:
    """Token ids of prompts: those of the workload, or random ones."""

    seed: int
    low: int
    """Smallest random id."""
    high: int
    """The first id above the largest random one."""

    def of(self, request: Request) -> NDArray[np.int64]:
        """Return the prompt of a request.

        Returns:
            As recorded; or random, where requests that share prefix ids share tokens. Of shape
            (prompt_len,).
        """
        recorded = request.prompt_token_ids
        if recorded is not None and not (len(recorded) == 1 and recorded[0] == UNRECORDED):
            return recorded
        own = self._random(request.prompt_len, "prompt", str(request.index))
        if request.prefix_ids is not None:
            shared = self._shared(request.prefix_ids)[: request.prompt_len]
            own[: len(shared)] = shared
        return own

    def warm_up(self, number: int, length: int) -> NDArray[np.int64]:
        """Return a prompt that no request has, shape (length,)."""
        return self._random(length, "warm-up", str(number))

    def _shared(self, prefix: PrefixIds) -> NDArray[np.int64]:
        size = prefix.block_size
        pieces = [self._random(size, "piece", str(piece)) for piece in prefix.hash_ids]
        return np.concatenate(pieces) if pieces else np.zeros(0, dtype=np.int64)

    def _random(self, length: int, *names: str) -> NDArray[np.int64]:
        return generator(self.seed, "observe", *names).integers(self.low, self.high, length)
