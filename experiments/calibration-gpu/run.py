"""Calibrate on the GPU of this machine, without a hand on it: ``make gpu``, some 36 minutes.

First specsim's own engine on PyTorch (15 minutes), then vLLM (20 minutes), both with random weights
of the shape of Llama-3.1-8B and, to draft with, of Llama-3.2-1B, at k = 0, 1, 3 and 5. Each is
fitted to some of its runs and compared with the others. What is worth keeping goes to
experiments/calibration-GPU, and one profile for all k to profiles/GPU::

    python experiments/calibration-gpu/run.py --engine vllm      # only that part, in 20 minutes
    python experiments/calibration-gpu/run.py --device cpu       # a rehearsal, some 15 minutes

PyTorch, and vLLM, may be in another Python than this one: run the script with that, with specsim on
its PYTHONPATH, or name it in SPECSIM_VLLM_PYTHON.
"""

import argparse
import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import yaml

from specsim.core.figures import percent

sys.path.insert(0, str(Path(__file__).parents[1]))
from made_up_models import model_folder

ROOT = Path(__file__).parents[2]
MODELS = {"cuda": ("llama-3.1-8b", "llama-3.2-1b"), "cpu": ("llama-7m", "llama-7m")}
_KEPT = ("profile.yaml", "profiles/*.yaml", "calibration.json", "grid.csv", "plot.png", "meta.json")

Command = Callable[[Sequence[str]], int]
"""Runs ``specsim`` with these arguments and returns its exit code."""


def specsim(arguments: Sequence[str]) -> int:
    """Run a command of specsim in a process of its own."""
    return subprocess.run([sys.executable, "-m", "specsim", *arguments], check=False).returncode


def calibrate(engine: str, device: str, out: Path, run: Command) -> None:
    """Calibrate one engine; its verdict (exit code 1: some error is too large) is a result, too."""
    target, draft = MODELS[device]
    options = ["--engine", engine, "--device", device, "--quick", "--out", str(out / engine)]
    if engine == "vllm":
        options += ["--model", str(model_folder(target, out / "models" / "target"))]
        options += ["--draft-model", str(model_folder(draft, out / "models" / "draft"))]
    code = run(["calibrate", *options])
    if code not in (0, 1):
        sys.exit(code)


def fit_for_all_k(out: Path, model: str, gpu: str, run: Command) -> Path:
    """Fit one profile to the runs that vLLM's own profiles were fitted to, of all draft lengths."""
    profile = out / "profile-all-k.yaml"
    runs = sorted(str(path.parent) for path in (out / "vllm" / "runs").glob("*/fit-*/meta.json"))
    code = run(["profile", "fit", *runs, "--model", model, "--gpu", gpu, "--out", str(profile)])
    if code:
        sys.exit(code)
    return profile


def keep(out: Path, engine: str, kept: Path) -> None:
    """Copy what is worth keeping of a calibration; the runs themselves are not."""
    found: Iterable[Path] = (each for kind in _KEPT for each in (out / engine).glob(kind))
    for path in found:
        target = kept / engine / path.relative_to(out / engine)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)


def errors(kept: Path) -> str:
    """Return the errors of mean TPOT and mean latency as a Markdown table, a line per case."""
    lines = ["| engine | case | mean TPOT | mean latency |", "|---|---|---|---|"]
    for path in sorted(kept.glob("*/calibration.json")):
        for case in json.loads(path.read_text())["cases"]:
            name = f"{case['acceptance']}, {case['load']}, `{case['policy']}`"
            values = [
                percent(case["error_at_speed"][each], sign=True) for each in ("tpot", "latency")
            ]
            lines.append(f"| {path.parent.name} | {name} | {' | '.join(values)} |")
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str] | None = None, run: Command = specsim) -> None:
    """Calibrate one engine, or both, and keep what came of it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--device", choices=sorted(MODELS), default="cuda")
    parser.add_argument("--engine", choices=["torch", "vllm"], action="append")
    parser.add_argument("--out", type=Path, default=Path("results/gpu"), help="new folder")
    parser.add_argument("--keep", type=Path, default=ROOT, help="has experiments/ and profiles/")
    given = parser.parse_args(arguments)
    engines = given.engine or ["torch", "vllm"]
    for engine in engines:
        calibrate(engine, given.device, given.out, run)
        first = next(iter(sorted((given.out / engine).glob("profile*/*.yaml"))), None)
        gpu = yaml.safe_load((first or given.out / engine / "profile.yaml").read_text())["gpu"]
        kept = given.keep / "experiments" / f"calibration-{gpu}"
        keep(given.out, engine, kept)
        if engine == "vllm":
            model = MODELS[given.device][0]
            target = given.keep / "profiles" / gpu / f"{model}-vllm.yaml"
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(fit_for_all_k(given.out, model, gpu, run), target)
        (kept / "errors.md").write_text(errors(kept))
        sys.stdout.write(f"{engine}: {kept}\n")


if __name__ == "__main__":
    main()
