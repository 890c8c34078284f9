"""The recorder's rows, from a scheduler of the shape of vLLM's; the real one: make test-vllm."""

import json
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from specsim.reality.clock import MachineClock
from specsim.reality.host_speed import HostSpeed
from specsim.reality.validation import load_run
from specsim.reality.vllm.recorder import Recorder


class FakeRequest(SimpleNamespace):
    def get_finished_reason(self) -> str:
        return str(self.reason)


class FakeEngine:
    """Plays vLLM: what it schedules and samples is said step by step."""

    def __init__(self, folder: Path, *, is_async: bool = False) -> None:
        self.recorder = Recorder(folder, {"engine_kwargs": {}}, is_async=is_async)
        self.folder = folder
        self.requests: dict[str, FakeRequest] = {}
        self.finished_req_ids: set[str] = set()
        pool = SimpleNamespace(get_num_free_blocks=lambda: 9)
        self.kv_cache_manager = SimpleNamespace(block_pool=pool)

    def get_request_counts(self) -> tuple[int, int]:
        return 0, 0

    def get_num_unfinished_requests(self) -> int:
        return len(self.requests)

    def add(self, name: str, prompt_len: int) -> FakeRequest:
        request = FakeRequest(
            request_id=name,
            arrival_time=time.time(),
            is_prefill_chunk=True,
            num_prompt_tokens=prompt_len,
            num_output_tokens=0,
            num_preemptions=0,
            num_computed_tokens=0,
            reason=None,
            prompt_token_ids=[],
            output_token_ids=[],
        )
        self.requests[name] = request
        self.recorder.arrived(request)
        return request

    def schedule(self, tokens: dict[str, int], drafts: dict[str, int] | None = None) -> Any:
        now = time.monotonic()
        drafts = drafts or {}
        self.finished_req_ids = set()
        old = [name for name in tokens if self.requests[name].num_computed_tokens]
        starts = {name: self.requests[name].num_computed_tokens for name in tokens}
        for name, count in tokens.items():
            request = self.requests[name]
            request.num_computed_tokens += count
            known = request.num_prompt_tokens + request.num_output_tokens
            request.is_prefill_chunk = request.num_computed_tokens < known
        output = SimpleNamespace(
            scheduled_new_reqs=[
                SimpleNamespace(req_id=name, num_computed_tokens=0)
                for name in tokens
                if name not in old
            ],
            scheduled_cached_reqs=SimpleNamespace(
                resumed_req_ids=set(), num_computed_tokens=[starts[name] for name in old]
            ),
            num_scheduled_tokens=dict(tokens),
            total_num_scheduled_tokens=sum(tokens.values()),
            scheduled_spec_decode_tokens={name: [7] * length for name, length in drafts.items()},
        )
        self.recorder.scheduled(self, output, now)
        return output

    def update(self, output: Any, emitted: dict[str, int], ended: str = "") -> None:
        names = list(output.num_scheduled_tokens)
        sampled = SimpleNamespace(
            sampled_token_ids=[[1] * emitted.get(name, 0) for name in names],
            req_id_to_index={name: row for row, name in enumerate(names)},
        )
        self.recorder.verified(self, output, sampled)
        for name, count in emitted.items():
            request = self.requests[name]
            request.num_output_tokens += count
            request.num_computed_tokens -= len(
                output.scheduled_spec_decode_tokens.get(name, ())
            ) - max(0, count - 1)
        if ended:
            self.requests.pop(ended).reason = "length"
            self.finished_req_ids.add(ended)
        self.recorder.updated(self)

    def rows(self, name: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.folder / name).read_text().splitlines()]


def test_a_step_of_the_run_before_is_not_taken_for_one_of_this(tmp_path: Path) -> None:
    engine = FakeEngine(tmp_path / "first", is_async=True)
    engine.add("a", 3)
    last = engine.schedule({"a": 3})
    late = engine.schedule({"a": 1})  # before it is known that `a` ends
    engine.update(last, {"a": 1}, ended="a")
    engine.recorder.close()
    engine.recorder = Recorder(tmp_path / "second", {"engine_kwargs": {}}, is_async=True)
    engine.folder = tmp_path / "second"
    engine.add("b", 5)
    one = engine.schedule({"b": 5})
    engine.update(late, {})
    time.sleep(0.01)
    two = engine.schedule({"b": 2}, {"b": 1})
    engine.update(one, {"b": 1})
    time.sleep(0.01)
    engine.update(two, {"b": 2}, ended="b")
    engine.recorder.close()
    steps = engine.rows("steps.jsonl")
    assert [(step["batched_tokens"], step["accepted_tokens"]) for step in steps] == [(5, 0), (2, 1)]
    assert all(step["seconds"] > 0.009 for step in steps)
    assert [step["requests"] for step in steps] == [[0], [0]]


