"""A server's description of itself, and a client that reads its streamed answers.

A broken or hostile server causes an error, and no harm to this machine.
"""

import asyncio
import json
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from math import isfinite
from time import monotonic
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import numpy as np
from numpy.typing import NDArray

from specsim.core.errors import ConfigError

MAX_BODY_BYTES = 32 << 20  # of a page: models, version, metrics, or the text of an error
MAX_EVENT_BYTES = 8 << 20  # of one server-sent event
MAX_STREAM_BYTES = 512 << 20  # of all events of an answer
LONGEST_ANSWER = 6.0  # longest time of an answer, as a multiple of the limit of silence
_TIMEOUT = aiohttp.ClientTimeout(total=30)
_SAMPLE = re.compile(r"^([A-Za-z_:][\w:]*)(?:\{(.*)\})? (\S+)")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
OWN_FIELDS = frozenset({"prompt", "model", "max_tokens", "min_tokens", "stream", "n"})
_KEEP_ALIVE = 2.0  # seconds; servers close after 5, which must not happen during a request
INTERRUPTED = "interrupted"


class TooMuchError(Exception):
    """An answer exceeds a limit, which the message names."""


_FAILED = (aiohttp.ClientError, TimeoutError, OSError, TooMuchError)  # errors of a request


async def read_page(response: aiohttp.ClientResponse) -> str:
    """Return the text of a page; a TooMuchError if it is too large."""
    parts, size = [], 0
    async for chunk in response.content.iter_any():
        size += len(chunk)
        if size > MAX_BODY_BYTES:
            raise TooMuchError(f"a page of more than {MAX_BODY_BYTES >> 20} MiB")
        parts.append(chunk)
    return b"".join(parts).decode("utf-8", errors="replace")


def one_line(error: object) -> str:
    """Return the text of an error in one line, or its class if it has none."""
    if isinstance(error, aiohttp.ClientConnectorError):
        cause = error.os_error  # the rest is about the call of aiohttp
        number = cause.errno or 0
        error = os.strerror(number) if number > 0 else cause.strerror or cause
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 200 else f"{text[:197]}..."


@dataclass(frozen=True)
class Metrics:
    """One reading of a server's ``/metrics``."""

    values: dict[str, float]
    """By name and labels, such as ``vllm:...{position="0"}``; summed over engines."""
    cache_config: dict[str, str] = field(default_factory=dict)  # vLLM's cache_config_info
    num_engines: int = 0  # replicas or ranks in its counters; 0 if they are not told apart

    def since(self, before: "Metrics") -> dict[str, float]:
        """Return the growth of each counter; {} if one fell, because the server was restarted."""
        grown = {
            name: value - before.values.get(name, 0.0)
            for name, value in self.values.items()
            if name.partition("{")[0].endswith(("_total", "_sum", "_count"))
        }
        return {} if any(value < 0 for value in grown.values()) else grown


@dataclass(frozen=True)
class Server:
    """A server, and its description of itself."""

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
    """Return the server at an address, with a model or else its only one.

    Raises a ConfigError if nothing or something else answers, or it has no such model.
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
    """Return vLLM's version as it reports it; other servers have no such page."""
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
    """Return status, text and redirection target of a page."""
    # Not followed: a redirect could send prompts and the key anywhere.
    async with session.get(url, timeout=_TIMEOUT, allow_redirects=False) as response:
        return response.status, await read_page(response), response.headers.get("Location")


def parse_metrics(text: str) -> Metrics:
    """Return the engine's metrics, whose names have a colon, from Prometheus text."""
    values: dict[str, float] = {}
    cache_config: dict[str, str] = {}
    engines: set[str] = set()
    for line in text.splitlines():
        sample = _SAMPLE.match(line)
        if sample is None or ":" not in sample[1] or sample[1].endswith(("_bucket", "_created")):
            continue
        name, labels = sample[1], dict(_LABEL.findall(sample[2] or ""))
        engines |= {labels["engine"]} if "engine" in labels else set()
        if name == "vllm:cache_config_info":
            cache_config = labels
            continue
        own = ",".join(f'{k}="{v}"' for k, v in labels.items() if k not in {"engine", "model_name"})
        key = f"{name}{{{own}}}" if own else name
        with suppress(ValueError):
            value = float(sample[3])
            if isfinite(value):
                values[key] = values.get(key, 0.0) + value
    return Metrics(values, cache_config, len(engines))


