"""Run experiments again and compare what comes out with what is committed.

    python experiments/run.py                    # all but the slow ones: make experiments
    python experiments/run.py load-ramp sssd     # these, slow or not
    python experiments/run.py --part 3           # 3 minutes' worth, another every day: CI
    python experiments/run.py load-ramp --update # and keep what comes out

experiments.yaml says what each runs, reads and writes. It runs in a copy of its folder: what is
committed changes with --update only, and stamps.csv then says which version and commit gave it.
Data that are no part of the project are found through SPECSIM_DATA. Without them, or with
--stand-in, an experiment runs on what stand_in.py makes up, and only columns are compared.
Prints a line per experiment; exit code 1 if one differs or fails.
"""

import argparse
import csv
import os
import shlex
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile
from threading import Lock
from time import monotonic
from typing import NamedTuple

import gallery
import readme
import stand_in
import yaml
from compared import Rule, differences, other_columns
from pydantic import BaseModel, ConfigDict, Field

from specsim.core.version import __version__

HERE = Path(__file__).parent
ROOT = HERE.parent
STAMPS = HERE / "stamps.csv"
SLOW = 5.0
"""CPU minutes; what takes longer is run by name only."""
LINKED = ("docs", "profiles", "traces")
"""Folders that experiments name from the top folder."""
PICTURES = {".png", ".svg"}
MAKERS = ("specsim", "profiles", "traces")
"""The folders that make results, beside an experiment's own."""
UNKNOWN = "unknown"
"""The commit of a copy that git does not know."""


