"""Command ``parity``."""

import json
from pathlib import Path
from typing import Annotated

import typer

from specsim.cli.terminal import spinner
from specsim.core.atomic import new_file

__all__ = ["parity"]


def parity(
    scenario: Annotated[Path, typer.Argument(help="A recorded scenario, JSON.")],
    log: Annotated[
        Path | None,
        typer.Option(help="Its log; by default NAME.log.json beside NAME.scenario.json."),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Write our own log here.")] = None,
) -> None:
    """Replay a schedule of the real vLLM scheduler and compare every field of every step.

    Exits with 1 at the first difference, and prints it in full.
    """
    from specsim.reality.parity import compare_logs, load_log, load_scenario, run_scenario

    parsed = load_scenario(scenario)
    beside = scenario.with_name(scenario.name.replace(".scenario.", ".log."))
    if log is None and beside != scenario and beside.exists():
        log = beside
    theirs = load_log(log) if log is not None else None
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
