"""A calibration from beginning to end, whatever the engine: measure, fit, simulate, judge."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import yaml

from specsim.core.atomic import new_file
from specsim.core.errors import ConfigError, SpecsimError
from specsim.core.version import __version__
from specsim.profile import Profile
from specsim.reality.calibration.results import CaseResult, Judgement, Load, judged, tells

Tell = Callable[[str], None]


class Started(NamedTuple):
    """What is known of an engine before the first case."""

    capacity: float
    """Requests per second without speculation, when it is never idle."""
    meta: dict[str, Any]
    """What it adds to ``meta.json``."""


@dataclass(frozen=True)
class Part:
    """Cases of which one profile is, and how well it says what they measured."""

    name: str
    """Empty where it is the only one."""
    profile: Profile
    results: list[CaseResult]


class Subject(Protocol):
    """An engine that is calibrated, and how; verbs in the order in which they are called."""

    @property
    def description(self) -> dict[str, Any]:
        """What it is, for ``meta.json``."""

    @property
    def loads(self) -> Sequence[Load]:
        """All of them, lightest first."""

    @property
    def stated_error(self) -> float:
        """What its profiles promise, of mean TPOT and mean latency, as a share."""

    @property
    def profiles(self) -> Mapping[str, str]:
        """Per part of the calibration the file of its profile; without speculation first."""

    def start(self, folder: Path, tell: Tell) -> Started:
        """Measure all that comes before the cases; the folder is that of the calibration."""

    def run(self, part: str, rates: dict[str, float], tell: Tell) -> None:
        """Run and record the cases of one part, at so many requests per second of each load."""

    def compare(self, part: str) -> Part:
        """Fit a profile, a candidate, to what was measured, and simulate the same cases."""

    def findings(self, found: "Calibration") -> dict[str, Any]:
        """Return what else goes into ``calibration.json``, as plain values."""


@dataclass
class Calibration(Judgement):
    """What came of it."""

    capacity: float
    """Requests per second without speculation, when the engine is never idle."""
    rates: dict[str, float]
    """Requests per second of every load."""
    parts: list[Part] = field(default_factory=list)
    findings: dict[str, Any] = field(default_factory=dict)

    @property
    def profile(self) -> Profile:
        """That of the first part, which may be the only one."""
        return self.parts[0].profile

    @property
    def statuses(self) -> dict[str, str]:
        """Of each part's profile."""
        return {each.name: str(each.profile.provenance.status) for each in self.parts}

    @property
    def status(self) -> str:
        """Of the profile, or of each."""
        return ", ".join(f"{name} {status}".strip() for name, status in self.statuses.items())

    def validates(self, part: Part) -> bool:
        """Return whether one part keeps to error and order, and every case says something."""
        policies = {each.case.policy for each in part.results}
        return all(
            judged(each, self.stated_error) and tells(each, self.stated_error)
            for each in part.results
        ) and not any({swap.faster, swap.slower} & policies for swap in self.swaps)

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain values."""
        return {
            "specsim_version": __version__,
            "status": self.statuses if self.parts[0].name else self.status,
            "stated_error": self.stated_error,
            "failed": [each.case.name for each in self.failed],
            "swaps": [vars(each) for each in self.swaps],
            **self.findings,
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
    meta = {**subject.description, "specsim_version": __version__}
    _write_json(folder / "meta.json", {**meta, "complete": False})
    capacity, more = subject.start(folder, tell)
    meta |= more
    _write_json(folder / "meta.json", {**meta, "complete": False})
    rates = {load.name: load.share * capacity for load in subject.loads}
    found = Calibration(subject.stated_error, [], capacity, rates)
    for name in subject.profiles:
        subject.run(name, rates, tell)
        try:
            part = subject.compare(name)
        except SpecsimError as error:
            if not found.parts:
                raise
            found.left_out[name] = str(error)
            tell(f"{name} is left out: {error}")
            continue
        found.parts.append(part)
        found.results += part.results
        if len(subject.profiles) > 1:
            _write_results(found, subject, folder, complete=False)
    _conclude(found, subject, folder)
    _write_results(found, subject, folder, complete=True)
    _write_json(folder / "meta.json", {**meta, "complete": True})
    return found


def _conclude(found: Calibration, subject: Subject, folder: Path) -> None:
    """Say in each profile what became of it, and put the cases in order."""
    for place, part in enumerate(found.parts):
        profile = with_status(
            part.profile, is_validated=found.validates(part), stated_error=found.stated_error
        )
        write_profile(profile, folder / subject.profiles[part.name])
        found.parts[place] = replace(part, profile=profile)
    names = [load.name for load in subject.loads]
    kinds = list(dict.fromkeys(each.case.acceptance for each in found.results))
    found.results.sort(
        key=lambda each: (kinds.index(each.case.acceptance), names.index(each.case.load.name))
    )


def _write_results(found: Calibration, subject: Subject, folder: Path, *, complete: bool) -> None:
    found.findings = subject.findings(found)
    ending = {"complete": complete} if len(subject.profiles) > 1 else {}
    _write_json(folder / "calibration.json", {**found.to_dict(), **ending})


def with_status(profile: Profile, *, is_validated: bool, stated_error: float) -> Profile:
    """Return a profile that says whether it has kept what it promises."""
    update = {"status": "validated" if is_validated else "candidate", "stated_error": stated_error}
    provenance = profile.provenance.model_copy(update=update)
    return profile.model_copy(update={"provenance": provenance})


def check_folder(folder: Path) -> None:
    """Refuse a folder that results would get lost in."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"{folder}: is there already and not empty; name a new folder (--out)")


def _write_json(path: Path, content: dict[str, Any]) -> None:
    with new_file(path) as temporary:
        temporary.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def write_profile(profile: Profile, path: Path) -> None:
    """Write a profile as YAML, as `load_profile` reads it."""
    written = profile.model_dump(mode="json", exclude_none=True, exclude_defaults=True)
    with new_file(path) as temporary:
        temporary.write_text(yaml.safe_dump(written, sort_keys=False, width=100))
