"""Fuzzing: bad input gives one line and exit code 2, never a traceback, a hang or a lost file.

    python benchmarks/fuzz.py [--number 3000] [--first 0] [--seed 0] [--kinds config trace ...]

Every case is made from its number and the seed alone: ``--only 17`` makes and runs case 17 again.
Cases run inside worker processes, which are limited in time and memory. The exit code is 1 if
anything was found.
"""

import argparse
import contextlib
import hashlib
import io
import json
import multiprocessing
import os
import random
import resource
import shutil
import sys
import tempfile
import time
import traceback
from collections import Counter
from importlib import import_module
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from fuzz_cases import KINDS, NOT_COMMANDS
from fuzz_fleets import OFFLOAD, POOLS, SCALED, SESSIONS
from fuzz_requests import LIMIT_SECONDS
from fuzz_values import BASE

PATIENCE = 300.0  # seconds by the clock after which a case that only waits is taken to hang
LIMIT_BYTES = 2 << 30
MAY_LEAVE = {"sweep", "gate", *NOT_COMMANDS}
"""Commands that keep what they have written when they end with an error."""
OK_CODES = {0, 1, 2, 3}


def digests() -> dict[str, str]:
    """Return a digest of every file in the working directory."""
    return {
        name: hashlib.sha256(Path(name).read_bytes()).hexdigest()
        for name in _files()
        if _is_file(name)
    }


def _is_file(name: str) -> bool:
    try:
        return Path(name).is_file() and not Path(name).is_symlink()
    except OSError:  # a link to itself
        return False


def _files() -> list[str]:
    """Return all files in the working directory, and links and whatever else is no folder."""
    return [
        str(path)
        for path in Path().rglob("*")
        if (path.is_symlink() or not path.is_dir()) and "__pycache__" not in path.parts
    ]


def run_case(number: int, seed: int, kinds: list[str], folder: str) -> dict[str, Any]:
    """Make a case and run it in this process; return what was wrong."""
    from specsim.__main__ import main

    rng = random.Random(f"{seed} {number}")
    kind = rng.choice(kinds)
    os.makedirs(folder)
    os.chdir(folder)
    Path("keep").write_text("a file of the user's\n")
    args = KINDS[kind](rng)
    before, out, err = digests(), io.StringIO(), io.StringIO()
    existing = {*_files()}
    begun_at, trace, code = time.process_time(), "", 0
    sys.argv = ["specsim", *args]
    sys.stdin = io.StringIO(Path("stdin").read_text() if Path("stdin").exists() else "")
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = NOT_COMMANDS[args[0]](args[1]) if args[0] in NOT_COMMANDS else main() or 0
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
        except BaseException:
            trace = traceback.format_exc()
    after = digests()
    lost = [name for name, digest in before.items() if after.get(name) != digest]
    problems = ["traceback"] if trace or "Traceback" in err.getvalue() else []
    problems += ["overwritten " + ", ".join(lost)] if lost else []
    new = sorted(name for name in _files() if name not in existing)
    left = [name for name in new if ".unfinished-" in name or name.endswith(".tmp")]
    problems += ["left behind " + ", ".join(left)] if left else []
    if code == 2 and args[0] not in MAY_LEAVE and not left and new:
        problems.append("written in spite of an error " + ", ".join(new))
    problems += [f"exit code {code}"] if code not in OK_CODES else []
    if code == 2 and not err.getvalue().strip() and args[0] not in NOT_COMMANDS:
        problems.append("no message")
    seconds = time.process_time() - begun_at
    return {
        "kind": kind,
        "args": args,
        "code": code,
        "problems": problems,
        "seconds": seconds,
        "trace": trace or err.getvalue()[-3000:],
        "rss": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
    }


def work(pipe: Connection, seed: int, kinds: list[str], root: str) -> None:
    """Run the cases that come through a pipe; first say that all is imported."""
    import_module("specsim.__main__")
    pipe.send(None)
    resource.setrlimit(resource.RLIMIT_DATA, (2 * LIMIT_BYTES, 2 * LIMIT_BYTES))
    while (number := _received(pipe)) is not None:
        for name in ("SPECSIM_FORCE", "SPECSIM_LARGE"):
            os.environ.pop(name, None)
        folder = os.path.join(root, str(number))
        pipe.send((number, run_case(number, seed, kinds, folder)))
        os.chdir(root)
        shutil.rmtree(folder, ignore_errors=True)


def _received(pipe: Connection) -> int | None:
    try:
        return int(pipe.recv())
    except EOFError:  # all is done
        return None


class Worker:
    """A process that runs cases, and is replaced when it hangs, dies or has grown."""

    def __init__(self, *given: Any) -> None:
        self.pipe, theirs = multiprocessing.Pipe()
        context = multiprocessing.get_context("spawn")
        self.process = context.Process(target=work, args=(theirs, *given))
        self.process.start()
        theirs.close()
        self.pipe.recv()
        self.number: int | None = None
        self.since = self.used = 0.0

    def give(self, number: int) -> None:
        """Let it run a case."""
        self.number, self.since, self.used = number, time.monotonic(), self._cpu_seconds()
        self.pipe.send(number)

    @property
    def is_hanging(self) -> bool:
        """Whether it takes too long: of its own time, for others may keep it from the CPU."""
        is_busy = self._cpu_seconds() - self.used > LIMIT_SECONDS
        return is_busy or time.monotonic() - self.since > PATIENCE

    def _cpu_seconds(self) -> float:
        times = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return sum(map(int, times[11:15])) / os.sysconf("SC_CLK_TCK")  # children's, too

    def end(self) -> None:
        """Kill it."""
        self.process.kill()
        self.process.join()