class Declared(BaseModel):
    """One experiment."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    commands: list[str]
    """From the top folder, one after the other."""
    writes: list[str]
    """The files of its folder that are compared."""
    cpu_minutes: float = Field(gt=0)
    data: list[str] = []
    """What it reads of SPECSIM_DATA."""
    by_name: str | None = None
    """Why it is not run with the others, if not for the time that it takes."""
    ignores: list[str] = []
    """Columns that are not compared: what the machine took, the version."""
    tolerance: dict[str, float] = {}
    """By column, "*" for all, relative; without one, byte for byte."""

    @property
    def is_for_all(self) -> bool:
        """Whether it is run without being named."""
        return self.cpu_minutes <= SLOW and self.by_name is None


class Outcome(NamedTuple):
    """What came of a run: same, differs, failed; without data: runs (on made-up ones), left out."""

    verdict: str
    text: str


def declared() -> dict[str, Declared]:
    """Return what experiments.yaml says, by folder."""
    fields = yaml.safe_load((HERE / "experiments.yaml").read_text(encoding="utf-8"))
    return {name: Declared.model_validate(each) for name, each in fields["again"].items()}


def part_of(known: dict[str, Declared], minutes: float, start: int) -> list[str]:
    """Return experiments that take so many CPU minutes together, from some place of the list on."""
    names = [name for name, each in known.items() if each.is_for_all]
    chosen = []
    for place in range(len(names)):
        name = names[(start + place) % len(names)]
        if known[name].cpu_minutes <= minutes:
            chosen.append(name)
            minutes -= known[name].cpu_minutes
    return chosen


def run(name: str, each: Declared, data: Path | None, top: Path) -> Outcome:
    """Run an experiment below an empty folder and compare; without data on made-up ones."""
    folder = copied(name, each, top)
    is_made_up = bool(each.data) and data is None
    if is_made_up:
        data = stand_in.make(top / "data")
        if lacking := [file for file in each.data if not (data / file).exists()]:
            return Outcome("left out", f"{lacking[0]} of SPECSIM_DATA, for which nothing stands in")
    for command in each.commands:
        if why := failure_of(command, top, data):
            return Outcome("failed", f"{command}: {why}")
    if lost := [file for file in each.writes if not (folder / file).exists()]:
        return Outcome("failed", f"{lost[0]} was not written")
    pairs = [(HERE / name / file, folder / file) for file in each.writes]
    if is_made_up:
        wrong = [text for pair in pairs for text in other_columns(*pair)]
        return Outcome("failed", wrong[0]) if wrong else Outcome("runs", "on made-up data")
    rule = Rule(frozenset(each.ignores), each.tolerance)
    found = [text for pair in pairs for text in differences(*pair, rule)]
    if not found:
        return Outcome("same", ", ".join(each.writes))
    return Outcome("differs", found[0] + (f"; {len(found)} cells in all" if found[1:] else ""))


def copied(name: str, each: Declared, top: Path) -> Path:
    """Lay out all that an experiment reads, its own folder as a copy without results."""
    for folder in LINKED:
        (top / folder).symlink_to(ROOT / folder)
    (top / HERE.name).mkdir()
    for path in HERE.iterdir():
        if path.name != name:
            (top / HERE.name / path.name).symlink_to(path)
    folder = top / HERE.name / name
    shutil.copytree(HERE / name, folder, ignore=shutil.ignore_patterns("__pycache__"))
    for path in [*(folder / file for file in each.writes), *pictures(folder)]:
        path.unlink(missing_ok=True)
    return folder


def pictures(folder: Path) -> list[Path]:
    return [path for path in folder.iterdir() if path.suffix in PICTURES]


def failure_of(command: str, top: Path, data: Path | None) -> str:
    """Run a command of this checkout; return why it failed, if it did."""
    program, *arguments = shlex.split(command)
    start = [sys.executable] if program == "python" else [sys.executable, "-m", program]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "MPLBACKEND": "Agg"}
    if data is not None:
        env["SPECSIM_DATA"] = str(data)
    with TemporaryFile("w+", errors="replace") as log:
        code = subprocess.run(
            [*start, *arguments], cwd=top, env=env, stdout=log, stderr=log, check=False
        ).returncode
        log.seek(0)
        said = log.read().strip().splitlines()
    return f"exit code {code}, {said[-1] if said else 'without a word'}" if code else ""


def keep(name: str, each: Declared, folder: Path) -> None:
    """Keep the tables and pictures that an experiment has written."""
    drawn = [path.name for path in pictures(HERE / name) if (folder / path.name).exists()]
    for file in [*each.writes, *drawn]:
        shutil.copyfile(folder / file, HERE / name / file)


def stamp(name: str) -> None:
    """Note which version and commit gave these results last."""
    with STAMPS.open(newline="") as stream:
        stamps = {row["experiment"]: row for row in csv.DictReader(stream)}
    made = {"version": __version__, "commit": commit()}
    made["date"] = datetime.now(UTC).date().isoformat()
    stamps[name] = {"experiment": name, **made}
    with STAMPS.open("w", newline="") as stream:
        writer = csv.DictWriter(stream, list(stamps[name]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(stamps[each] for each in sorted(stamps))


def commit() -> str:
    """Return the last commit of what makes results, with "+" if that has changed since."""

    def git(*words: str) -> str:
        done = subprocess.run(
            ["git", *words, "--", *MAKERS], cwd=ROOT, capture_output=True, text=True, check=True
        )
        return done.stdout.strip()

    try:
        return git("log", "-1", "--format=%h", "--abbrev=12") + "+" * bool(
            git("status", "--porcelain")
        )
    except (OSError, subprocess.CalledProcessError):
        return UNKNOWN


def parsed(known: dict[str, Declared]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="folders of experiments/")
    parser.add_argument(
        "--part", type=float, metavar="MINUTES", help="of CPU time, others every day"
    )
    parser.add_argument("--update", action="store_true", help="keep what comes out, and stamp it")
    parser.add_argument("--stand-in", action="store_true", help="take made-up data in any case")
    parser.add_argument("--out", type=Path, help="folder for copies of what comes out")
    parser.add_argument("--workers", type=int, default=2, help="experiments at a time (2)")
    options = parser.parse_args()
    for name in options.names:
        if name not in known:
            parser.error(f"{name}: is not in experiments.yaml, which has {', '.join(known)}")
    if options.workers < 1:
        parser.error(f"--workers {options.workers}: must be at least 1")
    if options.part is not None and not options.part > 0:
        parser.error(f"--part {options.part:g}: must be above 0 minutes")
    return options


def asked(options: argparse.Namespace, known: dict[str, Declared]) -> list[str]:
    """Return which experiments to run."""
    if options.part is not None:
        return part_of(known, options.part, datetime.now(UTC).toordinal())
    return options.names or [name for name, each in known.items() if each.is_for_all]


def data_folder(options: argparse.Namespace) -> Path | None:
    given = os.environ.get("SPECSIM_DATA")
    if options.stand_in or not given:
        return None
    if not Path(given).is_dir():
        sys.exit(f"run.py: SPECSIM_DATA: {given} is no folder; name that of the data, or unset it")
    return Path(given).resolve()


def main() -> None:
    known = declared()
    options = parsed(known)
    data, keeping = data_folder(options), Lock()

    def line(name: str) -> str:
        each, started_at = known[name], monotonic()
        own = data if data and all((data / file).exists() for file in each.data) else None
        with TemporaryDirectory() as temporary:
            top = Path(temporary)
            verdict, text = run(name, each, own, top)
            if options.update and verdict in {"same", "differs"}:
                with keeping:
                    stamp(name)
                    if verdict == "differs":
                        keep(name, each, top / HERE.name / name)
            if options.out is not None:
                shutil.copytree(top / HERE.name / name, options.out / name, dirs_exist_ok=True)
        minutes = (monotonic() - started_at) / 60
        print(f"{verdict:8} {name:24} {minutes:5.1f} min  {text}", flush=True)
        return verdict

    with ThreadPoolExecutor(options.workers) as pool:
        verdicts = set(pool.map(line, asked(options, known)))
    if options.update:
        readme.main()
        gallery.main()
    sys.exit(1 if verdicts & {"differs", "failed"} else 0)


if __name__ == "__main__":
    main()
