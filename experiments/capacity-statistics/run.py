"""The default answer of ``specsim capacity`` against runs of 50,000 requests, in 12 settings.

    python experiments/capacity-statistics/run.py [WORKLOAD...]

Writes results.csv beside this file: per setting the default answer with its interval, and the
answer from runs of a fixed 50,000 requests with other seeds, and the CPU time of the former.
"""

import csv
import sys
from dataclasses import replace
from pathlib import Path
from time import process_time

from settings import POLICIES, SLO, WORKLOADS, experiment

from specsim.api import parse_policies
from specsim.study.capacity import (
    Choices,
    Found,
    Goal,
    Prices,
    find_capacity,
    find_hardware,
    parse_slo,
)

HERE = Path(__file__).parent
DEFAULT = Goal(
    parse_slo(SLO),
    attainment=0.99,
    tolerance=0.02,
    is_closed=False,
    target_rate=None,
    replications=5,
    num_requests=2000,
    max_requests=64_000,
)
LONG = replace(DEFAULT, replications=4, num_requests=50_000, max_requests=None)
OTHER_SEEDS = 1000
FIELDS = ("workload", "policy", "answer", "low", "high", "requests", "settled", "binds", "resource")


def find(workload: str, policy: str, goal: Goal, seed: int) -> Found:
    """Return what the server of a setting sustains."""
    base = experiment(workload, seed)
    choices = Choices(
        find_hardware(base, []), {policy: parse_policies([policy])[policy]}, Prices.load(None)
    )
    [found] = find_capacity(base, goal, choices).found
    return found


def row(workload: str, policy: str) -> dict[str, object]:
    """Return a setting as a row of the table."""
    start = process_time()
    found = find(workload, policy, DEFAULT, 0)
    seconds = process_time() - start
    long = find(workload, policy, LONG, OTHER_SEEDS)
    assert found.rate is not None
    assert found.interval is not None
    assert long.interval is not None
    values = (
        *(workload, policy, f"{found.rate:.2f}", f"{found.interval.low:.2f}"),
        *(f"{found.interval.high:.2f}", found.answer.num_requests, found.answer.is_settled),
        *(found.binds, found.resource),
    )
    reference = long.interval
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
