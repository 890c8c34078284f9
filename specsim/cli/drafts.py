"""Command ``draft-eval``."""

import json
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

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
    json_out: Annotated[
        Path | None, typer.Option("--json", help="Write the counts of every request here.")
    ] = None,
) -> None:
    """Replay recorded answers and tell what a drafter would have drafted, and what was accepted.

    Each request is replayed alone, in the order of the file, and verified against its recorded
    output. No engine and no clock: tokens per step is the speed-up of a server whose step costs the
    same with and without drafts.
    """
    from specsim.atomic import new_file
    from specsim.draft_eval import evaluate_drafts, load_texts, parse_drafter
    from specsim.experiment import overridden
    from specsim.render.draft_eval import draft_eval_table

    drafter = parse_drafter(proposer, overridden({}, opt or [], "--opt"), "draft-eval")
    with ExitStack() as outputs:
        # Opened before the work, so that a path that cannot be written to is found at once.
        json_file = outputs.enter_context(new_file(json_out)) if json_out else None
        requests = load_texts(tokens)
        with progress("requests", len(requests)) as on_progress:
            result = evaluate_drafts(drafter, requests, on_progress)
        if json_file is not None:
            json_file.write_text(json.dumps(result.as_json(), indent=1) + "\n")
    show(draft_eval_table(result, f"{proposer} on {tokens.name}"))
