"""Verdicts: which metrics of which scenarios got worse than allowed, beyond doubt.

A metric is worse if the change exceeds its tolerance and the confidence interval of the change
excludes that it did not get worse. The interval is paired if both sides have the same seeds, else
it is Welch's, and it holds for all comparisons of a gate together (Bonferroni): a change that
affects nothing fails a gate at most once in forty times, however many metrics and scenarios there
are. With a single seed there is no interval, and the tolerance alone decides.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from math import inf, isfinite
from pathlib import Path
from statistics import fmean, variance
from typing import Any, Literal
from xml.etree import ElementTree as Xml

from specsim.core.blame import fault
from specsim.core.errors import ConfigError, CrashError, InvariantError, PluginError, SpecsimError
from specsim.core.figures import digits_beside, percent
from specsim.core.settings import check_used, flattened, listed
from specsim.run.experiment import Experiment
from specsim.study.gate import (
    METRICS,
    GateResults,
    ScenarioResults,
    Suite,
    Tolerances,
    parse_tolerances,
    run_suite,
)
from specsim.study.inputs import Input, inputs_of
from specsim.study.paired import mean_and_half_width, student_t

Verdict = Literal["same", "within", "better", "uncertain", "worse"]

_ERROR = 0.05
_MAY_DIFFER = ("policy", "engine")
"""Fields that are compared; all others define the scenario, and must be equal."""

_REMEDY = "write the baseline anew with `specsim gate --update`"


@dataclass(frozen=True)
class MetricChange:
    """The change of one metric in one scenario."""

    scenario: str
    metric: str
    baseline: float  # mean over the seeds
    current: float
    worsening: float  # share of the baseline by which it is worse; negative if better
    half_width: float | None  # of the interval of `worsening`; None with a single seed
    tolerance: float
    verdict: Verdict

    @property
    def interval(self) -> tuple[float, float] | None:
        """The confidence interval of the worsening; None with a single seed."""
        if self.half_width is None or not isfinite(self.worsening):
            return None
        return self.worsening - self.half_width, self.worsening + self.half_width

    @property
    def may_be_worse(self) -> bool:
        """Whether it is within its tolerance as measured, but possibly beyond it."""
        return self.verdict == "within" and self.at_worst > self.tolerance

    @property
    def at_worst(self) -> float:
        """The upper end of the interval; with a single seed the worsening itself."""
        return self.worsening if self.interval is None else self.interval[1]

    @property
    def digits(self) -> int:
        """Decimals of percentages that show the difference from the tolerance."""
        return digits_beside(self.tolerance, self.worsening)

    @property
    def text(self) -> str:
        change, digits = "0 before", self.digits
        if isfinite(self.worsening):
            by = percent(abs(self.worsening), digits)
            change = f"{by} {'worse' if self.worsening > 0 else 'better'}"
        if self.interval is not None:
            low, high = (100 * each for each in self.interval)
            change += f" (interval {low:.{digits}f} to {high:.{digits}f} %)"
        return (
            f"{self.metric} {self.baseline:,.6g} -> {self.current:,.6g}: {change}, tolerance "
            f"{percent(self.tolerance, digits)}"
        )

    def to_dict(self) -> dict[str, Any]:
        worsening = self.worsening if isfinite(self.worsening) else None
        fields = {**asdict(self), "worsening": worsening, "interval": self.interval}
        del fields["half_width"]
        return fields


@dataclass(frozen=True)
class GateVerdict:
    """All comparisons of a gate."""

    comparisons: list[MetricChange]
    is_paired: bool  # whether both sides have the same seeds in every scenario
    notes: list[str]  # other differences between the two sides

    def of_verdict(self, verdict: Verdict) -> list[MetricChange]:
        return [each for each in self.comparisons if each.verdict == verdict]

    @property
    def is_passed(self) -> bool:
        return not self.of_verdict("worse")

    def to_dict(self) -> dict[str, Any]:
        return {
            "passed": self.is_passed,
            "paired": self.is_paired,
            "notes": self.notes,
            "comparisons": [each.to_dict() for each in self.comparisons],
        }


def gate(
    baseline: Path | str | GateResults,
    suite: Path | str,
    *,
    overrides: Iterable[str] | Mapping[str, object] = (),
    tolerances: Mapping[str, float] | None = None,
    workers: int = 1,
    on_progress: Callable[[int], None] | None = None,
) -> GateVerdict:
    """Run a suite with the seeds of a baseline, and judge whether it got worse.

    Args:
        suite: A YAML file; or JSON results, which are compared as they are, without overrides.
        tolerances: By metric, in place of the suite's own.
    """
    given = parse_tolerances(f"{name}={share}" for name, share in (tolerances or {}).items())
    before = baseline if isinstance(baseline, GateResults) else GateResults.load(Path(baseline))
    path, set_fields = Path(suite), listed(overrides)
    if path.suffix == ".json":
        if set_fields:
            raise ConfigError("--set: cannot be used with results; name a suite, YAML")
        return judge(before, GateResults.load(path), before.tolerances | given)
    current = Suite.load(path, set_fields)
    notes = check_same_suite(before, current)
    if any(old.seeds[0] != current.seeds(name)[0] for name, old in before.scenarios.items()):
        check_used(set_fields, ["seed"], "the baseline sets")
    own = current.tolerances or before.tolerances
    notes += [
        f"tolerances.{metric}: {tolerance:g} -> {own.get(metric, 'not gated')}"
        for metric, tolerance in before.tolerances.items()
        if own.get(metric) != tolerance and metric not in given
    ]
    allowed = own | given
    found = run_suite(current, allowed, baseline=before, workers=workers, on_progress=on_progress)
    return judge(before, found, allowed, notes)


def judge(
    baseline: GateResults, current: GateResults, tolerances: Tolerances, notes: Iterable[str] = ()
) -> GateVerdict:
    """Compare two revisions by their tolerances; a ConfigError if they cannot be compared."""
    _check_names(set(baseline.scenarios), set(current.scenarios))
    notes = list(notes)
    scenarios_of: dict[str, list[str]] = {}
    if baseline.specsim_version != current.specsim_version:
        notes.append(f"specsim {baseline.specsim_version} -> {current.specsim_version}")
    error = error_of_each(len(baseline.scenarios), tolerances)
    comparisons = []
    for name, old in baseline.scenarios.items():
        new = current.scenarios[name]
        for text in _differences(name, old, new.config, new.inputs):
            scenarios_of.setdefault(text, []).append(name)
        for metric, tolerance in tolerances.items():
            comparisons.append(_compare(name, metric, tolerance, (old, new), error))
    if any(each.verdict == "uncertain" for each in comparisons):
        notes += told_of_two_seeds((len(old.seeds) for old in baseline.scenarios.values()), error)
    for text, names in scenarios_of.items():
        everywhere = len(names) == len(baseline.scenarios)
        notes.append(text if everywhere else f"{', '.join(names)}: {text}")
    return GateVerdict(
        comparisons,
        all(old.seeds == current.scenarios[name].seeds for name, old in baseline.scenarios.items()),
        notes,
    )


def told_of_two_seeds(counts: Iterable[int], error: float) -> list[str]:
    """Return a warning if some scenario has only two seeds, whose intervals are very wide.

    Args:
        error: Probability that the interval of one comparison misses.
    """
    if 2 not in counts:
        return []
    times = student_t(1, error) / 2**0.5
    return [
        f"with 2 seeds a change is uncertain, and passes, unless it is {times:,.0f} times as large "
        "as its spread between them; set replications to 4 or more"
    ]


def error_of_each(num_scenarios: int, tolerances: Tolerances) -> float:
    """Return the error of one interval such that all comparisons together have one of 5 %."""
    return _ERROR / (num_scenarios * len(tolerances))


def check_same_suite(baseline: GateResults, suite: Suite) -> list[str]:
    """Raise, before anything is run, unless a suite has the scenarios of a baseline.

    Returns:
        Notes on fields of the suite that are not used, because the baseline decides them.
    """
    _check_names(set(baseline.scenarios), set(suite.scenarios))
    for name, old in baseline.scenarios.items():
        experiment = suite.experiment(name)
        _differences(name, old, experiment.without_seed(), inputs_of(experiment))
    counts = {len(old.seeds) for old in baseline.scenarios.values()} - {suite.replications}
    return [
        f"replications: {count} as in the baseline, not {suite.replications}; {_REMEDY}"
        for count in sorted(counts)
    ]


def _check_names(before: set[str], after: set[str]) -> None:
    for odd in sorted(before ^ after):
        side = "baseline" if odd in before else "current side"
        raise ConfigError(f"scenario '{odd}': only the {side} has it; {_REMEDY}")


def _differences(
    name: str, old: ScenarioResults, config: dict[str, Any], inputs: dict[str, Input]
) -> list[str]:
    """Return differences in the compared fields; raise if the scenario itself differs."""
    read = {
        field: (before, inputs[field])
        for field, before in old.inputs.items()
        if field in inputs and before.digest and inputs[field].digest
    }
    before, after = flattened(_completed(old.config, config)), flattened(config)
    found = []
    for field in sorted(before.keys() | after.keys() | read.keys()):
        values = [side.get(field, "nothing") for side in (before, after)]
        digests = {each.digest for each in read.get(field, ())}
        if len(digests) == 1 or (not digests and values[0] == values[1]):
            continue  # of a file the content counts, not its path
        if values[0] != values[1]:
            change = f"{field} was {values[0]!r} and is {values[1]!r}"
            short = f"{field}: {values[0]} -> {values[1]}"
        else:
            change = short = f"{read[field][1].name} has changed since the baseline"
        if field.split(".")[0] not in _MAY_DIFFER:
            raise ConfigError(f"scenario '{name}': {change}, so it is another scenario; {_REMEDY}")
        found.append(short)
    is_another = any(text.startswith("policy.kind:") for text in found)  # all its fields differ
    return [
        text
        for text in found
        if not (is_another and text.startswith("policy.")) or text.startswith("policy.kind:")
    ]


def _completed(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """Return a stored scenario with the defaults of fields that were added since."""
    tested = {field: new[field] for field in _MAY_DIFFER if field in new}
    try:
        known = Experiment.parse({**old, **tested}, "baseline").to_dict()
    except SpecsimError:  # it is another scenario, which is reported
        return old
    stored = {field: old[field] for field in _MAY_DIFFER if field in old}
    kept = {field: value for field, value in known.items() if field not in (*_MAY_DIFFER, "seed")}
    return kept | stored


def _compare(
    name: str,
    metric: str,
    tolerance: float,
    sides: tuple[ScenarioResults, ScenarioResults],
    error: float,
) -> MetricChange:
    for side in sides:
        if metric not in side.metrics:
            raise ConfigError(
                f"scenario '{name}': '{metric}' was not kept; {_REMEDY}, and the same tolerances"
            )
    before, after = (side.metrics[metric] for side in sides)
    is_paired = sides[0].seeds == sides[1].seeds
    if is_paired:
        changes = [b - a for a, b in zip(before, after, strict=True)]
        change, half_width = mean_and_half_width(changes, error)
    else:
        change, half_width = _welch(before, after, error)
    scale = fmean(before)
    worsening = _share(-change if METRICS[metric] else change, scale)
    if half_width is not None:
        half_width = _share(half_width, scale)
    is_same = is_paired and before == after
    return MetricChange(
        scenario=name,
        metric=metric,
        baseline=scale,
        current=fmean(after),
        worsening=worsening,
        half_width=half_width,
        tolerance=tolerance,
        verdict="same" if is_same else _verdict(worsening, half_width or 0.0, tolerance),
    )


def _share(value: float, scale: float) -> float:
    if value == 0:
        return 0.0
    return value / abs(scale) if scale else inf * value


def _verdict(worsening: float, half_width: float, tolerance: float) -> Verdict:
    if abs(worsening) <= tolerance:
        return "within"
    if isfinite(worsening) and abs(worsening) <= half_width:
        return "uncertain"
    return "worse" if worsening > 0 else "better"


def _welch(
    before: Sequence[float], after: Sequence[float], error: float
) -> tuple[float, float | None]:
    """Return the difference of two means and half its confidence interval (Welch 1947)."""
    change = fmean(after) - fmean(before)
    if min(len(before), len(after)) < 2:
        return change, None
    parts = [variance(side) / len(side) for side in (before, after)]
    if not sum(parts):
        return change, 0.0
    freedom = sum(parts) ** 2 / sum(
        part**2 / (len(side) - 1) for part, side in zip(parts, (before, after), strict=True)
    )
    return change, student_t(freedom, error) * sum(parts) ** 0.5


def write_junit(judgement: "GateVerdict | GateFailure", path: Path, title: str) -> None:
    """Write JUnit XML: a suite per scenario and a case per metric, or one case with an error.

    Args:
        title: Name of the gate, to tell several in one workflow apart.
    """
    root, title = Xml.Element("testsuites", name="specsim gate"), _printable(title)
    if isinstance(judgement, GateFailure):
        suite = _xml_suite(root, title, tests=1, errors=1)
        case = Xml.SubElement(suite, "testcase", classname=title, name="run")
        kind = "crash" if judgement.is_crash else "input"
        Xml.SubElement(case, "error", message=_printable(judgement.error), type=kind)
    else:
        for scenario, group in groupby(judgement.comparisons, key=lambda each: each.scenario):
            _add_scenario(root, f"{title}: {scenario}", list(group))
    Xml.indent(root)
    Xml.ElementTree(root).write(path, encoding="utf-8", xml_declaration=True)


def _printable(text: str) -> str:
    return "".join(c if c.isprintable() or c == "\n" else "?" for c in text)


def _add_scenario(root: Xml.Element, title: str, comparisons: list[MetricChange]) -> None:
    failures = sum(each.verdict == "worse" for each in comparisons)
    suite = _xml_suite(root, title, tests=len(comparisons), failures=failures)
    for each in comparisons:
        case = Xml.SubElement(suite, "testcase", classname=title, name=each.metric)
        if each.verdict == "worse":
            Xml.SubElement(case, "failure", message=each.text, type="regression")
        else:
            Xml.SubElement(case, "system-out").text = f"{each.verdict}: {each.text}"


def _xml_suite(
    root: Xml.Element, name: str, *, tests: int, failures: int = 0, errors: int = 0
) -> Xml.Element:
    counts = {"tests": str(tests), "failures": str(failures), "errors": str(errors)}
    return Xml.SubElement(root, "testsuite", {"name": name, **counts})


@dataclass(frozen=True)
class GateFailure:
    """The error because of which there is no verdict."""

    error: str
    is_crash: bool  # whether a run ended by a bug, not by wrong input

    @classmethod
    def of(cls, error: Exception) -> "GateFailure":
        bugs = (CrashError, InvariantError, PluginError)
        is_crash = isinstance(error, bugs) or not isinstance(error, SpecsimError)
        return cls(fault(error) if not isinstance(error, SpecsimError) else str(error), is_crash)

    def to_dict(self) -> dict[str, Any]:
        return {"passed": False, "error": self.error, "is_crash": self.is_crash}


def github_annotations(judgement: GateVerdict | GateFailure, title: str) -> list[str]:
    """Return workflow commands: an error per regression or failure, a warning per doubt."""
    if isinstance(judgement, GateFailure):
        return [_annotation("error", title, judgement.error)]
    return [
        _annotation(command, f"{title}: {each.scenario}", each.text)
        for verdict, command in (("worse", "error"), ("uncertain", "warning"))
        for each in judgement.comparisons
        if each.verdict == verdict and each.worsening > 0
    ]


def _annotation(command: str, title: str, text: str) -> str:
    title = _escaped(f"specsim gate: {title}").replace(":", "%3A").replace(",", "%2C")
    return f"::{command} title={title}::{_escaped(text)}"


def _escaped(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