@dataclass(frozen=True)
class Options:
    """How requests are sent."""

    low_id: int = 1_000
    """Smallest token id of random prompts: special tokens are mostly below it or at the end."""
    high_id: int = 30_000  # end of their ids: most vocabularies have 32,000 and more
    timeout: float = 600.0  # seconds of silence after which an answer counts as failed
    num_warm_up: int = 1  # unrecorded; the first also tests the server
    body: dict[str, Any] = field(default_factory=dict)  # additional fields of each request


@dataclass
class StreamedAnswer:
    """A received answer; times in seconds on the monotonic clock."""

    sent_at: float  # when its last byte was handed to the connection, or else when sending began
    deliveries: list[tuple[float, int]] = field(default_factory=list)  # (time, tokens)
    token_ids: list[int] = field(default_factory=list)  # empty if the server does not return them
    finish_reason: str | None = None
    usage: dict[str, Any] = field(default_factory=dict)
    metrics: dict[str, Any] = field(default_factory=dict)  # vLLM's, if asked for
    error: str | None = None
    is_whole: bool = False  # whether the server marked the end
    asked_len: int | None = None

    @property
    def num_tokens(self) -> int:
        """Delivered tokens: counted by the server, as requested, or as seen."""
        counted, seen = self.usage.get("completion_tokens"), sum(n for _, n in self.deliveries)
        if counted is None and self.is_whole and self.finish_reason == "length":
            counted = max(self.asked_len or 0, seen)  # events of several tokens show only one
        return counted if isinstance(counted, int) and not self.token_ids else seen


def new_session(key: str | None, timeout: float) -> aiohttp.ClientSession:
    """Return a session with unlimited connections; `timeout` is the longest silence, seconds."""
    watch = aiohttp.TraceConfig()
    watch.on_request_chunk_sent.append(_stamp)
    return aiohttp.ClientSession(
        trace_configs=[watch],
        connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEEP_ALIVE),
        headers={"Authorization": f"Bearer {key}"} if key else {},
        timeout=aiohttp.ClientTimeout(
            total=LONGEST_ANSWER * timeout, sock_connect=30.0, sock_read=timeout
        ),
    )


async def _stamp(session: object, context: SimpleNamespace, sent: object) -> None:
    if context.trace_request_ctx is not None:
        context.trace_request_ctx.sent_at = monotonic()


@dataclass(frozen=True)
class Client:
    """Sends requests to a server."""

    session: aiohttp.ClientSession
    server: Server
    body: dict[str, Any]  # additional fields of each request

    def encode(self, prompt: NDArray[np.int64], output_len: int, *, priority: int = 0) -> bytes:
        """Return the body of a request for an answer of exactly this length."""
        fields: dict[str, Any] = {
            "model": self.server.model,
            "prompt": prompt.tolist(),
            "max_tokens": output_len,
            "min_tokens": output_len,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
            "return_token_ids": True,
            **({"priority": priority} if priority else {}),
            **self.body,
        }
        return json.dumps(fields, separators=(",", ":")).encode()

    async def ask(self, body: bytes, output_len: int | None = None) -> StreamedAnswer:
        """Send a request and read its answer to its end, or to an error.

        An answer of far more tokens than `output_len` is an error.
        """
        answer = StreamedAnswer(monotonic(), asked_len=output_len)
        try:
            async with self.session.post(
                f"{self.server.url}/v1/completions",
                data=body,
                headers={"Content-Type": "application/json"},
                trace_request_ctx=answer,
                allow_redirects=False,
            ) as response:
                if response.status != 200:
                    said = _message(await read_page(response))
                    answer.error = one_line(f"HTTP {response.status}: {said}")
                else:
                    await read_answer(response, answer)
        except asyncio.CancelledError:  # by an interrupt: the received part is kept
            answer.error = INTERRUPTED
        except TimeoutError:
            answer.error = "timeout: the server fell silent, or does not come to an end"
        except TooMuchError as error:
            answer.error, answer.is_whole = str(error), False
        except aiohttp.ServerDisconnectedError:
            answer.error = "the server hung up before it answered"
        except (aiohttp.ClientPayloadError, ConnectionError) as error:
            where = "in the middle of the answer" if answer.deliveries else "before the first token"
            answer.error = one_line(f"the connection broke {where} ({type(error).__name__})")
        except (aiohttp.ClientError, OSError) as error:
            answer.error = one_line(error)
        if answer.is_whole:  # errors after the last event do not matter
            answer.error = None if answer.deliveries else "the answer has no tokens"
        return answer


