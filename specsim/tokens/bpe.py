"""A file of byte pair ranks, as tiktoken reads it: lines of a token in base64 and its rank."""

import binascii
from base64 import b64decode
from collections.abc import Sequence
from pathlib import Path
from typing import final

import tiktoken

from specsim.core.errors import ConfigError
from specsim.tokens.tokenizer import Tokenizer

__all__ = ["BytePairs", "load"]

_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""How text is split before bytes are merged: ``cl100k_base`` (openai/tiktoken
``tiktoken_ext/openai_public.py``, 2023), which Llama 3 took over (meta-llama/llama3
``llama/tokenizer.py``). Newer versions of tiktoken split differently where a text ends in a line
break and blanks."""

_KNOWN_SIZES = {100_256: "cl100k_base", 128_000: "Llama 3"}
"""Ranks in the files of which this split is known."""


@final
class BytePairs(Tokenizer):
    """A tokenizer of the library ``tiktoken``.

    The file holds no special tokens, so that ``<|eot_id|>`` in a text is text like any other. It
    does not hold the split either: that of `_SPLIT` is used.

    Args:
        ranks: Rank of each token, which is its id; every single byte is among them.
    """

    def __init__(self, ranks: dict[bytes, int]) -> None:
        self._encoding = tiktoken.Encoding(
            "file", pat_str=_SPLIT, mergeable_ranks=ranks, special_tokens={}
        )
        if len(ranks) not in _KNOWN_SIZES:
            self.note = (
                f"a tiktoken file does not say how text is split; with {len(ranks):,} ranks this "
                "is neither cl100k_base nor Llama 3, whose split is used"
            )

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the token ids of texts, worked out on two threads."""
        return self._encoding.encode_ordinary_batch(list(texts), num_threads=2)


def load(path: Path, data: bytes) -> BytePairs:
    """Return a tokenizer.

    Args:
        path: For error messages.
        data: The content of the file.

    Raises:
        ConfigError: A line is not base64 and a rank, a rank stands twice, or a byte has no rank.
    """
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
    return BytePairs(ranks)
