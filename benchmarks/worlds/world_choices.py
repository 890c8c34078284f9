"""What random worlds choose from: methods, policies, acceptance models, routers, and fields."""

import copy
from random import Random
from typing import Any

MODEL, MIXTURE = "llama-3.1-8b", "mixtral-8x7b"

METHODS = ("eagle3", "eagle", "mtp", "draft_model", "medusa", "ngram", "suffix", "sssd")
POLICIES: tuple[Any, ...] = (
    *("static", "static", "static", "off", "goodput", "goodput", "turbospec", "goodput_exact"),
    *("acceptance_target", "bandit", "oracle", "q_learning", "random", "step_controller"),
    *("window_opt", "joint", "bayes", "medusa_tree"),
    *("adaptive_verification", "confidence", "draft_goodput", "adaedl", "disco", "specdec_pp"),
    {"kind": "bandit", "algorithm": "thompson", "memory_steps": 9},
    {"kind": "ema_tiers", "interval": 2, "warm_up": 3},
    {"kind": "goodput", "granularity": "request", "window": 5},
    {"kind": "goodput", "candidates": "prefixes"},
    {"kind": "schedule", "ranges": [[1, 2, 2], [3, 8, 1], [9, 300, 0]]},
    {"kind": "turbospec", "reset_steps": 4, "window": 6},
    *("slo_aware", "adaptive_k", "throughput_tiers", "ucbspec", "spec_serve"),
    *("nightjar", {"kind": "dsde", "calibration_steps": 3}, "tapout"),
    {"kind": "acceptance_gate", "acceptance_window": 3, "acceptance_length_threshold": 1.5},
    {
        "kind": "acceptance_rate_gate",
        "acceptance_rate_window_size": 9,
        "acceptance_rate_threshold": 0.5,
    },
    {"kind": "static_tree", "widths": [3, 1]},
    {"kind": "eagle2_tree", "total_tokens": 12, "top_k": 3},
    {"kind": "sequoia_tree", "max_nodes": 14, "max_width": 4},
    {"kind": "static_tree", "choices": [[0], [1], [0, 0], [0, 1], [1, 0]]},
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
    {"kind": "per_position", "unconditional_rates": [0.9, 0.5, 0.5]},
    {"kind": "preset", "name": "llama-3.1-8b/eagle/gsm8k"},
    {"kind": "fly", "alpha": 0.6, "unsure": 0.5, "window": 2, "rejection": "fly"},
    {
        "kind": "shift",
        "at_request": 5,
        "before": {"kind": "bernoulli", "alpha": 0.8},
        "after": {"kind": "bernoulli", "alpha": 0.3, "confidence_concentration": 0.4},
    },
)
ROUTERS: tuple[str, ...] = (
    *("round_robin", "random", "least_outstanding", "least_outstanding_tokens"),
    *("prefix_affinity", "scored", "vllm_ranks"),
)
MODELS = ("eagle3", "eagle", "mtp", "draft_model", "medusa")
"""Methods whose drafts a model makes, at a cost of its own."""
LOOKUPS = ("ngram", "suffix", "sssd", "datastore")
DRAFT_MODELS = ("small", "large")
LOOKUP_POLICIES: tuple[str, ...] = (
    *("static", "static", "goodput", "turbospec", "cached_step_controller", "oracle"),
    *("draft_goodput", "step_controller", "window_opt", "bandit", "q_learning"),
)

