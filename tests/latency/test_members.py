"""two_regime, tabulated and cuda_graph."""

import numpy as np
import pytest
from pydantic import ValidationError

from specsim.core.errors import ProfileError
from specsim.core.step import StepLoad
from specsim.hardware.cuda_graphs import capture_sizes, default_largest
from specsim.latency import LATENCY, LatencyModel
from specsim.latency.cuda_graph import CudaGraph
from specsim.latency.measured import Linear, Tabulated, TwoRegime

PER_TOKEN = Linear(alpha_ns=0, gamma_us=1000, delta_ms=0)  # 1 ms a token


def test_each_kind_of_step_has_its_own_coefficients() -> None:
    model = TwoRegime.model_validate(
        {
            "decode": {"alpha_ns": 1000, "gamma_us": 0, "delta_ms": 1},
            "mixed": {"alpha_ns": 2000, "gamma_us": 0, "delta_ms": 3},
        }
    )
    decode, mixed = StepLoad(1000, 10, 10), StepLoad(1000, 10, 3, 8)
    assert model.forward_time(decode) == pytest.approx(2e-3)
    assert model.forward_time(mixed) == pytest.approx(5e-3)
    both = StepLoad(1000, 10, 10, np.array([0, 8]))
    assert model.forward_time(both) == pytest.approx([2e-3, 5e-3])


def test_a_copy_with_another_number_has_another_time() -> None:
    load = StepLoad(0, 3, 3)
    assert PER_TOKEN.forward_time(load) == pytest.approx(3e-3)
    slower = PER_TOKEN.model_copy(update={"gamma_us": 2000.0})
    assert slower.forward_time(load) == pytest.approx(6e-3)


def test_a_model_has_a_formula() -> None:
    class Nothing(LatencyModel):
        kind: str = "nothing"

    with pytest.raises(ProfileError, match="'nothing' says neither `form` nor `forward_time`; "):
        Nothing().forward_time(StepLoad(0, 1))


TABLE = {
    "context_tokens": [0, 1000],
    "batched_tokens": [1, 11],
    "times_ms": [[10.0, 20.0], [30.0, 60.0]],
}


@pytest.mark.parametrize(
    ("context", "batched", "milliseconds"),
    [(0, 1, 10), (500, 1, 20), (500, 6, 30), (1000, 11, 60), (2000, 11, 100), (0, 21, 30)],
)
def test_tables_are_interpolated_and_go_on(context: int, batched: int, milliseconds: float) -> None:
    model = Tabulated.model_validate({"decode": TABLE})
    assert model.forward_time(StepLoad(context, batched)) == pytest.approx(milliseconds * 1e-3)


def test_mixed_steps_may_have_a_table_of_their_own() -> None:
    slow = {**TABLE, "times_ms": [[11.0, 21.0], [31.0, 61.0]]}
    model = Tabulated.model_validate({"decode": TABLE, "mixed": slow})
    assert model.forward_time(StepLoad(0, 1, 1, 1)) == pytest.approx(11e-3)
    array = StepLoad(np.array([0, 1000]), 1, 1)
    assert model.forward_time(array) == pytest.approx([10e-3, 30e-3])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"context_tokens": [1000, 0]}, "must rise"),
        ({"times_ms": [[10.0, 20.0]]}, "must be 2 rows of 2 times"),
        ({"times_ms": [[10.0, -20.0], [30.0, 60.0]]}, "greater than 0"),
    ],
)
def test_bad_tables(change: dict[str, object], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        Tabulated.model_validate({"decode": {**TABLE, **change}})


def test_steps_are_padded_to_what_a_graph_was_captured_for() -> None:
    model = CudaGraph(inner=PER_TOKEN, capture_sizes=(1, 4, 8), eager_ms=5)
    times = [model.forward_time(StepLoad(0, tokens)) for tokens in (1, 2, 4, 5, 8, 9)]
    assert times == pytest.approx([1e-3, 4e-3, 4e-3, 8e-3, 8e-3, 14e-3])
    tokens = np.array([1, 2, 4, 5, 8, 9])
    assert model.forward_time(StepLoad(0, tokens)) == pytest.approx(times)


def test_default_sizes_are_those_of_vllm() -> None:
    assert default_largest(256) == default_largest(16, 17) == 512
    assert capture_sizes(512)[:6] == (1, 2, 4, 8, 16, 24)
    assert capture_sizes(512)[-3:] == (480, 496, 512)
    assert len(capture_sizes(512)) == 51  # as resolved in a real run of vLLM 0.19
    assert default_largest(128) == capture_sizes(256)[-1] == 256
    assert default_largest(8) == capture_sizes(16)[-1] == 16


def test_capture_sizes_must_rise() -> None:
    with pytest.raises(ValidationError, match="rising"):
        CudaGraph(inner=PER_TOKEN, capture_sizes=(8, 4))


def test_a_wrapped_model_is_written_back_as_it_was_read() -> None:
    model = LATENCY.parse({"kind": "cuda_graph", "inner": {"kind": "linear", **_LINEAR}})
    assert LATENCY.parse(model.model_dump(mode="json", exclude_none=True)) == model


_LINEAR = {"alpha_ns": 1.0, "gamma_us": 2.0, "delta_ms": 3.0}
