"""EngineConfig: the engine's settings, under vLLM's own names and defaults."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from specsim.core.errors import CapacityError, ConfigError
from specsim.core.settings import Settings
from specsim.engine.adapters import LoraConfig
from specsim.engine.engine_limits import IDLE, NOT_SKIPPED, SKIPPED
from specsim.engine.setup import Setup
from specsim.engine.transfer import OffloadConfig
from specsim.engine.versions import (
    DEFAULT_VERSION,
    NO_LIMITS,
    OF_RANKS,
    RULES,
    SINCE,
    Rules,
    VllmVersion,
)
from specsim.hardware.kv_groups import (
    CHUNKED,
    FULL,
    SLIDING,
    STATE,
    KVLayers,
    KVLayout,
    StateBlocks,
    as_full_attention,
    kv_layout,
    one_group,
)
from specsim.profile.profile import BLOCK_SIZE, GPU_MEMORY_UTILIZATION
from specsim.proposers import PROPOSERS, Proposer

Count = Annotated[int, Field(gt=0, le=2**31)]
Sequences = Annotated[int, Field(gt=0, le=1 << 20)]
_MOST_GROUPS = 256  # that keys of blocks can tell apart
_STAGES_SINCE = "0.31"  # from which on vLLM's second model runner has all drafters in them


class EngineConfig(Settings):
    """Settings of one engine.

    Names, meanings and defaults are those of ``vllm serve`` 0.33.0 for an 8B text model on one
    GPU (``config/scheduler.py``, ``config/cache.py``, ``engine/arg_utils.py``), so that the flags
    of a deployment can be pasted in.
    """

    model: str | None = None
    """By default the profile's model; an error if it is another one."""
    tensor_parallel_size: Count | None = None
    """By default the profile's; an error if it differs."""
    pipeline_parallel_size: Count | None = None
    """By default the profile's; an error if it differs."""
    decode_context_parallel_size: Count | None = None
    """By default the profile's; an error if it differs."""
    data_parallel_size: Count | None = None
    """Number of ranks, each with its own scheduler and KV cache, by default 1. With a mixture of
    experts, ranks share the experts and make every forward pass together."""
    enable_expert_parallel: bool | None = None
    """If true, each GPU of a mixture of experts holds some experts whole, not a slice of all."""
    vllm_version: VllmVersion = DEFAULT_VERSION
    """vLLM version whose scheduler rules apply; no effect on scheduler ``prefill_first``."""
    scheduler: Literal["v1", "prefill_first"] = "v1"
    """``prefill_first`` is vLLM V0: waiting prompts run first, whole, in a step of their own."""
    max_num_seqs: Sequences | None = None
    """By default 1024 on GPUs of 70 GiB and more other than the A100, else 256; no more than
    max_num_batched_tokens."""
    max_num_active_seqs: Sequences | None = None
    """Caps the running sequences in place of max_num_seqs."""
    max_num_batched_tokens: Count | None = None
    """By default 16384 on GPUs of 160 GiB and more, 8192 from 70 GiB (not A100), else 2048; no less
    than max_model_len without chunked prefill."""
    max_num_scheduled_tokens: Count | None = None
    """By default max_num_batched_tokens."""
    max_model_len: Count | None = None
    """By default the model's max_position_embeddings."""
    block_size: Count = BLOCK_SIZE
    num_gpu_blocks: Annotated[int, Field(ge=2, le=1 << 26)] | None = None
    """KV blocks, the null block included; by default what fits into the GPU's memory."""
    gpu_memory_utilization: Annotated[float, Field(gt=0, le=1)] = GPU_MEMORY_UTILIZATION
    kv_cache_memory_bytes: Annotated[int, Field(gt=0, le=1 << 50)] | None = None
    """Memory of each GPU for KV blocks, in place of what `gpu_memory_utilization` leaves."""
    kv_groups: Annotated[tuple[KVLayers, ...], Field(min_length=1)] | None = None
    """Attention layers from which KV cache groups are formed, in the model's order, a drafter's
    last; by default those of the profile's model, and one group with ``prefill_first``."""
    disable_hybrid_kv_cache_manager: bool | None = None
    """If true, layers with a window keep the KV entries of all tokens, as full attention does."""
    enable_prefix_caching: bool = True
    kv_offload: OffloadConfig | None = None
    """Offloading of KV blocks to host memory and disk, from which later requests load them (vLLM:
    ``--kv-transfer-config`` with OffloadingConnector)."""
    prefix_cache_retention_interval: (
        Annotated[int, Field(ge=0, le=2**31)] | Literal["dense"] | None
    ) = None
    """With sliding windows, distance in tokens between the places at which a prefix can be hit,
    besides the end of each prompt; by default 0: only there. ``dense``: wherever a hit may end
    (vLLM: null, which was the default until 0.28)."""
    enable_chunked_prefill: bool = True
    async_scheduling: bool | None = None
    """By default on, unless the drafting method or the scheduler rules it out."""
    long_prefill_token_threshold: Annotated[int, Field(ge=0, le=2**31)] = 0
    long_prefill_token_threshold_adaptive: bool = False
    prefill_schedule_interval: Count | None = None
    """While requests decode, only one step in this many may read prompts; by default 1: every step.
    Ranks that share experts read prompts in the same steps; before 0.33 only those have it."""
    scheduler_reserve_full_isl: bool = True
    watermark: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Share of the KV blocks that admissions leave free; V0 used 0.01."""
    scheduling_policy: Literal["fcfs", "priority"] = "fcfs"
    enforce_eager: bool = False
    """If true, there are no CUDA graphs: the host launches each kernel of each pass."""
    max_cudagraph_capture_size: Count | None = None
    """Batched tokens of the largest CUDA graph; in larger steps the host launches each kernel. By
    default twice the tokens of a step in which max_num_seqs sequences decode, drafts included, at
    most 512, and 1024 on B200 and B300."""
    drafter_serves_all: bool = False
    """If true, the drafter reads every request, as in vLLM V1. Else a policy may drop requests from
    the drafter for good, which saves its passes, as V0 did with `disable_by_batch_size`."""
    lora_config: LoraConfig | None = None
    """For requests with LoRA adapters; the profile must have their costs."""
    speculative_config: Annotated[Proposer, PROPOSERS] | None = None
    """vLLM's own JSON: ``{method: eagle3, num_speculative_tokens: 5}``."""

    @model_validator(mode="after")
    def _check_offload(self) -> Self:
        if self.kv_offload is None:
            return self
        if not self.enable_prefix_caching or self.scheduler == "prefill_first":
            raise ValueError(
                "kv_offload: only blocks of the prefix cache of vLLM V1 are offloaded; set "
                "enable_prefix_caching to true, and leave scheduler out"
            )
        if (self.data_parallel_size or 1) > 1:
            raise ValueError("kv_offload of data-parallel ranks is not simulated; use replicas")
        return self

    @model_validator(mode="after")
    def _check_lora(self) -> Self:
        others = {
            "scheduler prefill_first": self.scheduler == "prefill_first",
            "data_parallel_size": (self.data_parallel_size or 1) > 1,
        }
        if self.lora_config is not None and any(others.values()):
            found = next(name for name, is_given in others.items() if is_given)
            raise ValueError(
                f"lora_config: LoRA adapters with {found} are not simulated; leave one out"
            )
        return self

    @model_validator(mode="after")
    def _check_cadence(self) -> Self:
        if (self.prefill_schedule_interval or 1) > 1 and self.scheduler == "prefill_first":
            raise ValueError(
                "prefill_schedule_interval with scheduler prefill_first is not simulated; leave "
                "one out"
            )
        return self

    @model_validator(mode="after")
    def _check_states(self) -> Self:
        kinds = {each.kind for each in self.kv_groups or ()}
        if kinds == {STATE}:
            raise ValueError("kv_groups: all layers keep a state; name one that attends, too")
        return self

    @model_validator(mode="after")
    def _check_version(self) -> Self:
        for name, version in SINCE.items():
            is_of_ranks = name in OF_RANKS and (self.data_parallel_size or 1) > 1
            if self.vllm_version < version and getattr(self, name) and not is_of_ranks:
                raise ValueError(
                    f"{name}: vLLM has it since {version}, not in vllm_version "
                    f"{self.vllm_version}; leave it out"
                )
        proposer, rules = self.speculative_config, self.rules
        if proposer and proposer.disable_lookahead_block_hashes and not rules.hashes_look_ahead:
            raise ValueError(
                "speculative_config.disable_lookahead_block_hashes: there are none in vLLM "
                f"{'V0' if self.scheduler == 'prefill_first' else self.vllm_version}; leave it out"
            )
        if proposer and proposer.looks_up_on_gpu and not rules.looks_up_on_gpu:
            raise ValueError(
                f"speculative_config.method = {proposer.method}: as vLLM's second model runner "
                "looks n-grams up, since 0.32; leave scheduler and vllm_version out"
            )
        return self

    @model_validator(mode="after")
    def _check_combination(self) -> Self:
        if self.scheduler == "prefill_first":
            if (self.data_parallel_size or 1) > 1:
                raise ValueError(
                    f"data_parallel_size = {self.data_parallel_size}: prefill_first (vLLM V0) has "
                    "no ranks; use replicas, or leave scheduler out"
                )
            if self.async_scheduling:
                raise ValueError("async_scheduling: prefill_first (vLLM V0) has none; set it false")
            if self.long_prefill_token_threshold:
                raise ValueError(
                    "long_prefill_token_threshold: prefill_first (vLLM V0) runs prompts whole"
                )
            if any(layers.kind != FULL for layers in self.kv_groups or ()):
                raise ValueError(
                    "kv_groups: prefill_first (vLLM V0) keeps all tokens in every layer; leave "
                    "windows, chunks and states out"
                )
        elif self.speculative_config and self.speculative_config.disable_mqa_scorer:
            raise ValueError(
                "speculative_config.disable_mqa_scorer: only vLLM V0 has it; set scheduler to "
                "prefill_first or leave it out"
            )
        proposer = self.speculative_config
        is_plain = self.scheduler == "v1" and (self.data_parallel_size or 1) == 1
        if proposer and proposer.overlaps and (self.async_scheduling or not is_plain):
            raise ValueError(
                "speculative_config.own_gpus.overlaps: simulated beside synchronous scheduling of "
                "one engine only; leave async_scheduling, scheduler and data_parallel_size out"
            )
        if self.async_scheduling and proposer is not None and not proposer.supports_async:
            on_gpu = f"; on a GPU it is {proposer.on_gpu}" if proposer.on_gpu else ""
            raise ValueError(
                f"async_scheduling: vLLM does not combine it with method '{proposer.method}'; "
                f"set it false or leave it out{on_gpu}"
            )
        return self

    @model_validator(mode="after")
    def _check_at_once(self) -> Self:
        proposer = self.speculative_config
        if proposer and proposer.drafts_at_once and self.scheduler == "prefill_first":
            raise ValueError(
                "speculative_config: vLLM's V0 has no parallel drafting; leave out scheduler, or "
                "take a method that drafts token by token"
            )
        return self

    @property
    def rules(self) -> Rules:
        """Scheduler rules of the version; for vLLM V0 those of the oldest one."""
        if self.scheduler == "prefill_first":
            return RULES[min(RULES)]
        return RULES[self.vllm_version]

    def behind_connector(self) -> Self:
        """Return a copy for use with a KV connector, with which block hashes do not look ahead."""
        proposer = self.speculative_config
        if proposer is None or not self.rules.hashes_look_ahead:
            return self
        legacy = proposer.model_copy(update={"disable_lookahead_block_hashes": True})
        return self.model_copy(update={"speculative_config": legacy})

    def _version_limits(
        self, proposer: Proposer | None, lookahead_len: int, max_draft_len: int
    ) -> dict[str, int]:
        """Return the limits that follow from the vLLM version."""
        rules = self.rules
        drops = proposer is not None and proposer.drops_last_hit and not self._is_apart(proposer)
        looks_ahead = (
            rules.hashes_look_ahead
            and drops
            and self.enable_prefix_caching
            and self.kv_offload is None
            and not (proposer and proposer.disable_lookahead_block_hashes)
        )
        skips = (
            (IDLE if drops else SKIPPED) if rules.skips_drafts and lookahead_len else NOT_SKIPPED
        )
        is_v0 = self.scheduler == "prefill_first"
        reread_len = proposer.reread_len(max_draft_len) if proposer and not is_v0 else 0
        return {
            **{name: rule for name, rule in rules._asdict().items() if name not in NO_LIMITS},
            "drops_last_hit": drops and not looks_ahead,
            "hash_lookahead_len": looks_ahead * (1 + reread_len),  # as far as such a drafter reads
            "reread_len": reread_len,
            "drops_in_last": rules.drops_where_drafted
            or (rules.drops_in_last and proposer is not None and proposer.drops_in_last_group),
            "drops_stored": drops and self._drops_stored(proposer),
            "publishes_outputs": rules.publishes_outputs and proposer is not None,
            "skips_drafts": skips,
        }

    def _drops_stored(self, proposer: Proposer | None) -> bool:
        """Return whether the last stored block of a drafter's layers is not loaded from tiers."""
        if self.rules.drops_stored:
            return True
        is_told_apart = self.rules.drops_in_last and proposer and proposer.drops_in_last_group
        return bool(is_told_apart) and self.kv_layout(proposer).is_hybrid

    def _is_apart(self, proposer: Proposer) -> bool:
        return proposer.has_own_pass and self.rules.keeps_blocks_apart

    def kv_layers(
        self, layers: Sequence[KVLayers], proposer: Proposer | None
    ) -> tuple[KVLayers, ...]:
        """Return layers as they keep KV entries in this engine.

        Args:
            layers: As they attend.
            proposer: None if nothing is ever drafted.
        """
        drops = proposer is not None and proposer.drops_last_hit
        is_off = self.disable_hybrid_kv_cache_manager or self.scheduler == "prefill_first"
        # vLLM combines no drafter that drops hits with chunked local attention.
        if is_off or (drops and any(each.kind == CHUNKED for each in layers)):
            return as_full_attention(layers)
        return tuple(layers)

    def kv_layout(self, proposer: Proposer | None, max_draft_len: int = 0) -> KVLayout:
        """Return the KV cache groups; a single one where `kv_groups` is None.

        A state is kept after each draft that a step may verify, of a tree after each node.
        """
        if self.kv_groups is None:
            return one_group(self.block_size)
        whole_len = None if self.enable_prefix_caching else self.max_model_len
        num_spare = proposer.verified_len(max_draft_len) if proposer else 0
        mine = [each.saves_inside for each in self.kv_groups if each.kind == STATE]
        saves_inside = all(mine) and self.enable_prefix_caching and self.rules.saves_inside
        states = StateBlocks(whole_len or self.block_size, num_spare, saves_inside)
        return kv_layout(self.kv_layers(self.kv_groups, proposer), self.block_size, states)

    def resolved(
        self, proposer: Proposer | None, max_draft_len: int, *, is_async: bool, **defaults: Any
    ) -> "EngineConfig":
        """Return a copy in which fields that are None have their values for the hardware.

        Args:
            proposer: None if nothing is ever drafted.
            max_draft_len: Longest draft of the policy, of trees the nodes, tokens.
            is_async: Whether steps are scheduled while others run.
            defaults: By the names of the fields.

        Raises:
            ConfigError: Two limits contradict each other.
            CapacityError: The blocks cannot hold one request of max_model_len tokens.
        """
        missing = {name: value for name, value in defaults.items() if getattr(self, name) is None}
        config = self.model_copy(update=missing)
        config._check_limits()
        config._check_pipeline(
            proposer, is_async=is_async, has_blocks=self.num_gpu_blocks is not None
        )
        layout = config.kv_layout(proposer, max_draft_len)
        config._check_groups(layout)
        config._check_blocks(layout, is_async=is_async)
        return config

    def in_flight_tokens(self, *, is_async: bool) -> int:
        """Return the most tokens of one sequence in steps that are in flight."""
        steps = 1 + (self.pipeline_parallel_size or 1) if is_async else 1
        return (self.max_num_batched_tokens or 0) * steps

    def _check_pipeline(
        self, proposer: Proposer | None, *, is_async: bool, has_blocks: bool
    ) -> None:
        """Raise a ConfigError if stages are beside what is not simulated with them."""
        if (self.pipeline_parallel_size or 1) == 1:
            return
        others = {
            "drafts that wait for the host": proposer is not None and not proposer.supports_async,
            "parallel drafting of an EAGLE head or a draft model": proposer is not None
            and proposer.drafts_at_once
            and not proposer.has_own_pass,
            "a drafter on GPUs of its own": proposer is not None and proposer.apart is not None,
            "adaptive verification": proposer is not None and proposer.enable_adaptive_verification,
            "scheduler prefill_first": self.scheduler == "prefill_first",
            "async_scheduling false": self.async_scheduling is False,
            "a policy that sees each step's outcome before the next (async_scheduling: true lets "
            "it do without, if it can)": not is_async,
            "data_parallel_size": (self.data_parallel_size or 1) > 1,
            "KV cache groups, without num_gpu_blocks,": self.kv_groups is not None
            and not has_blocks,
            f"vllm_version {self.vllm_version}": self.vllm_version < _STAGES_SINCE,
        }
        for name, is_given in others.items():
            if is_given:
                raise ConfigError(
                    f"engine.pipeline_parallel_size = {self.pipeline_parallel_size}: stages with "
                    f"{name} are not simulated; leave it out, or take a profile of one stage"
                )

    def _check_limits(self) -> None:
        batched_tokens, seqs = self.max_num_batched_tokens or 0, self.max_num_seqs or 0
        if batched_tokens < seqs:
            raise ConfigError(
                f"engine.max_num_batched_tokens = {batched_tokens} must be at least max_num_seqs = "
                f"{seqs}; raise it or lower max_num_seqs"
            )
        max_model_len = self.max_model_len or 0
        whole_prompts = self.scheduler == "prefill_first" or not self.enable_chunked_prefill
        if whole_prompts and batched_tokens < max_model_len:
            raise ConfigError(
                f"engine.max_num_batched_tokens = {batched_tokens} must be at least max_model_len "
                f"= {max_model_len} where prompts run whole; raise it or lower max_model_len"
            )
        scheduled_tokens = self.max_num_scheduled_tokens or batched_tokens
        if whole_prompts and scheduled_tokens < max_model_len:
            raise ConfigError(
                f"engine.max_num_scheduled_tokens = {scheduled_tokens} must be at least "
                f"max_model_len = {max_model_len} where prompts run whole, or those that are "
                "longer never run; raise it or leave it out"
            )

    def _check_groups(self, layout: KVLayout) -> None:
        if len(layout.groups) > _MOST_GROUPS:
            raise ConfigError(
                f"engine.kv_groups: {len(layout.groups)} groups follow from them, more than "
                f"{_MOST_GROUPS}; set disable_hybrid_kv_cache_manager"
            )
        if not self.enable_prefix_caching:
            return
        size, kept_len = layout.common_block_size, self.prefix_cache_retention_interval
        sizes = {group.block_size for group in layout.groups}
        if len(sizes) > 1 and any(group.kind == CHUNKED for group in layout.groups):
            raise ConfigError(
                "engine.kv_groups: chunked local attention beside layers of another width needs "
                f"blocks of {' and '.join(map(str, sorted(sizes)))} tokens, for which vLLM has no "
                "prefix caching; set enable_prefix_caching to false"
            )
        if not isinstance(kept_len, int) or kept_len == 0:
            return
        if not any(group.kind in (SLIDING, STATE) for group in layout.groups):
            raise ConfigError(
                f"engine.prefix_cache_retention_interval = {kept_len}: no layer has a sliding "
                "window or a state; leave it out"
            )
        if kept_len % size:
            raise ConfigError(
                f"engine.prefix_cache_retention_interval = {kept_len} must be a multiple of "
                f"{size}, after which blocks of all KV cache groups end"
            )

    def _check_blocks(self, layout: KVLayout, *, is_async: bool) -> None:
        blocks, max_model_len = self.num_gpu_blocks or 0, self.max_model_len or 0
        in_flight_tokens = self.in_flight_tokens(is_async=is_async)
        needed = layout.most_blocks(max_model_len, in_flight_tokens)
        if needed <= blocks - 1:
            return
        if layout.is_hybrid or layout.has_windows:
            raise CapacityError(
                f"engine.num_gpu_blocks = {blocks} are too few for one request of max_model_len = "
                f"{max_model_len}, which takes {needed} besides the null block; lower "
                "max_model_len or use more memory"
            )
        raise CapacityError(
            f"engine.num_gpu_blocks = {blocks} hold {(blocks - 1) * self.block_size} tokens, "
            f"less than one request of max_model_len = {max_model_len}; lower max_model_len "
            "or use more memory"
        )

    def _check_pieces(self, limits: dict[str, int], kv: KVLayout) -> None:
        """Raise if no piece of a prefill ever ends at a block, which states are kept at."""
        sizes = (each.block_size for each in kv.groups if each.kind == STATE)
        size, most = next(sizes, 0), limits["max_num_scheduled_tokens"]
        most = min(most, limits["long_prefill_token_threshold"] or most)
        inputs = limits["max_num_batched_tokens"] - limits["draft_slots"]
        if limits["enable_prefix_caching"] and inputs < size <= most:
            raise ConfigError(
                f"engine: a step has room for {inputs} tokens beside the drafts, and vLLM ends "
                f"pieces of a prefill at blocks of {size} tokens where it keeps states, so that a "
                "longer prompt never begins; raise max_num_batched_tokens"
            )
        if limits["reread_len"]:
            self._check_modules(limits, kv, min(inputs, most), has_states=size > 0)

    def _check_modules(
        self, limits: dict[str, int], kv: KVLayout, longest: int, *, has_states: bool
    ) -> None:
        """Raise if a prompt never ends whose last tokens several MTP modules must read together."""
        needed, field = limits["reread_len"] + 1, "engine.speculative_config"
        if has_states and limits["enable_prefix_caching"]:
            raise ConfigError(
                f"{field}.num_nextn_predict_layers: vLLM ends pieces of a prefill at blocks where "
                f"it keeps states, and leaves {needed} tokens or none behind them with several MTP "
                "modules, so that some prompts never end; set enable_prefix_caching to false"
            )
        if longest < needed:
            raise ConfigError(
                f"{field}: MTP modules that draft {needed} tokens leave as many of a prompt or "
                f"none, but a piece of it has room for {longest}; draft fewer, or raise "
                "max_num_batched_tokens and long_prefill_token_threshold"
            )
        if limits["hash_lookahead_len"] and [each.kind for each in kv.groups] == [SLIDING]:
            raise ConfigError(
                f"{field}: with several MTP modules vLLM {self.vllm_version} stops at an error of "
                "its own where it looks for cached prefixes and all layers have one sliding "
                "window; set disable_lookahead_block_hashes or enable_prefix_caching: false"
            )
        if limits["enable_prefix_caching"] and kv.common_block_size < needed:
            raise ConfigError(
                f"engine.block_size = {kv.common_block_size}: with prefix caching vLLM wants "
                f"blocks of the {needed} tokens that several MTP modules draft; raise it, or draft "
                "fewer"
            )

    def setup(
        self, proposer: Proposer | None, max_draft_len: int, *, is_dynamic: bool, is_async: bool
    ) -> Setup:
        """Return the engine with these limits; dynamic if the draft length can change by step."""
        assert self.max_num_seqs is not None
        assert self.max_num_batched_tokens is not None
        assert self.max_model_len is not None
        assert self.num_gpu_blocks is not None
        is_v0, interval = self.scheduler == "prefill_first", self.prefix_cache_retention_interval
        if interval is None:
            interval = 0 if self.rules.keeps_few_prefixes else "dense"
        lookahead_len = proposer.lookahead_len(max_draft_len) if proposer else 0
        overlaps = proposer is not None and proposer.overlaps
        limits = {
            "max_num_scheduled_tokens": self.max_num_scheduled_tokens
            or self.max_num_batched_tokens,
            "max_num_batched_tokens": self.max_num_batched_tokens,
            "max_num_running": self.max_num_active_seqs or self.max_num_seqs,
            "max_model_len": self.max_model_len,
            "num_blocks": self.num_gpu_blocks,
            "enable_prefix_caching": self.enable_prefix_caching,
            **self._version_limits(proposer, lookahead_len, max_draft_len),
            "retention_len": -1 if interval == "dense" else interval,
            "watermark_blocks": self.watermark * self.num_gpu_blocks,
            "reserve_full_prompt": self.scheduler_reserve_full_isl or is_v0,
            "by_priority": self.scheduling_policy == "priority",
            **(self.lora_config.limits if self.lora_config else {}),
            "enable_chunked_prefill": self.enable_chunked_prefill and not is_v0,
            "long_prefill_token_threshold": self.long_prefill_token_threshold,
            "long_prefill_token_threshold_adaptive": self.long_prefill_token_threshold_adaptive,
            "prefill_interval": self.prefill_schedule_interval or 1,
            "max_draft_len": max_draft_len,
            "lookahead_len": max_draft_len if is_v0 else lookahead_len,
            "draft_slots": 0
            if is_v0 or not proposer or proposer.apart is not None or self._is_apart(proposer)
            else proposer.draft_slots(max_draft_len),
            "pads_admissions": max_draft_len > 0 and not is_dynamic and not is_v0 and not overlaps,
            "expands_batch": proposer is not None and proposer.disable_mqa_scorer,
        }
        whole = {name: int(value) for name, value in limits.items()}
        kv = self.kv_layout(proposer, max_draft_len)
        check_slots(whole)
        self._check_pieces(whole, kv)
        if self.enable_prefix_caching:
            check_padding(whole)
        order = "asynchronous" if is_async else "overlapped" if overlaps else "synchronous"
        stages = self.pipeline_parallel_size or 1
        return Setup(
            order="prefill_first" if is_v0 else order,
            limits=whole,
            kv=kv,
            stages=(1 / stages,) * stages,
        )


