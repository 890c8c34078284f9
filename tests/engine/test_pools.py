"""Pools: prompts here, answers there; nothing is lost in between, whatever fails."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from conftest import tiny_config
from deliveries import every_delivery
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from strategies import engines, workloads

from specsim.core.errors import ConfigError
from specsim.core.request import Request
from specsim.run.experiment import Experiment
from specsim.run.simulate import Run, simulate
from specsim.run.summary import Summary

STEP = 0.25  # seconds
KV_BYTES = 131072  # of one token of llama-3.1-8b


def with_windows(windows: list[int]) -> list[dict[str, Any]]:
    """Return one layer in two that attends to everything, and others with windows, in turn."""
    sliding = [{"kind": "sliding_window", "window": each, "layers": 16} for each in windows]
    return [{"kind": "full_attention", "layers": 16}, *sliding]


@pytest.fixture
def run(constant_step: Callable[..., str]) -> Callable[..., Run]:
    """Run requests (arrival, prompt, output) on pools with a constant step."""

    def start(
        rows: list[tuple[float, int, int]],
        *,
        prefill: int = 1,
        decode: int = 1,
        engine: dict[str, Any] | None = None,
        transfer: dict[str, Any] | None = None,
        pools: dict[str, Any] | None = None,
        **changes: Any,
    ) -> Run:
        settings = {"num_gpu_blocks": 100, "max_model_len": 64, "max_num_batched_tokens": 64,
                    "max_num_seqs": 8, "async_scheduling": False,
                    "enable_prefix_caching": False, **(engine or {})}  # fmt: skip
        pools = pools or {}
        config = tiny_config(
            engine=settings,
            profile=constant_step(delta_ms=STEP * 1e3, **changes.pop("costs", {})),
            pools={
                "prefill": {"replicas": prefill, **pools.get("prefill", {})},
                "decode": {"replicas": decode, **pools.get("decode", {})},
                "transfer": transfer or {},
            },
            **changes,
        )
        requests = [
            Request(index=i, arrived_at=at, prompt_len=prompt, output_len=output)
            for i, (at, prompt, output) in enumerate(rows)
        ]
        return simulate(
            Experiment.parse(config, "pools"), requests=requests, check=True, keeps_deliveries=True
        )

    return start


def failure(pool: str, replica: int, at: float, until: float | None = None) -> dict[str, Any]:
    return {"kind": "failure", "pool": pool, "replica": replica, "at": at, "until": until}


def seconds_for(tokens: int, seconds: float) -> float:
    """Return the bandwidth, GB/s, at which tokens take so long."""
    return tokens * KV_BYTES / seconds / 1e9


def times(result: Run) -> list[tuple[float, ...]]:
    summary = Summary(result)
    rows, pools = summary.tables.requests, summary.pools
    assert pools is not None
    moved = pools.transfers
    return [
        (
            row["arrived_at"],
            moved["prefilled_at"][i],
            moved["transfer_ended_at"][i],
            row["first_token_at"],
            row["ended_at"],
        )
        for i, row in enumerate(rows)
    ]


def steps(result: Run, replica: int) -> list[tuple[float, ...]]:
    names = ("scheduled_at", "ended_at", "batched_tokens", "num_requests")
    return [tuple(row[name] for name in names) for row in result.replicas[replica].steps]


def test_a_request_is_prefilled_then_moved_then_decoded(run: Callable[..., Run]) -> None:
    result = run([(0.0, 40, 3)], transfer={"bandwidth_gb_s": seconds_for(40, 0.5)})
    # One step of prefill, half a second on the link, then one step for each token.
    assert times(result) == [(0.0, 0.25, 0.75, 1.0, 1.5)]
    assert steps(result, 1) == [(0.0, 0.25, 40, 1)]
    assert steps(result, 0) == [(0.75, 1.0, 1, 1), (1.0, 1.25, 1, 1), (1.25, 1.5, 1, 1)]
    summary = Summary(result)
    assert summary.data["specsim"]["pools"] == {
        "decode_replicas": 1, "prefill_num_gpu_blocks": 100,
        "transfers": 1, "transferred_tokens": 40, "prefilled_by_decode": 0,
        "mean_transfer_ms": 500.0, "mean_prefill_ms": 250.0,
    }  # fmt: skip
    assert summary.data["total_output_tokens"] == 3


def test_steps_beyond_a_profile_are_told_of_each_pool_by_its_own_range(
    run: Callable[..., Run], constant_step: Callable[..., str]
) -> None:
    """Three prompts of 20 tokens at once, which the prefill pool's profile alone knows."""
    paths = dict.fromkeys(("prefill", "decode"), "")
    for pool, most in (("prefill", 50), ("decode", 2)):
        paths[pool] = constant_step(delta_ms=STEP * 1e3)
        content = yaml.safe_load(Path(paths[pool]).read_text())
        content["valid_range"] = {"context_tokens": 100, "batched_tokens": most}
        Path(paths[pool]).write_text(yaml.safe_dump(content))
    pools = {pool: {"profile": path} for pool, path in paths.items()}
    summary = Summary(run([(0.0, 20, 5)] * 3, pools=pools))
    said = [text for text in summary.warnings if "valid range" in text]
    assert said == [
        "100 % of the prefill pool's steps lie outside the profile's valid range: up to 60 "
        "batched tokens, fitted up to 50",
        "66.7 % of the decode pool's steps lie outside the profile's valid range: up to 3 batched "
        "tokens, fitted up to 2",
    ]


