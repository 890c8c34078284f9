"""Protocol: requests in OpenAI's format, and their answers.

Some of vLLM 0.32.0's fields are known as well (``ignore_eos``, ``min_tokens``, ...). Sampling
parameters are checked without effect, because answers are filler text. Unknown fields are ignored,
as in vLLM.
"""

import asyncio
import json
from collections.abc import Callable
from operator import attrgetter
from time import time
from typing import Annotated, Any, Literal, Self, TypeVar
from uuid import uuid4

import numpy as np
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from specsim.serve.live import LiveAnswer, Turns
from specsim.serve.texts import Ids

_TYPES = {
    400: "BadRequestError", 401: "AuthenticationError", 404: "NotFoundError",
    405: "MethodNotAllowedError", 408: "RequestTimeoutError", 413: "RequestEntityTooLargeError",
    415: "UnsupportedMediaTypeError", 429: "RateLimitError", 503: "ServiceUnavailableError",
}  # fmt: skip


class Refusal(Exception):
    """A request that is answered with an error."""

    def __init__(self, status: int, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.param = status, message, param

    @property
    def body(self) -> dict[str, Any]:
        return error_body(self.status, self.message, self.param)


def error_body(status: int, message: str, param: str | None = None) -> dict[str, Any]:
    """Return an error in the form that OpenAI's clients read."""
    kind = _TYPES.get(status, "InternalServerError" if status >= 500 else "BadRequestError")
    return {"error": {"message": message, "type": kind, "param": param, "code": status}}


class Body(BaseModel):
    """A body or a part of it; unknown fields are ignored."""

    model_config = ConfigDict(extra="ignore", frozen=True)


class StreamOptions(Body):
    """What a stream contains besides the answer."""

    include_usage: bool | None = False
    continuous_usage_stats: bool | None = False


def _ids(given: Any) -> Ids:
    """Return token ids; a ValueError if `given` are none."""
    if not isinstance(given, list) or set(map(type, given)) - {int}:
        raise ValueError("token ids are a list of whole numbers")
    try:
        ids = np.array(given, dtype=np.int64)
    except OverflowError:
        ids = np.array([-1])
    if len(ids) and not 0 <= ids.min() <= ids.max() < 2**32:
        raise ValueError("a token id lies in [0, 2**32)")
    return ids


def _prompts(given: Any) -> list[str | Ids]:
    """Return the prompts of a completion, text or token ids; a ValueError if there is none."""
    if isinstance(given, str):
        return [given]
    kinds = set(map(type, given)) if isinstance(given, list) else {None}
    if not kinds:
        raise ValueError("is empty")
    if kinds == {str}:
        return list(given)
    if kinds == {list}:
        return [_ids(each) for each in given]
    if kinds != {int}:
        raise ValueError("is a text, token ids, or a list of texts or of token ids")
    return [_ids(given)]


Stop = Annotated[str, Field(max_length=1024)]  # characters


class _Asked(Body):
    """Fields of both kinds of requests."""

    model: str | None = None
    max_tokens: int | None = Field(default=None, ge=1)
    min_tokens: int = Field(default=0, ge=0)
    n: int | None = Field(default=1, ge=1, le=128)
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    stop: Stop | Annotated[list[Stop], Field(max_length=64, fail_fast=True)] | None = None
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    return_token_ids: bool | None = False
    priority: int = Field(default=0, ge=-(2**31), lt=2**31)
    temperature: float | None = Field(default=None, ge=0)
    top_p: float | None = Field(default=None, gt=0, le=1)
    presence_penalty: float | None = Field(default=None, ge=-2, le=2)
    frequency_penalty: float | None = Field(default=None, ge=-2, le=2)
    seed: int | None = None

    logprobs: Any = None
    prompt_logprobs: Any = None
    response_format: Any = None
    structured_outputs: Any = None
    use_beam_search: Any = None

    @property
    def limit(self) -> int | None:
        """Most tokens of an answer; None if only the context limits it."""
        return self.max_tokens

    @property
    def stops(self) -> list[str]:
        """The strings that end an answer."""
        given = [self.stop] if isinstance(self.stop, str) else self.stop or []
        return [stop for stop in given if stop]

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.stream_options is not None and not self.stream:
            raise ValueError("stream_options are for stream = true")
        limit = self.limit
        if limit is not None and self.min_tokens > limit:
            raise ValueError(f"min_tokens = {self.min_tokens} must not exceed max_tokens = {limit}")
        return self


class CompletionBody(_Asked):
    """``/v1/completions``."""

    prompt: Annotated[Any, AfterValidator(_prompts)]
    max_tokens: int | None = Field(default=16, ge=0)
    echo: bool | None = False
    suffix: Any = None
    best_of: int | None = None

    @property
    def limit(self) -> int | None:
        """As for other requests; an echo alone has one token, which is not sent, as in vLLM."""
        return 1 if self.max_tokens == 0 else self.max_tokens

    @model_validator(mode="after")
    def _check_echo(self) -> Self:
        if self.max_tokens == 0 and not self.echo:
            raise ValueError("max_tokens = 0 asks for the prompt alone, with echo = true")
        return self


class MessagePart(Body):
    """A part of a message."""

    type: Literal["text"]
    text: str


Tools = Annotated[list[dict[str, Any]], Field(fail_fast=True)] | None


def described(tools: Tools) -> str:
    """Return tools, or calls of them, as the templates of models write them (``tojson``)."""
    return json.dumps(tools, ensure_ascii=False) if tools else ""


class Message(Body):
    """One message of a conversation."""

    role: Annotated[str, Field(max_length=64)]
    content: str | Annotated[list[MessagePart], Field(fail_fast=True)] | None = None
    tool_calls: Tools = None

    @property
    def text(self) -> str:
        calls = described(self.tool_calls)
        if isinstance(self.content, list):
            return "".join(part.text for part in self.content) + calls
        return (self.content or "") + calls


class ChatBody(_Asked):
    """``/v1/chat/completions``."""

    messages: list[Message] = Field(min_length=1, fail_fast=True)
    max_completion_tokens: int | None = Field(default=None, ge=1)
    top_logprobs: Any = None
    tools: Tools = None
    tool_choice: Any = None
    functions: Any = None

    @property
    def limit(self) -> int | None:
        return self.max_completion_tokens or self.max_tokens


def _kind_of(given: Any) -> Any:
    return given.get("type") if isinstance(given, dict) else given


_UNSUPPORTED: dict[str, Callable[[Any], Any]] = {
    "logprobs": lambda body: body.logprobs is not None and body.logprobs is not False,
    "prompt_logprobs": lambda body: body.prompt_logprobs is not None,
    "response_format": lambda body: _kind_of(body.response_format) not in (None, "text"),
    **{name: attrgetter(name) for name in ("structured_outputs", "use_beam_search", "suffix")},
    "best_of": lambda body: body.best_of is not None and body.best_of != (body.n or 1),
    **{name: attrgetter(name) for name in ("top_logprobs", "functions")},
    "tool_choice": lambda body: body.tool_choice not in (None, "auto", "none"),
}
"""Fields for what a simulated server lacks, with a test whether their value asks for it."""

_WHY = {"tool_choice": "a simulated server answers with text, and calls no tool; ask for 'auto'"}


class TokenizeBody(Body):
    """``/tokenize``: a text, or a conversation, possibly with tools."""

    model: str | None = None
    prompt: str | None = None
    messages: Annotated[list[Message], Field(fail_fast=True)] | None = None
    tools: Tools = None


class DetokenizeBody(Body):
    """``/detokenize``."""

    model: str | None = None
    tokens: Annotated[Any, AfterValidator(_ids)]


_Kind = TypeVar("_Kind", bound=Body)


_PIECE = 1 << 18  # bytes checked at once
_MOST_PARTS, _MOST_VALUES = 1 << 16, 1 << 19


async def check_size(data: bytes, turns: Turns) -> None:
    """Refuse JSON that takes long to parse, by counting its parts."""
    end, is_text, num_quotes, num_lists, num_values = 0, False, 0, 0, 0
    async for _ in turns.each(range(0, len(data), _PIECE)):
        start, end = end, end + _PIECE
        piece = data[start:end]
        if (len(piece) - len(piece.rstrip(b"\\"))) % 2:  # the piece ends within an escape
            end += 1
            piece = data[start:end]
        piece = piece.replace(rb"\\", b"").replace(rb"\"", b"")
        between = piece.split(b'"')
        outside = b"".join(between[is_text::2])
        num_quotes += len(between) - 1
        is_text ^= len(between) % 2 == 0
        num_lists += outside.count(b"[") + outside.count(b"{")
        num_values += outside.count(b",")
        if num_lists + num_quotes // 2 > _MOST_PARTS or num_values > _MOST_VALUES:
            raise Refusal(
                413,
                f"the body holds too much: at most {_MOST_PARTS:,} texts, keys, lists and objects,"
                f" and {_MOST_VALUES:,} values; send it in several requests",
            )


def parsed(kind: type[_Kind], data: bytes) -> _Kind:
    """Return a parsed body; a Refusal that names the first wrong field."""
    try:
        body = kind.model_validate_json(data)
    except ValidationError as error:
        found = error.errors(include_url=False, include_context=False, include_input=False)
        of_first = [each for each in found if each["loc"][:1] == found[0]["loc"][:1]]
        first = max(of_first, key=lambda each: len(each["loc"]))  # of a union, the best match
        named = [str(part) for part in first["loc"] if str(part).isalnum() or "_" in str(part)]
        where = ".".join(part for part in named[:6] if part != "str")
        why = first["msg"].removeprefix("Value error, ")
        message = f"{where}: {why}" if where else why
        raise Refusal(400, message[:500], where or None) from error
    for name, is_asked in _UNSUPPORTED.items():
        if name in kind.model_fields and is_asked(body):
            why = _WHY.get(name, "a simulated server has none; leave the field out")
            raise Refusal(400, f"{name}: {why}", name)
    return body


_DONE = b"data: [DONE]\n\n"


class Reply:
    """The answers to one HTTP request: one per prompt, each after its echo."""

    def __init__(
        self,
        model: str,
        body: CompletionBody | ChatBody,
        prompt_lens: list[int],
        echoes: list[str],
        metrics: Callable[[LiveAnswer], dict[str, Any]],
    ) -> None:
        self.is_chat, self.n = isinstance(body, ChatBody), body.n or 1
        self.has_ids = bool(body.return_token_ids)
        self.id = f"{'chatcmpl' if self.is_chat else 'cmpl'}-{uuid4().hex}"
        self.created = int(time())
        self.model, self.prompt_lens, self.echoes = model, prompt_lens, echoes
        self._metrics = metrics
        self.answers: list[LiveAnswer] = []
        self.done: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()
        """Resolved after the last answer: None, or the reason for a failure."""
        self._left = len(prompt_lens) * self.n

    def delivered(self, answer: LiveAnswer, first: int, end: int) -> None:
        """Finish with the last token of the last answer."""
        if end == answer.request.output_len:
            self._left -= 1
            if not self._left and not self.done.done():
                self.done.set_result(None)

    def failed(self, answer: LiveAnswer, why: str) -> None:
        if not self.done.done():
            self.done.set_result(why)

    @property
    def total(self) -> dict[str, Any]:
        """Return the usage in tokens, and for a single answer its metrics."""
        usage = _usage(sum(self.prompt_lens), sum(each.sent_len for each in self.answers))
        metrics = {"metrics": self._metrics(self.answers[0])} if len(self.answers) == 1 else {}
        return {"usage": usage, **metrics}

    async def whole(self, turns: Turns) -> list[str]:
        """Return all answers as one JSON object, in pieces."""
        pieces: list[str] = []
        async for answer in turns.each(self.answers):
            text = self._echo(answer) + answer.text(0, answer.sent_len)
            said: dict[str, Any] = {"text": text}
            if self.is_chat:
                said = {"message": {"role": "assistant", "content": text}}
            if self.has_ids:
                said["token_ids"] = answer.filler.ids[: answer.sent_len].tolist()
            choice = {"index": answer.place, **said, "logprobs": None}
            comma = ", " if pieces else ""
            pieces.append(comma + json.dumps({**choice, "finish_reason": answer.finish}))
        head = {
            "id": self.id,
            "object": "chat.completion" if self.is_chat else "text_completion",
            "created": self.created,
            "model": self.model,
            **self.total,
        }
        return [f'{json.dumps(head)[:-1]}, "choices": [', *pieces, "]}"]

    def _echo(self, answer: LiveAnswer) -> str:
        return self.echoes[answer.place // self.n] if self.echoes else ""


def _usage(prompt: int, output: int) -> dict[str, int]:
    return {"prompt_tokens": prompt, "completion_tokens": output, "total_tokens": prompt + output}


class Stream(Reply):
    """A reply that is sent as it is generated, as server-sent events.

    It is written directly to the connection in the step that delivers; one chunk has all tokens of
    the step for the request, as in vLLM. A slow reader's chunks wait in the connection's buffer,
    which is bounded: beyond it the reader is cut off.
    """

    def __init__(self, model: str, body: CompletionBody | ChatBody, *what: Any) -> None:
        super().__init__(model, body, *what)
        self.echoes = [json.dumps(echo)[1:-1] for echo in self.echoes]
        asked = body.stream_options or StreamOptions()
        self._has_usage = bool(asked.include_usage)
        self._is_continuous = bool(asked.continuous_usage_stats)
        self.transport: asyncio.WriteTransport | None = None
        """The connection, once the header of the response was sent."""
        kind = "chat.completion.chunk" if self.is_chat else "text_completion"
        self._head = (
            f'data: {{"id":"{self.id}","object":"{kind}","created":{self.created},'
            f'"model":{json.dumps(self.model)},"choices":['
        )

    def delivered(self, answer: LiveAnswer, first: int, end: int) -> None:
        text = "" if first else self._echo(answer)
        text += answer.text(first, end)
        finish = f'"{answer.finish}"' if end == answer.request.output_len else "null"
        said = f'"delta":{{"content":"{text}"}}' if self.is_chat else f'"text":"{text}"'
        if self.has_ids:
            said += f',"token_ids":{answer.filler.ids[first:end].tolist()}'
        usage = ""
        if self._is_continuous:
            prompt_len = self.prompt_lens[answer.place // self.n]
            usage = f',"usage":{json.dumps(_usage(prompt_len, end))}'
        chunk = (
            f'{self._head}{{"index":{answer.place},{said},"logprobs":null,'
            f'"finish_reason":{finish}}}]{usage}}}\n\n'
        )
        if not first and self.is_chat:
            chunk = (
                f'{self._head}{{"index":{answer.place},"delta":{{"role":"assistant","content":""}},'
                f'"logprobs":null,"finish_reason":null}}]}}\n\n{chunk}'
            )
        self._write(chunk.encode())
        super().delivered(answer, first, end)

    def tail(self) -> bytes:
        """Return the end of the stream."""
        why = self.done.result()
        if why is not None:
            return f"data: {json.dumps(error_body(503, why))}\n\n".encode() + _DONE
        if not self._has_usage:
            return _DONE
        return f"{self._head}],{json.dumps(self.total)[1:]}\n\n".encode() + _DONE

    def _write(self, data: bytes) -> None:
        transport = self.transport
        if transport is None or transport.is_closing():
            return
        if transport.get_write_buffer_size() > 1 << 20:  # bytes that may wait for one reader
            transport.abort()  # the handler notices, and withdraws the request
        else:
            transport.write(b"%x\r\n%b\r\n" % (len(data), data))
