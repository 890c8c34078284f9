"""SmartSpec's candidate batches: first-come prefixes of what runs."""

from collections.abc import Callable
from typing import Any

import pytest

from specsim.run.simulate import Run

Serve = Callable[..., Run]
Steps = Callable[..., list[Any]]
# Sixteen short contexts, then two so long that reading them takes three steps' time.
ROWS = [(0.0, 16, 8)] * 16 + [(0.0, 4000, 8)] * 2
ENGINE = {
    "costs": {"delta_ms": 250, "alpha_ns": 100_000},
    "max_model_len": 8192,
    "max_num_batched_tokens": 16384,
    "max_num_seqs": 32,
    "num_gpu_blocks": 2000,
}


@pytest.mark.parametrize("scheduler", ["chunked", "prefill_first", "asynchronous"])
def test_two_long_contexts_wait_for_sixteen_short_ones(
    scheduler: str, serve: Serve, steps: Steps
) -> None:
    engine: dict[str, Any] = {"async_scheduling": scheduler == "asynchronous"}
    if scheduler == "prefill_first":
        engine = {"scheduler": scheduler}

    def decodes(candidates: str) -> list[tuple[float, float]]:
        policy = {"kind": "goodput", "candidates": candidates, "prior": 0}
        run = serve(policy, ROWS, [[0] * 8] * 18, **ENGINE, **engine)
        rows = steps(run, "num_requests", "prefill_tokens", "output_tokens", "target_time")
        rows = [(num, tokens / time) for num, prompt, tokens, time in rows if num and not prompt]
        return [row for row in rows if row[1]]

    whole, prefixes = decodes("batch"), decodes("prefixes")
    assert {num for num, _ in whole} == {18}
    assert {num for num, _ in prefixes[3:]} == {16, 2}
    assert [num for num, _ in prefixes][-6:] == [2] * 6
    assert prefixes[3][1] > 3.3 * whole[3][1]
