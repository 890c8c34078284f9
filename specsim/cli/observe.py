"""Command ``observe``."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from specsim.cli.options import Overrides, Seed, all_overrides, need
from specsim.cli.terminal import progress, show, warn
from specsim.core.errors import ConfigError

__all__ = ["observe"]

_KINDS_SHOWN = 8


def observe(
    url: Annotated[
        str, typer.Option(help="Of the server, such as http://127.0.0.1:8000.", show_default=False)
    ],
    workload: Annotated[
        Path,
        typer.Option(
            help="YAML with a workload and, optionally, engine and seed; or an experiment.",
            show_default=False,
        ),
    ],
    out: Annotated[Path, typer.Option(help="Folder for the run; new.", show_default=False)],
    model: Annotated[
        str | None, typer.Option(help="By default the only one that the server has.")
    ] = None,
    overrides: Overrides = None,
    seed: Seed = None,
    ids: Annotated[
        str,
        typer.Option(
            metavar="LOW:HIGH",
            help="Range of random token ids, HIGH excluded; keep it inside the vocabulary.",
        ),
    ] = "1000:30000",
    body: Annotated[
        str | None,
        typer.Option(metavar="JSON", help='More fields of each request: {"temperature": 0}.'),
    ] = None,
    timeout: Annotated[
        float, typer.Option(min=0.1, help="Seconds of silence after which an answer has failed.")
    ] = 600.0,
    warm_up: Annotated[int, typer.Option(min=0, help="Requests before the run.")] = 1,
) -> None:
    """Send a workload to a running server and record what comes back.

    Open loop: every request is sent at its time, whatever the server does. Prompts are the token
    ids of the workload, or random ones; answers have the lengths of the workload. The folder is a
    measured run, which specsim validate reads. Errors of the server are recorded and counted; if
    there are any, the exit code is 1. Ctrl-C keeps what there is. A key is taken from the
    environment variable OPENAI_API_KEY.
    """
    need("aiohttp", "observe")
    from specsim.reality.observe import Options, load_workload
    from specsim.reality.observe import observe as run
    from specsim.show.render.reality import observation_table

    low, high = _id_range(ids)
    options = Options(low, high, timeout, warm_up, _body(body))
    planned = load_workload(workload, all_overrides(overrides, seed))
    with progress("requests", len(planned.requests)) as on_progress:
        found = run(url, planned, out, model=model, options=options, on_progress=on_progress)
    show(observation_table(found, f"{found.server.model} at {found.server.url}"))
    kinds = found.errors.most_common()
    errors = [f"{count:,} failed: {error}" for error, count in kinds[:_KINDS_SHOWN]]
    if len(kinds) > _KINDS_SHOWN:
        errors.append(f"and {len(kinds) - _KINDS_SHOWN} more kinds of errors; see meta.json")
    warn([*errors, *found.notes])
    typer.echo(f"run: {out} (requests.jsonl, meta.json)")
    if found.is_interrupted:
        raise typer.Exit(130)
    if kinds:
        raise typer.Exit(1)


def _id_range(text: str) -> tuple[int, int]:

    low, _, high = text.partition(":")
    if not (low.isdecimal() and high.isdecimal() and int(low) < int(high) < 2**31):
        raise ConfigError(f"--ids {text}: expected two token ids, the smaller first: 1000:30000")
    return int(low), int(high)


def _body(text: str | None) -> dict[str, Any]:

    def refuse(name: str) -> None:
        raise ValueError(f"{name} is no number")

    try:
        fields = json.loads(text, parse_constant=refuse) if text is not None else {}
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"--body {text}: is not JSON: {error}") from error
    if not isinstance(fields, dict):
        raise ConfigError(f"--body {text}: expected an object of fields")
    return fields
