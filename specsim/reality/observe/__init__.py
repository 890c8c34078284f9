"""Observe: send a workload of specsim to a real server.

The client is open loop: a request is sent at its time, whatever the server does, and the client's
own lateness is recorded. The results are written as the folder of a measured run, which ``specsim
validate`` reads.
"""

import asyncio
import gc
import os
import signal
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np
from numpy.typing import NDArray

from specsim.core.errors import ConfigError
from specsim.reality.observe.client import (
    INTERRUPTED,
    OWN_FIELDS,
    Client,
    Metrics,
    Options,
    Server,
    base_url,
    find_server,
    new_session,
    read_metrics,
)
from specsim.reality.observe.workload import Prompts, Sent, Workload, load_workload, send_all
from specsim.reality.run_writer import RequestRow, RunWriter
from specsim.results.metrics import latency, tpot, ttft

__all__ = ["Observation", "Options", "Workload", "load_workload", "observe"]

_LATE = 0.05  # seconds; a later client changes the load
_ENDED = "vllm:request_success_total"
_INTERRUPTS = (signal.SIGINT, signal.SIGTERM)


def observe(
    url: str,
    workload: Workload,
    folder: Path,
    *,
    model: str | None = None,
    options: Options | None = None,
    on_progress: Callable[[int], None] | None = None,
) -> "Observation":
    """Send a workload to a server and record the answers, also those before an interrupt.

    Raises a ConfigError if an option is wrong, or no suitable server answers at the URL.

    Args:
        url: Such as ``http://127.0.0.1:8000``. The key is taken from ``OPENAI_API_KEY``.
        folder: Gets ``requests.jsonl`` and ``meta.json``, request by request; see `RunWriter`.
        model: By default the only one that the server has.
        on_progress: Called at the end of each request with the number of ended requests.
    """
    options = options or Options()
    if own := sorted(OWN_FIELDS & options.body.keys()):
        raise ConfigError(f"--body: {own[0]} is set by the workload; leave it out")
    prompts = Prompts(workload.seed, options.low_id, options.high_id)
    run = _Run(workload, folder, options, prompts, on_progress)
    return asyncio.run(run.go(base_url(url), model))


@dataclass(frozen=True)
class _Run:
    workload: Workload
    folder: Path
    options: Options
    prompts: Prompts
    on_progress: Callable[[int], None] | None

    async def go(self, url: str, model: str | None) -> "Observation":
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
            found = Observation(server, len(requests), notes=[*self.workload.notes])
            writer = RunWriter(self.folder, self._meta(server, before, found.notes))

            def ended(sent: Sent) -> None:
                found.sent.append(sent)
                priority = requests[sent.index].priority
                writer.add_request(request_row(sent, prompts[sent.index], priority))
                if self.on_progress is not None:
                    self.on_progress(len(found.sent))

            gc.collect()
            gc.freeze()  # garbage collection of existing objects would make the client late
            try:
                found.is_interrupted = await _until_interrupt(
                    send_all(client, self.workload, bodies, ended)
                )
                found.check(self.workload, before, await read_metrics(session, url))
                writer.update_meta(**found.to_dict())
                writer.close(complete=len(found.sent) == len(requests) and not found.is_interrupted)
            finally:
                gc.unfreeze()
                writer.close(complete=False)  # unless it is already closed
        return found

    async def _warm_up(self, client: Client) -> None:
        first = self.workload.requests[0]
        for number in range(self.options.num_warm_up):
            prompt = self.prompts.warm_up(number, first.prompt_len)
            length = min(first.output_len, 16)
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
            **self._policy(notes),
            **self._replicas(before, engine, notes),
            "kv_cache": kv_cache,
            "seed": self.workload.seed,
            "random_ids": [options.low_id, options.high_id],
            "request_body": options.body,
            "num_warm_up": options.num_warm_up,
        }

    def _replicas(
        self, before: Metrics | None, engine: dict[str, Any], notes: list[str]
    ) -> dict[str, Any]:
        """Return the number of engines by the user and by the server's counters, as fields."""
        told, said = before.num_engines if before is not None else 0, self.workload.replicas
        ranks = engine.get("data_parallel_size") or 1
        if told and told != said.get("replicas", 1) * ranks:
            notes.append(
                f"the server's metrics are of {told} engines, those of the workload file are "
                f"{said.get('replicas', 1) * ranks}: before specsim validate, say replicas and "
                "routing, or engine_kwargs.data_parallel_size, in meta.json"
            )
        return said | ({"num_engines": told} if told else {})

    def _policy(self, notes: list[str]) -> dict[str, Any]:
        """Return the policy that the user says the server has; servers do not report it."""
        policy = self.workload.policy
        if policy is None:
            return {}
        notes.append(
            f"policy = {policy} of the workload file was recorded as the server's, and specsim "
            "validate simulates it: remove it from meta.json if the server has none"
        )
        return {"policy": policy}


