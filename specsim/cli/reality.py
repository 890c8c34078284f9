"""Commands about real engines: ``observe``, ``validate``, ``parity`` and ``acceptance fit``."""

import json
from pathlib import Path
from typing import Any, Literal

import typer
from typer import Argument, Option

from specsim.cli.options import (
    ALL_CORES,
    Out,
    Overrides,
    Seed,
    Workers,
    all_overrides,
    can_draw,
    need,
    output_file,
    progress,
    refuse,
    results_folder,
    show,
    spinner,
    warn,
    write_json,
)
from specsim.core.atomic import new_file
from specsim.core.errors import ConfigError

_KINDS_SHOWN = 8


def observe(
    url: str = Option(..., help="Address of the server, such as http://127.0.0.1:8000."),
    workload: Path = Option(
        ..., help="YAML with a workload and, optionally, engine and seed; or an experiment."
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


def validate(
    run: list[Path] = Argument(
        ...,
        help="A folder with requests.jsonl and meta.json of a measured run; or tables, CSV, "
        "with a row per run, or JSON of `vllm bench serve --save-result`.",
    ),
    profile: str | None = Option(
        None,
        help="Name or path; by default composed from the kernel tables in profile/ of a folder.",
    ),
    num_gpu_blocks: int | None = Option(
        None, min=2, help="KV blocks, in place of what meta.json says."
    ),
    tokens: Path | None = Option(
        None, help="Token ids, for prefix hits; by default what meta.json names."
    ),
    model: str | None = Option(None, help="Name or config.json, in place of what meta.json says."),
    rows: list[str] | None = Option(
        None,
        metavar="COLUMN=VALUE",
        help="Only these rows of a table; of several values of one column, any.",
    ),
    cells: list[str] | None = Option(
        None, "--set", metavar="COLUMN=VALUE", help="What empty cells of a table hold."
    ),
    requests: Path | None = Option(
        None, help="Lengths of single requests: run_id, request_index, input_len, ..."
    ),
    acceptance_spread: float | None = Option(
        None,
        min=0.1,
        help="Concentration of acceptance between requests (Beta distribution); inf: all "
        "alike. By default 30, or the row's column acceptance_spread.",
    ),
    skip_incomplete: bool = Option(
        False, "--skip-incomplete", help="Leave rows out that say too little."
    ),
    speed: Literal["output_tok_s", "tpot_mean_ms", "e2e_mean_ms"] | None = Option(
        None,
        help="Metric of the speed-ups; by default output_tok_s, at a request rate e2e_mean_ms.",
    ),
    seed: int = Option(0, min=0, help="Seed of a table's arrivals and acceptance."),
    workers: Workers = ALL_CORES,
    predictions: Path | None = Option(
        None, help="Write measured and predicted values of a table's rows here, as CSV."
    ),
    out: Out = None,
    json_out: Path | None = Option(None, "--json", help="Write the numbers here, as JSON."),
) -> None:
    """Replay measured runs and print measured against simulated.

    Of a folder, arrivals, lengths and token ids are those of the run, so is the engine: the options
    that meta.json lists. A request arrives when the engine queued it (queued_ts). Of a run that was
    repeated (several requests*.jsonl) the spread stands beside the error. What was drafted and
    accepted is the run's, too (meta.json: speculative_config; requests.jsonl: accepted); requests
    that ended with an error are left out. With --out the folder gets report.json, and report.png
    with the distributions on top of each other.

    Of a table, every row's load is repeated on its engine, with its own acceptance, under one
    profile. Errors are told by metric, draft length, load and file; so is how well the speed-up of
    speculation and the fastest draft length are predicted. With --out the folder gets report.json,
    and report.png with predicted against measured.
    """
    of_folder = {"num_gpu_blocks": num_gpu_blocks, "tokens": tokens, "model": model}
    of_tables: dict[str, Any] = {"rows": rows, "set": cells, "requests": requests}
    of_tables |= {"predictions": predictions, "acceptance_spread": acceptance_spread}
    of_tables |= {"speed": speed, "skip_incomplete": skip_incomplete or None, "seed": seed or None}
    folders = [path for path in run if path.is_dir()]
    if folders and len(run) > 1:
        raise ConfigError(f"{folders[0]}: is a folder; give one folder, or only tables")
    others = of_tables if folders else of_folder
    kind = "tables" if folders else "the folder of a run"
    named = {f"--{name.replace('_', '-')}": value for name, value in others.items()}
    refuse(named, f"is for {kind}; leave it out")
    if folders:
        _validate_folder(run[0], {"profile": profile, **of_folder}, out, json_out)
        return
    from specsim.cli.measured_tables import validate_tables

    validate_tables(run, profile, of_tables, workers, out, json_out)


def _validate_folder(
    run: Path, given: dict[str, Any], out: Path | None, json_out: Path | None
) -> None:
    from specsim.reality.validation import Replaced
    from specsim.reality.validation import validate as run_validation
    from specsim.show.render.reality_tables import validation_tables

    replaced = Replaced(**given)
    draws = out is not None and can_draw("report.png")
    with (
        results_folder(out, ("report.json", "report.png")) as folder,
        output_file(json_out) as json_file,
    ):
        with spinner(f"replaying {run.name}"):
            found = run_validation(run, replaced)
        report = found.to_dict()
        write_json(json_file, report)
        write_json(folder and folder / "report.json", report)
        if folder is not None and draws:
            from specsim.show.charts.reality_plots import plot_validation

            with spinner("drawing"):
                plot_validation({"simulated": found}, folder / "report.png", run.name)
    show(*validation_tables(found, run.name))
    details = found.details
    typer.echo(
        f"KV blocks {details['num_gpu_blocks']:,}, prefix-hit tokens "
        f"{details['prefix_hit_tokens']:,}, preemptions {details['preemptions']:,}, steps "
        f"{details['num_steps']:,}"
    )
    if "measured_drafts" in details:
        real, ours = details["measured_drafts"], details["simulated_drafts"]
        typer.echo(
            f"drafts verified {real['num_drafts']:,} (simulated {ours['num_drafts']:,}), tokens "
            f"accepted {real['accepted_tokens']:,} of {real['draft_tokens']:,} "
            f"({ours['accepted_tokens']:,} of {ours['draft_tokens']:,})"
        )
    for note in found.notes:
        typer.echo(f"note: {note}")
    if out is not None:
        typer.echo(f"results: {out} ({'report.json, report.png' if draws else 'report.json'})")


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
        typer.echo(f"{parsed.name}: {steps} steps, not compared (no log given)")
        return
    difference = compare_logs(ours, theirs)
    if difference is not None:
        typer.echo(f"{parsed.name}: DIFFERS at {difference}")
        raise typer.Exit(1)
    typer.echo(f"{parsed.name}: all {steps} steps and {len(ours['requests'])} requests agree")


acceptance_app = typer.Typer(help="Fit acceptance models to recorded data.", no_args_is_help=True)


@acceptance_app.callback()
def _group() -> None:
    """Keep ``fit`` a command of its own, though it is the only one."""


@acceptance_app.command()
def fit(
    file: Path = Argument(..., help="A token trace with recorded acceptance."),
    proposer: str = Option(..., help="Such as eagle, for the column acc_eagle."),
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
        with spinner(f"fitting to {file.name}"):
            records = load_records(file, proposer, max_output_len)
            done = fit_acceptance(records, k, split_seed, kind)
        write_json(json_file, done.to_dict())
        if preset_file is not None:
            preset_file.write_text(as_yaml(done.to_preset(source), width=100), encoding="utf-8")
    rows = {kind: asdict(each.held_out) for kind, each in done.candidates.items()}
    title = f"{file.name}, {proposer}, k = {k}: {done.num_fitted} requests fitted"
    show(distances_table({"the other half of the data": asdict(done.halves), **rows}, title))
    typer.echo(records.left_out)
    typer.echo(f"\nclosest: {done.best}")
    typer.echo(f"{done.chosen_kind}, fitted to all {len(records.tables)} requests:\n")
    typer.echo(as_yaml({"acceptance": fields(done.chosen)}), nl=False)
