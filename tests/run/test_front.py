"""What a request takes to reach the engine delays it, and nothing else."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from conftest import tiny_config
from numpy.typing import NDArray

from specsim.results.metrics import tpot, ttft
from specsim.results.tables import assemble
from specsim.run.experiment import Experiment
from specsim.run.simulate import simulate

FRONT = 0.05


def requests_of(profile: str, arrivals: dict[str, Any], tiny: Callable[..., Experiment]) -> Any:
    workload = {
        "arrivals": arrivals,
        "lengths": {"kind": "uniform", "prompt": [1, 200], "output": [2, 40]},
        "num_requests": 30,
    }
    engine = {**tiny_config()["engine"], "async_scheduling": False}
    run = simulate(tiny(workload=workload, profile=profile, engine=engine))
    found = assemble(run.replicas, run.deliveries).requests
    return found[np.argsort(found["request"])]


@pytest.fixture
def profiles(constant_step: Callable[..., str]) -> tuple[str, str]:
    """Return a profile without and one with a front end."""
    drafts = {"eagle3": {"token_us": 1}}
    slow = constant_step(delta_ms=8.0, drafts=drafts, overhead={"front_ms": FRONT * 1e3})
    return constant_step(delta_ms=8.0, drafts=drafts), slow


def test_open_loop(profiles: tuple[str, str], tiny: Callable[..., Experiment]) -> None:
    arrivals = {"kind": "poisson", "rate": 20.0}
    plain, slow = (requests_of(profile, arrivals, tiny) for profile in profiles)
    np.testing.assert_allclose(slow["arrived_at"], plain["arrived_at"], atol=1e-12)
    np.testing.assert_allclose(ttft(slow), ttft(plain) + FRONT)
    np.testing.assert_allclose(tpot(slow), tpot(plain))


def test_closed_loop(profiles: tuple[str, str], tiny: Callable[..., Experiment]) -> None:
    """One client waits for its answer, and for the front end before each of its requests."""
    arrivals = {"kind": "closed_loop", "concurrency": 1}
    plain, slow = (requests_of(profile, arrivals, tiny) for profile in profiles)
    later: NDArray[np.float64] = FRONT * np.arange(30)
    np.testing.assert_allclose(slow["arrived_at"], plain["arrived_at"] + later, atol=1e-9)
    np.testing.assert_allclose(ttft(slow), ttft(plain) + FRONT)


@pytest.mark.parametrize("clients", [None, 30])
def test_prompts_are_tokenized_one_after_the_other(
    clients: int | None, constant_step: Callable[..., str], tiny: Callable[..., Experiment]
) -> None:
    """All come at once: each waits until those before it are tokenized, then for the rest."""
    overhead = {"front_ms": FRONT * 1e3, "front_token_us": 100}
    slow = constant_step(delta_ms=8.0, drafts={"eagle3": {"token_us": 1}}, overhead=overhead)
    arrivals: dict[str, Any] = {"kind": "poisson", "rate": 1e9}
    if clients:
        arrivals = {"kind": "closed_loop", "concurrency": clients}
    found = requests_of(slow, arrivals, tiny)
    reached_at = FRONT + 1e-4 * np.cumsum(found["prompt_len"])
    waited = found["scheduled_at"] - found["arrived_at"] - reached_at
    assert waited.min() > -1e-6
    assert np.median(waited) < 0.008 + 1e-6  # a step
