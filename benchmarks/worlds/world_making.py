"""Random worlds: experiments over all that a YAML file can say, each made from its number alone.

A world is plain data: an experiment, the profile that it names, and the rows of its trace, if it
has one. It is small, so that it runs in a fraction of a second, and tight, so that requests wait,
are preempted and find one another's blocks.
"""

import copy
import json
from collections import Counter
from random import Random
from typing import Any

from world_choices import (
    ACCEPTANCES,
    DRAFT_MODELS,
    LOOKUP_POLICIES,
    LOOKUPS,
    METHODS,
    MIXTURE,
    MODEL,
    MODELS,
    POLICIES,
    ROUTERS,
    say_more,
)
from world_profiles import profile_of

World = dict[str, Any]
"""``config``, ``profile``, ``rows`` and ``relations``; see `world_relations`."""


def draw_world(rng: Random) -> World:
    """Return a world, which may contradict itself: then it is refused, and another is drawn."""
    unit = rng.choice([2.0**-7, 0.005, 0.0004])  # seconds of a step, about
    shape = rng.choice(["one", "one", "several", "several", "pools", "scaled", "ranks"])
    is_v0 = rng.random() < 0.12 and shape not in ("pools", "ranks")
    engine = _engine(rng, is_v0=is_v0)
    config: dict[str, Any] = {"engine": engine, "profile": "profile.yaml", "seed": rng.randrange(9)}
    if rng.random() < 0.12 and shape in ("one", "several", "scaled"):
        engine["kv_offload"] = _tiers(rng, unit)
    elif rng.random() < 0.2 and shape != "pools":
        _group_layers(rng, engine)
    if rng.random() < 0.4:
        config["slo"] = {"ttft_ms": 8e3 * unit, "tpot_ms": 2e3 * unit}
    count, longest = rng.randint(1, 24), engine["max_model_len"] - 1
    answer_len = rng.choice([1, 2, 8, 25])
    rate = rng.choice([0.02, 0.3, 1.0, 5.0]) * min(engine["max_num_seqs"], 4) / answer_len / unit
    workload, rows = _workload(rng, count, longest, answer_len, rate, unit)
    config["workload"] = workload
    if rng.random() < 0.75:
        _speculate(rng, config, _columns(workload, rows), is_v0=is_v0)
    _lay_out(rng, config, shape, unit, horizon=count / rate + 20 * unit)
    say_more(rng, config, unit)
    profile = profile_of(rng, unit, MIXTURE if shape == "ranks" else MODEL)
    if profile["target"]["kind"] == "composed":  # for so many ranks
        names = ("data_parallel_size", "enable_expert_parallel")
        target = profile["target"]
        target |= {name: engine[name] for name in names if name in engine}
        if "data_parallel_size" in engine:
            halved = [time / 2 for time in target["compute_us"]]
            target["shared"] = {"at": target["batched_tokens"], "times_us": halved}
    if not is_v0 and rng.random() < 0.6:
        engine["vllm_version"] = "0.32"
    elif not is_v0 and "speculative_config" in engine and rng.random() < 0.3:
        engine["speculative_config"]["disable_lookahead_block_hashes"] = True
    _serve_adapters(config, profile, rows)
    _hold_prefills(config)
    _name_rule(config)
    _look_up_on_gpu(config, profile)
    _set_apart(config, unit)
    _draft_at_once(config, profile)
    _draft_in_turn(config)
    _verify_surest(config)
    _divide(config, profile)
    _window_pools(config)
    _window_tiers(config)
    _share_out(config, profile)
    _capture_graphs(config["engine"], profile, unit)
    return {
        "config": config,
        "profile": profile,
        "rows": rows,
        "relations": rng.sample(["again", "doubled", "cut", "python", "alone", "room", "table"], 7),
    }


