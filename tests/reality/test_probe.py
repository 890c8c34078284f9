"""The probe of a CPU's speed: the clock stands still for it, and stalls are not its time."""

from time import sleep

import pytest

pytest.importorskip("torch")

import torch
from small_engine import SHAPE

from specsim.reality.clock import MachineClock
from specsim.reality.torch_engine import speed_probe as module
from specsim.reality.torch_engine.speed_probe import Probe

pytestmark = pytest.mark.extras


def test_the_clock_stands_still(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = MachineClock()
    probe = Probe(clock, SHAPE, torch.float32)

    def work() -> float:
        sleep(0.4)
        return 0.001

    monkeypatch.setattr(probe, "work", work)
    at, seconds = probe.run()
    assert seconds == 0.001
    assert clock.now() - at < 0.3


def test_it_is_done_again_after_a_stall(monkeypatch: pytest.MonkeyPatch) -> None:
    probe = Probe(MachineClock(), SHAPE, torch.float32)
    usual = probe.every / 10
    assert 0 < usual < 1
    took, waited = [3 * usual + 0.021, usual + 5.0, 3 * usual + 0.019], []
    monkeypatch.setattr(probe, "work", lambda: took.pop(0))
    monkeypatch.setattr(module, "sleep", waited.append)
    assert probe.run()[1] == 3 * usual + 0.019
    assert (took, len(waited)) == ([], 2)


def test_a_machine_that_stays_slow_is_believed_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    probe = Probe(MachineClock(), SHAPE, torch.float32)
    monkeypatch.setattr(probe, "work", lambda: 9.0)
    monkeypatch.setattr(module, "sleep", lambda seconds: None)
    assert probe.run()[1] == 9.0


def test_it_is_of_the_size_of_the_model_whatever_its_kind() -> None:
    experts = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 64}
    probe = Probe(MachineClock(), SHAPE.model_copy(update=experts), torch.bfloat16)
    assert probe.run()[1] > 0
