"""Cases: the experiments that are run on the real engine and simulated, one and the same."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from specsim.core.request import Request
from specsim.profile import Profile
from specsim.reality.calibration.plan import Load, Plan
from specsim.reality.calibration.run_writer import RequestRow
from specsim.run.experiment import Experiment
from specsim.run.simulate import simulate
from specsim.run.summary import Summary

__all__ = ["Case", "Label", "acceptance_rates", "capacity", "make_case", "profiling_case"]

_PRIOR = 0.5  # of a rate that was never tried; counts for one trial


@dataclass(frozen=True)
class Label:
    """What tells one case from another."""

    acceptance: str
    """``synthetic``, ``real``, or ``recorded`` where the simulation is given the real run's."""
    load: Load
    policy: str
    rate: float
    """Requests per second."""

    @property
    def is_synthetic(self) -> bool:
        """Whether acceptance is decided by luck that the simulation shares."""
        return self.acceptance == "synthetic"

    @property
    def name(self) -> str:
        """For folders and tables."""
        return f"{self.acceptance}-{self.load.name}-{self.policy.replace(':', '-')}"


@dataclass(frozen=True)
class Case(Label):
    """One experiment."""

    experiment: Experiment
    """As it is simulated; where acceptance is real, with the rates that were expected of it."""
    requests: list[Request]


def make_case(
    plan: Plan, load: Load, rate: float, policy: str, rates: Sequence[float], *, is_real: bool
) -> Case:
    """Return a case of a plan.

    Args:
        rate: Requests per second.
        policy: As for ``specsim compare --policies``.
        rates: Acceptance of each position of a draft, if all before it were accepted.
        is_real: Whether the models decide on acceptance.
    """
    seed = 1 + int(is_real)  # requests that nothing was fitted to
    return Case(
        "real" if is_real else "synthetic",
        load,
        policy,
        rate,
        *_experiment(plan, rate, load.num_requests(rate), policy, rates, seed),
    )


def _experiment(
    plan: Plan, rate: float, num_requests: int, policy: str, rates: Sequence[float], seed: int
) -> tuple[Experiment, list[Request]]:
    engine: dict[str, Any] = dict(plan.engine)
    if policy != "off":
        # A fixed k is vLLM's num_speculative_tokens, so that `specsim validate` reads it as such.
        fixed = policy.partition("static:k=")[2]
        engine["speculative_config"] = {
            "method": "draft_model",
            "num_speculative_tokens": int(fixed) if fixed else plan.max_draft_len,
        }
    experiment = Experiment.parse(
        {
            "workload": {
                "arrivals": {"kind": "poisson", "rate": rate},
                "lengths": {
                    "kind": "uniform",
                    "prompt": list(plan.prompt_lens),
                    "output": list(plan.output_lens),
                },
                "num_requests": num_requests,
            },
            "engine": engine,
            "policy": policy,
            "acceptance": {"kind": "per_position", "conditional_rates": list(rates)},
            "profile": "profile.yaml",
            "seed": seed,
        },
        "calibration",
    )
    return experiment, list(experiment.workload.build(seed).requests())


def profiling_case(plan: Plan, policy: str, num_requests: int) -> Case:
    """Return a run in which all requests come at once, to measure what the grid does not show."""
    load = Load("profiling", 0.0, 0.0)
    rate = 1e6
    experiment, requests = _experiment(plan, rate, num_requests, policy, plan.synthetic_rates, 0)
    return Case("real", load, policy, rate, experiment, requests)


def capacity(plan: Plan, profile: Profile) -> float:
    """Return the requests per second that a server which is never idle gets done, simulated.

    Returns:
        Without speculation.
    """
    num_requests = 20 * plan.max_num_seqs  # so many that filling and emptying count for little
    experiment, requests = _experiment(plan, 1e6, num_requests, "off", plan.synthetic_rates, 0)
    run = simulate(experiment, requests=requests, profile=profile, keeps_steps=False)
    return float(Summary(run).data["request_throughput"])


def acceptance_rates(rows: Iterable[RequestRow], max_draft_len: int) -> list[float]:
    """Return how often each position of a draft was accepted if all before it were.

    Args:
        rows: With ``accepted``.
        max_draft_len: In tokens.
    """
    tried, accepted = [1.0] * max_draft_len, [_PRIOR] * max_draft_len
    for row in rows:
        for _, draft_len, accepted_len in row.get("accepted", ()):
            for place in range(min(draft_len, accepted_len + 1)):
                tried[place] += 1
                accepted[place] += place < accepted_len
    return [hits / trials for hits, trials in zip(accepted, tried, strict=True)]
