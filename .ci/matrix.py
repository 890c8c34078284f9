"""Use the wheel as its users do: on every Python of this machine, with newest and oldest packages.

    python3 .ci/matrix.py

The wheel is built once. Each environment is new and lies outside the repository, and what is tested
in it is the installed package. All of it lies in a temporary folder, which is removed at the end.
uv comes from PyPI into an environment of its own; what it downloads is kept for the next time.
"""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic
from typing import NamedTuple
from venv import create

ROOT = Path(__file__).resolve().parents[1]
NEEDED_BY_TESTS = ("tests", "experiments", "Makefile", "pyproject.toml", ".ci/fast-tests")
LONGEST = 1200  # seconds of one command; a test that waits for ever says where before that
EXTRAS = ("--extra", "plots", "--extra", "serve")
EXPERIMENT = """
workload:
  arrivals: {kind: poisson, rate: 8}
  lengths: {kind: dataset, name: sharegpt}
  num_requests: 200
engine: {speculative_config: {method: eagle3, num_speculative_tokens: 5}}
policy: goodput
acceptance: {kind: bernoulli, alpha: 0.62}
profile: h100/llama-3.1-8b
"""
ASK_SERVER = """
import json, re, signal, subprocess, sys
from urllib.request import Request, urlopen
command = [sys.executable, "-u", "-m", "specsim", "serve", "experiment.yaml", "--port", "0"]
server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
port = re.search(r":(\\d+) ", server.stdout.readline())[1]
asked = json.dumps({"prompt": "Where am I?", "max_tokens": 20}).encode()
url, kind = f"http://127.0.0.1:{port}/v1/completions", {"Content-Type": "application/json"}
answer = json.load(urlopen(Request(url, asked, kind), timeout=60))
server.send_signal(signal.SIGTERM)
assert answer["usage"]["completion_tokens"] == 20, answer
assert server.wait(60) == 0
"""


class FailedError(Exception):
    """A step did not end as it should."""


class Environment(NamedTuple):
    """A Python with packages, beside a copy of the tests in which no package lies."""

    python: Path
    version: str
    resolution: str
    folder: Path
    uv: Path

    @property
    def bin(self) -> Path:
        return self.folder / "env" / "bin"

    def run(self, *command: object, code: int = 0) -> str:
        """Run a command in the folder; return what it printed, unless it ends otherwise."""
        left_out = ("PYTHONPATH", "VIRTUAL_ENV", "SPECSIM_DATA", "PYTHONDONTWRITEBYTECODE")
        variables = {name: value for name, value in os.environ.items() if name not in left_out}
        variables["PATH"] = f"{self.bin}:{variables['PATH']}"
        variables["SPECSIM_CACHE_DIR"] = str(self.folder / "cache")  # each compiles for itself
        words = [str(word) for word in command]
        try:
            done = subprocess.run(
                words, cwd=self.folder, env=variables, capture_output=True, text=True, check=False,
                timeout=LONGEST,
            )  # fmt: skip
        except subprocess.TimeoutExpired as waited:
            raise FailedError(f"{waited}") from waited
        if done.returncode != code:
            said = "\n".join((done.stdout + done.stderr).splitlines()[-60:])
            raise FailedError(f"`{' '.join(words)[:200]}` ended with {done.returncode}:\n{said}")
        return done.stdout

    def install(self, wheel: Path) -> None:
        """Install what the wheel asks for, then the wheel, then what tests need beside it."""
        self.run(self.uv, "venv", "--quiet", "--python", self.python, "env")
        install = (self.uv, "pip", "install", "--quiet", "--python", self.bin / "python")
        packages = ("--requirements", ROOT / "pyproject.toml", *EXTRAS, "--only-binary", ":all:")
        self.run(*install, *packages, "--resolution", self.resolution)
        self.run(*install, "--no-deps", wheel)
        self.run(*install, "pytest", "hypothesis", "jsonschema")
        self.run(self.uv, "pip", "check", "--quiet", "--python", self.bin / "python")

    def use(self) -> str:
        """Do what a newcomer does, then run the fast tests; return pytest's closing line."""
        self.run("specsim", "demo", "--out", "demo")
        (self.folder / "experiment.yaml").write_text(EXPERIMENT, encoding="utf-8")
        self.run("specsim", "run", "experiment.yaml", "--out", "compiled")
        self.run("specsim", "gate", "--update", "baseline.json", "experiment.yaml")
        self.run("specsim", "gate", "baseline.json", "experiment.yaml")
        slower = ("--set", "policy=static:k=1")
        self.run("specsim", "gate", "baseline.json", "experiment.yaml", *slower, code=1)
        self.run("python", "-c", ASK_SERVER)
        for name in NEEDED_BY_TESTS:
            copied = shutil.copytree if (ROOT / name).is_dir() else shutil.copyfile
            (self.folder / name).parent.mkdir(exist_ok=True)
            copied(ROOT / name, self.folder / name)
        # With the oldest packages the others complain of each other, which no user is shown.
        is_oldest = self.resolution != "highest"
        shown = ["-W", "ignore::DeprecationWarning"] if is_oldest else []
        # What plots look like does not hang on a Python, and takes a third of the time.
        left_out = ("--ignore", "tests/show/test_report_plots.py")
        chosen = (*left_out, "-m", "not slow and not extras", "@.ci/fast-tests")
        return self.run("pytest", "-q", *shown, *chosen).splitlines()[-1]

    def summary(self, name: str) -> bytes:
        return (self.folder / name / "summary.json").read_bytes()

    def do_without_numba(self) -> None:
        """Run once more where nothing can be compiled; the result is the same."""
        uninstall = (self.uv, "pip", "uninstall", "--quiet", "--python", self.bin / "python")
        self.run(*uninstall, "numba", "llvmlite")
        self.run("specsim", "run", "experiment.yaml", "--out", "plain")
        if self.summary("compiled") != self.summary("plain"):
            raise FailedError("without numba summary.json is another one")

    def check(self, wheel: Path) -> bool:
        """Install and use the wheel; say how it went, and of what failed, what it printed."""
        began = monotonic()
        name = f"matrix: Python {self.version}, {self.resolution}"
        try:
            self.install(wheel)
            closing = self.use()
            self.do_without_numba()
        except FailedError as failure:
            print(f"{name}: FAILED: {failure}", flush=True)
            return False
        print(
            f"{name}: demo, gate, serve; {closing}; {monotonic() - began:.0f} s in all", flush=True
        )
        return True


