"""All hypothesis strategies."""

from typing import Any

from hypothesis import strategies as st

METHODS = ["eagle3", "ngram", "draft_model", "mtp", "suffix"]


@st.composite
def engines(draw: st.DrawFn) -> dict[str, Any]:
    """Small engines under pressure: few blocks, small budgets, every switch."""
    block_size = draw(st.sampled_from([1, 4, 16]))
    max_model_len = draw(st.sampled_from([64, 128, 300]))
    min_blocks = -(-max_model_len // block_size) + 2
    seqs = draw(st.integers(1, 12))
    v0 = draw(st.integers(0, 3)) == 0
    chunked = draw(st.booleans()) and not v0
    engine: dict[str, Any] = {
        "block_size": block_size,
        "max_model_len": max_model_len,
        "num_gpu_blocks": min_blocks + draw(st.integers(0, 3 * min_blocks)),
        "max_num_seqs": seqs,
        "max_num_batched_tokens": max(
            seqs + 10, draw(st.sampled_from([16, 48, 200])), 0 if chunked else max_model_len
        ),
        "enable_chunked_prefill": chunked,
        "enable_prefix_caching": draw(st.booleans()),
        "scheduling_policy": draw(st.sampled_from(["fcfs", "priority"])),
        "scheduler_reserve_full_isl": draw(st.booleans()),
        "watermark": draw(st.sampled_from([0.0, 0.05])),
        "scheduler": "prefill_first" if v0 else "v1",
    }
    if draw(st.booleans()):
        method = draw(st.sampled_from(METHODS))
        limit = draw(st.integers(1, 6))
        engine["speculative_config"] = {"method": method, "num_speculative_tokens": limit}
    return engine


@st.composite
def workloads(draw: st.DrawFn) -> dict[str, Any]:
    """Short, bursty workloads whose requests fit into every engine above."""
    longest = draw(st.integers(1, 60))
    return {
        "arrivals": draw(
            st.sampled_from(
                [
                    {"kind": "poisson", "rate": 50.0},
                    {"kind": "burst"},
                    {"kind": "gamma", "rate": 20.0, "burstiness": 0.3},
                    {"kind": "closed_loop", "concurrency": 5, "think_time": 0.01},
                ]
            )
        ),
        "lengths": {"kind": "uniform", "prompt": [1, longest], "output": [1, 50]},
        "num_requests": draw(st.integers(1, 25)),
    }
