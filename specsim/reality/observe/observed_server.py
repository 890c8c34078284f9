"""A server, and what it says of itself."""

import json
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from math import isfinite
from typing import Any
from urllib.parse import urlsplit

import aiohttp

from specsim.core.errors import ConfigError
from specsim.reality.observe.limits import TooMuchError, one_line, read_page

# A redirect would send prompts and the key to who knows whom.
_GET: Any = {"timeout": aiohttp.ClientTimeout(total=30), "allow_redirects": False}
_SAMPLE = re.compile(r"^([A-Za-z_:][\w:]*)(?:\{(.*)\})? (\S+)")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_INFO = "vllm:cache_config_info"
_SUMMED = frozenset({"engine", "model_name"})
_COUNTED = ("_total", "_sum", "_count")


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

    url: str
    """Without a path."""
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
    """Return the server at an address, checked to be of the kind that is asked.

    Args:
        model: By default the only one that the server has.

    Raises:
        ConfigError: Nothing answers, something else does, or it has no such model.
    """
    try:
        async with session.get(f"{url}/v1/models", **_GET) as response:
            status, text = response.status, await read_page(response)
            target = response.headers.get("Location")
    except (aiohttp.ClientError, TimeoutError, OSError, TooMuchError) as error:
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
    max_model_len = models[chosen].get("max_model_len")
    return Server(
        url,
        chosen,
        await _version(session, url),
        max_model_len if isinstance(max_model_len, int) else None,
    )


def _models(text: str) -> dict[str, Mapping[str, Any]] | None:
    try:
        found = json.loads(text)["data"]
        return {str(each["id"]): each for each in found}
    except (ValueError, TypeError, KeyError, RecursionError):
        return None


async def _version(session: aiohttp.ClientSession, url: str) -> str | None:
    """Return what vLLM says of its version; other servers have no such page."""
    try:
        async with session.get(f"{url}/version", **_GET) as response:
            found = json.loads(await read_page(response))
            return str(found["version"]) if response.status == 200 else None
    except (
        aiohttp.ClientError,
        TimeoutError,
        OSError,
        TooMuchError,
        ValueError,
        TypeError,
        KeyError,
    ):
        return None


async def read_metrics(session: aiohttp.ClientSession, url: str) -> Metrics | None:
    """Return a server's metrics; None if it does not answer, or has no such page."""
    try:
        async with session.get(f"{url}/metrics", **_GET) as response:
            text = await read_page(response)
            return parse_metrics(text) if response.status == 200 else None
    except (aiohttp.ClientError, TimeoutError, OSError, TooMuchError):
        return None


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
