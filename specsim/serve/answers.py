"""Answers: what OpenAI's clients read, streamed or whole.

A stream is written straight to its connection, in the step that delivers: one chunk holds all
tokens that the step brings for the request, as vLLM's do. What a slow reader has not read yet waits
in the connection's buffer, which is bounded: then the reader is cut off.
"""

import asyncio
import json
from time import time
from typing import Any
from uuid import uuid4

from specsim.serve.live import LiveAnswer
from specsim.serve.protocol import error_body

_MOST_UNREAD = 1 << 20  # bytes that may wait for one reader
_DONE = b"data: [DONE]\n\n"


class Reply:
    """What comes back for one HTTP request: the answers to one or more prompts.

    Args:
        echoes: What stands before each answer, where the prompt is to be repeated.
    """

    def __init__(
        self, model: str, prompt_lens: list[int], *, is_chat: bool, n: int, echoes: list[str]
    ) -> None:
        self.id = f"{'chatcmpl' if is_chat else 'cmpl'}-{uuid4().hex}"
        self.is_chat, self.n = is_chat, n
        self.created = int(time())
        self.model, self.prompt_lens, self.echoes = model, prompt_lens, echoes
        self.answers: list[LiveAnswer] = []
        self.done: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()
        """Settled when the last answer has come: None, or why it has not."""
        self._left = len(prompt_lens) * n

    def delivered(self, answer: LiveAnswer, first: int, end: int) -> None:
        """Wait for the last token of the last answer."""
        if end == answer.request.output_len:
            self._left -= 1
            if not self._left and not self.done.done():
                self.done.set_result(None)

    def failed(self, answer: LiveAnswer, why: str) -> None:
        """Give up."""
        if not self.done.done():
            self.done.set_result(why)

    @property
    def usage(self) -> dict[str, Any]:
        """What it comes to, tokens."""
        return _usage(sum(self.prompt_lens), sum(each.sent_len for each in self.answers))

    def whole(self) -> dict[str, Any]:
        """Return all answers as one object."""
        choices: list[dict[str, Any]] = []
        for answer in self.answers:
            text = self._echo(answer) + answer.text(0, answer.sent_len)
            said: dict[str, Any] = {"text": text}
            if self.is_chat:
                said = {"message": {"role": "assistant", "content": text}}
            choices.append(
                {"index": answer.place, **said, "logprobs": None, "finish_reason": answer.finish}
            )
        return {
            "id": self.id,
            "object": "chat.completion" if self.is_chat else "text_completion",
            "created": self.created,
            "model": self.model,
            "choices": choices,
            "usage": self.usage,
        }

    def _echo(self, answer: LiveAnswer) -> str:
        return self.echoes[answer.place // self.n] if self.echoes else ""


def _usage(prompt: int, output: int) -> dict[str, int]:
    return {
        "prompt_tokens": prompt,
        "completion_tokens": output,
        "total_tokens": prompt + output,
    }


class Stream(Reply):
    """A reply that is sent while it comes, as server-sent events."""

    def __init__(self, *what: Any, usage: bool, continuous: bool, **options: Any) -> None:
        super().__init__(*what, **options)
        self._has_usage, self._is_continuous = usage, continuous
        self._transport: asyncio.WriteTransport | None = None
        kind = "chat.completion.chunk" if self.is_chat else "text_completion"
        self._head = (
            f'data: {{"id":"{self.id}","object":"{kind}","created":{self.created},'
            f'"model":{json.dumps(self.model)},"choices":['
        )

    def to(self, transport: asyncio.WriteTransport) -> None:
        """Write to a connection, on which the header of the response has been sent."""
        self._transport = transport

    def delivered(self, answer: LiveAnswer, first: int, end: int) -> None:
        """Send the tokens of a step."""
        text = json.dumps(self._echo(answer))[1:-1] if not first and self.echoes else ""
        text += answer.text(first, end)
        finish = f'"{answer.finish}"' if end == answer.request.output_len else "null"
        said = f'"delta":{{"content":"{text}"}}' if self.is_chat else f'"text":"{text}"'
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
        """Return what ends the stream."""
        why = self.done.result()
        if why is not None:
            return f"data: {json.dumps(error_body(503, why))}\n\n".encode() + _DONE
        if not self._has_usage:
            return _DONE
        return f'{self._head}],"usage":{json.dumps(self.usage)}}}\n\n'.encode() + _DONE

    def _write(self, data: bytes) -> None:
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        if transport.get_write_buffer_size() > _MOST_UNREAD:
            transport.abort()  # the handler hears of it, and withdraws the request
            return
        transport.write(b"%x\r\n%b\r\n" % (len(data), data))
