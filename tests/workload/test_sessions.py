"""Sessions: whose turns wait for each other, and what the prefix cache has of them."""

import json
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from specsim.core.errors import ConfigError, TraceError
from specsim.core.request import Request
from specsim.core.rng import generator
from specsim.results.folder import ResultsFolder
from specsim.run.experiment import Experiment
from specsim.run.simulate import simulate
from specsim.run.summary import Summary
from specsim.workload import WorkloadConfig
from specsim.workload.lengths import LENGTHS
from specsim.workload.readers import read_trace
from specsim.workload.readers.native import write_trace

FIELDS: dict[str, Any] = {
    "kind": "sessions",
    "turns": {"mean": 4, "sigma": 0.6},
    "first_prompt": {"mean": 80, "sigma": 0.5},
    "new_input": {"mean": 30, "sigma": 0.5},
    "output": {"mean": 20, "sigma": 0.5},
    "shared_prompt": 32,
    "think_time": {"mean": 2.0, "sigma": 0.5},
    "tool_share": 0.5,
    "tool_time": 0.25,
    "max_len": 900,
}
POISSON = {"kind": "poisson", "rate": 2.0}


def build(arrivals: Any, *, seed: int = 3, **fields: Any) -> list[Request]:
    lengths = {**FIELDS, **fields.pop("lengths", {})}
    config = {"arrivals": arrivals, "lengths": lengths, "num_requests": 120, **fields}
    return list(WorkloadConfig.model_validate(config).build(seed).requests())


def by_session(requests: Sequence[Request]) -> list[list[Request]]:
    found: dict[int | None, list[Request]] = {}
    for request in requests:
        found.setdefault(request.session, []).append(request)
    return list(found.values())


def turn_pairs(requests: Sequence[Request]) -> list[tuple[Request, Request]]:
    """Return each turn but the last of its session, and the one after it."""
    found = [pair for turns in by_session(requests) for pair in pairwise(turns)]
    assert len(found) > 20
    return found


def test_prompts_grow_by_answers_and_new_input() -> None:
    requests = build(POISSON)
    assert len(requests) == 120
    assert max(len(turns) for turns in by_session(requests)) > 4
    for turns in by_session(requests):
        assert [each.turn for each in turns] == list(range(1, len(turns) + 1))
        for before, after in pairwise(turns):
            assert after.prompt_len > before.prompt_len + before.output_len
            assert after.prompt_len + after.output_len <= 900
            assert after.think_time > 0
        assert turns[0].think_time == 0


def test_blocks_of_prompts_and_answers_are_found_again() -> None:
    first, second, *_ = next(turns for turns in by_session(build(POISSON)) if len(turns) > 1)
    total = (first.prompt_len + first.output_len) // 16
    assert list(first.block_keys(16))[:total] == list(second.block_keys(16))[:total]
    other = next(each for each in build(POISSON) if each.session != first.session)
    agree = [a == b for a, b in zip(first.block_keys(16), other.block_keys(16), strict=False)]
    assert agree.index(False) == 2  # the 32 tokens that all share


def test_means_are_met() -> None:
    lengths = LENGTHS.parse({**FIELDS, "max_len": None, "tool_share": 0.3})
    trace = lengths.draw_sessions(generator(1, "lengths"), 40_000)
    turns = np.bincount(trace.sessions)
    assert turns.mean() == pytest.approx(4.0, rel=0.03)
    assert trace.output_lens.mean() == pytest.approx(20, rel=0.02)
    waits = trace.think_times[trace.think_times > 0]
    assert waits.mean() == pytest.approx(0.7 * 2.0 + 0.3 * 0.25, rel=0.02)
    assert np.isclose(waits, 0.25).mean() == pytest.approx(0.3, abs=0.01)


@pytest.mark.parametrize("sigma", [0.0, 0.5])
@pytest.mark.parametrize("mean", [10.0, 0.7])
def test_twice_the_think_time_waits_exactly_twice_as_long(mean: float, sigma: float) -> None:
    def waits(mean: float) -> list[float]:
        think_time = {"mean": mean, "sigma": sigma}
        fields = {**FIELDS, "tool_share": 0.0, "think_time": think_time}
        return [request.think_time for request in build(POISSON, lengths=fields)]

    assert waits(2 * mean) == [2 * wait for wait in waits(mean)]
    assert sigma or set(waits(mean)) == {0.0, mean}  # first turns wait for nobody


