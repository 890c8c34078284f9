"""Measured runs: ``validate``, and ``profile fit`` on tables with one run per row."""

import csv
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import typer
from typer import Argument, Option

from specsim.cli.options import (
    ALL_CORES,
    Out,
    Workers,
    can_draw,
    output_file,
    progress,
    refuse,
    results_folder,
    show,
    spinner,
    warn,
    write_json,
    write_profile,
)
from specsim.core.errors import ConfigError
from specsim.core.version import __version__

if TYPE_CHECKING:
    from specsim.reality.validation.measured_run import MeasuredRun
    from specsim.reality.validation.table_replay import Prediction


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
        help="Only these rows of a table; given several values of a column, rows with any of them.",
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
    refuse(others, f"is for {kind}; leave it out")
    if folders:
        _validate_folder(run[0], {"profile": profile, **of_folder}, out, json_out)
        return
    _validate_tables(run, profile, of_tables, workers, out, json_out)


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


_COLUMNS = ("file", "line", "run_id", "method", "num_speculative_tokens", "load")


def _validate_tables(
    tables: list[Path],
    profile: str | None,
    asked: dict[str, Any],
    workers: int,
    out: Path | None,
    json_out: Path | None,
) -> None:
    """Read, simulate and compare the rows of tables; `asked` are options by name."""
    from specsim.reality.validation.prediction_errors import TableErrors
    from specsim.reality.validation.table_replay import DEFAULT_SPREAD, Replayer
    from specsim.show.render.reality_tables import prediction_tables

    runs, skipped = _selected_rows(tables, asked)
    if profile is None:
        raise ConfigError("--profile: is missing; of a table's rows it must say what a step costs")
    seed, spread = asked["seed"] or 0, asked["acceptance_spread"] or DEFAULT_SPREAD
    draws = out is not None and can_draw("report.png")
    with (
        results_folder(out, ("report.json", "report.png")) as folder,
        output_file(json_out) as json_file,
        output_file(asked["predictions"]) as csv_file,
        Replayer(runs, seed=seed, spread=spread, processes=workers) as replayer,
    ):
        with progress("simulations", replayer.num_simulations) as on_progress:
            found = replayer.predict(profile, on_progress)
        errors = TableErrors.of(found, asked["speed"])
        if csv_file is not None:
            _write_csv(found, csv_file)
        report = _report(found, errors.to_dict(), skipped, profile, seed)
        write_json(json_file, report)
        write_json(folder and folder / "report.json", report)
        if folder is not None and draws:
            from specsim.show.charts.reality_plots import plot_predictions

            with spinner("drawing"):
                title = ", ".join(table.name for table in tables)
                plot_predictions(found, folder / "report.png", title)
    show(*prediction_tables(errors))
    for note, count in Counter(note for each in found for note in each.run.notes).items():
        typer.echo(f"note: {note} ({count:,} rows)")
    warn([f"left out: {run.place}: {run.missing[0]}" for run in skipped])
    if out is not None:
        typer.echo(f"results: {out} ({'report.json, report.png' if draws else 'report.json'})")


def _selected_rows(
    tables: list[Path], asked: dict[str, Any]
) -> tuple[list["MeasuredRun"], list["MeasuredRun"]]:
    """Return the rows to simulate, and those that cannot be simulated."""
    from specsim.profile.from_roofline import parse_pairs
    from specsim.reality.validation.measured_table import read_table, select_rows, with_lengths

    given = parse_pairs("--set", "COLUMN=VALUE, such as gpu=H100", asked["set"] or [])
    rows = [run for table in tables for run in read_table(table, given)]
    runs = select_rows(rows, asked["rows"] or [])
    if (requests := asked.get("requests")) is not None:
        runs = with_lengths(runs, requests)
    skipped = [run for run in runs if run.missing] if asked["skip_incomplete"] else []
    kept = [run for run in runs if run not in skipped]
    if not kept:
        raise ConfigError(
            f"{skipped[0].place}: {skipped[0].missing[0]}; no row is left without such a gap"
        )
    return kept, skipped


def _write_csv(found: list["Prediction"], path: Path) -> None:
    """Write a line per metric and row: measured, predicted, and the error as a share."""
    with path.open("w", newline="") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow([*_COLUMNS, "metric", "measured", "predicted", "error"])
        for each in found:
            run = each.run
            place = [run.path.name, run.line, run.run_id, run.method or "none"]
            place += [run.num_speculative_tokens, run.load]
            for metric, measured in run.measured.items():
                error = each.error(metric)
                told = "" if error is None else f"{error:.6f}"
                writer.writerow([*place, metric, measured, f"{each.values[metric]:.6g}", told])


def _report(
    found: list["Prediction"],
    errors: dict[str, object],
    skipped: list["MeasuredRun"],
    profile: str,
    seed: int,
) -> dict[str, object]:
    return {
        "specsim_version": __version__,
        "profile": profile,
        "seed": seed,
        "errors": errors,
        "runs": [
            {
                "file": each.run.path.name,
                "line": each.run.line,
                "run_id": each.run.run_id,
                "measured": dict(each.run.measured),
                "predicted": {name: each.values[name] for name in each.run.measured},
                "notes": each.run.notes,
            }
            for each in found
        ],
        "left_out": {run.place: run.missing for run in skipped},
    }


def fit_tables(
    tables: list[Path],
    start: str,
    asked: dict[str, Any],
    seed: int,
    workers: int,
    out: Path | None,
    json_out: Path | None,
) -> None:
    """Fit the start profile to some rows, and print its errors on the others."""
    from specsim.profile import load_profile
    from specsim.reality.profile_fit.run_fit import DEVIATIONS, fit_runs
    from specsim.reality.validation.measured_table import select_rows
    from specsim.show.render.reality_tables import run_fit_tables

    profile = load_profile(start)
    runs, skipped = _selected_rows(tables, asked)
    fitted = select_rows(runs, asked["fit_rows"] or [], "--fit-rows")
    held_out = [run for run in runs if run not in fitted]
    with output_file(out) as profile_file, output_file(json_out) as json_file:
        with progress("profiles tried", None) as on_progress:
            found = fit_runs(
                profile,
                fitted,
                held_out,
                metrics=asked["metric"] or tuple(DEVIATIONS),
                seed=seed,
                processes=workers,
                on_progress=on_progress,
            )
        write_json(json_file, found.to_dict())
        write_profile(profile_file, found.profile)
    show(*run_fit_tables(found, ", ".join(table.name for table in tables)))
    warn([f"left out: {run.place}: {run.missing[0]}" for run in skipped])
    if not found.is_kept:
        warn([f"the profile stays as built: {found.left_out}; fit other loads, or more"])
    if out is not None:
        typer.echo(f"profile: {out}")
