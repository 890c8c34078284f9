"""Calibration of the bundled torch engine: time the steps of a grid, then serve whole runs."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import chain, islice, product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
from pydantic import TypeAdapter

from specsim.core.atomic import new_file
from specsim.core.errors import ConfigError
from specsim.core.figures import percent
from specsim.core.request import Request
from specsim.core.settings import load_mapping
from specsim.core.step import StepLoad
from specsim.profile import Profile
from specsim.reality.calibration import (
    Calibration,
    CaseResult,
    Label,
    Load,
    Part,
    Tell,
    with_status,
    write_profile,
)
from specsim.reality.host_speed import HostSpeed
from specsim.reality.profile_fit import DISTURBED
from specsim.reality.profile_fit.grid import Costs, Medians, Sample, StepGrid, fit_costs, medians
from specsim.reality.profile_fit.points import robust_fit
from specsim.reality.run_writer import RequestRow, RunWriter, StepRow, add_repetition
from specsim.reality.validation import load_run
from specsim.results.metrics import Requests
from specsim.run.experiment import Experiment
from specsim.run.summary import summarized

if TYPE_CHECKING:
    from specsim.reality.torch_engine.engine import TorchEngine

_PROFILING = (("off", 2.0), ("static:k=5", 6.0), ("static:k=1", 1.0))  # policies, requests per slot
_PRIOR = 0.5  # acceptance rate of an untried position; weighs as one trial
_AT_ONCE = 1e6  # requests per second


@dataclass(frozen=True)
class Case(Label):
    """An experiment that is run on the real engine and also simulated."""

    experiment: Experiment  # as simulated; with expected rates if acceptance is real
    requests: list[Request]


@dataclass(frozen=True)
class TorchPlan:
    """The settings of one calibration."""

    grid: StepGrid
    loads: tuple[Load, ...]
    max_num_seqs: int
    max_model_len: int
    prompt_lens: tuple[int, int]  # least and most, uniform; likewise `output_lens`
    output_lens: tuple[int, int]
    repetitions: int  # real runs per case; their spread is the noise floor
    minutes: int  # target duration: a slower machine gets fewer requests, not more time
    cases_per_round: int
    """The grid is measured again after this many cases, so that a machine that slows down does so
    in the fitted data, too."""
    real_loads: tuple[str, ...]  # loads with real acceptance; synthetic acceptance is at all loads
    max_draft_len: int = 5
    policies: tuple[str, ...] = ("off", "static:k=1", "static:k=3", "static:k=5", "goodput")
    synthetic_rates: tuple[float, ...] = (0.75, 0.7, 0.65, 0.6, 0.55)
    """P(draft token j accepted | all before it were) of synthetic acceptance."""

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
        """Return all cases; `loads` are requests/s by name.

        `real_rates` are the expected acceptance of each draft position, given that all before it
        were accepted, for cases in which the models decide.
        """
        real_loads = [load for load in self.loads if load.name in self.real_loads]
        cases = []
        for kind, of_kind, rates, seed in (  # seeds of requests that no fit has seen
            ("synthetic", self.loads, self.synthetic_rates, 1),
            ("real", real_loads, real_rates, 2),
        ):
            for load, policy in product(of_kind, self.policies):
                rate = loads[load.name]
                made = self._experiment(rate, load.num_requests(rate), policy, rates, seed)
                cases.append(Case(kind, load, policy, rate, *made))
        return cases

    def profiling_case(self, policy: str, num_requests: int) -> Case:
        """Return a run with all requests at once, for costs that the grid does not show."""
        made = self._experiment(_AT_ONCE, num_requests, policy, self.synthetic_rates, 0)
        return Case("real", Load("profiling", 0.0, 0.0), policy, _AT_ONCE, *made)

    def capacity(self, profile: Profile) -> float:
        """Return the simulated requests/s of a never idle server without speculation."""
        num_requests = 20 * self.max_num_seqs  # enough that filling and emptying count for little
        case = self.profiling_case("off", num_requests)
        summary = summarized(case.experiment, requests=case.requests, profile=profile)
        return float(summary.data["request_throughput"])

    def _experiment(
        self, rate: float, num_requests: int, policy: str, rates: Sequence[float], seed: int
    ) -> tuple[Experiment, list[Request]]:
        engine: dict[str, Any] = dict(self.engine)
        if policy != "off":
            # A fixed k is written as num_speculative_tokens, which `specsim validate` reads.
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
    """Return how often each draft position was accepted, given that all before it were."""
    tried, accepted = [1.0] * max_draft_len, [_PRIOR] * max_draft_len
    for row in rows:
        for _, draft_len, accepted_len in row.get("accepted", ()):
            for place in range(min(draft_len, accepted_len + 1)):
                tried[place] += 1
                accepted[place] += place < accepted_len
    return [hits / trials for hits, trials in zip(accepted, tried, strict=True)]


@dataclass
class Served:
    """The recording of a run, with rows in the order of events."""

    requests: list[RequestRow] = field(default_factory=list)
    steps: list[StepRow] = field(default_factory=list)
    target_seconds: list[float] = field(default_factory=list)  # target pass of each step
    probes: list[tuple[float, float]] = field(default_factory=list)
    """Probes of the machine's speed, with the run's clock stopped: (instant, duration), seconds;
    empty if the engine has no probe."""

    @property
    def host_speed(self) -> HostSpeed | None:
        """The speed of the machine by its probes; None without probes."""
        return HostSpeed.of(self.probes) if self.probes else None

    def slowness(self, usual: float) -> list[float]:
        """Return probe time / `usual` (s) at each step; 1 without probes."""
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


class _Levels(NamedTuple):
    """Ratios of costs in runs to costs in the grid.

    Between two steps of a run the server schedules and records, which evicts parts of the models
    from the caches. So the grid determines the relative costs of steps, and runs determine their
    level.
    """

    target: float
    draft: float


@dataclass
class TorchSubject:
    """The bundled engine as a subject of calibration; it keeps all measurements."""

    engine: "TorchEngine"
    plan: TorchPlan
    model: str  # name in ``profiles/``, or path of a config
    gpu: str
    stated_error: float
    profiles: ClassVar[dict[str, str]] = {"": "profile.yaml"}

    def __post_init__(self) -> None:
        self._folder = Path()
        self._schedule = self.plan.grid.schedule(seed=0)
        self._rounds: list[list[Sample]] = []
        self._profiling: list[tuple[Case, Served]] = []  # for costs that the grid does not show
        self._cases: list[Case] = []
        self._speeds: dict[str, list[HostSpeed]] = {}  # of each repetition, by case
        self._capacity = 0.0
        self._accepted: list[float] = []  # acceptance per draft position, in profiling

    @property
    def description(self) -> dict[str, Any]:
        return self.engine.description

    @property
    def loads(self) -> tuple[Load, ...]:
        return self.plan.loads

    def start(self, folder: Path, tell: Tell) -> tuple[float, dict[str, Any]]:
        self._folder, plan = folder, self.plan
        grid = plan.grid
        tell(f"measuring {len(grid.points)} kinds of step, {grid.rounds} times each")
        list(self.engine.measure(grid.points))  # warm-up, not counted
        for _ in range(grid.rounds):
            self._measure_round()
        profile = self._profile()
        for policy, per_slot in _PROFILING:
            case = plan.profiling_case(policy, int(per_slot * plan.max_num_seqs))
            served = self._serve(case, profile, is_synthetic=False)
            served.write(folder / "profiling" / case.name, self._meta(case))
            self._profiling.append((case, served))
        profile = self._profile()
        write_profile(profile, folder / "profile.yaml")
        rows = (row for _, served in self._profiling for row in served.requests)
        self._accepted = acceptance_rates(rows, plan.max_draft_len)
        self._capacity = plan.capacity(profile)
        return self._capacity, {}

    def run(self, part: str, rates: dict[str, float], tell: Tell) -> None:
        plan, profile = self.plan, self._profile()
        self._cases = plan.cases(rates, self._accepted)
        lasts = plan.repetitions * sum(
            _simulated(case, profile)["ended_at"].max() for case in self._cases
        )
        tell(
            f"without speculation it serves {self._capacity:.1f} requests/s when it is never idle; "
            f"now {len(self._cases)} cases, {plan.repetitions} times each: {lasts / 60:.1f} minutes"
        )
        for number in range(plan.repetitions):
            for place, case in enumerate(self._cases):
                served = self._serve(case, profile, is_synthetic=case.is_synthetic)
                self._write(case, served, is_first=number == 0)
                if (speed := served.host_speed) is not None:
                    self._speeds.setdefault(case.name, []).append(speed)
                if place % plan.cases_per_round == 0:
                    self._measure_round()
            tell(f"repetition {number + 1} of {plan.repetitions} done")
        tell("simulating the same runs")

    def compare(self, part: str) -> Part:
        profile = self._profile()
        results = [self._compared(case, profile) for case in self._cases]
        with new_file(self._folder / "grid.csv") as temporary:
            temporary.write_text(medians(self._rounds).table())
        return Part(part, profile, results)

    def findings(self, found: Calibration) -> dict[str, Any]:
        measured = medians(self._rounds)
        return {
            "drift": measured.drift,
            "slowness_of_rounds": measured.levels.tolist(),
            "in_situ": self._levels(measured)._asdict(),
            "rates": found.rates,
            "acceptance_rates": self._accepted,
        }

    def _measure_round(self) -> None:
        [points] = islice(self._schedule, 1)
        self._rounds.append(list(self.engine.measure(points)))

    def _serve(self, case: Case, profile: Profile, *, is_synthetic: bool) -> Served:
        return self.engine.serve(case.experiment, profile, case.requests, is_synthetic=is_synthetic)

    def _write(self, case: Case, served: Served, *, is_first: bool) -> None:
        folder, meta = self._folder / "runs" / case.name, self._meta(case)
        if is_first:
            served.write(folder, meta)
            return
        with TemporaryDirectory(dir=self._folder, prefix=".repetition-") as scratch:
            served.write(Path(scratch), meta)
            add_repetition(folder, Path(scratch))

    def _meta(self, case: Case) -> dict[str, Any]:
        engine, acceptance = case.experiment.engine, case.experiment.acceptance
        assert acceptance is not None
        plain: Any = {"mode": "json", "exclude_none": True}
        return {
            **self.engine.description,
            "engine_kwargs": engine.model_dump(**plain, exclude_defaults=True),
            "kv_cache": {"num_gpu_blocks": engine.num_gpu_blocks, "block_size": engine.block_size},
            "policy": case.experiment.effective_policy.model_dump(**plain),
            "acceptance": acceptance.model_dump(**plain) if case.is_synthetic else "real",
        }

    def _usual(self) -> float:
        """Return the mean probe time over all runs, seconds; 0 if the engine has no probe.

        In the grid, between other work, the same probe takes less.
        """
        profiling = (served.host_speed for _, served in self._profiling)
        return HostSpeed.usual([*profiling, *chain.from_iterable(self._speeds.values())]) or 0.0

    def _steps(self) -> list[tuple[StepRow, float, float]]:
        """Return all steps of the profiling runs with target time, seconds, and slowness."""
        usual = self._usual()
        return [
            each
            for _, served in self._profiling
            for each in zip(
                served.steps, served.target_seconds, served.slowness(usual), strict=True
            )
        ]

    def _levels(self, measured: Medians) -> _Levels:
        """Return the ratios of costs in the profiling runs, on the usual machine, to the grid."""
        costs = fit_costs(measured)
        targets, drafts = [], []
        for row, real_target, slowness in self._steps():
            counts = (row["context_tokens"], row["batched_tokens"], row["num_requests"])
            load = StepLoad(*counts, row["prefill_tokens"])
            requests = costs.request_us * load.num_requests / 1e6
            target = costs.target.forward_time(load) + requests
            draft = costs.draft.draft_time(load, row.get("made_drafts", 0), target)
            targets.append((real_target, slowness * target))
            drafts.append((row["draft_seconds"], slowness * draft))
        return _Levels(_level(targets), _level(drafts))

    def _profile(self) -> Profile:
        measured, description = medians(self._rounds), self.engine.description
        costs = fit_costs(measured.scaled(*self._levels(measured)))
        loads = [point.load for point in measured.points]
        memory = {"kv_bytes_per_token": self.engine.drafter_kv_bytes}
        profile = Profile.model_validate(
            {
                "model": self.model,
                "gpu": self.gpu,
                "provenance": {
                    "engine": f"{description['engine']}, {description['dtype']}",
                    "source": "specsim calibrate",
                    "date": datetime.now(UTC).strftime("%Y-%m-%d"),
                    "notes": _notes(description["hardware"], measured, costs),
                },
                "target": costs.target,
                "drafts": {"draft_model": costs.draft.model_copy(update=memory)},
                "overhead": self._overhead(costs),
                "valid_range": {
                    "context_tokens": max(load.context_tokens for load in loads),
                    "batched_tokens": max(load.batched_tokens for load in loads),
                },
            }
        )
        return with_status(profile, is_validated=False, stated_error=self.stated_error)

    def _overhead(self, costs: Costs) -> dict[str, float]:
        steps = self._steps()
        if not steps:
            return {"request_us": costs.request_us}
        columns = np.array([(1.0, row["num_requests"]) for row, _, _ in steps])
        seconds = np.array(
            [(row["seconds"] - target - row["draft_seconds"]) / slow for row, target, slow in steps]
        )
        step, request = robust_fit(columns, seconds).tolist()
        return {"step_ms": step * 1e3, "request_us": costs.request_us + request * 1e6}

    def _compared(self, case: Case, profile: Profile) -> CaseResult:
        runs = load_run(self._folder / "runs" / case.name).runs
        untold = [_simulated(case, profile)] * len(runs)
        speeds, usual = self._speeds.get(case.name, []), self._usual()
        told = [
            _simulated(case, profile, {"incidents": speed.slowdowns(usual, 0.0)})
            for speed in speeds
        ]
        slowness = [speed.mean_slowness(usual) for speed in speeds]
        return CaseResult.of(case, runs, untold, slowness, told or untold)


def _level(pairs: list[tuple[float, float]]) -> float:
    """Return the ratio of measured to predicted times; 1 without any step."""
    found = np.array([(real, ours) for real, ours in pairs if real > 0 and ours > 0])
    if not len(found):
        return 1.0
    ratios = found[:, 0] / found[:, 1]
    real, ours = found[ratios < DISTURBED * np.median(ratios)].sum(axis=0)
    return float(real / ours)


def _notes(hardware: dict[str, Any], measured: Medians, costs: Costs) -> str:
    target, draft = np.abs(costs.target_errors), np.abs(costs.draft_errors)
    ends = [
        percent(float(np.percentile(errors, place)))
        for errors in (target, draft)
        for place in (50, 90)
    ]
    return (
        f"on {hardware['device_name']}, {hardware['threads']} thread(s); error of a fitted step: "
        f"target median {ends[0]}, 90th percentile {ends[1]}; draft {ends[2]}, {ends[3]}; drift "
        f"while measuring {percent(measured.drift, sign=True)}"
    )


def _simulated(case: Case, profile: Profile, update: Mapping[str, Any] | None = None) -> Requests:
    experiment = case.experiment.model_copy(update=update)
    return summarized(experiment, requests=case.requests, profile=profile).tables.requests
