"""Record what the real vLLM scheduler does with random scenarios.

Needs vLLM 0.28 to 0.33 (a CPU build will do; no model is run) and nothing of specsim, so that
the two have only the scenario in common::

    python tests/parity/record.py tests/parity/recorded 0 40
    python tests/parity/record.py tests/parity/recorded 0 12 groups stops states
    python tests/parity/record.py tests/parity/recorded/worked.scenario.json

The first writes ``random-SEED.scenario.json`` and ``random-SEED.log.json`` for seeds 0 to 39, the
second ``groups-SEED``, with several KV cache groups, ``stops-SEED``, with answers that end by a
stop token, and ``states-SEED``, with layers that keep a state (``loras``: with requests for LoRA
adapters; ``shares``: with blocks of which each GPU has a part; ``parallel``: with drafters of one
pass, since 0.32; ``cadence``: with steps that read no prompts, in 0.33; ``ranks``: the same of a
rank that shares experts with others, which are idle; ``aborts``: with clients that go away;
``mixed``: with all of it at once); the last writes the log of one scenario, or of all that lie in a
folder. The scripted randomness, the virtual clock and the format of the log are those of
``specsim parity``.
"""

import atexit
import json
import math
import os
import shutil
import sys
import tempfile
import zlib
from collections import deque
from dataclasses import fields
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import torch
import vllm
from to_record import (
    RETENTION,
    Needs,
    random_aborts_scenario,
    random_cadence_scenario,
    random_groups_scenario,
    random_loras_scenario,
    random_mixed_scenario,
    random_modules_scenario,
    random_parallel_scenario,
    random_pipeline_scenario,
    random_ranks_scenario,
    random_rings_scenario,
    random_scenario,
    random_shares_scenario,
    random_stages_scenario,
    random_states_scenario,
    random_stops_scenario,
)
from vllm.config import (
    CacheConfig,
    DeviceConfig,
    LoRAConfig,
    ModelConfig,
    ParallelConfig,
    SchedulerConfig,
    SpeculativeConfig,
    VllmConfig,
)
from vllm.lora.request import LoRARequest
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1 import kv_cache_interface
from vllm.v1.core.kv_cache_utils import (
    get_request_block_hasher,
    init_none_hash,
    resolve_kv_cache_block_sizes,
)
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import (
    ChunkedLocalAttentionSpec,
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheSpec,
    MambaSpec,
    SlidingWindowSpec,
)
from vllm.v1.outputs import DraftTokenIds, ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output import StructuredOutputManager

try:  # 0.33
    from vllm.v1.core.kv_cache_planning import get_kv_cache_groups
except ImportError:
    from vllm.v1.core.kv_cache_utils import get_kv_cache_groups

LACKING = {
    name: off
    for name, off in (
        ("max_num_active_seqs", None),
        ("long_prefill_token_threshold_adaptive", False),
    )
    if name not in {field.name for field in fields(SchedulerConfig)}
}
"""What schedulers before 0.31 do not know, as it is where it is not used."""

VERSION: Any = tuple(map(int, vllm.__version__.split(".")[:2]))
HEADS = ("eagle", "mtp", "dflash", "dspark")
MODULES = "num_nextn_predict_layers"
SAVED = "num_prefill_checkpoint_blocks"
"""Of layers with a state: since 0.32 for those that save one inside a piece of a prefill."""
MASK = (1 << 64) - 1
ACCEPTANCE, DRAFTS, OUTPUT, PROMPT = 1, 2, 3, 4
MOST_STEPS = 10_000


class DoesNotEndError(Exception):
    """Requests preempt one another, or one itself, for ever."""


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
    if spec["method"] in ("ngram", "ngram_gpu"):
        fields |= {"method": spec["method"], "prompt_lookup_min": 2, "prompt_lookup_max": 4}
    else:
        fields |= {"method": "draft_model", "model": model}
    return SpeculativeConfig(
        target_model_config=target, target_parallel_config=ParallelConfig(), **fields
    )


def reread_len(engine: dict[str, Any]) -> int:
    """As vLLM has windows keep what the later of several MTP modules read again."""
    spec = engine["spec"] or {}
    return spec["k"] - 1 if min(spec.get(MODULES, 1), spec.get("k", 1)) > 1 else 0


