"""Arrivals and lengths of the user's: what is no workload is refused, and not simulated."""

from math import inf, isfinite
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from numpy.typing import NDArray

from specsim.core.errors import PluginError
from specsim.workload import Trace
from specsim.workload.arrivals import OpenArrivals, RenewalArrivals, drawn_times
from specsim.workload.lengths import Lengths, drawn, drawn_sessions

RNG = np.random.default_rng(0)


class Said(OpenArrivals):
    kind: str = "said"
    said: Any = None

    def times(self, rng: object, *, count: int | None, duration: float | None) -> Any:
        return self.said


class Gaps(RenewalArrivals):
    kind: str = "gaps"
    said: Any = None

    def gaps(self, rng: object, count: int) -> NDArray[np.float64]:
        return np.full(count, self.said)


class SaidLens(Lengths):
    kind: str = "said_lens"
    said: Any = None

    def draw(self, rng: object, count: int) -> Any:
        return self.said


NUMBERS = st.floats(-1, 9) | st.sampled_from([float("nan"), inf, 0.0])


@given(
    times=st.lists(NUMBERS, max_size=5).map(sorted) | st.lists(NUMBERS, max_size=5),
    count=st.none() | st.integers(1, 5),
    duration=st.none() | st.floats(0.5, 9),
)
def test_times_are_in_order_as_many_as_asked_for_and_not_too_late(
    times: list[float], count: int | None, duration: float | None
) -> None:
    end = inf if duration is None else duration
    is_right = (
        all(isfinite(time) and 0 <= time <= end for time in times)
        and times == sorted(times)
        and (count is None or len(times) == count or (len(times) < count and duration is not None))
    )
    arrivals = Said.model_construct(said=np.array(times, dtype=np.float64))
    if is_right:
        given = drawn_times(arrivals, RNG, count=count, duration=duration)
        assert given.tolist() == times
        return
    with pytest.raises(PluginError, match=r"Said 'said': times returned .* an array of seconds"):
        drawn_times(arrivals, RNG, count=count, duration=duration)


@pytest.mark.parametrize("said", [None, [0.0, 1.0], np.zeros((2, 1)), np.array(["0", "1"])])
def test_times_are_an_array(said: Any) -> None:
    with pytest.raises(PluginError, match="times returned"):
        drawn_times(Said.model_construct(said=said), RNG, count=2)


@pytest.mark.parametrize("gap", [-1.0, float("nan")])
def test_gaps_do_not_lead_back(gap: float) -> None:
    with pytest.raises(PluginError, match="not falling"):
        drawn_times(Gaps.model_construct(rate=1.0, said=gap), RNG, count=3)


@given(
    prompts=st.lists(st.integers(-1, 3), max_size=4),
    outputs=st.lists(st.integers(-1, 3), max_size=4),
)
@example([1, 2, 3], [3, 1, 1])
def test_lengths_are_of_whole_requests(prompts: list[int], outputs: list[int]) -> None:
    trace = Trace(np.array(prompts, dtype=np.int64), np.array(outputs, dtype=np.int64))
    lengths = SaidLens.model_construct(said=trace)
    is_right = len(prompts) == len(outputs) == 3 and min(prompts + outputs) >= 1
    for draw in (drawn, drawn_sessions):
        if is_right:
            assert draw(lengths, RNG, 3) is trace
            continue
        with pytest.raises(
            PluginError, match=r"SaidLens 'said_lens': draw returned .* a Trace of 3"
        ):
            draw(lengths, RNG, 3)


@pytest.mark.parametrize("lens", [[1.5, 2.0], [float("nan"), 1.0], ["1", "2"], [True, True]])
def test_lengths_are_whole_numbers(lens: list[Any]) -> None:
    trace = Trace(np.array(lens), np.array([1, 1]))
    with pytest.raises(PluginError, match="whole numbers of at least 1"):
        drawn(SaidLens.model_construct(said=trace), RNG, 2)
