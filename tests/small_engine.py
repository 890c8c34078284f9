"""A torch engine that is small enough for tests, and what it serves there. Needs torch."""

from typing import Any

import torch

from specsim.hardware import ModelShape
from specsim.profile import Profile
from specsim.reality.calibration.torch_subject import Served
from specsim.reality.torch_engine.engine import CacheRoom, TorchEngine
from specsim.reality.torch_engine.model import Recipe
from specsim.run.experiment import Experiment

CPU = torch.device("cpu")
SHAPE = ModelShape(
    name="test",
    num_hidden_layers=4,
    hidden_size=64,
    intermediate_size=96,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=16,
    vocab_size=499,
    max_position_embeddings=256,
    source="a test",
)
LINEAR = {"kind": "linear", "alpha_ns": 10.0, "gamma_us": 10.0, "delta_ms": 1.0}
PROFILE = Profile.model_validate(
    {
        "model": "llama-7m",
        "gpu": "cpu",
        "provenance": {"engine": "none", "source": "a test", "date": "2026-01-01"},
        "target": LINEAR,
        "drafts": {"draft_model": {"latency": LINEAR}},
        "valid_range": {"context_tokens": 10**6, "batched_tokens": 10**6},
    }
)


def make_engine(deep_scale: float = 0.15) -> TorchEngine:
    return TorchEngine(
        SHAPE, CPU, torch.float32, CacheRoom(4, 160, 5), Recipe(2, deep_scale=deep_scale)
    )


def experiment(policy: str, **engine: Any) -> Experiment:
    options = {
        "max_num_seqs": 4,
        "max_num_batched_tokens": 64,
        "max_model_len": 160,
        "num_gpu_blocks": 200,
        "enable_prefix_caching": False,
        "async_scheduling": False,
    }
    if policy != "off":
        options["speculative_config"] = {"method": "draft_model", "num_speculative_tokens": 5}
    return Experiment.parse(
        {
            "workload": {
                "arrivals": {"kind": "poisson", "rate": 200.0},
                "lengths": {"kind": "uniform", "prompt": [1, 90], "output": [1, 40]},
                "num_requests": 9,
            },
            "engine": {**options, **engine},
            "policy": policy,
            "acceptance": {"kind": "bernoulli", "alpha": 0.7},
            "profile": "none",
        },
        "test",
    )


def serve(
    policy: str, engine: TorchEngine, *, is_synthetic: bool = False, **options: Any
) -> Served:
    asked = experiment(policy, **options)
    requests = list(asked.workload.build(0).requests())
    return engine.serve(asked, PROFILE, requests, is_synthetic=is_synthetic)


def answers(served: Served) -> dict[str, Any]:
    return {row["request_id"]: row["output_tok_ids"] for row in served.requests}
