"""Plots for papers, and the sums they share with the page."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from conftest import Run

from specsim.core.atomic import is_marked
from specsim.show.charts.study_plots import plot_study
from specsim.show.report import load_study
from specsim.show.study import (
    BASELINE,
    MEASURES,
    Axis,
    Point,
    Study,
    find_measure,
    gain,
    group,
    measured,
    ranked,
    styles,
)
from specsim.study.paired import speed_up


def test_plots_are_drawn_and_the_same_every_time(folder: Path, cli: Run) -> None:
    code, output, _ = cli("plot", folder, "--out", "plots")
    assert (code, output.count("plot: ")) == (0, 7)
    names = {path.stem for path in Path("plots").iterdir()}
    assert names == {"over-load", "speed-up", "crossover", "cost", "cdf", "timeline", "breakdown"}
    cli("plot", folder, "--out", "again")
    for path in Path("plots").iterdir():
        assert path.read_bytes() == (Path("again") / path.name).read_bytes()
    text = Path("plots/over-load.svg").read_text()
    assert text.startswith("<svg")
    assert is_marked(Path("plots/over-load.svg"))


def test_plots_can_be_of_some_runs_only(folder: Path, cli: Run) -> None:
    code, output, _ = cli(
        *("plot", folder, "--out", "part", "--format", "png", "--metric", "p99_ttft_ms"),
        *("--where", "workload.arrivals.rate=20", "--where", "profile=slow"),
    )
    assert code == 0
    assert "over-load: not drawn: all runs have the same load" in output
    assert Path("part/cdf.png").read_bytes()[:4] == b"\x89PNG"
    code, _, error = cli("plot", folder, "--out", "mine.png")
    assert code == 2
    assert "--out mine.png: is the name of a picture, and several are drawn" in error
    code, _, error = cli("plot", folder, "--metric", "p99_ttft")
    assert (code, "did you mean 'p99_ttft_ms'" in error) == (2, True)
    code, _, error = cli("plot", folder, "--where", "policy")
    assert code == 2
    assert "expected FIELD=VALUE, such as profile=h100/llama-3.1-8b" in error


def test_a_price_draws_latency_against_cost(study: Study, tmp_path: Path) -> None:
    priced = replace(study, points=[replace(point, cost=2.0) for point in study.points])
    drawn, left_out = plot_study(priced, MEASURES[0], tmp_path, ".svg")
    assert (tmp_path / "cost.svg" in drawn, left_out) == (True, [])


def test_names_are_drawn_whole_and_as_they_are(study: Study, tmp_path: Path) -> None:
    long = [f"my_package.policies.adaptive:LoadAwarePolicy{n}:k=3,window=100" for n in range(2)]
    names = ["off", *long, 'a "quoted" $name$ <b>']
    axes = [study.axes[0], replace(study.axes[1], labels=names), study.axes[2]]
    points = [replace(point, cost=2.0) for point in study.points]
    plot_study(replace(study, axes=axes, points=points), MEASURES[0], tmp_path, ".svg")
    for chart in ("over-load", "cost", "cdf", "timeline", "breakdown"):
        texts = _texts(tmp_path / f"{chart}.svg")
        assert set(names) <= texts, chart


def _texts(path: Path) -> set[str]:
    root = ElementTree.parse(path).getroot()
    return {"".join(each.itertext()) for each in root.iter("{http://www.w3.org/2000/svg}text")}


@pytest.mark.parametrize(
    ("state", "expected"),
    [("stable", (24, 0, 0)), ("undecided", (0, 24, 24)), ("overloaded", (0, 24, 0))],
)
def test_marks_say_whether_the_server_keeps_up(
    state: str, expected: tuple[int, ...], study: Study, tmp_path: Path
) -> None:
    flags = {name: float(state == name) for name in ("overloaded", "undecided")}
    bare: dict[str, Any] = {"distributions": {}, "timeline": {}, "breakdown": {}}
    points = [replace(p, metrics={**p.metrics, **flags}, **bare) for p in study.points]
    plot_study(replace(study, points=points), MEASURES[0], tmp_path, ".svg")
    text = (tmp_path / "over-load.svg").read_text()
    layers = (
        re.findall(rf"child_layer_{n}_marks[^>]*[^/]>(.*?)</g>", text, re.S) for n in (2, 3, 4)
    )
    filled, opened, dotted = (sum(each.count("<path") for each in found) for found in layers)
    assert (filled, opened, dotted) == expected


@pytest.mark.parametrize(
    ("loads", "labels"),
    [
        ((2.952104, 6.234567, 7.61), {"3", "3.5", "4", "4.5", "5", "5.5", "6", "6.5", "7", "7.5"}),
        ((0.7380, 2.952104, 9.61), {"1", "2", "3", "5"}),
        ((2.5, 5.0, 8.0), {"2.5", "5", "8"}),
    ],
)
def test_ticks_of_loads_are_round(
    loads: tuple[float, ...], labels: set[str], tmp_path: Path
) -> None:
    """Those of a search, such as a tuning's, are not, and stood at the ticks in full."""
    study = tiny_study({(0, 0): {"mean_e2el_ms": 10.0}, (1, 0): {"mean_e2el_ms": 20.0}})
    points = [
        replace(point, places=(0, point.places[1], load))
        for point in study.points
        for load in range(len(loads))
    ]
    hardware, policy, load = study.axes
    rates = replace(load, labels=[f"{rate:g}" for rate in loads], numbers=[*loads])
    study = replace(study, axes=[hardware, policy, rates], points=points)
    plot_study(study, find_measure(study, "mean_e2el_ms"), tmp_path, ".svg")
    texts = _texts(tmp_path / "over-load.svg")
    assert labels <= texts
    assert not [text for text in texts if re.fullmatch(r"\d\.\d\d+", text)]


