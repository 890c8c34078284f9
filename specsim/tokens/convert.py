"""Conversion: a log of text becomes a token trace."""

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from gzip import GzipFile
from itertools import islice
from pathlib import Path
from typing import BinaryIO, NamedTuple

from specsim.core.atomic import new_file
from specsim.core.errors import ConfigError, TraceError
from specsim.tokens.exchanges import Exchange, read_exchanges
from specsim.tokens.tokenizer import Tokenizer
from specsim.workload.files import TraceFile

__all__ = ["TokenCounts", "write_token_trace"]

_BATCH = 256  # exchanges that are tokenized together: enough to keep all cores busy


class TokenCounts(NamedTuple):
    """What a new token trace holds."""

    requests: int
    prompt_tokens: int
    output_tokens: int


def write_token_trace(path: Path, tokenizer: Tokenizer, out: Path) -> TokenCounts:
    """Write the token trace of a log of text.

    Args:
        path: Of a form that `read_exchanges` knows, gzip-compressed or not.
        out: Ends in ``.jsonl`` or ``.jsonl.gz``. Its lines have ``id``, ``prompt_token_ids`` and
            ``generated_token_ids``; nothing else of the log is kept.

    Raises:
        ConfigError: Another ending, the log itself, or a folder that cannot be written to.
        TraceError: The log cannot be read, or holds no answer.
    """
    if not out.name.endswith((".jsonl", ".jsonl.gz")):
        raise ConfigError(f"{out}: a token trace is written as .jsonl or .jsonl.gz")
    if out.exists() and path.exists() and out.samefile(path):
        raise ConfigError(f"{out}: is the log itself, which would be lost; write to another file")
    requests = prompt_tokens = output_tokens = 0
    with new_file(out) as temporary, _opened(temporary, out.suffix == ".gz") as stream:
        for exchange, prompt, output in _tokenized(read_exchanges(TraceFile(path)), tokenizer):
            if not output:
                raise TraceError(
                    f"{path}: the tokenizer makes no token of the answer of request "
                    f"'{exchange.id}'; remove it"
                )
            line = {"id": exchange.id, "prompt_token_ids": prompt, "generated_token_ids": output}
            stream.write(json.dumps(line).encode() + b"\n")
            requests += 1
            prompt_tokens += len(prompt)
            output_tokens += len(output)
        if not requests:
            raise TraceError(f"{path}: no answer in it; a token trace has at least one request")
    return TokenCounts(requests, prompt_tokens, output_tokens)


def _tokenized(
    exchanges: Iterable[Exchange], tokenizer: Tokenizer
) -> Iterator[tuple[Exchange, list[int], list[int]]]:
    left = iter(exchanges)
    while batch := list(islice(left, _BATCH)):
        prompts = tokenizer.encode([exchange.prompt for exchange in batch])
        answers = tokenizer.encode([exchange.answer for exchange in batch])
        yield from zip(batch, prompts, answers, strict=True)


@contextmanager
def _opened(path: Path, is_compressed: bool) -> Iterator[BinaryIO | GzipFile]:
    with path.open("wb") as plain:
        if not is_compressed:
            yield plain
            return
        # No name and no time in it: the same log gives the same bytes.
        with GzipFile(filename="", mode="wb", fileobj=plain, mtime=0) as packed:
            yield packed
