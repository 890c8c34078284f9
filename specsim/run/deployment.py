"""Deployment: an experiment's engine, resolved against its profile and hardware.

Everything that vLLM would find out when it starts: which limits apply on this GPU, how many KV
blocks fit, whether steps are scheduled asynchronously, and what a step costs.
"""

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from specsim.core.errors import CapacityError, ConfigError, ProfileError
from specsim.engine.config import EngineConfig
from specsim.engine.front import Front
from specsim.engine.setup import Setup
from specsim.engine.versions import OF_RANKS, SINCE
from specsim.hardware import GIB, GpuSpec, MemoryPlan, ModelShape, load_gpu, load_model
from specsim.hardware.cuda_graphs import (
    BLACKWELL_LARGEST,
    USUAL_LARGEST,
    capture_sizes,
    default_largest,
)
from specsim.hardware.kv_groups import CHUNKED, RING, STATE, KVLayout
from specsim.latency import LatencyModel
from specsim.policies import Policy
from specsim.profile import (
    NO_BLOCK,
    DraftCost,
    LayersOf,
    Profile,
    StepCosts,
    block_len,
    kv_layers,
    layer_bytes,
    load_profile,
    memory_plan,
)
from specsim.profile.costs import AdapterCost
from specsim.proposers import Proposer
from specsim.run.experiment import Experiment

_MOST_HOLDING = 4096
_SINCE_HOPPER = re.compile(r"\bH[12]\d|B[23]00|Blackwell")  # compute capabilities 9, 10 and 12


def gpus_of(engines: Iterable[tuple[Profile, Any]]) -> Counter[str]:
    """Return how many GPUs of which kind some engines have, so many of each profile.

    A number of engines may be a fraction: where they are scaled, it is a mean.
    """
    found: Counter[str] = Counter()
    for profile, number in engines:
        found[profile.gpu] += profile.num_gpus * number
    return found


