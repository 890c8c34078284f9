"""A drafter that is not worth having costs next to nothing, and one that becomes so is found."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from driving import batch, outcome, started

from specsim.core.step import StepLoad
from specsim.policies.parts.trials import FIRST_WAIT, LONGEST_WAIT, TRIAL_TOKENS
from specsim.run.experiment import Experiment
from specsim.run.simulate import Run, simulate
from specsim.run.summary import Summary

POLICIES = ["goodput", "goodput:granularity=request", "goodput_exact", "slo_aware", "turbospec"]


def mean_latency(policy: str, method: str, rate: float) -> float:
    config = {
        "workload": {
            "arrivals": {"kind": "poisson", "rate": rate},
            "lengths": {"kind": "dataset", "name": "sharegpt"},
            "num_requests": 250,
        },
        "engine": {
            "max_num_seqs": 256,
            "async_scheduling": False,
            "speculative_config": {"method": method, "num_speculative_tokens": 5},
        },
        "acceptance": {"kind": "bernoulli", "alpha": 0.02},
        "profile": "h100/llama-3.1-8b-kernels",
        "policy": policy,
    }
    summary = Summary(simulate(Experiment.parse(config, "useless")))
    return float(summary.data["mean_e2el_ms"])


@pytest.mark.parametrize("method", ["draft_model", "eagle3"])
def test_a_useless_drafter_costs_less_than_one_percent(method: str) -> None:
    off = mean_latency("off", method, rate=12.0)
    for policy in POLICIES:
        assert mean_latency(policy, method, rate=12.0) < 1.01 * off, policy


@pytest.mark.parametrize("policy", POLICIES)
def test_a_drafter_that_becomes_good_is_found_again(
    policy: str, serve: Callable[..., Run], steps: Callable[..., list[Any]]
) -> None:
    # One request after the other, of 100 steps without drafts; those after the first 30 are easy.
    rows = [(26.0 * i, 4, 100) for i in range(90)]
    tables = [[0] * 100] * 30 + [[3] * 100] * 60
    # Thousands of steps of one request: the invariants are checked where more happens.
    run = serve(policy, rows, tables, speculative=("draft_model", 3), check=False)
    drafted = steps(run, "num_requests", "draft_tokens")
    useless, useful = drafted[:3000], drafted[3000:]
    tried = sum(tokens > 0 for _, tokens in useless)
    assert tried < 0.04 * len(useless)
    first = next(i for i in range(len(useful)) if min(n for _, n in useful[i : i + 10]) > 0)
    assert first < LONGEST_WAIT + 200
    assert sum(tokens > 0 for _, tokens in useful[-1000:]) > 800


def passes(load: StepLoad, lens: Any) -> float:
    """A target of 1 s, a drafter of 0.2 s a pass that has to keep up where it drafts nothing."""
    longest = lens if isinstance(lens, int) else max(lens, default=0)
    return 1.0 + 0.2 * max(1, longest)


def test_trials_are_small_and_ever_more_rare() -> None:
    policy, memory = started("goodput", 4, passes, plain_time=lambda load: 1.0)
    tried: list[int] = []
    for step in range(2000):
        lens = policy.draft_lens(batch(*range(20)), memory)
        lens = [lens] * 20 if isinstance(lens, int) else lens
        if any(lens):
            tried.append(step)
        policy.observe(outcome(lens, [0] * 20), memory)
        if step > 100:
            new = batch(0, is_admitted=np.ones(1, dtype=bool))
            given_up, left_out = (policy.drops(each, memory) for each in (batch(0), new))
            assert (given_up is None) == (left_out is None)
            assert sum(lens) in (0, TRIAL_TOKENS)
    assert policy.alpha_estimate(memory) < 0.05
    trials = [step for step in tried if step > 100]
    gaps = [later - earlier for earlier, later in pairwise(trials)]
    assert gaps == pytest.approx([2 * FIRST_WAIT, 4 * FIRST_WAIT, 8 * FIRST_WAIT], abs=2)


def test_a_fall_of_the_load_takes_the_drafter_back() -> None:
    # Alpha is about 0.7; a token takes 1/16 s to verify, so that speculation pays for few.
    def step_time(load: StepLoad, lens: Any) -> float:
        return load.batched_tokens / 16 + passes(load, lens)

    policy, memory = started(
        "goodput", 4, step_time, plain_time=lambda load: step_time(load, 0) - 0.2
    )
    full = batch(*range(200))
    for _ in range(500):
        asked = policy.draft_lens(full, memory)
        lens = asked if isinstance(asked, list) else [asked] * 200
        policy.observe(outcome(lens, [n * (i % 4 > 0) for i, n in enumerate(lens)]), memory)
    assert policy.drops(batch(0), memory) is not None
    few = batch(0, 1)
    assert next(i for i in range(100) if any(policy.draft_lens(few, memory))) < 30
    assert policy.drops(batch(0), memory) is None
