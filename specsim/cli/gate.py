"""Command ``gate``."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from specsim.cli.options import ALL_CORES, Overrides, Workers, output_file, write_json
from specsim.cli.terminal import progress, show, warn

if TYPE_CHECKING:
    from specsim.study.gate import GateResults, Suite

__all__ = ["gate"]


def gate(
    baseline: Annotated[Path, typer.Argument(metavar="BASELINE.json", show_default=False)],
    current: Annotated[
        Path,
        typer.Argument(
            metavar="CURRENT",
            help="A suite or an experiment to be run, YAML, or the results of one, JSON.",
            show_default=False,
        ),
    ],
    overrides: Overrides = None,
    update: Annotated[
        bool, typer.Option("--update", help="Run CURRENT and write BASELINE.json.")
    ] = False,
    date: Annotated[
        str | None, typer.Option(metavar="YYYY-MM-DD", help="Kept in the file, with --update.")
    ] = None,
    tolerance: Annotated[
        list[str] | None,
        typer.Option(metavar="METRIC=SHARE", help="In place of the suite's: mean_e2el_ms=2%."),
    ] = None,
    json_out: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write the verdicts as JSON.")
    ] = None,
    junit: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the verdicts as JUnit XML.")
    ] = None,
    github: Annotated[
        bool, typer.Option("--github", help="Print annotations for GitHub Actions.")
    ] = False,
    workers: Workers = ALL_CORES,
) -> None:
    """Compare a revision with a baseline, scenario by scenario; exit with 1 if it is worse.

    The scenarios of CURRENT are run with the seeds of the baseline, so that both meet the same
    requests and the same luck. A metric is worse if it is so by more than its tolerance and beyond
    doubt. Write the baseline with --update:

    specsim gate --update baseline.json suite.yaml

    specsim gate baseline.json suite.yaml
    """
    is_stored = current.suffix == ".json"
    if not is_stored:
        from specsim.core.processes import warm_up

        warm_up(workers)
    from specsim.show.render.studies import gate_table, gate_verdict
    from specsim.study.gate import GateResults, Suite, check_same_suite, judge
    from specsim.study.gate.reports import github_annotations, write_junit
    from specsim.study.gate.suite import parse_tolerances, tolerances_of

    outputs = {"--json": json_out, "--junit": junit, "--github": github or None}
    given = parse_tolerances(tolerance or ())
    if update:
        _refuse(outputs, "with --update, which compares nothing")
        _refuse({"CURRENT": current if is_stored else None}, "with --update; name a suite, YAML")
        suite = Suite.load(current, overrides or ())
        _write_baseline(baseline, suite, {**tolerances_of(suite), **given}, workers, date)
        return
    _refuse({"--date": date}, "without --update")
    inputs = {baseline.resolve(), current.resolve()}
    for option, path in (("--json", json_out), ("--junit", junit)):
        _refuse({option: path if path and path.resolve() in inputs else None}, "on its own input")
    is_shared = json_out and junit and json_out.resolve() == junit.resolve()
    _refuse({"--junit": junit if is_shared else None}, "with the file of --json; name another")
    before = GateResults.load(baseline)
    with output_file(json_out) as json_file, output_file(junit) as junit_file:
        if is_stored:
            _refuse({"--set": overrides}, "with results; name a suite, YAML")
            after = GateResults.load(current)
            tolerances = {**before.tolerances, **given}
        else:
            suite = Suite.load(current, overrides or ())
            tolerances = {**(suite.tolerances or before.tolerances), **given}
            check_same_suite(before, suite)
            after = _run(suite, tolerances, workers, None)
        judgement = judge(before, after, tolerances)
        write_json(json_file, judgement.to_dict())
        if junit_file is not None:
            write_junit(judgement, junit_file)
    show(gate_table(judgement, f"{current.name} against {baseline.name}"))
    for line in (*gate_verdict(judgement), *(github_annotations(judgement) if github else ())):
        typer.echo(line)
    warn(judgement.notes)
    if not judgement.is_passed:
        raise typer.Exit(1)


def _refuse(given: dict[str, Any], where: str) -> None:
    from specsim.core.errors import ConfigError

    for option, value in given.items():
        if value is not None:
            raise ConfigError(f"{option}: cannot be used {where}")


def _run(
    suite: "Suite", tolerances: dict[str, float], workers: int, date: str | None
) -> "GateResults":
    from specsim.study.gate import run_suite

    with progress("runs", len(suite.scenarios) * suite.replications) as on_progress:
        return run_suite(suite, tolerances, workers=workers, date=date, on_progress=on_progress)


def _write_baseline(
    path: Path, suite: "Suite", tolerances: dict[str, float], workers: int, date: str | None
) -> None:
    from specsim.study.gate.results import baseline_file, checked_date

    date = None if date is None else checked_date(date)
    with baseline_file(path) as temporary:
        results = _run(suite, tolerances, workers, date)
        temporary.write_text(results.to_json(), encoding="utf-8")
    typer.echo(
        f"baseline: {path} (scenarios: {len(suite.scenarios)}, seeds: {suite.replications} each)"
    )
