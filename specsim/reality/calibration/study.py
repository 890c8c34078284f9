"""A calibration from beginning to end: measure, fit, run for real, simulate, judge."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from specsim.core.atomic import new_file
from specsim.core.request import Request
from specsim.core.version import __version__
from specsim.profile import Profile
from specsim.reality.calibration.at_speed import at_speed
from specsim.reality.calibration.cases import Case, acceptance_rates, capacity, make_case
from specsim.reality.calibration.fitted_profile import with_status
from specsim.reality.calibration.fitting import Medians
from specsim.reality.calibration.folder import check_folder, write_json, write_profile
from specsim.reality.calibration.in_situ import Levels
from specsim.reality.calibration.plan import Plan
from specsim.reality.calibration.results import CaseResult, Judgement
from specsim.reality.calibration.session import Session, Subject
from specsim.reality.host_speed import HostSpeed
from specsim.reality.validation import Measured, load_run
from specsim.run.experiment import Experiment
from specsim.run.simulate import simulate
from specsim.run.summary import Summary

__all__ = ["Calibration", "Subject", "calibrate"]

Tell = Callable[[str], None]


@dataclass
class Calibration(Judgement):
    """What came of it."""

    profile: Profile
    measured: Medians
    rates: dict[str, float]
    """Requests per second of every load."""
    acceptance_rates: list[float]
    """Per position of a draft, as measured while profiling."""
    in_situ: Levels
    """What steps cost in the profiling runs, beside the grid; the profile is of the former, at the
    mean speed of the machine in all runs."""

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain values."""
        return {
            "specsim_version": __version__,
            "status": self.profile.provenance.status,
            "stated_error": self.stated_error,
            "failed": [each.case.name for each in self.failed],
            "swaps": [vars(each) for each in self.swaps],
            "drift": self.measured.drift,
            "slowness_of_rounds": self.measured.levels.tolist(),
            "in_situ": self.in_situ._asdict(),
            "rates": self.rates,
            "acceptance_rates": self.acceptance_rates,
            "cases": [each.to_dict() for each in self.results],
        }


def calibrate(subject: Subject, folder: Path, tell: Tell) -> Calibration:
    """Calibrate an engine.

    The folder fills while this goes on; until its end ``meta.json`` says that it is incomplete.

    Args:
        folder: New, or empty.
        tell: Told what goes on, in a line.

    Raises:
        SpecsimError: Something cannot be measured, fitted or written; what was measured before
            stays.
    """
    check_folder(folder)
    meta = {**subject.engine.description, "specsim_version": __version__}
    write_json(folder / "meta.json", {**meta, "complete": False})
    session, plan = Session(subject, folder), subject.plan
    tell(f"measuring {len(plan.grid.points)} kinds of step, {plan.grid.rounds} times each")
    session.measure_grid()
    session.run_profiling()
    first = session.profile()
    write_profile(first, folder / "profile.yaml")
    full = capacity(plan, first)
    rates = {load.name: load.share * full for load in plan.loads}
    accepted = acceptance_rates(
        (row for _, served in session.profiling for row in served.requests), plan.max_draft_len
    )
    cases = _cases(plan, rates, accepted)
    lasts = plan.repetitions * sum(
        _simulated(case.experiment, case.requests, first).ended_at.max() for case in cases
    )
    tell(
        f"without speculation it serves {full:.1f} requests/s when it is never idle; now "
        f"{len(cases)} cases, {plan.repetitions} times each: {lasts / 60:.1f} minutes"
    )
    session.run_cases(cases, first, tell)
    tell("simulating the same runs")
    found = _judged(session, cases, subject, rates, accepted)
    _write_grid(found.measured, folder / "grid.csv")
    write_profile(found.profile, folder / "profile.yaml")
    write_json(folder / "calibration.json", found.to_dict())
    write_json(folder / "meta.json", {**meta, "complete": True})
    return found


def _judged(
    session: Session,
    cases: list[Case],
    subject: Subject,
    rates: dict[str, float],
    accepted: list[float],
) -> Calibration:
    """Simulate every case by all that was measured meanwhile, and compare."""
    profile = session.profile()
    results = [_compared(session, case, profile) for case in cases]
    found = Calibration(
        profile=profile,
        measured=session.measured,
        rates=rates,
        acceptance_rates=accepted,
        in_situ=session.levels,
        stated_error=subject.stated_error,
        results=results,
    )
    found.profile = with_status(
        profile, is_validated=found.is_validated, stated_error=subject.stated_error
    )
    return found


def _compared(session: Session, case: Case, profile: Profile) -> CaseResult:
    runs = load_run(session.run_folder(case)).runs
    untold = [_simulated(case.experiment, case.requests, profile)] * len(runs)
    speeds, usual = session.speeds(case), session.usual
    told = [
        _simulated(at_speed(case.experiment, speed, usual, 0.0), case.requests, profile)
        for speed in speeds
    ]
    slowness = [HostSpeed.usual([speed]) / usual for speed in speeds]
    return CaseResult.of(case, runs, untold, slowness, told or untold)


def _cases(plan: Plan, rates: dict[str, float], accepted: list[float]) -> list[Case]:
    return [
        make_case(
            plan,
            load,
            rates[load.name],
            policy,
            accepted if is_real else plan.synthetic_rates,
            is_real=is_real,
        )
        for is_real in (False, True)
        for load in plan.loads
        if not is_real or load.name in plan.real_loads
        for policy in plan.policies
    ]


def _simulated(experiment: Experiment, requests: list[Request], profile: Profile) -> Measured:
    run = simulate(experiment, requests=requests, profile=profile, keeps_steps=False)
    tables = Summary(run).tables.requests
    return Measured(
        arrived_at=tables["arrived_at"],
        first_token_at=tables["first_token_at"],
        ended_at=tables["ended_at"],
        prompt_lens=tables["prompt_len"].astype(np.int64),
        output_lens=tables["output_len"].astype(np.int64),
    )


def _write_grid(measured: Medians, path: Path) -> None:
    """Write the grid as a table that ``specsim profile fit`` reads."""
    names = "context_tokens,batched_tokens,num_requests,prefill_tokens,seconds"
    lines = [f"{names},draft_len,draft_seconds"]
    for point, target, draft in zip(
        measured.points, measured.target_seconds, measured.draft_seconds, strict=True
    ):
        load = ",".join(map(str, point.load[:4]))
        lines.append(f"{load},{target:.6f},{point.draft_len},{draft:.6f}")
    with new_file(path) as temporary:
        temporary.write_text("\n".join(lines) + "\n")
