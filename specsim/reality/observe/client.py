"""One request to a server: sent, and its answer read as it comes."""

import asyncio
import json
from dataclasses import dataclass, field
from time import monotonic
from types import SimpleNamespace
from typing import Any

import aiohttp
import numpy as np
from numpy.typing import NDArray

from specsim.reality.observe.observed_server import (
    LONGEST_ANSWER,
    Server,
    TooMuchError,
    check_stream,
    check_tokens,
    one_line,
    read_page,
)

_OWN_FIELDS = frozenset({"prompt", "model", "max_tokens", "min_tokens", "stream", "n"})
_KEEP_ALIVE = 2.0  # seconds; servers hang up after 5, and a request must not meet that
_CONNECT_TIMEOUT = 30.0
INTERRUPTED = "interrupted"


@dataclass(frozen=True)
class Options:
    """How requests are sent."""

    low_id: int = 1_000
    """Smallest token id of random prompts: special tokens mostly lie below or at the end."""
    high_id: int = 30_000  # the first id above them: most vocabularies have 32,000 and more
    timeout: float = 600.0  # seconds of silence after which an answer counts as failed
    num_warm_up: int = 1
    """Requests before the run, not recorded; the first also shows whether they are understood."""
    body: dict[str, Any] = field(default_factory=dict)
    """Further fields of each request, such as ``temperature``."""

    @property
    def own_fields(self) -> list[str]:
        """Fields in `body` that are not the user's to set."""
        return sorted(_OWN_FIELDS & self.body.keys())


@dataclass
class StreamedAnswer:
    """What came back; times in seconds on the monotonic clock."""

    sent_at: float
    """When its last byte was handed to the connection, if it came to that; else when it began."""
    deliveries: list[tuple[float, int]] = field(default_factory=list)
    """When tokens came, and how many."""
    token_ids: list[int] = field(default_factory=list)  # empty if the server does not return them
    finish_reason: str | None = None
    usage: dict[str, Any] = field(default_factory=dict)
    metrics: dict[str, Any] = field(default_factory=dict)
    """vLLM's metrics of this request, if it is asked to give them."""
    error: str | None = None
    is_whole: bool = False  # whether the server said that this was all

    @property
    def num_tokens(self) -> int:
        """Tokens delivered: as the server counts them, or as they were seen."""
        seen = sum(count for _, count in self.deliveries)
        counted = self.usage.get("completion_tokens")
        return counted if isinstance(counted, int) and not self.token_ids else seen


def new_session(key: str | None, timeout: float) -> aiohttp.ClientSession:
    """Return a session without a limit of connections; longest silence in seconds."""
    watch = aiohttp.TraceConfig()
    watch.on_request_chunk_sent.append(_stamp)
    return aiohttp.ClientSession(
        trace_configs=[watch],
        connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEEP_ALIVE),
        headers={"Authorization": f"Bearer {key}"} if key else {},
        timeout=aiohttp.ClientTimeout(
            total=LONGEST_ANSWER * timeout, sock_connect=_CONNECT_TIMEOUT, sock_read=timeout
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
    body: dict[str, Any]  # further fields of each request

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
        """Send a request and read its answer to the end, or as far as it comes before an error.

        One of far more tokens than were asked for, `output_len`, is an error.
        """
        answer = StreamedAnswer(monotonic())
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
                    await _read(response, answer, output_len)
        except asyncio.CancelledError:  # by an interrupt: what has come is still wanted
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
        if answer.is_whole:  # whatever happened after the last event
            answer.error = None if answer.deliveries else "the answer has no tokens"
        return answer


async def _read(
    response: aiohttp.ClientResponse, answer: StreamedAnswer, output_len: int | None
) -> None:
    """Read server-sent events to the end of the stream; what ends before the last is an error."""
    rest, size, seen = b"", 0, 0
    async for chunk in response.content.iter_any():
        now = monotonic()
        size += len(chunk)
        check_stream(len(rest) + len(chunk), size)
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            if not line.startswith(b"data:"):
                continue
            data = line[5:].strip()
            if data == b"[DONE]":
                answer.is_whole = answer.error is None
            elif answer.error is None:
                before = len(answer.deliveries)
                _take(data, now, answer)
                seen += sum(count for _, count in answer.deliveries[before:])
                check_tokens(seen, output_len)
    if not answer.is_whole and answer.error is None:
        answer.error = "the stream ended before the answer did"


def _take(data: bytes, now: float, answer: StreamedAnswer) -> None:
    """Note what one event brings."""
    try:
        event = json.loads(data)
        if event.get("error"):
            answer.error = one_line(f"in the stream: {_said(event)}")
            return
        usage, metrics = (_object(event, name) for name in ("usage", "metrics"))
        for choice in event.get("choices") or ():
            count = _count(choice, usage, answer)
            if count:
                answer.deliveries.append((now, count))
            answer.finish_reason = choice.get("finish_reason") or answer.finish_reason
        answer.usage = usage or answer.usage
        answer.metrics = metrics or answer.metrics
    except (ValueError, TypeError, AttributeError, KeyError, RecursionError) as error:
        answer.error = one_line(f"in the stream: an event that is not understood: {error}")


def _count(choice: dict[str, Any], usage: dict[str, Any], answer: StreamedAnswer) -> int:
    """Return how many tokens an event delivers, by the best that the server tells."""
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
    found = event.get(name) or {}
    if not isinstance(found, dict):
        raise TypeError(f"{name} is no object")
    return found


def _message(text: str) -> str:
    try:
        return _said(json.loads(text))
    except (ValueError, RecursionError):
        return text


def _said(event: Any) -> str:
    """Return the message of an error in OpenAI's form, or all of it in any other."""
    error = event.get("error", event) if isinstance(event, dict) else event
    return str(error.get("message", error)) if isinstance(error, dict) else str(error)
