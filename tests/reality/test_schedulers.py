"""vLLM's schedulers with a policy in them, where something fails; of vLLM there are stand-ins."""

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from specsim.reality.vllm.control import DecisionLog


@dataclass
class SchedulerOutput:
    num_scheduled_tokens: dict[str, int] = field(default_factory=dict)
    num_spec_tokens_to_schedule: int = 5
    scheduled_cached_reqs: Any = field(
        default_factory=lambda: SimpleNamespace(num_computed_tokens=[], num_output_tokens=[])
    )


class VllmScheduler:
    """One that has nothing to schedule."""

    def __init__(self, vllm_config: Any) -> None:
        self.running: list[Any] = []
        self.requests: dict[str, Any] = {}
        self.block_size = 16
        self.block_pool = SimpleNamespace(get_num_free_blocks=lambda: 10)
        self.kv_cache_manager = SimpleNamespace(block_pool=self.block_pool)
        self.is_shut_down = False

    def schedule(self) -> SchedulerOutput:
        output = SchedulerOutput()
        self._update_after_schedule(output)
        return output

    def _update_after_schedule(self, scheduler_output: SchedulerOutput) -> None:
        pass

    def shutdown(self) -> None:
        self.is_shut_down = True


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[], Any]:
    """Return what starts a scheduler whose policy logs its decisions in the file `log`."""
    parts = ("vllm", "vllm.v1", "vllm.v1.core", "vllm.v1.core.sched")
    own = {
        "async_scheduler": {"AsyncScheduler": type("AsyncScheduler", (VllmScheduler,), {})},
        "output": {"SchedulerOutput": SchedulerOutput},
        "scheduler": {"Scheduler": VllmScheduler},
    }
    for name in parts:
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    for last, names in own.items():
        module = ModuleType(f"{parts[-1]}.{last}")
        vars(module).update(names)
        monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.delitem(sys.modules, "specsim.vllm", raising=False)
    made = import_module("specsim.vllm").Scheduler
    monkeypatch.delitem(sys.modules, "specsim.vllm")
    control = {"policy": "goodput", "log": str(tmp_path / "log")}
    config = SimpleNamespace(
        additional_config={"specsim": control},
        speculative_config=SimpleNamespace(method="eagle3", num_speculative_tokens=5),
        scheduler_config=SimpleNamespace(max_num_seqs=8),
        parallel_config=SimpleNamespace(data_parallel_index=0),
    )
    return lambda: made(config)


def fails(*args: Any) -> Any:
    raise OSError("mine")


def test_what_led_to_a_failure_is_in_the_log(start: Callable[[], Any], tmp_path: Path) -> None:
    scheduler = start()
    for _ in range(5):
        assert scheduler.schedule().num_spec_tokens_to_schedule in range(6)
    scheduler.block_pool.get_num_free_blocks = fails
    assert scheduler.schedule().num_spec_tokens_to_schedule == 5  # as the server was configured
    assert scheduler.controller is None
    steps = [json.loads(line).get("step") for line in (tmp_path / "log").read_text().splitlines()]
    assert steps == [None, 0, 1, 2, 3, 4]


def test_a_server_ends_though_its_log_cannot_be_written(
    start: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    scheduler = start()
    scheduler.schedule()
    monkeypatch.setattr(DecisionLog, "write", fails)
    scheduler.shutdown()
    assert scheduler.is_shut_down