def test_transfers_wait_for_one_another_unless_there_are_lanes(run: Callable[..., Run]) -> None:
    rows = [(0.0, 20, 1), (0.0, 20, 1)]
    gb_s = seconds_for(20, 0.5)
    ends = [row[2] for row in times(run(rows, transfer={"bandwidth_gb_s": gb_s}))]
    assert ends == [0.75, 1.25]
    lanes = {"bandwidth_gb_s": gb_s, "max_transfers": 2}
    assert [row[2] for row in times(run(rows, transfer=lanes))] == [1.25, 1.25]
    two = run(rows, decode=2, transfer={"bandwidth_gb_s": gb_s})
    assert [row[2] for row in times(two)] == [0.75, 0.75]
    one_link = {"bandwidth_gb_s": gb_s, "link": "prefill"}
    assert [row[2] for row in times(run(rows, decode=2, transfer=one_link))] == [0.75, 1.25]


def test_a_latency_comes_on_top_of_each_transfer(run: Callable[..., Run]) -> None:
    transfer = {"bandwidth_gb_s": seconds_for(20, 0.5), "latency_ms": 125.0}
    result = run([(0.0, 20, 1), (0.0, 20, 1)], transfer=transfer)
    assert [row[2] for row in times(result)] == [0.875, 1.375]


def test_layers_are_sent_while_others_are_computed(run: Callable[..., Run]) -> None:
    # A quarter of the time fits beside the prefill; then the last of 32 layers.
    slow = {"bandwidth_gb_s": seconds_for(40, 1.0), "overlap": "layers"}
    assert times(run([(0.0, 40, 1)], transfer=slow))[0][2] == 1.0
    fast = {"bandwidth_gb_s": seconds_for(40, 0.125), "overlap": "layers"}
    assert times(run([(0.0, 40, 1)], transfer=fast))[0][2] == 0.25 + 0.125 / 32


def test_what_the_decode_replica_has_cached_is_not_moved(run: Callable[..., Run]) -> None:
    engine = {"enable_prefix_caching": True, "block_size": 8, "max_model_len": 64}
    prompt = np.arange(40)
    config = tiny_config(
        engine={"num_gpu_blocks": 100, "max_num_batched_tokens": 64, "max_num_seqs": 8, **engine},
        policy="off",
        pools={"prefill": {}, "decode": {}},
    )
    requests = [
        Request(index=i, arrived_at=float(i), prompt_len=40, output_len=2, prompt_token_ids=prompt)
        for i in range(2)
    ]
    result = simulate(Experiment.parse(config, "pools"), requests=requests, check=True)
    pools = Summary(result).pools
    assert pools is not None
    # Of the whole prompt, at least the last token is asked for, and with it its block.
    assert pools.transfers["transferred_len"].tolist() == [40, 8]


