"""What ``meta.json`` says of a vLLM engine: its options, as they were resolved."""

import os
import platform
from datetime import UTC, datetime
from typing import Any

from vllm.platforms import current_platform

__all__ = ["run_meta"]

_OF_SCHEDULER = (
    "max_num_seqs",
    "max_num_active_seqs",
    "max_num_batched_tokens",
    "max_num_scheduled_tokens",
    "enable_chunked_prefill",
    "async_scheduling",
    "long_prefill_token_threshold",
    "long_prefill_token_threshold_adaptive",
    "scheduler_reserve_full_isl",
    "watermark",
)
_OF_SPECULATION = (
    "method",
    "num_speculative_tokens",
    "num_speculative_tokens_per_batch_size",
    "model",
    "prompt_lookup_min",
    "prompt_lookup_max",
)
_OF_LOOKUP = ("prompt_lookup_min", "prompt_lookup_max")


def run_meta(config: Any, version: str) -> dict[str, Any]:
    """Return ``meta.json`` of a run.

    Args:
        config: Of an engine that has found out how many KV blocks it has.
        version: Of vLLM.

    Returns:
        Plain values.
    """
    cache, model, parallel = config.cache_config, config.model_config, config.parallel_config
    engine = {name: getattr(config.scheduler_config, name) for name in _OF_SCHEDULER}
    engine |= {
        "model": str(model.model),
        "max_model_len": model.max_model_len,
        "dtype": str(model.dtype).removeprefix("torch."),
        "enforce_eager": model.enforce_eager,
        "scheduling_policy": str(config.scheduler_config.policy),
        "enable_prefix_caching": bool(cache.enable_prefix_caching),
        "tensor_parallel_size": parallel.tensor_parallel_size,
    }
    if config.speculative_config is not None:
        engine["speculative_config"] = _speculation(config.speculative_config)
    sizes = config.compilation_config.cudagraph_capture_sizes
    return {
        "vllm_version": version,
        "engine_kwargs": engine,
        "kv_cache": {"num_gpu_blocks": cache.num_gpu_blocks, "block_size": cache.block_size},
        "resolved_config": {"compilation_config": {"cudagraph_capture_sizes": list(sizes or [])}},
        "hardware": {
            "device_name": current_platform.get_device_name(),
            "machine": platform.machine(),
            "num_cpus": os.cpu_count(),
        },
        "recorded_at": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _speculation(speculative_config: Any) -> dict[str, Any]:
    fields = {name: getattr(speculative_config, name, None) for name in _OF_SPECULATION}
    if fields["method"] != "ngram":
        fields |= dict.fromkeys(_OF_LOOKUP)
    return {name: value for name, value in fields.items() if value is not None}
