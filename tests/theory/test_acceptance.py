"""SmartSpec's eq. 8: tokens emitted per speculative step, whole engine included."""

from collections.abc import Callable

import pytest
from agreement import assert_agrees
from conftest import tiny_config
from deliveries import every_delivery

from specsim.run.experiment import Experiment
from specsim.run.simulate import simulate


@pytest.mark.parametrize(("alpha", "k"), [(0.5, 1), (0.7, 3), (0.9, 5)])
def test_emitted_per_step_is_eq_8(alpha: float, k: int, tiny: Callable[..., Experiment]) -> None:
    spec = {"method": "eagle3", "num_speculative_tokens": k}
    experiment = tiny(
        workload={
            "arrivals": {"kind": "poisson", "rate": 4.0},
            "lengths": {"kind": "constant", "prompt": 32, "output": 400},
            "num_requests": 150,
        },
        acceptance={"kind": "bernoulli", "alpha": alpha},
        engine={**tiny_config()["engine"], "num_gpu_blocks": 4000, "speculative_config": spec},
    )
    by_request = every_delivery(simulate(experiment, keeps_deliveries=True))
    emitted = 1.0 + by_request.accepted[by_request.drafted == k]
    assert_agrees(emitted, (1 - alpha ** (k + 1)) / (1 - alpha))