def test_blocks_of_prompts_are_kept_until_they_have_been_read(run: Callable[..., Run]) -> None:
    # Four blocks per prompt of the prefill replica's eight: the third waits for the first transfer.
    engine = {"block_size": 8, "max_model_len": 32}
    rows = [(0.0, 32 - 1, 1)] * 3
    gb_s = seconds_for(31, 2.0)
    result = run(
        rows, engine=engine, transfer={"bandwidth_gb_s": gb_s},
        pools={"prefill": {"engine": {"num_gpu_blocks": 9}}},
    )  # fmt: skip
    assert [row[1] for row in times(result)] == [0.25, 0.25, 2.5]
    assert [row[2] for row in times(result)] == [2.25, 4.25, 6.25]


def test_a_load_does_not_count_as_running(run: Callable[..., Run]) -> None:
    # With one slot the second request loads while the first one answers.
    rows = [(0.0, 20, 8), (0.0, 20, 1)]
    result = run(
        rows,
        transfer={"bandwidth_gb_s": seconds_for(20, 0.5)},
        pools={"decode": {"engine": {"max_num_seqs": 2}}, "prefill": {}},
    )
    assert [row[2] for row in times(result)] == [0.75, 1.25]
    assert times(result)[1][3] == 1.5


def test_a_decode_replica_that_fails_has_its_loads_moved_again(run: Callable[..., Run]) -> None:
    transfer = {"bandwidth_gb_s": seconds_for(20, 1.0)}
    result = run([(0.0, 20, 2)], decode=2, transfer=transfer, incidents=[failure("decode", 0, 0.5)])
    assert times(result) == [(0.0, 0.25, 1.5, 1.75, 2.0)]
    summary = Summary(result)
    assert summary.data["specsim"]["pools"]["transfers"] == 2
    assert summary.data["specsim"]["pools"]["transferred_tokens"] == 40
    assert summary.tables.requests["requeues"].tolist() == [1]


def test_what_ran_on_a_decode_replica_that_fails_is_prefilled_by_another(
    run: Callable[..., Run],
) -> None:
    transfer = {"bandwidth_gb_s": seconds_for(20, 0.25)}
    result = run([(0.0, 20, 4)], decode=2, transfer=transfer, incidents=[failure("decode", 0, 0.9)])
    # The prompt and the one token that was delivered, on the other replica.
    assert steps(result, 1)[0][1:] == (1.15, 21, 1)
    assert Summary(result).data["specsim"]["pools"]["transfers"] == 1


def test_a_prefill_replica_that_fails_takes_its_transfers_with_it(run: Callable[..., Run]) -> None:
    transfer = {"bandwidth_gb_s": seconds_for(20, 1.0)}
    incidents = [failure("prefill", 0, 0.5, 9.0)]
    result = run([(0.0, 20, 1), (0.0, 20, 1)], transfer=transfer, incidents=incidents)
    # One was on the link and one waited for it: the decode replica reads both prompts itself.
    assert steps(result, 0) == [(0.5, 0.75, 40, 2)]
    assert [row[3] for row in times(result)] == [0.75, 0.75]


def test_an_unfinished_prefill_goes_to_another_prefill_replica(run: Callable[..., Run]) -> None:
    result = run([(0.0, 20, 1)], prefill=2, incidents=[failure("prefill", 0, 0.125)])
    assert steps(result, 2) == [(0.125, 0.375, 20, 1)]
    assert Summary(result).tables.requests["requeues"].tolist() == [1]


