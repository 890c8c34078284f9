"""Command ``calibrate``."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from specsim.cli.terminal import show

__all__ = ["calibrate"]


class EngineName(StrEnum):
    """Which engine is measured."""

    TORCH = "torch"


class Device(StrEnum):
    """What it runs on."""

    CPU = "cpu"
    CUDA = "cuda"


def calibrate(
    engine: Annotated[EngineName, typer.Option(help="The engine that is measured.")],
    out: Annotated[Path, typer.Option(help="New folder for the results.", show_default=False)],
    device: Annotated[Device, typer.Option(help="What it runs on.")] = Device.CPU,
    model: Annotated[
        str | None,
        typer.Option(
            help="As in profiles/<model>.json, or a config.json; by default llama-7m on a CPU, "
            "llama-3.1-8b on CUDA."
        ),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Some 6 minutes on 2 CPU cores.")] = False,
    stated_error: Annotated[
        float,
        typer.Option(
            min=0.001, max=1.0, help="Error of mean TPOT and latency that the profile promises."
        ),
    ] = 0.1,
    threads: Annotated[int, typer.Option(min=1, help="Threads of PyTorch on a CPU.")] = 1,
    seed: Annotated[int, typer.Option(min=0, help="Of weights and prompts.")] = 0,
) -> None:
    """Measure an engine, fit a profile, run workloads for real and simulated, print the error.

    The engine serves every workload without speculation, with k = 1, 3, 5 and by goodput, at low
    and medium load and saturated, several times each; the simulation gets the same requests. First
    acceptance is decided by luck that both share, so that only costs and scheduling can be wrong;
    then the models decide, and the simulation knows no more than rates per position, measured on
    other requests. The profile is validated if mean TPOT and mean latency keep to the stated error
    (or to twice the spread of the real runs) everywhere, and k is ordered right; else it stays a
    candidate, and the exit code is 1.
    """
    from specsim.calibration.plan import CPU, CUDA, QUICK
    from specsim.calibration.study import Subject, check_folder
    from specsim.calibration.study import calibrate as run_calibration
    from specsim.errors import ConfigError
    from specsim.hardware import find_gpu, load_model
    from specsim.plots.calibration import plot_calibration
    from specsim.render.calibration import calibration_tables, verdict

    if device is Device.CUDA and quick:
        raise ConfigError("--quick: is for --device cpu; leave it out")
    if device is Device.CUDA and threads != 1:
        raise ConfigError("--threads: is for --device cpu; leave it out")
    check_folder(out)
    name = model or ("llama-3.1-8b" if device is Device.CUDA else "llama-7m")
    shape = load_model(name)
    plan = QUICK if quick else CPU if device is Device.CPU else CUDA
    try:
        from specsim.calibration.torch_engine.build import build_engine
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise ConfigError(
            "--engine torch: PyTorch is not installed here; install it: "
            "pip install 'specsim[calibrate]'"
        ) from error
    built = build_engine(shape, device.value, plan, threads=threads, seed=seed)
    typer.echo(f"{engine} on {device}, model {name}: about {plan.minutes} minutes", err=True)
    device_name = built.description["hardware"]["device_name"]
    gpu = "cpu" if device is Device.CPU else find_gpu([device_name], "--device cuda")
    subject = Subject(built, plan, name, gpu, stated_error)
    found = run_calibration(subject, out, lambda line: typer.echo(f"  {line}", err=True))
    plot_calibration(found, out / "plot.png")
    show(*calibration_tables(found))
    for line in verdict(found):
        typer.echo(line)
    typer.echo(f"results: {out} (profile.yaml, calibration.json, grid.csv, plot.png, runs/)")
    if found.failed or found.swaps:
        raise typer.Exit(1)
