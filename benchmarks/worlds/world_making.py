"""Random worlds: experiments over all that a YAML file can say, each made from its number alone.

A world is plain data: an experiment, the profile that it names, and the rows of its trace, if it
has one. It is small, so that it runs in a fraction of a second, and tight, so that requests wait,
are preempted and find one another's blocks.
"""

import copy
from random import Random
from typing import Any

World = dict[str, Any]
"""``config``, ``profile``, ``rows`` and ``relations``; see `world_relations`."""

MODEL, MIXTURE = "llama-3.1-8b", "mixtral-8x7b"


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
        has_tokens = bool(rows) and "output_token_ids" in rows[0]
        _speculate(rng, config, is_v0=is_v0, has_tokens=has_tokens)
    _lay_out(rng, config, shape, unit, horizon=count / rate + 20 * unit)
    return {
        "config": config,
        "profile": _profile(rng, unit, MIXTURE if shape == "ranks" else MODEL),
        "rows": rows,
        "relations": rng.sample(["again", "doubled", "cut", "python", "alone", "room", "table"], 7),
    }


def _engine(rng: Random, *, is_v0: bool) -> dict[str, Any]:
    size, longest = rng.choice([1, 2, 4, 8, 16]), rng.choice([24, 40, 64, 100, 300])
    seqs, chunked = rng.choice([1, 2, 4, 8, 16]), rng.random() < 0.8 and not is_v0
    budget = max(seqs, rng.choice([3, 12, 24, 64, 200]))
    engine: dict[str, Any] = {
        "block_size": size,
        "max_model_len": longest,
        "num_gpu_blocks": -(-longest // size) + 2 + rng.choice([0, 0, 1, 3, 10, 60, 900]),
        "max_num_seqs": seqs,
        "max_num_batched_tokens": budget if chunked else max(budget, longest + 12),
        "enable_chunked_prefill": chunked,
        "enable_prefix_caching": rng.random() < 0.6,
        "scheduling_policy": rng.choice(["fcfs", "fcfs", "priority"]),
        "scheduler_reserve_full_isl": rng.random() < 0.5,
        "watermark": rng.choice([0.0, 0.0, 0.05, 0.3]),
    }
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
    rng.shuffle(kinds)
    engine["kv_groups"] = kinds
    engine["num_gpu_blocks"] = (len(kinds) + 2) * engine["num_gpu_blocks"]
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
    tiers: dict[str, Any] = {"blocks": rng.choice([4, 20, 300]), **_link(rng, unit)}
    if rng.random() < 0.5:
        tiers["disk"] = {"blocks": rng.choice([10, 500]), **_link(rng, unit)}
    return tiers


METHODS = ("eagle3", "eagle", "mtp", "draft_model", "medusa", "ngram", "suffix")
POLICIES: tuple[Any, ...] = (
    *("static", "static", "static", "off", "goodput", "goodput", "turbospec", "goodput_exact"),
    *("acceptance_target", "bandit", "oracle", "q_learning", "random", "step_controller"),
    *("window_opt", "joint", "bayes", "medusa_tree"),
    *("adaptive_verification", "confidence", "draft_goodput"),
    {"kind": "bandit", "algorithm": "thompson", "memory_steps": 9},
    {"kind": "ema_tiers", "interval": 2, "warm_up": 3},
    {"kind": "goodput", "granularity": "request", "window": 5},
    {"kind": "goodput", "candidates": "prefixes"},
    {"kind": "schedule", "ranges": [[1, 2, 2], [3, 8, 1], [9, 300, 0]]},
    {"kind": "turbospec", "reset_steps": 4, "window": 6},
    "slo_aware",
)
ACCEPTANCES: tuple[dict[str, Any], ...] = (
    *({"kind": "bernoulli", "alpha": alpha} for alpha in (0.0, 0.3, 0.7, 1.0)),
    {"kind": "beta", "a": 3.0, "b": 1.5},
    {"kind": "beta_position", "a": 6.0, "b": 2.0, "factors": [1.0, 0.9, 0.8]},
    {
        "kind": "layered",
        "rates": [0.75, 0.65, 0.6],
        "request_spread": 0.4,
        "regimes": [{"spread": 0.8, "mean_len": 3.0}],
        "drift": 0.1,
    },
    {
        "kind": "markov",
        "regimes": [{"weight": 0.7, "alpha": 0.2}, {"weight": 0.3, "alpha": 0.95}],
        "regime_len": 5.0,
    },
    {"kind": "per_position", "conditional_rates": [0.8, 0.7, 0.6]},
    {"kind": "preset", "name": "llama-3.1-8b/eagle/gsm8k"},
    {
        "kind": "shift",
        "at_request": 5,
        "before": {"kind": "bernoulli", "alpha": 0.8},
        "after": {"kind": "bernoulli", "alpha": 0.3, "confidence_concentration": 0.4},
    },
)


def _speculate(rng: Random, config: dict[str, Any], *, is_v0: bool, has_tokens: bool) -> None:
    method, length = rng.choice(METHODS), rng.choice([1, 2, 3, 5, 8])
    spec: dict[str, Any] = {"method": method, "num_speculative_tokens": length}
    config["policy"] = copy.deepcopy(rng.choice(POLICIES))
    config["acceptance"] = copy.deepcopy(rng.choice(ACCEPTANCES))
    if config["policy"] == "medusa_tree":
        spec["method"] = "medusa"
    if method == "ngram":
        spec["match_probability"] = 0.5
    if method == "suffix" and rng.random() < 0.7:
        spec["mean_match_len"] = 3.0
    if is_v0 and rng.random() < 0.3:
        spec["disable_mqa_scorer"] = True
    if rng.random() < 0.1:
        spec["num_speculative_tokens_per_batch_size"] = [[1, 2, length], [3, 300, length // 2]]
        del config["policy"]
    if has_tokens and rng.random() < 0.7:  # what is said decides
        spec["method"], config["acceptance"] = (
            rng.choice(["ngram", "suffix", "sssd"]),
            {"kind": "token_match"},
        )
        spec.pop("mean_match_len", None)
        spec.pop("match_probability", None)
        config["policy"] = rng.choice(["static", "goodput", "turbospec", "cached_step_controller"])
    config["engine"]["speculative_config"] = spec


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
    prompt_len = rng.randint(1, rng.choice([3, longest // 2, longest]))
    workload: dict[str, Any] = {"arrivals": arrivals, "num_requests": count}
    if isinstance(arrivals, dict) and arrivals["kind"] != "closed_loop" and rng.random() < 0.1:
        workload["duration"] = count / rate
    is_trace = isinstance(arrivals, dict) and arrivals["kind"] == "trace"
    if is_trace or rng.random() < 0.25:
        if not is_trace:
            workload["lengths"] = {"kind": "trace", "path": "trace.jsonl"}
        return workload, _rows(rng, count, prompt_len, answer_len, rate, unit)
    plain = {"kind": "uniform", "prompt": [1, prompt_len], "output": [1, answer_len]}
    workload["lengths"] = rng.choice(
        [
            plain,
            plain,
            {"kind": "constant", "prompt": prompt_len, "output": answer_len},
            {
                "kind": "truncated_normal",
                "prompt": {"mean": prompt_len / 2, "std": prompt_len / 4, "max": prompt_len},
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
    has_tokens, has_sessions = rng.random() < 0.7, rng.random() < 0.3
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
        if has_tokens:
            for part in ("prompt", "output"):
                said = [token for _ in range(row[f"{part}_len"]) for token in rng.choice(phrases)]
                row[f"{part}_token_ids"] = said[: row[f"{part}_len"]]
        if has_sessions:
            row["session"] = str(rng.randrange(1 + count // 3))
            row["think_time"] = rng.choice([0.0, 3 * unit, 40 * unit])
        rows.append(row)
    return rows


ROUTERS: tuple[str, ...] = (
    *("round_robin", "random", "least_outstanding", "least_outstanding_tokens"),
    *("prefix_affinity", "scored"),
)


def _routing(rng: Random, unit: float) -> dict[str, Any]:
    router: dict[str, Any] = {"kind": rng.choice(ROUTERS)}
    if router["kind"] == "scored":
        router["refresh_ms"] = rng.choice([500.0, 20e3]) * unit
        router["index"] = rng.choice(["approximate", "precise"])
        router["weights"] = {"queue": 2.0, "running": 1.0, "session": rng.choice([0.0, 3.0])}
    elif router["kind"].startswith("least") and rng.random() < 0.3:
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
        pools["prefill"]["engine"] = {"kv_offload": _tiers(rng, unit)}
    return pools


def _linear(unit: float, weight: float = 1.0) -> dict[str, Any]:
    base = weight * unit
    return {
        "kind": "linear",
        "alpha_ns": 2e5 * base,
        "gamma_us": 1e4 * base,
        "delta_ms": 1e3 * base,
    }


def _target(rng: Random, unit: float) -> dict[str, Any]:
    kind = rng.choice(
        [
            *("linear", "linear", "two_regime", "tabulated", "roofline", "cuda_graph", "composed"),
            "kernels",
        ]
    )
    slow, fast = _linear(unit, 1.3), _linear(unit)
    table = {
        "context_tokens": [0, 500, 5000],
        "batched_tokens": [1, 16, 64, 300],
        "times_ms": [[1e3 * unit * (a + b) for b in (0.0, 0.1, 0.5, 2.0)] for a in (1, 1.1, 3)],
    }
    if kind == "two_regime":
        regimes = {name: dict(each) for name, each in (("decode", fast), ("mixed", slow))}
        return {"kind": kind, **{name: _untagged(each) for name, each in regimes.items()}}
    if kind == "tabulated":
        return {"kind": kind, "decode": table}
    if kind == "kernels":
        return {"kind": kind, "path": "kernels", "num_layers": 8}
    if kind == "roofline":
        return {"kind": kind, "fixed_ms": 1e3 * unit}
    if kind == "cuda_graph":
        sizes = rng.choice([None, [1, 4, 16, 64]])
        return {
            "kind": kind,
            "inner": rng.choice([fast, {"kind": "tabulated", "decode": table}]),
            "eager_ms": rng.choice([0.0, 200 * unit]),
            **({} if sizes is None else {"capture_sizes": sizes}),
        }
    return _composed(rng, unit) if kind == "composed" else fast


def _untagged(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if name != "kind"}


def _composed(rng: Random, unit: float) -> dict[str, Any]:
    micro = 1e6 * unit
    attention = {
        "num_layers": 16,
        "context_tokens": [1, 64, 1024],
        "sequences": [1, 8, 64],
        "decode_us": [[micro * a * b / 600 for b in (1, 2, 9)] for a in (1, 1.5, 9)],
        "prompt": {"at": [4, 64, 1024], "times_us": [micro * a / 600 for a in (1, 3, 60)]},
    }
    windowed = {**attention, "window": 16, "tile": 8}
    return {
        "kind": "composed",
        "batched_tokens": [1, 16, 128, 1024],
        "read_us": [0.8 * micro] * 4,
        "compute_us": [0.0, 0.1 * micro, 0.7 * micro, 6 * micro],
        "head": {"at": [1, 16, 128], "times_us": [0.05 * micro, 0.06 * micro, 0.1 * micro]},
        "attention": rng.choice([[attention], [attention, windowed]]),
        "verify_factor": rng.choice([1.0, 1.4]),
    }


def _profile(rng: Random, unit: float, model: str) -> dict[str, Any]:
    """Return a profile of which any part may be slow, dear or free."""
    drafts: dict[str, Any] = {}
    for method in (*METHODS, "sssd"):
        cost: dict[str, Any] = rng.choice([{}, {"token_us": 3e4 * unit}, {"step_ms": 100 * unit}])
        if method in ("eagle3", "eagle", "mtp", "draft_model", "medusa") and rng.random() < 0.8:
            basis = "heads" if method == "medusa" else rng.choice(["pass", "draft"])
            cost = {**cost, "basis": basis, "latency": _linear(unit, 0.08)}
        drafts[method] = {**cost, "request_us": rng.choice([0.0, 5e3 * unit])}
    overhead = {
        "step_ms": rng.choice([0.0, 150.0]) * unit,
        "request_us": rng.choice([0.0, 4e3]) * unit,
        "sync_step_ms": rng.choice([0.0, 200.0]) * unit,
        "front_ms": rng.choice([0.0, 700.0]) * unit,
        "front_token_us": rng.choice([0.0, 4e3, 1e5]) * unit,
    }
    return {
        "model": model,
        "gpu": "h100",
        "tensor_parallel_size": 1 if model == MODEL else 2,
        "provenance": {"engine": "none", "source": "made up", "date": "2026-01-01"},
        "target": _target(rng, unit),
        "drafts": drafts,
        "overhead": overhead,
        "valid_range": {"context_tokens": 10**9, "batched_tokens": 10**9},
    }
