"""The clock of a machine that is not there all the time."""

import time
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest

from specsim.reality import clock as module
from specsim.reality.clock import Clock, MachineClock


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Its true time, the CPU that all runs on, and what has been taken away of both."""
    state = SimpleNamespace(now=100.0, cpu=0, stolen=0.0, other=500.0)
    monkeypatch.setattr(
        module, "stolen_seconds", lambda: (state.cpu, {0: state.stolen, 1: state.other})
    )
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: state.now))
    return state


def test_what_is_taken_away_for_long_is_no_time(machine: SimpleNamespace) -> None:
    clock = MachineClock()
    start = clock.now()
    machine.now += 0.4
    machine.stolen += 0.3
    assert clock.now() - start == pytest.approx(0.1)  # 0.3 is less than nine tenths of 0.4
    machine.now += 0.05
    machine.stolen += 0.01  # in small pieces: a slow machine, which probes see
    assert clock.now() - start == pytest.approx(0.15)


def test_it_never_runs_backwards(machine: SimpleNamespace) -> None:
    clock = MachineClock()
    start = clock.now()
    machine.stolen += 0.3  # counted late
    seen = []
    for _ in range(50):
        machine.now += 0.01
        seen.append(clock.now() - start)
    assert seen == sorted(seen)
    assert all(late > early for early, late in pairwise(seen))
    assert seen[29] == pytest.approx(0.03)
    assert seen[-1] == pytest.approx(0.2)


def test_another_cpu_has_another_count(machine: SimpleNamespace) -> None:
    clock = MachineClock()
    start = clock.now()
    machine.now += 0.1
    machine.other += 0.08  # which nobody needed
    assert clock.now() - start == pytest.approx(0.1)
    machine.now += 0.3
    machine.cpu = 1
    assert clock.now() - start == pytest.approx(0.4)
    machine.now += 0.3
    machine.cpu = 0
    machine.other += 0.25  # taken away before it moved
    assert clock.now() - start == pytest.approx(0.45)


def test_it_goes_on_from_where_it_was(machine: SimpleNamespace) -> None:
    clock = MachineClock()
    start = clock.now()
    machine.now += 0.1
    at = clock.now()
    machine.now += 0.3
    machine.stolen += 0.25  # within what does not count, so not once more
    clock.resume(at)
    machine.now += 0.05
    assert clock.now() - start == pytest.approx(0.15)


def test_on_this_machine_it_keeps_up_with_the_plain_one() -> None:
    clock, plain = MachineClock(), Clock()
    start, from_ = clock.now(), plain.now()
    time.sleep(0.05)
    assert 0 <= clock.now() - start <= plain.now() - from_ + 1e-3
    assert all(seconds >= 0 for seconds in module.stolen_seconds()[1].values())


def test_where_nothing_is_counted_nothing_is_taken_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "STAT", tmp_path / "stat")
    (tmp_path / "stat").write_text("cpu  1 2 3 4 5 6 7 8 9 10\n")
    assert module.stolen_seconds()[1] == {}
    assert MachineClock().now() > 0
    monkeypatch.setattr(module, "IS_LINUX", False)
    assert module.stolen_seconds() == (0, {})
