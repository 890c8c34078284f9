"""The runs whose tables `digests.py` records: every member, every switch, under real load."""

import json
import os
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from kernel_folder import make_kernel_folder, write_csv

from specsim.core.request import PrefixIds, Request

Config = dict[str, Any]

DATA = Path(os.environ.get("SPECSIM_DATA", "/work/shared/data"))
ENGINE = {
    "num_gpu_blocks": 4000,
    "max_model_len": 1024,
    "max_num_seqs": 100,
    "max_num_batched_tokens": 512,
}
WORKLOAD = {
    "arrivals": {"kind": "poisson", "rate": 150.0},
    "lengths": {"kind": "uniform", "prompt": [1, 300], "output": [1, 120]},
    "num_requests": 250,
}
BERNOULLI = {"kind": "bernoulli", "alpha": 0.7}
BURST = {"arrivals": {"kind": "burst"}}
FEW = {"num_gpu_blocks": 150}
SYNC = {"async_scheduling": False}
V0 = {"scheduler": "prefill_first", "max_num_batched_tokens": 1024}
TARGET = {"kind": "linear", "alpha_ns": 39.3, "gamma_us": 21.0, "delta_ms": 5.9}


@dataclass(frozen=True)
class Case:
    """One run; `requests`, if any, replace the workload."""

    name: str
    config: Config
    requests: Callable[[], list[Request]] | None = None


def case(name: str, *, spec: Any = "eagle3:3", requests: Any = None, **changes: Any) -> Case:
    """Return the usual run with changes; those of engine and workload are merged into theirs."""
    engine = {**ENGINE, **changes.pop("engine", {})}
    if isinstance(spec, str):
        method, _, length = spec.partition(":")
        spec = {"method": method, "num_speculative_tokens": int(length or 3)}
    if spec is not None:
        engine["speculative_config"] = spec
    config = {
        "workload": {**WORKLOAD, **changes.pop("workload", {})},
        "engine": engine,
        "acceptance": BERNOULLI,
        "profile": "h100/llama-3.1-8b",
        **changes,
    }
    return Case(name, config, requests)


def linear(alpha_ns: float, gamma_us: float, delta_ms: float) -> Config:
    return {"kind": "linear", "alpha_ns": alpha_ns, "gamma_us": gamma_us, "delta_ms": delta_ms}


DRAFTS: Config = {
    "eagle3": {"basis": "pass", "latency": linear(2.4, 0.8, 0.4), "kv_bytes_per_token": 4096},
    "eagle": {"basis": "draft", "latency": linear(2.4, 0.8, 2.1), "request_us": 5, "step_ms": 0.1},
    "mtp": {"basis": "pass", "latency": linear(1.0, 0.7, 0.3), "target_share": 0.01},
    "draft_model": {"basis": "pass", "latency": linear(24.0, 1.7, 1.0), "request_us": 7},
    "medusa": {"basis": "heads", "latency": linear(0.0, 4.75, 0.6), "token_us": 2},
    "ngram": {"target_share": 0.01, "step_ms": 0.2, "request_us": 3},
    "suffix": {"token_us": 20, "step_ms": 0.1},
    "datastore": {"token_us": 1.5, "target_share": 0.001},
    "sssd": {"token_us": 6, "request_us": 10},
    "small": {"basis": "pass", "latency": linear(5.0, 0.5, 0.2)},
    "large": {"basis": "pass", "latency": linear(20.0, 2.0, 1.0)},
    "dflash": {"basis": "pass", "latency": linear(9.0, 1.5, 0.7), "kv_bytes_per_token": 20480},
    "dspark": {"basis": "pass", "latency": linear(9.0, 1.5, 0.7), "step_ms": 0.2},
}
TABLE: Config = {
    "context_tokens": [0, 10000, 60000],
    "batched_tokens": [1, 64, 256, 512],
    "times_ms": [[6, 7, 10, 16], [6.5, 7.7, 11, 17], [9, 10, 14, 21]],
}


_ATTENTION = {
    "num_layers": 16,
    "context_tokens": [1, 256, 4096],
    "sequences": [1, 16, 128],
    "decode_us": [[8, 9, 12], [9, 20, 90], [40, 200, 1400]],
    "prompt": {"at": [16, 512, 4096], "times_us": [8, 30, 900]},
}
COMPOSED: Config = {
    "kind": "composed",
    "batched_tokens": [1, 64, 512, 8192],
    "read_us": [5000, 5200, 5200, 5200],
    "compute_us": [0, 400, 3000, 60_000],
    "head": {"at": [1, 64, 512], "times_us": [300, 330, 900]},
    "attention": [_ATTENTION, {**_ATTENTION, "window": 128, "tile": 32}],
    "compute_factor": 1.1,
    "verify_factor": 1.4,
}


