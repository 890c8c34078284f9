"""What all tests share: a tiny experiment, and the real data where they are at hand."""

import gc
import importlib.util
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import compile_first
import numpy as np
import pytest
import yaml
from hypothesis import settings
from numpy.typing import NDArray

from specsim.__main__ import main
from specsim.core.atomic import FORCES
from specsim.core.step import StepLoad
from specsim.core.surroundings import OF_TERMINAL
from specsim.policies import ServerView
from specsim.run.experiment import ALLOWS_LARGE, Experiment

ROOT = Path(__file__).parents[1]
settings.register_profile("specsim", deadline=None)  # machines do other things, too
settings.load_profile("specsim")

Run = Callable[..., tuple[int, str, str]]


def pytest_sessionstart(session: pytest.Session) -> None:
    """Compile loops before any test, those of all policies only if all tests are asked for."""
    for number in OF_TERMINAL:
        if signal.getsignal(number) == signal.SIG_IGN:  # by nohup or &; what tests start hears it
            signal.signal(number, lambda number, frame: None)
    if not hasattr(session.config, "workerinput"):
        is_whole = session.config.args_source == pytest.Config.ArgsSource.TESTPATHS
        named = session.config.getoption("compile") or (() if is_whole else compile_first.ALWAYS)
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        command = [sys.executable, compile_first.__file__, *named]
        subprocess.run(command, env=environment, check=True)


def pytest_collection(session: pytest.Session) -> None:
    """Leave the garbage collector alone meanwhile: what is imported stays."""
    gc.disable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Have a thousand tests of milliseconds come last, so that no worker waits for another."""
    items.sort(key=lambda item: item.path.name == "test_layers.py")


def pytest_collection_finish(session: pytest.Session) -> None:
    """Have it look at what tests make alone, not over and over at half a million other objects."""
    gc.collect()
    gc.freeze()
    gc.enable()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--regen", action="store_true", help="write the golden files anew")
    parser.addoption(
        "--compile",
        action="append",
        metavar="MODULE",
        help="loops to compile before tests, in place of those that nearly all tests need",
    )


def load_script(path: Path) -> ModuleType:
    """Return a script as a module."""
    spec = importlib.util.spec_from_file_location(f"of_{path.parent.name.replace('-', '_')}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def data_folder() -> Path:
    return Path(os.environ.get("SPECSIM_DATA", ROOT.parent / "shared" / "data"))


def needs(path: Path) -> pytest.MarkDecorator:
    """Skip a test, saying why, where a file that is never committed is not at hand."""
    return pytest.mark.skipif(not path.exists(), reason=f"{path} is not here (see SPECSIM_DATA)")


def tiny_config(**changes: Any) -> dict[str, Any]:
    """A run of a fraction of a second; top-level fields can be replaced."""
    config: dict[str, Any] = {
        "workload": {
            "arrivals": {"kind": "poisson", "rate": 20.0},
            "lengths": {"kind": "uniform", "prompt": [1, 200], "output": [1, 40]},
            "num_requests": 30,
        },
        "engine": {
            "num_gpu_blocks": 400,
            "max_model_len": 1024,
            "max_num_seqs": 16,
            "max_num_batched_tokens": 256,
            "speculative_config": {"method": "eagle3", "num_speculative_tokens": 3},
        },
        "acceptance": {"kind": "bernoulli", "alpha": 0.7},
        "profile": "h100/llama-3.1-8b",
    }
    return {**config, **changes}


@pytest.fixture
def tiny() -> Callable[..., Experiment]:
    """Make a tiny experiment: ``tiny(policy={"kind": "off"})``."""
    return lambda **changes: Experiment.parse(tiny_config(**changes), "tiny")


@pytest.fixture
def constant_step(tmp_path: Path) -> Callable[..., str]:
    """Make a profile with chosen costs, ``constant_step(delta_ms=8.0)``, and return its path."""

    def make(*, alpha_ns: float = 0, gamma_us: float = 0, delta_ms: float = 0, **rest: Any) -> str:
        path = tmp_path / f"profile-{len(list(tmp_path.iterdir()))}.yaml"
        profile = {
            "model": "llama-3.1-8b",
            "gpu": "h100",
            "provenance": {"engine": "none", "source": "a test", "date": "2026-01-01"},
            "target": {
                "kind": "linear",
                "alpha_ns": alpha_ns,
                "gamma_us": gamma_us,
                "delta_ms": delta_ms,
            },
            "valid_range": {"context_tokens": 10**9, "batched_tokens": 10**9},
            **rest,
        }
        path.write_text(yaml.safe_dump(profile))
        return str(path)

    return make


def server_view(
    max_draft_len: int, step_time: Callable[[StepLoad, Any], float], **others: Any
) -> ServerView:
    """Return what a policy sees of a server whose steps take what `step_time` says."""

    def step_times(
        load: StepLoad, batched_tokens: NDArray[np.int64], draft_lens: int | list[int]
    ) -> NDArray[np.float64]:
        loads = [load._replace(batched_tokens=int(tokens)) for tokens in batched_tokens]
        return np.array([step_time(each, draft_lens) for each in loads])

    return ServerView(max_draft_len, step_time, step_times, **others)


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run a command in an empty folder; return exit code, output and error output."""
    monkeypatch.chdir(tmp_path)
    for name in (FORCES, ALLOWS_LARGE):  # as a command with --force or --large leaves them set
        monkeypatch.setenv(name, "")

    def run(*args: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["specsim", *map(str, args)])
        code = 0
        try:
            main()
        except SystemExit as stop:
            code = int(stop.code or 0)
        output = capsys.readouterr()
        return code, output.out, output.err

    return run
