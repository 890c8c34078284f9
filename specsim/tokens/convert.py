"""Conversion: a log of text becomes a token trace.

No chat template is applied, because a log does not say which one the server used: messages are
joined as ``role:``, line break, content, empty line. A log of prompts as the model saw them gives
the token ids that it saw.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from gzip import GzipFile
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from specsim.core.atomic import new_file
from specsim.core.errors import ConfigError, TraceError
from specsim.tokens.tokenizer import Tokenizer
from specsim.workload.files import Row, TraceFile

_BATCH = 256  # exchanges that are tokenized together: enough to keep all cores busy

_ANSWER_FIELDS = ("output", "response", "completion", "answer", "generated_text")
"""Names under which logs keep the answer."""

_TOKEN_FIELDS = frozenset({"prompt_token_ids", "generated_token_ids"})
_ASKING = frozenset({"human", "user"})
_ANSWERING = frozenset({"gpt", "chatgpt", "assistant", "bing", "bard"})


class _Exchange(NamedTuple):
    """One request and its answer, as text."""

    id: str
    prompt: str
    """Empty if it was not recorded."""
    answer: str
    """Not empty."""


class TokenCounts(NamedTuple):
    """What a new token trace holds."""

    requests: int
    prompt_tokens: int
    output_tokens: int


def write_token_trace(path: Path, tokenizer: Tokenizer, out: Path) -> TokenCounts:
    """Write the token trace of a log of text.

    Args:
        path: Of a form that `_exchanges` knows, gzip-compressed or not.
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
        for exchange, prompt, output in _tokenized(_exchanges(TraceFile(path)), tokenizer):
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
    exchanges: Iterator[_Exchange], tokenizer: Tokenizer
) -> Iterator[tuple[_Exchange, list[int], list[int]]]:
    while batch := list(islice(exchanges, _BATCH)):
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


def _exchanges(file: TraceFile) -> Iterator[_Exchange]:
    """Yield the exchanges of a log, in the order of the file.

    Args:
        file: JSON lines, or a JSON list, of objects that have ``prompt`` and one of
            `_ANSWER_FIELDS`; or ``messages`` in OpenAI's form, whose last assistant message is the
            answer unless a field holds it; or ``conversations`` in ShareGPT's form, in which every
            answer to a human makes an exchange whose prompt is all before it.

    Yields:
        With the id of the object, or its number from 0; in conversations with ``-`` and the number
        of the answer from 1.

    Raises:
        TraceError: An object has none of these forms, or no answer.
    """
    for number, row in enumerate(_objects(file)):
        name = str(row.values.get("id", number))
        if "conversations" in row.values:
            yield from _conversation(row, name)
        elif "messages" in row.values:
            yield _chat(row, name)
        else:
            yield _pair(row, name)


def _objects(file: TraceFile) -> Iterator[Row]:
    if file.container == "jsonl":
        yield from file.rows()
    elif file.container == "json":
        document = file.document
        for number, values in enumerate(document if isinstance(document, list) else [document]):
            place = f"{file.path}, entry {number}"
            if not isinstance(values, dict):
                raise TraceError(f"{place}: holds a {type(values).__name__}, not an object")
            yield Row(place, values)
    else:
        raise TraceError(
            f"{file.path}: is {file.container}, which holds no text; give JSON lines with 'prompt' "
            f"and an answer ({', '.join(_ANSWER_FIELDS)}), 'messages' or 'conversations'"
        )


def _pair(row: Row, name: str) -> _Exchange:
    if _TOKEN_FIELDS & row.values.keys():
        raise TraceError(
            f"{row.place}: holds token ids already; `specsim draft-eval` and `specsim tokens "
            "describe` take the file as it is"
        )
    prompt = _text(row.get("prompt"), f"{row.place}: prompt")
    return _Exchange(name, prompt, _answer(row))


def _chat(row: Row, name: str) -> _Exchange:
    messages = _turns(row, "messages", "role", "content")
    if any(field in row.values for field in _ANSWER_FIELDS):
        return _Exchange(name, _joined(messages, "assistant"), _answer(row))
    places = [place for place, (role, _) in enumerate(messages) if role == "assistant"]
    if not places:
        raise TraceError(
            f"{row.place}: no message has the role 'assistant', so there is no answer; remove it"
        )
    answer = _not_empty(messages[places[-1]][1], row, "the last assistant message")
    return _Exchange(name, _joined(messages[: places[-1]], "assistant"), answer)


def _conversation(row: Row, name: str) -> Iterator[_Exchange]:
    turns = _turns(row, "conversations", "from", "value")
    count = 0
    for place in range(1, len(turns)):
        speaker, text = turns[place]
        if speaker in _ANSWERING and turns[place - 1][0] in _ASKING:
            count += 1
            answer = _not_empty(text, row, f"turn {place} of 'conversations'")
            yield _Exchange(f"{name}-{count}", _joined(turns[:place], speaker), answer)


def _joined(turns: list[tuple[str, str]], speaker: str) -> str:
    """Return the turns as one text that ends where a speaker begins."""
    return "".join(f"{name}:\n{text}\n\n" for name, text in turns) + f"{speaker}:\n"


def _turns(row: Row, field: str, who: str, what: str) -> list[tuple[str, str]]:
    turns = row.get(field)
    if not isinstance(turns, list):
        raise TraceError(f"{row.place}: '{field}' is no list of objects with '{who}' and '{what}'")
    result = []
    for number, turn in enumerate(turns):
        place = f"{row.place}: turn {number} of '{field}'"
        if not isinstance(turn, dict) or not isinstance(turn.get(who), str):
            raise TraceError(f"{place} has no '{who}'")
        if turn.get("tool_calls"):
            raise TraceError(
                f"{place} calls tools, which only the model's chat template turns into text; log "
                "'prompt' and 'response' as the model saw them"
            )
        result.append((turn[who], _content(turn.get(what), f"{place}: {what}")))
    return result


def _content(value: Any, place: str) -> str:
    """Return the text of a message, which may stand in parts (OpenAI's form)."""
    if value is None:
        return ""
    if isinstance(value, list):
        parts = [part.get("text") if isinstance(part, dict) else None for part in value]
        return "".join(_text(part, place) for part in parts)
    return _text(value, place)


def _answer(row: Row) -> str:
    fields = [field for field in _ANSWER_FIELDS if field in row.values]
    if len(fields) != 1:
        found = ", ".join(fields or map(str, row.values)) or "nothing"
        raise TraceError(
            f"{row.place}: needs one answer, in one of the fields {', '.join(_ANSWER_FIELDS)} "
            f"(found: {found})"
        )
    text = _text(row.values[fields[0]], f"{row.place}: {fields[0]}")
    return _not_empty(text, row, fields[0])


def _not_empty(text: str, row: Row, what: str) -> str:
    if not text:
        raise TraceError(
            f"{row.place}: {what} is empty, so there is nothing to verify drafts against; remove it"
        )
    return text


def _text(value: Any, place: str) -> str:
    if not isinstance(value, str):
        raise TraceError(f"{place} is no text but {type(value).__name__}; correct or remove it")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise TraceError(
            f"{place} holds half of a character (a lone surrogate) at {error.start}; correct or "
            "remove it"
        ) from error
    return value