def check_slots(limits: Mapping[str, int]) -> None:
    """Raise a ConfigError if the drafter's slots leave a step no room for a prompt."""
    inputs = limits["max_num_batched_tokens"] - limits["draft_slots"]
    least = 1 if limits["enable_chunked_prefill"] else limits["max_model_len"] - 1
    if limits["draft_slots"] and inputs < least:
        raise ConfigError(
            f"engine.max_num_batched_tokens = {limits['max_num_batched_tokens']}: "
            f"{limits['draft_slots']} of them are the drafter's, and what is left is too few for "
            f"{'a token' if least == 1 else 'a whole prompt'}; raise it, or draft fewer"
        )


def check_padding(limits: Mapping[str, int]) -> None:
    """Raise a ConfigError if an admission with all its drafts fits into no step, or is cut.

    vLLM insists on them where nothing of the prompt is missing but its last token.
    """
    padded_len = 1 + limits["max_draft_len"]
    inputs = limits["max_num_batched_tokens"] - limits["draft_slots"]
    most = min(limits["max_num_scheduled_tokens"], inputs)
    if limits["pads_admissions"] and most < padded_len:
        raise ConfigError(
            f"engine: a step has room for {most} tokens, and vLLM admits a request all of whose "
            f"prompt but its last token is cached or loaded only with all drafts, {padded_len} "
            "tokens; raise max_num_batched_tokens and max_num_scheduled_tokens, or draft fewer"
        )
    threshold = limits["long_prefill_token_threshold"]
    if limits["pads_admissions"] and 0 < threshold < padded_len:
        raise ConfigError(
            f"engine.long_prefill_token_threshold = {threshold}: vLLM cuts admissions to it that "
            f"it has padded with all drafts, to {padded_len} tokens, and stops at an assertion of "
            f"its own; set it to at least {padded_len}, or draft fewer"
        )
