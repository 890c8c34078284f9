"""Speed and memory of the whole command line, results written and all.

    python benchmarks/speed.py                       # five minutes on 2 cores; writes results.csv
    python benchmarks/speed.py --beside OLD_CHECKOUT  # every case by both, in turn; prints ratios

CPU seconds (user and system) and peak memory are those that the operating system accounts to the
finished process. Each case runs five times, the cases in turn; the median is kept. W4 and W5 run
once, and W4 without steps and details: 8 million steps nobody would read.
"""

import csv
import os
import platform
import re
import statistics
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).parent
RUNS = 5
ENGINES = {
    "vllm defaults": (),
    "synchronous, no prefix cache": (
        "engine.async_scheduling=false",
        "engine.enable_prefix_caching=false",
    ),
}
POLICIES = {"k = 0": "policy=off", "k = 3": "policy=static:k=3", "goodput": "policy=goodput"}
BRIEF = ("--no-steps", "--no-details")


class Case(NamedTuple):
    workload: str
    engine: str
    policy: str
    options: tuple[str, ...] = ()


CASES = [
    *(Case(w, e, p) for w in ("w1", "w2", "w3") for e in ENGINES for p in ("k = 0", "k = 3")),
    Case("w2", "vllm defaults", "goodput"),
]
LARGE = [Case("w4", "vllm defaults", "k = 0", BRIEF), Case("w5", "vllm defaults", "k = 0")]


def measured(command: list[str], root: Path = HERE.parent) -> tuple[float, float]:
    """Run a command by a checkout; return its CPU seconds and its peak memory in MiB."""
    environment = {**os.environ, "PYTHONPATH": str(root)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # or its sources are compiled in every run
    pid = os.posix_spawn(command[0], command, environment, file_actions=SILENT)
    _, status, usage = os.wait4(pid, 0)
    if status:
        sys.exit(f"failed: {' '.join(command)}")
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


# -P: that of the checkout, not the one in the working directory
SPECSIM = [sys.executable, "-P", "-m", "specsim"]
SILENT = [(os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)]
Row = dict[str, float]


def run(case: Case, root: Path) -> Row:
    with tempfile.TemporaryDirectory() as folder:
        settings = [*ENGINES[case.engine], POLICIES[case.policy]]
        command = [*SPECSIM, "run", str(HERE / f"{case.workload}.yaml")]
        command += [word for setting in settings for word in ("--set", setting)]
        cpu, memory = measured([*command, *case.options, "--out", folder], root)
        with (Path(folder) / "summary.json").open() as stream:
            start = stream.read(1 << 16)  # all of it would become part of the next case's peak
    steps = int(re.search(r'"num_steps": (\d+)', start)[1])
    return {"cpu_s": cpu, "peak_mib": memory, "steps": steps, "us_per_step": cpu / steps * 1e6}


def medians(rows: list[Row]) -> Row:
    return {name: statistics.median(row[name] for row in rows) for name in rows[0]}


def main() -> None:
    roots = [HERE.parent, *map(Path, sys.argv[2:])]
    startup = [measured([*SPECSIM, "--version"]) for _ in range(RUNS)]
    print(f"specsim --version: {statistics.median(cpu for cpu, _ in startup):.3f} s")
    run(CASES[0], HERE.parent)  # compiles, once on a machine
    samples: dict[Case, list[list[Row]]] = {}
    for number in range(RUNS):
        for case in CASES if number else [*CASES, *LARGE]:
            # What came before has no W4 options, and would need hours.
            these = roots[:1] if case in LARGE else roots
            samples.setdefault(case, []).append([run(case, root) for root in these])
            print(*case[:3], [f"{row['cpu_s']:.2f} s" for row in samples[case][-1]], flush=True)
    with (HERE / "results.csv").open("w", newline="") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(
            ["workload", "engine", "policy", "steps", "cpu_s", "us_per_step", "peak_mib"]
        )
        for case, pairs in samples.items():
            now, *before = map(medians, map(list, zip(*pairs, strict=True)))
            writer.writerow(
                [
                    *case[:3],
                    int(now["steps"]),
                    f"{now['cpu_s']:.2f}",
                    f"{now['us_per_step']:.1f}",
                    f"{now['peak_mib']:.0f}",
                ]
            )
            for old in before:
                ratio = old["cpu_s"] / now["cpu_s"]
                print(
                    f"{' '.join(case[:3])}: {old['cpu_s']:.2f} s, {old['peak_mib']:.0f} MiB -> "
                    f"{now['cpu_s']:.2f} s, {now['peak_mib']:.0f} MiB ({ratio:.1f} times sooner)"
                )
    print(f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}")


if __name__ == "__main__":
    main()
