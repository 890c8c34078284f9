"""The default answer of ``specsim capacity`` against runs of 50,000 requests, in 12 settings.

    python experiments/capacity-statistics/run.py [WORKLOAD...]

Writes results.csv beside this file: per setting the default answer with its interval, and the
answer from runs of a fixed 50,000 requests with other seeds, and the CPU time of the former.
"""

import csv
import sys
from pathlib import Path
from time import process_time

from settings import POLICIES, SLO, WORKLOADS, experiment

from specsim.api import parse_policies
from specsim.study.capacity import Found, Goal, find_capacity, find_hardware, parse_slo
from specsim.study.capacity.probe import Interval, LoadProbe, Task, interval_between, measure
from specsim.study.capacity.search import largest_sustained
from specsim.study.loads import Loads

HERE = Path(__file__).parent
DEFAULT = Goal(
    parse_slo(SLO).slo,
    attainment=0.99,
    tolerance=0.02,
    is_closed=False,
    target_rate=None,
    replications=5,
    num_requests=2000,
    max_requests=64_000,
)
LONG, LONG_RUNS, OTHER_SEEDS = 50_000, 4, 1000
FIELDS = ("workload", "policy", "answer", "low", "high", "requests", "settled", "binds", "resource")


def by_default(workload: str, policy: str) -> Found:
    """Return what the command finds."""
    base = experiment(workload)
    chosen = {policy: parse_policies([policy])[policy]}
    [found] = find_capacity(base, DEFAULT, find_hardware(base, []), chosen).found
    return found


def by_long_runs(workload: str, policy: str, start: float) -> Interval:
    """Return the capacity by runs of 50,000 requests with other seeds, wherever it is found."""
    base = experiment(workload, OTHER_SEEDS)
    loads, [hardware] = Loads(base, LONG_RUNS), find_hardware(base, [])
    chosen = parse_policies([policy])[policy]
    probes: dict[float, LoadProbe] = {}
    search = largest_sustained(start, DEFAULT.tolerance, up=1.02, down=1.02)
    load = next(search)
    while True:
        trials = loads.trials(chosen, load, LONG)
        tasks = [Task(load, each, hardware.profile, DEFAULT) for each in trials]
        probes[load] = LoadProbe(tuple(map(measure, tasks)))
        try:
            load = search.send(probes[load].is_sustained)
        except StopIteration as stop:
            low, high = probes[stop.value.sustained], probes[stop.value.exceeded]
            found = interval_between(low, high)
            assert found is not None
            return found


def row(workload: str, policy: str) -> dict[str, object]:
    """Return a setting as a row of the table."""
    start = process_time()
    found = by_default(workload, policy)
    seconds = process_time() - start
    assert found.rate is not None
    assert found.interval is not None
    reference = by_long_runs(workload, policy, found.rate)
    values = (
        *(workload, policy, f"{found.rate:.2f}", f"{found.interval.low:.2f}"),
        *(f"{found.interval.high:.2f}", found.answer.num_requests, found.answer.is_settled),
        *(found.binds, found.resource),
    )
    return {
        **dict(zip(FIELDS, values, strict=True)),
        "long": f"{reference.estimate:.2f}",
        "long_low": f"{reference.low:.2f}",
        "long_high": f"{reference.high:.2f}",
        "off_by_percent": f"{100 * (found.rate / reference.estimate - 1):.1f}",
        "covers": found.interval.low <= reference.estimate <= found.interval.high,
        "cpu_seconds": f"{seconds:.0f}",
    }


def main(workloads: list[str]) -> None:
    """Write the table, or print the rows of some workloads."""
    rows = []
    for workload in workloads or WORKLOADS:
        for policy in POLICIES:
            rows.append(row(workload, policy))
            print(*rows[-1].values(), sep=" | ", flush=True)
    if not workloads:
        with (HERE / "results.csv").open("w", newline="") as stream:
            writer = csv.DictWriter(stream, list(rows[0]), lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)


if __name__ == "__main__":
    main(sys.argv[1:])