async def read_answer(response: aiohttp.ClientResponse, answer: StreamedAnswer) -> None:
    """Read server-sent events to the end of the stream; a stream without the last is an error.

    So is an answer of twice the requested tokens.
    """
    rest, size, seen, asked_len = b"", 0, 0, answer.asked_len
    async for chunk in response.content.iter_any():
        now = monotonic()
        size += len(chunk)
        if len(rest) + len(chunk) > MAX_EVENT_BYTES:
            raise TooMuchError(f"an event of more than {MAX_EVENT_BYTES >> 20} MiB")
        if size > MAX_STREAM_BYTES:
            raise TooMuchError(f"an answer of more than {MAX_STREAM_BYTES >> 20} MiB")
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            if _is_last(line):
                answer.is_whole = answer.error is None
            elif line.startswith(b"data:") and answer.error is None:
                before = len(answer.deliveries)
                _take(line[5:].strip(), now, answer)
                seen += sum(count for _, count in answer.deliveries[before:])
                if asked_len is not None and seen > 2 * asked_len + 64:
                    asked = f"where {asked_len:,} were asked for"
                    raise TooMuchError(f"more than {seen - 1:,} tokens {asked}")
    if _is_last(rest):  # some servers omit the last newline
        answer.is_whole = answer.error is None
    if not answer.is_whole and answer.error is None:
        answer.error = "the stream ended before the answer did"


def _is_last(line: bytes) -> bool:
    return line.startswith(b"data:") and line[5:].strip() == b"[DONE]"


def _take(data: bytes, now: float, answer: StreamedAnswer) -> None:
    """Add the content of one event."""
    try:
        event = json.loads(data)
        if event.get("error"):
            answer.error = one_line(f"in the stream: {_said(event)}")
            return
        usage, metrics = (_object(event, name) for name in ("usage", "metrics"))
        for choice in event.get("choices") or ():
            if count := _count(choice, usage, answer):
                answer.deliveries.append((now, count))
            answer.finish_reason = choice.get("finish_reason") or answer.finish_reason
        answer.usage = usage or answer.usage
        answer.metrics = metrics or answer.metrics
    except (ValueError, TypeError, AttributeError, KeyError, RecursionError) as error:
        answer.error = one_line(f"in the stream: an event that is not understood: {error}")


def _count(choice: dict[str, Any], usage: dict[str, Any], answer: StreamedAnswer) -> int:
    """Return how many tokens an event delivers, by the best source in it."""
    token_ids = choice.get("token_ids")
    if token_ids is not None:
        answer.token_ids.extend(map(int, token_ids))
        return len(token_ids)
    if "completion_tokens" in usage:  # stream_options.continuous_usage_stats
        known = sum(count for _, count in answer.deliveries)
        if (count := int(usage["completion_tokens"]) - known) < 0:
            raise ValueError(f"completion_tokens = {usage['completion_tokens']} after {known}")
        return count
    return 1 if choice.get("text") else 0


def _object(event: dict[str, Any], name: str) -> dict[str, Any]:
    if not isinstance(found := event.get(name) or {}, dict):
        raise TypeError(f"{name} is no object")
    return found


def _message(text: str) -> str:
    try:
        return _said(json.loads(text))
    except (ValueError, RecursionError):
        return text


def _said(event: Any) -> str:
    """Return the message of an error in OpenAI's form, or its whole text in any other."""
    error = event.get("error", event) if isinstance(event, dict) else event
    return str(error.get("message", error)) if isinstance(error, dict) else str(error)
