"""How often a run is called overloaded that keeps up, and how often one that does not.

    python experiments/capacity-statistics/false_alarms.py

Writes false_alarms.csv beside this file: of queues with one server whose load is known, and of
README's server at shares of what it sustains (45.2 requests/s, results.csv), the share of the runs
that are called overloaded. A queue at load 1 is the worst that keeps up.
"""

import csv
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from settings import experiment

from specsim.results.stability import Demand, balance
from specsim.run.simulate import simulate
from specsim.run.summary import Summary

HERE = Path(__file__).parent
QUEUE_RUNS, SERVER_RUNS = 500, 40
QUEUE_LENS, SERVER_LENS = (300, 1000, 10_000), (300, 1000, 4000)
QUEUE_LOADS = (0.5, 0.8, 0.95, 1.0, 1.05, 1.1, 1.3)
SERVER_SHARES = (0.5, 0.8, 0.9, 1.0, 1.15, 1.3)
SUSTAINED = 45.2


def queue(
    load: float, count: int, rng: np.random.Generator, *, is_constant: bool
) -> dict[str, NDArray[np.float64]]:
    """Return the requests of a queue with one server and a mean service time of 1 (Lindley)."""
    arrived = np.cumsum(rng.exponential(1 / load, count))
    service = np.ones(count) if is_constant else rng.exponential(1.0, count)
    done = np.cumsum(service)
    ended = done + np.maximum.accumulate(arrived - (done - service))
    begun, one = ended - service, np.ones(count)
    times = {"arrived_at": arrived, "scheduled_at": begun, "first_token_at": begun}
    return {**times, "ended_at": ended, "prompt_len": 0 * one, "output_len": service}


def is_overloaded(requests: dict[str, NDArray[np.float64]], load: float) -> bool:
    return balance(Demand(requests, rate=load)).stability == "overloaded"


def of_queues(runs: int) -> Iterator[tuple[str, float, int, int, float]]:
    """Yield the share of overloaded runs by kind of queue, load and number of requests."""
    for name, is_constant in (("M/M/1", False), ("M/D/1", True)):
        for load in QUEUE_LOADS:
            for count in QUEUE_LENS:
                rng = np.random.default_rng(7)
                found = [
                    is_overloaded(queue(load, count, rng, is_constant=is_constant), load)
                    for _ in range(runs)
                ]
                yield name, load, count, runs, float(np.mean(found))


def of_servers(runs: int) -> Iterator[tuple[str, float, int, int, float]]:
    """Yield the share of overloaded runs of README's server by load and number of requests."""
    for share in SERVER_SHARES:
        for count in SERVER_LENS:
            found = [_is_server_overloaded(share * SUSTAINED, count, seed) for seed in range(runs)]
            yield "h100, chat, off", share, count, runs, float(np.mean(found))


def _is_server_overloaded(rate: float, count: int, seed: int) -> bool:
    base = experiment("chat", seed)
    workload = base.workload.model_dump(mode="json", exclude_none=True)
    workload["arrivals"]["rate"], workload["num_requests"] = rate, count
    changed = base.replace(workload=workload, policy={"kind": "off"})
    return Summary(simulate(changed, keeps_steps=False)).is_overloaded


def main(queue_runs: int = QUEUE_RUNS, server_runs: int = SERVER_RUNS, folder: Path = HERE) -> None:
    """Write the table."""
    with (folder / "false_alarms.csv").open("w", newline="") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(("system", "load", "requests", "runs", "called_overloaded"))
        for row in (*of_queues(queue_runs), *of_servers(server_runs)):
            writer.writerow(row)
            print(*row, sep=" | ", flush=True)


if __name__ == "__main__":
    main()
