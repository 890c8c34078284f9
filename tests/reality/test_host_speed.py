"""How fast a machine was, by probes; and what `specsim profile fit` makes of it."""

import json
from pathlib import Path

import numpy as np
import pytest
from conftest import Run
from made_up_points import DECODE, coefficients
from test_profile_fit_runs import fit, write_run

from specsim.core.errors import ProfileError
from specsim.latency.measured import TwoRegime
from specsim.profile import load_profile
from specsim.reality.host_speed import HostSpeed


def test_slowness_is_the_mean_around_an_instant_or_the_nearest_probe() -> None:
    speed = HostSpeed.of([(1.1, 4.0), (1.0, 2.0), (5.0, 6.0)])
    instants = np.array([0.0, 1.05, 1.2, 2.9, 3.1, 9.0])
    assert speed.slowness(instants, 2.0) == pytest.approx([1.0, 1.5, 2.0, 2.0, 3.0, 3.0])
    assert HostSpeed.usual([speed, HostSpeed.of([(0.0, 8.0)])]) == pytest.approx(5.0)


def test_windows_follow_one_another_from_a_given_instant() -> None:
    at = np.arange(7.0, 9.0, 0.01)
    speed = HostSpeed(at, np.where(at < 8.0, 1.0, 3.0))
    windows = speed.slowdowns(2.0, start=7.5)
    assert [window.at for window in windows] == pytest.approx([0.25 * n for n in range(6)])
    assert [window.until for window in windows[:-1]] == [window.at for window in windows[1:]]
    assert windows[-1].until is None
    assert [window.factor for window in windows] == pytest.approx([0.5, 0.5, 1.5, 1.5, 1.5, 1.5])
    [only] = speed.slowdowns(1.0, start=20.0)  # everything happened before
    assert (only.at, only.until, only.factor) == (0.0, None, pytest.approx(3.0))


FILE_NAME = "host_speed.jsonl"


def probed(folder: Path, slowness: float) -> Path:
    """Make a run one on a machine that was so many times as slow as usual, and said so."""
    path = folder / "steps.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    now, probes = 100.0, []
    for row in rows:
        row["started_at"], row["seconds"] = now, slowness * row["seconds"]
        probes.append({"at": now, "seconds": 0.001 * slowness})
        now += row["seconds"]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / FILE_NAME).write_text("".join(json.dumps(probe) + "\n" for probe in probes))
    return folder


def test_a_fit_takes_out_how_fast_the_machine_was(tmp_path: Path, cli: Run) -> None:
    runs = [probed(write_run(tmp_path / str(slow)), slow) for slow in (0.5, 1.5)]
    assert fit(cli, *runs)[0] == 0
    target = load_profile("p.yaml").target
    assert isinstance(target, TwoRegime)
    assert coefficients(target.decode) == pytest.approx(DECODE, rel=1e-6)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ({"at": 1.0, "seconds": 0}, "line 1: seconds = 0: a probe takes time"),
        ({"at": 1.0}, "no column 'seconds'"),
        ({"at": 1.0, "seconds": -1}, "seconds = '-1'"),
    ],
)
def test_a_broken_file_is_named(
    line: dict[str, object], message: str, tmp_path: Path, cli: Run
) -> None:
    run = probed(write_run(tmp_path / "run"), 1.0)
    (run / FILE_NAME).write_text(json.dumps(line) + "\n")
    with pytest.raises(ProfileError):
        HostSpeed.of_run(run)
    code, _, errors = fit(cli, run)
    assert code == 2
    assert FILE_NAME in errors
    assert message in errors
