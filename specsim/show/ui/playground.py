"""Playground: an experiment with some settings moved, and what comes of it beside policy off."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from specsim.core.errors import ConfigError
from specsim.core.resources import resource_names
from specsim.core.settings import Settings, nearest
from specsim.policies.off import Off
from specsim.profile import Profile, load_profile
from specsim.results.metrics import distributions, keeps_limits, latencies, latency_statistics
from specsim.run.experiment import Experiment
from specsim.run.simulate import simulate
from specsim.run.summary import Summary
from specsim.run.trust import step_times
from specsim.show.report.axes import title_of
from specsim.study.capacity import Prices
from specsim.study.compare import on_one_engine
from specsim.study.paired import speed_up

NUM_REQUESTS = 1000
ATTAINMENT = 0.99
"""Share of the requests that keep all limits where the SLO is called met."""
_MOST_KEPT = 64  # runs; a move of the SLO needs none, one of the policy only its own
_SAMPLES = 160  # of the requests in the system over time

EXAMPLE: dict[str, Any] = {
    "profile": "h100/llama-3.1-8b",
    "workload": {
        "arrivals": {"kind": "poisson", "rate": 24.0},
        "lengths": {"kind": "dataset", "name": "sharegpt"},
        "num_requests": NUM_REQUESTS,
    },
    "engine": {"speculative_config": {"method": "eagle3", "num_speculative_tokens": 3}},
    # ShareGPT: TurboSpec (arXiv 2406.14066v3) table 3.
    "acceptance": {"kind": "bernoulli", "alpha": 0.62},
    "slo": {"ttft_ms": 500.0, "tpot_ms": 50.0},
}
"""What is moved where no experiment is given."""


class Moved(Settings):
    """What a reader has moved; the rest stays as the experiment has it."""

    rate: float | None = Field(default=None, gt=0, le=10_000)
    """Requests per second; other arrivals than those with a rate become a Poisson process."""
    prompt: int | None = Field(default=None, ge=1, le=32_768)
    """Mean tokens; lengths become lognormal, as wide as they were."""
    output: int | None = Field(default=None, ge=1, le=8_192)
    alpha: float | None = Field(default=None, ge=0, le=1)
    """Another acceptance model becomes this Bernoulli one."""
    gpu: str | None = None
    """Name of a profile of the same model."""
    policy: Literal["off", "static", "goodput"] | None = None
    k: int | None = Field(default=None, ge=1, le=32)
    ttft_ms: float | None = Field(default=None, gt=0)
    tpot_ms: float | None = Field(default=None, gt=0)


@dataclass
class Playground:
    """An experiment of `NUM_REQUESTS` requests, and the last runs of it."""

    experiment: Experiment
    prices: Prices = field(default_factory=lambda: Prices.load(None))
    _runs: dict[str, Summary] = field(default_factory=dict)
    _profiles: dict[str, Profile] = field(default_factory=dict)

    def __post_init__(self) -> None:
        workload = self.experiment.workload
        count = min(workload.num_requests or NUM_REQUESTS, NUM_REQUESTS)
        short = workload.model_copy(update={"num_requests": count})
        self.experiment = self.experiment.replace(workload=short)

    @property
    def title(self) -> str:
        """What is simulated, in a few words."""
        return title_of(self.experiment.to_dict(), [self.experiment.profile])

    @cached_property
    def _lens(self) -> dict[str, NDArray[np.int64]]:
        trace = self.experiment.workload.build(self.experiment.seed)
        return {"prompt": trace.prompt_lens, "output": trace.output_lens}

    @cached_property
    def profiles(self) -> list[str]:
        """Profiles of the same model on as many GPUs, the experiment's own first."""
        own = self.experiment.profile
        profile = load_profile(own)
        suffix = "" if profile.tensor_parallel_size == 1 else f"-tp{profile.tensor_parallel_size}"
        others = resource_names("profiles", f"*/{profile.model}{suffix}.yaml")
        return list(dict.fromkeys([own, *others]))

    def start(self) -> dict[str, Any]:
        """Return where the controls stand before anything is moved; None of what has no number."""
        own, proposer = self.experiment, self.experiment.engine.speculative_config
        kind = own.effective_policy.kind
        slo = {} if own.slo is None else own.slo.model_dump()
        return {
            "rate": getattr(own.workload.arrivals, "rate", None),
            **{name: round(float(lens.mean())) for name, lens in self._lens.items()},
            "alpha": getattr(own.acceptance, "alpha", None),
            "gpu": own.profile,
            "policy": kind,
            "k": getattr(own.effective_policy, "k", None)
            or (proposer.num_speculative_tokens if proposer else None),
            "ttft_ms": slo.get("ttft_ms"),
            "tpot_ms": slo.get("tpot_ms"),
            "profiles": self.profiles,
        }

    def moved(self, to: Moved) -> Experiment:
        """Return the experiment as it stands; a ConfigError if it is none."""
        data = self.experiment.to_dict()
        workload, engine = data["workload"], data["engine"]
        if to.rate is not None:
            has_rate = "rate" in workload["arrivals"]
            own = workload["arrivals"] if has_rate else {"kind": "poisson"}
            workload["arrivals"] = {**own, "rate": to.rate}
        if to.prompt or to.output or (to.rate is not None and "lengths" not in workload):
            means = {"prompt": to.prompt, "output": to.output}
            workload["lengths"] = {"kind": "lognormal"} | {
                name: {"mean": means[name] or float(lens.mean()), "sigma": _sigma(lens)}
                for name, lens in self._lens.items()
            }
        if to.gpu is not None:
            if to.gpu not in self.profiles:
                raise ConfigError(f"gpu = '{to.gpu:.100}': {nearest(to.gpu, self.profiles)}")
            data["profile"] = to.gpu
        slo = {"ttft_ms": to.ttft_ms, "tpot_ms": to.tpot_ms}
        if any(slo.values()):
            data["slo"] = {**data.get("slo", {}), **{k: v for k, v in slo.items() if v}}
        if to.alpha is not None:
            data["acceptance"] = {"kind": "bernoulli", "alpha": to.alpha}
        if to.policy is not None or to.k is not None:
            _move_policy(data, engine, to)
        return Experiment.parse(data, "as moved")

    def answer(self, to: Moved, on_progress: Callable[[int], None] | None = None) -> dict[str, Any]:
        """Return what comes of the experiment as it stands, as plain values.

        Args:
            on_progress: As that of `simulate`; what it raises ends the run.

        Raises:
            SpecsimError: The experiment cannot be run.
        """
        experiment = self.moved(to)
        policies = {"on": experiment.effective_policy, "off": Off()}
        experiment, notes = on_one_engine(experiment, policies)
        runs = [experiment.replace(policy=policy) for policy in policies.values()]
        if isinstance(experiment.effective_policy, Off):
            runs = runs[1:]
        found = [self._run(run, on_progress) for run in runs]
        kinds = (experiment.effective_policy.kind, "off")
        outcomes = [_outcome(*each, experiment) for each in zip(found, kinds, strict=False)]
        means = [[each["e2el"]["mean"]] for each in outcomes]
        profile = found[0].run.deployment.profile
        price = self.prices.per_gpu_hour.get(profile.gpu)
        gpus = profile.tensor_parallel_size * experiment.num_engines
        return {
            "attainment": ATTAINMENT,
            "slo": experiment.slo.model_dump(exclude_none=True) if experiment.slo else {},
            "speed_up": speed_up(means[1], means[0]).mean if len(found) > 1 else None,
            "gpus": f"{gpus} × {profile.gpu}",
            "cost_per_hour": None if price is None else price * gpus,
            "currency": self.prices.currency,
            "step_times": step_times(profile),
            "num_requests": len(found[0].run.requests),
            "warnings": [*notes, *found[0].warnings],
            "runs": outcomes,
        }

    def _run(self, experiment: Experiment, on_progress: Callable[[int], None] | None) -> Summary:
        key = experiment.replace(slo=None).hash
        if key not in self._runs:
            name = experiment.profile
            if name not in self._profiles:
                self._profiles[name] = load_profile(name)
            run = simulate(
                experiment,
                profile=self._profiles[name],
                keeps_steps=False,
                on_progress=on_progress,
            )
            self._runs[key] = Summary(run)
            while len(self._runs) > _MOST_KEPT:
                del self._runs[next(iter(self._runs))]
        return self._runs[key]