def _serve_adapters(
    config: dict[str, Any], profile: dict[str, Any], rows: list[dict[str, Any]] | None
) -> None:
    """Let requests of one world in five be for LoRA adapters; all else of it stays as it was."""
    engine = config["engine"]
    rng = Random(json.dumps(config))
    if {"data_parallel_size", "scheduler"} & {*engine} or rng.random() > 0.2:
        return
    engine["lora_config"] = {"max_loras": rng.randint(1, 3), "max_cpu_loras": rng.randint(3, 5)}
    profile["lora"] = {"step_ms": 0.5, "token_us": 2.0, "load_ms": 3.0, "read_ms": 40.0}
    if rows is None or rng.random() < 0.5:
        config["workload"]["adapters"] = {"count": rng.randint(1, 6), "share": 0.75}
        return
    for row in rows:
        row["adapter"] = rng.randint(0, 4)


def _hold_prefills(config: dict[str, Any]) -> None:
    """Let some steps read no prompts, where the engine knows that; all else stays as it was."""
    engine = config["engine"]
    rng = Random(f"cadence {json.dumps(config)}")
    knows = _is_newest(engine) and "lora_config" not in engine
    if knows and rng.random() < 0.3:
        engine["prefill_schedule_interval"] = rng.choice([2, 3, 7])


def _name_rule(config: dict[str, Any]) -> None:
    """Say of half of the drafters by which rule is rejected; all else stays as it was."""
    engine, acceptance = config["engine"], config.get("acceptance", {})
    rng = Random(f"rule {json.dumps(config)}")
    is_plain = '"rejection"' not in json.dumps(acceptance)
    rule = acceptance.get("rejection", "standard" if is_plain else "typical")
    spec = engine.get("speculative_config", {})
    knows = _is_newest(engine) if rule == "fly" else rule != "typical"
    if spec and knows and spec.get("num_speculative_tokens", 2) > 1 and rng.random() < 0.5:
        spec["rejection_sample_method"] = rng.choice(["block", rule]) if rule != "fly" else rule


def _is_newest(engine: dict[str, Any]) -> bool:
    return not {"vllm_version", "scheduler"} & {*engine}


def _look_up_on_gpu(config: dict[str, Any], profile: dict[str, Any]) -> None:
    """Let a GPU look up n-grams in half of the worlds that do; all else stays as it was."""
    engine, rng = config["engine"], Random(f"kernel {json.dumps(config)}")
    spec = engine.get("speculative_config", {})
    if spec.get("method") != "ngram" or "scheduler" in engine or rng.random() < 0.5:
        return
    spec["method"] = "ngram_gpu"
    profile["drafts"]["ngram_gpu"] = profile["drafts"]["ngram"]  # a default would not be doubled


def _verify_surest(config: dict[str, Any]) -> None:
    """Let some servers verify the surest drafts, as vLLM does; all else stays as it was."""
    engine, rng = config["engine"], Random(f"surest {json.dumps(config)}")
    spec = engine.get("speculative_config", {})
    knows = spec.get("method") in (*MODELS[:4], "dflash", "dspark")
    others = {"lora_config", "scheduler", "own_gpus"} & {*engine, *spec}
    if knows and "policy" in config and not others and rng.random() < 0.15:
        spec["enable_adaptive_verification"] = True
        del config["policy"]


def _draft_at_once(config: dict[str, Any], profile: dict[str, Any]) -> None:
    """Let some models draft all tokens in one pass, as vLLM has them; all else stays as it was."""
    engine, rng = config["engine"], Random(f"at once {json.dumps(config)}")
    spec, policy = engine.get("speculative_config", {}), json.dumps(config.get("policy", ""))
    is_head = spec.get("method") in ("eagle", "eagle3")
    knows = is_head or spec.get("method") == "draft_model"
    if not knows or "scheduler" in engine or "tree" in policy or rng.random() > 0.4:
        return
    if is_head and rng.random() < 0.6:
        costs = profile["drafts"]
        costs["dflash"] = costs["dspark"] = costs[spec["method"]]
        spec["method"] = rng.choice(["dflash", "dspark"])
        spec.pop("disable_lookahead_block_hashes", None)
    elif "own_gpus" not in spec:
        spec["parallel_drafting"] = True