def test_chunks_drafts_and_ends_are_recorded(tmp_path: Path) -> None:
    engine = FakeEngine(tmp_path / "run")
    engine.add("a", 6)
    engine.update(engine.schedule({"a": 4}), {})
    engine.update(engine.schedule({"a": 2}), {"a": 1})
    engine.add("b", 3)
    engine.update(engine.schedule({"a": 4, "b": 3}, {"a": 3}), {"a": 3, "b": 1})
    engine.update(engine.schedule({"a": 4, "b": 1}, {"a": 3}), {"a": 1, "b": 1}, ended="a")
    engine.update(engine.schedule({"b": 1}), {"b": 1}, ended="b")
    engine.recorder.close()
    steps = engine.rows("steps.jsonl")
    names = ("context_tokens", "batched_tokens", "prefill_tokens", "draft_tokens")
    assert [tuple(step[name] for name in names) for step in steps] == [
        (0, 4, 4, 0),
        (4, 2, 2, 0),
        (6, 7, 3, 3),
        (9 + 3, 5, 0, 3),
        (4, 1, 0, 0),
    ]
    assert [step["accepted_tokens"] for step in steps] == [0, 0, 2, 0, 0]
    assert (steps[2]["requests"], steps[2]["drafted"], steps[2]["accepted"]) == (
        [0, 1],
        [3, 0],
        [2, 0],
    )
    a, b = engine.rows("requests.jsonl")
    assert a["accepted"] == [[1, 3, 2], [4, 3, 0]]
    assert (a["output_toks"], b["output_toks"]) == (5, 3)
    assert "accepted" not in b
    # The first token comes with the last chunk, not with the first.
    assert steps[1]["started_at"] < a["first_token_ts"] <= steps[2]["started_at"]
    run = load_run(engine.folder)
    assert run.meta["complete"]
    assert (run.meta["num_steps"], run.meta["num_requests"]) == (5, 2)


def test_a_step_lasts_until_the_next_but_not_through_idle_time(tmp_path: Path) -> None:
    engine = FakeEngine(tmp_path / "run")
    engine.add("a", 2)
    output = engine.schedule({"a": 2})
    engine.update(output, {"a": 1})
    time.sleep(0.02)  # the engine's own work between output and next schedule
    engine.update(engine.schedule({"a": 1}), {"a": 1}, ended="a")
    time.sleep(0.05)  # nothing to do
    engine.add("b", 2)
    engine.update(engine.schedule({"b": 2}), {"b": 1}, ended="b")
    engine.recorder.close()
    first, second, _ = engine.rows("steps.jsonl")
    assert first["seconds"] >= 0.02
    assert first["started_at"] + first["seconds"] == pytest.approx(second["started_at"])
    assert second["seconds"] < 0.05


def test_a_probe_stops_the_clock(tmp_path: Path) -> None:
    """What `specsim.reality.vllm.scheduler` does with it; see also tests/vllm/run.py."""
    clock = MachineClock()
    recorder = Recorder(tmp_path / "run", {"engine_kwargs": {}}, is_async=False, clock=clock)
    recorder.probed(3.5, 0.25)
    begun = time.monotonic()
    clock.resume(clock.now() - 100.0)
    engine = FakeEngine(tmp_path / "other")
    engine.recorder = recorder
    engine.add("a", 2)
    recorder.close()
    folder = tmp_path / "run"
    [request] = [json.loads(line) for line in (folder / "requests.jsonl").read_text().splitlines()]
    assert begun - 101 < request["queued_ts"] < begun - 99
    speed = HostSpeed.of_run(folder)
    assert speed is not None
    assert (speed.at.tolist(), speed.seconds.tolist()) == ([3.5], [0.25])


def test_an_asynchronous_step_starts_when_the_one_before_ends(tmp_path: Path) -> None:
    engine = FakeEngine(tmp_path / "run", is_async=True)
    engine.add("a", 2)
    outputs = [engine.schedule({"a": 2})]
    engine.requests["a"].num_output_tokens = 0
    outputs.append(engine.schedule({"a": 1}))
    for ended in ("", "a"):
        time.sleep(0.02)
        engine.update(outputs.pop(0), {"a": 1}, ended=ended)
    engine.recorder.close()
    first, second = engine.rows("steps.jsonl")
    assert first["started_at"] + first["seconds"] == pytest.approx(second["started_at"])
    assert first["seconds"] >= 0.02  # no upper bounds: the machine may be away for a while
    assert second["seconds"] >= 0.02


def test_what_is_cut_off_or_ended_from_outside_says_so(tmp_path: Path) -> None:
    engine = FakeEngine(tmp_path / "run")
    for name in ("a", "b", "c"):
        engine.add(name, 2)
    engine.update(engine.schedule({"a": 2, "b": 2}), {"a": 1, "b": 1}, ended="a")
    engine.requests.pop("b").reason = "abort"
    engine.recorder.ended(["b"])
    engine.recorder.close()
    errors = [row.get("error") for row in engine.rows("requests.jsonl")]
    assert errors == [None, "ended by abort", "the engine stopped before it had ended"]
    assert len(errors) == len(engine.requests) + 2
    assert load_run(engine.folder).meta["complete"] is False
    assert load_run(engine.folder).num_failed == 2


def test_a_kill_loses_no_request(tmp_path: Path) -> None:
    engine = FakeEngine(tmp_path / "run")
    for name in ("a", "b"):
        engine.add(name, 2)
    engine.update(engine.schedule({"a": 2}), {"a": 1}, ended="a")
    run = load_run(engine.folder)  # as it is, without a close
    assert (len(run.runs[0]["arrived_at"]), run.num_failed) == (1, 1)
    assert run.meta["complete"] is False
    engine.recorder.close()


def test_a_settled_run_is_complete_until_more_arrives(tmp_path: Path) -> None:
    engine = FakeEngine(tmp_path / "run")
    engine.add("a", 2)
    engine.update(engine.schedule({"a": 2}), {"a": 1})
    engine.requests.pop("a").reason = "abort"
    engine.recorder.ended(["a"])
    engine.recorder.settle()
    meta = json.loads((engine.folder / "meta.json").read_text())
    assert (meta["complete"], meta["num_steps"], meta["num_requests"]) == (True, 1, 1)
    engine.add("b", 2)
    assert json.loads((engine.folder / "meta.json").read_text())["complete"] is False
    engine.recorder.settle()  # with b on its way, nothing is complete
    assert json.loads((engine.folder / "meta.json").read_text())["complete"] is False
    engine.recorder.close()
