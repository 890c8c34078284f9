"""Command ``validate``."""

import json
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer

from specsim.cli.options import Out, results_folder
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
    from specsim.core.atomic import new_file
    from specsim.reality.validation import Replaced
    from specsim.reality.validation import validate as run_validation
    from specsim.show.render.reality import validation_tables

    replaced = Replaced(profile=profile, num_gpu_blocks=num_gpu_blocks, tokens=tokens, model=model)
    with ExitStack() as outputs:
        # Opened before the work, so that a path that cannot be written to is found at once.
        folder = outputs.enter_context(results_folder(out))
        json_file = outputs.enter_context(new_file(json_out)) if json_out else None
        with spinner(f"replaying {run.name}"):
            found = run_validation(run, replaced)
        text = json.dumps(found.to_dict(), indent=1) + "\n"
        if json_file is not None:
            json_file.write_text(text)
        if folder is not None:
            from specsim.show.plots.reality import plot_validation

            with spinner("drawing"):
                (folder / "report.json").write_text(text)
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
        typer.echo(f"results: {out} (report.json, report.png)")
