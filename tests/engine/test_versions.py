"""What the schedulers of the versions of vLLM do differently, rules by hand."""

from typing import Any

import pytest

from specsim.core.errors import ConfigError
from specsim.core.rng import indexed_hashes
from specsim.core.settings import validated
from specsim.engine.config import EngineConfig
from specsim.engine.versions import RULES
from specsim.reality.parity import Scenario, run_scenario
from specsim.run.experiment import Experiment
from specsim.run.simulate import simulate

EAGLE = {"method": "eagle", "k": 2}
NOT_AHEAD = {"method": "eagle", "num_speculative_tokens": 2, "disable_lookahead_block_hashes": True}
LIMITS: dict[str, Any] = {"max_num_seqs": 8, "max_num_batched_tokens": 64, "max_model_len": 64}


def log_of(
    version: str, requests: list[dict[str, Any]], alpha: float = 1.0, **engine: Any
) -> dict[str, Any]:
    defaults = {
        "block_size": 4,
        "num_blocks": 64,
        "max_model_len": 64,
        "max_num_batched_tokens": 64,
        "max_num_seqs": 8,
        "enable_prefix_caching": True,
        "vllm_version": version,
    }
    rows = [{"id": f"r{i}", "arrival_ns": i, **row} for i, row in enumerate(requests)]
    scenario = Scenario.model_validate(
        {
            "name": "by hand",
            "seed": 1,
            "engine": defaults | engine,
            "cost": {"base_ns": 100, "per_token_ns": 1, "per_ctx_ns": 0},
            "acceptance": {"alpha": alpha},
            "drafts": {"mode": "full"},
            "requests": rows,
        }
    )
    return run_scenario(scenario)


def prompt(*token_ids: int, max_tokens: int = 3, arrival_ns: int = 0) -> dict[str, Any]:
    ids = [1000 + each for each in token_ids]
    return {
        "prompt_len": len(ids),
        "max_tokens": max_tokens,
        "prompt_token_ids": ids,
        "arrival_ns": arrival_ns,
    }


@pytest.mark.parametrize(("version", "cached"), [("0.32", 4), ("0.33", 8)])
def test_the_last_block_of_a_hit_is_good_if_its_hash_looks_ahead(version: str, cached: int) -> None:
    requests = [prompt(*range(10)), prompt(*range(10), arrival_ns=5000)]
    log = log_of(version, requests, spec=EAGLE)
    assert [row["cached"] for row in log["requests"]] == [0, cached]


def test_a_prompt_that_goes_on_differently_right_after_a_block_does_not_hit_it() -> None:
    requests = [prompt(*range(10)), prompt(*range(8), 50, 51, arrival_ns=5000)]
    assert log_of("0.33", requests, spec=EAGLE)["requests"][1]["cached"] == 4
    # A draft model reads nothing ahead.
    model = {"method": "draft_model", "k": 2}
    assert log_of("0.33", requests, spec=model)["requests"][1]["cached"] == 8


@pytest.mark.parametrize(("version", "expected"), [("0.32", []), ("0.33", ["b"])])
def test_who_is_its_own_victim_does_not_end_the_pass(version: str, expected: list[str]) -> None:
    # Five blocks: "a", first in the list and last by priority, needs a fourth of them.
    rows = [
        prompt(*range(8), max_tokens=8) | {"id": "a", "priority": 1},
        prompt(*range(20, 25), max_tokens=8, arrival_ns=10) | {"id": "b"},
    ]
    log = log_of(
        version,
        rows,
        num_blocks=6,
        max_model_len=16,
        policy="priority",
        enable_prefix_caching=False,
    )
    step = next(step for step in log["steps"] if step["preempted"])
    assert step["preempted"] == ["a"]
    assert [row[0] for row in step["sched"]] == expected


@pytest.mark.parametrize(("version", "cached"), [("0.32", 8), ("0.33", 12)])
def test_blocks_of_what_has_just_ended_are_published(version: str, cached: int) -> None:
    # All drafts survive: the prompt and a token, then the other five at once; 13 are computed.
    first = prompt(*range(8), max_tokens=6)
    token_ids = [*first["prompt_token_ids"], *scripted_outputs(6), 7]
    second = {"prompt_len": 15, "max_tokens": 1, "prompt_token_ids": token_ids, "arrival_ns": 5000}
    log = log_of(version, [first, second], spec={"method": "draft_model", "k": 4})
    assert log["requests"][1]["cached"] == cached


@pytest.mark.parametrize(("version", "pieces"), [("0.30", [8, 8, 4]), ("0.31", [20])])
def test_a_request_that_is_alone_is_not_cut(version: str, pieces: list[int]) -> None:
    rows = [prompt(*range(20), max_tokens=1)]
    log = log_of(version, rows, long_prefill_token_threshold=8)
    assert [step["sched"][0][1] for step in log["steps"]] == pieces


