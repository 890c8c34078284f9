"""Closed forms of queueing theory; one slot makes the engine a single server."""

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

NUM_REQUESTS = 100_000


@pytest.fixture
def waits(constant_step: Callable[..., str]) -> Callable[..., np.ndarray]:
    """Waiting times of requests served one at a time, in order of arrival."""

    def run(rate: float, prompts: np.ndarray, outputs: np.ndarray, **costs: Any) -> np.ndarray:
        config = {
            "workload": {
                "arrivals": {"kind": "burst"},
                "lengths": {"kind": "constant", "prompt": 1, "output": 1},
                "num_requests": 1,
            },
            "engine": {
                "max_num_seqs": 1,
                "max_num_batched_tokens": 131072,
                "num_gpu_blocks": 10000,
                "async_scheduling": False,
                "enable_prefix_caching": False,
            },
            "profile": constant_step(**costs),
        }
        arrivals = np.cumsum(generator(11, "arrivals").exponential(1 / rate, len(prompts)))
        rows = zip(arrivals.tolist(), prompts.tolist(), outputs.tolist(), strict=True)
        requests = [
            Request(index=i, arrived_at=at, prompt_len=prompt, output_len=output)
            for i, (at, prompt, output) in enumerate(rows)
        ]
        table = Summary(simulate(Experiment.parse(config, "M/G/1"), requests=requests)).tables
        return table.requests["scheduled_at"] - table.requests["arrived_at"]

    return run


def test_m_d_1(waits: Callable[..., np.ndarray]) -> None:
    ones, service, rho = np.ones(NUM_REQUESTS, dtype=int), 1.0, 0.8
    samples = waits(rho / service, ones, ones, delta_ms=1e3 * service)
    assert_agrees(samples, rho * service / (2 * (1 - rho)))


def test_m_m_1(waits: Callable[..., np.ndarray]) -> None:
    # Exponential service: one prefill step each, its time proportional to an exponential prompt.
    mean_len, gamma_us, rho = 2000.0, 500.0, 0.5
    lens = generator(5, "service").exponential(mean_len, NUM_REQUESTS)
    prompts = np.clip(np.rint(lens), 1, 100_000).astype(int)
    service = mean_len * gamma_us * 1e-6
    ones = np.ones(NUM_REQUESTS, dtype=int)
    samples = waits(rho / service, prompts, ones, gamma_us=gamma_us)
    assert_agrees(samples, rho * service / (1 - rho))


def test_m_g_1_with_geometric_lengths(waits: Callable[..., np.ndarray]) -> None:
    # Pollaczek-Khinchine: W = lambda E[S^2] / 2 (1 - rho), S a geometric number of steps.
    p, step, rho = 0.25, 0.5, 0.5
    outputs = generator(6, "service").geometric(p, NUM_REQUESTS)
    ones = np.ones(NUM_REQUESTS, dtype=int)
    mean, second_moment = step / p, step**2 * (2 - p) / p**2
    rate = rho / mean
    samples = waits(rate, ones, outputs, delta_ms=1e3 * step)
    assert_agrees(samples, rate * second_moment / (2 * (1 - rho)))
