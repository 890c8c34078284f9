"""Runs whose traffic changes half way."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from specsim.acceptance import ACCEPTANCE
from specsim.core.request import Request
from specsim.core.rng import Luck
from specsim.workload import WorkloadConfig
from specsim.workload.lengths import LENGTHS
from specsim.workload.readers import read_trace

BEFORE = {"kind": "bernoulli", "alpha": 0.9}
AFTER = {"kind": "per_position", "conditional_rates": [0.5, 0.2]}
REQUESTS = [Request(index=i, prompt_len=1, output_len=30) for i in range(6)]
LUCK = Luck(1, 2)


def of(model: dict[str, Any]) -> list[bytes]:
    return ACCEPTANCE.parse(model).survival_lens(REQUESTS, LUCK, 4)


@pytest.mark.parametrize("at_request", [0, 1, 4, 6, 100])
def test_acceptance_changes_at_exactly_the_given_request(at_request: int) -> None:
    shift = {"kind": "shift", "at_request": at_request, "before": BEFORE, "after": AFTER}
    assert of(shift) == of(BEFORE)[:at_request] + of(AFTER)[at_request:]


def test_shifts_can_follow_each_other() -> None:
    later = {"kind": "shift", "at_request": 4, "before": AFTER, "after": BEFORE}
    shift = {"kind": "shift", "at_request": 2, "before": BEFORE, "after": later}
    assert of(shift) == of(BEFORE)[:2] + of(AFTER)[2:4] + of(BEFORE)[4:]


def constant(prompt: int) -> dict[str, Any]:
    return {"kind": "constant", "prompt": prompt, "output": 2 * prompt}


@pytest.mark.parametrize(("at", "count", "first"), [(0.5, 10, 5), (0.25, 10, 2), (0.9, 1, 0)])
def test_lengths_change_at_a_share_of_the_requests(at: float, count: int, first: int) -> None:
    shift = {"kind": "shift", "at": at, "before": constant(3), "after": constant(7)}
    trace = LENGTHS.parse(shift).draw(np.random.default_rng(0), count)
    assert trace.prompt_lens.tolist() == [3] * first + [7] * (count - first)
    assert trace.output_lens.tolist() == [6] * first + [14] * (count - first)


def write_rows(path: Path, count: int, **columns: Any) -> dict[str, Any]:
    row = '{{"prompt_len": {0}, "output_len": {0}, "priority": {0}}}\n'
    path.write_text("".join(row.format(number) for number in range(1, count + 1)))
    return {"kind": "trace", "path": str(path)}


def test_lengths_of_files_keep_the_columns_that_both_have(tmp_path: Path) -> None:
    first, second = (write_rows(tmp_path / f"{n}.jsonl", n) for n in (4, 6))
    shift = {"kind": "shift", "at": 0.5, "before": first, "after": second}
    trace = LENGTHS.parse(shift).draw(np.random.default_rng(0), 8)
    assert trace.priorities is not None
    assert trace.priorities.tolist() == [1, 2, 3, 4, 1, 2, 3, 4]
    assert read_trace(Path(first["path"])).followed_by(trace).prompt_lens.tolist()[:4] == [
        1,
        2,
        3,
        4,
    ]
    mixed = LENGTHS.parse({**shift, "after": constant(9)}).draw(np.random.default_rng(0), 4)
    assert mixed.priorities is None
    assert mixed.prompt_lens.tolist() == [1, 2, 9, 9]


def test_a_workload_of_files_ends_when_the_first_of_them_would(tmp_path: Path) -> None:
    first, second = (write_rows(tmp_path / f"{n}.jsonl", n) for n in (4, 6))
    lengths = {"kind": "shift", "at": 0.25, "before": first, "after": second}
    config = WorkloadConfig.model_validate(
        {"arrivals": {"kind": "constant", "rate": 1.0}, "lengths": lengths}
    )
    assert len(config.build(0)) == 8
    assert LENGTHS.parse({**lengths, "before": constant(1), "after": constant(2)}).num_rows is None
