"""A server: what it says of itself, and how much of that is read.

A broken or hostile server costs an error, not the machine.
"""

import json
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from math import isfinite
from typing import Any
from urllib.parse import urlsplit

import aiohttp

from specsim.core.errors import ConfigError

MAX_BODY_BYTES = 32 << 20  # of a page: models, version, metrics, or the text of an error
MAX_EVENT_BYTES = 8 << 20  # of one server-sent event
MAX_STREAM_BYTES = 512 << 20  # of all events of an answer
LONGEST_ANSWER = 6.0  # longest time that an answer may take in all, in limits of silence
_TIMEOUT = aiohttp.ClientTimeout(total=30)
_SAMPLE = re.compile(r"^([A-Za-z_:][\w:]*)(?:\{(.*)\})? (\S+)")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_INFO = "vllm:cache_config_info"
_SUMMED = frozenset({"engine", "model_name"})
_COUNTED = ("_total", "_sum", "_count")


class TooMuchError(Exception):
    """An answer exceeds a limit; says which."""


_FAILED = (aiohttp.ClientError, TimeoutError, OSError, TooMuchError)  # what asking may raise


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


@dataclass(frozen=True)
class Metrics:
    """One reading of a server's ``/metrics``."""

    values: dict[str, float]
    """By name and labels, such as ``vllm:...{position="0"}``; summed over engines."""
    cache_config: dict[str, str] = field(default_factory=dict)
    """vLLM's ``cache_config_info``, as text."""

    def since(self, before: "Metrics") -> dict[str, float]:
        """Return by how much each counter has grown; {} if one fell: it was restarted."""
        grown = {
            name: value - before.values.get(name, 0.0)
            for name, value in self.values.items()
            if name.partition("{")[0].endswith(_COUNTED)
        }
        return {} if any(value < 0 for value in grown.values()) else grown


@dataclass(frozen=True)
class Server:
    """A server that answers, and what it says of itself."""

    url: str  # without a path
    model: str
    version: str | None
    max_model_len: int | None


def base_url(url: str) -> str:
    """Return the address of a server without the path of its API, such as ``/v1``."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise ConfigError(f"--url {url}: is no URL: {error}") from error
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
        raise ConfigError(f"--url {url}: is no http URL; give one such as http://127.0.0.1:8000")
    if parts.username is not None:
        raise ConfigError(
            "--url: the credentials in it would be seen by others; leave them out and set "
            "OPENAI_API_KEY"
        )
    return f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/').removesuffix('/v1')}"


async def find_server(session: aiohttp.ClientSession, url: str, model: str | None) -> Server:
    """Return the server at an address, with a model or else the only one that it has.

    Raises:
        ConfigError: Nothing answers, something else does, or it has no such model.
    """
    try:
        status, text, target = await _page(session, f"{url}/v1/models")
    except _FAILED as error:
        raise ConfigError(
            f"{url}: no server answers ({one_line(error)}); start one there, or correct --url"
        ) from error
    if status in (401, 403):
        raise ConfigError(f"{url}: /v1/models answers {status}; set OPENAI_API_KEY to the key")
    if 300 <= status < 400:
        raise ConfigError(
            f"{url}: redirects to {one_line(target or 'nowhere')}, and prompts are sent to no "
            "other host than the one you name; give that with --url if it is the server"
        )
    models = _models(text) if status == 200 else None
    if not models:
        raise ConfigError(
            f"{url}: what answers is no OpenAI-compatible server (/v1/models answers {status}); "
            "correct --url"
        )
    if model is None and len(models) > 1:
        raise ConfigError(f"{url}: has several models; choose with --model: {', '.join(models)}")
    chosen = model or next(iter(models))
    if chosen not in models:
        raise ConfigError(f"--model {chosen}: {url} has no such model; it has: {', '.join(models)}")
    max_len = models[chosen].get("max_model_len")
    version = await _version(session, url)
    return Server(url, chosen, version, max_len if isinstance(max_len, int) else None)


def _models(text: str) -> dict[str, Mapping[str, Any]] | None:
    try:
        found = json.loads(text)["data"]
        return {str(each["id"]): each for each in found}
    except (ValueError, TypeError, KeyError, RecursionError):
        return None


async def _version(session: aiohttp.ClientSession, url: str) -> str | None:
    """Return what vLLM says of its version; other servers have no such page."""
    try:
        status, text, _ = await _page(session, f"{url}/version")
        return str(json.loads(text)["version"]) if status == 200 else None
    except (*_FAILED, ValueError, TypeError, KeyError):
        return None


async def read_metrics(session: aiohttp.ClientSession, url: str) -> Metrics | None:
    """Return a server's metrics; None if it does not answer, or has no such page."""
    try:
        status, text, _ = await _page(session, f"{url}/metrics")
    except _FAILED:
        return None
    return parse_metrics(text) if status == 200 else None


async def _page(session: aiohttp.ClientSession, url: str) -> tuple[int, str, str | None]:
    """Return status and text of a page, and where it redirects to."""
    # Never followed: a redirect would send prompts and the key to who knows whom.
    async with session.get(url, timeout=_TIMEOUT, allow_redirects=False) as response:
        return response.status, await read_page(response), response.headers.get("Location")


def parse_metrics(text: str) -> Metrics:
    """Return the engine's metrics, those with a colon, in a page of Prometheus text."""
    values: dict[str, float] = {}
    cache_config: dict[str, str] = {}
    for line in text.splitlines():
        sample = _SAMPLE.match(line)
        if sample is None or ":" not in sample[1] or sample[1].endswith(("_bucket", "_created")):
            continue
        name, labels = sample[1], dict(_LABEL.findall(sample[2] or ""))
        if name == _INFO:
            cache_config = labels
            continue
        own = ",".join(f'{k}="{v}"' for k, v in labels.items() if k not in _SUMMED)
        key = f"{name}{{{own}}}" if own else name
        with suppress(ValueError):
            value = float(sample[3])
            if isfinite(value):
                values[key] = values.get(key, 0.0) + value
    return Metrics(values, cache_config)
