"""An observed run: a server found, a workload sent, and a run folder written."""

import asyncio
import gc
import os
import signal
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from specsim.core.errors import ConfigError
from specsim.reality.observe.client import INTERRUPTED, Client, Options, new_session
from specsim.reality.observe.observed_server import (
    Metrics,
    Server,
    base_url,
    find_server,
    read_metrics,
)
from specsim.reality.observe.outcome import Observation, request_row
from specsim.reality.observe.workload import Prompts, Sent, Workload, send_all
from specsim.reality.run_writer import RunWriter

_WARM_UP_LEN = 16
_INTERRUPTS = (signal.SIGINT, signal.SIGTERM)


def observe(
    url: str,
    workload: Workload,
    folder: Path,
    *,
    model: str | None = None,
    options: Options | None = None,
    on_progress: Callable[[int], None] | None = None,
) -> Observation:
    """Send a workload to a server and record what comes back, also until an interrupt.

    Args:
        url: Such as ``http://127.0.0.1:8000``. A key is taken from ``OPENAI_API_KEY``.
        folder: Gets ``requests.jsonl`` and ``meta.json``, request by request; see `RunWriter`.
        model: By default the only one that the server has.
        on_progress: Told the number of requests that have ended, each time one ends.

    Raises:
        ConfigError: An option is wrong, nothing answers at the URL, or not what is asked for.
    """
    options = options or Options()
    if options.own_fields:
        raise ConfigError(f"--body: {options.own_fields[0]} is set by the workload; leave it out")
    run = _Run(workload, folder, options, on_progress)
    return asyncio.run(run.go(base_url(url), model))


@dataclass(frozen=True)
class _Run:
    """One run, from finding the server to closing the folder."""

    workload: Workload
    folder: Path
    options: Options
    on_progress: Callable[[int], None] | None

    @property
    def prompts(self) -> Prompts:
        return Prompts(self.workload.seed, self.options.low_id, self.options.high_id)

    async def go(self, url: str, model: str | None) -> Observation:
        """Return what came of the run."""
        async with new_session(os.environ.get("OPENAI_API_KEY"), self.options.timeout) as session:
            server = await find_server(session, url, model)
            client = Client(session, server, self.options.body)
            requests = self.workload.requests
            prompts = [self.prompts.of(request) for request in requests]
            bodies = [
                client.encode(prompt, request.output_len, priority=request.priority)
                for request, prompt in zip(requests, prompts, strict=True)
            ]
            await self._warm_up(client)
            before = await read_metrics(session, url)
            found = Observation(server, len(requests))
            writer = RunWriter(self.folder, self._meta(server, before, found.notes))

            def ended(sent: Sent) -> None:
                found.sent.append(sent)
                writer.add_request(request_row(sent, prompts[sent.index]))
                if self.on_progress is not None:
                    self.on_progress(len(found.sent))

            gc.collect()
            gc.freeze()  # what is there stays: collecting around it would make the client late
            try:
                found.is_interrupted = await _until_interrupt(
                    send_all(client, self.workload, bodies, ended)
                )
                found.check(self.workload, before, await read_metrics(session, url))
                writer.update_meta(**found.to_dict())
                writer.close(complete=len(found.sent) == len(requests) and not found.is_interrupted)
            finally:
                gc.unfreeze()
                writer.close(complete=False)  # unless it has been
        return found

    async def _warm_up(self, client: Client) -> None:
        first = self.workload.requests[0]
        for number in range(self.options.num_warm_up):
            prompt = self.prompts.warm_up(number, first.prompt_len)
            length = min(first.output_len, _WARM_UP_LEN)
            answer = await client.ask(client.encode(prompt, length))
            if answer.error == INTERRUPTED:
                raise asyncio.CancelledError
            if answer.error is not None:
                raise ConfigError(
                    f"the warm-up request of {first.prompt_len} + {length} tokens failed: "
                    f"{answer.error}"
                )

    def _meta(self, server: Server, before: Metrics | None, notes: list[str]) -> dict[str, Any]:
        cache = before.cache_config if before is not None else {}
        engine, kv_cache = _engine_kwargs(self.workload.engine_kwargs, cache, notes)
        if server.max_model_len is not None:
            engine.setdefault("max_model_len", server.max_model_len)
        options = self.options
        return {
            "source": "specsim observe",
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "url": server.url,
            "model": server.model,
            **({"vllm_version": server.version} if server.version else {"engine": "unknown"}),
            "engine_kwargs": engine,
            "kv_cache": kv_cache,
            "seed": self.workload.seed,
            "random_ids": [options.low_id, options.high_id],
            "request_body": options.body,
            "num_warm_up": options.num_warm_up,
        }


def _engine_kwargs(
    said: dict[str, Any], cache: dict[str, str], notes: list[str]
) -> tuple[dict[str, Any], dict[str, int]]:
    """Return how the server was started, by the user and, where it tells, by itself; KV blocks."""
    engine = dict(said)
    kv_cache = {
        name: int(cache[name])
        for name in ("num_gpu_blocks", "block_size")
        if cache.get(name, "").isdigit()
    }
    told: dict[str, Any] = dict(kv_cache)
    if cache.get("enable_prefix_caching") in ("True", "False"):
        told["enable_prefix_caching"] = cache["enable_prefix_caching"] == "True"
    for name, value in told.items():
        if name in engine and engine[name] != value:
            notes.append(
                f"engine.{name} = {engine[name]} in the workload file, but the server has {value}: "
                "that was recorded"
            )
        engine.pop(name, None)
    if not said:
        notes.append(
            "how the server was started is not known: before specsim validate, complete "
            "engine_kwargs in meta.json, or give the workload file a section engine"
        )
    return engine | {n: v for n, v in told.items() if n not in kv_cache}, kv_cache


async def _until_interrupt(work: Awaitable[None]) -> bool:
    """Await something; return whether a signal ended it before its time."""
    task = asyncio.current_task()
    assert task is not None
    loop = asyncio.get_running_loop()
    for number in _INTERRUPTS:
        with suppress(NotImplementedError, RuntimeError):  # on Windows, outside the main thread
            loop.add_signal_handler(number, task.cancel)
    try:
        await work
    except asyncio.CancelledError:
        task.uncancel()
        return True
    finally:  # a second interrupt ends the program
        for number in _INTERRUPTS:
            with suppress(NotImplementedError, RuntimeError):
                loop.remove_signal_handler(number)
    return False