def layer_specs(engine: dict[str, Any]) -> dict[str, KVCacheSpec]:
    """The layers as vLLM's model runner would report them; one of full attention by default."""
    specs: dict[str, KVCacheSpec] = {}
    widths = [run.get("bytes_per_token", 4096) for run in engine.get("kv_groups") or ()]
    for run in engine.get("kv_groups") or [{"kind": "full_attention", "layers": 1}]:
        shape = {
            "block_size": engine["block_size"],
            "num_kv_heads": run.get("bytes_per_token", 4096) // 64,
            "head_size": 8,
            "dtype": torch.float32,
        }
        for _ in range(run["layers"]):
            if run["kind"] == "sliding_window":
                spec = SlidingWindowSpec(
                    **shape, sliding_window=run["window"], extra_retained_tokens=reread_len(engine)
                )
            elif run["kind"] == "state":  # of a page of attention, which vLLM pads it to
                keeps = engine["enable_prefix_caching"]
                spec = MambaSpec(
                    block_size=engine["block_size" if keeps else "max_model_len"],
                    shapes=((engine["block_size"] * max(widths) // 4,),),
                    dtypes=(torch.float32,),
                    mamba_cache_mode="align" if keeps else "none",
                    num_speculative_blocks=(engine["spec"] or {"k": 0})["k"],
                    **({SAVED: 1, "prefill_checkpoint_alignment": 1} if saves(run) else {}),
                )
            elif run["kind"] == "ring":
                one = {**shape, "num_kv_heads": 1}
                spec = kv_cache_interface.CircularBufferSpec(**one, dcp_sharded=False)
            elif run["kind"] == "chunked_local_attention":
                spec = ChunkedLocalAttentionSpec(**shape, attention_chunk_size=run["chunk"])
            else:
                spec = FullAttentionSpec(**shape)
            specs[f"layer{len(specs)}"] = spec
    return specs


def saves(run: dict[str, Any]) -> bool:
    """Return whether layers save a state inside a piece of a prefill, if that release can."""
    return bool(run.get("saves_inside")) and SAVED in {field.name for field in fields(MambaSpec)}


def looks_up(spec: dict[str, Any] | None) -> bool:
    """Return whether drafts are looked up on a GPU."""
    return spec is not None and spec["method"] == "ngram_gpu"


def choose_runner(*, is_second: bool) -> None:
    """Have the second model runner where it is taken but on a CPU, else what vLLM takes here."""
    os.environ.pop("VLLM_USE_V2_MODEL_RUNNER", None)
    if is_second:
        os.environ["VLLM_USE_V2_MODEL_RUNNER"] = "1"


def vllm_config(engine: dict[str, Any]) -> VllmConfig:
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
    limits = {name: engine[name] for name in same if name not in LACKING}
    if engine.get("prefill_schedule_interval"):
        limits["prefill_schedule_interval"] = engine["prefill_schedule_interval"]
    if engine.get("max_num_scheduled_tokens"):
        limits["max_num_scheduled_tokens"] = engine["max_num_scheduled_tokens"]
    if engine["max_num_active_seqs"] and "max_num_active_seqs" not in LACKING:
        limits["max_num_active_seqs"] = engine["max_num_active_seqs"]
    size = engine["block_size"]
    cache = CacheConfig(block_size=size, enable_prefix_caching=engine["enable_prefix_caching"])
    kinds = [run["kind"] for run in engine.get("kv_groups") or ()]
    if "state" in kinds and engine["enable_prefix_caching"]:
        cache.mamba_cache_mode = "align"
    spec, stages = engine["spec"], engine.get("pipeline_parallel_size", 1)
    choose_runner(is_second=looks_up(spec) and VERSION >= (0, 33))  # 0.32 asks for a GPU here
    config = VllmConfig(
        model_config=target,
        scheduler_config=SchedulerConfig(is_encoder_decoder=False, **limits),
        cache_config=cache,
        device_config=DeviceConfig("cpu"),
        speculative_config=speculative_config(spec, model, target) if spec else None,
        lora_config=LoRAConfig(max_loras=engine["max_loras"]) if engine.get("max_loras") else None,
    )
    if spec and spec["method"] in HEADS:
        config.speculative_config.method = spec["method"]  # all that the scheduler looks at
    if spec and spec.get(MODULES):
        setattr(config.speculative_config.draft_model_config.hf_config, MODULES, spec[MODULES])
    if spec and spec.get("parallel_drafting"):
        config.speculative_config.parallel_drafting = True
    if spec and spec.get("disable_lookahead_block_hashes"):
        config.speculative_config.disable_lookahead_block_hashes = True
    config.scheduler_config.async_scheduling = engine["async_scheduling"]
    config.parallel_config.pipeline_parallel_size = stages
    config.parallel_config.data_parallel_size = engine.get("data_parallel_size", 1)
    config.parallel_config.decode_context_parallel_size = engine.get(
        "decode_context_parallel_size", 1
    )
    choose_runner(is_second=stages > 1 or looks_up(spec))
    drops = spec is not None and spec["method"] in HEADS
    # What VllmConfig decides by the model's config.json, which here is another's.
    config.scheduler_config.disable_hybrid_kv_cache_manager = (
        drops and "chunked_local_attention" in kinds
    )
    cache.num_gpu_blocks = engine["num_blocks"]
    cache.kv_cache_layout = "BLHNC" if "ring" in kinds else "LBNHC"  # as its backend has it
    return config


def needs_of(engine: dict[str, Any]) -> Needs:
    config = vllm_config({**engine, "num_blocks": 2})
    specs = [group.kv_cache_spec for group in get_kv_cache_groups(config, layer_specs(engine))]
    return Needs(
        math.lcm(*(spec.block_size for spec in specs)),
        has_windows(specs),
        sum(spec.max_memory_usage_bytes(config) // spec.page_size_bytes for spec in specs),
    )


def retention(engine: dict[str, Any], groups: list[Any]) -> dict[str, Any]:
    """The option as KVCacheConfig has it; before 0.29 it comes from the environment."""
    name, interval = RETENTION, engine.get(RETENTION, 0)
    if name in {field.name for field in fields(KVCacheConfig)}:
        return {name: interval}
    os.environ.pop(f"VLLM_{name.upper()}", None)
    if interval is not None and has_windows([group.kv_cache_spec for group in groups]):
        os.environ[f"VLLM_{name.upper()}"] = str(interval)
    return {}


def has_windows(specs: list[KVCacheSpec]) -> bool:
    return any(isinstance(spec, SlidingWindowSpec | MambaSpec) for spec in specs)


def make_scheduler(engine: dict[str, Any]) -> Scheduler:
    config = vllm_config(engine)
    layers = layer_specs(engine)
    groups = get_kv_cache_groups(config, layers)
    if VERSION >= (0, 33) and config.speculative_config:  # as its planning does
        for group in groups:
            drafts = config.speculative_config.use_eagle_block_drop()
            group.is_eagle_group = drafts and next(reversed(layers)) in group.layer_names
    kv_config = KVCacheConfig(
        num_blocks=engine["num_blocks"],
        kv_cache_tensors=[],
        kv_cache_groups=groups,
        **retention(engine, groups),
    )
    for group in kv_config.kv_cache_groups:  # as generate_scheduler_kv_cache_config does
        alike = getattr(group.kv_cache_spec, "kv_cache_specs", None)
        if alike:
            group.kv_cache_spec = next(iter(alike.values()))
    block_size, hash_block_size = resolve_kv_cache_block_sizes(kv_config, config)
    scheduler = (AsyncScheduler if engine["async_scheduling"] else Scheduler)(
        vllm_config=config,
        kv_cache_config=kv_config,
        structured_output_manager=StructuredOutputManager(config),
        block_size=block_size,
        hash_block_size=hash_block_size,
        log_stats=True,
    )
    if hasattr(scheduler, "can_skip_drafts"):  # likewise, 0.33
        scheduler.can_skip_drafts = scheduler.num_lookahead_tokens > 0
    return scheduler


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
            further = getattr(self.scheduler, "num_hash_lookahead_tokens", None)  # 0.33
            options = {} if further is None else {"num_hash_lookahead_tokens": further}
            self.hasher = get_request_block_hasher(
                self.scheduler.hash_block_size, sha256, **options
            )
        self.clock = self.next_row = self.num_passes = 0
        self.stages = [0] * self.engine.get("pipeline_parallel_size", 1)  # when each is free
        self.ready: dict[str, int] = {}  # when the last sampled token is there
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
        self.add_new()
        self.abort()

    def abort(self) -> None:
        """Finish what clients have gone from, as the core does before a step and after it."""
        gone = [
            row for row in self.rows[: self.next_row] if row.get("abort_ns", math.inf) <= self.clock
        ]
        for row in sorted(gone, key=lambda row: row["abort_ns"]):
            self.scheduler.finish_requests(row["id"], RequestStatus.FINISHED_ABORTED)

    def add_new(self) -> None:
        while self.next_row < len(self.rows):
            row, number = self.rows[self.next_row], self.next_row
            if row["arrival_ns"] > self.clock:
                return
            if row.get("abort_ns", math.inf) <= self.clock:
                self.next_row += 1  # before the core has heard of it
                continue
            prompt = row.get("prompt_token_ids") or [
                token(self.seed, PROMPT, number, position) for position in range(row["prompt_len"])
            ]
            request = Request(
                request_id=row["id"],
                prompt_token_ids=prompt,
                sampling_params=SamplingParams(
                    max_tokens=row["max_tokens"],
                    ignore_eos=True,
                    stop_token_ids=[token(self.seed, OUTPUT, number, row["stop_after"] - 1)]
                    if row.get("stop_after")
                    else None,
                ),
                pooling_params=None,
                arrival_time=float(row["arrival_ns"]),
                priority=row.get("priority", 0),
                lora_request=LoRARequest(f"adapter-{row['lora']}", row["lora"], "/nowhere")
                if row.get("lora")
                else None,
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

    def throttled(self) -> dict[str, bool]:
        """What the core of a rank that shares experts says of a step; nothing if it is no rank."""
        if "data_parallel_size" not in self.engine:
            return {}
        return {
            "throttle_prefills": self.num_passes % self.engine["prefill_schedule_interval"] != 0
        }

    def schedule(self) -> tuple[Any, dict[str, Any], int]:
        preempted: list[str] = []
        original = self.scheduler._preempt_request

        def spy(request: Request, *args: Any, **kwargs: Any) -> None:
            preempted.append(request.request_id)
            original(request, *args, **kwargs)

        self.scheduler._preempt_request = spy
        output = self.scheduler.schedule(**self.throttled())
        self.scheduler._preempt_request = original
        self.num_passes += output.total_num_scheduled_tokens > 0
        index, cached = len(self.steps), output.scheduled_cached_reqs
        if index > MOST_STEPS:
            raise DoesNotEndError
        computed = {new.req_id: new.num_computed_tokens for new in output.scheduled_new_reqs}
        computed |= dict(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
        scheduled = []
        for name, length in output.num_scheduled_tokens.items():
            drafts = len(output.scheduled_spec_decode_tokens.get(name) or ())
            tables = self.scheduler.kv_cache_manager.get_block_ids(name)
            held = [sum(block > 0 for block in table) for table in tables]
            blocks = held if self.engine.get("kv_groups") else held[0]
            scheduled.append([name, length, drafts, computed[name], blocks])
            self.emits[index, name] = not self.requests[name].is_prefill_chunk
        ended = self.ended  # the second model runner calls those that resume new, too
        new = [entry.req_id for entry in output.scheduled_new_reqs]
        resumed = [name for name in new if "first_step" in ended[name]]
        resumed += [name for name in cached.req_ids if name in cached.resumed_req_ids]
        new = [name for name in new if name not in resumed]
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
        if getattr(output, "skip_drafts", False):  # 0.33
            step["skip_drafts"] = True
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
        self.abort()
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
                self.num_passes = 0
                continue
            output, step, time = self.schedule()
            self.clock += time
            self.update(output, step)
            if self.engine["spec"]:
                self.offer_drafts(step)

    def run_async(self) -> None:
        in_flight: deque[tuple[Any, dict[str, Any], int]] = deque()
        while True:
            self.add_arrivals()
            if self.scheduler.has_requests():
                output, step, time = self.schedule()
                in_flight.append((output, step, self.end_of(step, time)))
                room = len(in_flight) < 1 + len(self.stages)
                if room and (step["sched"] or self.scheduler.has_requests()):
                    continue
            elif not in_flight:
                if self.next_row == len(self.rows):
                    return
                self.clock = self.rows[self.next_row]["arrival_ns"]
                self.num_passes = 0
                continue
            output, step, done = in_flight.popleft()
            self.clock = max(self.clock, done)
            self.update(output, step)

    def end_of(self, step: dict[str, Any], time: int) -> int:
        """Send a step through the stages; return when it is through."""
        names = [row[0] for row in step["sched"]]
        done = max([self.clock, *(self.ready.get(name, 0) for name in names)])
        for number, free_at in enumerate(self.stages):
            self.stages[number] = done = max(done, free_at) + time
        if len(self.stages) > 1:
            self.ready |= {name: done for name in names if self.emits[step["i"], name]}
        return done

    def groups(self) -> list[dict[str, Any]]:
        """The KV cache groups that vLLM has formed."""
        rows = []
        config = self.scheduler.kv_cache_config
        managers = self.scheduler.kv_cache_manager.coordinator.single_type_managers
        for group, manager in zip(config.kv_cache_groups, managers, strict=True):
            spec = getattr(group.kv_cache_spec, "first_spec", group.kv_cache_spec)
            row: dict[str, Any] = {"kind": "full_attention"}
            if isinstance(spec, SlidingWindowSpec):
                row = {"kind": "sliding_window", "window": spec.sliding_window}
            elif isinstance(spec, MambaSpec):
                row = {"kind": "state"}
            elif type(spec).__name__ == "CircularBufferSpec":
                row = {"kind": "ring"}
            elif isinstance(spec, ChunkedLocalAttentionSpec):
                row = {"kind": "chunked_local_attention", "chunk": spec.attention_chunk_size}
            row |= {"block_size": spec.block_size, "layers": len(group.layer_names)}
            if self.engine["enable_prefix_caching"]:
                row["drops_last_hit"] = manager.use_eagle
            name = "max_admission_blocks_per_request"  # before 0.31 with an underscore
            most = getattr(manager, name, None) or getattr(manager, f"_{name}", None)
            if most is not None:
                row["max_admission_blocks"] = most
            rows.append(row)
        return rows

    def log(self) -> dict[str, Any]:
        (self.run_async if self.engine["async_scheduling"] else self.run_sync)()
        return {
            "scenario": self.scenario["name"],
            "vllm_version": vllm.__version__,
            **({"derived": {"kv_groups": self.groups()}} if self.engine.get("kv_groups") else {}),
            "requests": [row for row in self.ended.values() if "finish_ns" in row],
            "steps": self.steps,
        }


def record(scenario: dict[str, Any], path: Path) -> bool:
    """Write the log of a scenario, whose own path is given, beside it; tell if there is one."""
    unknown = [name for name, off in LACKING.items() if scenario["engine"].get(name, off) != off]
    if unknown:
        print(f"{scenario['name']} has {unknown[0]}, which vLLM {vllm.__version__} does not know")
        return False
    try:
        log = Driver(scenario).log()
    except (DoesNotEndError, NotImplementedError, AssertionError, IndexError) as error:
        print(f"{scenario['name']}: {error!r}")
        return False
    target = path.with_name(path.name.replace(".scenario.", ".log."))
    target.write_text(json.dumps(log, separators=(",", ":")) + "\n")
    return True


def drawn(kind: str, seed: int) -> dict[str, Any]:
    """A random scenario of what this version knows."""
    with_layers = {
        "groups": random_groups_scenario,
        "states": random_states_scenario,
        "rings": random_rings_scenario,
        "parallel": random_parallel_scenario,
        "modules": random_modules_scenario,
        "stages": random_stages_scenario,
        "aborts": random_aborts_scenario,
        "mixed": partial(random_mixed_scenario, version=VERSION),
    }
    if kind in with_layers:
        scenario = with_layers[kind](seed, needs_of)
    else:
        draws = {
            "stops": random_stops_scenario,
            "loras": random_loras_scenario,
            "shares": random_shares_scenario,
            "cadence": random_cadence_scenario,
            "ranks": random_ranks_scenario,
            "pipeline": random_pipeline_scenario,
        }
        scenario = draws.get(kind, random_scenario)(seed)
    scenario["engine"] |= LACKING
    return scenario


def main() -> None:
    target, *seeds = sys.argv[1:]
    if not seeds:
        path = Path(target)
        for each in sorted(path.glob("*.scenario.json")) if path.is_dir() else [path]:
            record(json.loads(each.read_text()), each)
        return
    Path(target).mkdir(parents=True, exist_ok=True)
    for kind, seed in product(seeds[2:] or ["random"], range(*map(int, seeds[:2]))):
        try:
            scenario = drawn(kind, seed)
        except NotImplementedError as error:  # before 0.29: pages of layers of many widths
            print(f"{kind}-{seed}: {error!r}")
            continue
        path = Path(target) / f"{scenario['name']}.scenario.json"
        if record(scenario, path):
            path.write_text(json.dumps(scenario, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
