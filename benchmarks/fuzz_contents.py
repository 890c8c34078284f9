"""Valid contents of files that fuzzing changes, but for experiments."""

TOKENS = [
    {
        "id": str(number),
        "prompt_token_ids": [1, 2, 3],
        "generated_token_ids": [*range(60)],
        "acc_eagle": {"acc_len": [1, *([4, 3, 2, 1, 1, 2, 1, 1] * 8)[number : number + 59]]},
    }
    for number in range(4)
]
CHAT = [
    {"prompt": "a b c", "output": "d e", "id": "x", "timestamp": 1.5},
    {"messages": [{"role": "user", "content": "a b"}, {"role": "assistant", "content": "c d"}]},
    {"conversations": [{"from": "human", "value": "b"}, {"from": "gpt", "value": "e"}]},
]
TOKENIZER = {
    "version": "1.0",
    "truncation": None,
    "padding": None,
    "added_tokens": [
        {
            "id": 1,
            "content": "<s>",
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": True,
        }
    ],
    "normalizer": None,
    "pre_tokenizer": {"type": "Whitespace"},
    "post_processor": {
        "type": "TemplateProcessing",
        "single": [
            {"SpecialToken": {"id": "<s>", "type_id": 0}},
            {"Sequence": {"id": "A", "type_id": 0}},
        ],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}},
    },
    "decoder": {"type": "Metaspace", "replacement": "_", "prepend_scheme": "always", "split": True},
    "model": {
        "type": "WordLevel",
        "vocab": {"?": 0, "<s>": 1, "a": 2, "b": 3, "c": 4},
        "unk_token": "?",
    },
}
RUNS = [
    {
        "run_id": f"r{number}",
        "model": "meta-llama/Llama-3.1-8B-Instruct",
        "tp": 1,
        "gpu": "NVIDIA A100-SXM4-80GB",
        "engine_version": "0.24.0",
        "isl": "200 (uniform 100..300)",
        "osl": "40 (uniform 20..60)",
        "dataset": "random tokens (seed 7)",
        "max_num_batched_tokens": "2048 (default seen in log)",
        "max_num_seqs": 64,
        "max_model_len": 4096,
        "num_gpu_blocks": "32000 tokens",
        "block_size": "16.0",
        "prefix_caching": "off",
        "num_prompts": 10,
        "num_warmups": 2,
        "concurrency": 4,
        "request_rate": "",
        "method": method,
        "num_speculative_tokens": k,
        "accept_rate_per_pos": rates,
        "ttft_p50_ms": 25.0,
        "tpot_mean_ms": 9.0,
        "output_tok_s": 400.0,
        "itl_p50_ms": 9.0,
    }
    for number, (method, k, rates) in enumerate(
        (("none", 0, ""), ("eagle3 (some head)", "3.0", "0.7;0.5;0.35"))
    )
]
BENCH = {
    "date": "20260101-120000",
    "model_id": "meta-llama/Llama-3.1-8B-Instruct",
    "num_prompts": 8,
    "request_rate": "inf",
    "burstiness": 1.0,
    "max_concurrency": 4,
    "duration": 10.0,
    "completed": 8,
    "failed": 0,
    "total_input_tokens": 1600,
    "total_output_tokens": 400,
    "request_throughput": 3.2,
    "output_throughput": 320.0,
    "mean_ttft_ms": 30.0,
    "median_ttft_ms": 28.0,
    "mean_tpot_ms": 9.0,
    "median_itl_ms": 8.8,
    "mean_e2el_ms": 900.0,
    "input_lens": [200] * 8,
    "output_lens": [50] * 8,
    "ttfts": [0.03] * 8,
    "itls": [[0.01] * 49] * 8,
    "spec_decode_acceptance_rate": 40.0,
    "spec_decode_acceptance_length": 2.2,
    "spec_decode_per_position_acceptance_rates": [0.6, 0.4, 0.2],
}
STEPS = [
    {
        "context_tokens": 500 * n + 37 * (n * n % 23),
        "batched_tokens": n + (40 + n * n % 17) * (n % 3 == 0),
        "requests": n,
        "mixed": n % 3 == 0,
        "seconds": 0.006 + 1e-7 * (500 * n + 37 * (n * n % 23)) + 1e-5 * n + 0.004 * (n % 3 == 0),
    }
    for n in range(1, 60)
]
MEASURED = {
    "meta.json": {
        "model": "meta-llama/Llama-3.1-8B",
        "engine_kwargs": {
            "max_num_seqs": 8,
            "max_num_batched_tokens": 256,
            "max_model_len": 2048,
            "tensor_parallel_size": 1,
            "data_parallel_size": 1,
            "kv_cache_dtype": "auto",
        },
        "kv_cache": {"num_gpu_blocks": 500, "block_size": 16},
        "hardware": {"device_name": "NVIDIA H100 80GB HBM3"},
    },
    "requests.jsonl": [
        {
            "request_id": f"bench-{n}",
            "input_toks": 20 + n,
            "output_toks": 5 + n,
            "queued_ts": 1000.0 + n,
            "first_token_ts": 1000.1 + n,
            "last_token_ts": 1001.0 + n,
        }
        for n in range(6)
    ],
    "steps.jsonl": [
        {
            "seconds": row["seconds"],
            "context_tokens": row["context_tokens"],
            "batched_tokens": row["batched_tokens"],
            "num_requests": row["requests"],
            "prefill_tokens": 40 * row["mixed"],
            "scheduled": [1],
        }
        for row in STEPS
    ],
}
PRICES = {
    "currency": "USD",
    "date": "2026-01-01",
    "source": "x",
    "per_gpu_hour": {"h100": 3.0, "l40s": 1.0},
}
