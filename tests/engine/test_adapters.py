"""LoRA adapters: who waits for one, what the GPU holds, and whose prefixes they are.

Who runs when is compared with recordings of vLLM's scheduler in tests/parity.
"""

import json
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from specsim.core.errors import ConfigError
from specsim.results.folder import load_requests
from specsim.run.experiment import Experiment
from specsim.run.simulate import simulate
from specsim.run.summary import Summary
from specsim.workload.readers import read_trace
from specsim.workload.readers.native import write_trace

LORA = {"step_ms": 2.0, "token_us": 100.0, "load_ms": 30.0, "read_ms": 500.0}


def write_rows(path: Path, rows: list[dict[str, Any]]) -> str:
    path.write_text("\n".join(map(json.dumps, rows)))
    return str(path)


@pytest.fixture
def served(
    tiny: Callable[..., Experiment], constant_step: Callable[..., str], tmp_path: Path
) -> Callable[..., np.ndarray[Any, Any]]:
    """Run requests for adapters, in their order unless they say when they come."""
    profile = constant_step(delta_ms=8.0, lora=LORA)

    def run(rows: list[dict[str, Any]], lora: dict[str, Any], **engine: Any) -> Any:
        path = write_rows(tmp_path / "rows.jsonl", rows)
        workload: dict[str, Any] = {"arrivals": {"kind": "trace", "path": path}}
        if "arrived_at" not in rows[0]:
            workload["arrivals"] = {"kind": "closed_loop", "concurrency": 1}
            workload["lengths"] = {"kind": "trace", "path": path}
        experiment = tiny(
            workload=workload,
            engine={
                **{"max_model_len": 256, "num_gpu_blocks": 100, "async_scheduling": False},
                **{"lora_config": lora, **engine},
            },
            policy={"kind": "off"},
            profile=profile,
        )
        return Summary(simulate(experiment, check=True)).tables.requests

    return run


class Held:
    """What is held of adapters: so many, those that were used last."""

    def __init__(self, most: int) -> None:
        self.most, self.names = most, OrderedDict[int, None]()

    def use(self, name: int) -> tuple[bool, int | None]:
        """Say whether it had to come, and what went for it."""
        is_new, gone = name not in self.names, None
        if is_new and len(self.names) == self.most:
            gone, _ = self.names.popitem(last=False)
        self.names[name] = None
        self.names.move_to_end(name)
        return is_new, gone


@given(
    adapters=st.lists(st.integers(0, 5), min_size=1, max_size=25),
    active=st.integers(1, 3),
    more=st.integers(0, 3),
)
@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_adapters_come_to_the_gpu_and_go_by_last_use(
    served: Callable[..., Any], adapters: list[int], active: int, more: int
) -> None:
    rows = [{"prompt_len": 16, "output_len": 3, "adapter": each} for each in adapters]
    requests = served(rows, {"max_loras": active, "max_cpu_loras": active + more})
    gpu, host = Held(active), Held(active + more)
    for adapter, request in zip(adapters, requests, strict=True):
        expected = 0.0
        if adapter:
            is_read, gone = host.use(adapter)
            if gone is not None:
                gpu.names.pop(gone, None)
            is_loaded, _ = gpu.use(adapter)
            expected = 0.5 * is_read + 0.03 * is_loaded + 3 * 2e-3 + (16 + 1 + 1) * 1e-4
        extra = request["ended_at"] - request["scheduled_at"] - 3 * 8e-3
        assert extra == pytest.approx(expected, abs=1e-9)


def test_who_is_for_another_adapter_waits_and_others_pass(served: Callable[..., Any]) -> None:
    adapters = [1, 2, 1, 0]
    rows = [
        {"arrived_at": 0.0, "prompt_len": 8, "output_len": 5, "adapter": each} for each in adapters
    ]
    requests = served(rows, {"max_loras": 1})
    assert requests["scheduled_at"][[0, 2, 3]].tolist() == [0.0] * 3
    assert requests["scheduled_at"][1] == requests["ended_at"][0]
    together = served(rows, {"max_loras": 2})
    assert together["scheduled_at"].tolist() == [0.0] * 4


def test_by_priority_the_next_that_may_run_is_the_most_urgent(served: Callable[..., Any]) -> None:
    rows = [
        {"arrived_at": 0.0, "prompt_len": 8, "output_len": 9, "adapter": each, "priority": priority}
        for each, priority in [(1, 0), (2, 1), (1, 3), (0, 2), (2, 0)]
    ]
    requests = served(
        rows, {"max_loras": 1}, scheduling_policy="priority", max_num_seqs=2, num_gpu_blocks=64
    )
    first = np.sort(requests["scheduled_at"])
    assert requests["scheduled_at"][0] == requests["scheduled_at"][3] == first[0]
    assert requests["scheduled_at"][4] == requests["scheduled_at"][1]  # both for adapter 2
    assert requests["scheduled_at"][1] < requests["scheduled_at"][2]


