"""Hugging Face's ``tokenizer.json``, read by their library."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, final

import tokenizers

from specsim.core.errors import ConfigError
from specsim.tokens.tokenizer import Tokenizer

__all__ = ["HuggingFace", "load"]


@final
class HuggingFace(Tokenizer):
    """A tokenizer of the library ``tokenizers``.

    Special tokens that stand in the text as such (``<|eot_id|>``) become one token each, as in a
    log of prompts to which a chat template had been applied.
    """

    def __init__(self, tokenizer: Any) -> None:
        # The file may ask for both; they are meant for batches in training.
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self._tokenizer = tokenizer

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the token ids of texts, worked out on all cores."""
        batch = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        return [encoding.ids for encoding in batch]


def load(path: Path, data: bytes) -> HuggingFace:
    """Return a tokenizer.

    Args:
        path: For error messages.
        data: The content of the file.

    Raises:
        ConfigError: The library cannot read it.
    """
    try:
        return HuggingFace(tokenizers.Tokenizer.from_str(data.decode()))
    except Exception as error:  # the library raises nothing more special
        reason = " ".join(str(error).split())
        raise ConfigError(f"{path}: is not a tokenizer.json that can be read: {reason}") from error
