"""Tokenizers: a file of any known kind, recognised by its content, as a function of text."""

import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

from specsim.core.errors import ConfigError

__all__ = ["Tokenizer", "load_tokenizer"]

_EXTRA = "pip install 'specsim[tokens]'"


class Tokenizer(ABC):
    """Turns text into token ids, and adds none of its own: no start, no chat template."""

    note: str = ""
    """What a user should know of how it was read."""

    @abstractmethod
    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the token ids of texts.

        Args:
            texts: Of length n.

        Returns:
            Of an empty text, none, of length n.
        """


def load_tokenizer(path: Path) -> Tokenizer:
    """Return the tokenizer in a file.

    Args:
        path: Hugging Face's ``tokenizer.json``, or a tiktoken file of ranks.

    Raises:
        ConfigError: The file cannot be read, is no tokenizer of a known kind, or needs a library
            that is not installed.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    if data.lstrip().startswith(b"{"):
        return _load("huggingface", "tokenizers", path, _checked_json(path, data))
    if data[:1] == b"\n" and data[2:3] == b"\n":
        # Field 1 of the model holds field 1 of the first piece, each a tag (10), length and bytes.
        raise ConfigError(
            f"{path}: is a SentencePiece model, which is not read here; give the same model's "
            "tokenizer.json (transformers: AutoTokenizer.from_pretrained(folder)"
            ".save_pretrained(folder))"
        )
    first = data.split(b"\n", 1)[0].split()
    if len(first) == 2 and first[1].isdigit():
        return _load("bpe", "tiktoken", path, data)
    raise ConfigError(
        f"{path}: is no tokenizer: neither JSON (tokenizer.json) nor lines of base64 and rank (a "
        "tiktoken file, such as tokenizer.model of Llama 3)"
    )


def _checked_json(path: Path, data: bytes) -> bytes:
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
    return data


def _load(module: str, library: str, path: Path, data: bytes) -> Tokenizer:
    try:
        loaded = import_module(f"specsim.tokens.{module}")
    except ImportError as error:
        raise ConfigError(
            f"{path}: needs the library '{library}', which is not installed; run `{_EXTRA}`"
        ) from error
    tokenizer: Tokenizer = loaded.load(path, data)
    return tokenizer
