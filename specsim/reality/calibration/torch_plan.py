"""Plans for an engine of our own: what is measured, what is run, and what a run leaves."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import TypeAdapter

from specsim.core.errors import ConfigError
from specsim.core.request import Request
from specsim.core.settings import load_mapping
from specsim.profile import Profile
from specsim.reality.calibration import Label, Load
from specsim.reality.host_speed import HostSpeed
from specsim.reality.profile_fit.grid import StepGrid
from specsim.reality.run_writer import RequestRow, RunWriter, StepRow
from specsim.run.experiment import Experiment
from specsim.run.summary import summarized

_PRIOR = 0.5  # of a rate that was never tried; counts for one trial
_AT_ONCE = 1e6  # requests per second


@dataclass(frozen=True)
class Case(Label):
    """An experiment that is run on the real engine and simulated, one and the same."""

    experiment: Experiment  # as simulated; with the rates expected where acceptance is real
    requests: list[Request]


@dataclass(frozen=True)
class TorchPlan:
    """One calibration."""

    grid: StepGrid
    loads: tuple[Load, ...]
    max_num_seqs: int
    max_model_len: int
    prompt_lens: tuple[int, int]  # least and most, drawn uniformly; likewise `output_lens`
    output_lens: tuple[int, int]
    repetitions: int  # how often each real run is made; their spread is the noise floor
    minutes: int  # about how long it takes: a slower machine gets fewer requests, not more time
    cases_per_round: int
    """After so many cases the grid is measured once more: a machine that gets slower meanwhile does
    so for what is fitted, too."""
    real_loads: tuple[str, ...]  # loads at which acceptance is real, too; it is synthetic at all
    max_draft_len: int = 5
    policies: tuple[str, ...] = ("off", "static:k=1", "static:k=3", "static:k=5", "goodput")
    synthetic_rates: tuple[float, ...] = (0.75, 0.7, 0.65, 0.6, 0.55)
    """P(draft token j accepted | all before it were) where acceptance is synthetic."""

    @property
    def engine(self) -> dict[str, Any]:
        """The engine's options, in vLLM's names."""
        # Twice what all sequences can hold, so that no load runs out of blocks.
        tokens = 2 * self.max_num_seqs * (self.max_model_len + self.max_draft_len)
        return {
            "max_num_seqs": self.max_num_seqs,
            "max_num_batched_tokens": self.grid.max_batched_tokens,
            "max_model_len": self.max_model_len,
            "block_size": 16,
            "num_gpu_blocks": tokens // 16,
            "enable_prefix_caching": False,
            "async_scheduling": False,
        }

    def cases(self, loads: dict[str, float], real_rates: Sequence[float]) -> list[Case]:
        """Return all cases; loads are requests per second.

        Where the models decide, `real_rates` are expected: acceptance of each position of a draft,
        if all before it were accepted.
        """
        real_loads = [load for load in self.loads if load.name in self.real_loads]
        cases = []
        for kind, of_kind, rates, seed in (  # seeds of requests that nothing was fitted to
            ("synthetic", self.loads, self.synthetic_rates, 1),
            ("real", real_loads, real_rates, 2),
        ):
            for load, policy in product(of_kind, self.policies):
                rate = loads[load.name]
                made = self._experiment(rate, load.num_requests(rate), policy, rates, seed)
                cases.append(Case(kind, load, policy, rate, *made))
        return cases

    def profiling_case(self, policy: str, num_requests: int) -> Case:
        """Return a run in which all requests come at once, for what the grid does not show."""
        made = self._experiment(_AT_ONCE, num_requests, policy, self.synthetic_rates, 0)
        return Case("real", Load("profiling", 0.0, 0.0), policy, _AT_ONCE, *made)

    def capacity(self, profile: Profile) -> float:
        """Return the requests/s of a never idle server without speculation, simulated."""
        num_requests = 20 * self.max_num_seqs  # so many that filling and emptying count for little
        case = self.profiling_case("off", num_requests)
        summary = summarized(case.experiment, requests=case.requests, profile=profile)
        return float(summary.data["request_throughput"])

    def _experiment(
        self, rate: float, num_requests: int, policy: str, rates: Sequence[float], seed: int
    ) -> tuple[Experiment, list[Request]]:
        engine: dict[str, Any] = dict(self.engine)
        if policy != "off":
            # A fixed k is vLLM's num_speculative_tokens, so that `specsim validate` reads it so.
            fixed = policy.partition("static:k=")[2]
            engine["speculative_config"] = {
                "method": "draft_model",
                "num_speculative_tokens": int(fixed) if fixed else self.max_draft_len,
            }
        prompt, output = list(self.prompt_lens), list(self.output_lens)
        experiment = Experiment.parse(
            {
                "workload": {
                    "arrivals": {"kind": "poisson", "rate": rate},
                    "lengths": {"kind": "uniform", "prompt": prompt, "output": output},
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


def acceptance_rates(rows: Iterable[RequestRow], max_draft_len: int) -> list[float]:
    """Return how often each position of a draft was accepted if all before it were."""
    tried, accepted = [1.0] * max_draft_len, [_PRIOR] * max_draft_len
    for row in rows:
        for _, draft_len, accepted_len in row.get("accepted", ()):
            for place in range(min(draft_len, accepted_len + 1)):
                tried[place] += 1
                accepted[place] += place < accepted_len
    return [hits / trials for hits, trials in zip(accepted, tried, strict=True)]


@dataclass
class Served:
    """What came of a run; rows in the order in which they came about."""

    requests: list[RequestRow] = field(default_factory=list)
    steps: list[StepRow] = field(default_factory=list)
    target_seconds: list[float] = field(default_factory=list)  # of each step, the target's pass
    probes: list[tuple[float, float]] = field(default_factory=list)
    """When the machine's speed was probed, the run's clock standing still, and how long that took,
    seconds; empty if the engine does not probe."""

    @property
    def host_speed(self) -> HostSpeed | None:
        """What the probes say; None without."""
        return HostSpeed.of(self.probes) if self.probes else None

    def slowness(self, usual: float) -> list[float]:
        """Return how many times as long as `usual` (s) probes took at each step; 1 without any."""
        speed = self.host_speed
        if speed is None:
            return [1.0] * len(self.steps)
        middles = np.array([step["started_at"] + step["seconds"] / 2 for step in self.steps])
        found: list[float] = speed.slowness(middles, usual).tolist()
        return found

    def write(self, folder: Path, meta: dict[str, Any]) -> None:
        with RunWriter(folder, meta) as writer:
            for request in self.requests:
                writer.add_request(request)
            for step in self.steps:
                writer.add_step(step)
            for at, seconds in self.probes:
                writer.add_probe(at, seconds)


_PLANS = TypeAdapter(dict[str, TorchPlan]).validate_python(
    load_mapping(Path(__file__).with_name("torch_plans.yaml"), ConfigError)
)
QUICK, CPU, QUICK_CUDA, CUDA = (_PLANS[name] for name in ("quick", "cpu", "quick-cuda", "cuda"))
