"""Command ``profile fit`` for measured runs: a composed profile, fitted to what a client saw."""

from pathlib import Path

import typer

from specsim.cli.options import output_file, profile_text, progress, show, warn, write_json
from specsim.cli.table_validation import SET_FORM, selected_rows


def fit_tables(
    tables: list[Path],
    start: str,
    *,
    filters: list[str],
    fit_filters: list[str],
    given: list[str],
    metrics: list[str],
    skip_incomplete: bool,
    seed: int,
    workers: int,
    out: Path | None,
    json_out: Path | None,
) -> None:
    """Read rows, fit the start profile to some of them, and tell the errors on the others."""
    from specsim.profile import load_profile
    from specsim.profile.from_roofline import parse_pairs
    from specsim.reality.profile_fit.run_fit import DEVIATIONS, fit_runs
    from specsim.reality.validation.table import select_rows
    from specsim.show.render.run_fit import run_fit_tables

    profile = load_profile(start)
    cells = parse_pairs("--set", SET_FORM, given)
    runs, skipped = selected_rows(tables, filters, None, cells, skip_incomplete=skip_incomplete)
    fitted = select_rows(runs, fit_filters, "--fit-rows")
    held_out = [run for run in runs if run not in fitted]
    with output_file(out) as profile_file, output_file(json_out) as json_file:
        with progress("profiles tried", None) as on_progress:
            found = fit_runs(
                profile,
                fitted,
                held_out,
                metrics=metrics or tuple(DEVIATIONS),
                seed=seed,
                processes=workers,
                on_progress=on_progress,
            )
        write_json(json_file, found.to_dict())
        if profile_file is not None:
            profile_file.write_text(profile_text(found.profile), encoding="utf-8")
    show(*run_fit_tables(found, ", ".join(table.name for table in tables)))
    warn([f"left out: {run.place}: {run.missing[0]}" for run in skipped])
    if out is not None:
        typer.echo(f"profile: {out}")
