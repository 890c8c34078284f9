"""Tables of measured runs, a row each: what ``validate`` and ``profile fit`` do with them."""

import csv
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from specsim.cli.options import (
    can_draw,
    output_file,
    profile_text,
    progress,
    results_folder,
    show,
    spinner,
    warn,
    write_json,
)
from specsim.core.errors import ConfigError
from specsim.core.version import __version__

if TYPE_CHECKING:
    from specsim.reality.validation.measured_run import MeasuredRun
    from specsim.reality.validation.table_replay import Prediction


_COLUMNS = ("file", "line", "run_id", "method", "num_speculative_tokens", "load")


def validate_tables(
    tables: list[Path],
    profile: str | None,
    asked: dict[str, Any],
    workers: int,
    out: Path | None,
    json_out: Path | None,
) -> None:
    """Read, simulate and compare the rows of tables; what is asked is by the names of options."""
    from specsim.reality.validation.prediction_errors import TableErrors
    from specsim.reality.validation.table_replay import DEFAULT_SPREAD, Replayer
    from specsim.show.render.reality_tables import prediction_tables

    if profile is None:
        raise ConfigError("--profile: is missing; of a table's rows it must say what a step costs")
    runs, skipped = selected_rows(tables, asked)
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
    for note, count in _counted(found).items():
        typer.echo(f"note: {note} ({count} rows)")
    warn([f"left out: {run.place}: {run.missing[0]}" for run in skipped])
    if out is not None:
        typer.echo(f"results: {out} ({'report.json, report.png' if draws else 'report.json'})")


def selected_rows(
    tables: list[Path], asked: dict[str, Any]
) -> tuple[list["MeasuredRun"], list["MeasuredRun"]]:
    """Return the rows that are simulated, and those that cannot be."""
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


def _counted(found: list["Prediction"]) -> dict[str, int]:
    notes = [note for each in found for note in each.run.notes]
    return {note: notes.count(note) for note in dict.fromkeys(notes)}


def _write_csv(found: list["Prediction"], path: Path) -> None:
    """Write a line for every metric of every row: measured, predicted, and the error as a share."""
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
    """Read rows, fit the start profile to some of them, and tell the errors on the others."""
    from specsim.profile import load_profile
    from specsim.reality.profile_fit.problem import DEVIATIONS
    from specsim.reality.profile_fit.run_fit import fit_runs
    from specsim.reality.validation.measured_table import select_rows
    from specsim.show.render.reality_tables import run_fit_tables

    profile = load_profile(start)
    runs, skipped = selected_rows(tables, asked)
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
        if profile_file is not None:
            profile_file.write_text(profile_text(found.profile), encoding="utf-8")
    show(*run_fit_tables(found, ", ".join(table.name for table in tables)))
    warn([f"left out: {run.place}: {run.missing[0]}" for run in skipped])
    if not found.is_kept:
        warn([f"the profile stays as built: {found.left_out}; fit other loads, or more"])
    if out is not None:
        typer.echo(f"profile: {out}")
