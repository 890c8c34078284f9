"""A calibration of a local vLLM from beginning to end: record, fit, replay, judge."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from specsim.core.errors import ConfigError, SpecsimError
from specsim.core.version import __version__
from specsim.reality.calibration.fitted_profile import with_status
from specsim.reality.calibration.folder import check_folder, write_json, write_profile
from specsim.reality.calibration.results import Judgement, judged, tells
from specsim.reality.calibration.run_writer import add_repetition
from specsim.reality.calibration.vllm_plan import COMPARED, ORDER, Speculation, load_of
from specsim.reality.calibration.vllm_replay import EngineResult, replay_engine
from specsim.reality.calibration.vllm_runs import VllmRun, record_runs
from specsim.reality.calibration.vllm_subject import VllmSubject
from specsim.reality.validation import load_run

__all__ = ["VllmCalibration", "calibrate_vllm", "engine_runs", "record_engine"]

Tell = Callable[[str], None]
_OFF = Speculation("off")
_TIMEOUT = 1800.0  # seconds of one engine at least, starting and compiling included


@dataclass
class VllmCalibration(Judgement):
    """What came of it."""

    capacity: float
    """Requests per second without speculation, when it is never idle."""
    rates: dict[str, float]
    """Requests per second of every load."""
    engines: list[EngineResult] = field(default_factory=list)

    @property
    def status(self) -> str:
        """Of each engine's profile."""
        return ", ".join(
            f"{each.speculation.name} {each.profile.provenance.status}" for each in self.engines
        )

    def validates(self, engine: EngineResult) -> bool:
        """Return whether one engine's profile keeps to the stated error, and its k to its order.

        And every case says something about it.
        """
        policy = engine.speculation.policy
        return all(
            judged(each, self.stated_error) and tells(each, self.stated_error)
            for each in engine.results
        ) and not any(policy in (swap.faster, swap.slower) for swap in self.swaps)

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain values."""
        return {
            "specsim_version": __version__,
            "status": {
                each.speculation.name: each.profile.provenance.status for each in self.engines
            },
            "stated_error": self.stated_error,
            "failed": [each.case.name for each in self.failed],
            "swaps": [vars(each) for each in self.swaps],
            "left_out": self.left_out,
            "capacity": self.capacity,
            "rates": self.rates,
            "cases": [each.to_dict() for each in self.results],
        }


def calibrate_vllm(subject: VllmSubject, folder: Path, tell: Tell) -> VllmCalibration:
    """Calibrate a local vLLM.

    The folder fills while this goes on; until its end ``meta.json`` says that it is incomplete.

    Args:
        folder: New, or empty.
        tell: Told what goes on, in a line.

    Raises:
        SpecsimError: vLLM fails, or a run cannot be read, fitted or written; what was measured
            before stays.
    """
    check_folder(folder)
    meta: dict[str, Any] = {
        "engine": "vllm",
        "model": str(subject.model),
        "engine_kwargs": subject.engine_kwargs(_OFF),
        "specsim_version": __version__,
    }
    write_json(folder / "meta.json", {**meta, "complete": False})
    full, hardware = _capacity(subject, folder)
    meta["hardware"] = hardware
    write_json(folder / "meta.json", {**meta, "complete": False})
    rates = {load.name: load.share * full for load in subject.plan.loads}
    tell(f"without speculation it serves {full:.2f} requests/s when it is never idle")
    found = VllmCalibration(subject.stated_error, [], full, rates)
    for speculation in subject.speculations:
        tell(f"{speculation.name}: {len(ORDER)} runs")
        runs = folder / "runs" / speculation.name
        record_engine(subject, speculation, runs, rates)
        profile = folder / "profiles" / f"{speculation.name}.yaml"
        try:
            engine = replay_engine(subject, speculation, runs, rates, profile)
        except SpecsimError as error:
            profile.unlink(missing_ok=True)  # nothing says how good it is
            if speculation.config is None:
                raise
            found.left_out[speculation.name] = str(error)
            tell(f"{speculation.name} is left out: {error}")
            continue
        found.engines.append(engine)
        found.results += engine.results
        write_json(folder / "calibration.json", {**found.to_dict(), "complete": False})
    found.engines = [_judged(found, engine, folder) for engine in found.engines]
    found.results.sort(key=lambda each: subject.plan.loads.index(each.case.load))  # as it is read
    write_json(folder / "calibration.json", {**found.to_dict(), "complete": True})
    write_json(folder / "meta.json", {**meta, "complete": True})
    return found


def record_engine(
    subject: VllmSubject, speculation: Speculation, folder: Path, rates: dict[str, float]
) -> None:
    """Measure all loads on one engine.

    Args:
        folder: Gets a run folder for each of `ORDER`; that of a first run also holds the requests
            of its repetition.
        rates: Requests per second of every load.

    Raises:
        ConfigError: vLLM failed, or did not record everything.
    """
    _record(subject, speculation, engine_runs(subject, folder, rates))
    for name in COMPARED:
        if (first := load_of(name)) != name:
            add_repetition(folder / first, folder / name)


def engine_runs(subject: VllmSubject, folder: Path, rates: dict[str, float]) -> list[VllmRun]:
    """Return what one engine is asked to serve.

    Args:
        rates: Requests per second of every load.

    Returns:
        In the order of `ORDER`.
    """
    vocab_size = subject.shape.vocab_size
    return [
        subject.plan.run(folder, name, rates[load_of(name)], vocab_size, subject.seed)
        for name in ORDER
    ]


def _record(subject: VllmSubject, speculation: Speculation, runs: list[VllmRun]) -> None:
    arriving = sum(run.arrivals[-1] for run in runs)
    record_runs(
        runs,
        subject.engine_kwargs(speculation),
        environment=subject.environment(speculation),
        probes=subject.device == "cpu",
        timeout_s=_TIMEOUT + 10 * arriving,
    )
    for run in runs:
        meta = json.loads((run.folder / "meta.json").read_text(encoding="utf-8"))
        ended = len(load_run(run.folder).rows)
        if not meta.get("complete") or ended != len(run.prompts):
            raise ConfigError(
                f"{run.folder}: {ended} of {len(run.prompts)} requests were recorded to their end; "
                "look for vLLM's error and measure again"
            )


def _capacity(subject: VllmSubject, folder: Path) -> tuple[float, dict[str, Any]]:
    """Return the requests per second of an engine that is never idle, and what it runs on."""
    run = subject.plan.rush(folder / "capacity", subject.shape.vocab_size, subject.seed)
    _record(subject, _OFF, [run])
    recorded = load_run(run.folder)
    subject.gpu(recorded.section("hardware"))  # before much more is measured
    [measured] = recorded.runs
    seconds = float(measured.ended_at.max() - measured.arrived_at.min())
    return len(run.prompts) / seconds, recorded.section("hardware")


def _judged(found: VllmCalibration, engine: EngineResult, folder: Path) -> EngineResult:
    """Write a profile anew, with its status."""
    profile = with_status(
        engine.profile, is_validated=found.validates(engine), stated_error=found.stated_error
    )
    write_profile(profile, folder / "profiles" / f"{engine.speculation.name}.yaml")
    return EngineResult(engine.speculation, profile, engine.replays, engine.results)