def test_a_mean_may_be_written_with_an_exponent() -> None:
    """YAML 1.1 takes 2e0 for text, which was refused as no mapping."""
    plain, text = (build(POISSON, lengths={"think_time": each}) for each in (2, "2e0"))
    assert [each.think_time for each in plain] == [each.think_time for each in text]
    with pytest.raises(ValueError, match=r"lengths.think_time.mean"):
        build(POISSON, lengths={"think_time": "long"})


def test_arrivals_are_those_of_sessions() -> None:
    starts = [turns[0].arrived_at for turns in by_session(build(POISSON))]
    assert starts == sorted(starts)
    other = [turns[0].arrived_at for turns in by_session(build({**POISSON, "rate": 4.0}))]
    assert np.allclose(starts, 2 * np.array(other))
    whole = build(POISSON, num_requests=None, duration=20.0)
    assert max(each.arrived_at for each in whole) < 20.0
    assert len(by_session(whole)) == pytest.approx(40, abs=4 * 40**0.5)


def test_a_trace_says_when_sessions_start() -> None:
    arrivals = {"kind": "trace", "path": "traces/chat.parquet"}
    recorded = read_trace(Path("traces/chat.parquet")).arrived_at
    assert recorded is not None
    starts = [turns[0].arrived_at for turns in by_session(build(arrivals))]
    assert starts == recorded[: len(starts)].tolist()


def ran(tiny: Callable[..., Experiment], **changes: Any) -> Summary:
    workload = {"arrivals": POISSON, "lengths": FIELDS, "num_requests": 80}
    engine = {"num_gpu_blocks": 4000, "max_model_len": 1024, "enable_prefix_caching": True}
    fields = {"workload": workload, "engine": engine, "acceptance": None, **changes}
    return Summary(simulate(tiny(**fields), check=True))


@pytest.mark.parametrize("replicas", [1, 3])
def test_a_turn_comes_a_think_time_after_the_one_before(
    replicas: int, tiny: Callable[..., Experiment]
) -> None:
    summary = ran(tiny, replicas=replicas)
    rows = summary.tables.requests
    for before, after in turn_pairs(summary.run.requests):
        wait = rows["arrived_at"][after.index] - rows["ended_at"][before.index]
        assert wait == pytest.approx(after.think_time, abs=1e-9)


def test_a_fixed_number_of_sessions_is_open(tiny: Callable[..., Experiment]) -> None:
    workload = {
        "arrivals": {"kind": "closed_loop", "concurrency": 3},
        "lengths": FIELDS,
        "num_requests": 80,
    }
    rows = ran(tiny, workload=workload).request_columns
    starts = np.array(
        [rows["arrived_at"][rows["session"] == s].min() for s in set(rows["session"])]
    )
    ends = np.array([rows["ended_at"][rows["session"] == s].max() for s in set(rows["session"])])
    is_open = [int(((starts <= at) & (ends > at)).sum()) for at in np.sort(starts)]
    assert max(is_open) == 3
    assert is_open[3:-3] == [3] * (len(is_open) - 6)


@pytest.mark.parametrize(
    "arrivals", [{"kind": "closed_loop", "concurrency": 2}, {"kind": "poisson", "rate": 9.0}]
)
def test_recorded_turns_wait_for_clients_and_not_for_when_they_were_recorded(
    arrivals: dict[str, Any], tiny: Callable[..., Experiment], tmp_path: Path
) -> None:
    turns = [
        {"session": number, "arrived_at": 500.0 * number + turn, "think_time": 0.25 * turn}
        for number in range(24)
        for turn in range(2)
    ]
    path = tmp_path / "far-apart.jsonl"
    path.write_text(
        "".join(f"{json.dumps({**t, 'prompt_len': 9, 'output_len': 3})}\n" for t in turns)
    )
    workload = {"arrivals": arrivals, "lengths": {"kind": "trace", "path": str(path)}}
    summary = ran(tiny, workload=workload)
    rows = summary.tables.requests
    for before, after in turn_pairs(summary.run.requests):
        wait = rows["arrived_at"][after.index] - rows["ended_at"][before.index]
        assert wait == pytest.approx(0.25, abs=1e-9)
    assert rows["ended_at"].max() < 20.0


