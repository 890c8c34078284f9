"""Pipeline parallelism: stages that work on different steps, and sequences that wait for them."""

import math
from collections.abc import Callable
from typing import Any, ClassVar, Literal

import numpy as np
import pytest
from conftest import tiny_config

from specsim.api import BatchView, Policy, StepOutcome
from specsim.core.errors import SpecsimError
from specsim.core.request import Request
from specsim.hardware import load_model
from specsim.policies import ServerView
from specsim.profile import DraftCost, kv_layers, load_profile
from specsim.run.deployment import Deployment
from specsim.run.experiment import Experiment
from specsim.run.simulate import Run, simulate
from specsim.run.summary import Summary

Start = Callable[..., Run]
DRAFTS = {"ngram": {"token_us": 1}, "eagle3": {"basis": "pass", "step_ms": 3.0}}
DRAFTS |= {
    "draft_model": {
        "basis": "pass",
        "latency": {"kind": "linear", "alpha_ns": 0, "gamma_us": 0, "delta_ms": 3},
    }
}


@pytest.fixture
def run(constant_step: Callable[..., str]) -> Start:
    """Run requests of 1 prompt token, all at once, in passes of 12 ms whatever their size.

    LoRA adapters add 3 ms to each.
    """

    def start(
        stages: int,
        count: int,
        output_len: int = 50,
        adapters: list[int] | None = None,
        **fields: Any,
    ) -> Run:
        shares = {"stage_shares": [1 / stages] * stages} if stages > 1 else {}
        experiment = tiny_config(
            engine={
                "num_gpu_blocks": 5000, "max_model_len": 1024, "max_num_seqs": 8,
                "enable_prefix_caching": False, **fields.pop("engine", {}),
            },
            profile=constant_step(delta_ms=12, drafts=DRAFTS, lora={"step_ms": 3}, **shares),
            **fields,
        )  # fmt: skip
        requests = [
            Request(index=index, arrived_at=0.0, prompt_len=1, output_len=output_len, adapter=each)
            for index, each in enumerate(adapters or [0] * count)
        ]
        return simulate(Experiment.parse(experiment, "pipeline"), requests=requests, check=True)

    return start


def lasted(run: Run) -> float:
    ended: float = Summary(run).tables.requests["ended_at"].max()
    return ended


@pytest.mark.parametrize("stages", [2, 3, 4])
def test_one_request_takes_as_long_as_without_stages(run: Start, stages: int) -> None:
    assert lasted(run(stages, 1)) == pytest.approx(lasted(run(1, 1)))


@pytest.mark.parametrize("stages", [2, 3, 4])
def test_many_small_batches_fill_all_stages(run: Start, stages: int) -> None:
    """A step holds 8 of 8 times as many requests as there are stages: all stages work at once."""
    rounds, count = 20, 8 * stages
    alone = lasted(run(1, count, rounds, engine={"max_num_active_seqs": 8}))
    assert alone == pytest.approx(stages * rounds * 0.012)
    engine = {"max_num_seqs": count, "max_num_batched_tokens": count, "max_num_scheduled_tokens": 8}
    filled = lasted(run(stages, count, rounds, engine=engine))
    assert filled == pytest.approx((rounds + (stages - 1) / stages) * 0.012)


@pytest.mark.parametrize("stages", [2, 3])
def test_the_last_stage_drafts_and_the_first_one_waits_for_drafts(run: Start, stages: int) -> None:
    """Passes of 12 ms and drafts of 3 ms, all rejected: of one batch, and of one for each stage."""
    speculation = {"method": "eagle3", "num_speculative_tokens": 1}
    drafts: dict[str, Any] = {"policy": "static", "acceptance": {"kind": "bernoulli", "alpha": 0.0}}
    rounds, count = 100, 8 * stages
    engine: dict[str, Any] = {"speculative_config": speculation}
    one = lasted(run(stages, 1, rounds, engine=engine, **drafts))
    assert one == pytest.approx(rounds * 0.015, abs=0.003001)  # nothing is drafted at the end
    engine |= {"max_num_seqs": count, "max_num_batched_tokens": 64, "max_num_scheduled_tokens": 16}
    filled = lasted(run(stages, count, rounds, engine=engine, **drafts))
    assert filled == pytest.approx(rounds * (0.012 + stages * 0.003), rel=0.02)


