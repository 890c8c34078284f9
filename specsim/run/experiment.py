"""Experiment: the configuration of one run, as one YAML file.

The tree is frozen, every unknown key is an error that names the nearest known one, and
``Experiment.load(path).save(other)`` loses nothing.
"""

import json
from collections.abc import Iterable, Mapping
from hashlib import sha256
from math import inf
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, SerializerFunctionWrapHandler, field_serializer, model_validator

from specsim.acceptance import ACCEPTANCE, Acceptance, model_of
from specsim.acceptance.base import MAX_DRAFT_LEN
from specsim.autoscaling import AUTOSCALING, Autoscaler, started_by
from specsim.core.atomic import new_file
from specsim.core.blame import blamed, held_to, is_whole
from specsim.core.errors import ConfigError
from specsim.core.resources import following
from specsim.core.settings import Settings, as_yaml, load_mapping, overridden, validated
from specsim.core.surroundings import is_on
from specsim.core.version import __version__
from specsim.engine.config import EngineConfig
from specsim.engine.incidents import Incident, check_incidents
from specsim.engine.transfer import TransferConfig
from specsim.policies import (
    POLICIES,
    KnowsModel,
    PicksDrafter,
    PicksSource,
    Policy,
    check_proposer,
    has_async_form,
)
from specsim.policies.static import Off, Schedule, Static
from specsim.proposers import Proposer
from specsim.results.metrics import Slo
from specsim.routing import ROUTING, Router
from specsim.routing.simple import RoundRobin
from specsim.workload import WorkloadConfig
from specsim.workload.arrivals.patterns import TraceReplay

_ADAPTIVE = ("eagle", "eagle3", "mtp", "draft_model", "dflash", "dspark")


def check_fields(policy: Policy, proposer: Proposer, engine: EngineConfig) -> None:
    """Refuse fields of ``speculative_config`` that contradict the policy, or that vLLM refuses."""
    is_adaptive = proposer.enable_adaptive_verification
    said = {
        "num_speculative_tokens_per_batch_size": (
            proposer.num_speculative_tokens_per_batch_size is not None,
            "schedule",
        ),
        "enable_adaptive_verification": (is_adaptive, "adaptive_verification"),
    }
    for field, (is_said, kind) in said.items():
        if is_said and policy.kind != kind:
            raise ValueError(
                f"engine.speculative_config.{field} is not used by policy '{policy.kind}'; remove "
                "one of them"
            )
    place = "engine.speculative_config.enable_adaptive_verification"
    if is_adaptive and proposer.method not in _ADAPTIVE:
        raise ValueError(
            f"{place}: vLLM has it for EAGLE, MTP, DFlash, DSpark and draft models, not for method "
            f"'{proposer.method}'; leave it out"
        )
    if is_adaptive and engine.lora_config is not None:
        raise ValueError(f"{place}: vLLM refuses it with LoRA adapters; leave lora_config out")


def check_model(policy: Policy, acceptance: Acceptance) -> None:
    """Refuse a policy that knows the acceptance model's state if that model has no state."""
    if isinstance(policy, KnowsModel) and not acceptance.has_model:
        raise ValueError(
            f"policy '{policy.kind}' knows the state of the acceptance model, and acceptance "
            f"'{acceptance.kind}' has none; use a model, or another policy"
        )


def check_rejection(proposer: Proposer, acceptance: Acceptance, vllm_version: str) -> None:
    """Refuse a rejection rule that the acceptance model or the vLLM version does not have."""
    method = proposer.rejection_sample_method
    if method is None:
        return
    place = f"engine.speculative_config.rejection_sample_method = {method}"
    # Token-wise acceptance also holds for block verification, which rejects no more.
    fitting: dict[str, set[str | None]]
    fitting = {"standard": {None}, "block": {None, "block"}, "fly": {"fly"}}
    if others := acceptance.rules - fitting[method]:
        found = " and ".join(sorted(rule or "standard" for rule in others))
        raise ValueError(
            f"{place}: acceptance '{acceptance.kind}' says what is accepted with {found}; name one "
            "rule in both (acceptance.rejection, standard if left out, or acceptance kind fly), or "
            "leave it out"
        )
    if method == "fly" and (vllm_version < "0.33" or proposer.num_speculative_tokens < 2):
        raise ValueError(
            f"{place}: vLLM has it since 0.33, for 2 tokens and more; set engine.vllm_version to "
            "0.33 and num_speculative_tokens to at least 2, or leave it out"
        )