def test_each_recorded_arrival_begins_a_session_of_another_file(tmp_path: Path) -> None:
    arrivals, sessions = tmp_path / "arrivals.csv", tmp_path / "sessions.jsonl"
    times = "".join(f"{n},9,3\n" for n in range(8))
    arrivals.write_text(f"arrived_at,num_prefill_tokens,num_decode_tokens\n{times}")
    turns = [{"session": n, "prompt_len": 9 + turn, "output_len": 3} for n in range(5)
             for turn in range(3)]  # fmt: skip
    sessions.write_text("".join(f"{json.dumps(turn)}\n" for turn in turns))

    def built(**fields: Any) -> list[float]:
        replay = {"kind": "trace", "path": str(arrivals), **fields.pop("arrivals", {})}
        lengths = {"kind": "trace", "path": str(sessions)}
        config = WorkloadConfig.model_validate({"arrivals": replay, "lengths": lengths, **fields})
        trace = config.build(0)
        assert trace.arrived_at is not None
        return trace.arrived_at.tolist()

    # Three arrivals had begun one session: the file's first three rows.
    assert built(arrivals={"window": [0, 3]}) == [0.0] * 3 + [1.0] * 3 + [2.0] * 3
    assert built(num_requests=7) == [0.0] * 3 + [1.0] * 3 + [2.0]
    with pytest.raises(ConfigError, match="has 5 sessions, and each of the 8 arrivals begins one"):
        built()


@pytest.mark.parametrize("arrivals", [POISSON, {"kind": "closed_loop", "concurrency": 2}])
@pytest.mark.parametrize("first", ["before", "after"])
def test_sessions_are_not_taken_apart_by_a_shift(first: str, arrivals: dict[str, Any]) -> None:
    single = {"kind": "constant", "prompt": 20, "output": 5}
    other = {"before": "after", "after": "before"}[first]
    shift = {"kind": "shift", "at": 0.5, first: FIELDS, other: single}
    workload = {"arrivals": arrivals, "lengths": shift, "num_requests": 40}
    with pytest.raises(ConfigError, match=f"requests of '{first}' are in sessions and those of"):
        WorkloadConfig.model_validate(workload).build(0)
    workload["lengths"] = {**shift, other: {**FIELDS, "turns": 2}}
    trace = WorkloadConfig.model_validate(workload).build(0)
    assert trace.sessions is not None
    assert trace.think_times is not None
    assert trace.num_sessions < 40


@pytest.mark.parametrize("first", ["before", "after"])
def test_a_shift_keeps_what_one_side_knows_of_when_turns_come(first: str, tmp_path: Path) -> None:
    """Turns of the other come as soon as the one before has ended, as without a shift."""
    row = {"prompt_len": 9, "output_len": 3, "session": "a", "arrived_at": 0.0}
    agents = [
        {**row, "think_time": 2.5 * bool(n), "after_turns": [] if n == 0 else [1]} for n in range(3)
    ]
    paths = [tmp_path / name for name in ("agents.jsonl", "plain.jsonl")]
    for path, rows in zip(paths, (agents, [row] * 3), strict=True):
        path.write_text("".join(f"{json.dumps(each)}\n" for each in rows))
    sources = [{"kind": "trace", "path": str(path)} for path in paths]
    if first == "after":
        sources.reverse()
    shift = {"kind": "shift", "at": 0.5, "before": sources[0], "after": sources[1]}
    trace = WorkloadConfig.model_validate({"arrivals": "burst", "lengths": shift}).build(0)
    requests = sorted(trace.requests(), key=lambda each: (each.session, each.turn))
    found = [(each.think_time, each.after_turns) for each in requests]
    agents_first = [(0.0, ()), (2.5, (1,)), (2.5, (1,))], [(0.0, ()), (0.0, (1,)), (0.0, (2,))]
    parts = agents_first if first == "before" else agents_first[::-1]
    assert found == [*parts[0], *parts[1]]


def test_a_shift_whose_prompts_would_share_nothing_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text('{"prompt_len": 9, "output_len": 3, "session": "a"}\n' * 20)
    shift = {"kind": "shift", "at": 0.5, "before": FIELDS, "after": {"kind": "trace", "path": path}}
    workload = {"arrivals": POISSON, "lengths": shift, "num_requests": 40}
    with pytest.raises(ConfigError, match="of 'before' continue their sessions, and of those of"):
        WorkloadConfig.model_validate(workload).build(0)


@pytest.mark.parametrize("at", [0.07, 0.14, 0.28, 0.29, 0.55, 0.56, 0.57, 0.58])
def test_a_shift_comes_where_it_says(at: float) -> None:
    sides = [{"kind": "constant", "prompt": n, "output": 1} for n in (1, 2)]
    shift = LENGTHS.parse({"kind": "shift", "at": at, "before": sides[0], "after": sides[1]})
    assert (shift.draw(generator(0, "lengths"), 100).prompt_lens == 1).sum() == round(100 * at)


def test_hits_are_all_full_blocks_that_were_said_before(tiny: Callable[..., Experiment]) -> None:
    # One session at a time, a cache that forgets nothing: vLLM finds prompt and answer, but for
    # the last token of the answer, which no step has computed.
    summary = ran(tiny)
    rows = summary.tables.requests
    for before, after in turn_pairs(summary.run.requests):
        said = before.prompt_len + before.output_len - 1
        assert rows["cached_len"][after.index] == said // 16 * 16


