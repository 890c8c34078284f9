"""The recorder inside a vLLM engine: turns what the scheduler reports into rows of a run folder.

The time of each step's recording delays the users, so copies of lists replace loops over a step's
requests where possible; ``meta.json`` gets the total time that recording took.
"""

import time
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from specsim.reality.clock import Clock
from specsim.reality.run_writer import RequestRow, RunWriter, StepRow


@dataclass(slots=True)
class _Live:
    number: int
    request: Any
    queued_at: float
    scheduled_at: float | None = None
    first_token_at: float | None = None
    accepted: list[tuple[int, int, int]] = field(default_factory=list)


@dataclass(slots=True)
class _Step:
    output: Any  # SchedulerOutput of the step, which comes back at its end
    row: StepRow
    first_tokens: list[_Live]  # requests that get their first token from it


class Recorder:
    """Records one run; each method raises a ConfigError if something cannot be written.

    An asynchronous engine schedules steps before earlier ones have ended. Token ids are written if
    `has_tokens`.
    """

    def __init__(
        self,
        folder: Path,
        meta: dict[str, Any],
        *,
        is_async: bool,
        has_tokens: bool = False,
        clock: Clock | None = None,
    ) -> None:
        self._writer = RunWriter(folder, meta)
        self._is_async = is_async
        self._has_tokens = has_tokens
        self._clock = clock or Clock()
        self._live: dict[str, _Live] = {}
        self._numbers: dict[str, int] = {}
        self._in_prefill: set[str] = set()  # whose last chunk left known tokens over
        self._in_flight: deque[_Step] = deque()
        self._ends_foreign_step = False  # a step scheduled before the recording began
        self._open: _Step | None = None  # a synchronous step, until the next one is scheduled
        self._known_ended: set[str] = set()
        self._is_settled = False
        self._num_requests = self._num_steps = 0
        self._ended_at = self._own_time = self._step_time = 0.0

    def arrived(self, request: Any) -> None:
        if request.request_id in self._live:
            return  # more input for a known session
        if self._is_settled:
            self._is_settled = False
            self._writer.mark(complete=False)
        # The front end uses the wall clock; the engine may accept a request later.
        waited = max(0.0, time.time() - request.arrival_time)
        live = _Live(self._num_requests, request, self._clock.now() - waited)
        self._live[request.request_id] = live
        self._numbers[request.request_id] = live.number
        self._num_requests += 1
        # At once: a server may be killed at any time, by default right after a SIGTERM.
        self._write_request(live, None, "had not ended when the recording did")

    def scheduled(self, scheduler: Any, output: Any, started_at: float) -> None:
        """Record a scheduled step; `started_at` is when its scheduling began."""
        begun = time.perf_counter()
        if self._open is not None:
            self._write(self._open, started_at)
            self._open = None
        new = [(data.req_id, data.num_computed_tokens) for data in output.scheduled_new_reqs]
        cached, scheduled = output.scheduled_cached_reqs, output.num_scheduled_tokens
        for request_id, _ in new:
            if (live := self._live.get(request_id)) is not None:
                live.scheduled_at = started_at
        prefills = {request_id for request_id, _ in new} | cached.resumed_req_ids
        if self._in_prefill:
            prefills |= self._in_prefill & scheduled.keys()
        first_tokens = []
        for request_id in prefills:
            request = scheduler.requests[request_id]
            if request.is_prefill_chunk:
                self._in_prefill.add(request_id)
                continue
            self._in_prefill.discard(request_id)
            known = self._live.get(request_id)
            if known is not None and known.first_token_at is None:
                first_tokens.append(known)
        row: StepRow = {
            "started_at": started_at,
            "seconds": 0.0,
            "context_tokens": sum([length for _, length in new]) + sum(cached.num_computed_tokens),
            "batched_tokens": output.total_num_scheduled_tokens,
            "num_requests": len(scheduled),
            "prefill_tokens": sum([scheduled[request_id] for request_id in prefills]),
            "draft_tokens": sum(map(len, output.scheduled_spec_decode_tokens.values())),
            "accepted_tokens": 0,
            "num_waiting": scheduler.get_request_counts()[1],
            "free_blocks": scheduler.kv_cache_manager.block_pool.get_num_free_blocks(),
            "scheduled": list(scheduled.values()),
        }
        self._in_flight.append(_Step(output, row, first_tokens))
        self._own_time += time.perf_counter() - begun

    def verified(self, scheduler: Any, output: Any, model_output: Any) -> None:
        """Record what a step accepted, before the scheduler processes it."""
        begun = time.perf_counter()
        # Requests of an asynchronous engine's last run may have ended while a step was in flight.
        foreign = not self._in_flight or self._in_flight[0].output is not output
        self._ends_foreign_step = foreign
        if foreign:
            return
        row, drafts = self._in_flight[0].row, output.scheduled_spec_decode_tokens
        self._known_ended = set(scheduler.finished_req_ids)
        live, numbers = self._live, self._numbers
        row["requests"] = [numbers.get(each, -1) for each in output.num_scheduled_tokens]
        if drafts and (tokens := model_output.sampled_token_ids):
            num_tokens, rows = list(map(len, tokens)), model_output.req_id_to_index
            accepted_lens = dict.fromkeys(output.num_scheduled_tokens, 0)
            drafted_lens = accepted_lens.copy()
            for request_id, draft in drafts.items():
                entry, emitted_len = live.get(request_id), num_tokens[rows[request_id]]
                if entry is None or not emitted_len:
                    continue  # ended meanwhile
                accepted_lens[request_id] = accepted_len = emitted_len - 1
                drafted_lens[request_id] = draft_len = len(draft)
                position = entry.request.num_output_tokens
                entry.accepted.append((position, draft_len, accepted_len))
            row["drafted"] = list(drafted_lens.values())
            row["accepted"] = list(accepted_lens.values())
            row["accepted_tokens"] = sum(accepted_lens.values())
        self._own_time += time.perf_counter() - begun

    def updated(self, scheduler: Any) -> None:
        """Record that the output of the oldest step has been processed."""
        now, begun = self._clock.now(), time.perf_counter()
        if self._ends_foreign_step:
            self._ended_at = now
            return
        step = self._in_flight.popleft()
        for live in step.first_tokens:
            if live.request.num_output_tokens:
                live.first_token_at = now
        if self._is_async:
            # It ran after the previous step had ended, however early it was scheduled.
            step.row["started_at"] = max(step.row["started_at"], self._ended_at)
        if not self._is_async and scheduler.get_num_unfinished_requests():
            self._open = step
        else:
            self._write(step, now)
        self._ended_at = now
        for request_id in scheduler.finished_req_ids - self._known_ended:
            self._end(request_id, now)
        self._own_time += time.perf_counter() - begun

    def ended(self, request_ids: list[str]) -> None:
        for request_id in request_ids:
            self._end(request_id, self._clock.now())

    def probed(self, at: float, seconds: float) -> None:
        self._writer.add_probe(at, seconds)

    def settle(self) -> None:
        """Mark the run complete so far, since the engine may be killed at any time."""
        self._write_totals()
        self._is_settled = not self._live
        self._writer.mark(complete=self._is_settled)

    def close(self) -> None:
        """Write the rest; the run is complete if all its requests have ended."""
        is_complete = not self._live
        for request_id in list(self._live):
            self._end(request_id, self._clock.now(), "the engine stopped before it had ended")
        self._write_totals()
        self._writer.close(complete=is_complete)

    def _write_totals(self) -> None:
        if self._open is not None:
            self._write(self._open, self._ended_at)
            self._open = None
        self._writer.update_meta(
            num_requests=self._num_requests,
            num_steps=self._num_steps,
            recorder={
                "seconds": self._own_time,
                "step_seconds": self._step_time,
                "share_of_steps": self._own_time / self._step_time if self._step_time else 0.0,
                "us_per_step": 1e6 * self._own_time / max(1, self._num_steps),
            },
        )

    def _write(self, step: _Step, ended_at: float) -> None:
        step.row["seconds"] = ended_at - step.row["started_at"]
        self._step_time += step.row["seconds"]
        self._num_steps += 1
        self._writer.add_step(step.row)

    def _end(self, request_id: str, now: float, error: str | None = None) -> None:
        live = self._live.pop(request_id, None)
        if live is None:
            return
        del self._numbers[request_id]
        self._in_prefill.discard(request_id)
        reason = str(live.request.get_finished_reason())
        if error is None and reason in ("abort", "error"):  # of vLLM's FinishReason
            error = f"ended by {reason}"
        self._write_request(live, now, error)

    def _write_request(self, live: _Live, ended_at: float | None, error: str | None) -> None:
        request = live.request
        row: RequestRow = {
            "request_id": request.request_id,
            "number": live.number,
            "input_toks": request.num_prompt_tokens,
            "output_toks": request.num_output_tokens,
            "arrival_time": request.arrival_time,
            "queued_ts": live.queued_at,
            "scheduled_ts": live.scheduled_at,
            "first_token_ts": live.first_token_at,
            "last_token_ts": None if error else ended_at,
            "preemptions": request.num_preemptions,
        }
        if live.accepted:
            row["accepted"] = live.accepted
        if error:
            row["error"] = error
        if self._has_tokens and ended_at is not None:
            row["input_tok_ids"] = list(request.prompt_token_ids)
            row["output_tok_ids"] = list(request.output_token_ids)
        self._writer.add_request(row)