def _draft_in_turn(config: dict[str, Any]) -> None:
    """Give most MTP heads several modules, where vLLM has them; all else stays as it was."""
    engine, rng = config["engine"], Random(f"in turn {json.dumps(config)}")
    spec, k = engine.get("speculative_config", {}), 0
    if spec.get("method") == "mtp":
        k = spec["num_speculative_tokens"]
    limits = (
        *("max_num_batched_tokens", "max_num_scheduled_tokens", "long_prefill_token_threshold"),
        *(("block_size",) if engine.get("enable_prefix_caching") else ()),
    )
    has_room = all((engine.get(name) or k) >= k for name in limits)
    kinds = [each["kind"] for each in engine.get("kv_groups") or ()]
    plain = "state" not in kinds and (not kinds or "full_attention" in kinds)
    if k and has_room and plain and "scheduler" not in engine and rng.random() < 0.7:
        spec["num_nextn_predict_layers"] = rng.choice([2, 3, 7])


def _set_apart(config: dict[str, Any], unit: float) -> None:
    """Give most draft models GPUs of their own; all else stays as it was."""
    spec = config["engine"].get("speculative_config", {})
    rng = Random(f"apart {json.dumps(config)}")
    if spec.get("method") == "draft_model" and "pools" not in config and rng.random() < 0.7:
        link = {"latency_ms": rng.choice([0.0, 20.0, 700.0]) * unit, "bandwidth_gb_s": 1e-3 / unit}
        spec["own_gpus"] = {**link, "token_bytes": 4e4, "overlaps": rng.random() < 0.7}


def _divide(config: dict[str, Any], profile: dict[str, Any]) -> None:
    """Divide most models over stages, where that is simulated."""
    engine = config["engine"]
    rng = Random(f"stages {json.dumps(config)}")
    others = {"scheduler", "data_parallel_size"}
    spec = engine.get("speculative_config", {"method": MODELS[0]})
    is_late = spec["method"] in (*MODELS, "dflash", "dspark") and spec["method"] != "medusa"
    is_late = is_late and not {"own_gpus", "enable_adaptive_verification"} & {*spec}
    is_async = engine.get("async_scheduling") is not False and is_late
    if is_async and not others & {*config, *engine} and rng.random() < 0.7:
        profile["stage_shares"] = rng.choice([[0.5, 0.5], [0.3, 0.3, 0.4], [0.25] * 4])


def _share_out(config: dict[str, Any], profile: dict[str, Any]) -> None:
    """Let some GPUs share blocks out among them; all else stays as it was."""
    rng = Random(f"shares {json.dumps(config)}")
    if "kv_groups" not in config["engine"] and rng.random() < 0.15:
        profile["decode_context_parallel_size"] = rng.choice([2, 2, 4, 8])


def _window_pools(config: dict[str, Any]) -> None:
    """Give the model of some pools windows and states; all else stays as it was."""
    engine, rng = config["engine"], Random(f"window pools {json.dumps(config)}")
    pools = config.get("pools")
    if pools is None or "kv_offload" in pools["prefill"].get("engine", {}) or rng.random() > 0.4:
        return
    layers: list[dict[str, Any]] = [{"kind": "full_attention", "layers": rng.randint(1, 4)}]
    windows = rng.choices([2, 5, 8, 17, 40], k=rng.choice([1, 1, 2]))
    layers += [{"kind": "sliding_window", "window": each, "layers": 2} for each in windows]
    if rng.random() < 0.4:
        layers[1] = {"kind": "state", "layers": 3}
        pools["decode"]["engine"] = {"enable_prefix_caching": False}
    rng.shuffle(layers)
    engine["kv_groups"] = layers
    if "num_gpu_blocks" in engine:
        engine["num_gpu_blocks"] *= len(layers) + 2
    pools["transfer"]["draft_kv"] = "moved"