@pytest.mark.parametrize("engine", [{}, {"kv_offload": {"blocks": 99}}])
def test_an_adapter_has_its_prefixes_for_itself(
    served: Callable[..., Any], engine: dict[str, Any]
) -> None:
    prompt = {"prompt_len": 64, "output_len": 2, "prompt_token_ids": [*range(64)]}
    rows = [{**prompt, "adapter": each} for each in (0, 1, 2, 1, 0)]
    cached = served(rows, {"max_loras": 2}, **engine)["cached_len"]
    assert cached.tolist() == [0, 0, 0, 48, 48]


@pytest.mark.parametrize("most", [1, 2])
def test_who_has_been_loaded_waits_for_its_adapter(
    tiny: Callable[..., Experiment], constant_step: Callable[..., str], tmp_path: Path, most: int
) -> None:
    rows = [
        {"arrived_at": 0.0, "prompt_len": 8, "output_len": 5, "adapter": each} for each in (1, 2)
    ]
    path = write_rows(tmp_path / "rows.jsonl", rows)
    experiment = tiny(
        workload={"arrivals": {"kind": "trace", "path": path}},
        engine={"max_model_len": 256, "num_gpu_blocks": 100, "lora_config": {"max_loras": most}},
        policy={"kind": "off"},
        profile=constant_step(delta_ms=8.0, lora=LORA),
        pools={"prefill": {"replicas": 2}, "decode": {}},
    )
    requests = Summary(simulate(experiment, check=True)).tables.requests
    is_apart = requests["first_token_at"].max() > requests["ended_at"].min()
    assert is_apart == (most == 1)


@pytest.mark.parametrize("ending", [".jsonl", ".parquet"])
def test_a_trace_keeps_its_adapters(tmp_path: Path, ending: str) -> None:
    rows = [{"prompt_len": 4, "output_len": 2, "adapter": each} for each in (0, 7, 1)]
    trace = read_trace(write_rows(tmp_path / "rows.jsonl", rows))
    write_trace(trace, tmp_path / f"copy{ending}")
    again = read_trace(tmp_path / f"copy{ending}").requests()
    assert [each.adapter for each in again] == [0, 7, 1]


def test_adapters_are_drawn_alike_for_all_turns_of_a_session(
    tiny: Callable[..., Experiment], constant_step: Callable[..., str], tmp_path: Path
) -> None:
    lengths = {"kind": "sessions", "turns": 3, "first_prompt": 9, "new_input": 5, "output": 2}
    mix = {"count": 4, "share": 0.6, "exponent": 1.0}
    workload = {
        "arrivals": {"kind": "poisson", "rate": 5.0},
        **{"lengths": lengths, "num_requests": 600, "adapters": mix},
    }
    experiment = tiny(
        workload=workload,
        engine={"max_model_len": 256, "lora_config": {"max_loras": 4}},
        policy={"kind": "off"},
        profile=constant_step(delta_ms=1.0, lora=LORA),
    )
    summary = Summary(simulate(experiment))
    summary.save(tmp_path / "out")
    saved = load_requests(tmp_path / "out").columns
    assert saved["adapter"].tolist() == summary.request_columns["adapter"].tolist()
    columns = summary.request_columns
    owners = dict(zip(columns["session"], columns["adapter"], strict=True))
    assert all(owners[s] == a for s, a in zip(columns["session"], columns["adapter"], strict=True))
    counts = np.bincount([*owners.values()], minlength=5) / len(owners)
    assert counts[0] == pytest.approx(0.4, abs=0.15)
    assert counts[1] > counts[2] > 0


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"lora_config": None}, "request 0 is for LoRA adapter 2, which the engine does not serve"),
        ({"lora_config": {"max_loras": 2, "max_cpu_loras": 1}}, "must be at least max_loras = 2"),
        ({"scheduler": "prefill_first"}, "LoRA adapters with scheduler prefill_first are not"),
        ({"data_parallel_size": 2}, "LoRA adapters with data_parallel_size are not simulated"),
    ],
)
def test_what_cannot_be_is_refused(
    served: Callable[..., Any], changes: dict[str, Any], said: str
) -> None:
    engine = {"lora": {"max_loras": 1}, **changes}
    lora = engine.pop("lora_config", engine.pop("lora"))
    engine.pop("lora", None)
    with pytest.raises(ConfigError, match=said):
        served([{"prompt_len": 4, "output_len": 2, "adapter": 2}], lora, **engine)


def test_a_profile_has_to_say_what_adapters_cost(tiny: Callable[..., Experiment]) -> None:
    experiment = tiny(engine={"lora_config": {"max_loras": 1}}, policy={"kind": "off"})
    with pytest.raises(ConfigError, match="does not say what LoRA adapters cost; state what"):
        simulate(experiment)
