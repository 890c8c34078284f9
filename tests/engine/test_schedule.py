"""The scheduler's rules, where a recording would not show them by themselves."""

import pytest
from conftest import tiny_config

from specsim.core.compiled import as_records
from specsim.core.errors import CapacityError, ConfigError
from specsim.core.request import Request
from specsim.engine.kv import admit_blocks
from specsim.engine.schedule import schedule
from specsim.engine.setup import Facts, Setup
from specsim.engine.table import FREE, RUNNING, WAITING, Table
from specsim.engine.waiting import begin
from specsim.hardware.kv_groups import one_group
from specsim.run.experiment import Experiment
from specsim.run.simulate import Run, simulate
from specsim.run.summary import Summary
from specsim.workload import WorkloadConfig


def running(*prompt_lens: int, priorities: tuple[int, ...], **limits: int) -> Table:
    """Return a table in which requests run, admitted in this order, each with its first token."""
    count = len(prompt_lens)
    requests = [
        Request(index=index, prompt_len=prompt_len, output_len=9, priority=priority)
        for index, (prompt_len, priority) in enumerate(zip(prompt_lens, priorities, strict=True))
    ]
    usual = {
        "max_num_running": count,
        "max_num_scheduled_tokens": 64,
        "max_num_batched_tokens": 64,
        "max_model_len": 32,
        "by_priority": 1,
    }
    facts = Facts.of(requests, 4, with_keys=False)
    setup = Setup("synchronous", {**usual, **limits}, one_group(4))
    table = Table(*map(as_records, setup.table(facts=facts.rows, keys=facts.keys)))
    for row, prompt_len in enumerate(prompt_lens):
        begin(table, row, row, 0.0)
        assert admit_blocks(table, row, 0, prompt_len)
        sequence = table.sequences[row]
        sequence.status = RUNNING
        sequence.computed_len = prompt_len
        sequence.known_len = prompt_len + 1
        sequence.admissions = 1
        table.running[row] = row
    table.state[0].num_running = count
    return table


def statuses(table: Table, count: int) -> list[int]:
    return [int(table.sequences[row].status) for row in range(count)]


def test_a_withdrawn_sequence_gives_back_what_it_had() -> None:
    # Two blocks each; the first is in the step already when the third needs another block.
    table = running(5, 6, 8, priorities=(9, 0, 1), num_blocks=7, draft_slots=1)
    table.sequences[0].draft_len = 2
    schedule(table)
    step = table.steps[0]
    assert statuses(table, 4) == [WAITING, RUNNING, RUNNING, FREE]
    assert step.num_requests == 2
    assert [int(table.entries[0, place].row) for place in range(2)] == [1, 2]
    assert (step.batched_tokens, step.context_tokens) == (2, 6 + 8)
    assert (step.tokens_left, step.inputs_left) == (64 - 2, 64 - 2 * 2)
    assert (table.sequences[0].in_flight_len, table.sequences[0].draft_len) == (0, 0)
    assert (step.preemptions, table.state[0].num_running) == (1, 2)
    assert table.running[:2].tolist() == [1, 2]


def test_whoever_is_the_least_goes_itself() -> None:
    table = running(5, 8, priorities=(0, 1), num_blocks=5)
    schedule(table)
    assert statuses(table, 2) == [RUNNING, WAITING]
    assert table.steps[0].num_requests == 1
    assert table.state[0].num_waiting == 1


def test_of_equals_the_one_that_came_first_is_preempted_last() -> None:
    table = running(5, 5, 8, priorities=(1, 1, 0), num_blocks=7)
    table.sequences[0].arrived_at = 2.0
    schedule(table)
    assert statuses(table, 3) == [WAITING, RUNNING, RUNNING]


@pytest.mark.parametrize(("asynchronous", "wasted"), [(True, 1), (False, 0)])
def test_an_answer_that_ends_by_a_stop_token_has_been_scheduled_once_more(
    asynchronous: bool, wasted: int
) -> None:
    def simulated(max_tokens: int | None) -> Run:
        config = {
            "workload": {
                "arrivals": {"kind": "closed_loop", "concurrency": 1},
                "lengths": {"kind": "constant", "prompt": 100, "output": 20},
                "num_requests": 3,
                "max_tokens": max_tokens,
            },
            "engine": {"async_scheduling": asynchronous},
            "profile": "h100/llama-3.1-8b",
        }
        return simulate(Experiment.parse(config, "test"))

    steps = [len(simulated(asked).replicas[0].steps) for asked in (None, 20, 50)]
    assert steps[1] == steps[0]
    assert steps[2] == steps[0] + 3 * wasted


def test_no_answer_is_longer_than_was_asked_for() -> None:
    workload = WorkloadConfig.model_validate(
        {
            "arrivals": {"kind": "poisson", "rate": 1},
            "lengths": {"kind": "constant", "prompt": 1, "output": 20},
            "num_requests": 2,
            "max_tokens": 19,
        }
    )
    with pytest.raises(ConfigError, match=r"max_tokens = 19 is less than the longest answer of 20"):
        workload.build(0)


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("num_requests", [2, 3, 6])
def test_preemptions_in_turn_come_to_an_end(num_requests: int, is_async: bool) -> None:
    # Of one priority and one instant: the one admitted first goes, and comes back behind.
    config = tiny_config(policy="off")
    config["engine"] = {
        "block_size": 2, "num_gpu_blocks": 15, "max_model_len": 24, "max_num_seqs": 2,
        "max_num_batched_tokens": 12, "long_prefill_token_threshold": 3,
        "scheduling_policy": "priority", "enable_prefix_caching": False,
        "async_scheduling": is_async, "scheduler_reserve_full_isl": False,
    }  # fmt: skip
    lengths = {"kind": "uniform", "prompt": [3, 3], "output": [20, 20]}
    config["workload"] = {"arrivals": "burst", "lengths": lengths, "num_requests": num_requests}
    with pytest.raises(CapacityError, match="4,000 preemptions without a token in between"):
        simulate(Experiment.parse(config, "burst"))
    config["workload"]["arrivals"] = {"kind": "constant", "rate": 1e6}
    run = simulate(Experiment.parse(config, "one after another"))
    assert len(Summary(run).tables.requests) == num_requests


def test_steps_tell_of_every_preemption_also_where_nothing_else_came_of_a_step() -> None:
    """Of two preemptions one is in a step that schedules nobody, and has no row."""
    engine = {
        "num_gpu_blocks": 6, "max_num_seqs": 8, "max_model_len": 64, "max_num_batched_tokens": 64,
        "async_scheduling": True, "scheduling_policy": "priority",
    }  # fmt: skip
    rows = [(0, 2, 14), (0, 17, 22), (0, 21, 16), (0, 21, 19), (0.5, 5, 4), (0.5, 27, 7)]
    requests = [
        Request(index=index, arrived_at=at, prompt_len=prompt, output_len=output)
        for index, (at, prompt, output) in enumerate(rows)
    ]
    run = simulate(Experiment.parse(tiny_config(engine=engine), "x"), requests=requests)
    tables = Summary(run).tables
    assert tables.steps["preemptions"].sum() == tables.requests["preemptions"].sum() == 2
