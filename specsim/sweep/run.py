"""Running a sweep: every point that is not there yet, on whatever computers there are."""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, wait
from typing import Any, Protocol

from specsim.processes import worker_pool
from specsim.sweep.folder import SweepFolder
from specsim.sweep.plan import Point
from specsim.sweep.point import run_point

__all__ = ["Backend", "LocalProcesses", "run_sweep"]


class Backend(Protocol):
    """Where points are run."""

    def run(self, points: Iterable[Point]) -> Iterator[dict[str, Any]]:
        """Yield the record of every point as soon as it has ended, in whatever order."""


class LocalProcesses:
    """Processes of this machine.

    Parameters
    ----------
    workers : int
    """

    def __init__(self, workers: int) -> None:
        self._workers = workers

    def run(self, points: Iterable[Point]) -> Iterator[dict[str, Any]]:
        """Yield the record of every point as soon as it has ended."""
        if self._workers == 1:
            yield from map(run_point, points)
            return
        with worker_pool(self._workers) as pool:
            waiting = set()
            for point in points:
                waiting.add(pool.submit(run_point, point))
                if len(waiting) > 2 * self._workers:  # one is always ready for each
                    ended, waiting = wait(waiting, return_when=FIRST_COMPLETED)
                    yield from (future.result() for future in ended)
            ended, _ = wait(waiting)
            yield from (future.result() for future in ended)


def run_sweep(
    folder: SweepFolder, backend: Backend, on_progress: Callable[[int], None] | None = None
) -> list[dict[str, Any]]:
    """Run every point of a sweep that has not ended yet.

    Parameters
    ----------
    folder : SweepFolder
        Gets each record as its point ends, and ``points.parquet`` at last.
    backend : Backend
    on_progress : callable, optional
        Told the number of points that have ended.

    Returns
    -------
    list of dict
        The records of all points, in their order.

    Raises
    ------
    ConfigError
        The folder cannot be written to.
    """
    num_ended = sum(record["error"] is None for record in folder.records())
    ended = {record["point"] for record in folder.records() if record["error"] is None}
    for record in backend.run(p for p in folder.sweep.points() if p.number not in ended):
        folder.write(record)
        num_ended += 1
        if on_progress is not None:
            on_progress(num_ended)
    return folder.finish()