def _sigma(lens: NDArray[np.int64]) -> float:
    return round(float(np.std(np.log(np.maximum(lens, 1)))), 4)


def _move_policy(data: dict[str, Any], engine: dict[str, Any], to: Moved) -> None:
    """Change policy and k in place; what speculation needs comes with it."""
    if to.policy is not None:
        data["policy"] = {"kind": to.policy}
    elif "policy" in data:
        data["policy"].pop("k", None)
    if to.policy == "off":
        return
    proposer = engine.setdefault("speculative_config", {"method": _method(data["profile"])})
    proposer.pop("num_speculative_tokens_per_batch_size", None)
    if to.k is not None or "num_speculative_tokens" not in proposer:
        proposer["num_speculative_tokens"] = to.k or 3
    data.setdefault("acceptance", EXAMPLE["acceptance"])


def _method(profile: str) -> str:
    """Return a drafting method that a profile has costs of, EAGLE-3 if it does."""
    known = load_profile(profile).drafts
    return "eagle3" if "eagle3" in known or not known else next(iter(known))


def _outcome(run: Summary, label: str, experiment: Experiment) -> dict[str, Any]:
    requests, slo = run.tables.requests, experiment.slo
    begin, end = float(requests["arrived_at"].min()), float(requests["ended_at"].max())
    times = np.linspace(begin, end, _SAMPLES)
    there = np.searchsorted(np.sort(requests["arrived_at"]), times, side="right")
    gone = np.searchsorted(np.sort(requests["ended_at"]), times, side="right")
    return {
        "label": label,
        "unstable": run.is_unstable,
        "attainment": None if slo is None else float(keeps_limits(run.tables, slo).mean()),
        **{name: latency_statistics(values) for name, values in latencies(requests).items()},
        "output_throughput": int(requests["output_len"].sum()) / (end - begin),
        "request_throughput": len(requests) / (end - begin),
        "quantiles": distributions(requests),
        "in_system": {"time_s": times.tolist(), "requests": (there - gone).tolist()},
    }
