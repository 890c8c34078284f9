"""Splits of GPUs: every one of them, on the same requests, the best first."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from conftest import Run, tiny_config

from specsim.core.errors import ConfigError
from specsim.core.version import __version__
from specsim.results.stability import Stability
from specsim.run.experiment import Experiment
from specsim.show.render.study_tables import split_table
from specsim.study.compare import chosen_policies
from specsim.study.split import (
    COLUMNS,
    Search,
    Split,
    SplitRow,
    at_rate,
    compare_splits,
    search_splits,
    splits,
    thinned,
)

pytestmark = pytest.mark.slow

WORKLOAD = {
    "arrivals": {"kind": "poisson", "rate": 20.0},
    "lengths": {"kind": "uniform", "prompt": [200, 900], "output": [20, 60]},
    "num_requests": 60,
}


def experiment(**changes: Any) -> Experiment:
    config = {**tiny_config(workload=WORKLOAD, slo={"ttft_ms": 300, "tpot_ms": 20}), **changes}
    return Experiment.parse(config, "split")


def test_every_split_is_there_with_the_gpus_that_replicas_take() -> None:
    found = list(splits(experiment(), 4))
    assert [way.label for way in found] == ["colocated", "1p + 3d", "2p + 2d", "3p + 1d"]
    assert found[0].experiment.replicas == 4
    assert [way.experiment.num_engines for way in found] == [4, 4, 4, 4]
    # A prefill replica of four GPUs, decode replicas of two: one GPU of seven is left over.
    pools = {
        "prefill": {"profile": "h100/llama-3.1-70b-tp4"},
        "decode": {"profile": "h100/llama-3.1-70b-tp2"},
    }
    large = experiment(pools=pools, profile="h100/llama-3.1-70b-tp2")
    assert [(way.label, way.gpus) for way in splits(large, 7)] == [
        ("colocated", 6), ("1p + 1d", 6),
    ]  # fmt: skip


@pytest.mark.parametrize(("profile", "gpus"), [("", 1), ("h100/llama-3.1-70b-tp4", 7)])
def test_gpus_that_cannot_be_two_pools_are_refused(profile: str, gpus: int) -> None:
    changes = {"profile": profile} if profile else {}
    with pytest.raises(ConfigError, match=f"--gpus {gpus}: too few for two pools of a rep"):
        compare_splits(experiment(**changes), gpus)


def test_they_meet_the_same_requests_and_the_best_comes_first() -> None:
    found = compare_splits(experiment(), 3, rates=[20.0, 60.0], replications=2)
    assert [row.rate for row in found.rows] == [20.0] * 3 + [60.0] * 3
    for rate in (20.0, 60.0):
        mine = [row for row in found.rows if row.rate == rate]
        kept = [row.values["slo_attainment"] for row in mine]
        assert kept == sorted(kept, reverse=True)
        assert any(row.is_efficient for row in mine)
    split = next(row for row in found.rows if row.label == "1p + 2d")
    assert split.values["mean_transfer_ms"] > 0
    again = compare_splits(experiment(), 3, rates=[20.0, 60.0, 20.0], replications=2, workers=2)
    assert again == found


@pytest.mark.parametrize(("gpus", "rates", "message"), [
    (1, [5.0], "takes 2"), (4, [5.0], "have no rate"),
])  # fmt: skip
def test_what_cannot_be_split_is_said(gpus: int, rates: list[float], message: str) -> None:
    changes: dict[str, Any] = {"profile": "h100/llama-3.1-70b-tp2"}
    if gpus > 1:
        changes = {"workload": {**WORKLOAD, "arrivals": {"kind": "burst"}}}
    with pytest.raises(ConfigError, match=message):
        compare_splits(experiment(**changes), gpus, rates=rates)


def test_the_command_prints_a_table_and_writes_a_file(cli: Run, tmp_path: Path) -> None:
    config = tiny_config(workload=WORKLOAD)
    (tmp_path / "e.yaml").write_text(yaml.safe_dump(config))
    code, out, _ = cli("split", "e.yaml", "--gpus", 2, "--out", "s", "--workers", 1)
    assert code == 0
    assert "colocated" in out
    assert "1p + 1d" in out
    found = json.loads((tmp_path / "s" / "split.json").read_text())
    assert {row["label"] for row in found["rows"]} == {"colocated", "1p + 1d"}
    assert found["specsim_version"] == __version__
    code, _, error = cli("split", "e.yaml", "--gpus", 2, "--rates", "4,x")
    assert code == 2
    assert "--rates 4,x: should be numbers above 0" in error


@pytest.mark.parametrize(
    ("stability", "is_efficient", "is_bound", "expected"),
    [
        ("stable", True, False, "efficient"),
        ("overloaded", True, False, "OVERLOADED, efficient"),
        ("undecided", False, False, "undecided"),
        ("stable", False, True, "bound: knows what no server does"),
    ],
)
def test_a_row_ends_with_what_is_known_of_it(
    stability: Stability, is_efficient: bool, is_bound: bool, expected: str
) -> None:
    row = SplitRow(
        label="1p + 1d",
        rate=4.0,
        prefill_replicas=1,
        decode_replicas=1,
        gpus=2,
        values=dict.fromkeys(COLUMNS, 1.0),
        stability=stability,
        is_efficient=is_efficient,
        is_bound=is_bound,
    )
    assert [*split_table(Split(2, [row]), "title").columns[-1].cells] == [expected]


def searched(gpus: int, rate: float, *policies: str, **how: Any) -> tuple[Split, Search]:
    load = {**WORKLOAD, "arrivals": {"kind": "poisson", "rate": rate}, "num_requests": 120}
    spec = {"method": "eagle3", "num_speculative_tokens": 3}
    engine = {**tiny_config()["engine"], "speculative_config": spec}
    changes = {"workload": load, "profile": "h100/llama-3.1-8b", "engine": engine}
    alpha = {"kind": "bernoulli", "alpha": 0.7}
    asked = experiment(**changes, policy="static", acceptance=alpha)
    chosen = chosen_policies(policies, asked.effective_policy)
    return search_splits(asked, gpus, policies=chosen, **how)


def test_a_rate_of_sessions_is_that_of_their_requests() -> None:
    sizes = {"first_prompt": 20, "new_input": 20, "output": 5, "think_time": 0.01}
    lengths = {"kind": "sessions", "turns": 4, **sizes}
    workload = {"arrivals": {"kind": "poisson", "rate": 9}, "lengths": lengths, "num_requests": 400}
    experiment = Experiment.parse(tiny_config(policy="off", workload=workload), "tiny")
    for rate, rates in ((36.0, None), (8.0, [8.0])):
        for row in compare_splits(experiment, 2, rates=rates).rows:
            assert row.rate == rate
            assert row.values["request_throughput"] == pytest.approx(rate, rel=0.2)


def test_a_rate_that_is_given_twice_is_searched_once() -> None:
    found, _ = searched(2, 40.0, "off", rates=[20.0, 20.0], most=1)
    assert [(row.label, row.rate) for row in found.rows].count(("colocated", 20.0)) == 1


def test_a_search_finds_what_all_whole_simulations_find() -> None:
    """The same rows, those that are left out apart; and pools by themselves tell nearly all."""
    found, search = searched(5, 40.0, "off", "static:k=3", most=100)
    assert {row.label for row in found.rows} >= {"colocated", "1p + 4d", "4p + 1d"}
    assert {row.policy for row in found.rows} == {"off", "static:k=3"}
    assert len(found.rows) == 2 + len(search.predictions)
    by_name = {(row.label, row.policy): row for row in found.rows}
    for each in search.predictions:
        row = by_name[each.way.label, each.way.policy]
        assert each.mean_e2el_ms == pytest.approx(row.values["mean_e2el_ms"], rel=0.03)
        assert each.mean_tpot_ms == pytest.approx(row.values["mean_tpot_ms"], rel=0.03)
        assert each.attainment == pytest.approx(row.values["slo_attainment"], abs=0.05)
    assert search.worst_error is not None
    assert search.worst_error < 0.03
    few, _ = searched(5, 40.0, "off", "static:k=3", most=2, workers=2)
    best = next(row for row in found.rows if row.prefill_replicas)
    assert next(row for row in few.rows if row.prefill_replicas).values == best.values
    assert len(few.rows) == 4


def test_a_bound_comes_last_and_beats_nobody() -> None:
    found, search = searched(3, 20.0, "oracle", "off")
    policies = [row.policy for row in found.rows]
    assert policies == sorted(policies, key=lambda policy: policy == "oracle")
    bounds = [row for row in found.rows if row.is_bound]
    assert {row.policy for row in bounds} == {"oracle"}
    assert not any(row.is_efficient for row in bounds)
    assert all(row.to_dict()["bound"] for row in bounds)
    latencies = [row.values["mean_e2el_ms"] or 0.0 for row in found.rows]
    assert max(latencies[-len(bounds) :]) < min(latencies[: -len(bounds)])
    alone, _ = searched(3, 20.0, "off")
    for row in alone.rows:  # whether another one is listed beside it or not
        same = next(
            each for each in found.rows if (each.label, each.policy) == (row.label, row.policy)
        )
        assert same.is_efficient == row.is_efficient
    assert [each.way.policy for each in search.predictions][-2:] == ["oracle", "oracle"]


def test_a_search_is_over_sizes_too_as_far_as_there_are_profiles() -> None:
    found, search = searched(4, 20.0, sizes=[1, 2, 4, 8], most=100)
    labels = {row.label for row in found.rows}
    assert {"colocated tp1", "colocated tp2", "2p + 1d tp1/tp2", "1p + 2d tp2/tp1"} <= labels
    assert all(row.gpus <= 4 for row in found.rows)
    assert any("tp4: no such profile" in each for each in search.left_out)
    assert any("tp8: more than 4 GPUs" in each for each in search.left_out)


def test_pools_that_fall_behind_are_left_out() -> None:
    """Of a prefill pool that does, smaller ones are not even run."""
    found, search = searched(4, 70.0, most=9)
    assert (search.too_small, search.pieces) == (2, 6)  # prefill and decode pools of one
    assert not any(row.stability == "overloaded" for row in found.rows if row.prefill_replicas)
    found, search = searched(4, 300.0, most=9)
    assert (search.too_small, search.pieces, search.predictions) == (3, 2, [])
    assert [row.label for row in found.rows] == ["colocated"]


def test_many_gpus_are_looked_at_with_gaps() -> None:
    found = thinned(list(range(1, 64)), "", left_out := [])
    assert len(found) == 16
    assert (found[0], found[-1]) == (1, 63)
    assert left_out == ["47 of 63 splits, between those looked at"]
    assert thinned([1, 2], "", left_out) == [1, 2]


@pytest.mark.parametrize("own", [{}, {"time_scale": 0.5}, {"rate": 2.0}])
def test_a_trace_is_stretched_to_each_rate(tmp_path: Path, own: dict[str, float]) -> None:
    path = tmp_path / "t.csv"
    path.write_text(
        "arrival_time,prompt_len,output_len\n" + "".join(f"{n},9,3\n" for n in range(21))
    )
    workload = {"arrivals": {"kind": "trace", "path": str(path), **own}}
    loaded = at_rate(Experiment.parse(tiny_config(workload=workload), "a trace"), 5.0)
    times = loaded.workload.build(0).arrived_at
    assert times is not None
    assert times[-1] == pytest.approx(4.0, rel=0.06)  # 20 gaps, or 21 requests, at 5 a second


def test_what_cannot_be_searched_is_said(cli: Run, tmp_path: Path) -> None:
    loop = {"kind": "closed_loop", "concurrency": 4}
    config = tiny_config(workload={**WORKLOAD, "arrivals": loop})
    (tmp_path / "loop.yaml").write_text(yaml.safe_dump(config))
    code, _, error = cli("split", "loop.yaml", "--gpus", 2, "--policies", "off")
    assert (code, "clients of a closed loop" in error) == (2, True)
    (tmp_path / "e.yaml").write_text(yaml.safe_dump(tiny_config(workload=WORKLOAD)))
    ranks = ("--set", "engine.data_parallel_size=2")
    for searched in ((), ("--policies", "off")):
        code, _, error = cli("split", "e.yaml", "--gpus", 2, *ranks, *searched)
        assert (code, "data_parallel_size = 2: split compares" in error) == (2, True)
        slow = "incidents=[{kind: slowdown, replica: 0, at: 1, factor: 2}]"
        code, _, error = cli("split", "e.yaml", "--gpus", 2, "--set", slow, *searched)
        assert (code, error.startswith("error: incidents: are of replicas")) == (2, True)
    code, _, error = cli("split", "e.yaml", "--gpus", 2, "--tp", "1,x")
    assert (code, "--tp 1,x: should be whole numbers" in error) == (2, True)
    code, out, error = cli("split", "e.yaml", "--gpus", 2, "--policies", "off", "--out", "s")
    assert code == 0, error
    assert "pools simulated by themselves" in out
    found = json.loads((tmp_path / "s" / "split.json").read_text())
    assert found["search"]["predictions"][0]["label"] == "1p + 1d"
    assert found["rows"][0]["policy"] == "off"