def _engine_kwargs(
    said: dict[str, Any], cache: dict[str, str], notes: list[str]
) -> tuple[dict[str, Any], dict[str, int]]:
    """Return the server's options, by the user and by the server; and its KV blocks."""
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
    """Await some work; return whether a signal interrupted it."""
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


@dataclass
class Observation:
    """The results of an observed run."""

    server: Server
    num_planned: int
    sent: list[Sent] = field(default_factory=list)
    server_metrics: dict[str, float] = field(default_factory=dict)  # growth of the counters
    notes: list[str] = field(default_factory=list)  # what to know before trusting the numbers
    is_interrupted: bool = False

    @property
    def answered(self) -> list[Sent]:
        return [sent for sent in self.sent if sent.answer.error is None]

    @property
    def errors(self) -> Counter[str]:
        return Counter(sent.answer.error for sent in self.sent if sent.answer.error is not None)

    @property
    def lateness(self) -> NDArray[np.float64]:
        return np.array([sent.lateness for sent in self.sent])

    def latencies(self) -> dict[str, NDArray[np.float64]]:
        """Return the latencies of the answered requests, seconds, by vLLM's names.

        ``ttft``, ``tpot`` and ``e2el`` per request, ``itl`` per delivery after the first; ``ttft``
        and ``e2el`` count from when the request was sent.
        """
        answers = [sent.answer for sent in self.answered]
        times = [[time for time, _ in answer.deliveries] for answer in answers]
        requests = {
            "arrived_at": np.array([answer.sent_at for answer in answers]),
            "first_token_at": np.array([stamps[0] for stamps in times]),
            "ended_at": np.array([stamps[-1] for stamps in times]),
            "output_len": np.array([answer.num_tokens for answer in answers]),
        }
        return {
            "ttft": ttft(requests),
            "tpot": tpot(requests),
            "itl": np.concatenate([np.diff(stamps) for stamps in times]) if times else np.zeros(0),
            "e2el": latency(requests),
        }

    @property
    def output_rate(self) -> float:
        """Output tokens per second, from the first request sent to the last token."""
        if not self.answered:
            return 0.0
        start = min(sent.answer.sent_at for sent in self.answered)
        end = max(sent.answer.deliveries[-1][0] for sent in self.answered)
        return sum(sent.answer.num_tokens for sent in self.answered) / max(end - start, 1e-9)

    def speculation(self) -> dict[str, float]:
        """Return the metrics of speculation by the server's counters; empty without speculation.

        ``acceptance_rate`` is accepted over drafted tokens; ``acceptance_length``, as vLLM has it,
        1 + accepted tokens over drafts.
        """
        drafts, tokens, accepted = (
            self.server_metrics.get(f"vllm:spec_decode_num_{name}_total", 0.0)
            for name in ("drafts", "draft_tokens", "accepted_tokens")
        )
        if not drafts or not tokens:
            return {}
        return {"acceptance_rate": accepted / tokens, "acceptance_length": 1.0 + accepted / drafts}

    def to_dict(self) -> dict[str, Any]:
        """Return the run's fields of ``meta.json``."""
        late = self.lateness * 1e3 if self.sent else np.zeros(1)
        return {
            "client": {
                "num_planned": self.num_planned,
                "num_sent": len(self.sent),
                "num_answered": len(self.answered),
                "num_failed": self.errors.total(),
                "errors": dict(self.errors),
                "interrupted": self.is_interrupted,
                "lateness_ms": {
                    "mean": float(late.mean()),
                    "p99": float(np.percentile(late, 99)),
                    "max": float(late.max()),
                },
            },
            "server_metrics": self.server_metrics,
            "notes": self.notes,
        }

    def check(self, workload: Workload, before: Metrics | None, after: Metrics | None) -> None:
        if self.sent and (late := float(np.percentile(self.lateness, 99))) > _LATE:
            self.notes.append(
                f"the client sent 1 % of the requests {late * 1e3:,.0f} ms late or more: the load "
                "was not quite the one that was asked for"
            )
        asked = [workload.requests[sent.index].output_len for sent in self.answered]
        got = [sent.answer.num_tokens for sent in self.answered]
        if asked != got:
            number = sum(one != other for one, other in zip(asked, got, strict=True))
            self.notes.append(f"{number} answers have another length than was asked for")
        if before is None or after is None:
            when = "before" if before is None else "after"
            self.notes.append(f"the server's /metrics did not answer {when} the run: no counters")
        else:
            self._count(before, after)

    def _count(self, before: Metrics, after: Metrics) -> None:
        self.server_metrics = after.since(before)
        if not self.server_metrics:
            self.notes.append("the server's counters fell during the run: it was restarted")
        if before.values.get("vllm:num_requests_running", 0.0) > 0:
            self.notes.append("the server was busy with other requests when the run began")
        names = [name for name in self.server_metrics if name.startswith(_ENDED)]
        ended = round(sum(self.server_metrics[name] for name in names))
        if ended > len(self.sent):
            self.notes.append(
                f"the server ended {ended:,} requests, but only {len(self.sent):,} were sent from "
                "here: others used it at the same time"
            )


