"""Speed and memory of the whole command line, results written and all.

    python benchmarks/speed.py            # about ten minutes on 2 cores; writes results.csv

CPU seconds (user and system) and peak memory are those that the operating system accounts to the
finished process. Each case runs three times, the cases in turn; the median is kept.
"""

import csv
import os
import platform
import statistics
import sys
import tempfile
from pathlib import Path

import pyarrow.parquet as pq

HERE = Path(__file__).parent
RUNS = 3
ENGINES = {
    "vllm defaults": (),
    "synchronous, no prefix cache": (
        "engine.async_scheduling=false",
        "engine.enable_prefix_caching=false",
    ),
}
POLICIES = {0: "policy=off", 3: "policy=static:k=3"}


def measured(command: list[str]) -> tuple[float, float]:
    """Run a command; return its CPU seconds and its peak memory in MiB."""
    pid = os.posix_spawn(command[0], command, os.environ, file_actions=SILENT)
    _, status, usage = os.wait4(pid, 0)
    if status:
        sys.exit(f"failed: {' '.join(command)}")
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


SILENT = [(os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)]


def run(workload: str, engine: str, k: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        settings = [*ENGINES[engine], POLICIES[k]]
        command = [sys.executable, "-m", "specsim", "run", str(HERE / f"{workload}.yaml")]
        command += [word for setting in settings for word in ("--set", setting)]
        cpu, memory = measured([*command, "--out", folder])
        steps = pq.read_metadata(Path(folder) / "steps.parquet").num_rows
    return {"cpu_s": cpu, "peak_mib": memory, "steps": steps, "us_per_step": cpu / steps * 1e6}


def main() -> None:
    startup, memory = zip(
        *(measured([sys.executable, "-m", "specsim", "--version"]) for _ in range(5)), strict=True
    )
    print(f"specsim --version: {statistics.median(startup):.3f} s, {max(memory):.0f} MiB")
    cases = [(w, e, k) for w in ("w1", "w2", "w3") for e in ENGINES for k in POLICIES]
    samples: dict[tuple[str, str, int], list[dict[str, float]]] = {case: [] for case in cases}
    for _ in range(RUNS):
        for case in cases:
            samples[case].append(run(*case))
            print(case, samples[case][-1], flush=True)
    with (HERE / "results.csv").open("w", newline="") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(["workload", "engine", "k", "steps", "cpu_s", "us_per_step", "peak_mib"])
        for case, rows in samples.items():
            middle = {name: statistics.median(row[name] for row in rows) for name in rows[0]}
            writer.writerow(
                [
                    *case,
                    int(middle["steps"]),
                    f"{middle['cpu_s']:.2f}",
                    f"{middle['us_per_step']:.1f}",
                    f"{middle['peak_mib']:.0f}",
                ]
            )
    print(f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}")


if __name__ == "__main__":
    main()
