"""Hand-worked runs of a few requests: the whole timeline, step by step.

Step times are powers of two, so that instants are exact.
"""

from collections.abc import Callable
from typing import Any

import pytest

from specsim.core.request import Request
from specsim.run.experiment import Experiment
from specsim.run.simulate import Run, simulate
from specsim.run.summary import Summary

DELTA = 0.25  # seconds a step lasts


@pytest.fixture
def run(constant_step: Callable[..., str]) -> Callable[..., Run]:
    """Run requests (arrival, prompt, output) on one engine with a constant step."""

    def start(
        rows: list[tuple[float, int, int]],
        *,
        arrivals: Any = "burst",
        costs: Any = None,
        **engine: Any,
    ) -> Run:
        costs = {"delta_ms": DELTA * 1e3, **(costs or {})}
        config = {
            "workload": {
                "arrivals": {"kind": arrivals} if isinstance(arrivals, str) else arrivals,
                "lengths": {"kind": "constant", "prompt": 1, "output": 1},
                "num_requests": len(rows),
            },
            "engine": {
                "num_gpu_blocks": 100,
                "max_model_len": 64,
                "max_num_seqs": 8,
                "max_num_batched_tokens": 64,
                "async_scheduling": False,
                "enable_prefix_caching": False,
                **engine,
            },
            "acceptance": {"kind": "bernoulli", "alpha": 1.0},
            "profile": constant_step(**costs),
        }
        requests = [
            Request(index=i, arrived_at=at, prompt_len=prompt, output_len=output)
            for i, (at, prompt, output) in enumerate(rows)
        ]
        return simulate(Experiment.parse(config, "timeline"), requests=requests, check=True)

    return start


def timeline(run: Run) -> list[tuple[float, float, float]]:
    """First schedule, first token and end of each request."""
    rows = Summary(run).tables.requests
    return [(r["scheduled_at"], r["first_token_at"], r["ended_at"]) for r in rows]


def steps(run: Run, *names: str) -> list[tuple[float, ...]]:
    return [tuple(row[name] for name in names) for row in run.replicas[0].steps]


def test_one_request_takes_one_step_per_token(run: Callable[..., Run]) -> None:
    assert timeline(run([(0.0, 10, 3)])) == [(0.0, 0.25, 0.75)]


def test_an_arrival_at_the_end_of_a_step_is_in_the_next(run: Callable[..., Run]) -> None:
    # The same-instant rule: arrivals come first.
    assert timeline(run([(0.0, 1, 4), (0.25, 1, 1)])) == [(0.0, 0.25, 1.0), (0.25, 0.5, 0.5)]


def test_an_arrival_within_a_step_waits_for_its_end(run: Callable[..., Run]) -> None:
    assert timeline(run([(0.0, 1, 4), (0.3125, 1, 1)]))[1] == (0.5, 0.75, 0.75)


def test_an_idle_engine_starts_at_once(run: Callable[..., Run]) -> None:
    assert timeline(run([(0.0, 1, 1), (5.0, 1, 1)]))[1] == (5.0, 5.25, 5.25)


def test_a_long_prompt_is_chunked_and_decodes_go_on(run: Callable[..., Run]) -> None:
    result = run([(0.0, 1, 4), (0.25, 20, 1)], max_num_batched_tokens=8)
    batched = steps(result, "batched_tokens", "prefill_tokens", "output_tokens")
    assert batched == [(1, 1, 1), (8, 7, 1), (8, 7, 1), (7, 6, 2)]


def test_prefill_first_lets_decodes_wait(run: Callable[..., Run]) -> None:
    engine = {"scheduler": "prefill_first", "max_num_batched_tokens": 64}
    result = run([(0.0, 1, 4), (0.25, 20, 2)], **engine)
    batched = steps(result, "batched_tokens", "prefill_tokens", "output_tokens")
    assert batched == [(1, 1, 1), (20, 20, 1), (2, 0, 2), (1, 0, 1), (1, 0, 1)]
    assert timeline(result) == [(0.0, 0.25, 1.25), (0.25, 0.5, 0.75)]


def test_prefill_first_drafts_and_verifies_in_one_step(run: Callable[..., Run]) -> None:
    spec = {"method": "ngram", "num_speculative_tokens": 3}
    result = run([(0.0, 5, 9)], scheduler="prefill_first", speculative_config=spec, costs=NGRAM)
    # A prefill step has no drafts; then every step verifies three of its own.
    assert steps(result, "batched_tokens", "draft_tokens", "output_tokens") == [
        (5, 0, 1),
        (4, 3, 4),
        (4, 3, 4),
    ]


