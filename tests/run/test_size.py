"""Runs that are too large, or that the clock cannot tell apart, do not begin."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import tiny_config

from specsim.core.errors import ConfigError
from specsim.run.experiment import Experiment
from specsim.run.simulate import simulate

SCALED = {"kind": "target_queue", "target": 1.0, "max_replicas": 2, "interval_s": 0.1}
PAUSES = {
    "kind": "sessions", "turns": 3, "first_prompt": 50, "new_input": 9, "output": 9,
    "think_time": 1e7,
}  # fmt: skip
CLIENTS = {"kind": "closed_loop", "concurrency": 2, "think_time": 1e6}
WIDE = {"mean": 10, "std": 1e308, "max": 20}


@pytest.mark.parametrize(
    ("workload", "more", "message"),
    [
        ({"num_requests": 15_000_000}, {}, "would take about .* GiB of memory"),
        ({}, {"replicas": 100_000}, "on 100,000 replicas would take about"),
        ({"arrivals": "poisson:rate=1e-300"}, {}, "the clock cannot tell 1 ms"),
        ({"arrivals": "poisson:rate=1e9", "num_requests": None, "duration": 1e9}, {}, "would take"),
        ({"arrivals": "poisson:rate=1e-6"}, {"autoscaling": SCALED}, "interval_s = 0.1: .* looks"),
        ({"lengths": PAUSES}, {"autoscaling": SCALED}, "shorten start_up_s or the pauses"),
        ({"arrivals": CLIENTS}, {"autoscaling": SCALED}, "the run is not over"),
        ({"arrivals": "gamma:rate=5e-324,burstiness=0.5"}, {}, "the clock cannot tell 1 ms"),
        ({"arrivals": "constant:rate=1e308", "duration": 3.0}, {}, "rate = .*1e.*308"),
        ({"duration": 1e308}, {}, "duration = .*1e.*308"),
        ({}, {"engine": {"max_num_active_seqs": 2**31}}, "engine.max_num_active_seqs = 2147483648"),
        ({}, {"engine": {"long_prefill_token_threshold": 2**64}}, "engine.long_prefill_token_thr"),
        ({}, {"engine": {"max_num_batched_tokens": 2**63}}, "engine.max_num_batched_tokens = 92"),
    ],
)
def test_a_run_without_measure_is_refused_before_it_begins(
    workload: dict[str, Any], more: dict[str, Any], message: str, tiny: Callable[..., Experiment],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr("specsim.run.experiment.MOST_LOOKS", 5000)
    changed = {**tiny_config()["workload"], **workload}
    with pytest.raises(ConfigError, match=message):
        simulate(tiny(workload=changed, **more))


def test_bad_numbers_are_refused_with_the_file(tiny: Callable[..., Experiment]) -> None:
    with pytest.raises(ConfigError, match="seed = 9223372036854775808"):
        tiny(seed=2**63)
    rates = {"kind": "piecewise", "segments": [[1, 1e308]]}
    with pytest.raises(ConfigError, match="requests would come"):
        tiny(workload={**tiny_config()["workload"], "arrivals": rates})


def test_a_bell_without_end_is_flat(tiny: Callable[..., Experiment]) -> None:
    lengths = {"kind": "truncated_normal", "prompt": WIDE, "output": WIDE}
    run = simulate(tiny(workload={**tiny_config()["workload"], "lengths": lengths}))
    assert {request.prompt_len for request in run.requests} <= set(range(1, 21))


def test_a_trace_is_as_long_as_its_file(tiny: Callable[..., Experiment], tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("arrival_time,prompt_len,output_len\n0,9,5\n1,9,5\n")
    arrivals = {"kind": "trace", "path": str(tmp_path / "t.csv")}
    run = simulate(tiny(workload={"arrivals": arrivals, "num_requests": 50_000_000}))
    assert len(run.requests) == 2
