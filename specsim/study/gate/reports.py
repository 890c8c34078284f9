"""Verdicts for machines: JUnit XML, and annotations that GitHub shows beside a change."""

from itertools import groupby
from pathlib import Path
from xml.etree import ElementTree as Xml

from specsim.study.gate.verdict import Judgement

__all__ = ["github_annotations", "write_junit"]


def write_junit(judgement: Judgement, path: Path) -> None:
    """Write a judgement as JUnit XML: a suite per scenario, a case per metric."""
    root = Xml.Element("testsuites", name="specsim gate")
    for scenario, group in groupby(judgement.comparisons, key=lambda each: each.scenario):
        comparisons = list(group)
        failures = sum(each.verdict == "worse" for each in comparisons)
        suite = Xml.SubElement(
            root,
            "testsuite",
            name=scenario,
            tests=str(len(comparisons)),
            failures=str(failures),
            errors="0",
        )
        for each in comparisons:
            case = Xml.SubElement(suite, "testcase", classname=scenario, name=each.metric)
            if each.verdict == "worse":
                Xml.SubElement(case, "failure", message=each.text, type="regression")
            else:
                Xml.SubElement(case, "system-out").text = f"{each.verdict}: {each.text}"
    Xml.indent(root)
    Xml.ElementTree(root).write(path, encoding="utf-8", xml_declaration=True)


def github_annotations(judgement: Judgement) -> list[str]:
    """Return workflow commands: an error per regression, a warning per doubt."""
    lines = []
    for verdict, command in (("worse", "error"), ("uncertain", "warning")):
        for each in judgement.comparisons:
            if each.verdict == verdict and each.worsening > 0:
                title = _escaped(f"specsim gate: {each.scenario}")
                title = title.replace(":", "%3A").replace(",", "%2C")
                lines.append(f"::{command} title={title}::{_escaped(each.text)}")
    return lines


def _escaped(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
