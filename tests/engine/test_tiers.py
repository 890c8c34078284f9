"""KV tiers: what the GPU's cache has given up is loaded from host memory, or from disk."""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np
import pytest
from conftest import data_folder, needs, tiny_config
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from strategies import engines, workloads

from specsim.core.errors import ConfigError
from specsim.core.request import PrefixIds, Request
from specsim.engine import roster
from specsim.run.experiment import Experiment
from specsim.run.simulate import simulate
from specsim.run.summary import Summary
from specsim.workload.readers import read_trace

STEP = 0.25  # seconds
KV_BYTES = 131072  # of one token of llama-3.1-8b


@pytest.fixture
def run(constant_step: Callable[..., str]) -> Callable[..., Summary]:
    """Run prompts of four blocks, named by numbers, one every ten seconds; the GPU has five."""

    def start(names: list[int], **offload: Any) -> Summary:
        config = tiny_config(
            engine={
                "block_size": 8, "num_gpu_blocks": 7, "max_model_len": 40,
                "max_num_batched_tokens": 64, "max_num_seqs": 4, "kv_offload": offload or None,
            },
            profile=constant_step(delta_ms=STEP * 1e3),
        )  # fmt: skip
        requests = [
            Request(index=i, arrived_at=10.0 * i, prompt_len=33, output_len=1,
                    prompt_token_ids=np.arange(33) + 100 * name)
            for i, name in enumerate(names)
        ]  # fmt: skip
        return Summary(simulate(Experiment.parse(config, "x"), requests=requests, check=True))

    return start


