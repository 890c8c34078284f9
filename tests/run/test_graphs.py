"""Which CUDA graphs an engine has, and what its profile says of passes without one."""

from typing import Any

import pytest
from conftest import tiny_config

from specsim.core.errors import ProfileError
from specsim.core.step import StepLoad
from specsim.latency.composed import EAGER_LAYER_US
from specsim.profile import Profile, load_profile
from specsim.run.deployment import Deployment
from specsim.run.experiment import Experiment
from specsim.run.simulate import simulate
from specsim.run.summary import Summary

COMPOSED, FITTED = "h200/llama-3.1-8b", "h100/llama-3.1-8b"
V0 = {"scheduler": "prefill_first", "max_model_len": 1024}


def experiment(profile: str, engine: dict[str, Any], k: int = 3) -> Experiment:
    spec = {"method": "eagle3", "num_speculative_tokens": k or 1}
    policy = f"static:k={k}" if k else "off"
    config = tiny_config(profile=profile, policy=policy)
    return Experiment.parse(config | {"engine": {**engine, "speculative_config": spec}}, "tiny")


def target_of(
    profile: str, engine: dict[str, Any], k: int = 3, given: Profile | None = None
) -> Any:
    return Deployment.of(experiment(profile, engine, k), given).profile.target


def test_gpt_oss_has_larger_graphs_of_its_own() -> None:
    """vLLM 0.33.0 models/config.py, GptOssForCausalLMConfig: however many sequences there are."""
    for engine, largest in (
        ({"max_num_seqs": 8}, 1024),
        ({"max_num_batched_tokens": 768}, 768),
        ({"max_cudagraph_capture_size": 256}, 256),
    ):
        config = experiment("h200/gpt-oss-120b", engine, 0).model_dump(exclude_unset=True)
        config["engine"].pop("speculative_config")
        target = Deployment.of(Experiment.parse(config, "tiny")).profile.target
        assert target.capture_sizes[-1] == largest


@pytest.mark.parametrize(
    ("profile", "engine", "k", "largest"),
    [
        (COMPOSED, {}, 3, 512),
        ("b200/llama-3.1-8b", {}, 0, 1024),
        ("rtx-pro-6000/llama-3.1-8b", {}, 3, 512),  # Blackwell, not of data centers
        (COMPOSED, {"max_num_seqs": 8}, 0, 16),
        (COMPOSED, {"max_num_seqs": 8}, 3, 64),
        (COMPOSED, {"max_num_seqs": 8, "vllm_version": "0.28"}, 3, 64),
        (COMPOSED, {"max_num_seqs": 64, "max_num_batched_tokens": 256}, 3, 256),
        (COMPOSED, {"max_cudagraph_capture_size": 2048}, 3, 2048),
        (COMPOSED, {"max_num_seqs": 6, "max_cudagraph_capture_size": 42}, 6, 40),
        (COMPOSED, V0, 3, 512),
    ],
)
def test_graphs_are_those_that_vllm_captures(
    profile: str, engine: dict[str, Any], k: int, largest: int
) -> None:
    target = target_of(profile, engine, k)
    assert target.capture_sizes[-1] == largest
    launching = target.eager_at_least_us * 1e-6
    assert launching == pytest.approx(32 * 10 * 50e-6)  # kernels of 32 layers
    small = largest <= 64  # computing takes longer than launching where there are more tokens
    assert (target.forward_time(StepLoad(1, largest, 1)) < launching) >= small
    assert target.forward_time(StepLoad(1, largest + 1, 1)) >= launching


def test_graphs_are_captured_for_all_nodes_of_a_tree() -> None:
    """A path of 2 tokens in a tree of 20 nodes: a decode has 21 tokens, not 3."""
    engine = {"max_num_seqs": 4, "async_scheduling": False}
    largest = {}
    for policy in ("static:k=2", "static_tree:widths=[1,1]", "static_tree:widths=[4,4]"):
        found = Deployment.of(experiment(COMPOSED, engine, 2).replace(policy=policy))
        target: Any = found.profile.target
        largest[policy] = target.capture_sizes[-1]
    assert [*largest.values()] == [2 * 4 * 3, 2 * 4 * 3, 2 * 4 * 21]


def test_an_eager_engine_launches_the_kernels_of_each_pass() -> None:
    deployed = Deployment.of(experiment(COMPOSED, {"enforce_eager": True}))
    target, drafter = deployed.profile.target, deployed.costs.drafts[0].latency
    assert drafter is not None
    for latency, layers in ((target, 32), (drafter, 1)):
        for load in (StepLoad(1024, 1, 1), StepLoad(0, 8, 1, 8)):
            assert latency.forward_time(load) == pytest.approx(layers * EAGER_LAYER_US * 1e-6)
    found = [
        Summary(simulate(experiment(COMPOSED, {"enforce_eager": is_eager}, 0))).data
        for is_eager in (True, False)
    ]
    assert found[0]["median_itl_ms"] > 32 * 0.8 > 2 * found[1]["median_itl_ms"]


def without_launches() -> Profile:
    known = load_profile(COMPOSED)
    target = known.target.model_copy(update={"eager_at_least_us": 0.0})
    return known.model_copy(update={"target": target})


def test_a_profile_that_knows_no_launches_keeps_its_graphs() -> None:
    older = without_launches()
    assert target_of(COMPOSED, {"max_num_seqs": 8}, given=older).capture_sizes is None
    eager = target_of(COMPOSED, {"enforce_eager": True}, given=older)
    assert eager.forward_time(StepLoad(1024, 1, 1)) == pytest.approx(32 * EAGER_LAYER_US * 1e-6)
    named = {"max_cudagraph_capture_size": 16}
    with pytest.raises(ProfileError, match="does not say what passes without a CUDA graph take"):
        target_of(COMPOSED, named, given=older)
    assert target_of(FITTED, {"max_num_seqs": 8}) == load_profile(FITTED).target
    for engine in ({"enforce_eager": True}, named):
        with pytest.raises(ProfileError, match="use one composed from kernels"):
            target_of(FITTED, engine)


def test_a_profile_that_names_its_graphs_keeps_them_unless_the_engine_names_others() -> None:
    known = load_profile(COMPOSED)
    target = known.target.model_copy(update={"capture_sizes": (1, 2, 4)})
    own = known.model_copy(update={"target": target})
    assert target_of(COMPOSED, {}, given=own).capture_sizes == (1, 2, 4)
    named = {"max_cudagraph_capture_size": 16}
    assert target_of(COMPOSED, named, given=own).capture_sizes == (1, 2, 4, 8, 16)
