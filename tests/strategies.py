"""All hypothesis strategies."""

from dataclasses import dataclass
from itertools import chain
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
        method = draw(st.sampled_from(METHODS if v0 else [*METHODS, "ngram_gpu"]))
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


@dataclass
class Play:
    """What befalls a lookup: texts, and how requests take turns."""

    options: dict[str, Any]
    texts: list[tuple[list[int], int]]
    """Token ids, and how many are the prompt."""
    concurrency: int
    turns: list[tuple[int, int, int]]
    """Which of the active requests, longest draft, tokens then revealed."""


@st.composite
def plays(draw: st.DrawFn) -> Play:
    """Texts of few different tokens, so that they repeat themselves and each other."""
    tokens = st.integers(0, draw(st.sampled_from([0, 1, 2, 5, 20])))
    phrases = draw(st.lists(st.lists(tokens, min_size=1, max_size=12), min_size=1, max_size=4))
    pieces = st.lists(st.one_of(st.sampled_from(phrases), tokens.map(lambda t: [t])), max_size=8)
    texts = []
    for answer, prompt in draw(st.lists(st.tuples(pieces, pieces), min_size=1, max_size=8)):
        prompt_ids, answer_ids = list(chain(*prompt)), list(chain(*answer))
        texts.append((prompt_ids + answer_ids, len(prompt_ids)))
    turn = st.tuples(st.integers(0, 3), st.integers(0, 12), st.integers(1, 8))
    options = {
        "max_depth": draw(st.sampled_from([2, 3, 5, 8, 24])),
        "max_spec_factor": draw(st.sampled_from([0.5, 1.0, 1.4, 4.0])),
        "min_token_prob": draw(st.sampled_from([0.0, 0.1, 0.34, 1.0])),
        "max_cached_requests": draw(st.sampled_from([-1, 0, 1, 2, 4])),
        "use_tree": draw(st.booleans()),
        "use_global_tree": draw(st.integers(0, 4)) > 0,
        "use_local_tree": draw(st.integers(0, 4)) > 0,
    }
    turns = draw(st.lists(turn, min_size=1, max_size=20))
    return Play(options, texts, draw(st.integers(1, 4)), turns)