@pytest.mark.parametrize(("version", "kept_len"), [("0.28", -1), ("0.29", 0)])
def test_what_sliding_windows_keep_by_default(version: str, kept_len: int) -> None:
    engine = EngineConfig(vllm_version=version, num_gpu_blocks=64, **LIMITS)
    setup = engine.setup(None, 0, is_dynamic=False, is_async=False)
    assert setup.limits["retention_len"] == kept_len


def scripted_outputs(count: int) -> list[int]:
    """Return the first tokens that request 0 says in a scenario with seed 1."""
    return [1_000_000 + int(each) % 2**30 for each in indexed_hashes(1, 3, [0], [count])]


def test_steps_after_which_nobody_can_use_drafts_say_so() -> None:
    rows = [prompt(*range(20), max_tokens=2)]
    log = log_of("0.33", rows, alpha=0.0, spec=EAGLE, max_num_batched_tokens=16)
    # A piece of the prompt, the rest with the first token, and the last token.
    assert [step.get("skip_drafts") for step in log["steps"]] == [True, None, True]
    older = log_of("0.32", rows, alpha=0.0, spec=EAGLE, max_num_batched_tokens=16)
    assert not any("skip_drafts" in step for step in older["steps"])


def draft_times(version: str) -> list[float]:
    experiment = Experiment.model_validate(
        {
            "profile": "h100/gpt-oss-120b",
            "workload": {
                "arrivals": {"kind": "poisson", "rate": 1.0},
                "lengths": {"kind": "constant", "prompt": 64, "output": 1},
                "num_requests": 1,
            },
            "engine": {
                "vllm_version": version,
                "async_scheduling": False,
                "speculative_config": {"method": "eagle3", "num_speculative_tokens": 3},
            },
            "acceptance": {"kind": "bernoulli", "alpha": 0.7},
        }
    )
    times: list[float] = simulate(experiment).replicas[0].steps["draft_time"].tolist()
    return times


def test_a_head_whose_drafts_nobody_can_use_reads_and_drafts_nothing() -> None:
    (older,), (newer,) = draft_times("0.32"), draft_times("0.33")
    assert 0 < newer < older


@pytest.mark.parametrize("version", sorted(RULES))
def test_v0_is_older_than_every_version(version: str) -> None:
    engine = EngineConfig.model_validate(
        {
            "vllm_version": version,
            "scheduler": "prefill_first",
            "num_gpu_blocks": 64,
            "enable_prefix_caching": True,
            "speculative_config": {"method": "eagle3", "num_speculative_tokens": 3},
            **LIMITS,
        }
    )
    limits = engine.setup(engine.speculative_config, 3, is_dynamic=False, is_async=False).limits
    newer = ("hash_lookahead_len", "publishes_outputs", "passes_on", "skips_drafts", "loads_first")
    assert not any(limits[name] for name in newer)
    assert limits["drops_last_hit"]


@pytest.mark.parametrize(
    ("given", "version"), [(0.33, "0.33"), ("0.33.0", "0.33"), ("0.33", "0.33"), (0.3, "0.30")]
)
def test_a_version_may_be_a_number_or_have_a_patch(given: object, version: str) -> None:
    assert EngineConfig.model_validate({"vllm_version": given}).vllm_version == version


def test_a_version_is_no_number_of_three_decimals() -> None:
    with pytest.raises(ConfigError), validated("x.yaml", ConfigError):
        EngineConfig.model_validate({"vllm_version": 0.331})


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"vllm_version": "0.27"}, "vllm_version = '0.27': should be '0.28', '0.29', "),
        (
            {"vllm_version": "0.30", "max_num_active_seqs": 4},
            "max_num_active_seqs: vLLM has it since 0.31, not in vllm_version 0.30",
        ),
        (
            {"vllm_version": "0.32", "speculative_config": NOT_AHEAD},
            "disable_lookahead_block_hashes: there are none in vLLM 0.32; leave it out",
        ),
        (
            {"scheduler": "prefill_first", "speculative_config": NOT_AHEAD},
            "disable_lookahead_block_hashes: there are none in vLLM V0; leave it out",
        ),
    ],
)
def test_what_a_version_has_not_is_one_clear_line(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as error, validated("x.yaml", ConfigError):
        EngineConfig.model_validate(fields)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_hashes_do_not_look_ahead_behind_a_connector() -> None:
    proposer = {"method": "mtp", "num_speculative_tokens": 2}
    fields = {"vllm_version": "0.33", "speculative_config": proposer}
    engine = EngineConfig.model_validate(fields)
    legacy = engine.behind_connector().speculative_config
    assert legacy is not None
    assert legacy.disable_lookahead_block_hashes
    older = EngineConfig.model_validate(fields | {"vllm_version": "0.32"})
    assert older.behind_connector() == older