@pytest.mark.parametrize("own", [{"time_scale": 0.1}, {"rate": 5.0}])
def test_a_trace_that_is_squeezed_is_so_with_its_think_times(
    own: dict[str, float], tiny: Callable[..., Experiment], tmp_path: Path
) -> None:
    """Else they alone would say how fast requests come: 0.5 a second, whatever was asked for."""
    row = {"prompt_len": 9, "output_len": 3, "session": "a"}
    turns = [{**row, "arrived_at": 2.0 * n, "think_time": 1.9 * bool(n)} for n in range(11)]
    path = tmp_path / "t.jsonl"
    path.write_text("".join(f"{json.dumps(each)}\n" for each in turns))
    summary = ran(tiny, workload={"arrivals": {"kind": "trace", "path": str(path), **own}})
    assert summary.tables.requests["arrived_at"].max() == pytest.approx(2.0, rel=0.05)


def test_the_rate_of_sessions_is_that_of_their_requests(tiny: Callable[..., Experiment]) -> None:
    """Not that of first turns, which `workload.arrivals` says."""
    summary = ran(tiny)
    arrived_at = np.sort(summary.tables.requests["arrived_at"])
    rate = (len(arrived_at) - 1) / (arrived_at[-1] - arrived_at[0])
    assert summary.data["request_rate"] == pytest.approx(rate)


def test_results_tell_of_turns(tiny: Callable[..., Experiment], tmp_path: Path) -> None:
    summary = ran(tiny)
    found = summary.data["specsim"]["sessions"]
    sessions = by_session(summary.run.requests)
    assert found["count"] == len(sessions)
    assert found["by_turn"][0]["requests"] == len(sessions)
    assert [row["turn"] for row in found["by_turn"]][:4] == [1, 2, 3, 4]
    assert found["by_turn"][1]["hit_share"] > 0.5 > found["by_turn"][0]["hit_share"]
    assert 0 < found["served_share"] < 1
    summary.save(tmp_path / "out")
    stored = ResultsFolder(tmp_path / "out").requests
    assert stored["turn"].tolist() == [each.turn for each in summary.run.requests]
    assert stored["session"].tolist() == [each.session for each in summary.run.requests]


def test_turns_that_are_waited_for_at_once_count_once(tiny: Callable[..., Experiment]) -> None:
    """A turn, three at once, 0.1 s of thought and a last turn."""
    fields = {"prompt_len": 50, "output_len": 20, "session": 0}
    requests = [
        Request(index=0, **fields),
        *(Request(index=n, turn=n + 1, after_turns=(1,), **fields) for n in (1, 2, 3)),
        Request(index=4, turn=5, after_turns=(2, 3, 4), think_time=0.1, **fields),
    ]
    found = Summary(simulate(tiny(), requests=requests)).data["specsim"]["sessions"]
    whole = found["duration_ms"]["mean"]
    assert found["served_share"] == pytest.approx(1 - 100 / whole)


def test_a_small_cache_forgets_sessions_that_think(tiny: Callable[..., Experiment]) -> None:
    shares = []
    for blocks in (4000, 70):
        engine = {"num_gpu_blocks": blocks, "max_model_len": 1024, "enable_prefix_caching": True}
        rows = ran(tiny, engine=engine).data["specsim"]["sessions"]["by_turn"]
        shares.append(np.mean([row["hit_share"] for row in rows[1:4]]))
    assert shares[0] > shares[1] + 0.1


def test_same_seed_same_bytes(tiny: Callable[..., Experiment]) -> None:
    first, second = (ran(tiny, replicas=2).tables.requests for _ in range(2))
    assert first.tobytes() == second.tobytes()
    other = ran(tiny, replicas=2, seed=1).tables.requests
    assert first.tobytes() != other.tobytes()


def test_a_native_trace_keeps_sessions(tmp_path: Path) -> None:
    config = {"arrivals": POISSON, "lengths": FIELDS, "num_requests": 60}
    trace = WorkloadConfig.model_validate(config).build(1)
    for name in ("w.parquet", "w.jsonl.gz"):
        write_trace(trace, tmp_path / name)
        again = list(read_trace(tmp_path / name).requests())
        for old, new in zip(trace.requests(), again, strict=True):
            assert (old.turn, old.think_time, old.shared_len) == (
                new.turn,
                new.think_time,
                new.shared_len,
            )
            assert old.block_keys(16) == new.block_keys(16) or old.session != new.session


