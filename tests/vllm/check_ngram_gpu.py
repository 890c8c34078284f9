"""Drafts of `ngram_gpu` beside those of vLLM's own kernels, on a CPU, by Triton's interpreter.

Runs in the Python of vLLM 0.32 or later::

    python tests/vllm/check_ngram_gpu.py [SEED]

Random texts of a few different tokens, random bounds and draft lengths; the exit code is 1 if a
draft differs.
"""

import os
import random
import sys
from types import SimpleNamespace
from typing import Any

os.environ["TRITON_INTERPRET"] = "1"

import numpy as np
import torch
import triton
import vllm.triton_utils
from triton.runtime import interpreter

from specsim.core.request import Text
from specsim.lookup.ngram import NgramGpuLookup

# vLLM's import leaves Triton out where it has no backend for the machine.
vllm.triton_utils.triton, vllm.triton_utils.tl = triton, triton.language
vllm.triton_utils.HAS_TRITON = True

from vllm.v1.worker.gpu.spec_decode.ngram.speculator import NgramGPUSpeculator  # noqa: E402

NUM_BATCHES = 150


def accept_any_mask() -> None:
    """Let masks be numbers: the interpreter makes such of `&` between a scalar and an array."""
    builder: Any = interpreter.InterpreterBuilder
    load = builder.create_masked_load

    def with_mask(self: Any, ptrs: Any, mask: Any, *rest: Any) -> Any:
        return load(self, ptrs, interpreter.TensorHandle(mask.data.astype(bool), mask.dtype), *rest)

    builder.create_masked_load = with_mask


def real_drafts(texts: list[list[int]], longest_text: int, bounds: tuple[int, int], k: int) -> Any:
    """Return what vLLM drafts for a batch."""

    token_ids = torch.zeros((len(texts), longest_text), dtype=torch.int32)
    for row, text in zip(token_ids, texts, strict=True):
        row[: len(text)] = torch.tensor(text)
    lens = torch.tensor([len(text) for text in texts], dtype=torch.int32)
    states = SimpleNamespace(
        all_token_ids=SimpleNamespace(gpu=token_ids), total_len=SimpleNamespace(gpu=lens)
    )
    config = SimpleNamespace(
        speculative_config=SimpleNamespace(
            prompt_lookup_min=bounds[0], prompt_lookup_max=bounds[1], num_speculative_tokens=k
        ),
        scheduler_config=SimpleNamespace(max_num_seqs=len(texts)),
        model_config=SimpleNamespace(max_model_len=longest_text),
    )
    batch = SimpleNamespace(num_reqs=len(texts), idx_mapping=torch.arange(len(texts)))
    sampled = torch.ones(len(texts), dtype=torch.int32)
    last = torch.tensor([text[-1] for text in texts])
    speculator: Any = NgramGPUSpeculator(config, torch.device("cpu"), states)
    nothing = (None, None, None, None)
    return speculator.propose(batch, *nothing, sampled, sampled, last, None, None, None).tolist()


def main(seed: str = "1") -> None:
    accept_any_mask()
    draw, num, wrong = random.Random(seed), 0, 0
    for _ in range(NUM_BATCHES):
        longest_text, vocabulary = draw.randint(20, 400), draw.randint(2, 9)
        shortest = draw.randint(1, 4)
        bounds, k = (shortest, shortest + draw.randint(0, 3)), draw.randint(1, 8)
        texts = [
            [draw.randrange(vocabulary) for _ in range(draw.randint(1, longest_text))]
            for _ in range(4)
        ]
        for text, real in zip(texts, real_drafts(texts, longest_text, bounds, k), strict=True):
            lookup = NgramGpuLookup(shortest=bounds[0], longest=bounds[1])
            lookup.start(0, Text(np.array(text, dtype=np.int32), len(text)))
            ours, num = [*lookup.draft(0, k).token_ids], num + 1
            if ours != real:
                wrong += 1
                print(f"n = {bounds}, text {text}: ours {ours}, theirs {real}")
    print(f"{num} drafts of {vllm.__version__}, {wrong} differ")
    sys.exit(wrong > 0)


if __name__ == "__main__":
    main(*sys.argv[1:])
