"""Text and tokens: the length and identity of a prompt, and the text of answers.

Without a tokenizer a token is four bytes of UTF-8 (the last of a text may be shorter), and its id
is these bytes as a little-endian number. The rule is reversible, and near to the four characters of
English per token of a large vocabulary.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from specsim.core.errors import ConfigError
from specsim.core.rng import Luck, stream_id
from specsim.tokens.convert import load_tokenizer

Ids = NDArray[np.integer[Any]]  # token ids, shape (tokens,)

_WORDS = """
    the and for are but not you all can her was one our out day get has him his how man new now old
    see two way who boy did its let put say she too use
""".split()
"""Words of three letters, so four bytes with the space before."""
_LONGER = "this that with from have will your which their there time about would".split()
"""Longer words that a tokenizer probably has as one token."""


class Filler(NamedTuple):
    """The filler text of an answer."""

    ids: NDArray[np.int64]  # shape (tokens,)
    text: str  # plain ASCII letters and spaces
    ends: NDArray[np.int64]  # end of each token in the text, shape (tokens,)


class Texts:
    """Counts the tokens of prompts, and writes answers with a given number of tokens.

    Raises a ConfigError if the file is no tokenizer, or has too few words of one token.
    """

    def __init__(self, seed: int, tokenizer: Path | None = None) -> None:
        self._luck = Luck(seed, stream_id("serve", "filler"))
        self._encode: Callable[[list[str]], list[list[int]]] | None = None
        self._decode: Callable[[list[int]], str] | None = None
        words = [f" {word}" for word in _WORDS]
        if tokenizer is None:
            self._ids = np.array([_four_bytes(word)[0] for word in words], dtype=np.int64)
        else:
            loaded = load_tokenizer(tokenizer)
            self._encode, self._decode = loaded.encode, loaded.decode
            words, self._ids = _words_of_one_token(loaded.encode, tokenizer)
        self._words = np.array(words, dtype=object)
        self._lens = np.array([len(word) for word in words], dtype=np.int64)

    def encode(self, text: str) -> Ids:
        if self._encode is None:
            return _four_bytes(text)
        return np.array(self._encode([text])[0], dtype=np.int64)

    def fewest(self, text: str) -> int:
        """Return the least number of tokens that a text of this length can have."""
        return 0 if self.has_tokenizer else -(-len(text) // 4)

    @property
    def has_tokenizer(self) -> bool:
        return self._encode is not None

    def decode(self, ids: Ids) -> str:
        """Return the text of token ids in [0, 2**32); a ValueError if an id stands for no text."""
        if self._decode is None:
            data = ids.astype("<u4").tobytes()
            return data.replace(b"\0", b"").decode(errors="replace")
        try:
            return self._decode(ids.tolist())
        except (OverflowError, TypeError) as error:
            raise ValueError("a token id is not in the vocabulary") from error

    def filler(self, request: int, length: int) -> Filler:
        """Return the answer of a request; equal for equal seed, number and length."""
        uniforms = self._luck.uniforms([request], [length])
        chosen = (uniforms * len(self._words)).astype(np.int64)
        text = "".join(self._words[chosen].tolist())
        return Filler(self._ids[chosen], text, np.cumsum(self._lens[chosen]))


def _four_bytes(text: str) -> Ids:
    data = text.encode("utf-8", "replace")
    return np.frombuffer(data + b"\0" * (-len(data) % 4), dtype="<u4")


def _words_of_one_token(
    encode: Callable[[list[str]], list[list[int]]], path: Path
) -> tuple[list[str], NDArray[np.int64]]:
    """Return words that are one token each, at any place in a text of such words."""
    words = [f" {word}" for word in (*_WORDS, *_LONGER)]
    alone = encode(words)
    twice = encode([f"{word}{word}" for word in words])
    found = [
        (word, one[0])
        for word, one, two in zip(words, alone, twice, strict=True)
        if len(one) == 1 and two == one * 2
    ]
    if len(found) < 2:
        raise ConfigError(
            f"{path}: has no words of one token each ({len(found)} of {len(words)} common ones); "
            "answers could not be given the right length: leave --tokenizer out"
        )
    return [word for word, _ in found], np.array([token for _, token in found], dtype=np.int64)