NGRAM = {"drafts": {"ngram": {"target_share": 0.0}}}


def test_drafts_are_made_at_the_end_of_a_step_and_verified_in_the_next(
    run: Callable[..., Run],
) -> None:
    spec = {"method": "ngram", "num_speculative_tokens": 3}
    result = run([(0.0, 5, 6)], speculative_config=spec, costs=NGRAM)
    # The last step offers three drafts although one more token is wanted: vLLM does not cut them.
    assert steps(result, "batched_tokens", "draft_tokens", "output_tokens") == [
        (5, 0, 1),
        (4, 3, 4),
        (4, 3, 1),
    ]


def test_drafting_is_charged_where_the_drafts_are_made(run: Callable[..., Run]) -> None:
    draft = {
        "basis": "pass",
        "latency": {"kind": "linear", "alpha_ns": 0, "gamma_us": 0, "delta_ms": 62.5},
    }
    result = run(
        [(0.0, 5, 6)],
        speculative_config={"method": "draft_model", "num_speculative_tokens": 2},
        costs={"drafts": {"draft_model": draft}},
    )
    assert steps(result, "target_time", "draft_time") == [(0.25, 0.125)] * 3
    assert timeline(result) == [(0.0, 0.375, 1.125)]


def test_overhead_adds_to_a_synchronous_step(run: Callable[..., Run]) -> None:
    result = run([(0.0, 5, 2)], costs={"overhead": {"step_ms": 125, "request_us": 62500}})
    assert steps(result, "overhead_time", "ended_at") == [(0.1875, 0.4375), (0.1875, 0.875)]


def test_asynchronous_overhead_hides_behind_the_gpu(run: Callable[..., Run]) -> None:
    result = run([(0.0, 5, 4)], async_scheduling=True, costs={"overhead": {"step_ms": 125}})
    # The first step cannot start before it has been scheduled; all others are ready in time.
    starts = steps(result, "scheduled_at", "started_at", "ended_at")
    assert starts == [
        (0.0, 0.125, 0.375),
        (0.125, 0.375, 0.625),
        (0.375, 0.625, 0.875),
        (0.625, 0.875, 1.125),
    ]


def test_asynchronous_arrival_waits_behind_the_step_already_queued(run: Callable[..., Run]) -> None:
    rows = [(0.0, 1, 9), (0.0625, 1, 1)]
    assert timeline(run(rows))[1] == (0.25, 0.5, 0.5)
    assert timeline(run(rows, async_scheduling=True))[1] == (0.25, 0.75, 0.75)


def test_preempted_requests_come_back_first_and_recompute(run: Callable[..., Run]) -> None:
    # Eight usable blocks of four tokens; both prompts fit, their outputs do not.
    engine = {"block_size": 4, "num_gpu_blocks": 9, "max_model_len": 24}
    result = run([(0.0, 15, 9), (0.0, 15, 9), (0.25, 4, 1)], **engine)
    # At 0.5 the first needs a fifth block and the second gives up its four. Its 17 known tokens
    # need five, so it waits for the first to end, and the third waits behind it.
    assert timeline(result) == [(0.0, 0.25, 2.25), (0.0, 0.25, 4.0), (2.25, 2.5, 2.5)]
    assert Summary(result).tables.requests["preemptions"].tolist() == [0, 1, 0]
    prefills = [row for row in steps(result, "scheduled_at", "prefill_tokens") if row[1]]
    assert prefills == [(0.0, 30), (2.25, 17 + 4)]


def test_closed_loop_sends_when_the_answer_is_there(run: Callable[..., Run]) -> None:
    rows = [(0.0, 1, 2), (0.0, 1, 3), (0.0, 1, 1), (0.0, 1, 1)]
    result = run(rows, arrivals={"kind": "closed_loop", "concurrency": 2})
    arrivals = Summary(result).tables.requests["arrived_at"].tolist()
    assert arrivals == [0.0, 0.0, 0.5, 0.75]


def test_closed_loop_clients_think(run: Callable[..., Run]) -> None:
    arrivals = {"kind": "closed_loop", "concurrency": 1, "think_time": 2.0}
    result = run([(0.0, 1, 1), (0.0, 1, 1)], arrivals=arrivals)
    assert timeline(result) == [(0.0, 0.25, 0.25), (2.25, 2.5, 2.5)]
