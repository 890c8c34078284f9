"""What starts fast and stays small: a command imports what it uses, and no more."""

import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from scipy.special import stdtrit

from specsim.show.render.catalogue import FAMILIES
from specsim.study.paired import student_t

TINY = {
    "workload": {
        "arrivals": {"kind": "poisson", "rate": 10.0},
        "lengths": {"kind": "constant", "prompt": 32, "output": 4},
        "num_requests": 3,
    },
    "engine": {"speculative_config": {"method": "eagle3", "num_speculative_tokens": 3}},
    "acceptance": {"kind": "bernoulli", "alpha": 0.7},
    "profile": "h100/llama-3.1-8b",
}
UNUSED_BY_A_RUN = {
    # large libraries, and those that they bring along
    "aiohttp", "charset_normalizer", "numba", "numpy.f2py", "pyarrow.compute", "pyarrow.dataset",
    "pygments", "requests", "rich.markdown", "rich.progress", "scipy", "torch", "unittest",
    "vl_convert",
    # what several processes and statistics need
    "concurrent.futures", "multiprocessing", "statistics",
    # specsim's own
    "specsim.study.capacity", "specsim.show.render.catalogue", "specsim.study.compare",
    "specsim.study.gate", "specsim.study.paired", "specsim.show.charts", "specsim.show.report",
    "specsim.show.export", "specsim.core.processes", "specsim.study.sweep", "specsim.study.tune",
    "specsim.reality",
}  # fmt: skip
USED_MEMBERS = {
    "acceptance": {"bernoulli"},
    "autoscaling": set(),
    "latency": {"linear", "two_regime"},
    "policies": {"off", "schedule", "static"},
    "proposers": {"eagle3"},
    "routing": {"round_robin"},
    "workload.arrivals": {"closed_loop", "poisson", "trace"},
    "workload.lengths": {"constant"},
    "workload.readers": set(),
}
"""Of each family: those that the experiment names, and those that others are compared with."""


def modules_after(script: str, folder: Path) -> set[str]:
    """Return the names of the modules that a program has imported by its end."""
    start = "import atexit, sys\natexit.register(lambda: print(*sys.modules, file=sys.stderr))\n"
    command = [sys.executable, "-c", start + script]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    return set(done.stderr.splitlines()[-1].split())


@pytest.fixture(scope="module")
def modules_of_a_run(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    folder = tmp_path_factory.mktemp("run")
    (folder / "tiny.yaml").write_text(yaml.safe_dump(TINY))
    script = (
        "sys.argv = 'specsim run tiny.yaml --set policy=off --out results'.split()\n"
        "from specsim.__main__ import main\n"
        "main()\n"
    )
    modules = modules_after(script, folder)
    assert (folder / "results" / "summary.json").exists()
    return modules


def test_a_run_imports_what_it_needs(modules_of_a_run: set[str]) -> None:
    assert {"numpy", "pyarrow.parquet", "specsim.run.simulate"} <= modules_of_a_run
    assert UNUSED_BY_A_RUN & modules_of_a_run == set()


@pytest.mark.parametrize("name", FAMILIES)
def test_a_run_imports_the_members_that_it_names(name: str, modules_of_a_run: set[str]) -> None:
    members = FAMILIES[name].members
    modules = {member.__module__ for member in members.values()}
    used = {members[member].__module__ for member in USED_MEMBERS[name]}
    assert modules & modules_of_a_run <= used


def test_a_worker_has_no_command_line(tmp_path: Path) -> None:
    modules = modules_after("import specsim.run.preload, specsim.__main__", tmp_path)
    assert not {"typer", "rich", "scipy", "specsim.cli", "specsim.show.render"} & modules


def test_a_policy_of_ones_own_waits_for_no_scipy(tmp_path: Path) -> None:
    assert "scipy" not in modules_after("import specsim.api", tmp_path)


@pytest.mark.parametrize("freedom", range(1, 40))
def test_quantiles_are_those_of_scipy(freedom: int) -> None:
    assert student_t(freedom) == pytest.approx(float(stdtrit(freedom, 0.975)), rel=1e-14)
    assert student_t(freedom, 0.01) == float(stdtrit(freedom, 0.995))