def written(path: Path, *rows: dict[str, Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_recorded_arrivals_wait_for_the_turn_before(
    tmp_path: Path, tiny: Callable[..., Experiment]
) -> None:
    row = {"prompt_len": 50, "output_len": 40, "session": "a"}
    path = written(
        tmp_path / "w.jsonl",
        {**row, "arrived_at": 0.0},
        {**row, "arrived_at": 0.001},
        {**row, "arrived_at": 9.0},
    )
    arrivals = {"kind": "trace", "path": str(path)}
    rows = Summary(simulate(tiny(workload={"arrivals": arrivals}))).tables.requests
    assert rows["arrived_at"].tolist() == [0.0, rows["ended_at"][0], 9.0]
    arrivals["sessions"] = "ignored"
    rows = Summary(simulate(tiny(workload={"arrivals": arrivals}))).tables.requests
    assert rows["arrived_at"].tolist() == [0.0, 0.001, 9.0]


def test_sessions_are_inferred_from_prefix_ids(tmp_path: Path) -> None:
    def row(at: int, length: int, *ids: int) -> dict[str, Any]:
        return {"timestamp": at, "input_length": length, "output_length": 100, "hash_ids": ids}

    path = written(
        tmp_path / "w.jsonl",
        row(0, 600, 1, 2),
        row(1000, 600, 1, 3),  # the first piece has an answer of its own by now: a branch
        row(2000, 1200, 1, 4, 5),  # the same beginning, and longer than prompt and answer
        row(3000, 1250, 1, 4, 6),  # too short for prompt and answer of the one before
        row(4000, 300, 7),
    )
    arrivals = {"kind": "trace", "path": str(path), "sessions": "inferred"}
    requests = list(WorkloadConfig.model_validate({"arrivals": arrivals}).build(0).requests())
    assert [each.session for each in requests] == [0, 1, 1, 3, 4]
    assert [each.turn for each in requests] == [1, 1, 2, 1, 1]


def test_chats_that_follow_each_other_are_a_session(tmp_path: Path) -> None:
    def row(chat: int, parent: int, at: float) -> dict[str, Any]:
        lens = {"input_length": 20, "output_length": 5, "hash_ids": [chat, chat + 1]}
        return {"chat_id": chat, "parent_chat_id": parent, "timestamp": at, **lens}

    path = written(tmp_path / "w.jsonl", row(1, -1, 0), row(2, -1, 1), row(3, 1, 2), row(4, 3, 3))
    assert [each.session for each in read_trace(path).requests()] == [0, 1, 0, 0]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"turns": 0.5}, "turns = 0.5: must be from 1"),
        ({"max_len": 1}, "max_len = 1: not one of"),
        ({"tool_share": 1.5}, "tool_share = 1.5"),
        ({"new_input": {"mean": -1}}, "new_input.mean = -1"),
        ({"first_promt": 3}, "did you mean 'first_prompt'"),
    ],
)
def test_what_makes_no_sense_is_refused(
    changes: dict[str, Any], message: str, tiny: Callable[..., Experiment]
) -> None:
    with pytest.raises(ConfigError) as found:
        ran(
            tiny,
            workload={"arrivals": POISSON, "lengths": {**FIELDS, **changes}, "num_requests": 9},
        )
    assert message in str(found.value)
    assert "\n" not in str(found.value)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"session": "a", "think_time": -1}], "think_time = -1 must be at least 0 s"),
        ([{"think_time": 1}], "no value for 'session'"),
        ([{"shared_len": 1}], "no value for 'session'"),
        ([{"session": None}], "no value for 'session'"),
        ([{"session": 1, "shared_len": 0}] * 2, "a prompt of 9 tokens in turn 2 is shorter"),
    ],
)
def test_rows_that_make_no_sense_are_refused(
    rows: list[dict[str, Any]], message: str, tmp_path: Path
) -> None:
    lens = {"prompt_len": 9, "output_len": 9, "arrived_at": 0}
    path = written(tmp_path / "w.jsonl", *({**lens, **row} for row in rows))
    with pytest.raises(TraceError) as found:
        list(read_trace(path).requests())
    assert message in str(found.value)
    assert "\n" not in str(found.value)


def test_what_long_sessions_are_in_the_mean_is_told_from_few_of_them() -> None:
    """2,000 of these, as of short ones, would be 200 million turns."""
    long = LENGTHS.parse({**FIELDS, "turns": {"mean": 100_000}, "max_len": None})
    assert long.mean_turns == 100_000
    assert LENGTHS.parse(FIELDS).mean_turns == pytest.approx(4, rel=0.2)
