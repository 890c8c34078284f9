"""Processes: simulations on several cores of this machine.

The results never depend on the number of processes. Workers are forked from a server that has
imported the simulator once, where the platform has such servers, and else started afresh; either
way they share no lock and no thread with the program that asked for them.
"""

import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import forkserver
from multiprocessing.context import BaseContext
from threading import Thread

__all__ = ["warm_up", "worker_pool"]

_PRELOADED = ["specsim.run.preload"]


def warm_up(workers: int) -> None:
    """Start importing the simulator for the workers, while this process does so for itself.

    Args:
        workers: How many there will be; a single one runs in this process and needs nothing.
    """
    if workers > 1 and _context().get_start_method() == "forkserver":
        forkserver.ensure_running()


def worker_pool(workers: int) -> ProcessPoolExecutor:
    """Return a pool of processes, to be used as a context manager.

    Returns:
        Its processes end with the block, and with the program, however that ends.
    """
    return ProcessPoolExecutor(workers, mp_context=_context(), initializer=_end_with_parent)


def _context() -> BaseContext:
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_PRELOADED)
    return context


def _end_with_parent() -> None:
    """Make this process end as soon as the one that asked for it is gone, even if it was killed."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def wait() -> None:
        parent.join()
        os._exit(1)

    Thread(target=wait, daemon=True).start()
