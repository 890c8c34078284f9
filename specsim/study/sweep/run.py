"""Running a sweep: every point that is not there yet, on whatever computers there are."""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from concurrent.futures.process import BrokenProcessPool
from itertools import islice
from typing import Any, Protocol

from specsim.core.processes import worker_pool
from specsim.study.sweep.folder import SweepFolder
from specsim.study.sweep.plan import Point
from specsim.study.sweep.point import failed_point, run_point

__all__ = ["Backend", "LocalProcesses", "run_sweep"]


class Backend(Protocol):
    """Where points are run."""

    def run(self, points: Iterable[Point]) -> Iterator[dict[str, Any]]:
        """Yield the record of every point as soon as it has ended, in whatever order."""


class LocalProcesses:
    """Processes of this machine.

    Args:
        workers: A single one is this process itself.
    """

    def __init__(self, workers: int) -> None:
        self._workers = workers

    def run(self, points: Iterable[Point]) -> Iterator[dict[str, Any]]:
        """Yield the record of every point as soon as it has ended.

        Where a process dies, each point that was under way is run again in a process of its own:
        the one that kills it again is recorded as failed, and the others go on.
        """
        if self._workers == 1:
            yield from map(run_point, points)
            return
        left = iter(points)
        lost: list[Point] | None = None
        while lost is None or lost:
            lost = []
            yield from self._run_together(left, lost)
            yield from map(_run_alone, lost)

    def _run_together(self, points: Iterator[Point], lost: list[Point]) -> Iterator[dict[str, Any]]:
        """Run points until they are all done, or until a process dies and some are lost."""
        under_way: dict[Future[dict[str, Any]], Point] = {}
        with worker_pool(self._workers) as pool:
            while True:
                # Each process has its next point at hand; more would be lost if one died.
                for point in islice(points, 2 * self._workers - len(under_way)):
                    under_way[pool.submit(run_point, point)] = point
                if not under_way:
                    return
                ended, _ = wait(under_way, return_when=FIRST_COMPLETED)
                for future in ended:
                    point = under_way.pop(future)
                    if isinstance(future.exception(), BrokenProcessPool):
                        lost.append(point)
                    else:
                        yield future.result()
                if lost:
                    lost.extend(under_way.values())
                    return


def _run_alone(point: Point) -> dict[str, Any]:
    with worker_pool(1) as pool:
        try:
            return pool.submit(run_point, point).result()
        except BrokenProcessPool:
            return failed_point(point, "its process was killed, perhaps for lack of memory")


def run_sweep(
    folder: SweepFolder, backend: Backend, on_progress: Callable[[int], None] | None = None
) -> list[dict[str, Any]]:
    """Run every point of a sweep that has not ended yet.

    Args:
        folder: Gets each record as its point ends, and ``points.parquet`` at last.
        on_progress: Told the number of points that have ended.

    Returns:
        The records of all points, in their order, without what is only drawn.

    Raises:
        ConfigError: The folder cannot be written to.
    """
    # What failed is tried again: its cause may have been removed.
    ended = {record["point"] for record in folder.numbers() if record["error"] is None}
    left = (point for point in folder.sweep.points() if point.number not in ended)
    for number, record in enumerate(backend.run(left), start=1):
        folder.write(record)
        if on_progress is not None:
            on_progress(len(ended) + number)
    return folder.finish()
