"""From the runs of one engine to a profile, and the runs that it has not seen replayed with it."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from specsim.core.errors import ConfigError
from specsim.profile import Profile
from specsim.reality.calibration.at_speed import at_speed
from specsim.reality.calibration.cases import Label
from specsim.reality.calibration.fitted_profile import with_status
from specsim.reality.calibration.folder import write_profile
from specsim.reality.calibration.results import CaseResult
from specsim.reality.calibration.vllm_plan import COMPARED, ORDER, Speculation, load_of
from specsim.reality.calibration.vllm_subject import VllmSubject
from specsim.reality.host_speed import HostSpeed
from specsim.reality.profile_fit import fitted_profile, measured_steps, run_study
from specsim.reality.validation import (
    Replaced,
    Replay,
    RunFolder,
    Validation,
    compose,
    load_run,
    replay,
)

__all__ = ["EngineResult", "Replayed", "replay_engine"]


@dataclass(frozen=True)
class Replayed:
    """One run that the profile has not seen."""

    name: str
    validation: Validation
    at_speed: Validation
    """The simulation is told how fast the machine was, where that was probed."""
    slowness: float | None
    """Mean of the machine's during the run, relative to that during the runs that are fitted to."""


@dataclass(frozen=True)
class EngineResult:
    """One engine: its profile, and how well that says what it has not seen."""

    speculation: Speculation
    profile: Profile
    replays: list[Replayed]
    """In the order of their measurement."""
    results: list[CaseResult]
    """One for each load that is compared."""


def replay_engine(
    subject: VllmSubject,
    speculation: Speculation,
    runs: Path,
    rates: dict[str, float],
    path: Path,
) -> EngineResult:
    """Fit a profile to the runs of one engine, and replay those that are compared.

    Args:
        runs: Folder with a run folder for each of `ORDER`.
        rates: Requests per second of every load.
        path: The profile is written here, as a candidate.

    Raises:
        SpecsimError: A run cannot be read, fitted or simulated, or nothing was drafted in one.
    """
    fitted = [runs / name for name in ORDER if name not in COMPARED]
    profile = _fitted(subject, fitted)
    write_profile(profile, path)
    speeds = [speed for each in fitted if (speed := HostSpeed.of_run(each)) is not None]
    usual = HostSpeed.usual(speeds) if speeds else None
    replays = []
    for name in COMPARED:
        run = load_run(runs / name)
        if speculation.config is not None and not any(run.accepted):
            raise ConfigError(
                f"{run.path}: vLLM drafted nothing: prompt lookup found nothing that repeats; "
                "give a --draft-model"
            )
        composed = compose(run, Replaced(profile=str(path)))
        replays.append(_replayed(run, composed, usual))
    loads = dict.fromkeys(load_of(name) for name in COMPARED)
    results = [_result(subject, speculation, rates[load], replays, load) for load in loads]
    return EngineResult(speculation, profile, replays, results)


def _replayed(run: RunFolder, composed: Replay, usual: float | None) -> Replayed:
    validation, speed = replay(run, composed), run.host_speed
    if speed is None or usual is None:
        return Replayed(run.path.name, validation, validation, None)
    told = at_speed(composed.experiment, speed, usual, run.started_at)
    slowness = HostSpeed.usual([speed]) / usual
    return Replayed(
        run.path.name, validation, replay(run, replace(composed, experiment=told)), slowness
    )


def _result(
    subject: VllmSubject,
    speculation: Speculation,
    rate: float,
    replays: list[Replayed],
    load: str,
) -> CaseResult:
    mine = [each for each in replays if load_of(each.name) == load]
    return CaseResult.of(
        Label("recorded", subject.plan.load(load), speculation.policy, rate),
        [each.validation.measured for each in mine],
        [each.validation.simulated for each in mine],
        [each.slowness for each in mine if each.slowness is not None],
        [each.at_speed.simulated for each in mine],
    )


def _fitted(subject: VllmSubject, runs: Sequence[Path]) -> Profile:
    """Return a profile of measured runs; a candidate."""
    meta = _meta(runs[0])
    model = str(subject.model / "config.json")
    names = ", ".join(run.name for run in runs)
    points, measured = measured_steps(
        runs,
        model,
        subject.gpu(meta.get("hardware", {})),
        1,
        max_num_seqs=int(subject.plan.engine["max_num_seqs"]),
        max_num_batched_tokens=int(subject.plan.engine["max_num_batched_tokens"]),
    )
    study = run_study(points, "two_regime", 0, names, keeps_sum=True)
    profile = fitted_profile(study, points, measured, f"specsim calibrate: {names}")
    provenance = profile.provenance.model_copy(
        update={
            "engine": f"vLLM {meta.get('vllm_version')}",
            "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        }
    )
    return with_status(
        profile.model_copy(update={"provenance": provenance}),
        is_validated=False,
        stated_error=subject.stated_error,
    )


def _meta(run: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run / "meta.json").read_text(encoding="utf-8"))
    return found
