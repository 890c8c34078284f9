"""The report without a browser: what is read, what is refused, and what stands in the file."""

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
import yaml
from conftest import Run, tiny_config
from reporting import POLICIES, RATES, sweep_folder, whole_sweep

import specsim
from specsim.errors import ConfigError
from specsim.paired import speed_up
from specsim.report import Study, load_study, write_page
from specsim.report.axes import draft_len
from specsim.report.cells import best_policy, find_measure, gain, group, restricted
from specsim.report.colours import BASELINE, styles
from specsim.report.compact import page_data
from specsim.report.measures import MEASURES, measured
from specsim.report.study import Axis, Point

WEB = Path(specsim.__file__).with_name("report") / "web"
EVIL = "static:k=3</script><img src=x onerror=window.hacked=1>{{data}}&amp;"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return whole_sweep(tmp_path_factory.mktemp("sweep") / "whole")


@pytest.fixture(scope="module")
def study(folder: Path) -> Study:
    return load_study(folder)


def page_of(study: Study, folder: Path) -> str:
    path = folder / "page.html"
    write_page(study, path)
    return path.read_text(encoding="utf-8")


class Tags(HTMLParser):
    """Collects what a browser would make of a page: its elements, and its data."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.title = ""
        self.data = ""
        self._inside = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._inside = dict(attrs).get("id") or tag

    def handle_data(self, data: str) -> None:
        if self._inside == "data":
            self.data += data
        if self._inside == "title":
            self.title += data

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""


def test_a_sweep_has_its_axes_in_their_parts(study: Study) -> None:
    hardware, policy, load = study.axes
    assert hardware.labels == ["h100/llama-3.1-8b", "slow"]
    assert (policy.labels, policy.numbers) == (POLICIES, None)
    assert (load.labels, load.numbers, load.unit) == (
        ["5", "20", "60"],
        [5.0, 20.0, 60.0],
        "requests/s",
    )
    assert study.draft_lens == [0, 1, 3, None]
    assert len(study.finished) == study.num_expected == 2 * len(POLICIES) * len(RATES) * 2


def test_points_stand_where_their_records_say(study: Study, folder: Path) -> None:
    for point in study.points[::7]:
        record = json.loads((folder / "points" / f"{point.number:05}.json").read_text())
        found = [axis.labels[place] for axis, place in zip(study.axes, point.places, strict=True)]
        assert found == list(record["labels"].values())
        assert point.metrics == record["metrics"]


def test_profiles_of_one_model_are_called_by_their_gpu(tmp_path: Path) -> None:
    axes = [{"profile": ["h100/llama-3.1-8b", "a100/llama-7b"]}, {"policy": ["off"]}]
    study = load_study(sweep_folder(tmp_path / "two", axes, 1))
    assert study.axes[0].labels == ["h100/llama-3.1-8b", "a100/llama-7b"]
    path = tmp_path / "two" / "sweep.yaml"
    path.write_text(path.read_text().replace("a100/llama-7b", "a100/llama-3.1-8b"))
    assert load_study(tmp_path / "two").axes[0].labels == ["h100", "a100"]


def test_any_number_serves_as_load_and_the_rest_is_held(tmp_path: Path) -> None:
    axes = [
        {"acceptance.alpha": [0.5, 0.8]},
        {"policy.kind": ["static"], "policy.k": [2]},
        {"engine.max_num_seqs": [4, 8]},
    ]
    study = load_study(sweep_folder(tmp_path / "alpha", axes, 1))
    assert [axis.field for axis in study.axes] == [
        *("profile", "policy.kind", "acceptance.alpha", "engine.max_num_seqs")
    ]
    assert study.draft_lens == [2]
    part, held = restricted(study, [])
    assert held == ["engine.max_num_seqs=4"]
    assert [point.number for point in part.points] == [0, 2]
    part, held = restricted(study, ["engine.max_num_seqs=8", "acceptance.alpha=0.5"])
    assert (held, [point.number for point in part.points]) == ([], [1])


@pytest.mark.parametrize(
    ("choice", "why"),
    [("policy", "expected FIELD=VALUE"), ("policy.k=1", "did you mean 'policy'"),
     ("policy=of", "did you mean 'off'")],
)  # fmt: skip
def test_a_choice_that_is_not_there_is_refused(study: Study, choice: str, why: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(why)):
        restricted(study, [choice])


@pytest.mark.parametrize(
    ("policy", "proposer", "expected"),
    [
        ("off", {"num_speculative_tokens": 5}, 0),
        (False, None, 0),
        ({"kind": False}, None, 0),
        (None, None, 0),
        (None, {"num_speculative_tokens": 5}, 5),
        (None, {"num_speculative_tokens": 5, "num_speculative_tokens_per_batch_size": []}, None),
        ("static", {"num_speculative_tokens": 5}, 5),
        ("static:k=3", {"num_speculative_tokens": 5}, 3),
        ({"kind": "static", "k": 2}, {"num_speculative_tokens": 5}, 2),
        ("goodput:k=3", {"num_speculative_tokens": 5}, None),
        ("os:system:k=3", {"num_speculative_tokens": 5}, None),
    ],
)
def test_the_draft_length_is_read_off_the_configuration(
    policy: object, proposer: object, expected: int | None
) -> None:
    assert draft_len({"policy": policy, "engine": {"speculative_config": proposer}}) == expected


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
    return Study("sweep", "t", axes, points, len(points), [None] * num_policies, "", "0")


def test_policies_are_compared_on_the_requests_that_all_have_met() -> None:
    name = "mean_e2el_ms"
    study = tiny_study({(0, 0): {name: 100.0}, (0, 1): {name: 900.0}, (1, 0): {name: 110.0}})
    cells = group(study)
    measure = find_measure(study, name)
    assert best_policy(study, cells, 0, 0, measure) == 0  # though its mean of both is 500
    found = gain(study, cells[0, 1, 0], cells[0, 0, 0], measure)
    assert found == speed_up([100.0], [110.0])


def test_a_policy_that_keeps_up_is_better_than_one_that_does_not() -> None:
    name = "mean_e2el_ms"
    study = tiny_study({(0, 0): {name: 10.0, "unstable": 1}, (1, 0): {name: 20.0, "unstable": 0}})
    assert best_policy(study, group(study), 0, 0, find_measure(study, name)) == 1


def test_cost_comes_from_the_price_and_the_throughput() -> None:
    study = tiny_study({(0, 0): {"output_throughput": 2000.0}}, 1)
    assert "cost_per_mtok" not in measured(study, study.points[0])
    priced = replace(study, prices={"h100": 3.6})
    assert measured(priced, study.points[0])["cost_per_mtok"] == pytest.approx(0.5)


def test_no_two_policies_look_alike() -> None:
    found = styles([True] + [False] * 70)
    assert found[0] == BASELINE
    assert len({(style.light, style.symbol) for style in found}) == 71


def test_the_page_is_the_same_every_time(study: Study, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    assert page_of(study, tmp_path) == page_of(study, tmp_path / "other")


def test_the_page_loads_nothing(study: Study, tmp_path: Path) -> None:
    text = page_of(study, tmp_path)
    found = Tags(text)
    loads = [attrs.get(name) for _, attrs in found.tags for name in ("src", "href", "srcset")]
    assert [link for link in loads if link and not link.startswith(("#", "data:"))] == []
    policy = next(a["content"] for t, a in found.tags if a.get("http-equiv"))
    assert policy is not None
    assert "default-src 'none'" in policy
    assert "http" not in policy
    own = "".join(path.read_text() for path in WEB.iterdir())
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)|@import|url\(|fetch\(|\.open\(", own)


def test_what_users_wrote_stays_text(folder: Path, tmp_path: Path) -> None:
    study = load_study(folder)
    labels = ["off", EVIL, *study.axes[1].labels[2:]]
    axes = [study.axes[0], replace(study.axes[1], labels=labels), study.axes[2]]
    broken = replace(study.points[0], error=EVIL)
    evil = replace(
        study,
        title=EVIL,
        axes=axes,
        points=[broken, *study.points[1:]],
        warnings=[EVIL],
        config=EVIL,
    )
    found = Tags(page_of(evil, tmp_path))
    names = [tag for tag, _ in found.tags]
    assert (names.count("script"), names.count("img")) == (3, 0)
    assert found.title == f"{EVIL} - specsim"
    data = json.loads(found.data)
    assert data["axes"][1]["labels"][1] == data["failed"][0]["error"] == data["config"] == EVIL


def test_a_sweep_of_the_promised_size_makes_a_small_page(study: Study, tmp_path: Path) -> None:
    points = [replace(study.points[n % 48], number=n, replication=n // 48) for n in range(432)]
    path = tmp_path / "page.html"
    write_page(replace(study, points=points, num_expected=432), path)
    assert path.stat().st_size < 10_000_000


def test_timelines_are_thinned_before_a_page_grows_too_large(study: Study) -> None:
    points = [replace(study.points[0], number=n) for n in range(900)]
    data = page_data(replace(study, points=points))
    kept = data["points"][0]["timeline"]
    assert {len(values) for values in kept.values()} == {67}  # 200 samples by threes
    times = study.points[0].timeline["time_s"]
    assert kept["time_s"][1] == pytest.approx(sum(t or 0 for t in times[3:6]) / 3, rel=1e-3)


def test_the_data_are_those_of_the_records(study: Study) -> None:
    data = page_data(study)
    names = [metric["name"] for metric in data["metrics"]]
    assert names[0] == MEASURES[0].name
    for point, shown in zip(study.points, data["points"], strict=True):
        found = {n: v for n, v in zip(names, shown["metrics"], strict=True) if v is not None}
        assert found == pytest.approx(measured(study, point), rel=1e-5)


def test_a_sweep_that_is_not_finished_is_shown_as_far_as_it_is(folder: Path, cli: Run) -> None:
    half = _copied(folder, Path("half"))
    for number in range(20, 48):
        (half / "points" / f"{number:05}.json").unlink()
    code, output, _ = cli("report", half)
    assert code == 0
    assert "20 of 48 runs" in output
    data = json.loads(Tags((half / "report.html").read_text()).data)
    assert (len(data["points"]), data["num_expected"]) == (20, 48)


def _copied(folder: Path, target: Path) -> Path:
    (target / "points").mkdir(parents=True)
    for path in [folder / "sweep.yaml", *(folder / "points").iterdir()]:
        (target / path.relative_to(folder)).write_bytes(path.read_bytes())
    return target


def test_failed_points_are_listed_with_their_error(cli: Run, tmp_path: Path) -> None:
    # k = 5 exceeds num_speculative_tokens = 3 of the tiny experiment, and runs with 9 only.
    axes = [
        {"policy": ["off", "static:k=5"]},
        {"engine.speculative_config.num_speculative_tokens": [3, 9]},
    ]
    path = sweep_folder(tmp_path / "some", axes, 1)
    study = load_study(path)
    assert [(point.number, point.places[1]) for point in study.failed] == [(2, 2)]
    code, output, _ = cli("report", path, "--out", "some.html")
    assert (code, "1 failed" in output) == (0, True)
    (failed,) = json.loads(Tags(Path("some.html").read_text()).data)["failed"]
    assert "policy.k = 5 exceeds" in failed["error"]


def test_a_run_and_a_comparison_are_reported_too(cli: Run, tmp_path: Path) -> None:
    path = tmp_path / "tiny.yaml"
    path.write_text(yaml.safe_dump(tiny_config()))
    assert cli("run", path, "--out", "one")[0] == 0
    assert (
        cli("compare", path, "--policies", "static:k=2", "--replications", 2, "--out", "cmp")[0]
        == 0
    )
    assert cli("report", "one", "--out", "one.html")[0] == 0
    one = load_study(Path("one"))
    assert (one.kind, len(one.points), one.axes[1].labels) == ("run", 1, ["static:k=3"])
    compared = load_study(Path("cmp"))
    assert (compared.axes[1].labels, compared.draft_lens) == (["off", "static:k=2"], [0, 2])
    assert [bool(point.timeline) for point in compared.points] == [True, False, True, False]
    summary = json.loads(Path("cmp/static-k=2/summary.json").read_text())
    first = compared.points[2]
    assert first.metrics["mean_ttft_ms"] == summary["mean_ttft_ms"]
    quantiles = first.distributions["ttft_ms"]
    assert quantiles[50] == pytest.approx(summary["p50_ttft_ms"], rel=1e-5)
    assert max(v or 0 for v in first.timeline["kv_usage"]) <= 1


def test_a_run_and_a_point_of_a_sweep_show_the_same(cli: Run, folder: Path) -> None:
    record = json.loads((folder / "points" / "00014.json").read_text())
    plan = yaml.safe_load((folder / "sweep.yaml").read_text())["base"]
    Path("base.yaml").write_text(yaml.safe_dump(plan))
    settings = [f"--set={field}={value}" for field, value in record["axes"].items()]
    assert cli("run", "base.yaml", *settings, "--seed", record["seed"], "--out", "one")[0] == 0
    (point,) = load_study(Path("one")).points
    assert point.metrics == record["metrics"]
    assert point.timeline == record["timeline"]
    assert point.distributions == record["distributions"]
    assert point.breakdown == pytest.approx(record["breakdown"])


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"specsim_version": "9.9"}, "written by specsim 9.9"),
        ({"metrics": {"mean_e2el_ms": "fast"}}, "metrics.mean_e2el_ms"),
        ({"timeline": {"time_s": [1.0], "running": []}}, "not equally long"),
        ({"distributions": [1]}, "distributions"),
        ({"point": 3}, "not the record of point 1"),
    ],
)
def test_a_damaged_record_is_one_line(
    folder: Path, cli: Run, change: dict[str, object], why: str
) -> None:
    copy = _copied(folder, Path("copy"))
    path = copy / "points" / "00001.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    code, _, error = cli("report", copy)
    assert (code, error.count("\n")) == (2, 1)
    assert why in error
    assert not (copy / "report.html").exists()


def test_folders_that_cannot_be_shown_are_one_line(folder: Path, cli: Run) -> None:
    Path("empty").mkdir()
    Path("foreign").mkdir()
    Path("foreign/summary.json").write_text('{"duration": 3.0}')
    Path("foreign/config.yaml").write_text("{}")
    other = _copied(folder, Path("other"))
    text = (other / "sweep.yaml").read_text()
    (other / "sweep.yaml").write_text(
        re.sub(r"specsim_version: .*", "specsim_version: '9.9'", text)
    )
    nothing = _copied(folder, Path("nothing"))
    for path in (nothing / "points").iterdir():
        path.unlink()
    for name, why in {
        "empty": "holds none of sweep.yaml",
        "missing": "does not exist",
        "foreign": "is no summary of specsim's",
        "other": "was written by specsim 9.9",
        "nothing": "none of its 48 points has ended yet",
        "other/sweep.yaml": "is a file",
    }.items():
        code, _, error = cli("report", name)
        assert (code, error.count("\n"), why in error) == (2, 1, True), (name, error)


def test_a_page_needs_a_name_of_a_page(folder: Path, cli: Run) -> None:
    code, _, error = cli("report", folder, "--out", "page.pdf")
    assert (code, "must end in .html" in error) == (2, True)


def test_plots_are_drawn_and_the_same_every_time(folder: Path, cli: Run) -> None:
    code, output, _ = cli("plot", folder, "--out", "plots")
    assert code == 0
    assert "cost: not drawn: no price" in output
    names = {path.stem for path in Path("plots").iterdir()}
    assert names == {"over-load", "speed-up", "crossover", "cdf", "timeline", "breakdown"}
    cli("plot", folder, "--out", "again")
    for path in Path("plots").iterdir():
        assert path.read_bytes() == (Path("again") / path.name).read_bytes()
    text = Path("plots/over-load.svg").read_text()
    assert "<svg" in text


def test_plots_can_be_of_some_runs_only(folder: Path, cli: Run) -> None:
    code, output, _ = cli(
        *("plot", folder, "--out", "part", "--format", "png", "--metric", "p99_ttft_ms"),
        *("--where", "workload.arrivals.rate=20", "--where", "profile=slow"),
    )
    assert code == 0
    assert "over-load: not drawn: all runs have the same load" in output
    assert Path("part/cdf.png").read_bytes()[:4] == b"\x89PNG"
    code, _, error = cli("plot", folder, "--metric", "p99_ttft")
    assert (code, "did you mean 'p99_ttft_ms'" in error) == (2, True)


def test_a_price_draws_latency_against_cost(study: Study, tmp_path: Path) -> None:
    from specsim.plots.study import plot_study  # noqa: PLC0415 - matplotlib takes a second

    priced = replace(study, prices=dict.fromkeys(study.axes[0].labels, 2.0))
    drawn, left_out = plot_study(priced, MEASURES[0], tmp_path, ".svg")
    assert (tmp_path / "cost.svg" in drawn, left_out) == (True, [])