def check_tokens(proposer: Proposer, acceptance: Acceptance) -> None:
    """Refuse a comparison of real tokens for drafts without any, and real drafts without it."""
    models = [model_of(acceptance, part.cost_keys[0]) for part in proposer.parts]
    for drafter, model in zip(proposer.parts, models, strict=True):
        if model.verifies_tokens and not drafter.has_lookup():
            raise ValueError(
                f"acceptance '{model.kind}' compares real drafts, and method '{drafter.method}' "
                "drafts with a model, whose tokens no trace holds; use method ngram_gpu or suffix, "
                "or acceptance recorded"
            )
        if model.verifies_tokens:
            drafter.check_real_drafts()
    if proposer.has_fallback and not models[0].verifies_tokens:
        raise ValueError(
            f"method '{proposer.method}' drafts real tokens only; use acceptance token_match (of a "
            "hybrid: per_drafter, with token_match for its lookup) and a workload with token ids"
        )


ALLOWS_LARGE = "SPECSIM_LARGE"
"""Environment variable that lifts the limits on the size of a run, as ``specsim --large`` does."""

_MOST_REQUESTS = 10_000_000
_MOST_REPLICAS = 10_000
_MOST_TOKENS = 20_000_000_000
MOST_LOOKS = 100_000  # which take some 3 s

# One CPU core and benchmarks/W3 and W4, 2026-11-22: 4.7 s and 377 MiB for 300,000 requests.
_REQUEST_BYTES, _REQUEST_SECONDS = 900, 15e-6
_TOKEN_SECONDS = 2e-8
_REPLICA_BYTES, _REPLICA_SECONDS = 1_700_000, 0.5e-3  # of 300 replicas on one clock, 2026-11-30


def check_size(experiment: "Experiment") -> None:
    """Raise a ConfigError, with an estimate of time and memory, for a run of unusual size.

    A trace is as long as its file, and its requests are not checked.
    """
    is_recorded = isinstance(experiment.workload.arrivals, TraceReplay)
    if is_on(ALLOWS_LARGE) or (is_recorded and experiment.num_engines <= _MOST_REPLICAS):
        return
    requests, tokens = experiment.workload.expected_requests, experiment.workload.expected_tokens
    replicas = experiment.num_engines
    if requests <= _MOST_REQUESTS and replicas <= _MOST_REPLICAS and tokens <= _MOST_TOKENS:
        return
    what = f"{requests:,.10g} requests of {tokens:,.3g} tokens in all on {replicas:,} replicas"
    gib = (requests * _REQUEST_BYTES + replicas * _REPLICA_BYTES) / 2**30
    raise ConfigError(
        f"{what} would take about {as_time(estimated_seconds(experiment))} and "
        f"{gib:,.3g} GiB of memory; make them fewer, or go on with "
        "`specsim --large` before the command"
    )


def most_looks() -> float:
    """Return how often an autoscaler may decide in one run."""
    return inf if is_on(ALLOWS_LARGE) else MOST_LOOKS


def estimated_seconds(experiment: "Experiment") -> float:
    """Return the estimated time of a run on one CPU core, seconds."""
    workload = experiment.workload
    seconds = workload.expected_requests * _REQUEST_SECONDS
    seconds += experiment.num_engines * _REPLICA_SECONDS
    return seconds + workload.expected_tokens * _TOKEN_SECONDS


def as_time(seconds: float) -> str:
    """Return a time in seconds as text, in a unit that suits its size."""
    for size, unit in ((86400.0, "days"), (3600.0, "hours"), (60.0, "minutes")):
        if seconds >= 2 * size:
            return f"{seconds / size:,.3g} {unit}"
    return f"{seconds:.0f} seconds"


_TABLES = (".csv", ".tsv", ".jsonl", ".parquet")  # of tables; .gz may follow

POOLS: tuple[Literal["prefill"], Literal["decode"]] = ("prefill", "decode")