def _window_tiers(config: dict[str, Any]) -> None:
    """Give the model before most KV tiers windows; all else stays as it was."""
    engine, rng = config["engine"], Random(f"window tiers {json.dumps(config)}")
    tiered = [engine, config.get("pools", {}).get("prefill", {}).get("engine", {})]
    has_tiers = any("kv_offload" in each for each in tiered)
    if not has_tiers or "kv_groups" in engine or rng.random() > 0.6:
        return
    layers: list[dict[str, Any]] = [{"kind": "full_attention", "layers": rng.randint(1, 4)}]
    for _ in range(rng.choice([1, 1, 2])):
        window = rng.choice([2, 5, 8, 17, 40])
        layers.append({"kind": "sliding_window", "window": window, "layers": rng.choice([1, 2, 4])})
    if rng.random() < 0.4:  # blocks of two sizes
        for each in layers:
            each["bytes_per_token"] = rng.choice([1024, 2048])
    rng.shuffle(layers)
    engine["kv_groups"] = layers
    if "num_gpu_blocks" in engine:
        engine["num_gpu_blocks"] *= len(layers) + 2
    if rng.random() < 0.4:
        engine["prefix_cache_retention_interval"] = "dense"
    if "pools" in config:
        config["pools"]["transfer"]["draft_kv"] = "moved"


def _capture_graphs(engine: dict[str, Any], profile: dict[str, Any], unit: float) -> None:
    """Say which CUDA graphs some engines capture; all else stays as it was."""
    rng = Random(f"graphs {json.dumps(profile)}")
    drafters = [cost["latency"] for cost in profile["drafts"].values() if "latency" in cost]
    composed = [each for each in (profile["target"], *drafters) if each["kind"] == "composed"]
    if profile["target"]["kind"] != "composed" or rng.random() < 0.5:
        return
    if rng.random() < 0.6:
        profile["target"].setdefault("eager_at_least_us", 1.5e6 * unit)
        engine["max_cudagraph_capture_size"] = rng.choice([1, 4, 32])
        return
    engine["enforce_eager"] = True
    for each in composed:  # as long at least as specsim takes launches to be
        each["eager_at_least_us"] = max(each.get("eager_at_least_us", 0.0), 3e4)


def _columns(workload: dict[str, Any], rows: list[dict[str, Any]] | None) -> frozenset[str]:
    """Return what is known of each request; `empirical` takes the lengths alone."""
    is_drawn = workload.get("lengths", {}).get("kind") == "empirical"
    return frozenset(rows[0] if rows and not is_drawn else ())


