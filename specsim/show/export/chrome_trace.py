"""A run as a trace for Perfetto (ui.perfetto.dev) or chrome://tracing.

Each replica is a process: a track with its steps and preemptions, one with what its GPU does,
counters, and as many tracks for requests as it had at once. Format: "Trace Event Format" of
Chromium, JSON object with complete, instant, counter and metadata events; times in microseconds.
"""

import json
from collections.abc import Iterable, Iterator
from heapq import heappop, heappush
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from specsim.results.folder import ResultsFolder, RunTable, StepsTable

_STEPS_TRACK, _GPU_TRACK, _FIRST_REQUEST_TRACK = 1, 2, 10
_STEP_ARGS = (
    "num_requests", "batched_tokens", "context_tokens", "prefill_tokens", "draft_tokens",
    "accepted_tokens", "output_tokens",
)  # fmt: skip
_REQUEST_ARGS = (
    "prompt_len", "output_len", "cached_len", "preemptions", "drafts", "draft_tokens",
    "accepted_tokens",
)  # fmt: skip

Window = tuple[float, float]
Event = dict[str, Any]


def write_chrome_trace(
    run: ResultsFolder, stream: IO[str], window: Window = (0.0, float("inf"))
) -> int:
    """Write what touches a window of a run, seconds, as a trace; return the number of events."""
    count = 0
    head = {"displayTimeUnit": "ms", "otherData": {"source": "specsim", **run.provenance}}
    stream.write(json.dumps(head)[:-1] + ', "traceEvents": [')
    for event in _events(run, window):
        stream.write(",\n" if count else "\n")
        stream.write(json.dumps(event, separators=(",", ":")))
        count += 1
    stream.write("\n]}\n")
    return count


def _events(run: ResultsFolder, window: Window) -> Iterator[Event]:
    usable = int(run.own["num_gpu_blocks"]) - 1  # vLLM's null block holds nothing
    for replica in range(int(run.own["replicas"])):
        pid = replica + 1
        yield from _name(pid, 0, "process", f"replica {replica}")
        yield from _name(pid, _STEPS_TRACK, "thread", "steps")
        yield from _name(pid, _GPU_TRACK, "thread", "GPU")
        if replica in run.steps.replicas:
            steps = run.steps.of_replica(replica)
            touches = (steps["ended_at"] >= window[0]) & (steps["scheduled_at"] < window[1])
            yield from _step_events(steps.where(touches), pid, usable)
        yield from _request_events(run.requests, replica, window)


def _name(pid: int, tid: int, kind: str, name: str) -> Iterator[Event]:
    """Name a process or a track, and let it stand where its number says."""
    place = pid if kind == "process" else tid
    for event, args in (("name", {"name": name}), ("sort_index", {"sort_index": place})):
        yield {"ph": "M", "pid": pid, "tid": tid, "name": f"{kind}_{event}", "args": args}


def _nanoseconds(seconds: NDArray[Any]) -> list[int]:
    """Return times as whole nanoseconds: sums of them are exact, so that spans nest."""
    whole = np.round(np.asarray(seconds, dtype=np.float64) * 1e9).astype(np.int64)
    return list(map(int, whole))


def _span(track: tuple[int, int], name: str, start: int, end: int, **args: Any) -> Event:
    pid, tid = track
    event = {"ph": "X", "pid": pid, "tid": tid, "name": name, "ts": start / 1e3}
    return {**event, "dur": (end - start) / 1e3, **({"args": args} if args else {})}


