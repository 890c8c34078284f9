"""What every arrival process and every source of lengths promises."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from specsim.core.rng import generator
from specsim.workload import WorkloadConfig
from specsim.workload.arrivals import ARRIVALS, OpenArrivals, RenewalArrivals
from specsim.workload.lengths import LENGTHS

OPEN = [
    pytest.param(ARRIVALS.parse({"kind": name, **example}), id=name)
    for name, member in ARRIVALS.members.items()
    for example in member.examples
    if issubclass(member, OpenArrivals)
]
SOURCES = [
    pytest.param(LENGTHS.parse({"kind": name, **example}), id=name)
    for name, member in LENGTHS.members.items()
    for example in member.examples
]


@pytest.mark.parametrize("arrivals", OPEN)
def test_times_are_sorted_reproducible_and_as_many_as_asked(arrivals: OpenArrivals) -> None:
    times = arrivals.times(generator(1, "arrivals"), count=200, duration=None)
    assert len(times) == 200
    assert (np.diff(times) >= 0).all()
    assert times[0] >= 0
    again = arrivals.times(generator(1, "arrivals"), count=200, duration=None)
    assert np.array_equal(times, again)


@pytest.mark.parametrize("arrivals", OPEN)
def test_a_count_is_a_prefix(arrivals: OpenArrivals) -> None:
    # "First N" of a workload are its first N, not another draw.
    long, short = (
        arrivals.times(generator(1, "arrivals"), count=count, duration=None) for count in (50, 20)
    )
    assert np.array_equal(long[:20], short)


@pytest.mark.parametrize("arrivals", [case for case in OPEN if case.id != "burst"])
def test_a_duration_ends_the_arrivals(arrivals: OpenArrivals) -> None:
    times = arrivals.times(generator(1, "arrivals"), count=None, duration=30.0)
    assert len(times) >= 5
    assert times[-1] < 30.0


@pytest.mark.parametrize(
    "arrivals", [case for case in OPEN if isinstance(case.values[0], RenewalArrivals)]
)
def test_the_rate_is_met(arrivals: RenewalArrivals) -> None:
    gaps = arrivals.gaps(generator(2, "arrivals"), 100_000)
    standard_error = gaps.std() / len(gaps) ** 0.5
    assert abs(gaps.mean() - 1 / arrivals.rate) < 4 * standard_error


def test_burstiness_is_the_inverse_squared_variation() -> None:
    gaps = ARRIVALS.parse("gamma:rate=3,burstiness=0.25").gaps(generator(3, "a"), 400_000)
    assert gaps.mean() ** 2 / gaps.var() == pytest.approx(0.25, rel=0.03)


def test_only_those_that_come_in_time_are_drawn() -> None:
    endless = ARRIVALS.parse("piecewise:segments=[[1e9, 1e5]]")  # 1e14 requests
    rng = np.random.default_rng(1)
    assert len(endless.times(rng, count=None, duration=0.001)) == pytest.approx(100, abs=40)


def test_piecewise_rates_hold_on_each_segment() -> None:
    ramp = ARRIVALS.parse("piecewise:segments=[[400, 2], [400, 0], [400, 10]]")
    times = ramp.times(generator(4, "arrivals"), count=None, duration=None)
    counts = np.histogram(times, bins=[0, 400, 800, 1200])[0]
    assert counts[1] == 0
    assert counts[0] == pytest.approx(800, abs=4 * 800**0.5)
    assert counts[2] == pytest.approx(4000, abs=4 * 4000**0.5)


@pytest.mark.parametrize("source", SOURCES)
def test_lengths_are_whole_positive_and_as_many_as_asked(source: Any) -> None:
    trace = source.draw(generator(1, "lengths"), 300)
    for lens in (trace.prompt_lens, trace.output_lens):
        assert lens.dtype.kind == "i"
        assert len(lens) == 300
        assert lens.min() >= 1


@pytest.mark.parametrize(
    ("text", "mean"),
    [
        ("uniform:prompt=[100, 300],output=[1, 1]", 200),
        ("lognormal:prompt={mean: 200, sigma: 0.5},output={mean: 2, sigma: 0}", 200),
        (
            "truncated_normal:prompt={mean: 200, std: 50, max: 399},"
            "output={mean: 1, std: 0, max: 9}",
            200,
        ),
        ("dataset:name=sharegpt", 227),
    ],
)
def test_lengths_have_their_mean(text: str, mean: float) -> None:
    lens = LENGTHS.parse(text).draw(generator(5, "lengths"), 200_000).prompt_lens
    assert lens.mean() == pytest.approx(mean, abs=4 * lens.std() / len(lens) ** 0.5 + 0.5)


def test_arrivals_and_lengths_have_streams_of_their_own() -> None:
    def build(rate: float) -> Any:
        return WorkloadConfig.model_validate(
            {
                "arrivals": {"kind": "poisson", "rate": rate},
                "lengths": {"kind": "dataset", "name": "gsm8k"},
                "num_requests": 50,
            }
        ).build(seed=3)

    slow, fast = build(1.0), build(4.0)
    assert np.array_equal(slow.prompt_lens, fast.prompt_lens)
    assert np.allclose(slow.arrived_at, 4 * fast.arrived_at)


def replay(**fields: Any) -> Any:
    config = {
        "arrivals": {"kind": "trace", "path": "traces/chat.parquet", **fields.pop("arrivals", {})}
    }
    return WorkloadConfig.model_validate({**config, **fields}).build(seed=0)


def test_trace_replay_as_recorded() -> None:
    trace = replay()
    assert len(trace) == 19_939
    assert trace.arrived_at[-1] < 3600


def test_trace_replay_first_n_window_and_scaling() -> None:
    whole = replay().arrived_at
    assert np.array_equal(replay(num_requests=10).arrived_at, whole[:10])
    window = replay(arrivals={"window": [600, 1200]}).arrived_at
    assert np.array_equal(window, whole[(whole >= 600) & (whole < 1200)] - 600)
    assert np.array_equal(replay(arrivals={"time_scale": 0.5}).arrived_at, whole * 0.5)


def test_arrivals_of_a_coarse_clock_may_be_spread(tmp_path: Path) -> None:
    """Between the instants that the clock knows, in their order, and the same in every run."""
    path = tmp_path / "log.csv"
    at = np.repeat(np.arange(200) * 60, 1 + np.arange(200) % 5)
    rows = "".join(f"{second},{number + 1},3\n" for number, second in enumerate(at))
    path.write_text(f"created,prompt_len,output_len\n{rows}")
    arrivals = {"kind": "trace", "path": str(path)}
    config = {"arrivals": {**arrivals, "resolution": 60.0}}
    workload = WorkloadConfig.model_validate(config)
    trace, again = workload.build(seed=0), workload.build(seed=1)
    assert np.array_equal(trace.arrived_at, again.arrived_at)
    assert np.array_equal(trace.prompt_lens, 1 + np.arange(len(at)))
    within = trace.arrived_at - at
    assert within.min() >= 0
    assert within.max() < 60
    of_one = within[at % 300 == 0]  # a request alone in its minute
    assert np.abs(np.sort(of_one) / 60 - np.linspace(0, 1, len(of_one))).max() < 0.3
    assert "whole minutes: requests are spread over theirs" in "".join(workload.notes)
    recorded = WorkloadConfig.model_validate({"arrivals": arrivals})
    assert np.array_equal(recorded.build(seed=0).arrived_at, at)
    assert "at once, unless workload.arrivals.resolution is set" in "".join(recorded.notes)


def test_trace_replay_at_another_rate() -> None:
    times = replay(arrivals={"rate": 20.0}).arrived_at
    assert (len(times) - 1) / (times[-1] - times[0]) == pytest.approx(20.0)


def test_trace_arrivals_with_other_lengths() -> None:
    trace = replay(lengths={"kind": "constant", "prompt": 7, "output": 3})
    assert len(trace) == 19_939
    assert set(trace.prompt_lens.tolist()) == {7}
