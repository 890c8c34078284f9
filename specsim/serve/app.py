"""App: the paths of the API and their handlers."""

import asyncio
import json
from functools import partial
from hmac import compare_digest
from typing import TypeVar

import numpy as np
from aiohttp import web
from aiohttp.typedefs import Handler
from numpy.typing import NDArray

from specsim.core.request import Request
from specsim.core.rng import generator
from specsim.core.version import __version__
from specsim.serve.live import Live, LiveAnswer, Turns
from specsim.serve.protocol import (
    Body,
    ChatBody,
    CompletionBody,
    DetokenizeBody,
    Message,
    Refusal,
    Reply,
    Stream,
    TokenizeBody,
    Tools,
    check_size,
    described,
    error_body,
    parsed,
)
from specsim.serve.texts import Filler, Ids, Texts
from specsim.serve.watchers import LiveMetrics

_SSE = {"Content-Type": "text/event-stream; charset=utf-8", "Cache-Control": "no-cache"}
_MAX_BODY = web.AppKey("max_body", int)
_BODY_TIMEOUT = web.AppKey("body_timeout", float)
_LONG = 4096  # characters from which text is tokenized in another thread
_AT_ONCE = 1 << 13  # token ids that are written at once
_MOST_TOKENS = 1 << 26  # of unfinished requests, prompts included: about 1.5 GiB
_MOST_BODIES = 16  # bodies of the greatest length that may arrive at once

_Kind = TypeVar("_Kind", bound=Body)


