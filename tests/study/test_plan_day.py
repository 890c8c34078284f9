"""The day of a plan: servers in its course, against a plain loop over its minutes."""

from math import ceil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specsim.core.errors import ConfigError, SpecsimError
from specsim.study.plan import question_of
from specsim.study.plan.day import BEHIND, Day, read_day


def test_a_day_is_read_from_text_and_from_a_table(tmp_path: Path) -> None:
    path = tmp_path / "day.csv"
    path.write_text("hour,rate\n0,20\n8,100\n18,60\n")
    assert read_day(str(path)) == read_day("0:20, 8:100,18:60") == Day((0, 8, 18), (20, 100, 60))


@pytest.mark.parametrize(
    "text",
    ["20", "0:20", "0:20,0:30", "8:20,6:30", "0:1,24:2", "0:0,5:0", "0:nan,5:1", "0:1,5:-1",
     "0:1,5:1e9", "0:1:2,3:4", "nowhere.csv"],
)  # fmt: skip
def test_what_is_no_day_is_refused_in_one_line(text: str) -> None:
    with pytest.raises(SpecsimError) as refused:
        read_day(text)
    assert "\n" not in str(refused.value)


def test_a_day_and_a_rate_are_not_given_together() -> None:
    with pytest.raises(ConfigError, match="either --qps or --daily"):
        question_of(vllm="Qwen/Qwen3-8B", qps=3.0, daily="0:20,8:100")
    assert question_of(vllm="Qwen/Qwen3-8B", daily="0:20,8:100").rate == 100.0


def test_a_rise_too_steep_to_be_followed_keeps_servers_all_day() -> None:
    day = Day((0.0, 12.0, 12.01), (0.0, 0.0, 100.0))
    assert day.floor(10.0) == 10
    assert day.fleets(10.0, 0)[2].server_hours == 240.0
    assert Day((0.0, 12.0), (10.0, 100.0)).floor(10.0) == 1


days = st.dictionaries(
    st.integers(0, 23), st.floats(0.01, 500), min_size=2, max_size=24
).map(lambda found: Day(*zip(*sorted(found.items()), strict=True)))  # fmt: skip


@given(days, st.floats(0.5, 300), st.integers(0, 2))
def test_every_way_has_enough_servers_at_every_instant(
    day: Day, capacity: float, spare: int
) -> None:
    fixed, scheduled, scaled = day.fleets(capacity, spare)
    assert fixed.server_hours == 24 * fixed.most == 24 * (ceil(day.peak / capacity) + spare)
    seconds = np.arange(0, 24 * 3600, 15.0)
    rates = day.at(seconds / 3600)
    needed = np.maximum(np.ceil(rates / capacity), 1) + spare
    for fleet in (scheduled, scaled):
        assert fleet.server_hours >= needed.mean() * 24 - 1e-6
        assert (fleet.most, fleet.least) >= (needed.max(), needed.min())
        assert fleet.least >= 1 + spare
    assert scaled.server_hours <= fixed.server_hours + 1e-9
    # Servers that serve were started so long ago: for the load of then, times the headroom.
    serving = np.roll(rates, ceil(BEHIND / 15)) * day.headroom(capacity) / capacity
    always = day.floor(capacity)
    assert (np.maximum(serving, always) * (1 + 1e-9) >= rates / capacity).all()


def test_an_even_day_costs_the_same_in_every_way_but_for_hpas_tolerance() -> None:
    day = Day((0.0, 12.0), (90.0, 90.0))
    assert day.headroom(10.0) == pytest.approx(1.1)
    assert [fleet.server_hours for fleet in day.fleets(10.0, 0)] == [216.0, 216.0, 216.0]
    assert day.requests == pytest.approx(90 * 86_400)


def test_starts_by_schedule_are_paid_for() -> None:
    day = Day((0.0, 11.0, 12.0, 13.0), (10.0, 10.0, 30.0, 10.0))
    scheduled = day.fleets(10.0, 0)[1]
    # One server but for the hours on either side of noon, which have three: two are started once.
    assert scheduled.server_hours == pytest.approx(22 + 2 * 3 + 2 * 120 / 3600)