class Uneven(Policy[list[float]]):
    """Draft as many tokens as the place of the step says; note what the drafts took."""

    kind: Literal["uneven"] = "uneven"
    observed: ClassVar[list[tuple[int, float]]] = []

    def start(self, server: ServerView) -> list[float]:
        self.observed.clear()
        return []

    def draft_lens(self, batch: BatchView, memory: list[float]) -> int:
        memory.append(batch.now)
        return 1 + len(memory) % 4

    def observe(self, outcome: StepOutcome, memory: list[float]) -> None:
        if outcome.draft_lens.any():
            self.observed.append((int(outcome.draft_lens.max()), outcome.draft_time))


@pytest.mark.parametrize("stages", [1, 2, 3])
def test_a_policy_is_told_what_the_drafts_took_that_were_verified(run: Start, stages: int) -> None:
    """Each token takes a pass of 3 ms; between two steps of a batch others are empty."""
    engine = {"speculative_config": {"method": "draft_model", "num_speculative_tokens": 4}}
    acceptance = {"kind": "bernoulli", "alpha": 0.4}
    run(stages, 4, engine=engine, policy=Uneven(), acceptance=acceptance)
    assert len(Uneven.observed) > 10
    assert all(time == pytest.approx(k * 0.003) for k, time in Uneven.observed)


def test_whole_batches_leave_the_other_stages_idle(run: Start) -> None:
    """All decode in one step, as vLLM schedules them, so that two stages are no faster than one."""
    assert lasted(run(2, 8)) == pytest.approx(lasted(run(1, 8)))


def test_stages_serve_adapters(run: Start) -> None:
    one = lasted(run(1, 1))
    adapter = {"engine": {"lora_config": {"max_loras": 1}, "vllm_version": "0.33"}}
    assert lasted(run(2, 1, adapters=[1], **adapter)) == pytest.approx(one * 15 / 12)
    apart = lasted(run(2, 2, adapters=[1, 2], **adapter))
    assert apart > 1.9 * lasted(run(2, 2, adapters=[1, 1], **adapter))


def test_stages_have_kv_cache_groups(run: Start) -> None:
    layers = [{"kind": "full_attention", "layers": 2},
              {"kind": "sliding_window", "window": 16, "layers": 2}]  # fmt: skip
    assert lasted(run(2, 8, engine={"kv_groups": layers})) == pytest.approx(lasted(run(2, 8)))
    with pytest.raises(SpecsimError, match="KV cache groups, without num_gpu_blocks, are not"):
        run(2, 8, engine={"kv_groups": layers, "num_gpu_blocks": None})


def test_stages_have_tiers(constant_step: Callable[..., str]) -> None:
    """What the GPU's cache has lost comes back from host memory, in as many blocks."""

    def loaded(shares: list[float]) -> list[int]:
        experiment = tiny_config(
            engine={
                "num_gpu_blocks": 20, "max_model_len": 256, "max_num_seqs": 2,
                "enable_prefix_caching": True, "async_scheduling": True,
                "kv_offload": {"blocks": 200, "bandwidth_gb_s": 20},
            },
            profile=constant_step(delta_ms=12, stage_shares=shares),
        )  # fmt: skip
        prompts = [np.arange(1000 * i, 1000 * i + 200) for i in (1, 2, 3, 1, 2, 3)]
        requests = [
            Request(
                index=i, arrived_at=3.0 * i, prompt_len=200, output_len=4, prompt_token_ids=prompt
            )
            for i, prompt in enumerate(prompts)
        ]
        ended = simulate(Experiment.parse(experiment, "tiers"), requests=requests, check=True)
        assert ended.offload is not None
        found: list[int] = ended.offload.loads["host_len"].tolist()
        return found

    assert loaded([1.0]) == [0, 0, 0, 192, 192, 192]
    assert loaded([0.5, 0.5]) == loaded([0.3, 0.3, 0.4]) == loaded([1.0])


