"""The site is built, without a warning and without anything from elsewhere."""

import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml
from conftest import ROOT
from pages import name
from reference_tables import CONTENTS, page

from specsim.core.version import __version__

REFERENCE = sorted((ROOT / "docs/reference").glob("*.md"))


@pytest.mark.parametrize("path", REFERENCE, ids=name)
def test_the_reference_is_up_to_date(path: Path) -> None:
    assert path.read_text(encoding="utf-8") == page(path), "make reference writes it anew"


def test_every_generated_part_is_on_a_page() -> None:
    text = "".join(path.read_text() for path in REFERENCE)
    assert sorted(re.findall(r"<!-- generated: ([\w-]+) -->", text)) == sorted(CONTENTS)
    assert text.count("| --- |") > 100


@pytest.mark.skipif(
    find_spec("mkdocs") is None or find_spec("material") is None,
    reason="mkdocs-material is not installed; `make docs` installs it",
)
def test_site_builds(tmp_path: Path) -> None:
    site = tmp_path / "site"
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(site)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (site / "reference" / "commands.html").read_text().count("<table>") > 20
    for each in site.rglob("*.html"):
        loaded = re.findall(
            r'<(?:script|link|img)[^>]+(?:src|href)="(https?:[^"]+)"', each.read_text()
        )
        assert not loaded, f"{each.name} loads {loaded}"


def test_the_citation_is_of_this_version() -> None:
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert (cited["version"], cited["license"]) == (__version__, "Apache-2.0")


@pytest.mark.parametrize("path", sorted((ROOT / ".github").rglob("*.yml")), ids=lambda p: p.name)
def test_forms_and_workflows_are_yaml(path: Path) -> None:
    data = yaml.safe_load(path.read_text())
    if path.parent.name == "workflows":
        assert {"lint", "test", "docs"} <= set(data["jobs"])
    elif path.name == "config.yml":
        assert data == {"blank_issues_enabled": True}
    else:
        assert {"name", "description", "body"} <= set(data)