def test_no_two_policies_look_alike() -> None:
    found = styles([True] + [False] * 70)
    assert found[0] == BASELINE
    assert len({(style.light, style.symbol) for style in found}) == 71


def tiny_study(metrics: dict[tuple[int, int], dict[str, float]], num_policies: int = 2) -> Study:
    """A study of policies on one hardware at one load: metrics by (policy, replication)."""
    points = [
        Point(number, (0, policy, 0), replication, replication, "hash", metrics=found)
        for number, ((policy, replication), found) in enumerate(metrics.items())
    ]
    axes = [
        Axis("hardware", "Hardware", "", "profile", ["h100"]),
        Axis("policy", "Policy", "", "policy", [f"p{n}" for n in range(num_policies)]),
        Axis("load", "Request rate", "requests/s", "workload.arrivals.rate", ["8"], [8.0]),
    ]
    return Study("sweep", "t", axes, points, len(points), [None] * num_policies, ["h100"], "", "0")


def test_policies_are_compared_on_the_requests_that_all_have_met() -> None:
    name = "mean_e2el_ms"
    study = tiny_study({(0, 0): {name: 100.0}, (0, 1): {name: 900.0}, (1, 0): {name: 110.0}})
    cells = group(study)
    measure = find_measure(study, name)
    assert ranked(cells, 0, 0, measure)[0] == 0  # though its mean of both is 500
    found = gain(cells[0, 1, 0], cells[0, 0, 0], measure)
    assert found == speed_up([100.0], [110.0])


def test_a_policy_that_keeps_up_is_better_than_one_that_does_not() -> None:
    name = "mean_e2el_ms"
    study = tiny_study({(0, 0): {name: 10.0, "overloaded": 1}, (1, 0): {name: 20.0}})
    assert ranked(group(study), 0, 0, find_measure(study, name))[0] == 1


def test_cost_comes_from_the_price_and_the_throughput() -> None:
    study = tiny_study({(0, 0): {"output_throughput": 2000.0}}, 1)
    assert "cost_per_mtok" not in measured(study, study.points[0])
    priced = replace(study.points[0], cost=3.6)
    assert measured(study, priced)["cost_per_mtok"] == pytest.approx(0.5)


def test_what_was_not_kept_is_said_to_be_so(folder: Path, tmp_path: Path) -> None:
    study = load_study(folder)
    bare = replace(study, points=[replace(p, distributions={}) for p in study.points])
    _, left_out = plot_study(bare, MEASURES[0], tmp_path, ".svg")
    [reason] = [text for text in left_out if text.startswith("cdf: not drawn: the runs at ")]
    assert reason.endswith(" kept no distributions")