@pytest.mark.parametrize(("draft_kv", "drafts", "prefill_drafts"), [
    ("moved", True, True), ("recomputed", True, False), ("cold", False, False),
])  # fmt: skip
def test_the_drafters_entries_are_moved_recomputed_or_missing(
    run: Callable[..., Run], draft_kv: str, drafts: bool, prefill_drafts: bool
) -> None:
    latency = {"kind": "linear", "alpha_ns": 0, "gamma_us": 1000, "delta_ms": 1}
    spec = {"method": "eagle3", "num_speculative_tokens": 2}
    result = run(
        [(0.0, 40, 9)],
        engine={"speculative_config": spec},
        costs={"drafts": {"eagle3": {"latency": latency, "kv_bytes_per_token": 4096}}},
        transfer={"draft_kv": draft_kv, "bandwidth_gb_s": 1.0},
    )
    decode, prefill = result.replicas[0].steps, result.replicas[1].steps
    assert bool(prefill["draft_time"][0]) == prefill_drafts
    # The admission itself is padded with dummy drafts, as vLLM does it.
    assert (Summary(result).tables.requests["drafts"][0] > 1) == drafts
    size = KV_BYTES + (4096 if draft_kv == "moved" else 0)
    _, prefilled_at, loaded_at, *_ = times(result)[0]
    assert loaded_at - prefilled_at == pytest.approx(40 * size / 1e9)
    if draft_kv == "recomputed":  # 40 prompt tokens, of which the target computes one
        assert decode["draft_time"][0] - decode["draft_time"][1] == pytest.approx(0.039)


@pytest.mark.parametrize("policy", ["static", "joint"])
def test_a_lookup_has_no_entries_that_could_be_missing(
    run: Callable[..., Run], policy: str
) -> None:
    result = run(
        [(0.0, 40, 9)],
        engine={"speculative_config": {"method": "ngram", "num_speculative_tokens": 2}},
        costs={"drafts": {"ngram": {"token_us": 20}}},
        transfer={"draft_kv": "cold"},
        policy=policy,
    )
    assert Summary(result).tables.requests["drafts"][0] > 1


def test_the_policy_of_several_drafters_is_asked_in_both_pools(run: Callable[..., Run]) -> None:
    latency = {"kind": "linear", "alpha_ns": 0, "gamma_us": 1000, "delta_ms": 1}
    models = {name: {"kind": "bernoulli", "alpha": 0.7} for name in ("small", "large")}
    spec = {"method": "draft_models", "models": [*models], "num_speculative_tokens": 2}
    result = run(
        [(0.0, 40, 9)],
        engine={"speculative_config": spec},
        costs={"drafts": {name: {"latency": latency} for name in models}},
        policy="draft_selection",
        acceptance={"kind": "per_drafter", "models": models},
    )
    assert [records.steps["draft_time"].any() for records in result.replicas] == [True, True]


def test_a_model_may_be_named_in_one_pool_alone(run: Callable[..., Run]) -> None:
    named = {"engine": {"model": "llama-3.1-8b"}}
    alike = run([(0.0, 40, 9)]), run([(0.0, 40, 9)], pools={"prefill": named})
    assert times(alike[0]) == times(alike[1])


def test_without_drafts_the_prefill_pool_has_no_drafter(run: Callable[..., Run]) -> None:
    latency = {"kind": "linear", "alpha_ns": 0, "gamma_us": 1000, "delta_ms": 1}
    spec = {"method": "eagle3", "num_speculative_tokens": 2}
    costs = {"drafts": {"eagle3": {"latency": latency, "kv_bytes_per_token": 4096}}}
    result = run([(0.0, 40, 9)], engine={"speculative_config": spec}, costs=costs, policy="off")
    assert not any(records.steps["draft_time"].any() for records in result.replicas)


