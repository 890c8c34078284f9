"""Limits on what a server may answer: a broken or hostile one costs an error, not the machine."""

import os

import aiohttp

MAX_BODY_BYTES = 32 << 20
"""Of a page: models, version, metrics, or the text of an error."""
MAX_EVENT_BYTES = 8 << 20
"""Of one server-sent event."""
MAX_STREAM_BYTES = 512 << 20
"""Of all events of an answer."""
LONGEST_ANSWER = 6.0
"""Longest time that an answer may take in all, in limits of silence."""


class TooMuchError(Exception):
    """An answer exceeds a limit; says which."""


async def read_page(response: aiohttp.ClientResponse) -> str:
    """Return the text of a page; a TooMuchError if it is too large."""
    parts, size = [], 0
    async for chunk in response.content.iter_any():
        size += len(chunk)
        if size > MAX_BODY_BYTES:
            raise TooMuchError(f"a page of more than {MAX_BODY_BYTES >> 20} MiB")
        parts.append(chunk)
    return b"".join(parts).decode("utf-8", errors="replace")


def check_stream(event_bytes: int, stream_bytes: int) -> None:
    """Raise a TooMuchError if an event that is still coming, or an answer, is too large."""
    if event_bytes > MAX_EVENT_BYTES:
        raise TooMuchError(f"an event of more than {MAX_EVENT_BYTES >> 20} MiB")
    if stream_bytes > MAX_STREAM_BYTES:
        raise TooMuchError(f"an answer of more than {MAX_STREAM_BYTES >> 20} MiB")


def check_tokens(count: int, wanted: int | None) -> None:
    """Raise a TooMuchError if an answer has twice as many tokens as were asked for."""
    if wanted is not None and count > 2 * wanted + 64:
        raise TooMuchError(f"more than {count - 1:,} tokens where {wanted:,} were asked for")


def one_line(error: object, limit: int = 200) -> str:
    """Return what an error says, or its kind if it says nothing, as one line."""
    if isinstance(error, aiohttp.ClientConnectorError):
        cause = error.os_error  # the rest is how aiohttp was called
        number = cause.errno or 0
        error = os.strerror(number) if number > 0 else cause.strerror or cause
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= limit else f"{text[: limit - 3]}..."
