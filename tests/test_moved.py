"""Old names of modules are those of the modules that have moved."""

import subprocess
import sys
import warnings
from importlib import import_module
from importlib.util import find_spec

import pytest

from specsim import _MOVED

OLD_AND_NEW = [
    ("specsim.simulate", "specsim.run.simulate"),
    ("specsim.sweep.plan", "specsim.study.sweep.plan"),
    ("specsim.calibration", "specsim.reality.calibration"),
    ("specsim.calibration.observe.outcome", "specsim.reality.observe"),
    ("specsim.calibration.run_writer", "specsim.reality.run_writer"),
    ("specsim.step", "specsim.core.step"),
    ("specsim.results.steps", "specsim.results.folder"),
    ("specsim.plots.timeline", "specsim.show.plots.run_plots"),
    ("specsim.render.runs", "specsim.show.render.run_tables"),
    ("specsim.workload.arrivals.poisson", "specsim.workload.arrivals.patterns"),
]


@pytest.mark.parametrize(("old", "new"), OLD_AND_NEW)
def test_an_old_name_gives_the_same_module_and_a_warning(old: str, new: str) -> None:
    module = import_module(new)
    sys.modules.pop(old, None)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        assert import_module(old) is module
    assert f"{old} is now {new}" in {str(warning.message) for warning in warned}
    assert module.__spec__ is not None
    assert module.__spec__.name == module.__name__ == new


@pytest.mark.parametrize("new", sorted(set(_MOVED.values())))
def test_what_has_moved_is_where_it_is_said_to_be(new: str) -> None:
    assert new not in _MOVED
    assert find_spec(f"specsim.{new}") is not None


def test_the_recorder_that_vllm_is_given_is_found_under_its_old_name() -> None:
    with pytest.warns(DeprecationWarning, match="is now specsim.reality.vllm.scheduler"):
        spec = find_spec("specsim.calibration.vllm")  # without vLLM it cannot be imported
    assert spec is not None
    assert spec.origin == "specsim.reality.vllm.scheduler"
    assert find_spec(spec.origin) is not None


def test_a_name_that_never_was_is_unknown() -> None:
    with pytest.raises(ModuleNotFoundError, match=r"No module named 'specsim\.nothing'"):
        import_module("specsim.nothing")


def test_the_command_line_uses_no_old_name() -> None:
    command = [sys.executable, "-W", "error::DeprecationWarning", "-m", "specsim", "--help"]
    assert subprocess.run(command, capture_output=True, check=False).returncode == 0
