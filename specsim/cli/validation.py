"""Command ``validate``."""

from pathlib import Path
from typing import Annotated

import typer

from specsim.cli.options import Out, can_draw, output_file, results_folder, write_json
from specsim.cli.terminal import show, spinner

__all__ = ["validate"]


def validate(
    run: Annotated[
        Path, typer.Argument(help="A folder with requests.jsonl and meta.json of a measured run.")
    ],
    profile: Annotated[
        str | None,
        typer.Option(help="Name or path; by default composed from the kernel tables in profile/."),
    ] = None,
    num_gpu_blocks: Annotated[
        int | None, typer.Option(min=2, help="KV blocks, in place of what meta.json says.")
    ] = None,
    tokens: Annotated[
        Path | None,
        typer.Option(help="Token ids, for prefix hits; by default what meta.json names."),
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="Name or config.json, in place of what meta.json says.")
    ] = None,
    out: Out = None,
    json_out: Annotated[
        Path | None, typer.Option("--json", help="Write the numbers here, as JSON.")
    ] = None,
) -> None:
    """Replay a measured run and print measured against simulated.

    Arrivals, lengths and token ids are those of the run, so is the engine: the options that
    meta.json lists. A request arrives when the engine queued it (queued_ts). Of a run that was
    repeated (several requests*.jsonl) the spread stands beside the error. What was drafted and
    accepted is the run's, too (meta.json: speculative_config; requests.jsonl: accepted); requests
    that ended with an error are left out. With --out the folder gets report.json, and report.png
    with the distributions on top of each other.
    """
    from specsim.reality.validation import Replaced
    from specsim.reality.validation import validate as run_validation
    from specsim.show.render.reality import validation_tables

    replaced = Replaced(profile=profile, num_gpu_blocks=num_gpu_blocks, tokens=tokens, model=model)
    draws = out is not None and can_draw("report.png")
    with results_folder(out) as folder, output_file(json_out) as json_file:
        with spinner(f"replaying {run.name}"):
            found = run_validation(run, replaced)
        report = found.to_dict()
        write_json(json_file, report)
        write_json(folder and folder / "report.json", report)
        if folder is not None and draws:
            from specsim.show.plots.reality import plot_validation

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
