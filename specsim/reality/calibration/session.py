"""A session with an engine: everything that is measured, in the order in which it is."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from specsim.profile import Profile
from specsim.reality.calibration.cases import Case, profiling_case
from specsim.reality.calibration.fitted_profile import make_profile, with_overhead, with_status
from specsim.reality.calibration.fitting import Medians, fit_costs, medians
from specsim.reality.calibration.grid import Sample
from specsim.reality.calibration.in_situ import Levels, in_situ_levels
from specsim.reality.calibration.plan import Plan
from specsim.reality.calibration.run_writer import StepRow, add_repetition
from specsim.reality.calibration.served import CalibratedEngine, Served, Spans
from specsim.reality.host_speed import HostSpeed

__all__ = ["Session", "Subject"]

_PROFILING = (("off", 2.0), ("static:k=5", 6.0), ("static:k=1", 1.0))
"""Policies that run before the cases, and requests per slot of the engine."""


@dataclass(frozen=True)
class Subject:
    """What is calibrated, and what it has to keep to."""

    engine: CalibratedEngine
    plan: Plan
    model: str
    """As in ``profiles/``, or the path of a config."""
    gpu: str
    stated_error: float
    """Of mean TPOT and mean latency, as a share."""


class Session:
    """Measures, and keeps what it measured.

    Args:
        folder: The runs are written below it as soon as they have ended.
    """

    def __init__(self, subject: Subject, folder: Path) -> None:
        self._subject = subject
        self._folder = folder
        self._schedule = subject.plan.grid.schedule(seed=0)
        self._rounds: list[list[Sample]] = []
        self.profiling: list[tuple[Case, Served]] = []
        """Runs for what a grid does not show: overhead, and how often drafts are accepted."""
        self._speeds: dict[str, list[HostSpeed]] = {}
        """Per case, of each repetition, if it was probed."""

    def measure_grid(self) -> None:
        """Warm the engine up and measure the first rounds."""
        grid, engine = self._subject.plan.grid, self._subject.engine
        list(engine.measure(grid.points))  # not counted
        for _ in range(grid.rounds):
            self._measure_round()

    def _measure_round(self) -> None:
        [points] = islice(self._schedule, 1)
        self._rounds.append(list(self._subject.engine.measure(points)))

    @property
    def measured(self) -> Medians:
        """The grid, as far as it has been measured."""
        return medians(self._rounds)

    @property
    def usual(self) -> float:
        """What a probe took in all runs, on average, seconds; 0 if the engine does not probe.

        The machine that the profile is of. In the grid, between other work, the same probe on the
        same machine takes less.
        """
        profiling = (served.host_speed for _, served in self.profiling)
        cases = (speed for each in self._speeds.values() for speed in each)
        known = [speed for speed in (*profiling, *cases) if speed is not None]
        return HostSpeed.usual(known) if known else 0.0

    @property
    def levels(self) -> Levels:
        """What steps cost in the profiling runs on the usual machine, beside the grid."""
        return in_situ_levels(fit_costs(self.measured), self._steps)

    @property
    def _steps(self) -> list[tuple[StepRow, Spans, float]]:
        """All steps of the profiling runs, and how slow the machine was."""
        return [
            each
            for _, served in self.profiling
            for each in zip(served.steps, served.spans, served.slowness(self.usual), strict=True)
        ]

    def profile(self) -> Profile:
        """Return what all that has been measured so far says; a candidate."""
        subject, measured = self._subject, self.measured
        costs = fit_costs(measured.scaled(*self.levels))
        profile = make_profile(
            subject.engine, measured, costs, model=subject.model, gpu=subject.gpu
        )
        if self.profiling:
            spans = [spans.without(slowness) for _, spans, slowness in self._steps]
            profile = with_overhead(profile, spans)
        return with_status(profile, is_validated=False, stated_error=subject.stated_error)

    def run_profiling(self) -> None:
        """Serve some requests, all at once."""
        subject, plan, profile = self._subject, self._subject.plan, self.profile()
        for policy, per_slot in _PROFILING:
            case = profiling_case(plan, policy, int(per_slot * plan.max_num_seqs))
            served = subject.engine.serve(
                case.experiment, profile, case.requests, is_synthetic=False
            )
            served.write(self._folder / "profiling" / case.name, _meta(subject, case))
            self.profiling.append((case, served))

    def run_cases(self, cases: list[Case], profile: Profile, tell: Callable[[str], None]) -> None:
        """Run every case some times, all of them one after the other, and the grid between them.

        Args:
            profile: What policies take for the cost of a step.
            tell: Told when all have run once more.
        """
        plan = self._subject.plan
        for number in range(plan.repetitions):
            for place, case in enumerate(cases):
                served = self._subject.engine.serve(
                    case.experiment, profile, case.requests, is_synthetic=case.is_synthetic
                )
                self._write(case, served, is_first=number == 0)
                if (speed := served.host_speed) is not None:
                    self._speeds.setdefault(case.name, []).append(speed)
                if place % plan.cases_per_round == 0:
                    self._measure_round()
            tell(f"repetition {number + 1} of {plan.repetitions} done")

    def speeds(self, case: Case) -> list[HostSpeed]:
        """Return how fast the machine was in each repetition; empty if the engine does not probe.

        Returns:
            On the clock of the run, which is the experiment's.
        """
        return self._speeds.get(case.name, [])

    def run_folder(self, case: Case) -> Path:
        """Return where the runs of a case are."""
        return self._folder / "runs" / case.name

    def _write(self, case: Case, served: Served, *, is_first: bool) -> None:
        meta = _meta(self._subject, case)
        if is_first:
            served.write(self.run_folder(case), meta)
            return
        with TemporaryDirectory(dir=self._folder, prefix=".repetition-") as scratch:
            served.write(Path(scratch), meta)
            add_repetition(self.run_folder(case), Path(scratch))


def _meta(subject: Subject, case: Case) -> dict[str, Any]:
    experiment = case.experiment
    options = experiment.engine.model_dump(mode="json", exclude_none=True, exclude_defaults=True)
    acceptance = experiment.acceptance
    assert acceptance is not None
    return {
        **subject.engine.description,
        "engine_kwargs": options,
        "kv_cache": {
            "num_gpu_blocks": experiment.engine.num_gpu_blocks,
            "block_size": experiment.engine.block_size,
        },
        "policy": experiment.effective_policy.model_dump(mode="json", exclude_none=True),
        "acceptance": acceptance.model_dump(mode="json", exclude_none=True)
        if case.is_synthetic
        else "real",
    }
