"""The page without a browser: what stands in the file, and what does not."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from conftest import Run
from reporting import Tags, copied

import specsim
from specsim.show.charts.of_study import DrawnMeasure
from specsim.show.report import load_study, page_data, write_page
from specsim.show.study import (
    MEASURES,
    Study,
    find_measure,
    gain,
    group,
    measured,
    ranked,
    values_of,
)
from specsim.study.paired import mean_and_half_width

WEB = Path(specsim.__file__).parent / "show" / "report" / "web"
EVIL = "static:k=3</script><img src=x onerror=window.hacked=1>{{data}}&amp;"


def page_of(study: Study, folder: Path) -> str:
    path = folder / "page.html"
    write_page(study, path)
    return path.read_text(encoding="utf-8")


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
    assert "unsafe-eval" not in policy
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)|@import|url\(|fetch\(|\.open\(", own)


def test_the_page_has_the_licences_of_what_draws_it(study: Study, tmp_path: Path) -> None:
    text = page_of(study, tmp_path)
    for owner in ("University of Washington Interactive Data Lab", "Mike Bostock"):
        assert f"{owner}\n" in text
    assert text.count('PROVIDED "AS IS"') >= 2


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
    assert path.stat().st_size < 1_500_000


def test_timelines_are_thinned_before_a_page_grows_too_large(study: Study) -> None:
    places = [(n % 2, n // 2 % 4, n // 8) for n in range(120)]
    points = [replace(study.points[0], number=n, places=place) for n, place in enumerate(places)]
    axes = [*study.axes[:2], replace(study.axes[2], labels=[str(n) for n in range(15)])]
    data = page_data(replace(study, axes=axes, points=points))
    kept = data["cells"][0]["timeline"]
    assert {len(values) for values in kept.values()} == {67}  # 200 samples by threes
    times = study.points[0].timeline["time_s"]
    assert kept["time_s"][1] == pytest.approx(sum(t or 0 for t in times[3:6]) / 3, rel=1e-3)


def test_the_data_are_those_of_the_records(study: Study) -> None:
    data = page_data(study)
    names = [metric["name"] for metric in data["metrics"]]
    assert names[0] == MEASURES[0].name
    alone = {
        (each["h"], each["p"], each["l"], each["luck"]): each
        for each in data["cells"]
        if each["luck"] is not None
    }
    assert len(alone) == len(study.points)
    for point in study.points:
        shown = alone[*point.places, point.replication]
        found = {n: v for n, v in zip(names, shown["mean"], strict=True) if v is not None}
        assert found == pytest.approx(measured(study, point), rel=1e-5)


def test_the_statistics_are_those_of_the_studies(study: Study) -> None:
    data, cells = page_data(study), group(study)
    measure = find_measure(study, "mean_e2el_ms")
    place = [metric["name"] for metric in data["metrics"]].index(measure.name)
    together = [each for each in data["cells"] if each["luck"] is None]
    assert {(each["h"], each["p"], each["l"]) for each in together} == cells.keys()
    for each in together:
        cell = cells[each["h"], each["p"], each["l"]]
        mean, half = mean_and_half_width(list(values_of(cell, measure).values()))
        assert (each["mean"][place], each["half"][place]) == pytest.approx((mean, half), rel=1e-2)
        over = gain(cell, cells[each["h"], 0, each["l"]], measure)
        assert over is not None
        assert each["gain"][place] == pytest.approx([over.mean, over.low, over.high], rel=1e-3)
        order = ranked(cells, each["h"], each["l"], measure)
        assert order[each["rank"][place]] == each["p"]
        for other in each["ties"].get(str(place), []):
            lead = gain(cell, cells[each["h"], other, each["l"]], measure)
            assert lead is not None
            assert lead.low is not None
            assert lead.high is not None
            assert lead.low <= 1 <= lead.high
            assert order.index(other) > each["rank"][place]


def test_what_is_chosen_on_the_page_fills_its_charts(study: Study) -> None:
    text = json.dumps(page_data(study)["charts"]["over-load"])
    assert set(re.findall(r'\{"\$": "(\w+)"\}', text)) == set(DrawnMeasure._fields)


def test_a_sweep_that_is_not_finished_is_shown_as_far_as_it_is(folder: Path, cli: Run) -> None:
    half = copied(folder, Path("half"))
    for number in range(20, 48):
        (half / "points" / f"{number:05}.json").unlink()
    code, output, _ = cli("report", half)
    assert code == 0
    assert "20 of 48 runs" in output
    data = json.loads(Tags((half / "report.html").read_text()).data)
    assert (data["num_ended"], data["num_expected"]) == (20, 48)


def test_a_page_needs_a_name_of_a_page(folder: Path, cli: Run) -> None:
    code, _, error = cli("report", folder, "--out", "page.pdf")
    assert (code, "must end in .html" in error) == (2, True)


def test_prices_can_be_ones_own(folder: Path, cli: Run) -> None:
    table = {"date": "2026-02-03", "source": "me", "currency": "EUR", "per_gpu_hour": {"h100": 9.0}}
    Path("mine.yaml").write_text(yaml.safe_dump(table))
    assert cli("report", folder, "--prices", "mine.yaml", "--out", "page.html")[0] == 0
    data = json.loads(Tags(Path("page.html").read_text()).data)
    assert data["prices"] == [["H100/llama-3.1-8b", 9.0]]  # and none of the other GPU
    assert (data["currency"], data["price_date"]) == ("EUR", "2026-02-03")
    place = [metric["name"] for metric in data["metrics"]].index("cost_per_mtok")
    assert data["cells"][0]["mean"][place] is not None
    assert data["cells"][-1]["mean"][place] is None
