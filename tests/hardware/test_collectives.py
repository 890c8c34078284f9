"""Times of what GPUs exchange: each operation by its own table."""

from typing import Any

import pytest
from pydantic import ValidationError

from specsim.hardware import load_gpu
from specsim.hardware.specs import Collective, of_operation

TABLE: dict[str, Any] = {
    "operation": "all_reduce",
    "gpus": 2,
    "measured": "made up",
    "message_bytes": [1000, 3000, 5000],
    "us": [10, 20, 40],
}


def test_times_are_straight_between_sizes_and_go_on_as_from_the_last_but_one() -> None:
    table = Collective(**TABLE)
    times = [table.time(size, 2) for size in (1, 1000, 2000, 5000, 7000)]
    assert times == [10, 10, 15, 40, 60]
    # Among four each sends 3/4 of what is exchanged, among two 1/2.
    assert table.time(2000, 4) == 20


def test_a_message_larger_than_all_measured_takes_no_less() -> None:
    table = Collective(**{**TABLE, "us": [10, 41, 40]})
    assert table.time(10**9, 2) == 40


def test_of_several_tables_that_of_the_nearest_number_of_gpus_is_taken() -> None:
    tables = [Collective(**{**TABLE, "gpus": gpus}) for gpus in (2, 8)]
    assert of_operation(tables, "all_reduce", 6) == tables[1]
    assert of_operation(tables, "all_gather", 6) is None


@pytest.mark.parametrize(
    ("field", "message"),
    [
        ({"us": [1, 2]}, "us has 2 numbers, message_bytes 3"),
        ({"message_bytes": [1, 3, 2]}, "message_bytes must rise"),
        ({"us": [1, 2, -3]}, "greater than 0"),
    ],
)
def test_tables_that_make_no_sense_are_refused(field: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        Collective(**{**TABLE, **field})


# Custom all-reduces in a CUDA graph, collected with vLLM 0.19.0 (aiconfigurator-core 0.12.0,
# rtx_pro_6000_server): bytes and microseconds. One sum of the activations of a token of a 32B model
# has 10,240 bytes. A line through NCCL's gathers says half of it from a megabyte on.
ALL_REDUCES = {
    8192: 19.1, 16384: 20.5, 65536: 22.3, 131072: 27.5, 262144: 39.3, 524288: 55.5, 1048576: 91.5,
    2097152: 157.5, 4194304: 295.9, 8388608: 567.2, 16777216: 1117.6, 67108864: 4406.2,
}  # fmt: skip


def test_all_reduces_over_pcie_are_those_that_were_measured() -> None:
    table = of_operation(load_gpu("rtx-pro-6000").collectives, "all_reduce", 2)
    assert table is not None
    assert {size: table.time(size, 2) for size in ALL_REDUCES} == pytest.approx(
        ALL_REDUCES, rel=0.1
    )
