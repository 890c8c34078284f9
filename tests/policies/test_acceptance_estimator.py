"""vLLM's adaptive verification beyond DSpark: its estimator of acceptance, and who has it."""

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from estimator_steps import LONGEST, NUM, RECORDED, STEPS, steps

from specsim.core.compiled import as_records
from specsim.core.errors import ConfigError
from specsim.policies.parts.acceptance_estimator import estimator_desk, learn_fates, predict
from specsim.run.experiment import Experiment
from specsim.run.simulate import simulate
from specsim.run.summary import Summary

ADAPTIVE = {"num_speculative_tokens": 4, "enable_adaptive_verification": True}


def test_the_estimator_comes_to_what_vllms_does() -> None:
    recorded, fits = json.loads(RECORDED.read_text()), []
    estimator = as_records(estimator_desk(LONGEST).fit(NUM))
    estimator.requests[:NUM] = np.arange(NUM)
    for number, (verified, accepted, logits) in enumerate(steps(), 1):
        estimator.draft_lens[:NUM], estimator.accepted_lens[:NUM] = verified, accepted
        learn_fates(estimator, NUM)
        exact = logits.astype(np.float64)
        confidences = (np.exp(exact.max(axis=2)) / np.exp(exact).sum(axis=2)).astype(np.float32)
        chances = [
            [predict(estimator, request, place, float(confidences[place, request]))
             for place in range(LONGEST)] for request in range(NUM)
        ]  # fmt: skip
        if number % 100 == 0:
            fits.append([estimator.state[0].slope, *estimator.intercepts])
        if number in (1, STEPS):
            np.testing.assert_allclose(chances, recorded["chances"][number > 1], atol=1e-5)
    np.testing.assert_allclose(fits, recorded["fits"], atol=1e-4)
    assert len({slope for slope, *_ in fits}) == STEPS // 100


@pytest.mark.parametrize("method", ["eagle", "eagle3", "mtp", "draft_model"])
def test_vllms_field_is_the_policy_that_learns(
    method: str, tiny: Callable[..., Experiment], constant_step: Callable[..., str]
) -> None:
    draft = {"latency": {"kind": "linear", "alpha_ns": 0, "gamma_us": 0, "delta_ms": 0.3}}
    profile = constant_step(gamma_us=90.0, delta_ms=3.0, drafts={method: draft})
    field = {"speculative_config": {"method": method, **ADAPTIVE}}
    run = tiny(engine=field, profile=profile)
    bare = {**ADAPTIVE, "method": method, "enable_adaptive_verification": False}
    policy = {"kind": "adaptive_verification", "learns": True}
    same = tiny(engine={"speculative_config": bare}, policy=policy, profile=profile)
    found, expected = (Summary(simulate(each)).data for each in (run, same))
    for summary in (found, expected):
        del summary["specsim"]["config_hash"]
    assert found["specsim"]["policy"]["learns"]
    assert found == expected


@pytest.mark.parametrize(
    ("spec", "changes", "found"),
    [({"method": "ngram"}, {}, "not for method 'ngram'; leave it out"),
     ({"method": "suffix"}, {}, "not for method 'suffix'; leave it out"),
     ({"method": "eagle3"}, {"policy": {"kind": "static"}}, "not used by policy 'static'; remove"),
     ({"method": "eagle3", "num_speculative_tokens_per_batch_size": [[1, 300, 2]]}, {},
      "num_speculative_tokens_per_batch_size is not used by policy 'adaptive_verification'"),
     ({"method": "eagle3"}, {"lora_config": {}}, "vLLM refuses it with LoRA adapters")],
)  # fmt: skip
def test_what_vllm_refuses_is_refused(
    spec: dict[str, Any], changes: dict[str, Any], found: str, tiny: Callable[..., Experiment]
) -> None:
    own = {key: changes.pop(key) for key in ("lora_config",) if key in changes}
    with pytest.raises(ConfigError, match=found):
        tiny(engine={"speculative_config": {**ADAPTIVE, **spec}, **own}, **changes)
