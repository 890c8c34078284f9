"""Data-parallel ranks on the wall clock, whose clients may go at any instant."""

from collections.abc import Callable
from math import inf
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from conftest import tiny_config

from specsim.core.request import Request
from specsim.engine.table import FREE
from specsim.run.experiment import Experiment
from specsim.serve.live import Live, LiveAnswer


class AtWill(Live):
    """Engines whose wall clock shows what a test says."""

    now = 0.0


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("seed", range(5))
def test_ranks_whose_clients_have_gone_come_to_rest(
    constant_step: Callable[..., str], monkeypatch: pytest.MonkeyPatch, seed: int, *, is_async: bool
) -> None:
    """Also where one goes while the engine gets ready the step in which it is alone."""
    monkeypatch.setattr("specsim.serve.live.SLICE", inf)
    overhead, moe = {"step_ms": 2.0}, {"model": "qwen3-30b-a3b", "gpu": "h200"}
    drafts = {"eagle3": {"step_ms": 1.0}}
    config = tiny_config(
        profile=constant_step(delta_ms=3.0, overhead=overhead, drafts=drafts, **moe)
    )
    config["engine"] |= {"data_parallel_size": 3, "async_scheduling": is_async}
    live, rng = AtWill(Experiment.parse(config, "ranks")), np.random.default_rng(seed)
    nobody: Any = SimpleNamespace(delivered=lambda *_: None)
    filler: Any = SimpleNamespace(text="")
    for number in range(30):
        live.now += rng.exponential(0.02)
        lens = rng.integers(1, 60, 2).tolist()
        answer = LiveAnswer(Request(number, *lens), 0, filler, nobody)
        live.submit(answer, live.now)
        live.now += rng.exponential(0.004)
        if number % 3:
            live.withdraw(answer)
    live.now += 60.0
    never = LiveAnswer(Request(30, 1, 1), 0, filler, nobody)
    live.submit(never, live.now + 1.0)
    live.withdraw(never)  # up to now all else happens
    assert not live.num_unfinished
    for replica in live.replicas.values():
        assert replica.next_at == inf
        assert (replica.table.sequences["status"] == FREE).all()