def write_profiles(folder: Path) -> dict[str, str]:
    """Write a profile for every latency model; return their paths by name."""
    kernels = make_kernel_folder(folder / "kernels")
    skewed = make_kernel_folder(folder / "skewed")
    rows = [(regime, n, 1, 2, m, 2.0 * m, (1.2 + n / 100) * m) for regime in ("pure", "mixed")
            for n in (2, 16, 64) for m in (10.0, 100.0)]  # fmt: skip
    write_csv(skewed / "skew.csv", "regime,n,kv_mean,kv_big,t_mean_us,t_max_us,t_skew_us", rows)
    inside = {"kind": "kernels", "path": str(kernels), "num_layers": 8}
    roofline = {"kind": "roofline", "model": "llama-3.2-1b", "fixed_ms": 0.1}
    profiles: dict[str, Config] = {
        "linear": {},
        "overhead": {"overhead": {"step_ms": 0.9, "request_us": 12.5}},
        "two_regime": {"target": {"kind": "two_regime",
                                  "decode": {"alpha_ns": 40, "gamma_us": 20, "delta_ms": 6},
                                  "mixed": {"alpha_ns": 90, "gamma_us": 25, "delta_ms": 7}}},
        "tabulated": {"target": {"kind": "tabulated", "decode": TABLE}},
        "tabulated_mixed": {"target": {"kind": "tabulated", "decode": TABLE, "mixed": {
            **TABLE, "times_ms": [[1.3 * t for t in row] for row in TABLE["times_ms"]]}}},
        "composed": {"target": COMPOSED, "overhead": {"step_ms": 0.2, "front_ms": 3},
                     "drafts": {**DRAFTS, "eagle3": {"latency": {
                         **COMPOSED, "samples_drafts": False, "capture_sizes": []}}}},
        "cuda_graph": {"target": {"kind": "cuda_graph", "inner": TARGET, "max_num_seqs": 100,
                                  "eager_ms": 1.5}},
        "cuda_graph_kernels": {"target": {"kind": "cuda_graph", "inner": inside,
                                          "capture_sizes": [1, 8, 64, 128]}},
        "kernels": {"target": inside},
        "kernels_skewed": {"target": {**inside, "path": str(skewed)}},
        "roofline": {"target": {"kind": "roofline", "fixed_ms": 1.0},
                     "drafts": {**DRAFTS, "draft_model": {"latency": roofline}}},
        "host_time": {"overhead": {"step_ms": 0.2, "request_us": 2.0}, "drafts": {
            **DRAFTS, "eagle3": {"basis": "draft", "latency": linear(2.4, 0.8, 2.1),
                                 "target_share": 0.05, "token_us": 4, "step_ms": 0.4,
                                 "request_us": 9}}},
        "free_drafts": {"drafts": {name: {} for name in DRAFTS}},
        "slow": {"target": linear(400, 150, 25)},
    }  # fmt: skip
    paths = {}
    for name, changes in profiles.items():
        profile = {
            "model": "llama-3.1-8b",
            "gpu": "h100",
            "provenance": {"engine": "none", "source": "made up", "date": "2026-01-01"},
            "target": TARGET,
            "drafts": DRAFTS,
            "valid_range": {"context_tokens": 10**9, "batched_tokens": 10**9},
            **changes,
        }
        path = folder / f"{name}.yaml"
        path.write_text(yaml.safe_dump(profile))
        paths[name] = str(path)
    return paths


def _texts(seed: int, count: int) -> list[tuple[list[int], list[int]]]:
    """Return prompts and answers that repeat pieces of themselves and of one another."""
    phrases_rng, rng = np.random.default_rng(3), np.random.default_rng(seed)
    phrases = [phrases_rng.integers(0, 60, phrases_rng.integers(2, 9)).tolist() for _ in range(30)]
    prefixes = [phrases_rng.integers(0, 60, 16 * n).tolist() for n in (0, 2, 5)]

    def text(least: int, most: int) -> list[int]:
        ids: list[int] = []
        for phrase in rng.integers(0, len(phrases), rng.integers(least, most)):
            ids += phrases[phrase] if rng.random() < 0.8 else rng.integers(0, 60, 3).tolist()
        return ids

    return [(prefixes[rng.integers(0, 3)] + text(3, 30), text(4, 24)) for _ in range(count)]


def write_token_trace(path: Path, seed: int, count: int) -> str:
    """Write a made-up token trace, with recorded acceptance; return its path."""
    rng = np.random.default_rng(seed + 1000)
    with path.open("w") as stream:
        for number, (prompt, answer) in enumerate(_texts(seed, count)):
            lens = rng.integers(1, 5, len(answer)).tolist()
            row = {"id": f"r{number}", "prompt_token_ids": prompt, "generated_token_ids": answer,
                   "acc_eagle": {"acc_len": lens}}  # fmt: skip
            stream.write(json.dumps(row) + "\n")
    return str(path)


