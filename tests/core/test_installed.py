"""Members that installed packages bring, by entry points."""

from importlib import import_module
from pathlib import Path

import pytest
from conftest import Run, tiny_config

from specsim.core.errors import ConfigError
from specsim.policies import POLICIES
from specsim.run.experiment import Experiment

CLASSES = """
from typing import Literal
from specsim.api import Policy

class Mine(Policy):
    kind: Literal["its_own_name"] = "its_own_name"
    k: int = 1

    def draft_lens(self, batch, memory):
        return self.k

class NoPolicy:
    pass
"""


def install(folder: Path, package: str, **entries: str) -> None:
    """Install a package that adds policies."""
    info = folder / f"{package}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    lines = [f"{name} = {package}:{where}\n" for name, where in entries.items()]
    (info / "entry_points.txt").write_text("[specsim.policies]\n" + "".join(lines))
    (folder / f"{package}.py").write_text(CLASSES)


def test_a_member_keeps_the_name_that_its_package_gives_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Run
) -> None:
    install(tmp_path, "lab_of_one", of_the_lab="Mine")
    monkeypatch.syspath_prepend(tmp_path)
    experiment = Experiment.parse({**tiny_config(), "policy": "of_the_lab:k=2"}, "test")
    assert experiment.to_dict()["policy"] == {"kind": "of_the_lab", "k": 2}
    assert Experiment.parse(experiment.to_dict(), "again") == experiment
    code, out, _ = cli("list", "policies")
    assert code == 0
    assert "of_the_lab" in out


@pytest.mark.parametrize(
    ("where", "why"),
    [("Gone", "AttributeError"), ("NoPolicy", "is not a Policy with a default 'kind'")],
)
def test_what_cannot_be_loaded_is_one_line_and_leaves_the_others_alone(
    where: str, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Run
) -> None:
    package = f"lab_{where.lower()}"
    install(tmp_path, package, broken=where, good="Mine", static="Mine")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match=f"'broken' of {package} cannot be loaded .*{why}"):
        POLICIES.find("broken")
    assert POLICIES.find("good").__name__ == "Mine"
    assert POLICIES.find("static").__module__ == "specsim.policies.static"
    with pytest.raises(ConfigError, match="no kind 'goood'; did you mean 'good'"):
        POLICIES.find("goood")
    code, _, err = cli("list", "policies")
    assert (code, err.count("\n")) == (2, 1)


def test_a_member_made_in_python_is_written_so_that_a_file_finds_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "made_in_python.py").write_text(CLASSES)
    monkeypatch.syspath_prepend(tmp_path)
    mine = import_module("made_in_python").Mine(k=2)
    experiment = Experiment.parse(tiny_config(), "test").replace(policy=mine)
    assert experiment.to_dict()["policy"] == {"kind": "made_in_python:Mine", "k": 2}
    (tmp_path / "elsewhere").mkdir()
    experiment.save(tmp_path / "elsewhere/saved.yaml")
    loaded = Experiment.load(tmp_path / "elsewhere/saved.yaml")
    assert loaded.policy == experiment.policy
    assert loaded.hash == experiment.hash
    assert experiment.replace(seed=1).to_dict()["policy"]["kind"] == "made_in_python:Mine"