def deployed(profile: str, **engine: Any) -> Deployment:
    config = tiny_config(profile=profile, engine={"max_num_seqs": 8, **engine}, policy="off")
    return Deployment.of(Experiment.parse(config, "pipeline"))


@pytest.mark.parametrize("stages", [2, 3])
def test_a_stage_holds_its_layers_alone(constant_step: Callable[..., str], stages: int) -> None:
    """Of 32, the fullest stage has 16 or 11, beside an embedding or a head of 2 x 0.98 GiB."""
    whole, own = (
        deployed(constant_step(delta_ms=12, stage_shares=[1 / count] * count)).memory
        for count in (1, stages)
    )
    layers, embedding = math.ceil(32 / stages), 2 * 128256 * 4096
    assert own.block_bytes == pytest.approx(whole.block_bytes * layers / 32)
    assert own.weight_bytes == pytest.approx(
        embedding + (whole.weight_bytes - 2 * embedding) * layers / 32
    )


@pytest.mark.parametrize("kv_bytes", [None, 131072])
@pytest.mark.parametrize("groups", [None, [{"kind": "full_attention", "layers": 32}]])
def test_a_tier_keeps_the_entries_of_all_stages(
    constant_step: Callable[..., str], kv_bytes: int | None, groups: Any
) -> None:
    """A block of 16 tokens takes 2 MiB, on however many GPUs its layers are."""
    engine = {"num_gpu_blocks": 1000, "max_model_len": 1024, "kv_groups": groups}
    engine["kv_offload"] = {"gib": 1, "bandwidth_gb_s": 10}
    for stages in (1, 2, 3):
        profile = {"stage_shares": [1 / stages] * stages}
        if kv_bytes is not None:
            profile["kv_bytes_per_token"] = kv_bytes * math.ceil(32 / stages) / 32
        found = deployed(constant_step(delta_ms=12, **profile), **engine)
        assert found.offloaded_block_bytes == pytest.approx(2**21)
        assert found.setup.limits["host_blocks"] == pytest.approx(512, abs=1)


def test_a_head_is_one_layer_beside_those_of_all_stages(constant_step: Callable[..., str]) -> None:
    """As wide as a layer of the target: 2,048 bytes a token in gpt-oss."""
    for stages in (1, 2):
        shares = {"stage_shares": [1 / stages] * stages, "kv_bytes_per_token": 24 * 2048 / stages}
        path = constant_step(delta_ms=12, **{"model": "gpt-oss-20b", **shares})
        profile, model = load_profile(path), load_model("gpt-oss-20b")
        layers = kv_layers(profile, model, [DraftCost(kv_bytes_per_token=2048)])
        assert layers is not None
        assert sum(each.layers for each in layers.drafts) == 1
        assert {each.bytes_per_token for each in layers.target + layers.drafts} == {2048}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"engine": {"speculative_config": {"method": "eagle3", "num_speculative_tokens": 2,
                                               "parallel_drafting": True}},
             "policy": "static", "acceptance": {"kind": "bernoulli", "alpha": 0.5}},
            "parallel drafting of an EAGLE head or a draft model",
        ),
        (
            {"engine": {"speculative_config": {"method": "ngram", "num_speculative_tokens": 2}},
             "policy": "static", "acceptance": {"kind": "bernoulli", "alpha": 0.5}},
            "stages with drafts that wait for the host are not simulated",
        ),
        ({"engine": {"async_scheduling": False}}, "async_scheduling false"),
        ({"engine": {"scheduler": "prefill_first"}}, "prefill_first"),
        ({"engine": {"vllm_version": "0.30"}}, "vllm_version 0.30"),
        ({"engine": {"data_parallel_size": 2}}, "data_parallel_size"),
        ({"engine": {"pipeline_parallel_size": 4}}, "the profile was made with 2"),
    ],
)  # fmt: skip
def test_what_does_not_combine_is_refused(run: Start, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecsimError, match=message):
        run(2, 1, **fields)
