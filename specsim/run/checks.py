"""Checks: what is refused before a run begins, parts that do not fit together and unusual sizes."""

from math import inf
from typing import TYPE_CHECKING

from specsim.acceptance import Acceptance, model_of
from specsim.core.errors import ConfigError
from specsim.core.surroundings import is_on
from specsim.engine.config import EngineConfig
from specsim.policies import KnowsModel, Policy
from specsim.proposers import Proposer
from specsim.workload.arrivals.patterns import TraceReplay

if TYPE_CHECKING:
    from specsim.run.experiment import Experiment

_ADAPTIVE = ("eagle", "eagle3", "mtp", "draft_model", "dflash", "dspark")


def check_fields(policy: Policy, proposer: Proposer, engine: EngineConfig) -> None:
    """Refuse fields of ``speculative_config`` that say another policy, or that vLLM refuses."""
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
    """Refuse a policy that knows the state of a model, where there is none."""
    if isinstance(policy, KnowsModel) and not acceptance.has_model:
        raise ValueError(
            f"policy '{policy.kind}' knows the state of the acceptance model, and acceptance "
            f"'{acceptance.kind}' has none; use a model, or another policy"
        )


def check_rejection(proposer: Proposer, acceptance: Acceptance, vllm_version: str) -> None:
    """Refuse a rule of rejection that the acceptance model is not of, or the engine has not."""
    method = proposer.rejection_sample_method
    if method is None:
        return
    place = f"engine.speculative_config.rejection_sample_method = {method}"
    # What was measured token by token holds for blocks, which reject no more.
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
    """Refuse to compare tokens that nobody knows, and to draft tokens that nobody compares."""
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
"""Environment variable that lets runs of any size begin, as ``specsim --large`` sets it."""

_MOST_REQUESTS = 10_000_000
_MOST_REPLICAS = 10_000
_MOST_TOKENS = 20_000_000_000
MOST_LOOKS = 100_000  # some 3 s

# One CPU core and benchmarks/W3 and W4, 2026-11-22: 4.7 s and 377 MiB for 300,000 requests.
_REQUEST_BYTES, _REQUEST_SECONDS = 900, 15e-6
_TOKEN_SECONDS = 2e-8
_REPLICA_BYTES, _REPLICA_SECONDS = 1_700_000, 0.5e-3  # of 300 on one clock, 2026-11-30


def check_size(experiment: "Experiment") -> None:
    """Raise a ConfigError, with an estimate of time and memory, for a run of unusual size.

    Traces are as long as their files, and are not counted.
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
    """Return how often an autoscaler may look at the replicas of a run."""
    return inf if is_on(ALLOWS_LARGE) else MOST_LOOKS


def estimated_seconds(experiment: "Experiment") -> float:
    """Return about how long a run takes, seconds of one CPU core."""
    workload = experiment.workload
    seconds = workload.expected_requests * _REQUEST_SECONDS
    seconds += experiment.num_engines * _REPLICA_SECONDS
    return seconds + workload.expected_tokens * _TOKEN_SECONDS


def as_time(seconds: float) -> str:
    """Return a time in a unit that suits it."""
    for size, unit in ((86400.0, "days"), (3600.0, "hours"), (60.0, "minutes")):
        if seconds >= 2 * size:
            return f"{seconds / size:,.3g} {unit}"
    return f"{seconds:.0f} seconds"
