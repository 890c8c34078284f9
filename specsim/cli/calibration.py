"""Command ``calibrate``."""

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import typer
from typer import Option

from specsim.cli.options import can_draw, show
from specsim.core.errors import ConfigError

if TYPE_CHECKING:
    from specsim.reality.calibration import Calibration, Subject


Device = Literal["cpu", "cuda"]


def calibrate(
    engine: Literal["torch", "vllm"] = Option(..., help="The engine that is measured."),
    out: Path = Option(..., help="New folder for the results."),
    device: Device = Option("cpu", help="What it runs on."),
    model: str | None = Option(
        None,
        help="torch: as in profiles/<model>.json, or a config.json; by default llama-7m on a "
        "CPU, llama-3.1-8b on CUDA. vllm: a folder with config.json; weights are made up if "
        "it has none.",
    ),
    draft_model: Path | None = Option(
        None, help="vllm: folder of a draft model, for k = 1, 3, 5; without one, n-gram k = 3."
    ),
    quick: bool = Option(
        False,
        "--quick",
        help="torch: some 8 minutes on 2 CPU cores, 15 on a GPU; vllm: 6 to 9, 20 on a GPU.",
    ),
    stated_error: float = Option(
        0.1, min=0.001, max=1.0, help="Error of mean TPOT and latency that the profile promises."
    ),
    threads: int = Option(1, min=1, help="Threads of the engine on a CPU."),
    seed: int = Option(0, min=0, help="Seed of weights and prompts."),
) -> None:
    """Measure an engine, fit a profile, run workloads for real and simulated, print the error.

    torch, an engine of our own, serves every workload without speculation, with k = 1, 3, 5 and by
    goodput, at low and medium load and saturated, several times each; the simulation gets the same
    requests. First acceptance is decided by luck that both share, so that only costs and scheduling
    can be wrong; then the models decide, and the simulation knows no more than rates per position,
    measured on other requests.

    vllm, as it is installed here (or where SPECSIM_VLLM_PYTHON says), serves four loads, one engine
    for each k. A profile for each is fitted to two of them, the other two are replayed with what
    was drafted and accepted where.

    On a CPU, whose speed others may change, it is probed meanwhile, and the simulation that is
    judged is told how fast the machine was.

    The exit code is 0 if mean TPOT and mean latency keep to the stated error (or to twice the
    spread of the real runs) everywhere, and k is ordered right; else 1. The profile is validated
    if, besides, every case tells something: its real runs repeat within the stated error, or the
    simulation keeps to it by itself. Else it stays a candidate.
    """
    from specsim.reality.calibration import calibrate as run_calibration
    from specsim.reality.calibration import check_folder
    from specsim.show.render.reality_tables import error_tables

    if device == "cuda" and threads != 1:
        raise ConfigError("--threads: is for --device cpu; leave it out")
    if engine == "torch" and draft_model is not None:
        raise ConfigError("--draft-model: is for --engine vllm; leave it out")
    check_folder(out)
    given: Any = {"quick": quick, "threads": threads, "seed": seed, "stated_error": stated_error}
    if engine == "torch":
        subject = _torch_subject(device, model, **given)
    elif model is None:
        raise ConfigError("--engine vllm: name with --model the folder of a model")
    else:
        subject = _vllm_subject(device, model, draft_model, **given)
    found = run_calibration(subject, out, lambda line: typer.echo(f"  {line}", err=True))
    if engine == "vllm":
        show(*error_tables(found))
        files = "profiles/, calibration.json, plot.png, runs/"
    else:
        files = "profile.yaml, calibration.json, grid.csv, plot.png, runs/"
    _conclude(found, out, files)


def _torch_subject(
    device: Device, model: str | None, *, quick: bool, threads: int, seed: int, stated_error: float
) -> "Subject":
    from specsim.hardware import find_gpu, load_model
    from specsim.reality.calibration.torch_plan import CPU, CUDA, QUICK, QUICK_CUDA
    from specsim.reality.calibration.torch_subject import TorchSubject

    name = model or ("llama-3.1-8b" if device == "cuda" else "llama-7m")
    shape = load_model(name)
    plan = {"cpu": QUICK if quick else CPU, "cuda": QUICK_CUDA if quick else CUDA}[device]
    try:
        from specsim.reality.torch_engine.engine import build_engine
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise ConfigError(
            "--engine torch: PyTorch is not installed here; install it: "
            "pip install 'llm-specsim[calibrate]'"
        ) from error
    built = build_engine(shape, device, plan, threads=threads, seed=seed)
    typer.echo(f"torch on {device}, model {name}: about {plan.minutes} minutes", err=True)
    device_name = built.description["hardware"]["device_name"]
    gpu = "cpu" if device == "cpu" else find_gpu([device_name], "--device cuda")
    return TorchSubject(built, plan, name, gpu, stated_error)


def _vllm_subject(
    device: Device,
    model: str,
    draft_model: Path | None,
    *,
    quick: bool,
    threads: int,
    seed: int,
    stated_error: float,
) -> "Subject":
    from specsim.reality.calibration.vllm_subject import VllmSubject, plan_for
    from specsim.reality.vllm import vllm_python

    vllm_python()
    plan = plan_for(device, quick=quick, threads=threads)
    subject = VllmSubject.of(
        Path(model), draft_model, plan, device, stated_error=stated_error, seed=seed
    )
    minutes = plan.minutes(len(subject.speculations))
    typer.echo(f"vllm on {device}, model {model}: about {minutes} minutes", err=True)
    if subject.is_dummy:
        typer.echo("  no weights: vLLM makes them up (load_format dummy)", err=True)
    return subject


def _conclude(found: "Calibration", out: Path, files: str) -> None:
    """Draw and print what came of it; exit with 1 unless all is as stated."""
    from specsim.show.render.reality_tables import calibration_tables, calibration_verdict

    if can_draw("plot.png"):
        from specsim.show.charts.reality_plots import plot_calibration

        plot_calibration(found, out / "plot.png")
    show(*calibration_tables(found))
    for line in calibration_verdict(found):
        typer.echo(line)
    typer.echo(f"results: {out} ({files})")
    if not found.is_kept:
        raise typer.Exit(1)
