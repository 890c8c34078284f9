"""What a request takes to reach the engine delays it, and nothing else."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from conftest import tiny_config
from numpy.typing import NDArray

from specsim.core.request import Request
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


def test_prompts_wait_for_the_tokenizer(
    constant_step: Callable[..., str], tiny: Callable[..., Experiment]
) -> None:
    """All are sent at once, and reach the engine one after the other."""
    overhead = {"front_ms": FRONT * 1e3, "front_token_us": 200.0}
    profile = constant_step(delta_ms=8.0, drafts={"eagle3": {"token_us": 1}}, overhead=overhead)
    closed = {"kind": "closed_loop", "concurrency": 30}
    for arrivals in (closed, {"kind": "poisson", "rate": 1e9}):
        found = requests_of(profile, arrivals, tiny)
        np.testing.assert_allclose(found["arrived_at"], 0.0, atol=1e-6)
        reached = FRONT + 200e-6 * np.cumsum(found["prompt_len"])
        assert (found["scheduled_at"] >= reached - 1e-6).all()
        assert found["scheduled_at"][-1] <= reached[-1] + 0.02


@pytest.mark.parametrize("replicas", [1, 4])
def test_turns_do_not_wait_for_a_session_that_is_yet_to_come(
    replicas: int, constant_step: Callable[..., str], tiny: Callable[..., Experiment]
) -> None:
    """A tokenizer is not booked for what has not been sent (nor is any other server)."""
    overhead = {"front_ms": FRONT * 1e3, "front_token_us": 200.0}
    profile = constant_step(delta_ms=8.0, drafts={"eagle3": {"token_us": 1}}, overhead=overhead)
    workload = {
        "arrivals": {"kind": "constant", "rate": 0.001},
        "lengths": {
            "kind": "sessions",
            "turns": 5,
            "first_prompt": 50,
            "new_input": 20,
            "output": 10,
            "think_time": 1.0,
            "max_len": 900,
        },
        "num_requests": 20,
    }
    engine = {**tiny_config()["engine"], "async_scheduling": False}
    experiment = tiny(workload=workload, profile=profile, engine=engine, replicas=replicas)
    run = simulate(experiment, check=True)
    found = assemble(run.replicas, run.deliveries).requests
    reached = found["arrived_at"] + FRONT + 200e-6 * found["prompt_len"]
    np.testing.assert_allclose(found["scheduled_at"], reached, atol=1e-6)


@pytest.mark.parametrize("routing", ["round_robin", "least_outstanding"])
def test_a_short_prompt_overtakes_a_long_one_at_the_other_tokenizer(
    routing: str, constant_step: Callable[..., str], tiny: Callable[..., Experiment]
) -> None:
    overhead = {"front_ms": FRONT * 1e3, "front_token_us": 200.0}
    profile = constant_step(delta_ms=8.0, drafts={"eagle3": {"token_us": 1}}, overhead=overhead)
    engine = {**tiny_config()["engine"], "async_scheduling": False}
    sent = [(0.0, 200), (0.001, 5), (0.002, 5), (0.5, 9)]
    requests = [
        Request(index=index, arrived_at=at, prompt_len=length, output_len=3)
        for index, (at, length) in enumerate(sent)
    ]
    experiment = tiny(profile=profile, engine=engine, replicas=2, routing=routing)
    run = simulate(experiment, requests=requests, check=True)
    found = assemble(run.replicas, run.deliveries).requests
    np.testing.assert_allclose(found["arrived_at"], [at for at, _ in sent], atol=1e-12)
    reached = [0.04, 0.002, 0.003, 0.5018]
    np.testing.assert_allclose(found["scheduled_at"][[1, 3]], FRONT + np.array(reached)[[1, 3]])
    assert (found["scheduled_at"] >= FRONT + np.array(reached) - 1e-9).all()
    assert found["replica"].tolist() == ([0, 0, 1, 1] if routing == "round_robin" else [0, 0, 1, 0])
