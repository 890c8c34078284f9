"""A Ray cluster, local or remote, as the backend of a runner. Needs the extra ``cluster``."""

import socket
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from itertools import islice
from typing import Any, TypeVar

import ray
from ray.exceptions import RayError

from specsim.core.errors import ConfigError
from specsim.core.runner import Job
from specsim.core.version import __version__

T = TypeVar("T")
R = TypeVar("R")

_PATIENCE = 5.0  # seconds
_ATTEMPTS = 3  # as often as a task is run whose worker or node is lost


class RayCluster(AbstractContextManager["RayCluster"]):
    """Workers of a Ray cluster; its nodes need specsim and the files that the tasks name.

    A ConfigError if there is no cluster at the address, or its nodes have another version of
    specsim.

    Args:
        workers: Tasks at a time; None: as many as the cluster has cores.
        address: Of a cluster that runs; None starts one on this machine, which ends with the block.
    """

    def __init__(self, workers: int | None, address: str | None) -> None:
        try:
            host, colon, port = (address or "").removeprefix("ray://").rpartition(":")
            if colon:  # OSError at once where nobody listens; Ray itself would try for minutes
                socket.create_connection((host, int(port)), timeout=_PATIENCE).close()
            ray.init(
                address=address or "local",
                num_cpus=None if address else workers,
                include_dashboard=None if address else False,
                log_to_driver=False,
                logging_level="ERROR",
            )
        except (ConnectionError, RuntimeError, ValueError, OSError) as error:
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            raise ConfigError(
                f"--ray-address {address}: cannot be reached: {reason}; check the address, or "
                "leave it out to use this machine"
            ) from error
        self._workers = workers or max(1, int(ray.cluster_resources().get("CPU", 1)))

    def __exit__(self, *error: object) -> None:
        """Leave the cluster, and end it if it was started here."""
        ray.shutdown()

    def stream(self, job: Job[T, R], tasks: Iterable[T]) -> Iterator[tuple[int, R]]:
        """Yield place and result of tasks as they end; one whose node is lost runs again, twice."""
        remote = ray.remote(num_cpus=1, max_retries=_ATTEMPTS - 1)(_run)
        numbered = enumerate(tasks)
        under_way: dict[Any, tuple[int, T]] = {}
        while True:
            for number, task in islice(numbered, 2 * self._workers - len(under_way)):
                under_way[remote.remote(job.run, task)] = number, task
            if not under_way:
                return
            ended, _ = ray.wait(list(under_way), num_returns=1)
            for reference in ended:
                number, task = under_way.pop(reference)
                yield number, _result(reference, job, task)


def _run(function: Callable[[T], R], task: T) -> tuple[str, R]:
    return __version__, function(task)


def _result(reference: Any, job: Job[T, R], task: T) -> R:
    try:
        version, result = ray.get(reference)
    except RayError as error:
        why = f"its worker was lost {_ATTEMPTS} times: {type(error).__name__}"
        return job.lost(task, why)
    if version != __version__:
        raise ConfigError(
            f"a node of the cluster has specsim {version}, and this is {__version__}; install the "
            "same version everywhere"
        )
    found: R = result
    return found
