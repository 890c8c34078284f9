"""Commands about traces: those of ``trace`` and ``tokens``, and ``draft-eval``."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Argument, Option

from specsim.cli.options import output_file, progress, show, spinner, warn, write_json
from specsim.core.errors import ConfigError

trace_app = typer.Typer(
    help="Look at workloads, convert them and make new ones.", no_args_is_help=True
)
tokens_app = typer.Typer(
    help="Make token traces from text, and see which drafter suits them.", no_args_is_help=True
)

TraceFile = Annotated[Path, typer.Argument(help="A workload of any known format.")]
_READER = Option(None, help="Who reads it, such as my_parts:Gateway; by default told by content.")


@trace_app.command()
def describe(
    file: TraceFile,
    as_json: bool = Option(False, "--json", help="Print JSON, not a table."),
    reader: str | None = _READER,
) -> None:
    """Print counts, rates, burstiness, length quantiles and the share of reused prefix."""
    from dataclasses import asdict

    from specsim.show.render.trace_tables import trace_table
    from specsim.workload.readers import read_trace
    from specsim.workload.trace import describe as describe_trace

    with spinner(f"reading {file.name}"):
        description = describe_trace(read_trace(file, reader))
    if as_json:
        typer.echo(json.dumps(asdict(description), indent=1))
    else:
        show(trace_table(description, str(file)))


@trace_app.command()
def convert(
    file: TraceFile,
    out: Path = Argument(..., help="Ends in .parquet, .jsonl or .jsonl.gz."),
    reader: str | None = _READER,
) -> None:
    """Write a workload of any known format in specsim's own."""
    from specsim.workload.readers import read_trace
    from specsim.workload.readers.native import write_trace

    with spinner(f"converting {file.name}"):
        trace = read_trace(file, reader)
        write_trace(trace, out)
    dropped = f", {trace.num_dropped:,} failed requests left out" if trace.num_dropped else ""
    typer.echo(f"{out}: {len(trace):,} requests read as {trace.format}{dropped}")


@trace_app.command()
def synth(
    out: Path = Argument(..., help="Ends in .parquet, .jsonl or .jsonl.gz."),
    arrivals: str = Option(..., help="Such as gamma:rate=4,burstiness=0.5."),
    lengths: str = Option(..., help="Such as dataset:name=sharegpt."),
    num_requests: int | None = Option(None, min=1, help="How many."),
    duration: float | None = Option(None, help="For how many seconds."),
    seed: int = Option(0, min=0, help="Of arrivals and lengths."),
) -> None:
    """Make a workload from an arrival process and a length distribution."""
    from specsim.core.settings import validated
    from specsim.workload import WorkloadConfig
    from specsim.workload.readers.native import write_trace

    with validated("trace synth", ConfigError):
        config = WorkloadConfig.model_validate(
            {
                "arrivals": arrivals,
                "lengths": lengths,
                "num_requests": num_requests,
                "duration": duration,
            }
        )
    with spinner(f"writing {out.name}"):
        trace = config.build(seed)
        if not len(trace):
            raise ConfigError("trace synth: no request arrives; raise rate or duration")
        write_trace(trace, out)
    typer.echo(f"{out}: {len(trace):,} requests")


