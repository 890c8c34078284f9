"""Tokenizers: a file of any known kind, recognised by its content, as a function of text.

The libraries that read them are an extra of the package, imported when a file asks for one.
"""

import binascii
import json
from base64 import b64decode
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from specsim.core.errors import ConfigError

_EXTRA = "pip install 'specsim[tokens]'"

SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""How text is split before bytes are merged, which a tiktoken file does not say: ``cl100k_base``
(openai/tiktoken ``tiktoken_ext/openai_public.py``, 2023), which Llama 3 took over
(meta-llama/llama3 ``llama/tokenizer.py``). Newer versions of tiktoken split differently where a
text ends in a line break and blanks."""

_KNOWN_SIZES = {100_256: "cl100k_base", 128_000: "Llama 3"}
"""Ranks in the files of which this split is known."""


@dataclass(frozen=True)
class Tokenizer:
    """Turns text into token ids, and adds none of its own: no start, no chat template."""

    encode: Callable[[list[str]], list[list[int]]]
    """The token ids of each of several texts."""
    note: str = ""
    """What a user should know of how it was read."""


def load_tokenizer(path: Path) -> Tokenizer:
    """Return the tokenizer in a Hugging Face ``tokenizer.json``, or in a tiktoken file of ranks.

    Raises:
        ConfigError: The file cannot be read, is no tokenizer of a known kind, or needs a library
            that is not installed.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
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
    try:
        content = json.loads(data)
    except (ValueError, RecursionError) as error:  # not JSON, not UTF-8, or not for a machine
        raise ConfigError(f"{path}: is not JSON: {error}") from error
    if "model" not in content:
        fields = ", ".join(list(content)[:5]) or "nothing"
        raise ConfigError(
            f"{path}: has no 'model' (found: {fields}), so it is no tokenizer; give the model's "
            "tokenizer.json"
        )


def _of_json(tokenizers: Any, path: Path, data: bytes) -> Tokenizer:
    """Return a tokenizer of the library ``tokenizers``, which works on all cores.

    Special tokens that stand in the text as such (``<|eot_id|>``) become one token each, as in a
    log of prompts to which a chat template had been applied.
    """
    try:
        tokenizer = tokenizers.Tokenizer.from_str(data.decode())
    except Exception as error:  # the library raises nothing more special
        reason = " ".join(str(error).split())
        raise ConfigError(f"{path}: is not a tokenizer.json that can be read: {reason}") from error
    # The file may ask for both; they are meant for batches in training.
    tokenizer.no_truncation()
    tokenizer.no_padding()

    def encode(texts: list[str]) -> list[list[int]]:
        batch = tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        return [encoding.ids for encoding in batch]

    return Tokenizer(encode)


def _of_ranks(tiktoken: Any, path: Path, data: bytes) -> Tokenizer:
    """Return a tokenizer of the library ``tiktoken``.

    The file holds no special tokens, so that ``<|eot_id|>`` in a text is text like any other.
    """
    ranks = _ranks(path, data)
    encoding = tiktoken.Encoding("file", pat_str=SPLIT, mergeable_ranks=ranks, special_tokens={})
    note = ""
    if len(ranks) not in _KNOWN_SIZES:
        note = (
            f"a tiktoken file does not say how text is split; with {len(ranks):,} ranks this "
            "is neither cl100k_base nor Llama 3, whose split is used"
        )

    def encode(texts: list[str]) -> list[list[int]]:
        ids: list[list[int]] = encoding.encode_ordinary_batch(texts, num_threads=2)
        return ids

    return Tokenizer(encode, note)


def _ranks(path: Path, data: bytes) -> dict[bytes, int]:
    """Return the rank of each token, which is its id; every single byte is among them."""
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
