"""A setting, and the experiment and the profiles that it stands for."""

import csv
from pathlib import Path
from typing import Any, NamedTuple

from specsim.api import Experiment
from specsim.latency.composed import Composed
from specsim.latency.measured import Linear
from specsim.profile import Profile, load_profile
from specsim.run.simulate import simulate
from specsim.run.summary import Summary

HERE = Path(__file__).parent
PROFILES = {
    "draft_model": ["a100/llama-7b", "h100/llama-3.1-8b-kernels", "h200/qwen3-30b-a3b",
                    "l40s/llama-3.1-70b-fp8-tp4"],
    "eagle3": ["h100/llama-3.1-8b", "h200/qwen3-30b-a3b", "l40s/llama-3.1-70b-fp8-tp4",
               "rtx-pro-6000/gpt-oss-20b"],
    "mtp": ["b200/deepseek-v3-tp8", "h100/mimo-7b"],
    "ngram": ["a100/llama-7b", "h100/llama-3.1-8b-kernels", "b200/deepseek-v3-tp8"],
    "suffix": ["h100/llama-3.1-8b", "h200/qwen3-30b-a3b", "rtx-pro-6000/gpt-oss-20b"],
}  # fmt: skip
LOOKUPS = ("ngram", "suffix")  # which vLLM schedules synchronously


class Setting(NamedTuple):
    """A row of settings.csv; lengths are means, tokens."""

    setting: int
    half: str
    drafter: str
    profile: str
    longest: int
    scheduling: str
    world: str
    alpha: float
    alpha_after: float
    changes_at: float  # share of the requests
    drafting_factor: float  # what drafting takes, over what the policy is told
    target_factor: float
    load: float  # share of what the server manages without speculation
    prompt: int
    output: int
    requests: int
    rate: float  # requests/s

    @property
    def is_async(self) -> bool:
        return self.scheduling == "async" and self.drafter not in LOOKUPS

    def experiment(self, seed: int) -> Experiment:
        """Return the experiment, its policy `off`."""
        return Experiment.parse(self.fields_of(seed), f"setting {self.setting}")

    def fields_of(self, seed: int) -> dict[str, Any]:
        burstiness = 0.1 if self.world == "bursts" else 1.0
        return {
            "workload": {
                "arrivals": {"kind": "gamma", "rate": self.rate, "burstiness": burstiness},
                "lengths": {
                    "kind": "lognormal",
                    "prompt": {"mean": self.prompt, "sigma": 0.6},
                    "output": {"mean": self.output, "sigma": 0.6},
                },
                "num_requests": self.requests,
            },
            "engine": {
                "max_num_seqs": 128,
                "max_model_len": 16384,
                "async_scheduling": self.is_async,
                "speculative_config": {
                    "method": self.drafter,
                    "num_speculative_tokens": self.longest,
                },
            },
            "acceptance": self.acceptance(),
            "profile": self.profile,
            "policy": "off",
            "seed": seed,
        }

    def acceptance(self) -> dict[str, Any]:
        first, last = self.alpha, self.alpha_after
        if self.world == "drift":  # in five steps, from the first requests to the last
            alphas = [first + (last - first) * step / 4 for step in range(5)]
            starts = [step * self.requests // 5 for step in range(5)]
            return _in_turn([*zip(starts, map(_around, alphas), strict=True)])
        if self.world == "switch":
            at = max(1, round(self.changes_at * self.requests))
            return _in_turn([(0, _around(first)), (at, _around(last))])
        if self.world == "classes":  # nearly all requests are of one of two kinds
            return {"kind": "beta", "a": 0.5 * first, "b": 0.5 * (1.0 - first)}
        return _around(first)

    def believed(self) -> Profile:
        return load_profile(self.profile)

    def real(self) -> Profile:
        """Return the profile as it is, of which the policy is told another."""
        told = self.believed()
        drafts = {
            name: cost.model_copy(
                update={
                    **{
                        field: self.drafting_factor * getattr(cost, field)
                        for field in ("token_us", "step_ms", "request_us")
                    },
                    "target_share": self.drafting_factor / self.target_factor * cost.target_share,
                    "latency": cost.latency and scaled(cost.latency, self.drafting_factor),
                }
            )
            for name, cost in told.drafts.items()
        }
        target = scaled(told.target, self.target_factor)
        return told.model_copy(update={"target": target, "drafts": drafts})


COLUMNS = Setting._fields


def _around(alpha: float) -> dict[str, Any]:
    """Return requests of about one alpha, each its own."""
    return {"kind": "beta", "a": 8.0 * alpha, "b": 8.0 * (1.0 - alpha)}


def _in_turn(parts: list[tuple[int, dict[str, Any]]]) -> dict[str, Any]:
    """Return acceptance models that follow each other, each from a request on."""
    *before, (start, model) = parts
    if not before:
        return model
    return {"kind": "shift", "at_request": start, "before": _in_turn(before), "after": model}


def scaled(latency: Any, factor: float) -> Any:
    """Return a latency model whose passes take so many times as long."""
    if factor == 1.0:
        return latency
    if isinstance(latency, Linear):
        names = ["alpha_ns", "gamma_us", "delta_ms"]
    else:
        assert isinstance(latency, Composed)
        names = ["read_factor", "expert_factor", "compute_factor", "decode_factor", "prompt_factor",
                 "fixed_us"]  # fmt: skip
        names += [f"{passes}_at_least_us" for passes in ("prompts", "decodes", "eager")]
        times = tuple(factor * each for each in latency.head.times_us)
        head = latency.head.model_copy(update={"times_us": times})
        latency = latency.model_copy(update={"head": head})
    return latency.model_copy(update={name: factor * getattr(latency, name) for name in names})


def saturation(setting: Setting) -> float:
    """Return the requests per second that a server manages without speculation."""
    config = setting.experiment(0).model_dump(exclude_unset=True)
    config["workload"] |= {"arrivals": {"kind": "burst"}, "num_requests": 300}
    experiment = Experiment.parse(config, "saturation")
    data = Summary(simulate(experiment, profile=setting.real())).data
    found: float = data["request_throughput"]
    return found


def settings() -> list[Setting]:
    """Return those that were drawn."""
    types = Setting.__annotations__
    with (HERE / "settings.csv").open(newline="") as file:
        rows = [*csv.DictReader(file)]
    return [Setting(**{name: types[name](text) for name, text in row.items()}) for row in rows]