@tokens_app.command()
def from_text(
    file: Path = Argument(..., help="JSON lines or JSON, gzip-compressed or not."),
    tokenizer: Path = Option(
        ..., help="tokenizer.json, or a tiktoken file such as Llama 3's tokenizer.model."
    ),
    out: Path = Option(..., help="Ends in .jsonl or .jsonl.gz."),
) -> None:
    r"""Turn a log of prompts and answers into a token trace.

    An entry of the log has `prompt` and an answer (`output`, `response`, `completion`, `answer` or
    `generated_text`); or `messages` in OpenAI's form, of which the last assistant message is the
    answer; or `conversations` in ShareGPT's form, of which every answer to a human makes a request.
    No chat template is applied: messages are joined as "role:", line break, content, empty line.
    An entry without an answer, or with an empty one, is an error. Nothing but `id` is kept of
    other fields. It needs: pip install 'llm-specsim\[tokens]'.
    """
    from specsim.tokens.convert import load_tokenizer, write_token_trace

    with spinner(f"tokenizing {file.name}"):
        loaded = load_tokenizer(tokenizer)
        counts = write_token_trace(file, loaded, out)
    if loaded.note:
        warn([f"{tokenizer}: {loaded.note}"])
    typer.echo(
        f"{out}: {counts.requests:,} requests, {counts.prompt_tokens:,} prompt tokens, "
        f"{counts.output_tokens:,} output tokens"
    )


@tokens_app.command("describe")
def describe_token_trace(
    file: Path = Argument(..., help="A token trace, .jsonl or .jsonl.gz."),
    as_json: bool = Option(False, "--json", help="Print JSON, not tables."),
    sample: int = Option(100, min=1, help="How many outputs the entropy is taken over."),
    seed: int = Option(0, min=0, help="Of that sample."),
) -> None:
    """Print how much outputs repeat of prompts, themselves and others, and what drafts gain by it.

    The empirical entropy is that of SuffixDecoding, appendix A.2: of the next token, over all
    contexts of less than 24 tokens. Lower is easier to draft. Drafters are replayed as by
    `draft-eval`, with vLLM's defaults and k = 5 for ngram.
    """
    from specsim.show.render.trace_tables import token_tables
    from specsim.tokens.describe import describe_tokens
    from specsim.tokens.draft_eval import load_texts

    with spinner(f"reading {file.name}"):
        description = describe_tokens(load_texts(file), sample, seed)
    if as_json:
        typer.echo(json.dumps(description.as_json(), indent=1))
        return
    show(*token_tables(description, file.name))
    typer.echo(description.advice)


def draft_eval(
    proposer: str = Option(..., help="Such as ngram or suffix."),
    tokens: Path = Option(..., help="A token trace, .jsonl or .jsonl.gz."),
    opt: list[str] | None = Option(
        None, metavar="NAME=VALUE", help="An option of the proposer, in vLLM's own name."
    ),
    grid: list[str] | None = Option(
        None,
        metavar="NAME=V1,V2,...",
        help="Values of an option to try; of several such options, every combination.",
    ),
    json_out: Path | None = Option(
        None, "--json", help="Write the counts of every request here; of a grid, the totals."
    ),
) -> None:
    """Replay recorded answers and tell what a drafter would have drafted, and what was accepted.

    Each request is replayed alone, in the order of the file, and verified against its recorded
    output. No engine and no clock: tokens per step is the speed-up of a server whose step costs the
    same with and without drafts. A grid is a search for the best options; check what it finds on
    other requests than it has seen.
    """
    from specsim.core.settings import overridden
    from specsim.show.render.trace_tables import draft_eval_table, draft_grid_table
    from specsim.tokens.draft_eval import (
        evaluate_drafts,
        evaluate_grid,
        grid_options,
        load_texts,
        parse_drafter,
    )

    fixed, title = overridden({}, opt or [], "--opt"), f"{proposer} on {tokens.name}"
    for name in grid_options(grid or [])[0]:
        if name in fixed:
            raise ConfigError(f"--opt {name}: --grid has it, too; give one of them")
    # All combinations are checked before the first is evaluated.
    drafters = [
        (options, parse_drafter(proposer, {**fixed, **options}, "draft-eval"))
        for options in grid_options(grid or [])
    ]
    found: dict[str, Any]
    if json_out and json_out.exists() and tokens.exists() and json_out.samefile(tokens):
        raise ConfigError(f"{json_out}: is the trace itself, which would be lost; write elsewhere")
    with output_file(json_out) as json_file:
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
        write_json(json_file, found)
    show(table)