@settings(
    max_examples=50,  # `make fuzz` has 2,000 worlds
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    engine=engines(),
    workload=workloads(),
    data=st.data(),
    sizes=st.tuples(st.integers(1, 3), st.integers(1, 3)),
)
def test_whatever_happens_every_request_ends_once_and_every_block_is_free(
    every_method: str, engine: dict[str, Any], workload: dict[str, Any], data: st.DataObject,
    sizes: tuple[int, int],
) -> None:  # fmt: skip
    engine["scheduler"] = "v1"
    instants = st.sampled_from([0.0, 0.01, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6])
    incidents = []
    for pool, count in zip(("prefill", "decode"), sizes, strict=True):
        for number in range(count):
            first, second = sorted((data.draw(instants), data.draw(instants)))
            if first < second:
                incidents.append(failure(pool, number, first, second))
            slow = {**failure(pool, number, second, second + 0.3), "kind": "slowdown"}
            incidents.append({**slow, "factor": 3.0})
    transfer = {
        "bandwidth_gb_s": data.draw(st.sampled_from([0.01, 1.0, 1e6])),
        "latency_ms": data.draw(st.sampled_from([0.0, 30.0])),
        "max_transfers": data.draw(st.integers(1, 3)),
        "link": data.draw(st.sampled_from(["decode", "prefill", "all"])),
        "overlap": data.draw(st.sampled_from(["none", "layers"])),
        "draft_kv": data.draw(st.sampled_from(["moved", "recomputed", "cold"])),
    }
    if data.draw(st.booleans()):
        windows = data.draw(st.lists(st.sampled_from([2, 8, 40]), min_size=1, max_size=2))
        engine["kv_groups"] = with_windows(windows)
        engine["num_gpu_blocks"] *= 2 + len(windows)
        transfer["draft_kv"] = "moved"
    routing = data.draw(st.sampled_from(["round_robin", "least_outstanding_tokens"]))
    pools = {
        "prefill": {"replicas": sizes[0]}, "decode": {"replicas": sizes[1], "routing": routing},
        "transfer": transfer,
    }  # fmt: skip
    config = tiny_config(
        engine=engine, workload=workload, profile=every_method, pools=pools, incidents=incidents
    )
    result = simulate(Experiment.parse(config, "random"), check=True, keeps_deliveries=True)
    summary = Summary(result)
    rows, moved = summary.tables.requests, summary.pools
    assert moved is not None
    ended = np.concatenate([records.requests["request"] for records in result.replicas])
    assert np.sort(ended).tolist() == list(range(len(result.requests)))
    assert rows["output_len"].tolist() == [
        min(r.output_len, engine["max_model_len"] - r.prompt_len) for r in result.requests
    ]
    packed = every_delivery(result)
    tokens = [int(mine.sum()) for mine in np.split(packed.lens, packed.starts[1:-1])]
    assert tokens == rows["output_len"].tolist()
    assert (moved.prefills["output_len"] == 1).all()
    assert (rows["arrived_at"] <= moved.transfers["prefilled_at"]).all()
    assert (moved.transfers["prefilled_at"] < rows["first_token_at"]).all()
    once = moved.transfers["transfers"] == 1
    assert (moved.transfers["transferred_len"] <= rows["prompt_len"])[once].all()


def test_of_layers_with_windows_what_they_read_is_moved(run: Callable[..., Run]) -> None:
    """A prompt of 48 tokens: all in half of the layers, in the others the window's three blocks."""
    link = {"bandwidth_gb_s": KV_BYTES * 1e-9, "latency_ms": 0.0}  # a token a second
    engine = {"block_size": 4, "kv_groups": with_windows([8])}
    found = run([(0.0, 48, 2)], engine=engine, transfer=link)
    assert found.pools is not None
    moved = found.pools.pools.transfers[0]
    seconds = moved["transfer_ended_at"] - moved["transfer_began_at"]
    assert seconds == pytest.approx(48 / 2 + 12 / 2)
    assert moved["transferred_len"] == 48


def test_a_switch_that_is_off_is_one_that_is_left_out(run: Callable[..., Run]) -> None:
    engine = {"block_size": 4, "kv_groups": with_windows([8])}
    off = {"prefill": {"engine": {"disable_hybrid_kv_cache_manager": False}}}
    found = run([(0.0, 48, 2)], engine=engine, pools=off)
    assert len(found.replicas[0].requests) == 1


def test_layers_in_chunks_are_moved_whole_without_the_hybrid_manager(
    run: Callable[..., Run],
) -> None:
    chunks = {"kind": "chunked_local_attention", "chunk": 8, "layers": 16}
    engine = {"block_size": 4, "kv_groups": [*with_windows([]), chunks]}
    found = run([(0.0, 48, 2)], engine={**engine, "disable_hybrid_kv_cache_manager": True})
    assert found.pools is not None
    assert found.pools.pools.size.of(48) == 48 * KV_BYTES


