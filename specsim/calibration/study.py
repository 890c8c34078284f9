"""A calibration from beginning to end: measure, fit, run for real, simulate, judge."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import yaml

from specsim.atomic import new_file
from specsim.calibration.cases import (
    Case,
    acceptance_rates,
    capacity,
    make_case,
    profiling_case,
)
from specsim.calibration.fitted_profile import make_profile, with_overhead, with_status
from specsim.calibration.fitting import Medians, fit_costs, medians
from specsim.calibration.plan import Plan
from specsim.calibration.results import CaseResult, Swap, judged, swaps
from specsim.calibration.run_writer import add_repetition
from specsim.calibration.served import CalibratedEngine, Served
from specsim.deployment import Deployment
from specsim.errors import ConfigError
from specsim.profile import Profile
from specsim.simulate import simulate
from specsim.step import StepLoad
from specsim.summary import Summary
from specsim.validation import Measured, load_run
from specsim.version import __version__

__all__ = ["Calibration", "Subject", "calibrate"]

Tell = Callable[[str], None]

_PROFILING = (("off", 2.0), ("static:k=5", 2.0), ("static:k=1", 1.0))
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


@dataclass
class Calibration:
    """What came of it."""

    profile: Profile
    measured: Medians
    rates: dict[str, float]
    """Requests per second of every load."""
    acceptance_rates: list[float]
    """Per position of a draft, as measured while profiling."""
    in_situ: dict[str, float]
    """Predicted over measured time of the steps of the profiling runs."""
    stated_error: float
    results: list[CaseResult] = field(default_factory=list)

    @property
    def swaps(self) -> list[Swap]:
        """Where the order of k is wrong."""
        return swaps(self.results)

    @property
    def failed(self) -> list[CaseResult]:
        """Cases that do not keep to the stated error."""
        return [each for each in self.results if not judged(each, self.stated_error)]

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain values."""
        return {
            "specsim_version": __version__,
            "status": self.profile.provenance.status,
            "stated_error": self.stated_error,
            "failed": [each.case.name for each in self.failed],
            "swaps": [vars(each) for each in self.swaps],
            "drift": self.measured.drift,
            "in_situ": self.in_situ,
            "rates": self.rates,
            "acceptance_rates": self.acceptance_rates,
            "cases": [each.to_dict() for each in self.results],
        }


