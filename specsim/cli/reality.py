"""Commands about real engines: ``calibrate``, ``observe``, ``parity`` and ``acceptance fit``."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import typer
from typer import Argument, Option

from specsim.cli.options import (
    Overrides,
    Seed,
    all_overrides,
    can_draw,
    need,
    output_file,
    progress,
    show,
    spinner,
    warn,
    write_json,
)
from specsim.core.atomic import new_file
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
        files = ["profiles/", "calibration.json"]
    else:
        files = ["profile.yaml", "calibration.json", "grid.csv"]
    _conclude(found, out, files)


def _torch_subject(
    device: Device, model: str | None, *, quick: bool, threads: int, seed: int, stated_error: float
) -> "Subject":
    from specsim.hardware import find_gpu, load_model
    from specsim.reality.calibration.torch_subject import CPU, CUDA, QUICK, QUICK_CUDA, TorchSubject

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


def _conclude(found: "Calibration", out: Path, files: list[str]) -> None:
    from specsim.show.render.reality_tables import calibration_tables, calibration_verdict

    if can_draw("plot.png"):
        from specsim.show.charts.reality_plots import plot_calibration

        plot_calibration(found, out / "plot.png")
        files = [*files, "plot.png"]
    show(*calibration_tables(found))
    for line in calibration_verdict(found):
        typer.echo(line)
    typer.echo(f"results: {out} ({', '.join([*files, 'runs/'])})")
    if not found.is_kept:
        raise typer.Exit(1)


_KINDS_SHOWN = 8


def observe(
    url: str = Option(..., help="Address of the server, such as http://127.0.0.1:8000."),
    workload: Path = Option(
        ..., help="YAML with a workload and, optionally, engine, policy and seed; or an experiment."
    ),
    out: Path = Option(..., help="Folder for the run; new."),
    model: str | None = Option(None, help="By default the only one that the server has."),
    overrides: Overrides = None,
    seed: Seed = None,
    ids: str = Option(
        "1000:30000",
        metavar="LOW:HIGH",
        help="Range of random token ids, HIGH excluded; keep it inside the vocabulary.",
    ),
    body: str | None = Option(
        None, metavar="JSON", help='More fields of each request: {"temperature": 0}.'
    ),
    timeout: float = Option(
        600.0, min=0.1, help="Seconds of silence after which an answer has failed."
    ),
    warm_up: int = Option(1, min=0, help="Requests before the run."),
) -> None:
    """Send a workload to a running server and record what comes back.

    Open loop: every request is sent at its time, whatever the server does. Prompts are the token
    ids of the workload, or random ones; answers have the lengths of the workload. The folder is a
    measured run, which specsim validate reads. Errors of the server are recorded and counted; if
    there are any, the exit code is 1. Ctrl-C keeps what there is. A key is taken from the
    environment variable OPENAI_API_KEY.
    """
    need("aiohttp", "observe", extra="observe")
    from specsim.reality.observe import Options, load_workload
    from specsim.reality.observe import observe as run
    from specsim.show.render.reality_tables import observation_table

    low, high = _id_range(ids)
    options = Options(low, high, timeout, warm_up, _body(body))
    planned = load_workload(workload, all_overrides(overrides, seed))
    with progress("requests", len(planned.requests)) as on_progress:
        found = run(url, planned, out, model=model, options=options, on_progress=on_progress)
    show(observation_table(found, f"{found.server.model} at {found.server.url}"))
    kinds = found.errors.most_common()
    errors = [f"{count:,} failed: {error}" for error, count in kinds[:_KINDS_SHOWN]]
    if len(kinds) > _KINDS_SHOWN:
        errors.append(f"and {len(kinds) - _KINDS_SHOWN} more kinds of errors; see meta.json")
    warn([*errors, *found.notes])
    typer.echo(f"run: {out} (requests.jsonl, meta.json)")
    if found.is_interrupted:
        raise typer.Exit(130)
    if kinds:
        raise typer.Exit(1)


def _id_range(text: str) -> tuple[int, int]:
    low, _, high = text.partition(":")
    if not (low.isdecimal() and high.isdecimal() and int(low) < int(high) < 2**31):
        raise ConfigError(f"--ids {text}: expected two token ids, the smaller first: 1000:30000")
    return int(low), int(high)


def _body(text: str | None) -> dict[str, Any]:
    def no_number(name: str) -> None:
        raise ValueError(f"{name} is no number")

    try:
        fields = json.loads(text, parse_constant=no_number) if text is not None else {}
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"--body {text}: is not JSON: {error}") from error
    if not isinstance(fields, dict):
        raise ConfigError(f"--body {text}: expected an object of fields")
    return fields


def parity(
    scenario: Path = Argument(..., help="A recorded scenario, JSON."),
    log: Path | None = Option(
        None, help="Its log; by default NAME.log.json beside NAME.scenario.json."
    ),
    out: Path | None = Option(None, help="Write our own log here."),
) -> None:
    """Replay a schedule of the real vLLM scheduler and compare every field of every step.

    Exits with 1 at the first difference, and prints it in full.
    """
    from specsim.reality.parity import (
        as_in_log,
        compare_logs,
        load_log,
        load_scenario,
        run_scenario,
    )

    parsed = load_scenario(scenario)
    beside = scenario.with_name(scenario.name.replace(".scenario.", ".log."))
    if log is None and beside != scenario and beside.exists():
        log = beside
    theirs = load_log(log) if log is not None else None
    if log is not None and theirs is not None:
        parsed = as_in_log(parsed, theirs, log)
    with spinner("replaying"):
        ours = run_scenario(parsed)
    if out is not None:
        with new_file(out) as temporary:
            temporary.write_text(json.dumps(ours) + "\n")
    steps = len(ours["steps"])
    if theirs is None:
        typer.echo(f"{parsed.name}: {steps:,} steps, not compared (no log given)")
        return
    difference = compare_logs(ours, theirs)
    if difference is not None:
        typer.echo(f"{parsed.name}: DIFFERS at {difference}")
        raise typer.Exit(1)
    typer.echo(f"{parsed.name}: all {steps:,} steps and {len(ours['requests']):,} requests agree")


acceptance_app = typer.Typer(help="Fit acceptance models to recorded data.", no_args_is_help=True)


@acceptance_app.callback()
def _group() -> None:
    """Keep ``fit`` a subcommand, although it is the only one."""


@acceptance_app.command()
def fit(
    file: Path = Argument(..., help="A token trace with recorded acceptance."),
    proposer: str = Option(..., help="Such as eagle, of acc_eagle or accepted_lens_eagle."),
    k: int = Option(5, min=1, help="Draft length of the replay."),
    max_output_len: int = Option(
        1500, min=2, help="Leave longer outputs out: they are endless loops."
    ),
    split_seed: int = Option(0, min=0, help="Seed of the division into halves."),
    kind: str | None = Option(None, help="Choose this model; by default the closest."),
    json_out: Path | None = Option(None, "--json", help="Write everything here, as JSON."),
    preset: Path | None = Option(
        None, help="Write the chosen model here, as YAML that ships in profiles/."
    ),
    source: str = Option("not given", help="Where the trace comes from, for --preset."),
) -> None:
    """Fit every acceptance model to one half of the requests and measure it on the other.

    Prints how far each model is from the held-out half (Kolmogorov-Smirnov distances of accepted
    tokens per step, tokens per step per request and accepted tokens in 8 consecutive steps; error
    of the total of steps), and how far the halves are from each other. The closest kind of model,
    or the one asked for, is fitted again to all requests and printed as it goes into an experiment.
    """
    from dataclasses import asdict

    from specsim.core.settings import as_yaml
    from specsim.reality.acceptance_fit import fields, fit_acceptance, load_records
    from specsim.show.render.trace_tables import distances_table

    with output_file(json_out) as json_file, output_file(preset) as preset_file:
        with progress(f"reading {file.name}", None) as told:
            records = load_records(file, proposer, max_output_len)
            done = fit_acceptance(records, k, split_seed, kind, told.stage)
        write_json(json_file, done.to_dict())
        if preset_file is not None:
            preset_file.write_text(as_yaml(done.to_preset(source), width=100), encoding="utf-8")
    rows = {kind: asdict(each.held_out) for kind, each in done.candidates.items()}
    title = f"{file.name}, {proposer}, k = {k}: {done.num_fitted:,} requests fitted"
    show(distances_table({"the other half of the data": asdict(done.halves), **rows}, title))
    typer.echo(records.left_out)
    typer.echo(f"\nclosest: {done.best}")
    typer.echo(f"{done.chosen_kind}, fitted to all {len(records.tables):,} requests:\n")
    typer.echo(as_yaml({"acceptance": fields(done.chosen)}), nl=False)