_PAST: dict[str, tuple[Any, ...]] = {"window": (1, 4), "prior": (0.0, 0.95)}
_STALE: dict[str, tuple[Any, ...]] = {"refresh_ms": (0.0, 4.0)}
_DATASTORE: dict[str, tuple[Any, ...]] = {
    "corpus_includes_prompts": (True,),
    "max_prefix_len": (1, 3),
    "max_continuations": (1, 7),
    "branch_len": (1, 2),
    "use_tree": (True,),
}
FIELDS: dict[str, dict[str, tuple[Any, ...]]] = {
    "acceptance": {
        "confidence_concentration": (0.05, 20.0),
        "rank_factors": ([], [0.5], [0.3, 0.2, 1.0]),
        "rejection": ("block", "typical"),
    },
    "acceptance_gate": {
        "draft_len_schedule": ({"2": 2, "6": 1}, {"100": 0}),
        "acceptance_window": (0, 1),
        "acceptance_length_threshold": (1.1, 4.0),
    },
    "acceptance_rate_gate": {
        "draft_len_schedule": ({"2": 2, "6": 1}, {"100": 0}),
        "acceptance_rate_window_size": (0, 1),
        "acceptance_rate_threshold": (0.3, 1.0),
    },
    "acceptance_target": {"target": (0.2, 0.9), "window": (1, 4)},
    "adaedl": {
        "gamma": (0.05, 2.0),
        "threshold": (0.0, 0.9),
        "target": (0.3, 1.0),
        "change": (0.2,),
        "rate_memory": (0.0,),
        "threshold_memory": (0.0, 0.5),
    },
    "adaptive_k": {"history_weight": (0.7, 1.0), "decision_interval": (1, 5), "least_size": (1, 3)},
    "adaptive_verification": {"learns": (True,)},
    "bandit": {"exploration": (0.0, 2.0)},
    "bayes": {"confidences": (False,)},
    "confidence": {"threshold": (0.0, 0.8, 1.0)},
    "disco": {"threshold": (0.0, 0.8)},
    "draft_goodput": {"calibrate": (False,), "window": (1, 30)},
    "dsde": {"calibration_steps": (1, 9)},
    "draft_selection": {"num_probes": (3, 5), "alpha_max": (0.5,), **_PAST},
    "ema_tiers": {
        "tiers": ([1, 2], {"1": [0, 1], "4": [0]}),
        "k_start": (0, 1, 3),
        "smoothing": (0.6, 1.0),
        "down_hysteresis": (0.2,),
        "up_hysteresis": (0.3,),
    },
    "eagle2_tree": {"batch_tokens": (0, 9, 40, "goodput")},
    "fly": {"window": (1, 9)},
    "goodput": {"prior": (0.0, 1.0)},
    "goodput_exact": {"prior_trials": (0.5,), **_PAST},
    "hybrid_suffix": {"tau": (0.0, 0.7, 2.0)},
    "joint": {"calibration_window": (2, 50), **_PAST},
    "medusa_tree": {"widths": ([2], [3, 2]), "max_width": (2,), **_PAST},
    "nightjar": {"switch_ms": (0.5,)},
    "q_learning": {
        "decay": (1.0,),
        "discount": (0.0,),
        "exploration": (0.0, 1.0),
        "warm_up": (0, 6),
    },
    "sequoia_tree": {"num_nodes": (1, 6), "interval": (1, 5), **_PAST},
    "slo_aware": {"tpot_ms": (1.5,), **_PAST},
    "spec_serve": {"tpot_ms": (1.5,), **_PAST, "first_confidence": (0.0, 0.9)},
    "specdec_pp": {"threshold": (0.1, 0.9), "least_len": (1, 4)},
    "static": {"k": (1, 2)},
    "step_controller": {"k_start": (0, 1)},
    "tapout": {"reward_share": (0.0, 1.0), "limits": ([0.5, 1.0, 0.7, 0.0, 0.6],)},
    "throughput_tiers": {
        "tiers": ({"1": [1, 2]}, {"1": [2], "3": [1]}),
        "window": (1, 4),
        "interval": (1, 3),
        "hysteresis": (0.0, 0.5),
    },
    "turbospec": {"prior": (0.0, 1.0)},
    "ucbspec": {"num_arms": (1, 2)},
    "window_opt": {"alpha_max": (0.5,), **_PAST},
    "hybrid": {"num_speculative_tokens": (1, 3)},
    "ngram": {"prompt_lookup_max": (2, 3), "prompt_lookup_min": (1, 2)},
    "suffix": {
        "suffix_decoding_max_spec_factor": (0.5, 4.0),
        "suffix_decoding_max_tree_depth": (2, 5, 60),
        "suffix_decoding_min_token_prob": (0.0, 0.6),
        "suffix_decoding_max_cached_requests": (-1, 0, 2),
        "use_tree": (True,),
        "use_global_tree": (False,),
        "use_local_tree": (False,),
    },
    "datastore": _DATASTORE,
    "sssd": {
        **_DATASTORE,
        "use_input": (False,),
        "input_prefix_len": (1, 9),
        "input_discount": (0.3, 1.0),
        "input_match_discount": (0.3, 1.0),
        "input_depth_discount": (0.3, 1.0),
        "corpus_discount": (0.3,),
        "corpus_match_discount": (0.3,),
        "corpus_depth_discount": (0.3,),
    },
    "least_outstanding": {"waiting_weight": (0.0, 4.0)},
    "prefix_affinity": {
        **_STALE,
        "threshold": (0.05, 1.0),
        "balance_abs": (0, 2),
        "balance_rel": (1.0,),
        "block_size": (1, 4),
        "max_blocks": (1, 8),
    },
    "scored": {
        "index_delay_ms": (3.0,),
        "block_size": (1, 4),
        "match_blocks": (1, 3),
        "max_blocks": (1, 8),
    },
    "weights": {"kv_use": (0.0, 5.0), "prefix": (0.0, 9.0)},
    "autoscaling": {"tolerance": (0.0, 0.6), "price_per_gpu_hour": (2.5,)},
    "target_concurrency": {"window_s": (0.0, 7.0)},
    "target_slo": {"window_s": (0.0, 7.0), "scale_in_below": (0.9,)},
    "engine": {
        "disable_hybrid_kv_cache_manager": (True,),
        "drafter_serves_all": (True,),
        "gpu_memory_utilization": (0.5,),
        "model": (MODEL,),
    },
    "kv_groups": {"bytes_per_token": (2048.0, 4096.0)},
    "slo": {"e2el_ms": (40.0,)},
    "arrivals trace": {
        "window": ([0.0, 30.0], [2.0, 50.0]),
        "resolution": (0.5, 4.0),
        "time_scale": (0.25, 3.0),
        "rate": (0.05, 0.8),
        "sessions": ("ignored", "inferred"),
    },
    "profile": {
        "weights_gib": (9.0,),
        "reserved_gib": (2.0,),
        "kv_bytes_per_token": (65536.0, 200000.0),
    },
    "draft": {"target_share": (0.0, 0.3), "weights_gib": (1.0,), "kv_bytes_per_token": (4096.0,)},
    "composed": {
        "samples_drafts": (False,),
        "capture_sizes": ([], [1, 4, 32]),
        "fixed_us": (0.3,),
        "prompts_at_least_us": (1.5,),
        "eager_at_least_us": (1.5,),
        **{f"{name}_factor": (0.6, 1.5) for name in ("read", "compute", "decode", "prompt")},
        "expert_factor": (1.5,),
    },
    "cuda_graph": {"max_num_seqs": (2, 600)},
    "roofline": {
        "compute_efficiency": (0.3,),
        "memory_efficiency": (0.3,),
        "all_reduce_us": (0.1,),
        "hop_us": (0.01,),
    },
    "kernels": {
        "skew": (False,),
        "shared_draft_experts": (0.0, 0.7),
        "expert_imbalance": (1.4,),
        "zero_writes": ({"bytes_per_expert": 4096.0, "gb_per_s": 3000.0},),
    },
}
"""Fields that are said now and then, by the kind that has them or the field that holds it.

Times and rates are those of a world whose steps take a second."""


_SHARE = 0.12  # of the fields that may be left out, those that are said


def say_more(rng: Random, fields: dict[str, Any], unit: float, name: str = "") -> None:
    """Say fields that could be left out, here and inside."""
    if isinstance(fields.get("policy"), str) and rng.random() < 0.5:
        fields["policy"] = {"kind": fields["policy"]}
    for key, value in fields.items():
        for each in value if isinstance(value, list) else [value]:
            if isinstance(each, dict):
                say_more(rng, each, unit, "acceptance" if name == "models" else key)
    kind = fields.get("kind", fields.get("method"))
    for place in (name, kind, f"{name} {kind}"):
        for key, values in FIELDS.get(place, {}).items():
            if key not in fields and rng.random() < _SHARE:
                fields[key] = _in_units(key, rng.choice(values), unit)


def _in_units(name: str, value: Any, unit: float) -> Any:
    if name == "rate":
        return value / unit
    if name == "window" and isinstance(value, list):
        return [time * unit for time in value]
    for ending, per_second in (("_ms", 1e3), ("_us", 1e6), ("_s", 1.0)):
        if name.endswith(ending):
            return value * unit * per_second
    return copy.deepcopy(value)