def _engine(rng: Random, *, is_v0: bool) -> dict[str, Any]:
    size, longest = rng.choice([1, 2, 4, 8, 16]), rng.choice([24, 40, 64, 100, 300])
    seqs, chunked = rng.choice([1, 2, 4, 8, 16]), rng.random() < 0.8 and not is_v0
    budget = max(seqs, rng.choice([3, 12, 24, 64, 200]))
    engine: dict[str, Any] = {
        "block_size": size,
        "max_model_len": longest,
        "num_gpu_blocks": -(-longest // size) + 2 + rng.choice([0, 0, 1, 3, 10, 60, 900, 9000]),
        "max_num_seqs": seqs,
        "max_num_batched_tokens": budget if chunked else max(budget, longest + 12),
        "enable_chunked_prefill": chunked,
        "enable_prefix_caching": rng.random() < 0.6,
        "scheduling_policy": rng.choice(["fcfs", "fcfs", "priority"]),
        "scheduler_reserve_full_isl": rng.random() < 0.5,
        "watermark": rng.choice([0.0, 0.0, 0.05, 0.3]),
    }
    if rng.random() < 0.03:  # as many as the GPU's memory holds
        del engine["num_gpu_blocks"]
    if is_v0:
        return {**engine, "scheduler": "prefill_first"}
    options = {
        "async_scheduling": rng.choice([None, None, False]),
        "max_num_active_seqs": rng.choice([None, None, None, 1, 3]),
        "max_num_scheduled_tokens": rng.choice([None, None, None, 2, budget]),
        "long_prefill_token_threshold": rng.choice([0, 0, 0, 3, 10]),
        "long_prefill_token_threshold_adaptive": rng.random() < 0.2,
    }
    return {**engine, **{name: value for name, value in options.items() if value is not None}}


def _group_layers(rng: Random, engine: dict[str, Any]) -> None:
    kinds: list[dict[str, Any]] = [{"kind": "full_attention", "layers": rng.randint(1, 4)}]
    for _ in range(rng.choice([1, 1, 2])):
        window = rng.choice([2, 5, 8, 17, 40])
        kinds.append({"kind": "sliding_window", "window": window, "layers": rng.choice([1, 2, 4])})
    if rng.random() < 0.2:
        kinds.append({"kind": "chunked_local_attention", "chunk": rng.choice([4, 16]), "layers": 1})
    elif rng.random() < 0.4:
        states = {"kind": "state", "layers": rng.choice([1, 2, 6])}
        if states["layers"] == 2:
            states["saves_inside"] = True
        kinds[1:] = [states, *kinds[2:]]
    elif rng.random() < 0.15 and "disable_hybrid_kv_cache_manager" not in engine:
        for each in kinds:
            each["block_size"] = engine["block_size"] * rng.choice([1, 2, 4])
    rng.shuffle(kinds)
    engine["kv_groups"] = kinds
    if "num_gpu_blocks" in engine:
        engine["num_gpu_blocks"] *= len(kinds) + 2
    retention = rng.choice([None, None, "dense", 4 * engine["block_size"]])
    if retention is not None:
        engine["prefix_cache_retention_interval"] = retention


def _link(rng: Random, unit: float) -> dict[str, Any]:
    seconds = rng.choice([0.01, 1.0, 20.0]) * unit  # for a prompt of 100 tokens, about
    return {
        "bandwidth_gb_s": 100 * 131072 / 1e9 / seconds,
        "latency_ms": rng.choice([0.0, 500.0]) * unit,
        "max_transfers": rng.choice([1, 1, 2]),
    }


def _tiers(rng: Random, unit: float) -> dict[str, Any]:
    room = rng.choice([{"blocks": 4}, {"blocks": 20}, {"blocks": 300}, {"gib": 0.02}])
    tiers: dict[str, Any] = {**room, **_link(rng, unit)}
    if rng.random() < 0.5:
        room = rng.choice([{"blocks": 10}, {"blocks": 500}, {"gib": 0.05}])
        tiers["disk"] = {**room, **_link(rng, unit)}
    if Random(f"outputs {json.dumps(tiers)}").random() < 0.4:
        tiers["offload_prompt_only"] = False
    return tiers


def _speculate(
    rng: Random, config: dict[str, Any], columns: frozenset[str], *, is_v0: bool
) -> None:
    method, length = rng.choice(METHODS), rng.choice([1, 2, 3, 5, 8])
    config["policy"] = copy.deepcopy(rng.choice(POLICIES))
    config["acceptance"] = _acceptance(rng, columns)
    if config["policy"] == "medusa_tree":
        method, length = "medusa", min(length, 3)
    elif "_tree" in str(config["policy"]):
        method, length = rng.choice(MODELS), max(length, 2)
    spec: dict[str, Any] = {"method": method, "num_speculative_tokens": length}
    if method == "ngram":
        spec["match_probability"] = 0.5
    if method == "suffix" and rng.random() < 0.7:
        spec["mean_match_len"] = 3.0
    if "output_token_ids" in columns and rng.random() < 0.7:  # what is said decides
        spec = _look_up(rng, config, columns, length)
    elif rng.random() < 0.06:
        spec = {"method": "draft_models", "models": [*DRAFT_MODELS]}
        spec["num_speculative_tokens"] = length
        models = {name: _acceptance(rng, columns) for name in DRAFT_MODELS}
        config["acceptance"] = {"kind": "per_drafter", "models": models}
        config["policy"] = {"kind": "draft_selection", "num_probes": rng.choice([3, 4, 25])}
    if is_v0 and rng.random() < 0.3:
        spec["disable_mqa_scorer"] = True
    if spec["method"] not in ("hybrid", "draft_models") and rng.random() < 0.1:
        spec["num_speculative_tokens_per_batch_size"] = [[1, 2, length], [3, 300, length // 2]]
        del config["policy"]
    config["engine"]["speculative_config"] = spec


def _acceptance(rng: Random, columns: frozenset[str]) -> dict[str, Any]:
    if "accepted_lens_eagle" in columns and rng.random() < 0.5:
        return {"kind": "recorded", "proposer": "eagle"}
    chosen: dict[str, Any] = copy.deepcopy(rng.choice(ACCEPTANCES))
    return chosen


def _look_up(
    rng: Random, config: dict[str, Any], columns: frozenset[str], length: int
) -> dict[str, Any]:
    """Return a method that finds its drafts in texts; a model may stand behind it."""
    method = rng.choice(LOOKUPS)
    spec: dict[str, Any] = {"method": method, "num_speculative_tokens": length}
    if method == "datastore" or (method == "sssd" and rng.random() < 0.5):
        spec["corpus"] = "trace.jsonl"
    config["acceptance"] = {"kind": "token_match"}
    config["policy"] = rng.choice(LOOKUP_POLICIES)
    if rng.random() < 0.7:
        return spec
    behind = {"method": rng.choice(MODELS), "num_speculative_tokens": rng.choice([1, 2, 4])}
    models = {method: config["acceptance"], behind["method"]: _acceptance(rng, columns)}
    config["acceptance"] = {"kind": "per_drafter", "models": models}
    config["policy"] = "hybrid_suffix"
    return {"method": "hybrid", "lookup": spec, "fallback": behind}


def _spread(rng: Random, mean: float) -> Any:
    return rng.choice([mean, {"mean": mean, "sigma": 0.6}])


def _workload(
    rng: Random, count: int, longest: int, answer_len: int, rate: float, unit: float
) -> tuple[dict[str, Any], list[dict[str, Any]] | None]:
    arrivals = rng.choice(
        [
            "burst",
            {"kind": "constant", "rate": rate},
            {"kind": "poisson", "rate": rate},
            {"kind": "poisson", "rate": rate},
            {"kind": "gamma", "rate": rate, "burstiness": 0.3},
            {"kind": "piecewise", "segments": [[count / rate, rate / 2], [count / rate, 2 * rate]]},
            {
                "kind": "closed_loop",
                "concurrency": rng.choice([1, 1, 3, 6]),
                "think_time": rng.choice([0.0, 5 * unit]),
                "think_time_shape": rng.choice(["constant", "exponential"]),
            },
            {"kind": "trace", "path": "trace.jsonl"},
        ]
    )
    has_rate = isinstance(arrivals, dict) and "rate" in arrivals
    prompt_len = rng.randint(1, rng.choice([3, longest // 2, longest]))
    workload: dict[str, Any] = {"arrivals": arrivals, "num_requests": count}
    if isinstance(arrivals, dict) and arrivals["kind"] != "closed_loop" and rng.random() < 0.1:
        workload["duration"] = count / rate
        if has_rate and rng.random() < 0.5:
            del workload["num_requests"]
    is_trace = isinstance(arrivals, dict) and arrivals["kind"] == "trace"
    if is_trace or rng.random() < 0.25:
        if not is_trace:
            kind = rng.choice(["trace", "trace", "empirical"])
            workload["lengths"] = {"kind": kind, "path": "trace.jsonl"}
        return workload, _rows(rng, count, prompt_len, answer_len, rate, unit)
    plain = {"kind": "uniform", "prompt": [1, prompt_len], "output": [1, answer_len]}
    workload["lengths"] = rng.choice(
        [
            plain,
            plain,
            {"kind": "constant", "prompt": prompt_len, "output": answer_len},
            {
                "kind": "lognormal",
                "prompt": {"mean": 1 + longest / 9, "sigma": 0.5},
                "output": {"mean": answer_len, "sigma": 0.3},
            },
            {
                "kind": "truncated_normal",
                "prompt": {"mean": prompt_len, "std": prompt_len / 4, "min": 1, "max": prompt_len},
                "output": {"mean": answer_len, "std": answer_len / 2, "max": 2 * answer_len},
            },
            {"kind": "shift", "at": 0.5, "before": plain, "after": "constant:prompt=9,output=4"},
            *[_sessions(rng, longest, answer_len, unit)] * 3,
        ]
    )
    if rng.random() < 0.15:
        workload["max_tokens"] = 2 * answer_len + 8
    return workload, None


def _sessions(rng: Random, longest: int, answer_len: int, unit: float) -> dict[str, Any]:
    pause = rng.choice([0.0, 2.0, 50.0, 3000.0]) * unit
    return {
        "kind": "sessions",
        "turns": _spread(rng, rng.choice([1, 3, 6])),
        "first_prompt": _spread(rng, rng.choice([2, longest // 5 + 1])),
        "new_input": _spread(rng, rng.choice([1, 8])),
        "output": _spread(rng, answer_len),
        "shared_prompt": rng.choice([0, 0, longest // 8]),
        "think_time": _spread(rng, pause),
        "tool_share": rng.choice([0.0, 0.5]),
        "tool_time": _spread(rng, pause / 4),
        "max_len": longest,
    }


def _rows(
    rng: Random, count: int, longest: int, answer_len: int, rate: float, unit: float
) -> list[dict[str, Any]]:
    """Return rows of a trace: who shares a prefix, says what, belongs to which session."""
    known = rng.choice(["tokens", "tokens", "tokens", "prefixes", "lengths"])
    has_sessions, has_record = rng.random() < 0.3, rng.random() < 0.4
    phrases = [rng.choices(range(7), k=rng.randint(1, 9)) for _ in range(5)]
    rows: list[dict[str, Any]] = []
    at = 0.0
    for _ in range(count):
        at += rng.choice([0.0, unit, rng.expovariate(rate)])
        row: dict[str, Any] = {
            "arrived_at": at,
            "prompt_len": rng.randint(1, longest),
            "output_len": rng.randint(1, answer_len),
            "priority": rng.choice([0, 0, 1, -1]),
        }
        if known == "prefixes":  # pieces of one of two long texts
            pieces, text = -(-row["prompt_len"] // 4), rng.choice([0, 1000])
            row |= {"prefix_hash_ids": [text + i for i in range(pieces)], "prefix_block_size": 4}
        if has_record:
            row["accepted_lens_eagle"] = rng.choices(range(4), k=row["output_len"])
        if known == "tokens":
            for part in ("prompt", "output"):
                said = [token for _ in range(row[f"{part}_len"]) for token in rng.choice(phrases)]
                row[f"{part}_token_ids"] = said[: row[f"{part}_len"]]
        if has_sessions:
            row["session"] = str(rng.randrange(1 + count // 3))
            row["think_time"] = rng.choice([0.0, 3 * unit, 40 * unit])
        rows.append(row)
    if has_sessions and known != "tokens":
        _add_agents(rows)
    return rows


def _add_agents(rows: list[dict[str, Any]]) -> None:
    """Let some turns wait for any of the earlier ones of their session, and not for the last."""
    rng = Random(len(rows))  # by itself, so that all else of a world stays as it was
    turns: Counter[str] = Counter()
    for row in rows:
        earlier = range(1, turns[row["session"]] + 1)
        num_waited_for = rng.randint(1, len(earlier)) if earlier else 0
        row["after_turns"] = sorted(rng.sample(earlier, num_waited_for))
        turns[row["session"]] += 1


def _routing(rng: Random, unit: float) -> dict[str, Any]:
    router: dict[str, Any] = {"kind": rng.choice(ROUTERS)}
    if router["kind"] == "scored":
        router["refresh_ms"] = rng.choice([2e3, 20e3]) * unit
        router["index"] = rng.choice(["approximate", "precise"])
        router["weights"] = {"queue": 2.0, "running": 1.0, "session": rng.choice([0.0, 3.0])}
    elif router["kind"].startswith(("least", "vllm")) and rng.random() < 0.3:
        router["refresh_ms"] = 3e3 * unit
    return router


def _scaler(rng: Random, unit: float) -> dict[str, Any]:
    kind = rng.choice(["target_concurrency", "target_queue", "target_kv_use", "target_slo"])
    target = 0.5 if kind in ("target_kv_use", "target_slo") else rng.choice([1.0, 4.0])
    return {
        "kind": kind,
        "target": target,
        "min_replicas": 1,
        "max_replicas": rng.randint(1, 4),
        "interval_s": rng.choice([2.0, 30.0]) * unit,
        "start_up_s": rng.choice([0.0, 10.0]) * unit,
        "scale_in_delay_s": rng.choice([0.0, 25.0]) * unit,
    }


def _incidents(rng: Random, replicas: int, horizon: float, pool: str | None) -> list[Any]:
    found = []
    for replica in range(replicas):
        if rng.random() < 0.5:
            continue
        at = rng.choice([0.0, rng.random() * horizon])
        each: dict[str, Any] = {"replica": replica, "at": at, "until": at + rng.random() * horizon}
        each |= rng.choice([{"kind": "failure"}, {"kind": "slowdown", "factor": 3.0}])
        found.append(each if pool is None else {**each, "pool": pool})
    return found


def _lay_out(rng: Random, config: dict[str, Any], shape: str, unit: float, horizon: float) -> None:
    """Say which replicas there are, who shares requests out, and what befalls them."""
    if shape != "one" or rng.random() < 0.3:
        config["routing"] = _routing(rng, unit)
    replicas = 1
    if shape == "several":
        config["replicas"] = replicas = rng.randint(2, 4)
    elif shape == "ranks":
        config["engine"]["data_parallel_size"] = rng.randint(2, 3)
        config["engine"]["enable_expert_parallel"] = rng.random() < 0.3
        return
    elif shape == "scaled":
        config["autoscaling"] = _scaler(rng, unit)
        config["slo"] = {"ttft_ms": 8e3 * unit}
        replicas = config["autoscaling"]["max_replicas"]
    elif shape == "pools":
        config["pools"] = _pools(rng, unit)
        if rng.random() < 0.3:
            config["incidents"] = _incidents(rng, 1, horizon, "prefill")
            config["incidents"] += _incidents(rng, 1, horizon, "decode")
        return
    if rng.random() < 0.3:
        config["incidents"] = _incidents(rng, replicas, horizon, None)


def _pools(rng: Random, unit: float) -> dict[str, Any]:
    pools: dict[str, Any] = {
        "prefill": {"replicas": rng.randint(1, 3)},
        "decode": {"replicas": rng.randint(1, 3)},
        "transfer": {
            **_link(rng, unit),
            "link": rng.choice(["decode", "prefill", "all"]),
            "overlap": rng.choice(["none", "layers"]),
            "draft_kv": rng.choice(["moved", "recomputed", "cold"]),
        },
    }
    for pool in ("prefill", "decode"):
        if rng.random() < 0.3:
            pools[pool]["routing"] = _routing(rng, unit)
        if rng.random() < 0.15:
            pools[pool] = {"autoscaling": {**_scaler(rng, unit), "kind": "target_concurrency"}}
        if rng.random() < 0.2:
            pools[pool]["profile"] = "other.yaml"
    if rng.random() < 0.2:
        pools["prefill"]["engine"] = {"kv_offload": _tiers(rng, unit)}
    return pools
