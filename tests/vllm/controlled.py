"""A real vLLM whose drafts a policy of specsim settles, at every step.

Runs in vLLM's Python, which has specsim's packages, too::

    python tests/vllm/controlled.py MODELS '{"policy": "goodput"}' ngram|draft_model async|sync

Prints in JSON how it went. There is little KV cache, and prompts share their beginnings: there are
preemptions and hits.
"""

import json
import os
import sys
from pathlib import Path
from random import Random

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"

from vllm import LLM, SamplingParams

NUM, LONGEST = 40, 5


def main(models: Path, control: str, method: str, *, is_async: bool) -> None:
    speculation = {"method": method, "num_speculative_tokens": LONGEST}
    if method == "draft_model":
        speculation["model"] = str(models / "draft")
    else:
        speculation |= {"prompt_lookup_min": 2, "prompt_lookup_max": 4}
    llm = LLM(
        str(models / ("target" if method == "draft_model" else "repeating")),
        skip_tokenizer_init=True,
        enforce_eager=True,
        dtype="bfloat16",
        max_model_len=512,
        max_num_seqs=12,
        max_num_batched_tokens=128,
        num_gpu_blocks_override=22,
        block_size=32,
        gpu_memory_utilization=0.4,
        enable_prefix_caching=True,
        async_scheduling=is_async,
        speculative_config=speculation,
        scheduler_cls=f"specsim.vllm.{'Async' if is_async else ''}Scheduler",
        additional_config={"specsim": json.loads(control)},
        disable_log_stats=False,
    )
    rng = Random(7)
    shared = [rng.randrange(2, 200) for _ in range(48)]
    prompts = [
        {"prompt_token_ids": shared + [rng.randrange(2, 200) for _ in range(rng.randint(1, 80))]}
        for _ in range(NUM)
    ]
    params = [
        SamplingParams(
            temperature=0.0, max_tokens=rng.randint(2, 60), ignore_eos=True, detokenize=False
        )
        for _ in range(NUM)
    ]
    scheduler = llm.llm_engine.engine_core.engine_core.scheduler
    answers = llm.generate(prompts, params, use_tqdm=False)
    lens = [len(answer.outputs[0].token_ids) for answer in answers]
    metrics = {each.name: each for each in llm.get_metrics()}
    preemptions = metrics["vllm:num_preemptions"].value
    print(
        json.dumps(
            {
                "complete": lens == [each.max_tokens for each in params],
                "is_deciding": scheduler.controller is not None,
                "preemptions": preemptions,
                "hits": sum(answer.num_cached_tokens or 0 for answer in answers),
            }
        )
    )
    scheduler.controller and scheduler.controller.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3], is_async=sys.argv[4] == "async")
