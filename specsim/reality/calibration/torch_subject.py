"""Calibration of an engine of our own: steps of a grid are timed, then whole runs are served."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import chain, islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np

from specsim.core.atomic import new_file
from specsim.core.figures import percent
from specsim.core.step import StepLoad
from specsim.profile import Profile
from specsim.reality.calibration import (
    Calibration,
    CaseResult,
    Load,
    Part,
    Tell,
    with_status,
    write_profile,
)
from specsim.reality.calibration.torch_plan import Case, Served, TorchPlan, acceptance_rates
from specsim.reality.host_speed import HostSpeed
from specsim.reality.profile_fit import DISTURBED
from specsim.reality.profile_fit.grid import Costs, Medians, Sample, fit_costs, medians
from specsim.reality.profile_fit.regression import robust_fit
from specsim.reality.run_writer import StepRow, add_repetition
from specsim.reality.validation import load_run
from specsim.results.metrics import Requests
from specsim.run.summary import summarized

if TYPE_CHECKING:
    from specsim.reality.torch_engine.engine import TorchEngine

_PROFILING = (("off", 2.0), ("static:k=5", 6.0), ("static:k=1", 1.0))  # policies, requests per slot


class _Levels(NamedTuple):
    """How many times as much something costs in runs as in the grid.

    Between two steps of a run a server schedules, counts and writes down, and the caches hold less
    of the models afterwards. So a grid settles how the costs of steps compare, and runs settle
    their level.
    """

    target: float
    draft: float


@dataclass
class TorchSubject:
    """An engine that is calibrated; everything that is measured is kept here."""

    engine: "TorchEngine"
    plan: TorchPlan
    model: str  # as in ``profiles/``, or the path of a config
    gpu: str
    stated_error: float
    profiles: ClassVar[dict[str, str]] = {"": "profile.yaml"}

    def __post_init__(self) -> None:
        self._folder = Path()
        self._schedule = self.plan.grid.schedule(seed=0)
        self._rounds: list[list[Sample]] = []
        self._profiling: list[tuple[Case, Served]] = []  # for what a grid does not show
        self._cases: list[Case] = []
        self._speeds: dict[str, list[HostSpeed]] = {}  # per case, of each repetition
        self._capacity = 0.0
        self._accepted: list[float] = []  # rates per position of a draft, while profiling

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
        list(self.engine.measure(grid.points))  # not counted
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
        """Return what a probe took in all runs, on average, seconds; 0 if the engine has none.

        In the grid, between other work, the same probe on the same machine takes less.
        """
        profiling = (served.host_speed for _, served in self._profiling)
        return HostSpeed.usual([*profiling, *chain.from_iterable(self._speeds.values())]) or 0.0

    def _steps(self) -> list[tuple[StepRow, float, float]]:
        """Return all steps of the profiling runs, seconds of the target, and how slow all was."""
        usual = self._usual()
        return [
            each
            for _, served in self._profiling
            for each in zip(
                served.steps, served.target_seconds, served.slowness(usual), strict=True
            )
        ]

    def _levels(self, measured: Medians) -> _Levels:
        """Return what steps cost in the profiling runs on the usual machine, beside the grid."""
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
    """Return how many times as long as predicted something took; 1 of what no step has."""
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
