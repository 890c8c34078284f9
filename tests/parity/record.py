"""Record what the real vLLM scheduler does with random scenarios.

Needs vLLM 0.32.0 (a CPU build will do; no model is run) and nothing of specsim, so that the two
have only the scenario in common::

    python tests/parity/record.py tests/parity/recorded 0 40
    python tests/parity/record.py tests/parity/recorded/worked.scenario.json

The first writes ``random-SEED.scenario.json`` and ``random-SEED.log.json`` for seeds 0 to 39, the
second the log of one scenario. The scripted randomness, the virtual clock and the format of the
log are those of ``specsim parity``.
"""

import atexit
import json
import random
import shutil
import sys
import tempfile
import zlib
from collections import deque
from pathlib import Path
from typing import Any

import torch
from vllm.config import (
    CacheConfig,
    DeviceConfig,
    ModelConfig,
    ParallelConfig,
    SchedulerConfig,
    SpeculativeConfig,
    VllmConfig,
)
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import DraftTokenIds, ModelRunnerOutput
from vllm.v1.request import Request
from vllm.v1.structured_output import StructuredOutputManager

MASK = (1 << 64) - 1
ACCEPTANCE, DRAFTS, OUTPUT, PROMPT = 1, 2, 3, 4


def splitmix64(x: int) -> int:
    z = (x + 0x9E3779B97F4A7C15) & MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


def scripted(seed: int, stream: int, request: int, position: int) -> int:
    return splitmix64(splitmix64(splitmix64(splitmix64(seed) ^ stream) ^ request) ^ position)


def uniform(*key: int) -> float:
    return (scripted(*key) >> 11) * 2.0**-53


def token(*key: int) -> int:
    return 1_000_000 + scripted(*key) % 2**30