def conversations(count: int, rate: float, piece: int = 16) -> list[Request]:
    """Return turns of conversations with recorded prefix ids, and with priorities."""
    rng = np.random.default_rng(count)
    times = np.cumsum(rng.exponential(1 / rate, count)).tolist()
    turns = [0] * 15
    requests = []
    for index, at in enumerate(times):
        who = int(rng.integers(0, len(turns)))
        turns[who] = turns[who] % 8 + 1
        shared = [1000 * who + number for number in range(2 * turns[who] * 16 // piece + 1)]
        pieces = [*shared, 10**6 + index]
        output_len = int(rng.integers(1, 90))
        requests.append(
            Request(
                index=index,
                prompt_len=piece * (len(pieces) - 1) + int(rng.integers(1, piece + 1)),
                output_len=output_len,
                arrived_at=at,
                priority=int(rng.integers(0, 4)),
                prefix_ids=PrefixIds(pieces, piece),
                recorded_lens={"eagle": rng.integers(0, 5, output_len).astype(np.uint8).tobytes()},
                offered_lens=rng.integers(0, 6, output_len + 1).astype(np.uint8).tobytes(),
            )
        )
    return requests


def all_cases(folder: Path) -> list[Case]:
    """Return every case; profiles and token traces are written into the folder."""
    profiles = write_profiles(folder)
    trace = write_token_trace(folder / "trace.jsonl", 1, 160)
    corpus = write_token_trace(folder / "corpus.jsonl", 2, 80)
    cases = [
        *policy_cases(profiles),
        *drafter_cases(profiles),
        *special_cases(profiles),
        *acceptance_cases(trace),
        *profile_cases(profiles),
        *engine_cases(profiles),
        *workload_cases(),
        *cluster_cases(),
        *incident_cases(profiles),
        *token_cases(profiles, trace, corpus),
        *real_token_cases(profiles),
        *mixed_cases(profiles),
        *scaling_cases(),
        *pool_cases(),
        *later_cases(profiles),
    ]
    names = [each.name for each in cases]
    assert len(set(names)) == len(names), "two cases have the same name"
    return cases


POLICIES: list[Any] = [
    "acceptance_target", {"kind": "acceptance_target", "target": 0.8, "window": 5},
    {"kind": "bandit", "algorithm": "ucb1"}, {"kind": "bandit", "algorithm": "thompson"},
    {"kind": "bandit", "algorithm": "ucb1", "memory_steps": 30},
    "ema_tiers", {"kind": "ema_tiers", "tiers": [0, 2, 4], "interval": 2, "warm_up": 3},
    "goodput", {"kind": "goodput", "granularity": "request"}, {"kind": "goodput", "window": 5},
    "goodput_exact", {"kind": "goodput_exact", "prior": 0.3},
    "off", "oracle", "q_learning", {"kind": "q_learning", "warm_up": 20}, "random",
    {"kind": "schedule", "ranges": [[1, 8, 4], [9, 32, 2], [33, 256, 0]]},
    {"kind": "slo_aware", "tpot_ms": 12}, "static", {"kind": "static", "k": 2},
    "step_controller", {"kind": "step_controller", "k_start": 0},
    {"kind": "acceptance_gate", "draft_len_schedule": {4: 4, 8: 2, 32: 1}},
    {"kind": "acceptance_gate", "acceptance_window": 5, "acceptance_length_threshold": 2.0},
    {"kind": "adaptive_k", "least_size": 4}, "throughput_tiers", "ucbspec",
    "turbospec", {"kind": "turbospec", "reset_steps": 3}, "window_opt",
]  # fmt: skip
SURE_POLICIES: list[Any] = [
    "adaptive_verification", "confidence", {"kind": "confidence", "threshold": 0.7},
    "draft_goodput", {"kind": "draft_goodput", "calibrate": False},
    "disco", "specdec_pp", "adaedl",
]  # fmt: skip
"""They ask how sure the drafter is."""
METHODS = ["eagle3", "eagle", "mtp", "draft_model", "medusa", "ngram", "suffix"]


def label(member: Any) -> str:
    """Return a short name of a policy or of another member."""
    if isinstance(member, str):
        return member
    unnamed = ("kind", "ranges", "draft_len_schedule")
    fields = [str(value) for name, value in member.items() if name not in unnamed]
    return "-".join([member.get("kind", member.get("method", "")), *fields])


def policy_cases(profiles: dict[str, str]) -> Iterator[Case]:
    """Yield every policy, with drafters of each sort, and those that only some drafters serve."""
    crowded = {"arrivals": {"kind": "gamma", "rate": 250.0, "burstiness": 0.4}}
    for policy in POLICIES:
        yield case(f"policy/{label(policy)}/eagle3", spec="eagle3:4", policy=policy)
        yield case(f"policy/{label(policy)}/draft_model", spec="draft_model:5", policy=policy,
                   profile=profiles["overhead"], workload=crowded, engine={"max_num_seqs": 60},
                   acceptance={"kind": "beta", "a": 4.0, "b": 2.0})  # fmt: skip
    for policy in SURE_POLICIES:
        for method in ("eagle3", "draft_model", "suffix"):
            yield case(f"policy/{label(policy)}/{method}", spec=f"{method}:4", policy=policy,
                       profile=profiles["overhead"], workload=crowded,
                       acceptance={**BERNOULLI, "confidence_concentration": 0.3})  # fmt: skip
        yield case(f"policy/{label(policy)}/few_blocks", policy=policy, engine=FEW, workload=BURST,
                   acceptance={**BERNOULLI, "confidence_concentration": 8.0})  # fmt: skip
        yield case(f"policy/{label(policy)}/v0", spec="draft_model:4", policy=policy, engine=V0,
                   profile=profiles["linear"])  # fmt: skip


def drafter_cases(profiles: dict[str, str]) -> Iterator[Case]:
    """Yield every drafter under every scheduler, and drafters that are given up in a crowd."""
    ramp = {"arrivals": {"kind": "piecewise", "segments": [[2, 15], [2, 200], [2, 40]]},
            "num_requests": 400}  # fmt: skip
    hopeless = {"acceptance": {"kind": "bernoulli", "alpha": 0.25}, "workload": ramp}
    schedulers: list[Config] = [{}, V0, SYNC, FEW]
    for reset_steps, engine in product((4, 1000), schedulers):
        name = f"{reset_steps}-{'-'.join(map(str, engine.values()))}"
        turbospec = {"kind": "turbospec", "reset_steps": reset_steps, "window": 10}
        yield case(f"skips/{name}", spec="draft_model:4", policy=turbospec, engine=engine,
                   profile=profiles["slow"], **hopeless)  # fmt: skip
        yield case(f"skips/{name}/incidents", spec="draft_model:4", policy=turbospec, engine=engine,
                   profile=profiles["linear"], replicas=3, incidents=INCIDENTS["several"],
                   **hopeless)  # fmt: skip
    for policy in ("goodput_exact", "window_opt", "oracle"):
        yield case(f"policy/{policy}/many_requests", policy=policy,
                   workload={"num_requests": 1200})  # fmt: skip
    schedulers = [{}, V0, {**SYNC, **FEW}, FEW]
    for method, scheduler in product(METHODS, schedulers):
        spec = {"method": method, "num_speculative_tokens": 4}
        if method == "ngram":
            spec["match_probability"] = 0.5
        if method == "suffix":
            spec["mean_match_len"] = 3.0
        name = "-".join(map(str, scheduler.values())) or "v1"
        for policy in ("turbospec", "goodput", "static"):
            yield case(f"method/{method}/{name}/{policy}", spec=spec, policy=policy,
                       profile=profiles["overhead"], engine=scheduler)  # fmt: skip


def special_cases(profiles: dict[str, str]) -> Iterator[Case]:
    """Yield policies that need a drafter, or limits, of their own."""
    medusa: Config = {
        "spec": "medusa:3",
        "profile": "a100/llama-7b",
        "engine": {"max_num_seqs": 64},
    }
    for policy in ("medusa_tree", {"kind": "medusa_tree", "widths": [2, 2, 2]},
                   {"kind": "medusa_tree", "max_width": 3, "window": 10}):  # fmt: skip
        yield case(f"medusa/{label(policy)}", policy=policy, **medusa)
        yield case(f"medusa/{label(policy)}/few_blocks", policy=policy,
                   **{**medusa, "engine": FEW})  # fmt: skip
    tight = {**medusa, "engine": {"max_num_seqs": 64, "max_num_batched_tokens": 128}}
    yield case("medusa/budget", policy={"kind": "medusa_tree", "widths": [4, 4, 4]}, **tight)
    grown = {"eagle2": {"kind": "eagle2_tree", "top_k": 3, "total_tokens": 9, "batch_tokens": 90},
             "sequoia": {"kind": "sequoia_tree", "max_nodes": 12, "interval": 7}}  # fmt: skip
    rank_factors = {"kind": "beta", "a": 6, "b": 3, "rank_factors": [0.5, 0.3]}
    for name, policy in grown.items():
        yield case(f"trees/{name}", spec="eagle3:4", policy=policy, acceptance=rank_factors,
                   profile=profiles["overhead"])  # fmt: skip
    choices = [[0], [1], [2], [0, 0], [1, 0], [0, 0, 1]]
    for name, engine in {"sync": {}, "few": FEW, "v0": V0}.items():
        yield case(f"trees/static/{name}", spec="eagle3:3", profile=profiles["overhead"],
                   policy={"kind": "static_tree", "choices": choices}, engine=engine)  # fmt: skip
    yield case("medusa/v0", policy="medusa_tree", **{**medusa, "engine": V0})
    rates = {"kind": "per_position", "conditional_rates": [0.8, 0.6, 0.4]}
    yield case("medusa/per_position", policy="medusa_tree", **medusa, acceptance=rates)
    two = {"method": "draft_models", "models": ["small", "large"], "num_speculative_tokens": 4}
    models = {"small": {"kind": "bernoulli", "alpha": 0.5}, "large": {"kind": "beta", "a": 8,
                                                                      "b": 2}}  # fmt: skip
    variants: dict[str, Config] = {"v1": {}, "sync": SYNC, "few": FEW, "v0": V0}
    for name, engine in variants.items():
        yield case(f"draft_selection/{name}", spec=two, policy="draft_selection", engine=engine,
                   acceptance={"kind": "per_drafter", "models": models},
                   profile=profiles["linear"])  # fmt: skip
    yield case("draft_selection/probes", spec=two, profile=profiles["slow"], replicas=2,
               policy={"kind": "draft_selection", "num_probes": 5, "prior": 0.4},
               acceptance={"kind": "per_drafter", "models": models})  # fmt: skip
    yield case("slo_aware/slo", spec="eagle3:5", policy="slo_aware", slo={"tpot_ms": 9.0})
    yield case("slo_aware/requests", policy={"kind": "slo_aware", "window": 5},
               slo={"ttft_ms": 300.0, "tpot_ms": 14.0}, profile=profiles["linear"])  # fmt: skip
    for policy in ("joint", "bayes"):
        yield case(f"{policy}/draft_model", spec="draft_model:4", policy=policy,
                   profile=profiles["linear"],
                   acceptance={"kind": "bernoulli", "alpha": 0.2})  # fmt: skip
        yield case(f"{policy}/v0", spec="eagle3:4", policy=policy, engine=V0)
    for overlaps in (False, True):
        own_gpus = {"overlaps": overlaps, "latency_ms": 0.1}
        spec = {"method": "draft_model", "num_speculative_tokens": 4, "own_gpus": own_gpus}
        yield case(f"own_gpus/{overlaps}", spec=spec, policy="goodput", engine=FEW, replicas=2,
                   profile=profiles["overhead"])  # fmt: skip


def acceptance_cases(trace: str) -> Iterator[Case]:
    """Yield every acceptance model."""
    models: list[Config] = [
        BERNOULLI,
        {"kind": "beta", "a": 6.0, "b": 3.0},
        {"kind": "beta_position", "a": 6.0, "b": 2.0, "factors": [1.0, 0.9, 0.8]},
        {"kind": "layered", "rates": [0.75, 0.65, 0.6], "request_spread": 0.4, "drift": 0.1,
         "regimes": [{"spread": 0.8, "mean_len": 3.0}, {"spread": 0.3, "mean_len": 30.0}]},
        {"kind": "markov", "regimes": [{"weight": 0.7, "alpha": 0.2},
                                       {"weight": 0.3, "alpha": 0.95}], "regime_len": 20.0},
        {"kind": "per_position", "conditional_rates": [0.8, 0.7, 0.6]},
        {"kind": "per_position", "unconditional_rates": [0.8, 0.56, 0.34]},
        {"kind": "preset", "name": "llama-3.1-8b/eagle/gsm8k"},
        {"kind": "shift", "at_request": 120, "before": {"kind": "bernoulli", "alpha": 0.9},
         "after": {"kind": "bernoulli", "alpha": 0.3}},
        {"kind": "per_drafter", "models": {"eagle3": {"kind": "bernoulli", "alpha": 0.6}}},
        {"kind": "fly", "alpha": 0.8, "unsure": 0.5, "window": 2},
    ]  # fmt: skip
    for number, model in enumerate(models):
        for policy in ("static", {"kind": "goodput", "granularity": "request"}):
            yield case(f"acceptance/{number}-{model['kind']}/{label(policy)}",
                       acceptance=model, policy=policy)  # fmt: skip
    recorded = {"kind": "recorded", "proposer": "eagle"}
    rows = {"lengths": {"kind": "trace", "path": trace}, "num_requests": 160}
    for policy in ("static", "oracle", "confidence"):
        yield case(f"acceptance/recorded/{policy}", acceptance=recorded, workload=rows,
                   policy=policy, spec="eagle3:5")  # fmt: skip


def profile_cases(profiles: dict[str, str]) -> Iterator[Case]:
    """Yield every latency model and every way in which drafting costs time."""
    for name, path in profiles.items():
        for spec, policy in (("eagle3:3", "goodput"), ("draft_model:4", "goodput_exact"),
                             ("eagle:3", "static")):  # fmt: skip
            yield case(f"profile/{name}/{spec}/{policy}", spec=spec, policy=policy, profile=path)
        yield case(f"profile/{name}/sync", engine=SYNC, profile=path, spec="ngram:4",
                   policy="turbospec", workload=BURST)  # fmt: skip
        yield case(f"profile/{name}/v0", engine=V0, profile=path, spec="draft_model:4",
                   policy={"kind": "goodput", "granularity": "request"})  # fmt: skip


def engine_cases(profiles: dict[str, str]) -> Iterator[Case]:
    """Yield every setting of the engine."""
    expanded = {"method": "draft_model", "num_speculative_tokens": 4, "disable_mqa_scorer": True}
    ranges = [[1, 8, 4], [9, 40, 2], [41, 999, 0]]
    schedule = {"method": "eagle3", "num_speculative_tokens": 4,
                "num_speculative_tokens_per_batch_size": ranges}  # fmt: skip
    long_prompts = {"lengths": {"kind": "uniform", "prompt": [200, 900], "output": [1, 80]},
                    "num_requests": 120}  # fmt: skip
    settings: dict[str, Config] = {
        "plain": {},
        "sync": SYNC,
        "few_async": FEW,
        "few_sync": {**FEW, **SYNC},
        "few_uncached_async": {**FEW, "enable_prefix_caching": False},
        "few_uncached_sync": {**FEW, **SYNC, "enable_prefix_caching": False},
        "v0": V0,
        "v0_few": {**V0, **FEW, "watermark": 0.01},
        "v0_small_batch": {**V0, "max_num_seqs": 12},
        "small_blocks": {"block_size": 4, "num_gpu_blocks": 800},
        "single_token_blocks": {"block_size": 1, "num_gpu_blocks": 2500},
        "watermark": {**FEW, "watermark": 0.1},
        "not_reserved": {**FEW, "scheduler_reserve_full_isl": False},
        "not_reserved_sync": {**FEW, **SYNC, "scheduler_reserve_full_isl": False,
                              "enable_prefix_caching": False},
        "active_seqs": {"max_num_active_seqs": 20},
        "scheduled_tokens": {"max_num_scheduled_tokens": 150},
        "tight_budget": {"max_num_batched_tokens": 104, "max_num_seqs": 64},
        "cut_answers": {"max_model_len": 310},
        "cut_answers_few": {"max_model_len": 304, "num_gpu_blocks": 60, **SYNC},
        "long_prefill": {"long_prefill_token_threshold": 64},
        "long_prefill_adaptive": {"long_prefill_token_threshold": 48,
                                  "long_prefill_token_threshold_adaptive": True},
        "whole_prompts": {"enable_chunked_prefill": False, "max_num_batched_tokens": 1024},
        "whole_prompts_few": {"enable_chunked_prefill": False, "max_num_batched_tokens": 1024,
                              **FEW},
        "priority": {"scheduling_policy": "priority"},
        "priority_few": {"scheduling_policy": "priority", **FEW},
        "priority_few_sync": {"scheduling_policy": "priority", **FEW, **SYNC},
    }  # fmt: skip
    for name, engine in settings.items():
        for spec in (None, "eagle3:3", "draft_model:4"):
            profile = profiles["linear"]
            yield case(f"engine/{name}/{spec or 'off'}", spec=spec, engine=engine, profile=profile)
        yield case(f"engine/{name}/long", engine=engine, workload=long_prompts if "cut" not in name
                   else BURST, policy="goodput", seed=3)  # fmt: skip
        yield case(f"engine/{name}/shared", engine=engine, policy="static", seed=2,
                   requests=lambda: conversations(260, 120.0))  # fmt: skip
    for name, engine in {"v0": V0, "v0_few": {**V0, **FEW}}.items():
        for policy in ("static", "goodput", "oracle", "goodput_exact"):
            yield case(f"engine/expanded/{name}/{policy}", spec=expanded, engine=engine,
                       policy=policy, profile=profiles["linear"])  # fmt: skip
        yield case(f"engine/expanded/{name}/ngram", spec={**expanded, "method": "ngram"},
                   engine=engine, policy="turbospec")  # fmt: skip
    variants: dict[str, Config] = {"async": {}, "sync": SYNC, "few": FEW, "v0": V0}
    for name, engine in variants.items():
        yield case(f"engine/schedule/{name}", spec=schedule, engine=engine)


def workload_cases() -> Iterator[Case]:
    """Yield every arrival process, and recorded prefixes."""
    arrivals: dict[str, Config] = {
        "burst": {"kind": "burst"},
        "constant": {"kind": "constant", "rate": 130.0},
        "gamma": {"kind": "gamma", "rate": 130.0, "burstiness": 0.3},
        "piecewise": {"kind": "piecewise", "segments": [[1, 20], [1, 250], [1, 60]]},
        "poisson": {"kind": "poisson", "rate": 130.0},
        "closed": {"kind": "closed_loop", "concurrency": 40},
        "closed_wide": {"kind": "closed_loop", "concurrency": 150},
        "closed_think": {"kind": "closed_loop", "concurrency": 60, "think_time": 0.2},
        "closed_exponential": {"kind": "closed_loop", "concurrency": 60, "think_time": 0.2,
                               "think_time_shape": "exponential"},
    }  # fmt: skip
    for (name, process), replicas in product(arrivals.items(), (1, 3)):
        for policy in ("static", "goodput"):
            yield case(f"arrivals/{name}/{replicas}/{policy}", workload={"arrivals": process},
                       replicas=replicas, policy=policy)  # fmt: skip
        yield case(f"arrivals/{name}/{replicas}/sync", workload={"arrivals": process},
                   replicas=replicas, policy="off", engine=SYNC, spec=None)  # fmt: skip
    for file in ("chat", "code", "summarisation"):
        times = {"kind": "trace", "path": f"traces/{file}.parquet", "rate": 40.0}
        yield case(f"arrivals/trace/{file}", policy="goodput", replicas=2,
                   engine={"max_model_len": 32768, "max_num_batched_tokens": 2048},
                   workload={"arrivals": times, "lengths": None, "num_requests": 120})  # fmt: skip
    lengths: dict[str, Config] = {
        "dataset": {"kind": "dataset", "name": "spider"},
        "constant": {"kind": "constant", "prompt": 128, "output": 40},
        "lognormal": {"kind": "lognormal", "prompt": {"mean": 100, "sigma": 0.5},
                      "output": {"mean": 40, "sigma": 0.5}},
        "truncated": {"kind": "truncated_normal", "prompt": {"mean": 200, "std": 90, "max": 500},
                      "output": {"mean": 50, "std": 40, "max": 150}},
    }  # fmt: skip
    for name, kind in lengths.items():
        yield case(f"lengths/{name}", workload={"lengths": kind}, policy="goodput",
                   engine={"max_model_len": 2048})  # fmt: skip
    for name, engine in {"async": {}, "sync": SYNC, "v0": V0, "few": FEW}.items():
        for spec in ("eagle3:3", "draft_model:3", "ngram:4"):
            yield case(f"prefixes/{name}/{spec}", engine=engine, spec=spec, policy="static",
                       profile="h100/llama-3.1-8b" if "draft" not in spec else "a100/llama-7b",
                       requests=lambda: conversations(250, 150.0, 64))  # fmt: skip
    for policy in ("static", "oracle", "goodput"):
        yield case(f"prefixes/recorded/{policy}", spec="eagle3:4", policy=policy,
                   acceptance={"kind": "recorded", "proposer": "eagle"},
                   requests=lambda: conversations(250, 150.0))  # fmt: skip
        yield case(f"prefixes/offered/{policy}", spec="suffix:5", policy=policy,
                   requests=lambda: conversations(250, 150.0))  # fmt: skip


ROUTERS: list[Any] = [
    "round_robin", "random", "least_outstanding", {"kind": "least_outstanding",
                                                   "waiting_weight": 4.0},
    "least_outstanding_tokens", "vllm_ranks", "prefix_affinity",
    {"kind": "prefix_affinity", "balance_abs": 4, "max_blocks": 300},
]  # fmt: skip
CLOSED = {"arrivals": {"kind": "closed_loop", "concurrency": 90, "think_time": 0.05}}


def cluster_cases() -> Iterator[Case]:
    """Yield every router."""
    for router, engine in product(ROUTERS, ({}, {**FEW, **SYNC})):
        name = f"routing/{label(router)}/{'few_sync' if engine else 'async'}"
        shared: Config = {"replicas": 3, "routing": router, "engine": engine}
        yield case(f"{name}/open", **shared, workload={"arrivals": {"kind": "poisson",
                                                                    "rate": 300.0}})  # fmt: skip
        yield case(f"{name}/closed", **shared, workload=CLOSED, policy="goodput")
        yield case(f"{name}/prefixes", **shared, policy="turbospec",
                   requests=lambda: conversations(300, 250.0))  # fmt: skip


def failure(replica: int, at: float, until: float | None = None) -> Config:
    return {"kind": "failure", "replica": replica, "at": at, "until": until}


def slowdown(replica: int, at: float, until: float | None, factor: float) -> Config:
    return {**failure(replica, at, until), "kind": "slowdown", "factor": factor}


INCIDENTS: dict[str, list[Config]] = {
    "fails": [failure(0, 0.4)],
    "comes_back": [failure(0, 0.3, 0.6), failure(0, 1.0, 1.1)],
    "slows": [slowdown(0, 0.3, 0.9, 2.5), slowdown(2, 0.5, None, 0.7)],
    "several": [failure(0, 0.25, 0.8), failure(1, 0.3), slowdown(2, 0.2, 1.5, 1.7),
                failure(0, 1.2)],
    "at_once": [failure(0, 0.5, 1.0), failure(1, 0.5, 1.0)],
    "all_down": [failure(0, 0.3, 1.6), failure(1, 0.4, 1.2), failure(2, 0.5, 1.2),
                 failure(1, 1.5, 2.0)],
    "stranded": [failure(0, 0.3), failure(1, 0.4), failure(2, 0.5)],
    "before_anything": [failure(0, 0.0, 0.4), slowdown(1, 0.0, 0.2, 4.0)],
}  # fmt: skip


def incident_cases(profiles: dict[str, str]) -> Iterator[Case]:
    """Yield failures and slow-downs, of one replica and of all."""
    engines: dict[str, Config] = {"async": {}, "sync": SYNC, "few": FEW, "v0": V0}
    loads = {"open": {"arrivals": {"kind": "poisson", "rate": 220.0}}, "closed": CLOSED}
    for (name, incidents), (kind, engine), (load, workload) in product(
        INCIDENTS.items(), engines.items(), loads.items()
    ):
        policy, routing = "goodput", "round_robin"
        if load == "closed":
            policy, routing = "static", "least_outstanding"
        yield case(f"incidents/{name}/{kind}/{load}", replicas=3, incidents=incidents,
                   engine=engine, workload=workload, policy=policy, routing=routing)  # fmt: skip
    for chosen in (*POLICIES, *SURE_POLICIES):
        yield case(f"incidents/policies/{label(chosen)}", spec="eagle3:4", replicas=3,
                   policy=chosen, incidents=INCIDENTS["several"],
                   routing="least_outstanding_tokens")  # fmt: skip
    for name in ("kernels", "cuda_graph", "host_time", "two_regime"):
        yield case(f"incidents/profile/{name}", replicas=3, incidents=INCIDENTS["slows"],
                   profile=profiles[name], policy="goodput")  # fmt: skip
    yield case("incidents/prefixes", replicas=3, incidents=INCIDENTS["several"],
               routing="prefix_affinity", requests=lambda: conversations(300, 200.0))  # fmt: skip


def token_cases(profiles: dict[str, str], trace: str, corpus: str) -> Iterator[Case]:
    """Yield every lookup on real drafts, as chains and as trees, and hybrids."""
    rows = {"lengths": {"kind": "trace", "path": trace}, "num_requests": 160}
    ngram = {"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_min": 1,
             "prompt_lookup_max": 3}  # fmt: skip
    suffix = {"method": "suffix", "num_speculative_tokens": 6}
    store = {"method": "datastore", "num_speculative_tokens": 6, "corpus": corpus}
    sssd = {"method": "sssd", "num_speculative_tokens": 6}
    lookups: dict[str, Config] = {
        "ngram": ngram,
        "suffix": suffix,
        "suffix_tree": {**suffix, "use_tree": True, "suffix_decoding_max_spec_factor": 4.0},
        "suffix_local": {**suffix, "use_global_tree": False},
        "suffix_small": {**suffix, "suffix_decoding_max_cached_requests": 5},
        "datastore": store,
        "datastore_tree": {**store, "use_tree": True, "corpus_includes_prompts": True},
        "sssd": sssd,
        "sssd_corpus": {**sssd, "corpus": corpus, "max_continuations": 20},
        "sssd_tree": {**sssd, "corpus": corpus, "use_tree": True},
    }
    usual: Config = {"workload": rows, "acceptance": {"kind": "token_match"}}
    chunked = {"max_num_batched_tokens": 110, "max_num_seqs": 64}
    engines: dict[str, Config] = {"v1": {}, "few": {"num_gpu_blocks": 80}, "v0": V0,
                                  "tight": chunked}  # fmt: skip
    for name, spec in lookups.items():
        for kind, engine in engines.items():
            yield case(f"lookup/{name}/{kind}", spec=spec, policy="static", engine=engine, **usual)
        for policy in ("goodput", "turbospec", "oracle", "goodput_exact", "cached_step_controller",
                       {"kind": "goodput", "granularity": "request"}, "q_learning"):  # fmt: skip
            yield case(f"lookup/{name}/{label(policy)}", spec=spec, policy=policy,
                       profile=profiles["overhead"], **usual)  # fmt: skip
        if name != "ngram":
            for policy in SURE_POLICIES:
                yield case(f"lookup/{name}/{label(policy)}", spec=spec, policy=policy, **usual)
        yield case(f"lookup/{name}/incidents", spec=spec, policy="static", replicas=3,
                   incidents=INCIDENTS["several"], **usual)  # fmt: skip
    on_gpu = {**ngram, "method": "ngram_gpu"}
    yield case("lookup/ngram_gpu/static", spec=on_gpu, policy="static", **usual)
    yield case("lookup/ngram_gpu/goodput", spec=on_gpu, policy="goodput", **usual)
    eagle = {"method": "eagle3", "num_speculative_tokens": 3}
    for name, lookup in lookups.items():
        spec = {"method": "hybrid", "lookup": lookup, "fallback": eagle}
        models = {lookup["method"]: {"kind": "token_match"},
                  "eagle3": {"kind": "recorded", "proposer": "eagle"}}  # fmt: skip
        hybrid = {**usual, "spec": spec, "acceptance": {"kind": "per_drafter", "models": models}}
        for tau, engine in ((None, {}), (1.5, {}), (0, {}), (None, engines["few"]), (1.5, V0),
                            (1.0, chunked)):  # fmt: skip
            kind = "-".join(map(str, engine.values())) or "v1"
            yield case(f"hybrid/{name}/{tau}/{kind}", policy={"kind": "hybrid_suffix", "tau": tau},
                       engine=engine, **hybrid)  # fmt: skip
        yield case(f"hybrid/{name}/incidents", policy="hybrid_suffix", replicas=3,
                   incidents=INCIDENTS["several"], **hybrid)  # fmt: skip
    behind = {"method": "hybrid", "lookup": suffix, "fallback": ngram}
    models = {"suffix": {"kind": "token_match"}, "ngram": {"kind": "token_match"}}
    yield case("hybrid/two_lookups", spec=behind, policy={"kind": "hybrid_suffix", "tau": 2.0},
               workload=rows, acceptance={"kind": "per_drafter", "models": models})  # fmt: skip
    for policy in ("cached_step_controller", "static"):
        for kind, engine in engines.items():
            yield case(f"tokens/{policy}/{kind}", policy=policy, engine=engine, workload=rows)
    yield case("tokens/prefixes/routing", policy="static", routing="prefix_affinity", replicas=3,
               workload=rows)  # fmt: skip


def real_token_cases(profiles: dict[str, str]) -> Iterator[Case]:
    """Yield runs on real answers, where the files are at hand."""
    for file in ("llama31_8b_instructcoder", "llama31_8b_gsm8k"):
        path = DATA / "tokens" / f"{file}.jsonl.gz"
        if not path.exists():
            continue
        rows = {"lengths": {"kind": "trace", "path": str(path)}, "num_requests": 60,
                "arrivals": {"kind": "poisson", "rate": 30.0}}  # fmt: skip
        usual = {"workload": rows, "engine": {"max_model_len": 4096},
                 "acceptance": {"kind": "token_match"}}  # fmt: skip
        yield case(f"real/{file}/suffix", spec="suffix:8", policy="turbospec", **usual)
        spec = {"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_min": 2,
                "prompt_lookup_max": 4}  # fmt: skip
        yield case(f"real/{file}/ngram", spec=spec, policy="goodput",
                   profile=profiles["overhead"], **usual)  # fmt: skip


def mixed_cases(profiles: dict[str, str]) -> Iterator[Case]:
    """Yield runs of settings drawn at random, for what nobody thought of combining."""
    for number in range(120):
        rng = random.Random(number)
        scheduler = rng.choice(["v1", "v1", "prefill_first"])
        method = rng.choice(METHODS)
        sure = method != "ngram" and rng.random() < 0.2
        policy = rng.choice(SURE_POLICIES if sure else POLICIES)
        block_size = rng.choice([4, 16, 16, 32])
        engine = {
            "scheduler": scheduler,
            "block_size": block_size,
            "num_gpu_blocks": rng.choice([3000, 6000, 20000, 80000]) // block_size,
            "max_model_len": rng.choice([450, 1024]),
            "max_num_seqs": rng.choice([8, 40, 100]),
            "max_num_batched_tokens": rng.choice([140, 300, 512, 1100]),
            "enable_prefix_caching": rng.random() < 0.7,
            "enable_chunked_prefill": rng.random() < 0.8,
            "scheduling_policy": rng.choice(["fcfs", "fcfs", "priority"]),
            "scheduler_reserve_full_isl": rng.random() < 0.7,
            "watermark": rng.choice([0.0, 0.0, 0.03]),
        }
        if scheduler == "prefill_first" or not engine["enable_chunked_prefill"]:
            engine["max_num_batched_tokens"] = 1100
        if scheduler == "v1":
            engine["async_scheduling"] = rng.choice([None, None, False])
            engine["long_prefill_token_threshold"] = rng.choice([0, 0, 40])
        spec: Config = {"method": method, "num_speculative_tokens": rng.choice([1, 3, 5, 8])}
        if scheduler == "prefill_first" and rng.random() < 0.3:
            spec["disable_mqa_scorer"] = True
        if isinstance(policy, dict) and "k" in policy:
            spec["num_speculative_tokens"] = 3
        if isinstance(policy, dict) and ("tiers" in policy or "ranges" in policy):
            spec["num_speculative_tokens"] = 5
        arrivals = rng.choice([BURST["arrivals"], CLOSED["arrivals"], WORKLOAD["arrivals"],
                               {"kind": "gamma", "rate": 200.0, "burstiness": 0.2}])  # fmt: skip
        shared = rng.random() < 0.3
        replicas = rng.choice([1, 1, 3])
        incidents = INCIDENTS[rng.choice(sorted(INCIDENTS))] if replicas == 3 else None
        yield case(
            f"mixed/{number}",
            spec=spec,
            policy=policy,
            engine=engine,
            workload={"arrivals": arrivals, "num_requests": 180},
            profile=profiles[rng.choice(sorted(profiles))],
            acceptance={"kind": "beta", "a": 3.0, "b": 1.5},
            replicas=replicas,
            routing=rng.choice(ROUTERS),
            incidents=incidents,
            seed=number,
            requests=(lambda: conversations(180, 150.0)) if shared else None,
        )


def scaling_cases() -> Iterator[Case]:
    """Yield sessions, scores, metrics that are read now and then, and replicas that come and go."""
    sessions: Config = {
        "kind": "sessions", "turns": {"mean": 4, "sigma": 0.5},
        "first_prompt": {"mean": 90, "sigma": 0.6}, "new_input": {"mean": 30, "sigma": 0.6},
        "output": {"mean": 25, "sigma": 0.5}, "shared_prompt": 40, "tool_share": 0.5,
        "tool_time": 0.05, "think_time": {"mean": 0.4, "sigma": 0.5}, "max_len": 900,
    }  # fmt: skip
    open_ones: Config = {"arrivals": {"kind": "poisson", "rate": 40.0}, "lengths": sessions}
    routers: dict[str, Any] = {
        "scored": "scored",
        "stale": {"kind": "least_outstanding", "refresh_ms": 120},
        "precise": {"kind": "scored", "index": "precise", "index_delay_ms": 80, "refresh_ms": 20,
                    "weights": {"running": 1, "session": 1}},
    }  # fmt: skip
    loads: dict[str, Config] = {
        "open": open_ones,
        "closed": {**open_ones, "arrivals": CLOSED["arrivals"]},
        "plain": {"arrivals": {"kind": "poisson", "rate": 300.0}},
    }
    for (name, router), (load, workload) in product(routers.items(), loads.items()):
        yield case(f"sessions/{name}/{load}", replicas=3, routing=router, workload=workload,
                   engine=FEW if load == "closed" else {}, policy="goodput")  # fmt: skip
    scalers: dict[str, Config] = {
        "target_queue": {"target": 2.0},
        "target_kv_use": {"target": 0.3},
        "target_concurrency": {"target": 8.0, "window_s": 0.4},
        "target_slo": {"target": 0.9, "window_s": 0.4},
    }
    for (kind, fields), (load, workload) in product(scalers.items(), loads.items()):
        scaler = {"kind": kind, "max_replicas": 4, "interval_s": 0.1, "start_up_s": 0.15,
                  "scale_in_delay_s": 0.2, **fields}  # fmt: skip
        yield case(f"autoscaling/{kind}/{load}", autoscaling=scaler, workload=workload,
                   slo={"ttft_ms": 80, "tpot_ms": 12}, routing="scored", policy="goodput",
                   incidents=INCIDENTS["several"])  # fmt: skip


def pool_cases() -> Iterator[Case]:
    """Pools of prefill and decode replicas, and host memory behind the GPU's cache."""
    link = {"bandwidth_gb_s": 4.0, "latency_ms": 1.0}
    for name, transfer, engine in (
        ("moved", {}, {}),
        ("recomputed", {"draft_kv": "recomputed", "max_transfers": 3}, FEW),
        ("cold", {"draft_kv": "cold", "link": "prefill"}, {**FEW, **SYNC}),
        ("layers", {"overlap": "layers", "link": "all"}, {"scheduling_policy": "priority"}),
    ):
        incidents: list[Config] = [
            {**failure(0, 0.3, 0.9), "pool": "prefill"},
            {**failure(1, 0.5, 1.1), "pool": "decode"},
            {**slowdown(0, 0.2, 1.0, 2.0), "pool": "decode"},
        ]
        pools = {
            "prefill": {"replicas": 2},
            "decode": {"replicas": 2, "routing": "least_outstanding_tokens"},
            "transfer": {**link, **transfer},
        }
        yield case(f"pools/{name}", pools=pools, engine=engine, policy="goodput")
        yield case(f"pools/{name}/static", pools=pools, engine=engine, incidents=incidents)
    tier = {"blocks": 300, "bandwidth_gb_s": 4.0}
    tiers = {
        "host": tier,
        "disk": {**tier, "disk": {**tier, "blocks": 9000}},
        "outputs": {**tier, "offload_prompt_only": False},
    }
    for name, offload in tiers.items():
        yield case(
            f"tiers/{name}",
            engine={**FEW, "kv_offload": offload},
            requests=lambda: conversations(180, 150.0),
        )
    scaler = {"kind": "target_concurrency", "target": 6.0, "window_s": 0.2, "interval_s": 0.1,
              "start_up_s": 0.15, "scale_in_delay_s": 0.2, "max_replicas": 3}  # fmt: skip
    scaled = {name: {"autoscaling": scaler} for name in ("prefill", "decode")}
    yield case("pools/scaled", pools={**scaled, "transfer": link}, policy="goodput",
               workload={"arrivals": {"kind": "poisson", "rate": 300.0}},
               incidents=[{**failure(0, 0.3, 0.9), "pool": "prefill"},
                          {**failure(1, 0.5, 1.1), "pool": "decode"}])  # fmt: skip


LATER_POLICIES: list[Any] = [
    "spec_serve", {"kind": "dsde", "calibration_steps": 5}, "tapout",
    {"kind": "nightjar", "switch_ms": 2.0},
    {"kind": "acceptance_rate_gate", "acceptance_rate_window_size": 40,
     "acceptance_rate_threshold": 0.55},
]  # fmt: skip


def later_cases(profiles: dict[str, str]) -> Iterator[Case]:
    """Yield what came after the cases whose settings are drawn."""
    for policy, spec in product(LATER_POLICIES, ("eagle3:4", "draft_model:5", "suffix:4")):
        for name, engine in (("v1", {}), ("v0", V0), ("few", FEW), ("sync", SYNC)):
            yield case(f"later/{label(policy)}/{spec}/{name}", spec=spec, policy=policy,
                       engine=engine, profile=profiles["overhead"])  # fmt: skip
    parallel = {"num_speculative_tokens": 4, "parallel_drafting": True}
    for method, version in product(("dflash", "dspark", "eagle3", "draft_model"), ("0.32", "0.33")):
        for policy in ("static", "goodput"):
            yield case(f"at_once/{method}/{version}/{policy}", policy=policy,
                       spec={"method": method, **parallel}, profile=profiles["overhead"],
                       engine={"vllm_version": version}, requests=lambda: conversations(120, 90.0),
                       )  # fmt: skip