def fuzz(options: argparse.Namespace, root: str) -> list[dict[str, Any]]:
    """Run all cases; return those in which something was wrong."""
    numbers = iter(options.only or range(options.first, options.first + options.number))
    given = (options.seed, options.kinds, root)
    found: list[dict[str, Any]] = []
    counts: Counter[tuple[str, Any]] = Counter()
    workers = [Worker(*given) for _ in range(options.workers)]
    busy = [worker for worker in workers if _next(worker, numbers)]
    while busy:
        ready = set(wait([worker.pipe for worker in busy], timeout=1.0))
        for worker in list(busy):
            result = _result(worker, ready)
            if result is None:
                continue
            counts[result["kind"], result["code"]] += 1
            if result["problems"]:
                found.append({"number": worker.number, **result})
                print(worker.number, result["problems"], result["args"], flush=True)
            busy.remove(worker)
            has_grown = result["rss"] > LIMIT_BYTES // 2
            if has_grown:
                worker.end()
            other = Worker(*given) if has_grown else worker
            if _next(other, numbers):
                busy.append(other)
            else:
                other.end()
    for (kind, code), count in sorted(counts.items(), key=str):
        print(f"{kind:10} exit {code}: {count}")
    print(f"{sum(counts.values())} cases, {len(found)} with something wrong")
    return found


def _result(worker: Worker, ready: set[Any]) -> dict[str, Any] | None:
    """Return what came of a worker's case; None if it is still under way."""
    nothing = {"kind": "?", "code": None, "args": [], "rss": LIMIT_BYTES, "trace": ""}
    if worker.pipe not in ready:
        return {**nothing, "problems": ["hang"]} if worker.is_hanging else None
    try:
        _, result = worker.pipe.recv()
    except EOFError:
        return {**nothing, "problems": ["process died"]}
    result["rss"] *= 1024
    if result["rss"] > LIMIT_BYTES:
        result["problems"].append(f"memory {result['rss'] >> 20} MiB")
    if result["seconds"] > 10:
        result["problems"].append(f"slow {result['seconds']:.0f} s")
    return dict(result)


def _next(worker: Worker, numbers: Any) -> bool:
    number = next(numbers, None)
    if number is not None:
        worker.give(number)
    return number is not None


def save_results(folder: Path) -> None:
    """Write folders of results: of one replica, of pools, of replicas that come and go."""
    from specsim.run.experiment import Experiment
    from specsim.run.simulate import simulate
    from specsim.run.summary import Summary

    folder.mkdir()
    engine = {**BASE["engine"], "kv_offload": OFFLOAD}
    sessions = {**BASE["workload"], "lengths": SESSIONS}
    changes: dict[str, dict[str, Any]] = {
        "alone": {},
        "pools": {"pools": POOLS},
        "scaled": {"autoscaling": SCALED, "engine": engine, "workload": sessions},
    }
    for name, fields in changes.items():
        run = simulate(Experiment.parse({**BASE, **fields}, "fuzz"), keeps_deliveries=True)
        Summary(run).save(folder / name)


def save_studies(folder: Path) -> None:
    """Write what studies write: folders, and a baseline."""
    from fuzz_catalogue import QUICK
    from fuzz_files import written

    folder.mkdir()
    base, sweep, suite = (folder.parent / f"{name}.yaml" for name in ("base", "sweep", "suite"))
    base.write_bytes(written("e.yaml", QUICK))
    axes = [{"policy": ["off", "static:k=2"]}, {"workload.arrivals.rate": [5.0, 20.0]}]
    sweep.write_bytes(written("s.yaml", {"base": QUICK, "axes": axes}))
    suite.write_bytes(
        written("s.yaml", {"base": QUICK, "scenarios": {"a": {"policy": "off"}}, "replications": 2})
    )
    baseline = str(folder.parent / "baseline.json")
    for args in (
        ["compare", base, "--policies", "off", "static:k=2", "--out", folder / "compare"],
        ["tune", base, "--replications", "2", "--max-k", "2", "--out", folder / "tune"],
        ["capacity", base, "--slo", "e2el:9000", "--out", folder / "capacity"],
        ["split", base, "--gpus", "2", "--out", folder / "split"],
        ["sweep", sweep, "--out", folder / "sweep"],
        ["gate", "--update", baseline, suite],
    ):
        _run([*map(str, args), "--workers", "1"])


def _run(args: list[str]) -> None:
    from specsim.__main__ import main

    sys.argv = ["specsim", *args]
    try:
        main()
    except SystemExit as end:
        if end.code:
            raise


def main() -> int:
    """Read options, make valid results folders, and fuzz."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--number", type=int, default=3000)
    parser.add_argument("--first", type=int, default=0, help="Begin at this case.")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--only", type=int, nargs="+", help="Run these cases again.")
    parser.add_argument("--details", type=Path, help="Write what was found here, as JSON.")
    options = parser.parse_args()
    for name in ("number", "workers"):
        if getattr(options, name) < 1:
            parser.error(f"--{name} {getattr(options, name)}: must be at least 1")
    with tempfile.TemporaryDirectory(prefix="specsim-fuzz-") as root:
        os.environ.setdefault("SPECSIM_CACHE_DIR", os.path.expanduser("~/.cache/specsim"))
        os.environ["FUZZ_RESULTS"] = f"{root}/valid"
        save_results(Path(root) / "valid")
        with contextlib.redirect_stdout(io.StringIO()):
            save_studies(Path(root) / "studies")
        found = fuzz(options, root)
    if options.details:
        options.details.write_text(json.dumps(found, indent=1))
    for problem, count in Counter(str(each["problems"][0]) for each in found).items():
        print(f"{count} x {problem}")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