@pytest.mark.parametrize(("prompt", "moved"), [(48, 47), (1, 1)])
def test_of_layers_with_states_all_but_the_last_token_is_moved(
    run: Callable[..., Run], prompt: int, moved: int
) -> None:
    states = {"kind": "state", "layers": 16}
    engine = {"block_size": 4, "kv_groups": [*with_windows([]), states]}
    found = run([(0.0, prompt, 2)], engine=engine)
    assert found.pools is not None
    assert found.pools.pools.transfers["transferred_len"].tolist() == [moved]


def test_modules_that_draft_in_turn_read_what_they_look_ahead_to(run: Callable[..., Run]) -> None:
    spec = {"method": "mtp", "num_speculative_tokens": 3, "num_nextn_predict_layers": 3}
    drafts = {"mtp": {"target_share": 0.25}}
    found = run([(0.0, 48, 2)], engine={"speculative_config": spec}, costs={"drafts": drafts})
    assert found.pools is not None
    assert found.pools.pools.transfers["transferred_len"].tolist() == [46]


def test_a_loaded_prompt_holds_what_windows_read(run: Callable[..., Run]) -> None:
    """Nine blocks suffice for a prompt that would fill 24; the null block is one more."""
    engine = {"block_size": 4, "kv_groups": with_windows([8])[1:], "num_gpu_blocks": 10}
    engine |= {"max_num_batched_tokens": 16, "max_model_len": 100}
    found = run([(0.0, 95, 2)], engine=engine)
    assert len(found.replicas[0].requests) == 1


TIER = {"blocks": 100}


