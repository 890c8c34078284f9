"""Commands ``tokens from-text`` and ``tokens describe``."""

import json
from pathlib import Path
from typing import Annotated

import typer

from specsim.cli.terminal import show, spinner, warn

__all__ = ["tokens_app"]

tokens_app = typer.Typer(
    help="Make token traces from text, and see which drafter suits them.", no_args_is_help=True
)


@tokens_app.command()
def from_text(
    file: Annotated[Path, typer.Argument(help="JSON lines or JSON, gzip-compressed or not.")],
    tokenizer: Annotated[
        Path,
        typer.Option(
            help="tokenizer.json, or a tiktoken file such as Llama 3's tokenizer.model.",
            show_default=False,
        ),
    ],
    out: Annotated[Path, typer.Option(help="Ends in .jsonl or .jsonl.gz.", show_default=False)],
) -> None:
    r"""Turn a log of prompts and answers into a token trace.

    An entry of the log has `prompt` and an answer (`output`, `response`, `completion`, `answer` or
    `generated_text`); or `messages` in OpenAI's form, of which the last assistant message is the
    answer; or `conversations` in ShareGPT's form, of which every answer to a human makes a request.
    No chat template is applied: messages are joined as "role:", line break, content, empty line.
    An entry without an answer, or with an empty one, is an error. Nothing but `id` is kept of
    other fields. It needs: pip install 'specsim\[tokens]'.
    """
    from specsim.tokens.convert import write_token_trace
    from specsim.tokens.tokenizer import load_tokenizer

    with spinner(f"tokenizing {file.name}"):
        loaded = load_tokenizer(tokenizer)
        counts = write_token_trace(file, loaded, out)
    if loaded.note:
        warn([f"{tokenizer}: {loaded.note}"])
    typer.echo(
        f"{out}: {counts.requests:,} requests, {counts.prompt_tokens:,} prompt tokens, "
        f"{counts.output_tokens:,} output tokens"
    )


@tokens_app.command()
def describe(
    file: Annotated[Path, typer.Argument(help="A token trace, .jsonl or .jsonl.gz.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, not tables.")] = False,
    sample: Annotated[int, typer.Option(min=1, help="Outputs that the entropy is of.")] = 100,
    seed: Annotated[int, typer.Option(min=0, help="Of that sample.")] = 0,
) -> None:
    """Print how far outputs repeat themselves, prompts and each other, and what drafts gain by it.

    The empirical entropy is that of SuffixDecoding, appendix A.2: of the next token, over all
    contexts of less than 24 tokens. Lower is easier to draft. Drafters are replayed as by
    `draft-eval`, with vLLM's defaults and k = 5 for ngram.
    """
    from specsim.show.render.traces import token_tables
    from specsim.tokens.describe import describe_tokens
    from specsim.tokens.draft_eval import load_texts

    with spinner(f"reading {file.name}"):
        description = describe_tokens(load_texts(file), sample, seed)
    if as_json:
        typer.echo(json.dumps(description.as_json(), indent=1))
        return
    show(*token_tables(description, file.name))
    typer.echo(description.advice)
