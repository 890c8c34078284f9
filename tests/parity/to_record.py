"""Random scenarios to record: small engines under pressure. Imports nothing of vLLM or specsim."""

import random
from collections.abc import Callable
from typing import Any, NamedTuple

RETENTION = "prefix_cache_retention_interval"


class Needs(NamedTuple):
    """What vLLM says of the KV cache groups of an engine."""

    common_block_size: int
    """Tokens after which blocks of all groups end."""
    has_windows: bool
    """Whether any group has a sliding window, or keeps states."""
    num_blocks: int
    """That one request of max_model_len may need."""


def random_scenario(seed: int) -> dict[str, Any]:
    """Small engines under pressure: few blocks, small budgets, every switch."""
    draw = random.Random(seed)
    block_size = draw.choice([1, 2, 4, 8, 16])
    max_model_len = draw.choice([48, 64, 100, 128])
    fewest = -(-max_model_len // block_size) + 2
    is_async = draw.random() < 0.4
    method = draw.choice([None, "draft_model", "draft_model", "eagle", "eagle", "ngram"])
    if is_async and method == "ngram":
        method = "draft_model"
    k = draw.choice([1, 2, 3, 5, 8])
    seqs = draw.choice([1, 2, 4, 8, 16])
    chunked = draw.random() < 0.85
    budget = max(draw.choice([seqs + 1, 24, 40, 64, 200]), seqs, k + 3)
    threshold = max(draw.choice([8, 16]), k + 1) if chunked and draw.random() < 0.25 else 0
    caching = draw.random() < 0.55
    spec: dict[str, Any] | None = None
    if method:
        spec = {"method": method, "k": k}
        if draw.random() < 0.25:
            spec["per_batch_size"] = [[1, 2, k], [3, 5, max(0, k - 1)], [7, 9, 0]]
    engine = {
        "block_size": block_size,
        "num_blocks": int(fewest * draw.choice([1, 1.2, 1.6, 2, 4])) + draw.randint(0, 3),
        "max_model_len": max_model_len,
        "max_num_batched_tokens": budget if chunked else max(budget, max_model_len),
        "max_num_seqs": seqs,
        "max_num_active_seqs": draw.choice([None, None, None, max(1, seqs // 2)]),
        "enable_chunked_prefill": chunked,
        "enable_prefix_caching": caching,
        "policy": "priority" if draw.random() < 0.35 else "fcfs",
        "long_prefill_token_threshold": threshold,
        "long_prefill_token_threshold_adaptive": threshold > 0 and draw.random() < 0.4,
        "scheduler_reserve_full_isl": draw.random() < 0.7,
        "watermark": draw.choice([0.0, 0.0, 0.05]),
        "async_scheduling": is_async,
        "spec": spec,
    }
    variable = method == "ngram" and draw.random() < 0.8
    return {
        "name": f"random-{seed}",
        "kind": "random",
        "seed": seed,
        "engine": engine,
        "cost": {"base_ns": 5_000_000, "per_token_ns": 20_000, "per_ctx_ns": 40},
        "acceptance": {"alpha": draw.choice([0.0, 0.5, 0.8, 1.0])},
        "drafts": {"mode": "ngram", "p_zero": 0.4} if variable else {"mode": "full"},
        "requests": random_requests(draw, engine),
    }


def random_stops_scenario(seed: int) -> dict[str, Any]:
    """The same with answers that end by a stop token, before all that was asked for."""
    scenario, draw = random_scenario(seed), random.Random(f"stops {seed}")
    for row in scenario["requests"]:
        if draw.random() < 0.8:
            row["max_tokens"] += draw.choice([1, 2, 5, 30])
            row["stop_after"] = draw.randint(1, row["max_tokens"])
    return scenario | {"name": f"stops-{seed}", "kind": "stops"}


def _add_adapters(scenario: dict[str, Any], draw: random.Random) -> None:
    scenario["engine"]["max_loras"] = draw.choice([1, 1, 2, 3])
    most = draw.choice([2, 3, 6])
    for row in scenario["requests"]:
        row["lora"] = draw.choice([0, *range(1, most + 1)])


def random_loras_scenario(seed: int) -> dict[str, Any]:
    """The same with requests for LoRA adapters, of which a step serves few."""
    scenario, draw = random_scenario(seed), random.Random(f"loras {seed}")
    _add_adapters(scenario, draw)
    return scenario | {"name": f"loras-{seed}", "kind": "loras"}


def random_shares_scenario(seed: int) -> dict[str, Any]:
    """The same with GPUs that each keep a part of every block."""
    scenario, draw = random_scenario(seed), random.Random(f"shares {seed}")
    engine, count = scenario["engine"], draw.choice([2, 2, 4, 8])
    fewest = -(-engine["max_model_len"] // (count * engine["block_size"])) + 2
    engine["num_blocks"] = max(fewest, engine["num_blocks"] // count)
    engine["decode_context_parallel_size"] = count
    return scenario | {"name": f"shares-{seed}", "kind": "shares"}


def random_parallel_scenario(
    seed: int, needs_of: Callable[[dict[str, Any]], Needs]
) -> dict[str, Any]:
    """The same with drafters that draft all tokens in one pass, a third of them with windows."""
    draw = random.Random(f"parallel {seed}")
    k = draw.choice([1, 2, 3, 5, 8])
    method = draw.choice(["dflash", "dflash", "dspark", "dspark", "eagle", "draft_model"])
    scheduled = draw.random() < 0.25
    spec = {"method": method, "k": k, "parallel_drafting": True}
    return _drafting("parallel", seed, needs_of, spec, k, scheduled=scheduled)


def random_modules_scenario(
    seed: int, needs_of: Callable[[dict[str, Any]], Needs]
) -> dict[str, Any]:
    """The same with several MTP modules, a third of them with windows."""
    draw = random.Random(f"modules {seed}")
    k = draw.choice([2, 2, 3, 3, 4, 5, 8])
    scheduled = draw.random() < 0.2
    spec = {"method": "mtp", "k": k, "num_nextn_predict_layers": draw.choice([2, 3, 3, 7])}
    return _drafting("modules", seed, needs_of, spec, 0, scheduled=scheduled)


def _drafting(
    kind: str,
    seed: int,
    needs_of: Callable[[dict[str, Any]], Needs],
    spec: dict[str, Any],
    slots: int,
    *,
    scheduled: bool,
) -> dict[str, Any]:
    """Let a drafter draft for whose input slots a step has room; a third has windows."""
    scenario = random_groups_scenario(seed, needs_of) if seed % 3 == 0 else random_scenario(seed)
    kinds = {run["kind"] for run in scenario["engine"].get("kv_groups") or ()}
    if "chunked_local_attention" in kinds:
        scenario = random_scenario(seed)
    engine, k = scenario["engine"], spec["k"]
    ranges = [[1, 2, k], [3, 5, k - 1], [7, 9, 0]]
    engine["spec"] = spec | ({"per_batch_size": ranges} if scheduled else {})
    least = slots + k + 3 + (0 if engine["enable_chunked_prefill"] else engine["max_model_len"])
    engine["max_num_batched_tokens"] = max(engine["max_num_batched_tokens"], least)
    if engine["long_prefill_token_threshold"]:
        engine["long_prefill_token_threshold"] = max(8, k + 1)
    if spec.get("num_nextn_predict_layers", 1) > 1 and engine["block_size"] < k:
        engine["enable_prefix_caching"] = False  # vLLM refuses both
        for row in scenario["requests"]:
            row.pop("prompt_token_ids", None)
    return scenario | {"name": f"{kind}-{seed}", "kind": kind, "drafts": {"mode": "full"}}


def random_cadence_scenario(seed: int) -> dict[str, Any]:
    """The same with steps that read no prompts (0.33)."""
    scenario, draw = random_scenario(seed), random.Random(f"cadence {seed}")
    interval = draw.choice([2, 3, 5, 9])
    scenario["engine"] |= {"prefill_schedule_interval": interval, "vllm_version": "0.33"}
    return scenario | {"name": f"cadence-{seed}", "kind": "cadence"}


def random_ranks_scenario(seed: int) -> dict[str, Any]:
    """The same of a rank that shares experts with others, and reads prompts when they do."""
    scenario, draw = random_scenario(seed), random.Random(f"ranks {seed}")
    interval = draw.choice([2, 3, 5, 9])
    scenario["engine"] |= {"prefill_schedule_interval": interval, "data_parallel_size": 2}
    return scenario | {"name": f"ranks-{seed}", "kind": "ranks"}


def random_pipeline_scenario(seed: int) -> dict[str, Any]:
    """The same in a pipeline of stages, without speculation."""
    scenario, draw = random_scenario(seed), random.Random(f"pipeline {seed}")
    stages = draw.choice([2, 2, 3, 4])
    others = {"spec": None, "async_scheduling": True}
    scenario["engine"] |= {"pipeline_parallel_size": stages, **others}
    return scenario | {"name": f"pipeline-{seed}", "kind": "pipeline"}


def random_stages_scenario(
    seed: int, needs_of: Callable[[dict[str, Any]], Needs]
) -> dict[str, Any]:
    """The same in a pipeline of stages, with a drafter behind the last one."""
    draw = random.Random(f"stages {seed}")
    k = draw.choice([2, 3, 3, 5, 8])
    methods = ["draft_model", "draft_model", "eagle", "eagle", "dflash", "dspark", "mtp"]
    method = draw.choice(methods)
    spec: dict[str, Any] = {"method": method, "k": k}
    if method == "mtp":
        spec["num_nextn_predict_layers"] = draw.choice([1, 1, 2, 3])
    elif method in ("dflash", "dspark"):
        spec["parallel_drafting"] = True
    scheduled = draw.random() < 0.25
    scenario = _drafting("stages", 3 * seed + 1, needs_of, spec, k, scheduled=scheduled)
    stages = {"pipeline_parallel_size": draw.choice([2, 2, 3, 4]), "async_scheduling": True}
    scenario["engine"] |= stages
    return scenario | {"name": f"stages-{seed}"}


def random_mixed_scenario(
    seed: int, needs_of: Callable[[dict[str, Any]], Needs], version: tuple[int, int]
) -> dict[str, Any]:
    """What the others draw, together, and limits that none of them draws."""
    scenario, draw = random_scenario(seed), random.Random(f"mixed {seed}")
    engine = scenario["engine"]
    has_stages = version >= (0, 31) and draw.random() < 0.3
    if has_stages:
        engine["pipeline_parallel_size"] = draw.choice([2, 2, 3, 4])
    engine["async_scheduling"] = has_stages or draw.random() < 0.5
    engine["spec"] = _mixed_spec(draw, engine, version)
    if draw.random() < 0.4:
        engine["max_model_len"] = draw.choice([9, 12, 20, 33])
    scenario["drafts"] = {"mode": "full"}
    if engine["spec"] and engine["spec"]["method"] == "ngram" and draw.random() < 0.8:
        scenario["drafts"] = {"mode": "ngram", "p_zero": draw.choice([0.1, 0.4, 0.8])}
    _with_limits(engine, draw)
    scenario = _with_mixed_layers(scenario, draw, needs_of)
    engine = scenario["engine"]
    if version >= (0, 33) and draw.random() < 0.25:
        engine["prefill_schedule_interval"] = draw.choice([2, 3, 5])
    if draw.random() < 0.3:
        engine["max_loras"] = draw.choice([1, 1, 2, 3])
    for row in scenario["requests"]:
        if draw.random() < 0.3:
            row["max_tokens"] += draw.choice([0, 1, 2, 5])
            row["stop_after"] = draw.randint(1, row["max_tokens"])
        if "max_loras" in engine:
            row["lora"] = draw.choice([0, 1, 2, 3, 4])
    engine["vllm_version"] = ".".join(map(str, version))
    return scenario | {"name": f"mixed-{seed}", "kind": "mixed"}


def _with_mixed_layers(
    scenario: dict[str, Any], draw: random.Random, needs_of: Callable[[dict[str, Any]], Needs]
) -> dict[str, Any]:
    """Draw layers, blocks and requests."""
    engine = scenario["engine"]
    layers = draw.choice([[], [], random_layers(draw), _layers_with_state(draw)])
    if engine["spec"] and engine["spec"]["method"] in ("dflash", "dspark"):
        layers = [run for run in layers if run["kind"] != "chunked_local_attention"]
    if layers:
        scenario = _with_layers(scenario, layers, draw, needs_of)
        engine = scenario["engine"]
    else:
        fewest = -(-engine["max_model_len"] // engine["block_size"]) + 2
        more = int(fewest * draw.choice([0, 0, 0.2, 0.6, 1, 3]))
        engine["num_blocks"] = fewest + more + draw.randint(0, 3)
        scenario["requests"] = random_requests(draw, engine)
    _widen(engine, draw)
    if "kv_groups" in engine:
        engine["num_blocks"] = max(engine["num_blocks"], 1 + needs_of(engine).num_blocks)
    return scenario


def _mixed_spec(
    draw: random.Random, engine: dict[str, Any], version: tuple[int, int]
) -> dict[str, Any] | None:
    methods = [None, "draft_model", "draft_model", "eagle", "eagle", "mtp"]
    methods += [] if engine["async_scheduling"] else ["ngram"]
    methods += ["dflash", "dspark"]
    methods += ["ngram_gpu", "ngram_gpu"] if version >= (0, 32) else []
    method, k = draw.choice(methods), draw.choice([1, 2, 3, 5, 8, 12])
    if method is None:
        return None
    spec: dict[str, Any] = {"method": method, "k": k}
    if draw.random() < 0.25:
        some = max(0, k - 1)
        spec["per_batch_size"] = draw.choice(
            [
                [[1, 2, k], [3, 5, some], [7, 9, 0]],
                [[1, 1, some], [2, 3, k]],
                [[1, 1, 0], [2, 6, k]],
            ]
        )
    if method in ("dflash", "dspark"):
        spec["parallel_drafting"] = True
    elif method == "mtp":
        spec["num_nextn_predict_layers"] = draw.choice([1, 1, 2, 3])
    elif method in ("draft_model", "eagle") and draw.random() < 0.15:
        # The second model runner, which pipelines need, has none.
        spec["parallel_drafting"] = "pipeline_parallel_size" not in engine
    if version >= (0, 33) and method in ("eagle", "mtp") and draw.random() < 0.3:
        spec["disable_lookahead_block_hashes"] = True
    return spec


def _with_limits(engine: dict[str, Any], draw: random.Random) -> None:
    """Draw limits that leave less than others do."""
    if draw.random() < 0.3:
        engine["watermark"] = draw.choice([0.1, 0.3])
    if engine["enable_chunked_prefill"]:
        engine["long_prefill_token_threshold"] = draw.choice([0, 0, 0, 2, 5, 9, 20])
        adapts = engine["long_prefill_token_threshold"] > 0 and draw.random() < 0.4
        engine["long_prefill_token_threshold_adaptive"] = adapts


def _widen(engine: dict[str, Any], draw: random.Random) -> None:
    """Let a step have room for what vLLM wants in one, and often for no more."""
    spec, k = engine["spec"], (engine["spec"] or {"k": 0})["k"]
    threshold = engine["long_prefill_token_threshold"]
    if threshold:  # it has to let padded admissions pass
        threshold = max(threshold, k + 1)
        is_known = threshold <= engine["max_model_len"]
        engine["long_prefill_token_threshold"] = threshold if is_known else 0
    whole = 0 if engine["enable_chunked_prefill"] else engine["max_model_len"]
    least = max(2 * k + 3, whole + k, engine["max_num_seqs"])
    engine["max_num_batched_tokens"] = max(
        least, draw.choice([least, engine["max_num_batched_tokens"]])
    )
    if draw.random() < 0.3:
        room = engine["max_num_batched_tokens"]
        engine["max_num_scheduled_tokens"] = draw.randint(min(room, max(k + 1, whole)), room)
    if spec and spec.get("num_nextn_predict_layers", 1) > 1 and engine["block_size"] < k:
        engine |= {"enable_prefix_caching": False, RETENTION: 0}  # vLLM refuses both


def random_aborts_scenario(
    seed: int, needs_of: Callable[[dict[str, Any]], Needs]
) -> dict[str, Any]:
    """The same with clients that go away, a third of them from engines with windows."""
    scenario = random_groups_scenario(seed, needs_of) if seed % 3 == 0 else random_scenario(seed)
    _with_aborts(scenario, random.Random(f"aborts {seed}"))
    return scenario | {"name": f"aborts-{seed}", "kind": "aborts"}


def _with_aborts(scenario: dict[str, Any], draw: random.Random) -> None:
    for row in scenario["requests"]:
        if draw.random() < 0.4:
            stay_ns = draw.choice([1e5, 1e7, 1e8]) * draw.random()
            row["abort_ns"] = row["arrival_ns"] + 1 + int(stay_ns)


def random_load_aborts_scenario(
    seed: int, needs_of: Callable[[dict[str, Any]], Needs], *, has_host: bool = False
) -> dict[str, Any]:
    """The same behind KV connectors, where clients go away in the midst of a load, too."""
    if has_host:
        groups, others, kind = random_group_host_scenario, random_host_scenario, "host"
    else:
        groups, others, kind = random_group_loads_scenario, random_adapters_scenario, "loads"
    scenario = groups(seed, needs_of) if seed % 3 == 0 else others(seed)
    _with_aborts(scenario, random.Random(f"{kind} aborts {seed}"))
    return scenario | {"name": f"{kind}-aborts-{seed}", "kind": f"{kind} aborts"}


def random_loads_scenario(seed: int) -> dict[str, Any]:
    """The same with prompts of which another engine has some; see `_with_loads`."""
    scenario = _with_loads(random_scenario(seed), random.Random(f"loads {seed}"))
    return scenario | {"name": f"loads-{seed}", "kind": "loads"}


def _with_loads(scenario: dict[str, Any], draw: random.Random) -> dict[str, Any]:
    """Let another engine have some of the prompts, and blocks be kept at the end.

    Of half the scenarios all prompts are there as a whole: a decode pool.
    """
    is_pool = draw.random() < 0.5
    for row in scenario["requests"]:
        whole = is_pool or draw.random() < 0.3
        row["external_len"] = row["prompt_len"] if whole else draw.randint(0, row["prompt_len"])
    scenario["loads"] = {
        "base_ns": draw.choice([1_000, 1_000, 3_000_000, 20_000_000]),
        "per_token_ns": draw.choice([0, 10_000, 1_000_000]),
        "held_ns": draw.choice([None, None, 4_000_000, 30_000_000]),
    }
    return scenario


def random_host_scenario(seed: int) -> dict[str, Any]:
    """The same with host memory behind the GPU's cache, and prompts that come again."""
    scenario, draw = random_scenario(seed), random.Random(f"host {seed}")
    engine = scenario["engine"]
    engine["enable_prefix_caching"] = True
    if engine["spec"] and engine["spec"]["method"] == "eagle":
        engine["spec"]["method"] = random.Random(f"head {seed}").choice(["eagle", "mtp"])
    # A prompt of one token that is loaded whole is looked up anew for ever in vLLM.
    engine["block_size"] = max(2, engine["block_size"])
    return _with_host(scenario, draw) | {"name": f"host-{seed}", "kind": "host"}


def _with_host(scenario: dict[str, Any], draw: random.Random) -> dict[str, Any]:
    """Have prompts come again, and host memory, most often too small for all of them."""
    engine = scenario["engine"]
    rows = random_requests(draw, engine)
    start = rows[-1]["arrival_ns"]
    for number, row in enumerate(random_requests(draw, engine), len(rows)):
        earlier = draw.choice(rows)
        if "prompt_token_ids" in earlier and draw.random() < 0.8:
            row["prompt_token_ids"] = earlier["prompt_token_ids"][: row["prompt_len"]]
            row["prompt_len"] = len(row["prompt_token_ids"])
        rows.append(row | {"id": f"r{number:02d}", "arrival_ns": start + row["arrival_ns"]})
    scenario["requests"] = rows
    scenario["loads"] = {
        "base_ns": draw.choice([1_000, 1_000, 3_000_000, 20_000_000]),
        "per_token_ns": draw.choice([0, 10_000, 1_000_000]),
        "held_ns": None,
        "host_blocks": draw.choice([3, 10, 30, 100, 1000]),
        "offload_prompt_only": draw.random() < 0.6,
    }
    return scenario


def _layers_without_chunks(draw: random.Random) -> list[dict[str, Any]]:
    """Return layers that attend differently, of kinds that connectors move."""
    layers = [run for run in random_layers(draw) if run["kind"] != "chunked_local_attention"]
    return layers or [{"kind": "sliding_window", "window": 8, "layers": 1}]


def random_group_host_scenario(
    seed: int, needs_of: Callable[[dict[str, Any]], Needs]
) -> dict[str, Any]:
    """The same with layers that attend differently, but not in chunks."""
    scenario, draw = random_scenario(seed), random.Random(f"group host {seed}")
    scenario = _with_layers(scenario, _layers_without_chunks(draw), draw, needs_of)
    scenario["engine"]["enable_prefix_caching"] = True
    return _with_host(scenario, draw) | {"name": f"host-groups-{seed}", "kind": "host groups"}


def random_adapters_scenario(seed: int) -> dict[str, Any]:
    """The same with requests for LoRA adapters."""
    scenario, draw = random_loads_scenario(seed), random.Random(f"adapters {seed}")
    _add_adapters(scenario, draw)
    return scenario | {"name": f"loads-loras-{seed}"}


def random_ones_scenario(seed: int) -> dict[str, Any]:
    """The same where every other prompt is one token, which is loaded and waits for its adapter."""
    scenario, draw = random_adapters_scenario(seed), random.Random(f"ones {seed}")
    for row in scenario["requests"]:
        if draw.random() < 0.5:
            row["prompt_len"] = row["external_len"] = 1
            if "prompt_token_ids" in row:
                row["prompt_token_ids"] = row["prompt_token_ids"][:1]
        row["arrival_ns"] //= draw.choice([1, 4])
    scenario["requests"].sort(key=lambda row: row["arrival_ns"])
    for number, row in enumerate(scenario["requests"]):
        row["id"] = f"r{number:02d}"
    return scenario | {"name": f"loads-ones-{seed}"}


def random_groups_scenario(
    seed: int, needs_of: Callable[[dict[str, Any]], Needs]
) -> dict[str, Any]:
    """The same with layers that attend differently, under pools that are hardly enough."""
    scenario, draw = random_scenario(seed), random.Random(f"groups {seed}")
    scenario |= {"name": f"groups-{seed}", "kind": "random groups"}
    return _with_layers(scenario, random_layers(draw), draw, needs_of)


def random_group_loads_scenario(
    seed: int, needs_of: Callable[[dict[str, Any]], Needs]
) -> dict[str, Any]:
    """The same with layers that attend differently, but not in chunks: that no connector moves."""
    scenario, draw = random_scenario(seed), random.Random(f"group loads {seed}")
    scenario = _with_layers(scenario, _layers_without_chunks(draw), draw, needs_of)
    return _with_loads(scenario, draw) | {"name": f"loads-groups-{seed}", "kind": "loads groups"}


def random_states_scenario(
    seed: int, needs_of: Callable[[dict[str, Any]], Needs]
) -> dict[str, Any]:
    """The same with layers that keep a state, and a third of them windows beside."""
    scenario, draw = random_scenario(seed), random.Random(f"states {seed}")
    scenario |= {"name": f"states-{seed}", "kind": "random states"}
    return _with_layers(scenario, _layers_with_state(draw), draw, needs_of)


def random_rings_scenario(seed: int, needs_of: Callable[[dict[str, Any]], Needs]) -> dict[str, Any]:
    """States, attention, and a ring beside: one block of each sequence that nothing is found in."""
    scenario, draw = random_scenario(seed), random.Random(f"rings {seed}")
    full = draw.choice([1, 2, 4])
    layers = [{"kind": "state", "layers": draw.choice([1, 2, 3, 5, 7])}]
    if seed % 2:
        layers[0]["saves_inside"] = True
    layers += [{"kind": kind, "layers": full} for kind in ("full_attention", "ring")]
    scenario |= {"name": f"rings-{seed}", "kind": "random rings"}
    return _with_layers(scenario, layers, draw, needs_of)


def random_state_loads_scenario(
    seed: int, needs_of: Callable[[dict[str, Any]], Needs]
) -> dict[str, Any]:
    """The same with prompts that another engine has but for their last token, after which a state
    would be of no use."""
    scenario = random_states_scenario(seed, needs_of)
    scenario = _with_loads(scenario, random.Random(f"state loads {seed}"))
    _keep_last_tokens(scenario)
    return scenario | {"name": f"loads-states-{seed}", "kind": "loads states"}


def _keep_last_tokens(scenario: dict[str, Any]) -> None:
    """Leave the last token of whole prompts to be computed, and all of others."""
    for row in scenario["requests"]:
        is_whole = row["external_len"] == row["prompt_len"]
        row["external_len"] = row["prompt_len"] - 1 if is_whole else 0


def random_mixed_loads_scenario(
    seed: int, needs_of: Callable[[dict[str, Any]], Needs], version: tuple[int, int]
) -> dict[str, Any] | None:
    """All at once, with prompts that another engine has; None of what no connector moves."""
    scenario = random_mixed_scenario(seed, needs_of, version)
    draw, engine = random.Random(f"mixed loads {seed}"), scenario["engine"]
    kinds = {run["kind"] for run in engine.get("kv_groups") or ()}
    if "chunked_local_attention" in kinds:
        return None
    scenario = _with_loads(scenario, draw)
    if "state" in kinds:
        _keep_last_tokens(scenario)
    return scenario | {"name": f"mixed-loads-{seed}", "kind": "mixed loads"}


def random_mixed_host_scenario(
    seed: int, needs_of: Callable[[dict[str, Any]], Needs], version: tuple[int, int]
) -> dict[str, Any] | None:
    """All at once, with host memory behind the GPU's cache; None of what it does not hold."""
    scenario = random_mixed_scenario(seed, needs_of, version)
    draw, engine = random.Random(f"mixed host {seed}"), scenario["engine"]
    kinds = {run["kind"] for run in engine.get("kv_groups") or ()}
    spec = engine["spec"] or {"k": 0}
    engine["block_size"] = max(2, engine["block_size"])  # as in `random_host_scenario`
    has_room = spec.get("num_nextn_predict_layers", 1) == 1 or engine["block_size"] >= spec["k"]
    is_held = not kinds & {"chunked_local_attention", "state"}
    if not (is_held and has_room):
        return None
    engine["enable_prefix_caching"] = True
    if kinds:
        engine["num_blocks"] = max(engine["num_blocks"], 1 + needs_of(engine).num_blocks)
    scenario = _with_host(scenario, draw)
    if "max_loras" in engine:
        for row in scenario["requests"]:
            row.setdefault("lora", 0)
    return scenario | {"name": f"mixed-host-{seed}", "kind": "mixed host"}


def _layers_with_state(draw: random.Random) -> list[dict[str, Any]]:
    usual = draw.choice([1, 2, 4])
    layers = [{"kind": "state", "layers": draw.choice([1, 2, 3]) * usual}]
    if draw.random() < 0.5:
        layers[0]["saves_inside"] = True
    layers.append({"kind": "full_attention", "layers": usual})
    if draw.random() < 0.35:
        window = draw.choice([2, 5, 8, 17, 33])
        layers.append({"kind": "sliding_window", "window": window, "layers": usual})
    return layers


def _with_layers(
    scenario: dict[str, Any],
    layers: list[dict[str, Any]],
    draw: random.Random,
    needs_of: Callable[[dict[str, Any]], Needs],
) -> dict[str, Any]:
    engine, has_states = scenario["engine"], layers[0]["kind"] == "state"
    engine["kv_groups"] = layers
    engine["enable_prefix_caching"] = draw.random() < 0.75
    engine["max_model_len"] = length = draw.choice([64, 100, 200, 256])
    engine["block_size"] = draw.choice([1, 2, 4, 4, 8, 8, 16])
    budget = draw.choice([engine["max_num_seqs"] + 1, 24, 48, 100, 300])
    least = max(engine["max_num_seqs"], engine["spec"]["k"] + 3 if engine["spec"] else 0)
    engine["max_num_batched_tokens"] = max(
        budget, least, 0 if engine["enable_chunked_prefill"] else length
    )
    spec = engine["spec"]
    if spec and spec["method"] == "eagle" and draw.random() < 0.4:
        spec["method"] = "mtp"
        spec.pop("parallel_drafting", None)
    if spec and spec["method"] != "ngram" and draw.random() < 0.6:
        mine = draw.choice([run for run in layers[has_states:] if run["kind"] != "ring"])
        layers.append(dict(mine, layers=draw.choice([1, 1, 2])))
    kinds = {run["kind"] for run in layers}
    if "chunked_local_attention" in kinds:
        if spec and spec["method"] in ("eagle", "mtp"):
            # vLLM then keeps all tokens in all layers, if they have no two windows.
            kept = [run for run in layers if run["kind"] != "sliding_window"]
            engine["kv_groups"] = layers = [*kept, {"kind": "full_attention", "layers": 1}]
            span = layers[0].get("chunk", 8)
            layers[:-1] = [run | {"chunk": span} if "chunk" in run else run for run in kept]
        if engine["enable_prefix_caching"]:  # vLLM wants blocks of one size for that
            for run in layers:
                run.pop("bytes_per_token", None)
    needs = needs_of(engine)
    common = needs.common_block_size
    kept = draw.choice([0, 0, 0, None, common, 2 * common, 4 * common])
    engine[RETENTION] = kept if needs.has_windows else 0
    fewest = 1 + needs.num_blocks
    engine["num_blocks"] = int(fewest * draw.choice([1, 1, 1.2, 1.6, 2, 4])) + draw.randint(0, 3)
    requests = [row for _ in range(draw.choice([1, 2, 3])) for row in random_requests(draw, engine)]
    requests.sort(key=lambda row: row["arrival_ns"])
    for number, row in enumerate(requests):
        row["id"] = f"r{number:02d}"
    return {**scenario, "requests": requests}


def random_layers(draw: random.Random) -> list[dict[str, Any]]:
    """Attention layers in the order in which a model might have them."""
    kinds: list[dict[str, Any]] = [{"kind": "full_attention"}]
    for _ in range(draw.choice([1, 1, 1, 2, 3])):
        kinds.append({"kind": "sliding_window", "window": draw.choice([2, 5, 8, 16, 17, 33, 64])})
    if draw.random() < 0.2:
        kinds.append({"kind": "chunked_local_attention", "chunk": draw.choice([6, 8, 16, 32, 50])})
    if draw.random() < 0.15:
        kinds = kinds[1:]  # no layer attends to everything
    draw.shuffle(kinds)
    usual = draw.choice([1, 2, 4, 12])
    has_widths = draw.random() < 0.35
    for run in kinds:
        run["layers"] = draw.choice([usual, usual, 2 * usual, 3 * usual + 1, usual + 1])
        if has_widths:
            run["bytes_per_token"] = draw.choice([1024, 2048, 2048, 4096, 3072])
    return kinds


def random_requests(draw: random.Random, engine: dict[str, Any]) -> list[dict[str, Any]]:
    longest, size = engine["max_model_len"] - 2, engine["block_size"]
    shared = [[draw.randint(5, 999) for _ in range(longest)] for _ in range(2)]
    exact = draw.random() < 0.3  # prompts that end right after a block
    rate, arrival = draw.choice([10, 40, 200]), 0
    rows: list[dict[str, Any]] = []
    for number in range(draw.randint(6, 14)):
        arrival += 0 if draw.random() < 0.2 else int(draw.expovariate(rate) * 1e9)
        prompt_len = (
            min(longest, draw.choice([1, size + 1, 2 * size]))
            if exact
            else (draw.randint(1, longest))
        )
        row: dict[str, Any] = {
            "id": f"r{number:02d}",
            "arrival_ns": arrival,
            "prompt_len": prompt_len,
            "max_tokens": draw.choice([1, 2, draw.randint(1, 20), draw.randint(1, 50)]),
        }
        if engine["enable_prefix_caching"] and draw.random() < 0.7:
            common = draw.choice([prompt_len, draw.randint(0, prompt_len)])
            own = [draw.randint(5, 999) for _ in range(prompt_len - common)]
            row["prompt_token_ids"] = draw.choice(shared)[:common] + own
        if engine["policy"] == "priority":
            row["priority"] = draw.choice([0, 0, 1, 2])
        if draw.random() < 0.2:
            row["alpha"] = round(draw.random(), 3)
        rows.append(row)
    return rows