def test_metrics_that_never_change_are_not_read_without_end(
    constant_step: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(roster, "MOST_ALIKE", 10_000)
    slow = {"blocks": 100, "bandwidth_gb_s": 5e-11}  # the load takes a day
    config = tiny_config(
        engine={"num_gpu_blocks": 7, "block_size": 8, "max_model_len": 40, "kv_offload": slow},
        routing={"kind": "least_outstanding", "refresh_ms": 10},
        profile=constant_step(delta_ms=STEP * 1e3),
    )
    requests = [
        Request(index=i, arrived_at=10.0 * i, prompt_len=33, output_len=1,
                prompt_token_ids=np.arange(33) + 100 * name)
        for i, name in enumerate([1, 2, 1])
    ]  # fmt: skip
    with pytest.raises(ConfigError, match=r"routing.refresh_ms = 10: 10,000 times in a row"):
        simulate(Experiment.parse(config, "x"), requests=requests)


def test_what_the_gpu_has_given_up_is_loaded_from_the_host(run: Callable[..., Summary]) -> None:
    gb_s = 32 * KV_BYTES / 0.5 / 1e9
    found = run([1, 2, 1], blocks=100, bandwidth_gb_s=gb_s)
    # Half a second of loading, and a step for the last token; the GPU still has one block.
    own = found.data["specsim"]["hits"]
    assert own["gpu_tokens"] + own["host_tokens"] == 32
    assert own["host_tokens"] >= 16
    waited = found.tables.requests["first_token_at"] - found.tables.requests["arrived_at"]
    assert waited[2] == pytest.approx(STEP + 0.5 * own["host_tokens"] / 32)
    assert run([1, 2, 1]).tables.requests["cached_len"][2] == own["gpu_tokens"]


def test_a_prefill_pool_has_what_replicas_alone_would_have(
    constant_step: Callable[..., str],
) -> None:
    """Its hits are those of the same replica without a pool behind it, one token asked for."""
    names = [1, 2, 3, 1, 4, 2, 1, 5, 3, 1]
    offload = {"blocks": 12, "bandwidth_gb_s": 1.0, "disk": {"blocks": 30, "bandwidth_gb_s": 0.5}}
    engine = {
        "block_size": 8, "num_gpu_blocks": 7, "max_model_len": 40, "max_num_batched_tokens": 64,
        "max_num_seqs": 4,
    }  # fmt: skip
    fields: dict[str, Any] = {"profile": constant_step(delta_ms=STEP * 1e3), "policy": "off"}
    requests = [
        Request(index=i, arrived_at=10.0 * i, prompt_len=33, output_len=3,
                prompt_token_ids=np.arange(33) + 100 * name)
        for i, name in enumerate(names)
    ]  # fmt: skip

    def ran(requests: list[Request], **changes: Any) -> Summary:
        config = tiny_config(**fields, **changes)
        return Summary(simulate(Experiment.parse(config, "x"), requests=requests, check=True))

    pools = {"prefill": {"engine": {"kv_offload": offload}}, "decode": {}}
    split = ran(requests, engine=engine, pools=pools)
    single = [replace(request, output_len=1) for request in requests]
    alone = ran(single, engine={**engine, "kv_offload": offload})
    assert split.run.offload.loads.tobytes() == alone.run.offload.loads.tobytes()
    assert split.run.offload.loads["host_len"].sum() > 0 < split.run.offload.loads["disk_len"].sum()
    hits = [summary.data["specsim"]["hits"] for summary in (split, alone)]
    assert hits[0] == hits[1]
    assert split.pools is not None
    ends = alone.tables.requests["ended_at"]
    assert split.pools.transfers["prefilled_at"].tolist() == ends.tolist()


def test_what_the_host_has_given_up_is_on_disk(run: Callable[..., Summary]) -> None:
    disk = {"blocks": 100, "bandwidth_gb_s": 32 * KV_BYTES / 2.0 / 1e9}
    gb_s = 32 * KV_BYTES / 0.5 / 1e9
    names = [1, 2, 3, 4, 1, 1]
    found = run(names, blocks=5, bandwidth_gb_s=gb_s, disk=disk)
    loads = found.run.offload.loads
    assert loads["disk_len"].tolist()[:4] == [0, 0, 0, 0]
    assert loads["disk_len"][4] == 32
    # Disk, then host memory, one after the other; now it is in host memory and on the GPU again.
    assert loads["load_time"][4] == pytest.approx(2.0 + 0.5)
    assert loads["disk_len"][5] == 0
    nothing = run(names, blocks=5, bandwidth_gb_s=gb_s).run.offload.loads
    assert nothing["host_len"][4] == 0


def test_host_memory_is_not_kept_waiting_for_the_disk(constant_step: Callable[..., str]) -> None:
    gb_s = 32 * KV_BYTES / 0.5 / 1e9
    disk = {"blocks": 100, "bandwidth_gb_s": gb_s / 4}
    config = tiny_config(
        engine={
            "block_size": 8, "num_gpu_blocks": 12, "max_model_len": 40, "max_num_seqs": 4,
            "max_num_batched_tokens": 64,
            "kv_offload": {"blocks": 16, "bandwidth_gb_s": gb_s, "disk": disk},
        },
        profile=constant_step(delta_ms=STEP * 1e3),
    )  # fmt: skip
    requests = [
        Request(index=i, arrived_at=at, prompt_len=33, output_len=1,
                prompt_token_ids=np.arange(33) + 100 * name)
        for i, (name, at) in enumerate(zip([1, 2, 3, 4, 5, 6, 1, 4],
                                           [0.0, 10, 20, 30, 40, 50, 60, 60.5], strict=True))
    ]  # fmt: skip
    run = simulate(Experiment.parse(config, "x"), requests=requests, check=True)
    assert run.offload is not None
    loads = run.offload.loads[-2:]
    assert loads["disk_len"].tolist() == [32, 0]
    assert loads["host_len"].tolist() == [0, 32]
    assert loads["load_time"] == pytest.approx([2.0 + 0.5, 0.5])


def test_a_load_begins_when_the_scheduler_asks_for_it(constant_step: Callable[..., str]) -> None:
    """Not when the request comes, in the middle of somebody else's step."""
    config = tiny_config(
        engine={
            "block_size": 8, "num_gpu_blocks": 12, "max_model_len": 48, "max_num_seqs": 4,
            "max_num_batched_tokens": 64, "async_scheduling": False,
            "kv_offload": {"blocks": 99, "bandwidth_gb_s": 32 * KV_BYTES / 0.5 / 1e9},
        },
        profile=constant_step(delta_ms=STEP * 1e3),
    )  # fmt: skip
    requests = [
        Request(index=i, arrived_at=at, prompt_len=33, output_len=output_len,
                prompt_token_ids=np.arange(33) + 100 * name)
        for i, (name, at, output_len) in enumerate([(1, 0.0, 1), (2, 10.0, 1), (3, 10.0, 1),
                                                    (4, 30.0, 12), (1, 30.1, 1)])
    ]  # fmt: skip
    run = simulate(Experiment.parse(config, "x"), requests=requests, check=True)
    assert run.offload is not None
    assert run.offload.loads["host_len"][4] == 32
    # Steps begin at 30.0, 30.25, 30.5, 30.75: asked for in the second, it is there for the fourth.
    assert run.offload.loads["load_time"][4] == pytest.approx(0.5)
    assert Summary(run).tables.requests["scheduled_at"][4] == 30.75


def test_the_end_of_a_prompt_goes_before_its_beginning(run: Callable[..., Summary]) -> None:
    # Room for six: of prompt 1 the first two blocks are left when prompt 2 has come.
    found = run([1, 2, 3, 1], blocks=10)
    assert found.run.offload.loads["host_len"][3] == 16


def lru_hits(prompts: list[list[int]], capacity: int) -> int:
    """Count blocks found in a cache where requests come one after another."""
    kept: OrderedDict[int, None] = OrderedDict()
    hits = 0
    for blocks in prompts:
        for block in blocks:  # also the last one: its last token is computed again
            if block not in kept:
                break
            hits += 1
        for block in reversed(blocks):
            kept.pop(block, None)
            kept[block] = None
        while len(kept) > capacity:
            kept.popitem(last=False)
    return hits


@pytest.mark.parametrize("capacity", [20, 60, 200])
def test_hits_are_those_of_a_plain_cache(constant_step: Callable[..., str], capacity: int) -> None:
    draws = np.random.default_rng(5)
    prompts = [
        [1000 * int(draws.integers(12)) + i for i in range(int(draws.integers(2, 9)))]
        for _ in range(300)
    ]
    requests = [
        Request(index=i, arrived_at=10.0 * i, prompt_len=8 * len(blocks), output_len=1,
                prefix_ids=PrefixIds(blocks, 8))
        for i, blocks in enumerate(prompts)
    ]  # fmt: skip
    config = tiny_config(
        engine={
            "block_size": 8, "num_gpu_blocks": 12, "max_model_len": 80,
            "max_num_batched_tokens": 128, "max_num_seqs": 4, "kv_offload": {"blocks": capacity},
        },
        profile=constant_step(delta_ms=STEP * 1e3),
    )  # fmt: skip
    found = Summary(simulate(Experiment.parse(config, "x"), requests=requests))
    hits = found.data["specsim"]["hits"]
    # Of a prompt that is loaded in part, what the GPU had does not count as used.
    expected = pytest.approx(lru_hits(prompts, capacity), abs=1)
    assert (hits["gpu_tokens"] + hits["host_tokens"]) / 8 == expected


MOONCAKE = data_folder() / "traces" / "mooncake_conversation_trace.jsonl.gz"


@needs(MOONCAKE)
@pytest.mark.parametrize("capacity", [1000, 10_000, 100_000])
def test_hits_of_mooncakes_conversations(constant_step: Callable[..., str], capacity: int) -> None:
    """Recorded prompts of Kimi by the hashes of their blocks, in order, by cache size."""
    requests = [
        replace(request, output_len=1, max_tokens=1)
        for request in islice(read_trace(MOONCAKE).requests(), 4000)
    ]
    prompts = [
        [*request.prefix_ids.hash_ids[: request.prompt_len // 512], -1 - request.index]
        for request in requests
    ]
    config = tiny_config(
        engine={
            "block_size": 512, "num_gpu_blocks": 300, "max_model_len": 131072,
            "max_num_batched_tokens": 131072, "max_num_seqs": 1,
            "kv_offload": {"blocks": capacity, "bandwidth_gb_s": 1e6},
        },
        profile=constant_step(delta_ms=1e-3),
    )  # fmt: skip
    found = Summary(simulate(Experiment.parse(config, "x"), requests=requests))
    hits = found.data["specsim"]["hits"]
    expected = 512 * lru_hits(prompts, capacity)
    assert hits["gpu_tokens"] + hits["host_tokens"] == pytest.approx(expected, rel=0.02)


@settings(
    max_examples=40,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(engine=engines(), workload=workloads(), data=st.data())
def test_whatever_happens_every_request_ends_once(
    constant_step: Callable[..., str],
    engine: dict[str, Any],
    workload: dict[str, Any],
    data: st.DataObject,
) -> None:
    engine |= {"scheduler": "v1", "enable_prefix_caching": True}
    engine.pop("speculative_config", None)
    tier = {
        "blocks": data.draw(st.integers(1, 200)),
        "bandwidth_gb_s": data.draw(st.sampled_from([0.01, 1.0, 1e6])),
        "max_transfers": data.draw(st.integers(1, 3)),
    }
    disk = {**tier, "blocks": 500} if data.draw(st.booleans()) else None
    engine["kv_offload"] = {**tier, "disk": disk}
    failure = {"kind": "failure", "replica": 0, "at": 0.1, "until": 0.3}
    config = tiny_config(
        engine=engine, workload=workload, profile=constant_step(delta_ms=5, gamma_us=20),
        replicas=2, incidents=[failure],
    )  # fmt: skip
    result = simulate(Experiment.parse(config, "random"), check=True)
    rows = Summary(result).tables.requests
    assert rows["output_len"].tolist() == [
        min(r.output_len, engine["max_model_len"] - r.prompt_len) for r in result.requests
    ]


@pytest.mark.parametrize(("engine", "message"), [
    ({"kv_offload": {}}, "give either blocks or gib"),
    ({"kv_offload": {"blocks": 9}, "enable_prefix_caching": False}, "enable_prefix_caching"),
])  # fmt: skip
def test_what_cannot_be_is_one_clear_error(engine: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Experiment.parse(tiny_config(engine=engine), "x")


@pytest.mark.parametrize(("fields", "loaded"), [({}, 16), ({"offload_prompt_only": False}, 32)])
def test_outputs_are_offloaded_where_that_is_asked_for(
    constant_step: Callable[..., str], fields: dict[str, Any], loaded: int
) -> None:
    """The second turn's prompt begins with the first one's prompt and answer."""
    config = tiny_config(
        engine={
            "block_size": 8, "num_gpu_blocks": 6, "max_model_len": 40, "max_num_seqs": 4,
            "max_num_batched_tokens": 64, "kv_offload": {"blocks": 100, **fields},
        },
        profile=constant_step(delta_ms=STEP * 1e3),
    )  # fmt: skip
    turns = [(16, 17, 0), (33, 1, 100), (33, 1, 0)]  # prompt, answer, and whose tokens
    requests = [
        Request(index=i, arrived_at=10.0 * i, prompt_len=prompt_len, output_len=output_len,
                prompt_token_ids=np.arange(prompt_len) + name,
                output_token_ids=np.arange(prompt_len, prompt_len + output_len) + name)
        for i, (prompt_len, output_len, name) in enumerate(turns)
    ]  # fmt: skip
    run = simulate(Experiment.parse(config, "x"), requests=requests, check=True)
    assert run.offload is not None
    assert run.offload.loads["host_len"].tolist() == [0, 0, loaded]


def _of_layers(
    constant_step: Callable[..., str], layers: list[dict[str, Any]], **engine: Any
) -> Experiment:
    settings = {"block_size": 8, "num_gpu_blocks": 16, "max_model_len": 40, "max_num_seqs": 4,
                "max_num_batched_tokens": 64, "kv_groups": layers, **engine}  # fmt: skip
    profile = constant_step(delta_ms=STEP * 1e3)
    return Experiment.parse(tiny_config(engine=settings, profile=profile), "x")


def test_of_a_window_the_end_of_a_prompt_is_kept_and_loaded(
    constant_step: Callable[..., str],
) -> None:
    """Three prompts fill the GPU's cache; the first one that comes again has all but its end."""
    layers = [
        {"kind": "full_attention", "layers": 1, "bytes_per_token": 4096},
        {"kind": "sliding_window", "layers": 1, "window": 8, "bytes_per_token": 4096},
    ]
    gb_s = 5 * 8 * 4096 / 0.5 / 1e9  # half a second for five blocks
    offload = {"blocks": 20, "bandwidth_gb_s": gb_s}
    experiment = _of_layers(constant_step, layers, kv_offload=offload)
    requests = [
        Request(index=i, arrived_at=10.0 * i, prompt_len=33, output_len=1,
                prompt_token_ids=np.arange(33) + 100 * name)
        for i, name in enumerate([1, 2, 3, 4, 1])
    ]  # fmt: skip
    run = simulate(experiment, requests=requests, check=True)
    assert run.offload is not None
    # Four blocks of full attention and the one that a window of 8 reads, at 32 tokens.
    assert run.offload.loads["host_len"].tolist() == [0, 0, 0, 0, 32]
    assert run.offload.loads["load_time"][4] == pytest.approx(0.5)
    # Five blocks of each prompt: there is room for three, and the rest of a fourth.
    few = _of_layers(constant_step, layers, kv_offload={**offload, "blocks": 18})
    few_run = simulate(few, requests=requests, check=True)
    assert few_run.offload is not None
    assert few_run.offload.loads["host_len"].tolist() == [0, 0, 0, 0, 0]


@pytest.mark.parametrize(("layer", "message"), [
    ({"kind": "chunked_local_attention", "chunk": 8}, "in chunks are not offloaded here; set"),
    ({"kind": "state"}, "keep a state are not offloaded here; leave it out"),
    ({"kind": "full_attention", "block_size": 16}, "blocks of their own .* are not offloaded"),
])  # fmt: skip
def test_layers_whose_blocks_are_not_offloaded_are_named(
    constant_step: Callable[..., str], layer: dict[str, Any], message: str
) -> None:
    full = {"kind": "full_attention", "layers": 1}
    experiment = _of_layers(
        constant_step, [full, {"layers": 1, **layer}], kv_offload={"blocks": 9}, num_gpu_blocks=64
    )
    request = Request(index=0, arrived_at=0.0, prompt_len=20, output_len=1)
    with pytest.raises(ConfigError, match=message):
        simulate(experiment, requests=[request])


def test_a_prompt_that_is_being_loaded_is_not_loaded_again(
    constant_step: Callable[..., str],
) -> None:
    """Who comes with the same prompt waits until the GPU has it; others pass."""
    config = tiny_config(
        engine={
            "block_size": 8, "num_gpu_blocks": 20, "max_model_len": 40, "max_num_seqs": 4,
            "max_num_batched_tokens": 64,
            "kv_offload": {"blocks": 100, "bandwidth_gb_s": 32 * KV_BYTES / 5.0 / 1e9},
        },
        profile=constant_step(delta_ms=STEP * 1e3),
    )  # fmt: skip
    names = [
        (1, 0.0),
        *((name, 10.0 * name) for name in range(2, 7)),
        (1, 90.0),
        (1, 91.0),
        (9, 92),
    ]
    requests = [
        Request(index=i, arrived_at=at, prompt_len=33, output_len=1,
                prompt_token_ids=np.arange(33) + 100 * name)
        for i, (name, at) in enumerate(names)
    ]  # fmt: skip
    run = simulate(Experiment.parse(config, "x"), requests=requests, check=True)
    assert run.offload is not None
    rows = Summary(run).tables.requests
    assert run.offload.loads["host_len"].tolist()[-3:] == [32, 0, 0]
    assert rows["cached_len"].tolist()[-3:] == [0, 32, 0]
    assert rows["scheduled_at"].tolist()[-3:] == [95.0, 95.0, 92.0]


def test_what_is_loaded_after_a_preemption_is_no_hit(constant_step: Callable[..., str]) -> None:
    """All prompts differ; blocks of those that lose theirs come back from host memory."""
    config = tiny_config(
        workload={
            "arrivals": "burst",
            "lengths": {"kind": "constant", "prompt": 17, "output": 40},
            "num_requests": 6,
        },
        engine={
            "block_size": 8, "num_gpu_blocks": 14, "max_model_len": 64, "max_num_seqs": 4,
            "max_num_batched_tokens": 64,
            "kv_offload": {"blocks": 100, "offload_prompt_only": False},
        },
        profile=constant_step(delta_ms=STEP * 1e3),
    )  # fmt: skip
    found = Summary(simulate(Experiment.parse(config, "x"), check=True)).data["specsim"]
    hits = found["hits"]
    assert hits["requests_that_loaded"] > 0 < found["num_preemptions"]
    assert (hits["gpu_tokens"], hits["host_tokens"], hits["hit_rate"]) == (0, 0, 0.0)


@pytest.mark.parametrize(("until", "loaded"), [(20.2, 0), (40.2, 32)])
def test_a_load_that_is_lost_is_no_hit(
    constant_step: Callable[..., str], until: float, loaded: int
) -> None:
    """The replica fails while it loads, or long after; it comes back without anything to load."""
    gb_s = 32 * KV_BYTES / 0.5 / 1e9
    config = tiny_config(
        engine={
            "block_size": 8, "num_gpu_blocks": 7, "max_model_len": 40, "max_num_seqs": 4,
            "max_num_batched_tokens": 64, "kv_offload": {"blocks": 100, "bandwidth_gb_s": gb_s},
        },
        incidents=[{"kind": "failure", "replica": 0, "at": until, "until": until + 0.1}],
        profile=constant_step(delta_ms=STEP * 1e3),
    )  # fmt: skip
    requests = [
        Request(index=i, arrived_at=10.0 * i, prompt_len=33, output_len=1,
                prompt_token_ids=np.arange(33) + 100 * name)
        for i, name in enumerate([1, 2, 1])
    ]  # fmt: skip
    run = simulate(Experiment.parse(config, "x"), requests=requests, check=True)
    assert run.offload is not None
    found = run.offload.loads["host_len"][2] + Summary(run).tables.requests["cached_len"][2]
    assert found == loaded
