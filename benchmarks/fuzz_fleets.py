"""Valid fields of clusters, which fuzzing changes: replicas, pools, routers, sessions, memory."""

from typing import Any

SESSIONS: dict[str, Any] = {
    "kind": "sessions",
    "turns": {"mean": 3, "sigma": 0.5},
    "first_prompt": {"mean": 60, "sigma": 0.5},
    "new_input": {"mean": 20, "sigma": 0.5},
    "output": {"mean": 10, "sigma": 0.5},
    "shared_prompt": 32,
    "tool_share": 0.5,
    "tool_time": {"mean": 0.1, "sigma": 0.5},
    "think_time": {"mean": 0.2, "sigma": 0.5},
    "max_len": 512,
}
OFFLOAD: dict[str, Any] = {
    "blocks": 30,
    "bandwidth_gb_s": 50.0,
    "latency_ms": 0.1,
    "max_transfers": 2,
    "offload_prompt_only": False,
    "disk": {"gib": 0.1, "bandwidth_gb_s": 6.0},
}
POOLS: dict[str, Any] = {
    "prefill": {"replicas": 1, "engine": {"num_gpu_blocks": 300, "max_model_len": 1024}},
    "decode": {"replicas": 2, "profile": "l40s/llama-3.1-8b", "routing": "least_outstanding"},
    "transfer": {
        "bandwidth_gb_s": 25.0,
        "latency_ms": 1.0,
        "link": "all",
        "overlap": "layers",
        "draft_kv": "recomputed",
    },
}
SCORED: dict[str, Any] = {
    "kind": "scored",
    "refresh_ms": 20.0,
    "weights": {"queue": 2.0, "kv_use": 2.0, "prefix": 3.0, "running": 1.0, "session": 1.0},
    "index": "precise",
    "index_delay_ms": 5.0,
    "match_blocks": 16,
}
SCALED: dict[str, Any] = {
    "kind": "target_concurrency",
    "target": 2.0,
    "min_replicas": 1,
    "max_replicas": 3,
    "interval_s": 0.1,
    "start_up_s": 0.2,
    "scale_in_delay_s": 0.3,
    "price_per_gpu_hour": 2.0,
}
INCIDENTS: list[dict[str, Any]] = [
    {"kind": "failure", "replica": 0, "at": 0.1, "until": 0.3},
    {"kind": "slowdown", "replica": 1, "at": 0.05, "until": 0.4, "factor": 3.0},
]
FLEETS: list[dict[str, Any]] = [
    {"pools": POOLS},
    {"pools": POOLS, "incidents": [{**each, "pool": "decode"} for each in INCIDENTS]},
    {"replicas": 3, "routing": SCORED, "incidents": INCIDENTS},
    {"replicas": 3},
    {"replicas": 2, "routing": "prefix_affinity"},
    {"replicas": 2, "routing": {"kind": "least_outstanding", "refresh_ms": 10.0}},
    {"autoscaling": {**SCALED, "window_s": 0.5}, "routing": "least_outstanding_tokens"},
    {"autoscaling": {**SCALED, "kind": "target_queue", "target": 1.0}, "incidents": INCIDENTS[:1]},
    {"autoscaling": {**SCALED, "kind": "target_kv_use", "target": 0.2}},
    {
        "autoscaling": {**SCALED, "kind": "target_slo", "target": 0.9, "window_s": 1.0},
        "routing": SCORED,
    },
    {"engine.data_parallel_size": 2},
]
"""Which replicas there are, and who sends them requests."""
SERVERS: list[dict[str, Any]] = [
    {},
    {"engine.kv_offload": OFFLOAD},
    {"engine.async_scheduling": True},
    {"engine.watermark": 0.02},
    {"engine.scheduling_policy": "priority", "engine.long_prefill_token_threshold": 64},
    {"engine.scheduler": "prefill_first", "engine.max_num_batched_tokens": 1024},
    {"engine.max_num_active_seqs": 4, "engine.scheduler_reserve_full_isl": False},
    {
        "engine.kv_groups": [
            {"kind": "full_attention", "layers": 16},
            {"kind": "sliding_window", "layers": 16, "window": 64},
        ],
        "engine.prefix_cache_retention_interval": 64,
    },
]
"""What each of them is."""
CLIENTS: list[dict[str, Any]] = [
    {},
    {"workload.lengths": SESSIONS},
    {"workload.lengths": SESSIONS, "workload.arrivals": {"kind": "closed_loop", "concurrency": 3}},
    {"workload.arrivals": {"kind": "closed_loop", "concurrency": 4, "think_time": 0.1}},
    {"policy": "goodput"},
    {"policy": None, "engine.speculative_config": None, "acceptance": None},
]
"""What is asked of them, and how drafts are made."""