def pythons() -> dict[str, Path]:
    """Return the Pythons of this machine by version, one for each that pyproject.toml names."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    named = re.findall(r"Python :: (3\.\d+)", "\n".join(project["classifiers"]))
    folders = [Path(folder) for folder in os.environ["PATH"].split(os.pathsep)]
    kept = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    found = {}
    for version in named:
        places = [*folders, *(path / "bin" for path in sorted(kept.glob(f"{version}.*")))]
        candidates = (place / f"python{version}" for place in places)
        python = next(filter(_runs, candidates), None)
        if python is None:
            print(f"matrix: Python {version} is not on this machine, so it is left out", flush=True)
        else:
            found[version] = python
    return found


def _runs(python: Path) -> bool:
    """Whether this is a Python: pyenv puts a command there also for those it does not run."""
    return (
        python.exists()
        and not subprocess.run(
            [python, "-c", "import venv"], capture_output=True, check=False
        ).returncode
    )


def main() -> int:
    """Check every environment; return the exit code."""
    found = pythons()
    if not found:
        print("matrix: no Python that pyproject.toml names is on this machine")
        return 1
    with TemporaryDirectory(prefix="specsim-matrix-") as name:
        folder = Path(name)
        create(folder / "uv", with_pip=True)
        subprocess.run(
            [folder / "uv/bin/python", "-m", "pip", "install", "--quiet", "uv"], check=True
        )
        uv = folder / "uv/bin/uv"
        subprocess.run([uv, "build", "--quiet", "--wheel", "--out-dir", folder, ROOT], check=True)
        [wheel] = folder.glob("*.whl")
        environments = []
        for version, python in found.items():
            for resolution in ("highest", "lowest-direct"):
                own = folder / f"{version}-{resolution}"
                own.mkdir()
                environments.append(Environment(python, version, resolution, own, uv))
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            results = list(pool.map(lambda each: each.check(wheel), environments))
        if not all(results):
            return 1
        if len({each.summary("compiled") for each in environments}) > 1:
            print("matrix: FAILED: one experiment has several results; see summary.json of each")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
