"""Points on a Ray cluster, local or remote. Needs the extra ``cluster``."""

import socket
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

import ray
from ray.exceptions import RayError

from specsim.core.errors import ConfigError
from specsim.core.version import __version__
from specsim.study.sweep.plan import Point
from specsim.study.sweep.point import failed_point, run_point

__all__ = ["RayCluster"]

_PATIENCE = 5.0  # seconds
_ATTEMPTS = 3  # as often as a point is run whose worker or node is lost


class RayCluster:
    """Workers of a Ray cluster; its nodes need specsim and the files that the points name.

    Args:
        workers: Points at a time; None: as many as the cluster has cores.
        address: Of a cluster that runs; None starts one on this machine, for as long as the sweep
            takes.

    Raises:
        ConfigError: There is no cluster at the address, or its nodes have another version of
            specsim.
    """

    def __init__(self, workers: int | None, address: str | None) -> None:
        try:
            _check_reachable(address)
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

    def run(self, points: Iterable[Point]) -> Iterator[dict[str, Any]]:
        """Yield the record of every point as soon as it has ended.

        A point whose worker or node is lost is run again elsewhere, up to three times.
        """
        task = ray.remote(num_cpus=1, max_retries=_ATTEMPTS - 1)(_run)
        left = iter(points)
        under_way: dict[Any, Point] = {}
        try:
            while True:
                for point in islice(left, 2 * self._workers - len(under_way)):
                    under_way[task.remote(point)] = point
                if not under_way:
                    return
                ended, _ = ray.wait(list(under_way), num_returns=1)
                for reference in ended:
                    yield _record(reference, under_way.pop(reference))
        finally:
            ray.shutdown()


def _check_reachable(address: str | None) -> None:
    """Raise OSError at once where nobody listens; Ray itself would try for minutes."""
    host, colon, port = (address or "").removeprefix("ray://").rpartition(":")
    if colon:
        socket.create_connection((host, int(port)), timeout=_PATIENCE).close()


def _run(point: Point) -> tuple[str, dict[str, Any]]:
    return __version__, run_point(point)


def _record(reference: Any, point: Point) -> dict[str, Any]:
    try:
        version, record = ray.get(reference)
    except RayError as error:
        return failed_point(point, f"its worker was lost {_ATTEMPTS} times: {type(error).__name__}")
    if version != __version__:
        raise ConfigError(
            f"a node of the cluster has specsim {version}, and this is {__version__}; install the "
            "same version everywhere"
        )
    found: dict[str, Any] = record
    return found
