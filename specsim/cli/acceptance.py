"""Command ``acceptance fit``."""

import json
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer

from specsim.cli.terminal import show, spinner

__all__ = ["acceptance_app"]

acceptance_app = typer.Typer(help="Fit acceptance models to recorded data.", no_args_is_help=True)


@acceptance_app.callback()
def _group() -> None:
    """Keep ``fit`` a command of its own, though it is the only one."""


@acceptance_app.command()
def fit(
    file: Annotated[Path, typer.Argument(help="A token trace with recorded acceptance.")],
    proposer: Annotated[str, typer.Option(help="Such as eagle, for the column acc_eagle.")],
    k: Annotated[int, typer.Option(min=1, help="Draft length of the replay.")] = 5,
    max_output_len: Annotated[
        int, typer.Option(min=2, help="Leave longer outputs out: they are endless loops.")
    ] = 1500,
    split_seed: Annotated[int, typer.Option(min=0, help="Of the division into halves.")] = 0,
    kind: Annotated[
        str | None, typer.Option(help="Choose this model; by default the closest.")
    ] = None,
    json_out: Annotated[
        Path | None, typer.Option("--json", help="Write everything here, as JSON.")
    ] = None,
    preset: Annotated[
        Path | None,
        typer.Option(help="Write the chosen model here, as YAML that ships in profiles/."),
    ] = None,
    source: Annotated[
        str, typer.Option(help="Where the trace comes from, for --preset.")
    ] = "not given",
) -> None:
    """Fit every acceptance model to one half of the requests and measure it on the other.

    Prints how far each model is from the held-out half (Kolmogorov-Smirnov distances of accepted
    tokens per step, tokens per step per request and accepted tokens in 8 consecutive steps; error
    of the total of steps), and how far the halves are from each other. The closest kind of model,
    or the one asked for, is fitted again to all requests and printed as it goes into an experiment.
    """
    from dataclasses import asdict

    import yaml

    from specsim.core.atomic import new_file
    from specsim.reality.acceptance_fit import fields, fit_acceptance, load_records
    from specsim.show.render.acceptance import distances_table

    # Opened before the work, so that a path that cannot be written to is found at once.
    with ExitStack() as outputs:
        json_file = outputs.enter_context(new_file(json_out)) if json_out else None
        preset_file = outputs.enter_context(new_file(preset)) if preset else None
        with spinner(f"fitting to {file.name}"):
            records = load_records(file, proposer, max_output_len)
            done = fit_acceptance(records, k, split_seed, kind)
        if json_file is not None:
            json_file.write_text(json.dumps(done.to_dict(), indent=1) + "\n")
        if preset_file is not None:
            content = done.to_preset(source)
            preset_file.write_text(yaml.safe_dump(content, sort_keys=False, width=100))
    rows = {kind: asdict(each.held_out) for kind, each in done.candidates.items()}
    title = f"{file.name}, {proposer}, k = {k}: {done.num_fitted} requests fitted"
    show(distances_table({"the other half of the data": asdict(done.halves), **rows}, title))
    typer.echo(records.left_out)
    typer.echo(f"\nclosest: {done.best}")
    typer.echo(f"{done.chosen_kind}, fitted to all {len(records.tables)} requests:\n")
    typer.echo(yaml.safe_dump({"acceptance": fields(done.chosen)}, sort_keys=False), nl=False)