@pytest.mark.parametrize(("change", "message"), [
    ({"replicas": 2}, "replicas = 2 with pools"),
    ({"engine": {"kv_offload": TIER}}, "use pools.prefill.engine.kv_offload"),
    (
        {"pools": {"decode": {"engine": {"kv_offload": TIER}}}},
        "pools.decode.engine.kv_offload with pools",
    ),
    *(
        (
            {"pools": {name: {"engine": {"speculative_config": spec}}}},
            f"pools.{name}.engine.speculative_config: both pools have one drafter",
        )
        for name, spec in (
            ("prefill", None), ("decode", {"method": "eagle3", "num_speculative_tokens": 5}),
        )
    ),
    ({"pools": {"prefill": {"replica": 2}}}, "unknown field 'replica'"),
    ({"pools": {"prefill": {"profile": "h100/llama-3.1-70b-tp4"}}}, "models of prefill"),
    ({"pools": {"prefill": {"engine": {"block_size": 32}}}}, "block_size of prefill"),
    (
        {"pools": {"prefill": {"engine": {"disable_hybrid_kv_cache_manager": True}}}},
        "disable_hybrid_kv_cache_manager of prefill",
    ),
    (
        {"engine": {"kv_groups": [{"kind": "chunked_local_attention", "chunk": 8, "layers": 4}]}},
        "pools.prefill: the model has layers that attend in chunks, whose transfer",
    ),
    (
        {"engine": {"kv_groups": [*with_windows([]), {"kind": "state", "layers": 16}]}},
        "pools.decode.engine.enable_prefix_caching: what a decode replica finds of a model",
    ),
    (
        {
            "engine": {"kv_groups": with_windows([8])},
            "pools": {"prefill": {}, "transfer": {"draft_kv": "cold"}},
        },
        "pools.transfer.draft_kv: 'cold' is not simulated with a model that has windows",
    ),
    ({"incidents": [failure("middle", 0, 1.0)]}, "pool"),
    ({"incidents": [{"kind": "failure", "replica": 0, "at": 1}]}, "prefill or decode"),
    ({"incidents": [failure("decode", 1, 1.0)]}, "replicas = 1"),
    ({"pools": None, "incidents": [failure("decode", 0, 1.0)]}, "there are no pools"),
])  # fmt: skip
def test_what_cannot_be_is_one_clear_error(change: dict[str, Any], message: str) -> None:
    config = {**tiny_config(), "pools": {"prefill": {}}, **change}
    with pytest.raises(ConfigError, match=message) as error:
        simulate(Experiment.parse(config, "pools"))
    assert len(str(error.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("pools", "expected"),
    [
        ({}, "stable"),
        ({"prefill": {"engine": {"max_num_batched_tokens": 24, "max_num_seqs": 2}}}, "overloaded"),
        ({"transfer": {"bandwidth_gb_s": 0.2}}, "overloaded"),
        ({"decode": {"engine": {"max_num_seqs": 2}}}, "overloaded"),
    ],
)
def test_a_queue_that_grows_anywhere_is_an_overload(pools: dict[str, Any], expected: str) -> None:
    """In the decode pool and before a link too, where the prefill pool keeps up."""
    config = tiny_config(policy="off", pools=pools)
    config["engine"]["num_gpu_blocks"] = 40_000  # a queue elsewhere does not stop the prefill pool
    config["workload"]["num_requests"] = 600
    config["workload"]["arrivals"]["rate"] = 40.0
    assert Summary(simulate(Experiment.parse(config, "pools"))).stability == expected


@pytest.mark.parametrize("room", [2, 3])
def test_a_step_has_room_for_a_loaded_request_with_all_its_drafts(
    run: Callable[..., Run], room: int
) -> None:
    spec = {"method": "ngram", "num_speculative_tokens": 2}
    engine = {"speculative_config": spec, "max_num_scheduled_tokens": room}
    costs = {"drafts": {"ngram": {"token_us": 1}}}
    given = {"engine": engine, "costs": costs, "policy": "static:k=2"}
    if room < 3:
        with pytest.raises(ConfigError, match="a step has room for 2 tokens"):
            run([(0.0, 9, 5)], **given)
    else:
        assert len(times(run([(0.0, 9, 5)], **given))) == 1


@pytest.mark.parametrize("shares", [[0.5, 0.5], [0.3, 0.3, 0.4]])
def test_stages_hand_over_the_entries_of_all_their_layers(
    run: Callable[..., Run], shares: list[float]
) -> None:
    """A profile says what a GPU of the fullest stage keeps: 16 or 11 of 32 layers."""
    of_stage = KV_BYTES / 32 * -(-32 // len(shares))
    costs = {"stage_shares": shares, "kv_bytes_per_token": of_stage}
    engine, transfer = {"async_scheduling": True}, {"bandwidth_gb_s": seconds_for(16, 0.5)}
    rows = [(0.0, 16, 3)]
    moved = run(rows, engine=engine, transfer=transfer, costs=costs)
    [alone], [divided] = times(run(rows, engine=engine, transfer=transfer)), times(moved)
    assert divided == pytest.approx(alone)


def test_blocks_are_free_when_no_step_that_was_launched_before_runs_any_more(
    run: Callable[..., Run],
) -> None:
    """As in the scheduler of vLLM 0.33, whatever the number of stages; checked at every step."""
    costs = {"stage_shares": [0.25] * 4}
    spec = {"method": "draft_model", "num_speculative_tokens": 2}
    engine = {"async_scheduling": True, "num_gpu_blocks": 12, "speculative_config": spec}
    rows = [(0.3 * i, 8 + i % 5, 2 + i % 7) for i in range(30)]
    costs["drafts"] = {"draft_model": {"basis": "pass", "step_ms": 3.0}}
    ended = run(
        rows, engine=engine, costs=costs, transfer={"bandwidth_gb_s": seconds_for(8, 0.01)},
        policy="static:k=2", acceptance={"kind": "bernoulli", "alpha": 0.6},
    )  # fmt: skip
    assert len(times(ended)) == 30


@pytest.mark.parametrize("engine", [{}, {"vllm_version": "0.33"}])
def test_the_token_after_a_transfer_runs_as_a_decode(
    engine: dict[str, Any], run: Callable[..., Run]
) -> None:
    """Prompts are read in the first pool; the second decodes from its first step on."""
    steps = Summary(run([(0.0, 20, 4), (0.1, 30, 4)], engine=engine)).tables.steps
    assert steps["prefill_tokens"].sum() == 20 + 30
    assert steps["batched_tokens"].sum() == 20 + 30 + 2 * 4  # last tokens of prompts once more