def random_scenario(seed: int) -> dict[str, Any]:
    """Small engines under pressure: few blocks, small budgets, every switch."""
    draw = random.Random(seed)
    block_size = draw.choice([1, 2, 4, 8, 16])
    max_model_len = draw.choice([48, 64, 100, 128])
    fewest = -(-max_model_len // block_size) + 2
    is_async = draw.random() < 0.4
    method = draw.choice([None, "draft_model", "draft_model", "eagle", "eagle", "ngram"])
    if is_async and method == "ngram":
        method = "draft_model"
    k = draw.choice([1, 2, 3, 5, 8])
    seqs = draw.choice([1, 2, 4, 8, 16])
    chunked = draw.random() < 0.85
    budget = max(draw.choice([seqs + 1, 24, 40, 64, 200]), seqs, k + 3)
    threshold = max(draw.choice([8, 16]), k + 1) if chunked and draw.random() < 0.25 else 0
    caching = draw.random() < 0.55
    spec: dict[str, Any] | None = None
    if method:
        spec = {"method": method, "k": k}
        if draw.random() < 0.25:
            spec["per_batch_size"] = [[1, 2, k], [3, 5, max(0, k - 1)], [7, 9, 0]]
    engine = {
        "block_size": block_size,
        "num_blocks": int(fewest * draw.choice([1, 1.2, 1.6, 2, 4])) + draw.randint(0, 3),
        "max_model_len": max_model_len,
        "max_num_batched_tokens": budget if chunked else max(budget, max_model_len),
        "max_num_seqs": seqs,
        "max_num_active_seqs": draw.choice([None, None, None, max(1, seqs // 2)]),
        "enable_chunked_prefill": chunked,
        "enable_prefix_caching": caching,
        "policy": "priority" if draw.random() < 0.35 else "fcfs",
        "long_prefill_token_threshold": threshold,
        "long_prefill_token_threshold_adaptive": threshold > 0 and draw.random() < 0.4,
        "scheduler_reserve_full_isl": draw.random() < 0.7,
        "watermark": draw.choice([0.0, 0.0, 0.05]),
        "async_scheduling": is_async,
        "spec": spec,
    }
    variable = method == "ngram" and draw.random() < 0.8
    return {
        "name": f"random-{seed}",
        "kind": "random",
        "seed": seed,
        "engine": engine,
        "cost": {"base_ns": 5_000_000, "per_token_ns": 20_000, "per_ctx_ns": 40},
        "acceptance": {"alpha": draw.choice([0.0, 0.5, 0.8, 1.0])},
        "drafts": {"mode": "ngram", "p_zero": 0.4} if variable else {"mode": "full"},
        "requests": random_requests(draw, engine),
    }


def random_requests(draw: random.Random, engine: dict[str, Any]) -> list[dict[str, Any]]:
    longest, size = engine["max_model_len"] - 2, engine["block_size"]
    shared = [[draw.randint(5, 999) for _ in range(longest)] for _ in range(2)]
    exact = draw.random() < 0.3  # prompts that end right after a block
    rate, arrival = draw.choice([10, 40, 200]), 0
    rows: list[dict[str, Any]] = []
    for number in range(draw.randint(6, 14)):
        arrival += 0 if draw.random() < 0.2 else int(draw.expovariate(rate) * 1e9)
        prompt_len = (
            min(longest, draw.choice([1, size + 1, 2 * size]))
            if exact
            else (draw.randint(1, longest))
        )
        row: dict[str, Any] = {
            "id": f"r{number:02d}",
            "arrival_ns": arrival,
            "prompt_len": prompt_len,
            "max_tokens": draw.choice([1, 2, draw.randint(1, 20), draw.randint(1, 50)]),
        }
        if engine["enable_prefix_caching"] and draw.random() < 0.7:
            common = draw.choice([prompt_len, draw.randint(0, prompt_len)])
            own = [draw.randint(5, 999) for _ in range(prompt_len - common)]
            row["prompt_token_ids"] = draw.choice(shared)[:common] + own
        if engine["policy"] == "priority":
            row["priority"] = draw.choice([0, 0, 1, 2])
        if draw.random() < 0.2:
            row["alpha"] = round(draw.random(), 3)
        rows.append(row)
    return rows


def model_folder() -> str:
    """A folder with the config of a tiny model, all that vLLM's own configuration needs."""
    folder = tempfile.mkdtemp(prefix="specsim-parity-")
    atexit.register(shutil.rmtree, folder)
    shape = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "num_hidden_layers": 2,
        "vocab_size": 2000,
        "max_position_embeddings": 131072,
        "torch_dtype": "bfloat16",
    }
    (Path(folder) / "config.json").write_text(json.dumps(shape))
    return folder


def speculative_config(spec: dict[str, Any], model: str, target: ModelConfig) -> SpeculativeConfig:
    fields: dict[str, Any] = {"num_speculative_tokens": spec["k"]}
    if spec.get("per_batch_size"):
        ranges = [tuple(row) for row in spec["per_batch_size"]]
        fields["num_speculative_tokens_per_batch_size"] = ranges
    if spec["method"] == "ngram":
        fields |= {"method": "ngram", "prompt_lookup_min": 2, "prompt_lookup_max": 4}
    else:
        fields |= {"method": "draft_model", "model": model}
    return SpeculativeConfig(
        target_model_config=target, target_parallel_config=ParallelConfig(), **fields
    )


def make_scheduler(engine: dict[str, Any]) -> Scheduler:
    model = model_folder()
    target = ModelConfig(
        model=model,
        skip_tokenizer_init=True,
        max_model_len=engine["max_model_len"],
        dtype="bfloat16",
    )
    same = (
        "max_num_seqs",
        "max_num_batched_tokens",
        "max_model_len",
        "enable_chunked_prefill",
        "policy",
        "long_prefill_token_threshold",
        "long_prefill_token_threshold_adaptive",
        "scheduler_reserve_full_isl",
        "watermark",
        "async_scheduling",
    )
    limits = {name: engine[name] for name in same}
    if engine["max_num_active_seqs"]:
        limits["max_num_active_seqs"] = engine["max_num_active_seqs"]
    size = engine["block_size"]
    cache = CacheConfig(block_size=size, enable_prefix_caching=engine["enable_prefix_caching"])
    spec = engine["spec"]
    config = VllmConfig(
        model_config=target,
        scheduler_config=SchedulerConfig(is_encoder_decoder=False, **limits),
        cache_config=cache,
        device_config=DeviceConfig("cpu"),
        speculative_config=speculative_config(spec, model, target) if spec else None,
    )
    if spec and spec["method"] == "eagle":
        config.speculative_config.method = "eagle"  # all that the scheduler looks at
    config.scheduler_config.async_scheduling = engine["async_scheduling"]
    cache.num_gpu_blocks = engine["num_blocks"]
    group = FullAttentionSpec(block_size=size, num_kv_heads=1, head_size=1, dtype=torch.float32)
    return (AsyncScheduler if engine["async_scheduling"] else Scheduler)(
        vllm_config=config,
        kv_cache_config=KVCacheConfig(
            num_blocks=engine["num_blocks"],
            kv_cache_tensors=[],
            kv_cache_groups=[KVCacheGroupSpec(["layer"], group)],
        ),
        structured_output_manager=StructuredOutputManager(config),
        block_size=size,
        log_stats=True,
    )


class Driver:
    """Plays the engine core, the model and the clock for one scenario."""

    def __init__(self, scenario: dict[str, Any]) -> None:
        self.scenario, self.engine, self.seed = scenario, scenario["engine"], scenario["seed"]
        self.rows = scenario["requests"]
        self.number = {row["id"]: number for number, row in enumerate(self.rows)}
        self.scheduler = make_scheduler(self.engine)
        self.hasher = None
        if self.engine["enable_prefix_caching"]:
            init_none_hash(sha256)
            self.hasher = get_request_block_hasher(self.engine["block_size"], sha256)
        self.clock = self.next_row = 0
        self.requests: dict[str, Request] = {}
        self.steps: list[dict[str, Any]] = []
        self.emits: dict[tuple[int, str], bool] = {}
        self.padded: set[tuple[int, str]] = set()
        self.ended: dict[str, dict[str, Any]] = {}
        for row in self.rows:
            self.ended[row["id"]] = {
                "id": row["id"],
                "arrival_ns": row["arrival_ns"],
                "preemptions": 0,
                "reason": "length",
                "recomputed_hits": [],
            }

    def add_arrivals(self) -> None:
        while self.next_row < len(self.rows):
            row, number = self.rows[self.next_row], self.next_row
            if row["arrival_ns"] > self.clock:
                return
            prompt = row.get("prompt_token_ids") or [
                token(self.seed, PROMPT, number, position) for position in range(row["prompt_len"])
            ]
            request = Request(
                request_id=row["id"],
                prompt_token_ids=prompt,
                sampling_params=SamplingParams(max_tokens=row["max_tokens"], ignore_eos=True),
                pooling_params=None,
                arrival_time=float(row["arrival_ns"]),
                priority=row.get("priority", 0),
                block_hasher=self.hasher,
            )
            self.requests[row["id"]] = request
            self.scheduler.add_request(request)
            self.next_row += 1

    def state(self) -> list[int]:
        queue = self.scheduler.kv_cache_manager.block_pool.free_block_queue
        free = [block.block_id for block in queue.get_all_free_blocks()]
        running, waiting = self.scheduler.get_request_counts()
        return [running, waiting, len(free), zlib.crc32(",".join(map(str, free)).encode())]

    def schedule(self) -> tuple[Any, dict[str, Any], int]:
        preempted: list[str] = []
        original = self.scheduler._preempt_request

        def spy(request: Request, *args: Any, **kwargs: Any) -> None:
            preempted.append(request.request_id)
            original(request, *args, **kwargs)

        self.scheduler._preempt_request = spy
        output = self.scheduler.schedule()
        self.scheduler._preempt_request = original
        index, cached = len(self.steps), output.scheduled_cached_reqs
        computed = {new.req_id: new.num_computed_tokens for new in output.scheduled_new_reqs}
        computed |= dict(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
        scheduled = []
        for name, length in output.num_scheduled_tokens.items():
            drafts = len(output.scheduled_spec_decode_tokens.get(name) or ())
            blocks = len(self.scheduler.kv_cache_manager.get_block_ids(name)[0])
            scheduled.append([name, length, drafts, computed[name], blocks])
            self.emits[index, name] = not self.requests[name].is_prefill_chunk
        new = [entry.req_id for entry in output.scheduled_new_reqs]
        resumed = [name for name in cached.req_ids if name in cached.resumed_req_ids]
        self.padded |= {(index, row[0]) for row in scheduled if row[2] and row[0] in new + resumed}
        for name in new:
            self.ended[name] |= {"first_step": index, "cached": computed[name]}
        for name in resumed:
            self.ended[name]["recomputed_hits"].append(computed[name])
        for name in preempted:
            self.ended[name]["preemptions"] += 1
        step = {
            "i": index,
            "t": self.clock,
            "t1": None,
            "sched": scheduled,
            "new": new,
            "resumed": resumed,
            "preempted": preempted,
            "K": output.num_spec_tokens_to_schedule,
            "s": self.state(),
        }
        self.steps.append(step)
        cost, tokens = self.scenario["cost"], sum(row[1] for row in scheduled)
        context = sum(row[3] + row[1] for row in scheduled)
        time = cost["base_ns"] + cost["per_token_ns"] * tokens + cost["per_ctx_ns"] * context
        return output, step, time if tokens else 0

    def sampled(self, step: dict[str, Any]) -> tuple[list[list[int]], dict[str, int]]:
        """The tokens that the model would have sampled, and the accepted drafts."""
        rows, accepted = [], {}
        for name, _, drafts, _, _ in step["sched"]:
            if not self.emits[step["i"], name]:
                rows.append([])
                continue
            number, known = self.number[name], self.requests[name].num_output_tokens
            alpha = self.rows[number].get("alpha", self.scenario["acceptance"]["alpha"])
            count = 0
            if (step["i"], name) not in self.padded:
                while (
                    count < drafts and uniform(self.seed, ACCEPTANCE, number, known + count) < alpha
                ):
                    count += 1
            accepted[name] = count
            rows.append([token(self.seed, OUTPUT, number, known + j) for j in range(count + 1)])
        return rows, accepted

    def update(self, output: Any, step: dict[str, Any]) -> None:
        names = [row[0] for row in step["sched"]]
        tokens, accepted = self.sampled(step)
        known = {name: self.requests[name].num_output_tokens for name in names}
        alive = [name for name in names if not self.requests[name].is_finished()]
        self.scheduler.update_from_output(
            output,
            ModelRunnerOutput(
                req_ids=names,
                req_id_to_index={name: place for place, name in enumerate(names)},
                sampled_token_ids=tokens,
                logprobs=None,
                prompt_logprobs_dict={},
                pooler_output=[],
            ),
        )
        step |= {"t1": self.clock, "u": self.state(), "out": [], "finished": []}
        for name in alive:
            request = self.requests[name]
            delivered = request.num_output_tokens - known[name]
            if delivered:
                step["out"].append([name, delivered, accepted.get(name, 0)])
                self.ended[name].setdefault("first_token_ns", self.clock)
            if request.is_finished():
                step["finished"].append(name)
                self.ended[name] |= {"finish_ns": self.clock, "out": request.num_output_tokens}

    def offer_drafts(self, step: dict[str, Any]) -> None:
        names, drafts, mode = [row[0] for row in step["sched"]], [], self.scenario["drafts"]
        for name in names:
            count, known = step["K"], self.requests[name].num_output_tokens
            if mode["mode"] == "ngram":
                v, zero = uniform(self.seed, DRAFTS, self.number[name], known), mode["p_zero"]
                count = 0 if v < zero else min(count, 1 + int((v - zero) / (1 - zero) * count))
            drafts.append([7] * count)
        self.scheduler.update_draft_token_ids(DraftTokenIds(names, drafts))

    def run_sync(self) -> None:
        while True:
            self.add_arrivals()
            if not self.scheduler.get_num_unfinished_requests():
                if self.next_row == len(self.rows):
                    return
                self.clock = self.rows[self.next_row]["arrival_ns"]
                continue
            output, step, time = self.schedule()
            self.clock += time
            self.update(output, step)
            if self.engine["spec"]:
                self.offer_drafts(step)

    def run_async(self) -> None:
        in_flight: deque[tuple[Any, dict[str, Any], int]] = deque()
        gpu_free_at = 0
        while True:
            self.add_arrivals()
            if self.scheduler.has_requests():
                output, step, time = self.schedule()
                gpu_free_at = max(self.clock, gpu_free_at) + time
                in_flight.append((output, step, gpu_free_at))
                if len(in_flight) < 2 and (step["sched"] or self.scheduler.has_requests()):
                    continue
            elif not in_flight:
                if self.next_row == len(self.rows):
                    return
                self.clock = self.rows[self.next_row]["arrival_ns"]
                continue
            output, step, done = in_flight.popleft()
            self.clock = max(self.clock, done)
            self.update(output, step)

    def log(self) -> dict[str, Any]:
        (self.run_async if self.engine["async_scheduling"] else self.run_sync)()
        return {
            "scenario": self.scenario["name"],
            "vllm_version": "0.32.0",
            "requests": list(self.ended.values()),
            "steps": self.steps,
        }


def record(scenario: dict[str, Any], path: Path) -> None:
    """Write the log of a scenario, whose own path is given, beside it."""
    log = Driver(scenario).log()
    target = path.with_name(path.name.replace(".scenario.", ".log."))
    target.write_text(json.dumps(log, separators=(",", ":")) + "\n")


def main() -> None:
    target, *seeds = sys.argv[1:]
    if not seeds:
        record(json.loads(Path(target).read_text()), Path(target))
        return
    Path(target).mkdir(parents=True, exist_ok=True)
    for seed in range(*map(int, seeds)):
        scenario = random_scenario(seed)
        path = Path(target) / f"random-{seed}.scenario.json"
        path.write_text(json.dumps(scenario, separators=(",", ":")) + "\n")
        record(scenario, path)


if __name__ == "__main__":
    main()
