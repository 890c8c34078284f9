"""A small server with the streaming interface of vLLM, and with faults where a test wants them.

Run as a program, ``openai_server.py PORT``, it is a server that a test can kill.
"""

import asyncio
import json
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

from aiohttp import web

STEP = 0.002  # seconds
DELIVERIES = (1, 3, 1, 4, 2)
"""Tokens that come at each step, over and over."""


ODD: dict[str, dict[str, Any]] = {
    "odd metrics": {"choices": [], "metrics": [1]},
    "fewer": {"choices": [{"text": " a"}], "usage": {"completion_tokens": -1}},
}
"""Events that are JSON, but not as agreed."""


@dataclass
class FakeVllm:
    """What the server is like, and what it has seen."""

    faults: dict[int, str] = field(default_factory=dict)
    """By the number of a request, warm-up included."""
    models: tuple[str, ...] = ("tiny",)
    step: float = STEP
    tells_ids: bool = True
    counts: bool = True
    has_metrics: bool = True
    tells_drafts: bool = False
    seen: list[dict[str, Any]] = field(default_factory=list)
    seen_at: list[float] = field(default_factory=list)
    keys: set[str] = field(default_factory=set)
    drafts: int = 0
    accepted: int = 0
    ended: int = 0

    def app(self) -> web.Application:
        app = web.Application()
        app.router.add_get("/v1/models", self._list)
        app.router.add_get("/version", self._version)
        app.router.add_get("/metrics", self._metrics)
        app.router.add_post("/v1/completions", self._complete)
        return app

    async def _list(self, request: web.Request) -> web.Response:
        return web.json_response(
            {"data": [{"id": name, "max_model_len": 2048} for name in self.models]}
        )

    async def _version(self, request: web.Request) -> web.Response:
        return web.json_response({"version": "0.32.0"})

    async def _metrics(self, request: web.Request) -> web.Response:
        if not self.has_metrics:
            raise web.HTTPNotFound
        labels = 'engine="0",model_name="tiny"'
        return web.Response(
            text=(
                "# HELP vllm:spec_decode_num_drafts_total Drafts.\n"
                "# TYPE vllm:spec_decode_num_drafts_total counter\n"
                f"vllm:spec_decode_num_drafts_total{{{labels}}} {self.drafts}\n"
                f"vllm:spec_decode_num_drafts_created{{{labels}}} 1.79e+09\n"
                f"vllm:spec_decode_num_draft_tokens_total{{{labels}}} {3 * self.drafts}\n"
                f"vllm:spec_decode_num_accepted_tokens_total{{{labels}}} {self.accepted}\n"
                f'vllm:request_success_total{{{labels},finished_reason="length"}} {self.ended}\n'
                f'vllm:cache_config_info{{block_size="16",num_gpu_blocks="500",'
                f'enable_prefix_caching="True"}} 1.0\n'
                "process_cpu_seconds_total 3.0\n"
            )
        )

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        self.seen_at.append(monotonic())
        asked = await request.json()
        fault = self.faults.get(len(self.seen), "")
        self.seen.append(asked)
        self.keys.add(request.headers.get("Authorization", ""))
        if fault == "500":
            error = {"message": "EngineCore\nencountered an issue", "code": 500}
            return web.json_response({"error": error}, status=500)
        if asked["model"] not in self.models:
            return web.json_response({"error": {"message": "no such model"}}, status=404)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await self._stream(response, request, asked, fault)
        return response

    async def _stream(
        self, response: web.StreamResponse, request: web.Request, asked: dict[str, Any], fault: str
    ) -> None:
        left, number, accepted = asked["max_tokens"], 0, []
        while left:
            await asyncio.sleep(self.step)
            count = min(left, DELIVERIES[number % len(DELIVERIES)])
            left, number = left - count, number + 1
            if number > 1:
                self.drafts += 1
                self.accepted += count - 1
                accepted.append(count - 1)
            await self._send(response, self._delta(asked, number, count, left))
            if fault and number == 2:
                await self._fail(response, request, fault)
                if fault != "silence":
                    return
        usage = {"completion_tokens": asked["max_tokens"]}
        event: dict[str, Any] = {"choices": [], "usage": usage}
        if self.tells_drafts:
            event["metrics"] = {
                "queue_time_ms": 1.5,
                "speculative_decoding": {
                    "per_step_accepted": accepted,
                    "per_step_drafted": [3] * len(accepted),
                },
            }
        if self.counts:
            await self._send(response, event)
        await response.write(b"data: [DONE]\n\n" if self.counts else b"data: [DONE]")
        self.ended += 1

    def _delta(self, asked: dict[str, Any], number: int, count: int, left: int) -> dict[str, Any]:
        choice: dict[str, Any] = {
            "index": 0,
            "text": " a" * count,
            "finish_reason": None if left else "length",
        }
        if self.tells_ids:
            choice["token_ids"] = [7] * count
            choice["prompt_token_ids"] = asked["prompt"] if number == 1 else None
        return {"id": "cmpl-1", "model": "tiny", "choices": [choice]}

    async def _send(self, response: web.StreamResponse, event: dict[str, Any]) -> None:
        await response.write(f"data: {json.dumps(event)}\n\n".encode())

    async def _fail(self, response: web.StreamResponse, request: web.Request, fault: str) -> None:
        if fault == "disconnect":
            assert request.transport is not None
            request.transport.abort()
        elif fault == "event":
            await self._send(response, {"error": {"message": "out of blocks", "code": 500}})
            await response.write(b"data: [DONE]\n\n")
        elif fault == "nonsense":
            await response.write(b"data: {not json\n\n")
        elif fault in ODD:
            await self._send(response, ODD[fault])
            await response.write(b"data: [DONE]\n\n")
        elif fault == "silence":
            await asyncio.sleep(30)
        # "short": the stream just ends, without the last event


@contextmanager
def serving(server: FakeVllm) -> Iterator[str]:
    """Let a server answer in a thread of its own; gives its address."""
    loop = asyncio.new_event_loop()
    runner = web.AppRunner(server.app(), shutdown_timeout=0.1)
    loop.run_until_complete(runner.setup())
    site = web.TCPSite(runner, "127.0.0.1", 0)
    loop.run_until_complete(site.start())
    port = runner.addresses[0][1]
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        asyncio.run_coroutine_threadsafe(runner.cleanup(), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


if __name__ == "__main__":
    web.run_app(FakeVllm(step=0.02).app(), host="127.0.0.1", port=int(sys.argv[1]))
