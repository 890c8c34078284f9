"""vLLM: recording from within its own process, and starting it to be recorded.

vLLM may be in another Python than the caller's. This file and the modules `recorder` and
`scheduler` import nothing but the standard library and vLLM.
"""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from specsim.core.errors import ConfigError

PYTHON_VARIABLE = "SPECSIM_VLLM_PYTHON"  # the Python that has vLLM, if not this one
_ROOT = Path(__file__).parents[3]


@dataclass(frozen=True)
class VllmRun:
    """A workload and the run folder for its recording; parallel lists, in order of arrival."""

    folder: Path  # must not hold a run yet
    arrivals: Sequence[float]  # seconds after the start of the run, ascending
    prompts: Sequence[Sequence[int]]  # token ids
    output_lens: Sequence[int]  # exact length of each answer, tokens


def vllm_python() -> str:
    """Return the Python that has vLLM: this one, or what ``SPECSIM_VLLM_PYTHON`` names."""
    named = os.environ.get(PYTHON_VARIABLE)
    if named:
        if not Path(named).is_file():
            raise ConfigError(f"{PYTHON_VARIABLE} = {named}: there is no such file")
        return named
    found = find_spec("vllm")
    if found is None or found.origin is None:  # a plain folder of that name is not vLLM
        raise ConfigError(
            f"vLLM is not installed here; install it (pip install vllm), or name with "
            f"{PYTHON_VARIABLE} the python of the environment that has it"
        )
    return sys.executable


def record_runs(
    runs: Sequence[VllmRun],
    engine_kwargs: Mapping[str, Any],
    *,
    environment: Mapping[str, str] | None = None,
    probes: bool = False,
    timeout_s: float = 3600.0,
) -> None:
    """Start a local vLLM, run workloads on it one after another, and record each.

    Answers are greedy and have exactly the requested length. The prefix cache is emptied before
    each run, and a few unrecorded requests warm the engine up. With probes, the speed of the CPU is
    recorded, too. `environment` adds variables such as ``OMP_NUM_THREADS``. Raises a ConfigError if
    there is no vLLM, or it failed; what was recorded until then stays, marked incomplete.
    """
    spec = {
        "engine_kwargs": dict(engine_kwargs),
        "probes": probes,
        "runs": [{**vars(run), "folder": str(run.folder.resolve())} for run in runs],
    }
    with TemporaryDirectory(prefix="specsim-vllm-") as scratch:
        path, log = Path(scratch) / "spec.json", Path(scratch) / "log.txt"
        path.write_text(json.dumps(spec), encoding="utf-8")
        variables = {**os.environ, **(environment or {})}
        known = variables.get("PYTHONPATH")
        variables["PYTHONPATH"] = f"{_ROOT}{os.pathsep}{known}" if known else str(_ROOT)
        command = [vllm_python(), "-m", "specsim.reality.vllm.worker", str(path)]
        with log.open("w") as stream:
            streams: Any = {"stdout": stream, "stderr": subprocess.STDOUT}
            try:
                done = subprocess.run(
                    command, env=variables, timeout=timeout_s, check=False, **streams
                )
            except subprocess.TimeoutExpired as error:
                raise ConfigError(
                    f"vLLM had not finished after {timeout_s:g} s; give it more time or fewer "
                    "requests"
                ) from error
        if done.returncode:
            raise ConfigError(f"vLLM failed: {_reason(log, done.returncode)}")


def _reason(log: Path, code: int) -> str:
    """Return the last line that vLLM wrote, which names the error."""
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    if code < 0:
        return f"ended by signal {-code}, as where memory runs out; {lines[-1] if lines else ''}"
    errors = [line for line in lines if "Error" in line and not line.startswith("File")]
    return (errors or lines or [f"exit code {code}"])[-1]
