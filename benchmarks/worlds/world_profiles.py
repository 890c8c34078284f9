"""Random profiles: latency models of every kind, in which any part may be slow, dear or free."""

from random import Random
from typing import Any

from world_choices import DRAFT_MODELS, METHODS, MODEL, MODELS, say_more


def _linear(unit: float, weight: float = 1.0) -> dict[str, Any]:
    base = weight * unit
    return {
        "kind": "linear",
        "alpha_ns": 2e5 * base,
        "gamma_us": 1e4 * base,
        "delta_ms": 1e3 * base,
    }


_DRAFTER_KINDS = ("linear", "linear", "linear", "two_regime", "tabulated", "cuda_graph", "composed")
_KINDS = (*_DRAFTER_KINDS[1:], "roofline", "kernels")


def _latency(rng: Random, unit: float, kind: str, model: str = MODEL) -> dict[str, Any]:
    """Return a latency model of which a step takes so many seconds, about."""
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
        mixed = {**table, "times_ms": [[1.3 * time for time in row] for row in table["times_ms"]]}
        return {"kind": kind, "decode": table, **rng.choice([{}, {"mixed": mixed}])}
    if kind == "kernels":
        return _kernels(model)
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


def _kernels(model: str) -> dict[str, Any]:
    """Return a model whose tables `world_relations.write_kernels` writes."""
    if model == MODEL:
        return {"kind": "kernels", "path": "kernels", "num_layers": 8}
    exchanged = [
        {"operation": name, "gpus": 4, "measured": "made up", "message_bytes": [1e3, 1e6], "us": us}
        for name, us in (
            ("all_reduce", [3.0, 9.0]),
            ("all_gather", [4.0, 30.0]),
            ("reduce_scatter", [4.0, 25.0]),
        )
    ]
    experts = {"num_experts": 12, "experts_per_token": 2, "hidden_size": 64}
    return {
        "kind": "kernels",
        "path": "experts",
        "num_layers": 8,
        "collectives": exchanged,
        **experts,
    }


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
        "decodes_at_least_us": rng.choice([0.0, 0.0, 0.9 * micro]),
    }


def profile_of(rng: Random, unit: float, model: str) -> dict[str, Any]:
    """Return a profile of which any part may be slow, dear or free."""
    drafts: dict[str, Any] = {}
    for method in (*METHODS, "datastore", *DRAFT_MODELS):
        cost: dict[str, Any] = rng.choice([{}, {"token_us": 3e4 * unit}, {"step_ms": 100 * unit}])
        if method in (*MODELS, *DRAFT_MODELS) and rng.random() < 0.8:
            basis = "heads" if method == "medusa" else rng.choice(["pass", "draft"])
            latency = _latency(rng, 0.08 * unit, rng.choice(_DRAFTER_KINDS))
            cost = {**cost, "basis": basis, "latency": latency}
        drafts[method] = {**cost, "request_us": rng.choice([0.0, 5e3 * unit])}
        say_more(rng, drafts[method], unit, "draft")
    overhead = {
        "step_ms": rng.choice([0.0, 150.0]) * unit,
        "request_us": rng.choice([0.0, 4e3]) * unit,
        "sync_step_ms": rng.choice([0.0, 200.0]) * unit,
        "front_ms": rng.choice([0.0, 700.0]) * unit,
        "front_token_us": rng.choice([0.0, 4e3, 1e5]) * unit,
    }
    profile = {
        "model": model,
        "gpu": "h100",
        "tensor_parallel_size": 1 if model == MODEL else 2,
        "provenance": {"engine": "none", "source": "made up", "date": "2026-01-01"},
        "target": _latency(rng, unit, rng.choice(_KINDS), model),
        "overhead": overhead,
        "valid_range": {"context_tokens": 10**9, "batched_tokens": 10**9},
    }
    say_more(rng, profile, unit, "profile")
    return {**profile, "drafts": drafts}
