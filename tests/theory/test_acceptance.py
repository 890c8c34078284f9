"""SmartSpec's eq. 8: tokens emitted per speculative step, whole engine included."""

from collections.abc import Callable

import numpy as np
import pytest
from agreement import assert_agrees
from conftest import tiny_config

from specsim.experiment import Experiment
from specsim.simulate import simulate


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
    records = simulate(experiment).replicas[0]
    emitted = 1.0 + records.accepted_lens[records.drafted_lens == k]
    by_request = emitted[np.argsort(records.delivered_to[records.drafted_lens == k], kind="stable")]
    assert_agrees(by_request, (1 - alpha ** (k + 1)) / (1 - alpha))
