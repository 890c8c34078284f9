"""A thousand replicas: seconds and memory of W6, by how many processes run it.

    python benchmarks/scale.py                      # three minutes, 2 idle cores; writes scale.csv
    python benchmarks/scale.py --requests 10000000  # a day of traffic; add --once

Whole commands, results written, the cases in turn. Memory is that of all processes together: the
sum of their proportional set sizes, looked at ten times a second, at its largest (Linux). Files of
runs that differ only in the number of processes must not differ in a byte.
"""

import argparse
import csv
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).parent
CASES = {
    "in turn, 1 process": ("--workers", "1"),
    "in turn, 2 processes": ("--workers", "2"),
    "least outstanding": ("--set", "routing={kind: least_outstanding}"),
}
SAME = ("requests.parquet", "summary.json")


def of_session(leader: int) -> Iterator[Path]:
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if int((path / "stat").read_text().rpartition(")")[2].split()[3]) == leader:
                yield path
        except (OSError, ValueError):  # it has ended
            continue


def memory_mib(leader: int) -> float:
    total = 0
    for path in of_session(leader):
        try:
            lines = (path / "smaps_rollup").read_text().splitlines()
        except OSError:
            continue
        total += next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return total / 1024


def run(options: tuple[str, ...], requests: int, out: Path) -> tuple[float, float]:
    """Return seconds and the largest memory, MiB, of one command."""
    command = [sys.executable, "-P", "-m", "specsim", "run", str(HERE / "w6.yaml"), *options]
    command += ["--set", f"workload.num_requests={requests}", "--no-steps", "--no-details"]
    environment = {**os.environ, "PYTHONPATH": str(HERE.parent)}
    start, most = time.perf_counter(), 0.0
    child = subprocess.Popen(
        [*command, "--out", str(out)],
        env=environment,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )
    while child.poll() is None:
        most = max(most, memory_mib(child.pid))
        time.sleep(0.1)
    if child.returncode:
        sys.exit(f"failed: {' '.join(command)}")
    return time.perf_counter() - start, most


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--requests", type=int, default=1_000_000)
    parser.add_argument("--once", action="store_true", help="not three times, and not kept")
    given = parser.parse_args()
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in CASES}
    for _ in range(1 if given.once else 3):
        with tempfile.TemporaryDirectory() as folder:
            for name, options in CASES.items():
                found[name].append(run(options, given.requests, Path(folder) / name))
            one, two, _ = (Path(folder) / name for name in CASES)
            for file in SAME:
                if (one / file).read_bytes() != (two / file).read_bytes():
                    sys.exit(f"{file} depends on the number of processes")
    rows = [
        {
            "case": name,
            "seconds": round(statistics.median(seconds for seconds, _ in each), 1),
            "peak_mib": round(max(memory for _, memory in each)),
        }
        for name, each in found.items()
    ]
    for row in rows:
        print(*row.values(), sep="\t")
    if not given.once:
        with (HERE / "scale.csv").open("w", newline="") as stream:
            writer = csv.DictWriter(stream, list(rows[0]), lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)


if __name__ == "__main__":
    main()
