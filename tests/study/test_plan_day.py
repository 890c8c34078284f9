"""The day of a plan: servers in its course, against a plain loop over its minutes."""

import gzip
from math import ceil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
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
    "table",
    [
        "Hour;Requests per second\n0;20\n8.5;100\n",
        "time,requests_per_second,note\n00:00,20,night\n08:30,100,peak\n",
        "\ufeffQPS\tTime\n20\t0\n100\t8:30:00\n",
    ],
)
def test_a_table_of_the_day_has_its_hours_and_rates_under_any_usual_name(
    tmp_path: Path, table: str
) -> None:
    path = tmp_path / "day.csv"
    path.write_text(table)
    assert read_day(str(path)) == Day((0, 8.5), (20, 100))
    path.write_text("time,requests\n00:00,72000\n08:00,360000\n")  # of an hour: not requests/s
    with pytest.raises(ConfigError, match=r"needs the columns hour .* found: time, requests$"):
        read_day(str(path))


def test_a_table_of_the_day_has_seconds_and_any_usual_ending(tmp_path: Path) -> None:
    table = tmp_path / "DAY.CSV"
    table.write_text("time,rate\n00:00:00,20\n07:30:30,100\n")
    assert read_day(str(table)) == Day((0, 7.5 + 30 / 3600), (20, 100))
    rows = '{"time": "00:00", "rate": 20}\n{"time": "7:30", "rate": 100}\n'
    for name in ("day.jsonl", "day.jsonl.gz"):
        path = tmp_path / name
        path.write_bytes(gzip.compress(rows.encode()) if name.endswith("gz") else rows.encode())
        assert read_day(str(path)) == Day((0, 7.5), (20, 100))


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ("time,rate\n0:00,20\n12:99,9\n", "line 3: time = '12:99' is no time of day, such as 06"),
        ("time,rate\n0:00,20\n12:30:60,9\n", "line 3: time = '12:30:60' is no time of day"),
        ("hour,time,rate\n0,0:00,20\n9,12:00,9\n", "day.csv: hour and time may both be the hour"),
        ("hour,qps,rate\n0,20,20\n9,12,9\n", "day.csv: qps and rate may both be the rate"),
    ],
)
def test_no_hour_or_rate_of_a_table_is_guessed(tmp_path: Path, table: str, message: str) -> None:
    path = tmp_path / "day.csv"
    path.write_text(table)
    with pytest.raises(ConfigError, match=message):
        read_day(str(path))


@pytest.mark.parametrize(
    "text",
    ["20", "0:20", "0:20,0:30", "8:20,6:30", "0:1,24:2", "0:0,5:0", "0:nan,5:1", "0:1,5:-1",
     "0:1,5:1e9", "0:1:2,3:4", "nowhere.csv"],
)  # fmt: skip
def test_what_is_no_day_is_refused_in_one_line(text: str) -> None:
    with pytest.raises(SpecsimError) as refused:
        read_day(text)
    assert "\n" not in str(refused.value)


def test_a_table_of_the_day_without_rows_is_refused_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    empty = pa.table({name: pa.array([], pa.float64()) for name in ("hour", "rate")})
    pq.write_table(empty, "day.parquet")
    with pytest.raises(ConfigError, match=r"day\.parquet: needs at least two hours"):
        read_day("day.parquet")


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