def _step_events(steps: StepsTable, pid: int, usable: int) -> Iterator[Event]:
    if not len(steps):
        return
    scheduled, until = _nanoseconds(steps["scheduled_at"]), _nanoseconds(steps.held_until)
    started = _nanoseconds(steps["started_at"])
    verified = _nanoseconds(steps["started_at"] + steps["target_time"])
    drafted = _nanoseconds(steps["started_at"] + steps["target_time"] + steps["draft_time"])
    args = {name: steps[name].tolist() for name in _STEP_ARGS}
    kinds = _kinds(steps)
    preemptions = steps["preemptions"].tolist()
    for row, start in enumerate(scheduled):
        values = {name: column[row] for name, column in args.items()}
        yield _span((pid, _STEPS_TRACK), kinds[row], start, until[row], **values)
        yield _span((pid, _GPU_TRACK), "target", started[row], verified[row])
        if drafted[row] > verified[row]:
            yield _span((pid, _GPU_TRACK), "draft", verified[row], drafted[row])
        if preemptions[row]:
            yield {
                "ph": "i", "s": "t", "pid": pid, "tid": _STEPS_TRACK, "name": "preemption",
                "ts": start / 1e3, "args": {"requests": preemptions[row]},
            }  # fmt: skip
    yield from _counters(steps, pid, usable, scheduled, until)


def _kinds(steps: StepsTable) -> list[str]:
    prefill, batched = steps["prefill_tokens"], steps["batched_tokens"]
    kinds = np.select([prefill == 0, prefill == batched], ["decode", "prefill"], "mixed")
    return list(map(str, kinds))


def _counters(
    steps: StepsTable, pid: int, usable: int, scheduled: list[int], until: list[int]
) -> Iterator[Event]:
    """Yield each counter where it changes; between busy periods nothing runs or waits."""
    series: dict[str, dict[str, list[float]]] = {
        "requests": {
            "running": steps["num_running"].tolist(),
            "waiting": steps["num_waiting"].tolist(),
        },
        "KV blocks": {"used": (usable - steps["free_blocks"].astype(np.int64)).tolist()},
        "draft length": {"asked": steps["asked_draft_len"].astype(float).round(3).tolist()},
    }
    idle_after = [end < later for end, later in zip(until[:-1], scheduled[1:], strict=True)]
    for name, columns in series.items():
        shown: dict[str, float] = {}
        for row, (start, idles) in enumerate(zip(scheduled, [*idle_after, True], strict=True)):
            now = {key: values[row] for key, values in columns.items()}
            if now != shown:
                yield _counter(pid, name, start, now)
            shown = now
            if idles:
                shown = dict.fromkeys(columns, 0)
                yield _counter(pid, name, until[row], shown)


def _counter(pid: int, name: str, at: int, values: dict[str, float]) -> Event:
    return {"ph": "C", "pid": pid, "tid": 0, "name": name, "ts": at / 1e3, "args": values}


def _request_events(requests: RunTable, replica: int, window: Window) -> Iterator[Event]:
    pid = replica + 1
    is_mine = requests["replica"] == replica
    is_mine &= (requests["ended_at"] >= window[0]) & (requests["arrived_at"] < window[1])
    rows = np.flatnonzero(is_mine)
    rows = rows[np.argsort(requests["arrived_at"][rows], kind="stable")]
    times = [
        _nanoseconds(requests[name][rows])
        for name in ("arrived_at", "scheduled_at", "first_token_at", "ended_at")
    ]
    lanes = list(_lanes(times[0], times[3]))
    for lane in range(max(lanes, default=-1) + 1):
        yield from _name(pid, _FIRST_REQUEST_TRACK + lane, "thread", f"requests {lane}")
    for row, lane, *stamps in zip(rows.tolist(), lanes, *times, strict=True):
        arrived, scheduled, first, ended = stamps
        track = (pid, _FIRST_REQUEST_TRACK + lane)
        args = {name: int(requests[name][row]) for name in _REQUEST_ARGS}
        yield _span(track, f"request {int(requests['request'][row])}", arrived, ended, **args)
        yield _span(track, "queued", arrived, scheduled)
        yield _span(track, "prefill", scheduled, first)
        yield _span(track, "decode", first, ended)


def _lanes(starts: Iterable[int], ends: Iterable[int]) -> Iterator[int]:
    """Yield for each request, in order of arrival, the lowest track that is free."""
    free: list[int] = []
    busy: list[tuple[int, int]] = []
    count = 0
    for start, end in zip(starts, ends, strict=True):
        while busy and busy[0][0] <= start:
            heappush(free, heappop(busy)[1])
        if not free:
            heappush(free, count)
            count += 1
        lane = heappop(free)
        heappush(busy, (end, lane))
        yield lane
