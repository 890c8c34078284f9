"""Conversion of a log of text into a token trace.

Tokenizers are files of any known kind, recognised by their content; the libraries that read them
are an extra of the package, imported when needed. No chat template is applied, because a log does
not say which one the server used: messages are joined as ``role:``, line break, content, empty
line. A log of prompts as the model read them gives exactly its token ids.
"""

import binascii
import json
from base64 import b64decode
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from specsim.core.atomic import new_file, packed
from specsim.core.errors import ConfigError, TraceError
from specsim.core.reading import MAX_TEXT_BYTES, check_file, parse_json, readable
from specsim.workload.readers import Row, TraceFile

_EXTRA = "pip install 'llm-specsim[tokens]'"

SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""How text is split before bytes are merged, which a tiktoken file does not contain:
``cl100k_base`` (openai/tiktoken ``tiktoken_ext/openai_public.py``, 2023), also used by Llama 3
(meta-llama/llama3 ``llama/tokenizer.py``). Newer versions of tiktoken split differently where a
text ends in a line break and blanks."""


@dataclass(frozen=True)
class Tokenizer:
    """Turns text into token ids without adding any: no start token, no chat template."""

    encode: Callable[[list[str]], list[list[int]]]  # texts -> the token ids of each
    note: str = ""  # what to know about how it was read
    decode: Callable[[list[int]], str] | None = None  # token ids -> text


def load_tokenizer(path: Path) -> Tokenizer:
    """Return the tokenizer in a Hugging Face ``tokenizer.json`` or in a tiktoken rank file.

    Raises a ConfigError if the file is neither, cannot be read, or needs a library that is missing.
    """
    with readable(path, ConfigError):
        check_file(path, MAX_TEXT_BYTES)
        data = path.read_bytes()
    if data.lstrip().startswith(b"{"):
        _check_json(path, data)
        return _of_json(_library("tokenizers", path), path, data)
    if data[:1] == b"\n" and data[2:3] == b"\n":
        # Field 1 of the model holds field 1 of the first piece, each a tag (10), length and bytes.
        raise ConfigError(
            f"{path}: is a SentencePiece model, which is not read here; give the same model's "
            "tokenizer.json (transformers: AutoTokenizer.from_pretrained(folder)"
            ".save_pretrained(folder))"
        )
    first = data.split(b"\n", 1)[0].split()
    if len(first) == 2 and first[1].isdigit():
        return _of_ranks(_library("tiktoken", path), path, data)
    raise ConfigError(
        f"{path}: is no tokenizer: neither JSON (tokenizer.json) nor lines of base64 and rank (a "
        "tiktoken file, such as tokenizer.model of Llama 3)"
    )


def _library(name: str, path: Path) -> Any:
    try:
        return import_module(name)
    except ImportError as error:
        raise ConfigError(
            f"{path}: needs the library '{name}', which is not installed; run `{_EXTRA}`"
        ) from error


def _check_json(path: Path, data: bytes) -> None:
    with readable(path, ConfigError):
        content = parse_json(data)
    if not isinstance(content, dict) or "model" not in content:
        fields = ", ".join(list(content)[:5]) or "nothing"
        raise ConfigError(
            f"{path}: has no 'model' (found: {fields}), so it is no tokenizer; give the model's "
            "tokenizer.json"
        )


def _of_json(tokenizers: Any, path: Path, data: bytes) -> Tokenizer:
    """Return a tokenizer of ``tokenizers``; special tokens (``<|eot_id|>``) become one each."""
    with _readable(path):
        tokenizer = tokenizers.Tokenizer.from_str(data.decode())
    # The file may ask for padding and truncation, which are for training batches.
    tokenizer.no_truncation()
    tokenizer.no_padding()

    def encode(texts: list[str]) -> list[list[int]]:
        with _readable(path):  # a vocabulary with gaps fails at its first text
            batch = tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        return [encoding.ids for encoding in batch]

    return Tokenizer(encode, decode=tokenizer.decode)


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    """Turn any error of the library, panics included, into a ConfigError that names the file."""
    try:
        yield
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        reason = " ".join(str(error).split())
        raise ConfigError(f"{path}: is not a tokenizer.json that can be read: {reason}") from error


def _of_ranks(tiktoken: Any, path: Path, data: bytes) -> Tokenizer:
    """Return a tokenizer of ``tiktoken``, which treats ``<|eot_id|>`` as plain text."""
    ranks = _ranks(path, data)
    encoding = tiktoken.Encoding("file", pat_str=SPLIT, mergeable_ranks=ranks, special_tokens={})
    note = ""
    if len(ranks) not in (100_256, 128_000):  # cl100k_base, Llama 3
        note = (
            f"a tiktoken file does not say how text is split; with {len(ranks):,} ranks this "
            "is neither cl100k_base nor Llama 3, whose split is used"
        )

    def encode(texts: list[str]) -> list[list[int]]:
        ids: list[list[int]] = encoding.encode_ordinary_batch(texts, num_threads=2)
        return ids

    return Tokenizer(encode, note, encoding.decode)


def _ranks(path: Path, data: bytes) -> dict[bytes, int]:
    """Return the rank of each token, which is its id; all single bytes must be among them."""
    ranks: dict[bytes, int] = {}
    for number, line in enumerate(data.splitlines(), start=1):
        if not line.strip():
            continue
        try:
            token, rank = line.split()
            ranks[b64decode(token, validate=True)] = int(rank)
        except (ValueError, binascii.Error) as error:
            raise ConfigError(
                f"{path}, line {number}: is not a token in base64 and its rank; the file may have "
                "been cut off"
            ) from error
    if len(set(ranks.values())) < len(ranks):
        raise ConfigError(f"{path}: gives two tokens the same rank, which is their id")
    missing = [byte for byte in range(256) if bytes([byte]) not in ranks]
    if missing:
        raise ConfigError(
            f"{path}: has no rank for {len(missing)} of the 256 bytes (first: {missing[0]}), so it "
            "cannot spell every text; the file may have been cut off"
        )
    return ranks


_BATCH = 256  # exchanges tokenized together: enough for all cores

_ANSWER_FIELDS = ("output", "response", "completion", "answer", "generated_text")
"""Fields in which logs keep the answer."""

_ANSWERING = frozenset({"gpt", "chatgpt", "assistant", "bing", "bard"})


class _Exchange(NamedTuple):
    id: str
    prompt: str  # empty if it was not recorded
    answer: str  # not empty


class TokenCounts(NamedTuple):
    """Counts of a new token trace."""

    requests: int
    prompt_tokens: int
    output_tokens: int


def write_token_trace(path: Path, tokenizer: Tokenizer, out: Path) -> TokenCounts:
    """Write the token trace of a log of text.

    Raises a ConfigError if `out` has another ending, is the log itself, or cannot be written; a
    TraceError if the log cannot be read, or has no answer.

    Args:
        path: In a form that `_exchanges` knows, gzip-compressed or not.
        out: Ends in ``.jsonl`` or ``.jsonl.gz``. Its lines have ``id``, ``prompt_token_ids`` and
            ``generated_token_ids``; nothing else of the log is kept.
    """
    if not out.name.endswith((".jsonl", ".jsonl.gz")):
        raise ConfigError(f"{out}: a token trace is written as .jsonl or .jsonl.gz")
    if out.exists() and path.exists() and out.samefile(path):
        raise ConfigError(f"{out}: is the log itself, which would be lost; write to another file")
    requests = prompt_tokens = output_tokens = 0
    with new_file(out) as temporary, packed(temporary, is_packed=out.suffix == ".gz") as stream:
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


def _exchanges(file: TraceFile) -> Iterator[_Exchange]:
    """Yield the exchanges of a log, in the order of the file.

    A TraceError if an object has none of these forms, or no answer.

    Args:
        file: JSON lines, or a JSON list, of objects that have ``prompt`` and one of
            `_ANSWER_FIELDS`; or ``messages`` in OpenAI's form, whose last assistant message is the
            answer unless a field holds it; or ``conversations`` in ShareGPT's form, in which every
            answer to a human makes an exchange whose prompt is all before it.

    Yields:
        With the id of the object, or its number from 0; in conversations with ``-`` and the number
        of the answer from 1.
    """
    if file.container not in ("json", "jsonl"):
        raise TraceError(
            f"{file.path}: holds no JSON; give JSON lines with 'prompt' and an answer "
            f"({', '.join(_ANSWER_FIELDS)}), 'messages' or 'conversations'"
        )
    for number, row in enumerate(file.objects("entry")):
        name = str(row.values.get("id", number))
        if "conversations" in row.values:
            yield from _conversation(row, name)
        elif "messages" in row.values:
            yield _chat(row, name)
        else:
            yield _pair(row, name)


def _pair(row: Row, name: str) -> _Exchange:
    if {"prompt_token_ids", "generated_token_ids"} & row.values.keys():
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
        if speaker in _ANSWERING and turns[place - 1][0] in {"human", "user"}:
            count += 1
            answer = _not_empty(text, row, f"turn {place} of 'conversations'")
            yield _Exchange(f"{name}-{count}", _joined(turns[:place], speaker), answer)


def _joined(turns: list[tuple[str, str]], speaker: str) -> str:
    """Return the turns as one text, which ends where `speaker` begins."""
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
    """Return the text of a message, which may consist of parts (OpenAI's form)."""
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
    return value