def request_row(sent: Sent, prompt: NDArray[np.int64], priority: int = 0) -> RequestRow:
    """Return the row of a request.

    It has ``scheduled_ts`` if the server reports queue times, and ``accepted`` if the server
    reports the outcome of every draft and every output token belongs to one.
    """
    answer = sent.answer
    times = [time for time, _ in answer.deliveries]
    queued_ms = answer.metrics.get("queue_time_ms")
    if not isinstance(queued_ms, int | float):  # servers may report anything
        queued_ms = None
    row: RequestRow = {
        "request_id": f"request-{sent.index}",
        "input_toks": len(prompt),
        "output_toks": answer.num_tokens,
        "arrival_time": sent.due_at,
        "queued_ts": answer.sent_at,
        "scheduled_ts": None if queued_ms is None else answer.sent_at + queued_ms / 1e3,
        "first_token_ts": times[0] if times else None,
        "last_token_ts": times[-1] if times else None,
        "deliveries": answer.deliveries,
        "input_tok_ids": prompt.tolist(),
    }
    if priority:
        row["priority"] = priority
    if answer.token_ids and len(answer.token_ids) == answer.num_tokens:  # of every event
        row["output_tok_ids"] = answer.token_ids
    accepted = accepted_drafts(answer.metrics, [count for _, count in answer.deliveries])
    if accepted is not None:
        row["accepted"] = accepted
    if answer.error is not None:
        row["error"] = answer.error
    return row


def accepted_drafts(metrics: dict[str, Any], counts: list[int]) -> list[list[int]] | None:
    """Return the outcome of each draft; None if vLLM's metrics of the request do not determine it.

    ``vllm serve --per-request-spec-decode-metrics detailed`` lists, in the last event, the steps
    with a draft, but not their output positions. With one delivery per step (of `counts` tokens)
    these are known if all steps had a draft, or if every draft had an accepted token, so that steps
    without a draft have a single token.
    """
    found = metrics.get("speculative_decoding")
    if not isinstance(found, dict) or not counts:
        return None
    drafted, accepted = found.get("per_step_drafted"), found.get("per_step_accepted")
    if not (_are_lens(drafted) and _are_lens(accepted)):
        return None
    ends = np.cumsum(counts).tolist()
    steps = list(zip(ends[:-1], counts[1:], strict=True))  # (tokens before it, tokens it delivered)
    if len(steps) != len(accepted):
        *earlier, last = steps or [(0, 0)]
        steps = [step for step in earlier if step[1] > 1]
        if 0 in accepted:
            return None
        if len(steps) < len(accepted):  # the last may be cut at the answer's end
            steps.append(last)
    if not len(steps) == len(accepted) == len(drafted):
        return None
    brought = [count for _, count in steps]
    expected = [accepted_len + 1 for accepted_len in accepted]
    if brought[:-1] != expected[:-1] or brought[-1:] > expected[-1:]:
        return None
    positions = (position for position, _ in steps)
    return list(map(list, zip(positions, drafted, accepted, strict=True)))


def _are_lens(found: object) -> TypeGuard[list[int]]:
    return isinstance(found, list) and all(isinstance(length, int) for length in found)