@dataclass(frozen=True)
class Deployment:
    """A server that could be started."""

    engine: EngineConfig  # with every default filled in
    profile: Profile
    policy: Policy
    proposer: Proposer | None  # None if nothing is ever drafted
    max_draft_len: int
    is_async: bool
    costs: StepCosts
    believed: StepCosts  # by the policy, which may be told otherwise
    memory: MemoryPlan  # of each GPU
    layers: LayersOf | None  # as they keep KV entries; None where all keep those of all tokens

    def front(self, num_engines: int, num_requests: int) -> Front:
        overhead = self.costs.overhead
        return Front(
            overhead.front_ms * 1e-3, overhead.front_token_us * 1e-6, num_engines, num_requests
        )

    @classmethod
    def of(
        cls, experiment: Experiment, profile: Profile | None = None, believed: Profile | None = None
    ) -> "Deployment":
        """Resolve an experiment; of one with pools, the decode pool.

        A ProfileError if there is no such profile, or it is of another model, or lacks the
        proposer. A CapacityError if the model does not fit into the GPU's memory. A ConfigError if
        two limits contradict each other.

        Args:
            profile: In place of the one that ``experiment.profile`` names.
            believed: By the policy, if what it is told of step times is not what they are.
        """
        experiment = experiment.serving
        profile = profile or load_profile(experiment.profile)
        model, gpu = load_model(profile.model), load_gpu(profile.gpu)
        engine = _as_held(experiment.engine, profile, model, gpu)
        policy = experiment.effective_policy
        _check_same(engine, profile, model)
        profile = _in_lock_step(engine, profile, model)
        max_draft_len = experiment.max_draft_len
        proposer = engine.speculative_config if max_draft_len else None
        drafts = _draft_costs(profile, proposer) if proposer else ()
        on_target = () if proposer and proposer.apart else drafts
        _check_draft_lens(policy, max_draft_len, profile)
        layers = _kv_layers(engine, profile, model, gpu, on_target, proposer)
        memory = _memory(engine, profile, model, gpu, on_target, layers)
        if layers:
            engine = engine.model_copy(update={"kv_groups": layers.target + layers.drafts})
        limits = _limits(engine, profile, model, gpu, memory)
        engine = engine.resolved(proposer, max_draft_len, is_async=experiment.is_async, **limits)
        profile = _with_graphs(engine, profile, gpu, model, _decode_len(proposer, max_draft_len))
        costs = StepCosts(
            profile.target,
            _draft_costs(profile, proposer) if proposer else (),
            profile.overhead.of_engine(is_async=experiment.is_async),
            _adapter_cost(engine, profile),
            expands_batch=proposer is not None and proposer.disable_mqa_scorer,
            overlaps=proposer is not None and proposer.overlaps,
            hides_overhead=experiment.is_async,
            block=proposer.block(max_draft_len) if proposer else NO_BLOCK,
        )
        return cls(
            engine=engine,
            profile=profile,
            policy=policy,
            proposer=proposer,
            max_draft_len=max_draft_len,
            is_async=experiment.is_async,
            costs=costs,
            believed=costs if believed is None else cls.of(experiment, believed).costs,
            memory=memory,
            layers=layers,
        )

    @property
    def knows_confidences(self) -> bool:
        """Whether it is known in time how sure the drafter is of its tokens."""
        drafter = self.proposer
        has_any = drafter is None or (drafter.has_confidence and not drafter.overlaps)
        return has_any and not self.is_async

    @property
    def drafter(self) -> Profile | None:
        """Of a drafter on GPUs of its own, the profile that says how many and which they are."""
        return drafter_profile(self.proposer, self.profile)

    @property
    def is_lock_step(self) -> bool:
        """Whether data-parallel ranks make every forward pass together, as they share experts."""
        ranks = self.engine.data_parallel_size or 1
        return ranks > 1 and load_model(self.profile.model).num_experts > 0

    @property
    def decode_len(self) -> int:
        """Tokens of a decode all of whose drafts are verified."""
        return _decode_len(self.proposer, self.max_draft_len)

    @cached_property
    def setup(self) -> Setup:
        setup = self.engine.setup(
            self.proposer,
            self.max_draft_len,
            is_dynamic=self.policy.is_dynamic,
            is_async=self.is_async,
        )
        valid = self.profile.valid_range
        limits = {
            **setup.limits,
            **(self.loading_limits(setup) if self.engine.kv_offload else {}),
            "valid_context_tokens": valid.context_tokens,
            "valid_batched_tokens": valid.batched_tokens,
        }
        return replace(setup, limits=limits, stages=self.profile.stage_shares)

    def loading_limits(self, setup: Setup) -> dict[str, int]:
        """Return the limits of an engine whose blocks are loaded into, or kept to be read."""
        most, blocks = setup.limits["max_num_running"], setup.limits["num_blocks"]
        limits = {
            # Whoever holds blocks has at least one; some thousands are as good as no limit.
            "most_holding": most + min(blocks, max(4 * most, _MOST_HOLDING)),
            "has_connector": 1,
            "defers_frees": int(self.is_async),
        }
        tiers = self.engine.kv_offload
        if tiers is None:
            return limits
        self._check_offloaded(setup.kv)
        block_bytes = self.offloaded_block_bytes
        limits["offloads_outputs"] = not tiers.offload_prompt_only
        limits["host_blocks"] = tiers.num_blocks(block_bytes)
        if tiers.disk is not None:
            limits["disk_blocks"] = tiers.disk.num_blocks(block_bytes)
        return limits

    def _check_offloaded(self, kv: KVLayout) -> None:
        """Raise a ConfigError if KV tiers do not know what to do with some layers."""
        kinds = {group.kind for group in kv.groups}
        layers = self.engine.kv_groups or ()
        has_own_blocks = any(each.block_size or each.kind == RING for each in layers)
        if STATE in kinds or has_own_blocks:
            what = "keep a state" if STATE in kinds else "have blocks of their own (DeepSeek-V4)"
            raise ConfigError(
                f"engine.kv_offload: layers that {what} are not offloaded here; leave it out"
            )
        if CHUNKED in kinds:
            raise ConfigError(
                "engine.kv_offload: layers that attend in chunks are not offloaded here; set "
                "engine.disable_hybrid_kv_cache_manager to true"
            )

    @property
    def offloaded_block_bytes(self) -> float:
        """Memory of one KV block of any group in a tier, over all GPUs of a replica."""
        if self.layers is None:
            return self.engine.block_size * self.token_bytes(with_drafts=True)
        alone = self.memory.block_bytes / self.profile.fullest_share(load_model(self.profile.model))
        return self.profile.tensor_parallel_size * (alone + self.memory.draft_block_bytes)

    def token_bytes(self, *, with_drafts: bool) -> float:
        """Return the KV entries of one token in all layers, over all GPUs of a replica, bytes."""
        profile, size = self.profile, self.profile.tensor_parallel_size
        model = load_model(profile.model)
        if profile.kv_bytes_per_token is None:
            alone = model.kv_bytes_per_token_and_gpu(1)
        else:
            alone = profile.kv_bytes_per_token * size / profile.fullest_share(model)
        drafts = size * self.memory.draft_block_bytes / self.engine.block_size
        return alone + (drafts if with_drafts else 0.0)

    def kv_capacity(self, length: int) -> int:
        """Return how many tokens the KV cache holds, in sequences of a length."""
        in_flight_tokens = self.engine.in_flight_tokens(is_async=self.is_async)
        return self.setup.kv.capacity(self.setup.limits["num_blocks"], length, in_flight_tokens)

    def blocks_of(self, tokens: int) -> int:
        """Return how many KV blocks a server has that logs so many tokens of KV cache."""
        length = self.engine.max_model_len or 1
        in_flight_tokens = self.engine.in_flight_tokens(is_async=self.is_async)
        return -(-tokens * self.setup.kv.most_blocks(length, in_flight_tokens) // length)


def _adapter_cost(engine: EngineConfig, profile: Profile) -> AdapterCost:
    if engine.lora_config is None:
        return AdapterCost()
    if profile.lora is None:
        raise ConfigError(
            f"engine.lora_config: profile {profile.gpu}/{profile.model} does not say what LoRA "
            "adapters cost; state what you measured in a copy of it, such as lora: {step_ms: 1, "
            "token_us: 2, load_ms: 20, read_ms: 500}"
        )
    return profile.lora


def _check_same(engine: EngineConfig, profile: Profile, model: ModelShape) -> None:
    names = {profile.model.lower(), model.name.lower()}
    if engine.model is not None and engine.model.lower() not in names:
        raise ProfileError(
            f"engine.model = '{engine.model}', but the profile was made for '{model.name}'; choose "
            "the profile of that model or correct engine.model"
        )
    for name, short, made in (
        ("tensor", "tp", profile.tensor_parallel_size),
        ("pipeline", "pp", len(profile.stage_shares)),
        ("decode_context", "dcp", profile.decode_context_parallel_size),
    ):
        size = getattr(engine, f"{name}_parallel_size")
        if size is not None and size != made:
            raise ProfileError(
                f"engine.{name}_parallel_size = {size}, but the profile was made with {made}; "
                f"choose a profile '...-{short}{size}', or build one (--{short} {size})"
            )


def _in_lock_step(engine: EngineConfig, profile: Profile, model: ModelShape) -> Profile:
    """Return the profile of ranks that share their experts, if the engine has such."""
    ranks, is_expert_parallel = engine.data_parallel_size, bool(engine.enable_expert_parallel)
    if not model.num_experts:
        for name in OF_RANKS:
            if engine.vllm_version < SINCE[name] and getattr(engine, name):
                raise ConfigError(
                    f"engine.{name}: vLLM {engine.vllm_version} has it for ranks that share "
                    f"experts alone, and '{model.name}' has none; leave it out"
                )
        if is_expert_parallel:
            raise ProfileError(
                f"engine.enable_expert_parallel: '{model.name}' has no experts; leave it out"
            )
        return profile
    if ranks is None and engine.enable_expert_parallel is None:
        return profile
    target = profile.target.in_lock_step(ranks or 1, expert_parallel=is_expert_parallel)
    return profile.model_copy(update={"target": target})


def _decode_len(proposer: Proposer | None, max_draft_len: int) -> int:
    return 1 + (proposer.verified_len(max_draft_len) if proposer else 0)


def _with_graphs(
    engine: EngineConfig, profile: Profile, gpu: GpuSpec, model: ModelShape, decode_len: int
) -> Profile:
    """Return the profile with the CUDA graphs that the engine captures, whose limits are known.

    Of vLLM V0, which captured graphs of decodes, it stays as it is unless settings name others.

    Args:
        model: Which may have a largest graph of its own by default (vLLM 0.33.0
            ``models/config.py GptOssForCausalLMConfig``).
        decode_len: Tokens of a decode, its drafts among them, for which graphs are captured.
    """
    named = engine.max_cudagraph_capture_size
    most = BLACKWELL_LARGEST if gpu.is_sm100 else USUAL_LARGEST
    largest = model.max_cudagraph_capture_size or default_largest(
        engine.max_num_seqs or 1, decode_len, most
    )
    if engine.scheduler == "prefill_first":
        largest = USUAL_LARGEST
    default = capture_sizes(min(largest, engine.max_num_batched_tokens or largest))
    sizes = None if named is None else capture_sizes(named)
    if engine.enforce_eager:
        sizes = ()
    target = profile.target.in_graphs(sizes, default)

    def captured(latency: LatencyModel | None) -> LatencyModel | None:
        if latency is None or not latency.knows_graphs:
            return latency
        return latency.in_graphs(sizes if latency.leaves_graphs or not sizes else None, default)

    drafts = {
        name: cost.model_copy(update={"latency": captured(cost.latency)})
        for name, cost in profile.drafts.items()
    }
    return profile.model_copy(update={"target": target, "drafts": drafts})


def drafter_profile(proposer: Proposer | None, target: Profile) -> Profile | None:
    """Return the profile of a drafter with GPUs of its own.

    A ProfileError if there is none, or its steps are those of a server that drafted itself.
    """
    if proposer is None or proposer.apart is None:
        return None
    name = proposer.apart.profile
    if name is None:
        return target
    own = load_profile(name)
    if own.only_draft_lens is not None and 0 not in own.only_draft_lens:
        raise ProfileError(
            f"engine.speculative_config.own_gpus.profile = '{name}': was fitted to steps that "
            "include drafting of its own (only_draft_lens); name one of the model by itself"
        )
    return own


def _draft_costs(profile: Profile, proposer: Proposer) -> tuple[DraftCost, ...]:
    apart, own = proposer.apart, drafter_profile(proposer, profile)
    if apart is None or own is None:
        return _profiled_costs(profile, proposer)
    if own is profile:
        (given,) = _profiled_costs(profile, proposer)
    else:
        given = DraftCost(latency=own.target.as_drafter())
    link = {"step_ms": given.step_ms + apart.step_ms, "token_us": given.token_us + apart.token_us}
    return (given.model_copy(update=link),)


def how_to_cost(profile: Profile, key: str, proposer: type[Proposer]) -> str:
    """Return how a profile gets what drafting takes with a proposer."""
    is_ours = proposer.__module__.startswith("specsim.")  # `profile build` knows no others
    if not (proposer.is_model and is_ours):
        return f"a copy of it with `{key}: {{token_us: 20}}` (microseconds) under 'drafts'"
    size = profile.tensor_parallel_size
    parallel = f" --tp {size}" if size > 1 else ""
    return (
        f"specsim profile build --model {profile.model} --gpu {profile.gpu}{parallel} "
        f"--draft {key}=DRAFTER --out FILE"
    )


def _profiled_costs(profile: Profile, proposer: Proposer) -> tuple[DraftCost, ...]:
    found = []
    for key in proposer.cost_keys:
        cost = profile.draft_cost(key)
        if cost is None:
            known = ", ".join(profile.drafts) or "none"
            what = "method" if key == proposer.own_name else "draft model"
            raise ProfileError(
                f"engine.speculative_config: the profile of {profile.model} on {profile.gpu} has "
                f"no drafting cost for {what} '{key}' (it has: {known}); use one that it has, or a "
                f"profile that has this one: {how_to_cost(profile, key, type(proposer))}"
            )
        found.append(cost.of_modules(proposer.num_modules))
    return tuple(found)


def _check_draft_lens(policy: Policy, max_draft_len: int, profile: Profile) -> None:
    """Refuse draft lengths that the profile says nothing of."""
    known = profile.only_draft_lens
    if known is None:
        return
    may_choose = range(max_draft_len + 1) if policy.is_dynamic else (max_draft_len,)
    unknown = [k for k in may_choose if k not in known]
    if unknown:
        lens = ", ".join(map(str, known))
        best = f"policy static with k = {max(known)}" if max(known) else "policy off"
        raise ProfileError(
            f"policy '{policy.kind}' may draft {unknown[0]} tokens, but the profile of "
            f"{profile.model} on {profile.gpu} knows the draft lengths {lens} only "
            f"(only_draft_lens); use {best}, or fit a profile to runs of several "
            "lengths, 0 among them"
        )


def _saved_unit(engine: EngineConfig, model: ModelShape, gpu: GpuSpec) -> int:
    """Return to whose multiples blocks are rounded to save states inside a piece; 0: none is.

    Kimi-K3 and GLM-5.3-Flash have bounded gates, which FlashKDA wants, and Kimi-Linear has not.

    References:
        vLLM 0.33.0 ``layers/mamba/mamba_mixer2.py get_kv_cache_spec``,
        ``layers/mamba/gdn/qwen_gdn_linear_attn.py get_prefill_checkpoint_alignment``,
        ``models/kimi_k3/nvidia/kda.py is_flashkda_supported``.
    """
    if any(each.kind in ("mamba", "hybrid") for each in model.layers):
        return 0 if model.mamba_dt_rank else 1
    if not (model.state_layers and _SINCE_HOPPER.search(gpu.name)):
        return 0
    if model.linear_decay_rank:
        return 0 if model.linear_gate_rank and model.index_kpool == 1 else 1
    return 64 if engine.rules.delta_nets_save_inside else 0


def _as_held(
    engine: EngineConfig, profile: Profile, model: ModelShape, gpu: GpuSpec
) -> EngineConfig:
    """Return the engine with as many tokens in a block as vLLM gives it."""
    unit = _saved_unit(engine, model, gpu) if engine.enable_prefix_caching else 0
    size = block_len(profile, model, engine.block_size, unit or 1)
    return engine if size == engine.block_size else engine.model_copy(update={"block_size": size})


def _kv_layers(
    engine: EngineConfig,
    profile: Profile,
    model: ModelShape,
    gpu: GpuSpec,
    drafts: tuple[DraftCost, ...],
    proposer: Proposer | None,
) -> LayersOf | None:
    """Return the layers as they keep KV entries: those of the configuration, or of the model."""
    layers = kv_layers(profile, model, drafts)
    if layers and _saved_unit(engine, model, gpu):
        target = [
            each.model_copy(update={"saves_inside": each.kind == STATE}) for each in layers.target
        ]
        layers = layers._replace(target=tuple(target))
    if engine.kv_groups is not None:
        given = {"bytes_per_token": layer_bytes(profile, model)}
        groups = engine.kv_groups
        own = (each if each.bytes_per_token else each.model_copy(update=given) for each in groups)
        layers = LayersOf(tuple(own), ())
    if layers is None:
        return None
    if (shares := profile.decode_context_parallel_size) > 1:
        raise ProfileError(
            f"decode_context_parallel_size = {shares}: how KV blocks of several groups, or of "
            "layers with windows, are shared out is not simulated; leave it out of the profile, or "
            "engine.kv_groups out"
        )
    kept = engine.kv_layers(layers.target + layers.drafts, proposer)
    return LayersOf(kept[: len(layers.target)], kept[len(layers.target) :])


def _memory(
    engine: EngineConfig,
    profile: Profile,
    model: ModelShape,
    gpu: GpuSpec,
    drafts: tuple[DraftCost, ...],
    layers: LayersOf | None,
) -> MemoryPlan:
    plan = memory_plan(
        profile,
        model,
        gpu,
        drafts,
        block_size=engine.block_size,
        gpu_memory_utilization=engine.gpu_memory_utilization,
        data_parallel_size=engine.data_parallel_size or 1,
    )
    if (room := engine.kv_cache_memory_bytes) is not None:
        plan = replace(plan, usable_bytes=room + plan.taken_bytes)
        if plan.usable_bytes > plan.total_bytes:
            raise CapacityError(
                f"engine.kv_cache_memory_bytes = {room}: with weights and activations of "
                f"{plan.taken_bytes / GIB:.1f} GiB that is more than the {gpu.memory_gib:g} GiB of "
                f"{gpu.name}; use less, or leave it out"
            )
    if layers is None:
        return plan
    share = profile.fullest_share(model)
    alone, added = layers.block_bytes(engine.block_size, share)
    return replace(plan, block_bytes=alone, draft_block_bytes=added)


def _limits(
    engine: EngineConfig, profile: Profile, model: ModelShape, gpu: GpuSpec, memory: MemoryPlan
) -> dict[str, Any]:
    max_model_len = engine.max_model_len or model.max_position_embeddings
    if engine.scheduler == "prefill_first":  # defaults of vLLM 0.6
        batched_tokens, seqs = max(2048, max_model_len), 256
    else:  # vLLM 0.33.0 ``arg_utils.py _set_default_max_num_seqs_and_batched_tokens_args``
        batched_tokens, seqs = _default_batch(gpu)
        if not engine.enable_chunked_prefill:
            batched_tokens = max(batched_tokens, max_model_len)
        seqs = min(seqs, engine.max_num_batched_tokens or batched_tokens)
    blocks = engine.num_gpu_blocks
    return {
        "model": model.name,
        "tensor_parallel_size": profile.tensor_parallel_size,
        "pipeline_parallel_size": len(profile.stage_shares),
        "max_num_seqs": seqs,
        "max_num_batched_tokens": batched_tokens,
        "max_model_len": max_model_len,
        "num_gpu_blocks": memory.num_blocks() if blocks is None else blocks,
    }


def _default_batch(gpu: GpuSpec) -> tuple[int, int]:
    """Return both limits by vLLM 0.32.0, ``engine/arg_utils.py get_batch_defaults``."""
    if gpu.memory_gib >= 160:
        return 16384, 1024
    if gpu.memory_gib >= 70 and "a100" not in gpu.name.lower():
        return 8192, 1024
    return 2048, 256