def calibrate(subject: Subject, folder: Path, tell: Tell) -> Calibration:
    """Calibrate an engine.

    The folder fills while this goes on; until its end ``meta.json`` says that it is incomplete.

    Parameters
    ----------
    subject : Subject
    folder : Path
        New, or empty.
    tell : callable
        Told what goes on, in a line.

    Returns
    -------
    Calibration

    Raises
    ------
    SpecsimError
        Something cannot be measured, fitted or written; what was measured before stays.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"{folder}: is there already and not empty; name a new folder (--out)")
    meta = {**subject.engine.description, "specsim_version": __version__}
    _write_json(folder / "meta.json", {**meta, "complete": False})
    measured = _measure_grid(subject, folder, tell)
    found = _profiled(subject, measured, folder, tell)
    cases = _cases(subject, found)
    _run_all(subject, found.profile, cases, folder, tell)
    tell("simulating the same runs")
    found.results = [
        CaseResult.of(
            case, load_run(_run_folder(folder, case)).runs, _simulated(case, found.profile)
        )
        for case in cases
    ]
    is_validated = not found.failed and not found.swaps
    found.profile = with_status(
        found.profile, is_validated=is_validated, stated_error=subject.stated_error
    )
    _write_profile(found.profile, folder)
    _write_json(folder / "calibration.json", found.to_dict())
    _write_json(folder / "meta.json", {**meta, "complete": True})
    return found


def _measure_grid(subject: Subject, folder: Path, tell: Tell) -> Medians:
    grid = subject.plan.grid
    tell(f"measuring {len(grid.points)} kinds of step, {grid.rounds} times each")
    list(subject.engine.measure(grid.points))  # warm-up: not counted
    measured = medians([list(subject.engine.measure(points)) for points in grid.schedule(seed=0)])
    _write_grid(measured, folder / "grid.csv")
    tell(f"the second half of the rounds took {measured.drift:+.1%} longer than the first")
    return measured


def _profiled(subject: Subject, measured: Medians, folder: Path, tell: Tell) -> Calibration:
    """Fit the grid; then run some requests for what the grid does not show."""
    plan, engine = subject.plan, subject.engine
    grid_only = make_profile(
        engine, measured, fit_costs(measured), model=subject.model, gpu=subject.gpu
    )
    runs: list[tuple[Case, Served]] = []
    for policy, per_slot in _PROFILING:
        case = profiling_case(plan, policy, int(per_slot * plan.max_num_seqs))
        served = engine.serve(case.experiment, grid_only, case.requests, is_synthetic=False)
        served.write(folder / "profiling" / case.name, _meta(subject, case))
        runs.append((case, served))
    spans = [each for _, served in runs for each in served.spans]
    profile = with_status(
        with_overhead(grid_only, spans), is_validated=False, stated_error=subject.stated_error
    )
    _write_profile(profile, folder)
    full = capacity(plan, profile)
    tell(f"fitted; without speculation it serves {full:.1f} requests/s when it is never idle")
    rows = [row for _, served in runs for row in served.requests]
    return Calibration(
        profile=profile,
        measured=measured,
        rates={load.name: load.share * full for load in plan.loads},
        acceptance_rates=acceptance_rates(rows, plan.max_draft_len),
        in_situ={case.policy: _in_situ(case, served, profile) for case, served in runs},
        stated_error=subject.stated_error,
    )


def _in_situ(case: Case, served: Served, profile: Profile) -> float:
    """Return the predicted over the measured time of all steps of a run."""
    costs = Deployment.of(case.experiment, profile).costs
    predicted = 0.0
    for row in served.steps:
        load = StepLoad(
            row["context_tokens"], row["batched_tokens"], row["num_requests"], row["prefill_tokens"]
        )
        target = costs.target_time(load)
        predicted += target + costs.overhead_time(load.num_requests)
        predicted += costs.draft_time(load, row.get("made_drafts", 0), target)
    return predicted / sum(row["seconds"] for row in served.steps)


def _cases(subject: Subject, found: Calibration) -> list[Case]:
    plan = subject.plan
    return [
        make_case(
            plan,
            load,
            found.rates[load.name],
            policy,
            found.acceptance_rates if is_real else plan.synthetic_rates,
            is_real=is_real,
        )
        for is_real in (False, True)
        for load in plan.loads
        if not is_real or load.name in plan.real_loads
        for policy in plan.policies
        # Without drafts there is nothing to accept, so once is enough where both stages meet.
    ]


def _run_all(
    subject: Subject, profile: Profile, cases: list[Case], folder: Path, tell: Tell
) -> None:
    """Run every case so many times, one after the other, so that a drift hits all alike."""
    repetitions = subject.plan.repetitions
    lasts = sum(_simulated(case, profile).ended_at.max() for case in cases)
    tell(f"{len(cases)} cases, {repetitions} times each: {repetitions * lasts / 60:.1f} minutes")
    for number in range(repetitions):
        for case in cases:
            served = subject.engine.serve(
                case.experiment, profile, case.requests, is_synthetic=case.is_synthetic
            )
            first = _run_folder(folder, case)
            if number == 0:
                served.write(first, _meta(subject, case))
                continue
            with TemporaryDirectory(dir=folder, prefix=".repetition-") as scratch:
                served.write(Path(scratch), _meta(subject, case))
                add_repetition(first, Path(scratch))
        tell(f"repetition {number + 1} of {repetitions} done")


def _simulated(case: Case, profile: Profile) -> Measured:
    tables = Summary(
        simulate(case.experiment, requests=case.requests, profile=profile)
    ).tables.requests
    return Measured(
        arrived_at=tables["arrived_at"],
        first_token_at=tables["first_token_at"],
        ended_at=tables["ended_at"],
        prompt_lens=tables["prompt_len"].astype(np.int64),
        output_lens=tables["output_len"].astype(np.int64),
    )


def _run_folder(folder: Path, case: Case) -> Path:
    return folder / "runs" / case.name


def _meta(subject: Subject, case: Case) -> dict[str, Any]:
    engine = case.experiment.engine
    options = engine.model_dump(mode="json", exclude_none=True, exclude_defaults=True)
    policy = case.experiment.effective_policy.model_dump(mode="json", exclude_none=True)
    acceptance = case.experiment.acceptance
    return {
        **subject.engine.description,
        "engine_kwargs": options,
        "kv_cache": {"num_gpu_blocks": engine.num_gpu_blocks, "block_size": engine.block_size},
        "policy": policy,
        "acceptance": acceptance.model_dump(mode="json", exclude_none=True)
        if case.is_synthetic and acceptance is not None
        else "real",
    }


def _write_json(path: Path, content: dict[str, Any]) -> None:
    with new_file(path) as temporary:
        temporary.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def _write_profile(profile: Profile, folder: Path) -> None:
    written = profile.model_dump(mode="json", exclude_none=True, exclude_defaults=True)
    with new_file(folder / "profile.yaml") as temporary:
        temporary.write_text(yaml.safe_dump(written, sort_keys=False, width=100))


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