class Service:
    """One address: an engine behind the API.

    Requests for an answer get an error instead with probability `fault_rate`.
    """

    def __init__(
        self,
        live: Live,
        texts: Texts,
        model: str,
        api_key: str | None = None,
        fault_rate: float = 0.0,
    ) -> None:
        self.live, self.texts, self.model = live, texts, model
        self.metrics = LiveMetrics(live, model)
        live.watchers.append(self.metrics)
        self._api_key = None if api_key is None else f"Bearer {api_key}".encode()
        self.is_closing = False
        longest = live.deployment.engine.max_model_len
        assert longest is not None
        self._max_model_len = longest
        self._fault_rate = fault_rate
        self._luck = generator(live.experiment.seed, "serve_faults")
        self._turns = Turns()
        self._coming = 0  # bytes of bodies that have not arrived completely

    def app(self, max_body: int, body_timeout: float) -> web.Application:
        """Return the application, which refuses larger bodies (bytes) and slower ones (seconds)."""
        app = web.Application(client_max_size=max_body, middlewares=[self._guard])
        app[_MAX_BODY], app[_BODY_TIMEOUT] = max_body, body_timeout
        for path, get in (
            ("/health", self._health), ("/ping", self._health), ("/version", self._version),
            ("/metrics", self._metrics), ("/v1/models", self._models),
        ):  # fmt: skip
            app.router.add_get(path, get)
        for path, post in (
            ("/v1/completions", self._completions), ("/v1/chat/completions", self._chat),
            ("/tokenize", self._tokenize), ("/detokenize", self._detokenize),
            ("/ping", self._health),
        ):  # fmt: skip
            app.router.add_post(path, post)
        return app

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Check the key, and report any error in the form that OpenAI's clients expect."""
        try:
            if self._api_key is not None and request.path.startswith("/v1"):
                given = request.headers.get("Authorization", "").encode("utf-8", "surrogateescape")
                if not compare_digest(given, self._api_key):
                    return web.json_response({"error": "Unauthorized"}, status=401)
            return await handler(request)
        except Refusal as refusal:
            return web.json_response(refusal.body, status=refusal.status)
        except web.HTTPException as error:
            body = error_body(error.status, error.reason)
            headers = {k: v for k, v in error.headers.items() if k == "Allow"}
            return web.json_response(body, status=error.status, headers=headers)

    async def _health(self, request: web.Request) -> web.Response:
        return web.Response(status=200 if self.live.is_up else 503)

    async def _version(self, request: web.Request) -> web.Response:
        # Clients compare it with vLLM's: a version of vLLM, and specsim's after the plus sign.
        simulated = self.live.deployment.engine.vllm_version
        return web.json_response({"version": f"{simulated}.0+specsim.{__version__}"})

    async def _metrics(self, request: web.Request) -> web.Response:
        return web.Response(
            body=self.metrics.page().encode(),
            headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"},
        )

    async def _models(self, request: web.Request) -> web.Response:
        entry = {
            "id": self.model,
            "object": "model",
            "created": 0,
            "owned_by": "specsim",
            "root": self.live.deployment.profile.model,
            "parent": None,
            "max_model_len": self._max_model_len,
        }
        return web.json_response({"object": "list", "data": [entry]})

    async def _tokenize(self, request: web.Request) -> web.StreamResponse:
        body = await self._asked(TokenizeBody, request)
        text = body.prompt
        if (text is None) == (body.messages is None):
            raise Refusal(400, "prompt or messages: give one of them", "prompt")
        ids = await (
            self._rendered(body.messages or [], body.tools) if text is None else self._encoded(text)
        )
        found = {"count": len(ids), "max_model_len": self._max_model_len, "token_strs": None}
        pieces = [f'{json.dumps(found)[:-1]}, "tokens": [']
        async for first in self._turns.each(range(0, len(ids), _AT_ONCE)):
            comma = ", " if first else ""
            pieces.append(comma + json.dumps(ids[first : first + _AT_ONCE].tolist())[1:-1])
        return await self._sent_whole(request, [*pieces, "]}"])

    async def _detokenize(self, request: web.Request) -> web.Response:
        body = await self._asked(DetokenizeBody, request)
        return web.json_response({"prompt": await self._decoded(body.tokens, "tokens")})

    async def _completions(self, request: web.Request) -> web.StreamResponse:
        at = self.live.now
        body = await self._asked(CompletionBody, request)
        self.check_count(len(body.prompt) * (body.n or 1))
        prompts, echoes = [], []
        async for given in self._turns.each(body.prompt):
            is_text = isinstance(given, str)
            if is_text:
                self._check_len(self.texts.fewest(given), body.limit)
            prompts.append(await self._encoded(given) if is_text else given)
            if body.echo:
                echoes.append(given if is_text else await self._decoded(given, "prompt"))
        return await self._answer(request, body, at, prompts, body.limit, echoes)

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        at = self.live.now
        body = await self._asked(ChatBody, request)
        prompt = await self._rendered(body.messages, body.tools)
        return await self._answer(request, body, at, [prompt], body.limit, [])

    async def _asked(self, kind: type[_Kind], request: web.Request) -> _Kind:
        """Return the parsed body of a request, once it has its turn."""
        data = await self._read(request)
        await self._turns.turn()
        await check_size(data, self._turns)
        return parsed(kind, data)

    async def _read(self, request: web.Request) -> bytes:
        """Return the body of a request; a Refusal if it is too long or too slow."""
        most, timeout = request.app[_MAX_BODY], request.app[_BODY_TIMEOUT]
        too_long = Refusal(413, f"the body has more than {most} bytes")
        if (request.content_length or 0) > most:
            raise too_long
        if request.headers.get("Content-Encoding", "identity").lower() != "identity":
            raise Refusal(
                415, "the body is compressed, which this server does not take; send it plain"
            )
        data = bytearray()
        try:
            async with asyncio.timeout(timeout):
                async for part in request.content.iter_any():
                    data += part
                    self._coming += len(part)
                    if len(data) > most:
                        raise too_long
                    if self._coming > _MOST_BODIES * most:
                        raise Refusal(503, "too many long bodies come at once; try again later")
        except TimeoutError as error:
            raise Refusal(408, f"the body did not come within {timeout:g} s") from error
        finally:
            self._coming -= len(data)
        return bytes(data)

    async def _encoded(self, text: str) -> Ids:
        if self.texts.has_tokenizer and len(text) > _LONG:
            return await asyncio.to_thread(self.texts.encode, text)
        return self.texts.encode(text)

    async def _decoded(self, ids: Ids, field: str) -> str:
        try:
            if self.texts.has_tokenizer and len(ids) > _LONG:
                return await asyncio.to_thread(self.texts.decode, ids)
            return self.texts.decode(ids)
        except ValueError as error:
            raise Refusal(400, f"{field}: {error}", field) from error

    async def _rendered(self, messages: list[Message], tools: Tools) -> Ids:
        """Return a conversation's tokens: for each message its role, its text, and an end.

        Each piece is tokenized by itself, so that an answer has the same tokens when it returns in
        the next turn. Tools come before all messages, as in the templates of models.
        """
        pieces = []
        if tools:
            pieces = [await self._encoded(f"<|tools|>\n{described(tools)}<|end|>\n")]
        async for each in self._turns.each(messages):
            for text in (f"<|{each.role}|>\n", each.text, "<|end|>\n"):
                pieces.append(await self._encoded(text))
        return np.concatenate([*pieces, self.texts.encode("<|assistant|>\n")])

    async def _answer(
        self,
        request: web.Request,
        body: CompletionBody | ChatBody,
        at: float,
        prompts: list[Ids],
        max_tokens: int | None,
        echoes: list[str],
    ) -> web.StreamResponse:
        self.check(body, prompts, max_tokens)
        inputs = [ids.astype(np.int64, copy=False) for ids in prompts]
        lens, n = [len(ids) for ids in prompts], body.n or 1
        live = self.live
        metrics = partial(
            LiveAnswer.metrics,
            speed=live.speed,
            max_draft_len=live.experiment.num_speculative_tokens,
        )
        kind = Stream if body.stream else Reply
        reply = kind(self.model, body, lens, echoes, metrics)
        left = _MOST_TOKENS - self.live.num_tokens
        async for place in self._turns.each(range(len(prompts) * n)):
            answer = await self._planned(body, at, inputs[place // n], max_tokens, reply)
            reply.answers.append(answer)
            left -= answer.num_tokens
            if left < 0:
                raise Refusal(503, "the unfinished requests have too many tokens; try again later")
        try:
            return await self._sent(request, reply, at)
        finally:
            async for answer in self._turns.each(reply.answers):
                self.live.withdraw(answer)

    async def _sent(self, request: web.Request, reply: Reply, at: float) -> web.StreamResponse:
        if not isinstance(reply, Stream):
            await self._submit(reply, at)
            why = await reply.done
            if why is not None:
                raise Refusal(503, why)
            self._count(reply)
            return await self._sent_whole(request, await reply.whole(self._turns))
        response = web.StreamResponse(headers=_SSE)
        response.enable_chunked_encoding()
        await response.prepare(request)
        await response.write(b"")  # sends the header
        transport = request.transport
        if transport is None:
            raise ConnectionResetError
        reply.transport = transport
        await self._submit(reply, at)
        await reply.done
        self._count(reply)
        await response.write(reply.tail())
        await response.write_eof()
        return response

    async def _sent_whole(self, request: web.Request, pieces: list[str]) -> web.StreamResponse:
        """Send JSON text, which is ASCII, piece by piece."""
        response = web.StreamResponse(headers={"Content-Type": "application/json; charset=utf-8"})
        response.content_length = sum(map(len, pieces))
        await response.prepare(request)
        async for piece in self._turns.each(pieces):
            await response.write(piece.encode())
        await response.write_eof()
        return response

    async def _submit(self, reply: Reply, at: float) -> None:
        if (
            len(reply.answers) > self.live.drafting.num_free
        ):  # other requests have come since that check
            reply.failed(reply.answers[0], "too many requests are unfinished")
        async for answer in self._turns.each(reply.answers):
            if reply.done.done():
                break
            self.live.submit(answer, at)

    def _count(self, reply: Reply) -> None:
        if reply.done.result() is None:
            self.metrics.answered([answer.sent_len for answer in reply.answers])

    def check(
        self, body: CompletionBody | ChatBody, prompts: list[Ids], max_tokens: int | None
    ) -> None:
        if body.model is not None and body.model != self.model:
            raise Refusal(404, f"The model `{body.model:.200}` does not exist.", "model")
        longest = max(map(len, prompts))
        if not min(map(len, prompts)):
            raise Refusal(400, "prompt: is empty", "prompt")
        self._check_len(longest, max_tokens)
        if self._fault_rate and self._luck.random() < self._fault_rate:
            raise Refusal(int(self._luck.choice((500, 503))), "a fault, as --fault-rate asks for")
        if self.is_closing:
            raise Refusal(503, "the server is shutting down")
        if not self.live.is_up:
            raise Refusal(503, "no replica is up")
        self.check_count(len(prompts) * (body.n or 1))

    def _check_len(self, prompt_len: int, max_tokens: int | None) -> None:
        if prompt_len + (max_tokens or 1) > self._max_model_len:
            raise Refusal(
                400,
                f"This model's maximum context length is {self._max_model_len} tokens. However, you"
                f" requested {max_tokens or 1} output tokens and your prompt contains at least "
                f"{prompt_len} input tokens. Please reduce the length of either one.",
                "max_tokens",
            )

    def check_count(self, asked: int) -> None:
        """Refuse more answers than there is room for, in general or now."""
        drafting = self.live.drafting
        if asked > len(drafting.requests):
            most = f"at most {len(drafting.requests):,} may be unfinished at once (--max-requests)"
            raise Refusal(400, f"{asked:,} answers are asked for, and {most}")
        if asked > drafting.num_free:
            raise Refusal(503, "too many requests are unfinished; try again later")

    async def _planned(
        self,
        body: CompletionBody | ChatBody,
        at: float,
        prompt: NDArray[np.int64],
        max_tokens: int | None,
        reply: Reply,
    ) -> LiveAnswer:
        """Return an answer with its length, its text and the reason for its end."""
        number = next(self.live.numbers)
        limit = min(max_tokens or self._max_model_len, self._max_model_len - len(prompt))
        natural = limit + 1 if body.ignore_eos else max(next(self.live.lengths), body.min_tokens)
        length = min(natural, limit)
        filler = self.texts.filler(number, length)
        text_len = len(filler.text)
        async for stop in self._turns.each(body.stops):
            cut = _stop(filler, stop, body.min_tokens)
            if cut is not None and cut[0] <= length:
                length, natural = cut[0], 0
                text_len = cut[1] + len(stop) * body.include_stop_str_in_output
                filler = Filler(filler.ids[:length], filler.text, filler.ends[:length])
        request = Request(
            index=number,
            prompt_len=len(prompt),
            output_len=length,
            arrived_at=at,
            priority=body.priority,
            max_tokens=limit,
            prompt_token_ids=prompt,
            output_token_ids=filler.ids,
        )
        answer = LiveAnswer(request, len(reply.answers), filler, reply)
        answer.finish = "stop" if natural <= limit else "length"
        answer.text_len = 0 if body.max_tokens == 0 else text_len
        return answer


def _stop(filler: Filler, stop: str, min_tokens: int) -> tuple[int, int] | None:
    """Return the tokens and characters after which a stop string ends an answer; or None."""
    first = int(filler.ends[min_tokens - 1]) if 0 < min_tokens <= len(filler.ends) else 0
    at = filler.text.find(stop, first)
    if at < 0:
        return None
    return int(np.searchsorted(filler.ends, at + len(stop))) + 1, at