class PoolConfig(Settings):
    """The replicas of one pool; a field that is left out has the value of the experiment."""

    replicas: int = Field(default=1, ge=1, le=1_000_000)
    profile: str | None = None
    """Name in ``profiles/``, or path of a YAML file; must be of the experiment's model."""
    engine: EngineConfig | None = None
    """Settings that differ from those of the experiment."""
    routing: Annotated[Router, ROUTING] | None = None
    autoscaling: Annotated[Autoscaler, AUTOSCALING] | None = None
    """Scales the number of replicas with the load. The run begins with `replicas`, or with
    `min_replicas` if that is more."""

    @field_serializer("engine", mode="wrap")
    def _as_said(self, engine: EngineConfig | None, write: SerializerFunctionWrapHandler) -> Any:
        """Write only the options that were given: a default would override the experiment."""
        if engine is None:
            return None
        written = write(engine)
        said = (name for name in EngineConfig.model_fields if name in engine.model_fields_set)
        return {name: written.get(name) for name in said}

    @property
    def slots(self) -> int:
        return self.replicas if self.autoscaling is None else self.autoscaling.max_replicas

    @property
    def num_started(self) -> int:
        """Number of replicas at the beginning of the run."""
        scaler = self.autoscaling
        return self.replicas if scaler is None else started_by(scaler, self.replicas)


class PoolsConfig(Settings):
    """Two pools of replicas: one computes the prompts, the other decodes the answers."""

    prefill: PoolConfig = PoolConfig()
    decode: PoolConfig = PoolConfig()
    transfer: TransferConfig = TransferConfig()

    @property
    def slots(self) -> int:
        return self.prefill.slots + self.decode.slots

    def with_each(self, field: str, prefill: Any, decode: Any) -> Self:
        """Return a copy in which a field of each pool has another value."""
        parts = {
            "prefill": self.prefill.model_copy(update={field: prefill}),
            "decode": self.decode.model_copy(update={field: decode}),
        }
        return self.model_copy(update=parts)


