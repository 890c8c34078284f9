"""Drafters that draft all tokens in one pass: what vLLM has them take, cost, and refuse."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from deliveries import every_delivery

from specsim.core.errors import ConfigError
from specsim.profile import load_profile
from specsim.run.deployment import Deployment
from specsim.run.drafting import server_view
from specsim.run.experiment import Experiment
from specsim.run.simulate import simulate
from specsim.run.summary import Summary
from specsim.show.render.profile_tables import Overview

Tiny = Callable[..., Experiment]
PASS = {"latency": {"kind": "linear", "alpha_ns": 0, "gamma_us": 10.0, "delta_ms": 0.5}}


def spec(method: str, k: int, **fields: Any) -> dict[str, Any]:
    return {"speculative_config": {"method": method, "num_speculative_tokens": k, **fields}}


@pytest.mark.parametrize(
    ("method", "fields", "tokens"),
    [("dflash", {}, 6), ("dspark", {}, 5), ("dspark", {"parallel_drafting": True}, 5),
     ("eagle", {"parallel_drafting": True}, 6 + 4),
     ("eagle3", {"parallel_drafting": True}, 6 + 4),
     ("draft_model", {"parallel_drafting": True}, 6 + 5)],
)  # fmt: skip
def test_one_pass_is_paid_for_whatever_k(
    method: str, fields: dict[str, Any], tokens: int, tiny: Tiny, constant_step: Callable[..., str]
) -> None:
    """A lone request verifies five drafts and its last token in every step but the first."""
    profile = constant_step(delta_ms=4.0, drafts={method: PASS})
    workload = {"arrivals": {"kind": "burst"}, "num_requests": 1,
                "lengths": {"kind": "constant", "prompt": 16, "output": 60}}  # fmt: skip
    run = tiny(engine=spec(method, 5, **fields), profile=profile, workload=workload, policy=None)
    steps = simulate(run).replicas[0].steps
    expected = 0.5e-3 + tokens * 10e-6
    later = steps["draft_time"][1:-2]
    assert len(later) > 5
    np.testing.assert_allclose(later, expected, rtol=1e-9)


@pytest.mark.parametrize(
    ("method", "version", "slots", "drops"),
    [("dflash", "0.28", 5, 1), ("dflash", "0.32", 5, 1), ("dflash", "0.33", 0, 0),
     ("dspark", "0.32", 4, 1), ("dspark", "0.33", 0, 0)],
)  # fmt: skip
def test_versions_take_blocks_differently(
    method: str, version: str, slots: int, drops: int, tiny: Tiny, constant_step: Callable[..., str]
) -> None:
    engine = {**spec(method, 5), "vllm_version": version, "enable_prefix_caching": True}
    profile = constant_step(delta_ms=4.0, drafts={method: PASS})
    run = tiny(engine=engine, profile=profile, policy=None)
    limits = Deployment.of(run).setup.limits
    assert (limits["draft_slots"], limits["drops_last_hit"], limits["hash_lookahead_len"]) == (
        slots, drops, 0,
    )  # fmt: skip
    assert limits["lookahead_len"] == (6 if method == "dflash" else 5)


def test_acceptance_by_position_is_what_was_stated(
    tiny: Tiny, constant_step: Callable[..., str]
) -> None:
    rates = [0.8, 0.6, 0.5, 0.3]
    workload = {"arrivals": {"kind": "burst"}, "num_requests": 20,
                "lengths": {"kind": "constant", "prompt": 16, "output": 900}}  # fmt: skip
    run = tiny(engine={**spec("dflash", 4), "num_gpu_blocks": 9000, "max_model_len": 1024},
               profile=constant_step(delta_ms=4.0, drafts={"dflash": PASS}),
               workload=workload, policy=None,
               acceptance={"kind": "per_position", "unconditional_rates": rates})  # fmt: skip
    found = every_delivery(simulate(run, keeps_deliveries=True))
    accepted = found.accepted[found.drafted == 4]
    for place, rate in enumerate(rates):
        share = np.mean(accepted > place)
        assert abs(share - rate) < 3.3 * (rate * (1 - rate) / len(accepted)) ** 0.5


@pytest.mark.parametrize(
    ("engine", "policy", "told"),
    [({**spec("dspark", 4), "scheduler": "prefill_first"}, None, "V0 has no parallel drafting"),
     (spec("eagle3", 4, parallel_drafting=True), "eagle2_tree", "eagle3' cannot at once"),
     (spec("dflash", 4), {"kind": "static_tree", "widths": [2]}, "trees, which method 'dflash'"),
     (spec("draft_model", 4, parallel_drafting=True, own_gpus={"overlaps": True}), None,
      "leave out overlaps or parallel_drafting"),
     ({**spec("dspark", 8), "max_num_batched_tokens": 7, "max_num_seqs": 4,
       "vllm_version": "0.32"}, None,
      "7 of them are the drafter's, and what is left is too few for a token"),
     ({**spec("dflash", 8), "max_num_batched_tokens": 1024, "max_model_len": 1024,
       "enable_chunked_prefill": False, "vllm_version": "0.32"}, None,
      "too few for a whole prompt"),
     (spec("ngram", 4, parallel_drafting=True), None, "parallel_drafting")],
)  # fmt: skip
def test_what_vllm_has_not_is_refused(
    engine: dict[str, Any], policy: Any, told: str, tiny: Tiny, constant_step: Callable[..., str]
) -> None:
    method = engine["speculative_config"]["method"]
    profile = constant_step(delta_ms=4.0, drafts={method: PASS})
    with pytest.raises(ConfigError, match=told):
        assert Deployment.of(tiny(engine=engine, policy=policy, profile=profile)).setup


def test_dspark_verifies_adaptively_by_its_head(
    tiny: Tiny, constant_step: Callable[..., str]
) -> None:
    for method, learns in (("dflash", True), ("dspark", False)):
        engine = spec(method, 4, enable_adaptive_verification=True)
        profile = constant_step(delta_ms=4.0, drafts={method: PASS})
        run = tiny(engine=engine, profile=profile, policy=None)
        assert run.effective_policy.learns is learns


def test_whoever_asks_for_a_step_is_told_of_the_one_pass(
    tiny: Tiny, constant_step: Callable[..., str]
) -> None:
    path = constant_step(delta_ms=4.0, drafts={"dflash": PASS})
    overview = Overview.of(load_profile(path))
    assert overview.decode_time(8, 100, 5, "dflash").seconds == pytest.approx(4.5e-3 + 8 * 6 * 1e-5)
    engine = {**spec("dflash", 5), "num_gpu_blocks": 9000, "max_model_len": 1024}
    run = simulate(tiny(engine=engine, profile=path, policy="window_opt"))
    step = Summary(run).usual_step
    expected = 4.5e-3 + 6 * step.load.num_requests * 1e-5
    assert step.time(run.deployment.profile) == pytest.approx(expected)
    deployed = Deployment.of(run.experiment)
    assert server_view(run.experiment, deployed, 0).pass_times == (0.0,)
