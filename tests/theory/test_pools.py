"""Closed forms of pools: what limits them, and when they are like replicas that do both."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from agreement import assert_agrees

from specsim.core.request import Request
from specsim.core.rng import generator
from specsim.run.experiment import Experiment
from specsim.run.simulate import simulate
from specsim.run.summary import Summary

pytestmark = pytest.mark.slow

KV_BYTES = 131072  # of one token of llama-3.1-8b
FREE = 1e-6  # milliseconds of a step that costs nothing, all but
WORKLOAD = {
    "arrivals": {"kind": "burst"},
    "lengths": {"kind": "constant", "prompt": 1, "output": 1},
    "num_requests": 1,
}
ENGINE = {
    "max_num_batched_tokens": 131072,
    "num_gpu_blocks": 100_000,
    "async_scheduling": False,
    "enable_prefix_caching": False,
}


@pytest.fixture
def split(constant_step: Callable[..., str]) -> Callable[..., Summary]:
    """Run requests on a prefill and a decode replica; step times are constant, milliseconds."""

    def run(
        requests: list[Request],
        *,
        prefill_ms: float = FREE,
        decode_ms: float = FREE,
        prefill: dict[str, Any] | None = None,
        decode: dict[str, Any] | None = None,
        **transfer: Any,
    ) -> Summary:
        config = {
            "workload": WORKLOAD,
            "engine": ENGINE,
            "profile": constant_step(delta_ms=decode_ms),
            "pools": {
                "prefill": {"profile": constant_step(delta_ms=prefill_ms), "engine": prefill},
                "decode": {"engine": decode},
                "transfer": {"bandwidth_gb_s": 1e9, **transfer},
            },
        }
        return Summary(simulate(Experiment.parse(config, "split"), requests=requests))

    return run


def requests_of(arrivals: np.ndarray, prompt: int, output: int) -> list[Request]:
    return [
        Request(index=i, arrived_at=at, prompt_len=prompt, output_len=output)
        for i, at in enumerate(arrivals.tolist())
    ]


def bandwidth(tokens: int, seconds: float) -> float:
    """Return at how many GB/s tokens take so long."""
    return tokens * KV_BYTES / seconds / 1e9


def throughput(summary: Summary) -> float:
    """Return requests per second, of those behind the first tenth."""
    ends = np.sort(summary.tables.requests["ended_at"])
    start = len(ends) // 10
    return (len(ends) - 1 - start) / (ends[-1] - ends[start])


def test_transfers_limit_the_throughput(split: Callable[..., Summary]) -> None:
    burst = requests_of(np.zeros(2000), prompt=100, output=20)
    found = split(burst, prefill_ms=1, decode_ms=0.1, bandwidth_gb_s=bandwidth(100, 0.01))
    assert throughput(found) == pytest.approx(100.0, rel=0.02)


def test_decode_steps_limit_the_throughput(split: Callable[..., Summary]) -> None:
    burst = requests_of(np.zeros(2000), prompt=100, output=20)
    found = split(
        burst, prefill_ms=1, decode_ms=5, decode={"max_num_seqs": 16},
        bandwidth_gb_s=bandwidth(100, 0.001),
    )  # fmt: skip
    # Sixteen at a time, each for twenty steps.
    assert throughput(found) == pytest.approx(16 / (20 * 0.005), rel=0.02)


def test_prefill_steps_limit_the_throughput(split: Callable[..., Summary]) -> None:
    burst = requests_of(np.zeros(2000), prompt=100, output=5)
    prefill = {"max_num_batched_tokens": 400, "max_num_seqs": 64}
    found = split(burst, prefill_ms=20, decode_ms=0.1, prefill=prefill)
    assert throughput(found) == pytest.approx(4 / 0.02, rel=0.02)


def test_a_link_is_a_single_server(split: Callable[..., Summary]) -> None:
    time, load, count = 0.01, 0.7, 15_000
    arrivals = np.cumsum(generator(7, "arrivals").exponential(time / load, count))
    rows = requests_of(arrivals, prompt=100, output=1)
    pools = split(rows, bandwidth_gb_s=bandwidth(100, time)).pools
    assert pools is not None
    moved = pools.transfers["transfer_ended_at"] - pools.transfers["transfer_began_at"]
    assert_agrees(moved - time, load * time / (2 * (1 - load)))


@pytest.fixture
def decoded(constant_step: Callable[..., str]) -> Callable[..., tuple[np.ndarray, np.ndarray]]:
    """Requests in a decode pool that gets prompts for nothing, and where prompts are cached.

    Either computes the last token of each prompt, and then the answer.
    """

    def run(arrivals: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        count, prompt = len(arrivals), 10 * 16 + 1
        outputs = generator(3, "outputs").integers(1, 60, count).tolist()
        texts = [np.arange(prompt) + 1000 * i for i in range(count)]
        warm = [
            Request(index=i, prompt_len=prompt, output_len=1, prompt_token_ids=text)
            for i, text in enumerate(texts)
        ]
        rows = list(zip(arrivals.tolist(), outputs, texts, strict=True))
        later = [
            Request(index=count + i, arrived_at=at, prompt_len=prompt, output_len=output,
                    prompt_token_ids=text)
            for i, (at, output, text) in enumerate(rows)
        ]  # fmt: skip
        alone = [
            Request(index=i, arrived_at=at, prompt_len=prompt, output_len=output)
            for i, (at, output, _) in enumerate(rows)
        ]
        profile = constant_step(delta_ms=5, gamma_us=100, alpha_ns=50)
        engine = {**ENGINE, "enable_prefix_caching": True, "max_num_seqs": 16}
        config = {"workload": WORKLOAD, "engine": engine, "profile": profile}
        cached = Summary(simulate(Experiment.parse(config, "cached"), requests=[*warm, *later]))
        pools = {
            "prefill": {"profile": constant_step(delta_ms=FREE)},
            "decode": {"engine": {"max_num_seqs": 16}},
            "transfer": {"bandwidth_gb_s": 1e9, "max_transfers": 4096},
        }
        config = {"workload": WORKLOAD, "engine": ENGINE, "profile": profile, "pools": pools}
        moved = Summary(simulate(Experiment.parse(config, "pools"), requests=alone))
        theirs = cached.tables.requests[count:]
        assert (theirs["cached_len"] == prompt - 1).all()
        return moved.tables.requests, theirs

    return run


def test_a_burst_is_decoded_as_if_its_prompts_were_cached(decoded: Callable[..., Any]) -> None:
    ours, theirs = decoded(np.full(300, 1000.0))
    for name in ("first_token_at", "ended_at"):
        assert np.abs(ours[name] - theirs[name]).max() < 1e-6


def test_a_load_costs_a_busy_engine_one_step(decoded: Callable[..., Any]) -> None:
    """The scheduler gives out blocks in one step, and admits in a later one, however fast."""
    gaps = generator(4, "arrivals").exponential(0.05, 300)
    ours, theirs = decoded(1000.0 + np.cumsum(gaps))
    later = ours["first_token_at"] - theirs["first_token_at"]
    assert later.min() > -1e-6
    assert np.median(later) == pytest.approx(0.005, rel=0.05)
    assert later.max() < 2 * 0.0068  # a step of all sixteen


def test_requests_that_never_meet_are_answered_alike(
    split: Callable[..., Summary], constant_step: Callable[..., str]
) -> None:
    """A request alone waits for its prefill, its transfer and one more step."""
    rows = requests_of(10.0 * np.arange(20), prompt=100, output=30)
    found = split(rows, prefill_ms=20, decode_ms=5, bandwidth_gb_s=bandwidth(100, 0.002)).tables
    config = {"workload": WORKLOAD, "engine": ENGINE, "profile": constant_step(delta_ms=5)}
    alone = Summary(simulate(Experiment.parse(config, "alone"), requests=rows)).tables
    ttft = found.requests["first_token_at"] - found.requests["arrived_at"]
    assert ttft == pytest.approx(np.full(20, 0.020 + 0.002 + 0.005))
    for table in (found, alone):
        after = table.requests["ended_at"] - table.requests["first_token_at"]
        assert after == pytest.approx(np.full(20, 29 * 0.005))
