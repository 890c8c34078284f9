"""Expected tokens per step, SmartSpec's eq. 8 and 10, against the whole engine.

Acceptance of disjoint positions is independent, so the tokens of steps are: an interval needs no
batch means. It is of 99.9 %, and narrower than 3 % of the theory to either side.
"""

from typing import Any

import numpy as np
import pytest
from conftest import tiny_config
from deliveries import every_delivery
from scipy.stats import norm

from specsim.policies.medusa_tree import TreeLens
from specsim.policies.parts.estimate import expected_len
from specsim.run.experiment import Experiment
from specsim.run.simulate import simulate


def emitted_per_step(drafted: int, **changes: Any) -> tuple[float, float]:
    """Mean tokens of the steps that verified so many drafts, and the half-width of its interval."""
    config = tiny_config(
        workload={
            "arrivals": {"kind": "poisson", "rate": 20.0},
            "lengths": {"kind": "constant", "prompt": 16, "output": 1500},
            "num_requests": 30,
        },
        **changes,
    )
    config["engine"] = {
        **config["engine"], "num_gpu_blocks": 9000, "max_model_len": 2048, "max_num_seqs": 32,
        "max_num_batched_tokens": 2048,
    }  # fmt: skip
    found = every_delivery(simulate(Experiment.parse(config, "theory"), keeps_deliveries=True))
    full = found.drafted == drafted
    assert full.mean() > 0.9
    emitted = 1.0 + found.accepted[full]
    return emitted.mean(), norm.ppf(0.9995) * emitted.std(ddof=1) / len(emitted) ** 0.5


def engine(method: str, heads: int) -> dict[str, Any]:
    spec = {"method": method, "num_speculative_tokens": heads}
    return {**tiny_config()["engine"], "speculative_config": spec}


@pytest.mark.parametrize(("alpha", "k"), [(0.4, 2), (0.7, 4), (0.9, 7)])
@pytest.mark.parametrize("is_async", [False, True])
def test_chains_emit_what_eq_8_says(alpha: float, k: int, is_async: bool) -> None:
    mean, half_width = emitted_per_step(
        k,
        policy={"kind": "static", "k": k},
        engine={**engine("eagle3", k), "async_scheduling": is_async},
        acceptance={"kind": "bernoulli", "alpha": alpha},
    )
    theory = expected_len(alpha, k)
    assert half_width < 0.03 * theory
    assert abs(mean - theory) < half_width


def as_printed(alpha: float, widths: list[int]) -> float:
    """SmartSpec's eq. 10 to the letter, with the missing alpha after the last head taken as 0."""
    reached = np.cumprod(1 - (1 - alpha) ** np.array(widths))
    misses = np.array([1 - alpha] * (len(widths) - 1) + [1.0])
    return float((np.arange(2, len(widths) + 2) * misses * reached).sum())


@pytest.mark.parametrize(("alpha", "widths"), [(0.3, [3, 2, 2]), (0.6, [2, 2]), (0.5, [1, 3, 3])])
def test_trees_emit_what_eq_10_means_and_not_what_it_says(alpha: float, widths: list[int]) -> None:
    nodes = int(np.cumprod(widths).sum())
    mean, half_width = emitted_per_step(
        nodes,
        policy={"kind": "medusa_tree", "widths": widths},
        engine=engine("medusa", len(widths)),
        acceptance={"kind": "bernoulli", "alpha": alpha},
        profile="a100/llama-7b",
    )
    theory = float(TreeLens(np.array([widths]))(alpha)[0])
    assert half_width < 0.03 * theory
    assert abs(mean - theory) < half_width
    assert abs(mean - as_printed(alpha, widths)) > 5 * half_width


def test_heads_of_different_quality() -> None:
    rates = [0.8, 0.5, 0.3]
    mean, half_width = emitted_per_step(
        2 + 4 + 4,
        policy={"kind": "medusa_tree", "widths": [2, 2, 1]},
        engine=engine("medusa", 3),
        acceptance={"kind": "per_position", "conditional_rates": rates},
        profile="a100/llama-7b",
    )
    hits = 1 - (1 - np.array(rates)) ** np.array([2, 2, 1])
    theory = 1 + np.cumprod(hits).sum()
    assert half_width < 0.03 * theory
    assert abs(mean - theory) < half_width


def test_policies_believe_in_the_true_alpha() -> None:
    for policy, method, profile in [
        ("goodput", "eagle3", "h100/llama-3.1-8b"),
        ("goodput:granularity=request", "eagle3", "h100/llama-3.1-8b"),
        ("goodput_exact", "eagle3", "h100/llama-3.1-8b"),
        ("window_opt", "eagle3", "h100/llama-3.1-8b"),
        ("slo_aware", "eagle3", "h100/llama-3.1-8b"),
        ("turbospec", "eagle3", "h100/llama-3.1-8b"),
        ("medusa_tree", "medusa", "a100/llama-7b"),
    ]:
        config = tiny_config(
            workload={
                "arrivals": {"kind": "burst"},
                "lengths": {"kind": "constant", "prompt": 16, "output": 400},
                "num_requests": 16,
            },
            policy=policy,
            engine=engine(method, 3),
            acceptance={"kind": "bernoulli", "alpha": 0.55},
            profile=profile,
        )
        steps = simulate(Experiment.parse(config, "belief")).replicas[0].steps
        later = steps["alpha_estimate"][len(steps) // 3 : 2 * len(steps) // 3]
        assert np.mean(later) == pytest.approx(0.55, abs=0.04), policy