class Experiment(Settings):
    """One run: a workload, an engine, a policy, an acceptance model and a profile."""

    workload: WorkloadConfig
    profile: str
    """Name in ``profiles/``, such as ``h100/llama-3.1-8b``, or path of a YAML file."""
    engine: EngineConfig = EngineConfig()
    policy: Annotated[Policy, POLICIES] | None = None
    """By default given by ``speculative_config``: a fixed k, its batch-size schedule, or off."""
    acceptance: Annotated[Acceptance, ACCEPTANCE] | None = None
    """Required if anything is drafted."""
    replicas: int = Field(default=1, ge=1, le=1_000_000)
    pools: PoolsConfig | None = None
    """In place of `replicas`: one pool computes the prompts, another decodes."""
    routing: Annotated[Router, ROUTING] = RoundRobin()
    autoscaling: Annotated[Autoscaler, AUTOSCALING] | None = None
    """Scales the number of replicas with the load. The run begins with `replicas`, or with
    `min_replicas` if that is more."""
    incidents: tuple[Incident, ...] | None = None
    """Failures and slow-downs of replicas; with autoscaling, they name slots."""
    seed: int = Field(default=0, ge=0, lt=2**63)
    slo: Slo | None = None

    @property
    def effective_policy(self) -> Policy:
        """The policy, or the one that ``speculative_config`` implies if none is given."""
        if self.policy is not None:
            return self.policy
        proposer = self.engine.speculative_config
        if proposer is None:
            return Off()
        if proposer.enable_adaptive_verification:
            return POLICIES.parse(
                {"kind": "adaptive_verification", "learns": proposer.method != "dspark"}
            )
        if proposer.num_speculative_tokens_per_batch_size is not None:
            return Schedule(ranges=proposer.num_speculative_tokens_per_batch_size)
        return Static()

    @property
    def max_draft_len(self) -> int:
        """Longest draft that the policy may ask for, tokens; 0 without speculation."""
        policy, most = self.effective_policy, self.num_speculative_tokens
        longest = policy.max_draft_len(most)
        is_right = is_whole(longest) and 0 <= longest <= max(most, MAX_DRAFT_LEN)
        rule = f"a whole number from 0 to {max(most, MAX_DRAFT_LEN)}"
        held_to(policy, "max_draft_len", longest, is_right, rule)
        return int(longest)

    @property
    def num_speculative_tokens(self) -> int:
        """``num_speculative_tokens`` of ``speculative_config``, tokens; 0 without speculation."""
        proposer = self.engine.speculative_config
        return proposer.num_speculative_tokens if proposer else 0

    @model_validator(mode="after")
    def _check_speculation(self) -> Self:
        policy, proposer = self.effective_policy, self.engine.speculative_config
        if isinstance(policy, Off):
            return self
        if proposer is None:
            raise ValueError(
                f"policy '{policy.kind}' needs engine.speculative_config, such as "
                "{method: eagle3, num_speculative_tokens: 5}"
            )
        if self.acceptance is None:
            raise ValueError(
                f"policy '{policy.kind}' needs acceptance, such as {{kind: bernoulli, alpha: 0.7}}"
            )
        check_fields(policy, proposer, self.engine)
        if not has_async_form(policy) and self.engine.async_scheduling:
            raise ValueError(
                f"policy '{policy.kind}' must see each step's outcome before the next; set "
                "engine.async_scheduling to false or leave it out"
            )
        check_proposer(policy, proposer)
        check_rejection(proposer, self.acceptance, self.engine.vllm_version)
        check_tokens(proposer, self.acceptance)
        check_model(policy, self.acceptance)
        _ = self.max_draft_len  # raises if the policy exceeds num_speculative_tokens
        return self

    @model_validator(mode="before")
    @classmethod
    def _balance_ranks(cls, data: Any) -> Any:
        """Balance requests over data-parallel ranks as vLLM does, unless a router is given."""
        engine = data.get("engine") if isinstance(data, dict) else None
        if isinstance(engine, EngineConfig):
            ranks: Any = engine.data_parallel_size
        else:
            ranks = engine.get("data_parallel_size") if isinstance(engine, dict) else None
        if not isinstance(ranks, int) or ranks <= 1 or "routing" in data:
            return data
        return {**data, "routing": {"kind": "vllm_ranks"}}

    @property
    def num_engines(self) -> int:
        """Number of schedulers with a KV cache each: replicas, slots or data-parallel ranks."""
        if self.pools is not None:
            return self.pools.slots
        if self.autoscaling is not None:
            return self.autoscaling.max_replicas
        return self.replicas * (self.engine.data_parallel_size or 1)

    @property
    def num_started(self) -> int:
        if self.autoscaling is None:
            return self.num_engines
        return started_by(self.autoscaling, self.replicas)

    @property
    def scalers(self) -> dict[str | None, Autoscaler]:
        """The autoscalers, by name of the pool; the key is None without pools."""
        if self.pools is None:
            return {} if self.autoscaling is None else {None: self.autoscaling}
        pools = {name: getattr(self.pools, name).autoscaling for name in POOLS}
        return {name: scaler for name, scaler in pools.items() if scaler is not None}

    @model_validator(mode="after")
    def _check_autoscaling(self) -> Self:
        if self.autoscaling is not None and self.pools is not None:
            raise ValueError(
                "autoscaling with pools: each pool is scaled by itself; use "
                "pools.prefill.autoscaling and pools.decode.autoscaling"
            )
        for name, scaler in self.scalers.items():
            self._check_scaler("" if name is None else f"pools.{name}.", name, scaler)
        if self.autoscaling is not None and (self.engine.data_parallel_size or 1) > 1:
            raise ValueError(
                f"autoscaling with engine.data_parallel_size = {self.engine.data_parallel_size}: "
                "servers of several ranks are not scaled; leave one of them out"
            )
        return self

    def _check_scaler(self, place: str, pool: str | None, scaler: Autoscaler) -> None:
        replicas = self.replicas if pool is None else getattr(self.pools, pool).replicas
        if replicas > scaler.max_replicas:
            raise ValueError(
                f"{place}replicas = {replicas} is more than {place}autoscaling.max_replicas = "
                f"{scaler.max_replicas}; lower it, or raise that"
            )
        limits = self.slo and (self.slo.ttft_ms or self.slo.e2el_ms or pool != "prefill")
        if scaler.looks_at_ends and not limits:
            raise ValueError(
                f"{place}autoscaling '{scaler.kind}' needs the limits that it is to keep; give "
                "slo, such as {ttft_ms: 500}"
            )

    @property
    def serving(self) -> Self:
        """The replicas that decode, as an experiment without pools."""
        return self if self.pools is None else self.of_pool("decode")

    def of_pool(self, name: Literal["prefill", "decode"]) -> Self:
        """Return the replicas of one pool, as an experiment without pools.

        The prefill pool drafts only if the drafter's KV entries are transferred. It then drafts as
        vLLM does with the same options, whatever the policy of the decode pool, unless only that
        policy can say which of several drafters is used.
        """
        assert self.pools is not None
        pool: PoolConfig = getattr(self.pools, name)
        engine, changes = self.engine, dict[str, object]()
        if name == "prefill":
            proposer, is_moved = engine.speculative_config, self.pools.transfer.draft_kv == "moved"
            is_off = isinstance(self.effective_policy, Off)
            drafts = not is_off and is_moved and proposer is not None and proposer.is_model
            if not drafts:
                engine = engine.model_copy(update={"speculative_config": None})
            if not drafts or not isinstance(self.policy, PicksDrafter | PicksSource):
                changes = {"policy": None}
        if pool.engine is not None:
            own = {field: getattr(pool.engine, field) for field in pool.engine.model_fields_set}
            engine = engine.model_copy(update=own)
        engine = engine.behind_connector()
        return self.replace(
            f"pools.{name}",
            pools=None,
            incidents=None,
            replicas=pool.replicas,
            profile=pool.profile or self.profile,
            engine=engine,
            routing=pool.routing or self.routing,
            **changes,
        )

    @model_validator(mode="after")
    def _check_pools(self) -> Self:
        if self.pools is None:
            return self
        if self.replicas != 1:
            raise ValueError(
                f"replicas = {self.replicas} with pools: give pools.prefill.replicas and "
                "pools.decode.replicas, and leave replicas out"
            )
        if self.engine.speculative_config and self.engine.speculative_config.apart:
            raise ValueError(
                "engine.speculative_config.own_gpus with pools: which pool they belong to is not "
                "simulated; leave one of them out"
            )
        for place, pool in (("", self), ("pools.decode.", self.pools.decode)):
            if pool.engine is not None and pool.engine.kv_offload is not None:
                raise ValueError(
                    f"{place}engine.kv_offload with pools: blocks are offloaded by the prefill "
                    "pool alone; use pools.prefill.engine.kv_offload"
                )
        for name in POOLS:
            own = getattr(self.pools, name).engine
            if own is not None and "speculative_config" in own.model_fields_set:
                raise ValueError(
                    f"pools.{name}.engine.speculative_config: both pools have one drafter, whose "
                    "KV entries the one makes for the other; give engine.speculative_config, and "
                    "pools.transfer.draft_kv where the prefill pool is to have none"
                )
        engines = (self.engine, self.pools.prefill.engine, self.pools.decode.engine)
        for engine in filter(None, engines):
            if (engine.data_parallel_size or 1) > 1 or engine.scheduler != "v1":
                raise ValueError(
                    "pools of data-parallel ranks, or of scheduler prefill_first (vLLM V0), are "
                    "not simulated; leave data_parallel_size and scheduler out"
                )
        return self

    @model_validator(mode="after")
    def _check_ranks(self) -> Self:
        ranks = self.engine.data_parallel_size or 1
        if ranks > 1 and self.replicas > 1:
            raise ValueError(
                f"replicas = {self.replicas} with engine.data_parallel_size = {ranks}: several "
                "servers of several ranks are not simulated; leave one of them out"
            )
        if ranks > 1 and self.incidents:
            raise ValueError(
                f"incidents with engine.data_parallel_size = {ranks}: how a server goes on without "
                "one of its ranks is not simulated; use replicas, or leave incidents out"
            )
        return self

    @model_validator(mode="after")
    def _check_incidents(self) -> Self:
        slots = self.autoscaling.max_replicas if self.autoscaling else self.replicas
        sizes: dict[str | None, int] = {None: slots}
        if self.pools is not None:
            sizes = {name: getattr(self.pools, name).slots for name in POOLS}
        check_incidents(self.incidents or (), sizes)
        return self

    @property
    def is_async(self) -> bool:
        """Whether steps are scheduled asynchronously, decided as vLLM decides it."""
        if self.engine.async_scheduling is not None:
            return self.engine.async_scheduling
        policy, proposer = self.effective_policy, self.engine.speculative_config
        if self.engine.scheduler != "v1" or policy.needs_sync or policy.uses_confidences:
            return False
        if isinstance(policy, Off) or proposer is None:
            return True
        return proposer.supports_async and not proposer.overlaps

    @classmethod
    def parse(cls, data: dict[str, Any], source: str) -> Self:
        """Return the experiment that a mapping from `source` describes; else a ConfigError."""
        with blamed(), validated(source, ConfigError):
            return cls.model_validate(data)

    @classmethod
    def load(
        cls,
        path: Path | str,
        overrides: Iterable[str] | Mapping[str, object] = (),
        *,
        option: str = "overrides",
    ) -> Self:
        """Return the experiment in a YAML file, with overrides.

        Overrides are texts such as ``policy=static:k=3``, or a mapping: ``{"policy.k": 3}``; an
        error in them names `option`. Files that the YAML names lie beside it or else in the working
        directory, files that overrides name in the working directory. Raises a ConfigError if a
        file cannot be read or is wrong.
        """
        path = Path(path)
        if path.name.lower().removesuffix(".gz").endswith(_TABLES) and path.is_file():
            raise ConfigError(
                f"{path}: holds requests, and is no experiment; name it in one, as "
                f"workload.arrivals or workload.lengths: {{kind: trace, path: {path}}}, or size a "
                f"service for it by `specsim plan --traffic {path} --qps RATE`"
            )
        begin = f"; `specsim init {path}` asks for them and writes it"
        if path.suffix not in (".yaml", ".yml"):  # it may be a trace, which nobody wants written to
            begin = "; give an experiment, a YAML file, which may name a trace"
        data = following(load_mapping(path, ConfigError, begin), path.parent)
        if data.keys() >= {"base", "axes"}:
            raise ConfigError(
                f"{path}: is a sweep, not an experiment; run it by `specsim sweep {path}`"
            )
        return cls.parse(overridden(data, overrides, option), str(path))

    def to_dict(self) -> dict[str, Any]:
        """Return the resolved configuration as plain values, without fields left out."""
        return self.model_dump(mode="json", exclude_none=True, warnings=False)

    def save(self, path: Path | str) -> None:
        with new_file(Path(path)) as temporary:
            temporary.write_text(self.to_yaml(), encoding="utf-8")

    def to_yaml(self) -> str:
        # A later run recognises its own folder by it, and may replace it.
        return f"# specsim_version: {__version__}\n{as_yaml(self.to_dict())}"

    def without_seed(self) -> dict[str, Any]:
        return _without_seed(self.to_dict())

    @property
    def hash(self) -> str:
        """Hash of the configuration without its seed, twelve hexadecimal digits."""
        return config_hash(self.to_dict())

    @property
    def provenance(self) -> dict[str, object]:
        return {"config_hash": self.hash, "seed": self.seed, "specsim_version": __version__}

    def replace(self, source: str = "experiment", /, **changes: object) -> Self:
        """Return a copy with changed top-level fields; a ConfigError if one is wrong."""
        fields = {name: getattr(self, name) for name in type(self).model_fields}
        with validated(source, ConfigError):
            return type(self).model_validate({**fields, **changes})

    def with_engine(self, **changes: object) -> Self:
        """Return a copy with other options of the engine."""
        return self.replace(engine=self.engine.model_copy(update=changes))


def _without_seed(config: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in config.items() if name != "seed"}


def config_hash(config: dict[str, Any]) -> str:
    """Return the `hash` of the experiment that was written as these plain values.

    It may differ from the hash of the experiment that they parse to now: fields may have been
    added.
    """
    settings = json.dumps(_without_seed(config), sort_keys=True)
    return sha256(settings.encode()).hexdigest()[:12]
