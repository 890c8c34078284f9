"""Command ``draft-eval``."""

import json
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

import typer

from specsim.cli.terminal import progress, show

__all__ = ["draft_eval"]


def draft_eval(
    proposer: Annotated[str, typer.Option(help="Such as ngram or suffix.", show_default=False)],
    tokens: Annotated[
        Path, typer.Option(help="A token trace, .jsonl or .jsonl.gz.", show_default=False)
    ],
    opt: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="An option of the proposer, in vLLM's own name."),
    ] = None,
    grid: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=V1,V2,...",
            help="Values of an option to try; of several such options, every combination.",
        ),
    ] = None,
    json_out: Annotated[
        Path | None,
        typer.Option(
            "--json", help="Write the counts of every request here; of a grid, the totals."
        ),
    ] = None,
) -> None:
    """Replay recorded answers and tell what a drafter would have drafted, and what was accepted.

    Each request is replayed alone, in the order of the file, and verified against its recorded
    output. No engine and no clock: tokens per step is the speed-up of a server whose step costs the
    same with and without drafts. A grid is a search for the best options; check what it finds on
    other requests than it has seen.
    """
    from specsim.core.atomic import new_file
    from specsim.core.errors import ConfigError
    from specsim.run.experiment import overridden
    from specsim.show.render.traces import draft_eval_table, draft_grid_table
    from specsim.tokens.draft_eval import evaluate_drafts, load_texts, parse_drafter
    from specsim.tokens.draft_grid import evaluate_grid, grid_options

    fixed, title = overridden({}, opt or [], "--opt"), f"{proposer} on {tokens.name}"
    for name in grid_options(grid or [])[0]:
        if name in fixed:
            raise ConfigError(f"--opt {name}: --grid has it, too; give one of them")
    # All of them are checked before the first one is evaluated.
    drafters = [
        (options, parse_drafter(proposer, {**fixed, **options}, "draft-eval"))
        for options in grid_options(grid or [])
    ]
    found: dict[str, Any]
    if json_out and json_out.exists() and tokens.exists() and json_out.samefile(tokens):
        raise ConfigError(f"{json_out}: is the trace itself, which would be lost; write elsewhere")
    with ExitStack() as outputs:
        # Opened before the work, so that a path that cannot be written to is found at once.
        json_file = outputs.enter_context(new_file(json_out)) if json_out else None
        requests = load_texts(tokens)
        if grid:
            with progress("combinations", len(drafters)) as on_progress:
                combinations = evaluate_grid(drafters, requests, on_progress)
            found = {"combinations": [one.as_json() for one in combinations]}
            table = draft_grid_table(combinations, title)
        else:
            with progress("requests", len(requests)) as on_progress:
                result = evaluate_drafts(drafters[0][1], requests, on_progress)
            found, table = result.as_json(), draft_eval_table(result, title)
        if json_file is not None:
            json_file.write_text(json.dumps(found, indent=1) + "\n")
    show(table)
