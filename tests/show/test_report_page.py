"""The report in a browser: every chart draws, filters act on them, and the sums are right."""

import csv
import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from urllib.parse import unquote

import pytest
from browser import CHROMIUM, DRIVER, Page, browser

from specsim.show.report import load_study, write_page
from specsim.show.study import Axis, Study, find_measure, gain, group, ranked, restricted

pytestmark = [
    pytest.mark.extras,
    pytest.mark.skipif(not (CHROMIUM and DRIVER), reason="needs chromium and chromedriver"),
]

EVIL = "static:k=3</script><img src=x onerror=window.hacked=1>"
CHARTS = ("crossover", "over-load", "speed-up", "cost", "cdf", "timeline", "breakdown", "overview")
DRAWN = ("crossover", "over-load", "speed-up", "cost", "cdf", "timeline", "breakdown")


@pytest.fixture(scope="module")
def study(folder: Path) -> Study:
    found = load_study(folder)
    policy = replace(found.axes[1], labels=["off", "static:k=1", EVIL, "goodput"])
    axes = [found.axes[0], policy, found.axes[2]]
    prices = dict.fromkeys(found.axes[0].labels, 2.5)
    failed = replace(found.points[-1], error=EVIL, metrics={}, distributions={}, timeline={})
    points = [*(replace(point, gpus=1, cost=2.5) for point in found.points[:-1]), failed]
    return replace(found, axes=axes, prices=prices, points=points, title=EVIL)


@pytest.fixture(scope="module")
def path(study: Study, tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("page") / "report.html"
    write_page(study, target)
    return target


@pytest.fixture(scope="module")
def desktop(path: Path) -> Iterator[Page]:
    with browser(width=1440, height=900) as driver:
        yield Page(driver, path)


@pytest.fixture(autouse=True)
def _fresh(request: pytest.FixtureRequest) -> None:
    if "desktop" in request.fixturenames:
        page: Page = request.getfixturevalue("desktop")
        page.js("history.replaceState(null, '', location.pathname)")
        page.driver.refresh()
        page.wait_for_update(0)


@pytest.mark.parametrize(
    ("width", "height", "dark"),
    [(1440, 900, False), (1440, 900, True), (360, 780, False), (360, 780, True)],
)
def test_every_chart_is_drawn(path: Path, width: int, height: int, dark: bool) -> None:
    with browser(width=width, height=height, dark=dark) as driver:
        page = Page(driver, path)
        drawn = page.drawn()
        assert {chart: drawn[chart] > 0 for chart in CHARTS} == dict.fromkeys(CHARTS, True)
        assert {chart: page.visible_marks(chart) > 0 for chart in CHARTS} == dict.fromkeys(
            CHARTS, True
        )
        assert page.problems() == []
        assert page.js("document.documentElement.scrollWidth <= innerWidth")
        assert page.cut_off() == []
        assert page.faint() == []
        dark_ground = (
            page.js("getComputedStyle(document.body).backgroundColor") == "rgb(16, 19, 24)"
        )
        assert dark_ground == dark
        tall = page.js("document.documentElement.scrollHeight")
        driver.set_window_size(width, tall) if width >= 600 else None
        name = f"report-{width}-{'dark' if dark else 'light'}.png"
        assert driver.save_screenshot(str(path.with_name(name)))


def test_a_filter_acts_on_every_chart(desktop: Page) -> None:
    before = desktop.drawn()
    desktop.click("[data-filter=policy] [data-index='1']")
    after = desktop.drawn()
    assert {chart for chart in CHARTS if after[chart] < before[chart]} == set(CHARTS) - {
        "crossover"  # one winner per case, as before
    }
    names = desktop.js("document.querySelector('#breakdown .plot').textContent")
    assert "static:k=1" not in names
    assert "goodput" in names
    desktop.click("[data-filter=policy] .all")
    assert desktop.drawn() == before


def test_hardware_load_and_replication_can_be_chosen(desktop: Page) -> None:
    before = desktop.drawn()
    desktop.click("[data-filter=hardware] [data-index='1']")
    cells = "document.querySelectorAll('#crossover .mark-rect path').length"
    assert (before["crossover"] > desktop.drawn()["crossover"], desktop.js(cells)) == (True, 3)
    bands = "document.querySelectorAll('#over-load .mark-area path').length"
    assert desktop.js(bands) == 4
    desktop.choose("[data-filter=replication]", 1)
    assert desktop.js(bands) == 0  # a single replication has no band
    desktop.click("[data-filter=load] [data-index='0']")
    assert desktop.js(cells) == 2
    assert desktop.problems() == []


def test_a_metric_and_a_closer_look_can_be_chosen(desktop: Page) -> None:
    title = "document.querySelector('#over-load h3').textContent"
    desktop.choose("#metric", 4)
    assert desktop.js(title) == "Mean TTFT by request rate"
    line = "document.querySelector('#cdf .mark-line path').getAttribute('d')"
    before = desktop.js(line)
    desktop.choose("#focus-load", 2)
    assert desktop.js(line) != before
    assert "60 requests/s" in desktop.js("document.querySelector('#cdf h3').textContent")
    desktop.choose("#focus-hardware", 1)
    assert "slow" in desktop.js("document.querySelector('#cdf h3').textContent")


def test_the_page_shows_the_statistics_of_the_studies(desktop: Page, study: Study) -> None:
    cells, measure = group(study), find_measure(study, "mean_e2el_ms")
    for hardware, load in {(place[0], place[2]) for place in cells}:
        shown = desktop.js(f"ranked({hardware}, {load}).map(({{ p }}) => p)")
        assert shown == ranked(cells, hardware, load, measure)
    winners = [ranked(cells, h, load, measure)[0] for h in range(2) for load in range(3)]
    texts = "[...document.querySelectorAll('#crossover .layer_1_marks text')]"
    names = [study.axes[1].labels[winner][:12] for winner in winners]  # they are cut to their cells
    assert sorted(desktop.js(f"{texts}.map(e => e.textContent.slice(0, 12))")) == sorted(names)
    assert desktop.js("gainOf(cell(0, 1, 1), 'mean_e2el_ms').mean") == pytest.approx(
        gain(cells[0, 1, 1], cells[0, 0, 1], measure).mean, rel=1e-3
    )


def test_what_a_mark_is_can_be_read_beside_it(desktop: Page) -> None:
    point = (
        "document.querySelector('#over-load [role=graphics-symbol][aria-roledescription=point]')"
    )
    desktop.js(f"{point}.scrollIntoView({{block: 'center'}})")
    where = desktop.js(
        f"(b => [b.x + b.width / 2, b.y + b.height / 2])({point}.getBoundingClientRect())"
    )
    moved = {"type": "mouseMoved", "x": where[0], "y": where[1]}
    desktop.driver.execute_cdp_cmd("Input.dispatchMouseEvent", moved)
    told = desktop.js("document.querySelector('.tooltip:not([hidden])').textContent")
    assert " at " in told
    assert " requests/s: " in told


def test_what_users_wrote_is_shown_as_they_wrote_it(desktop: Page) -> None:
    assert desktop.js("window.hacked") is None
    assert desktop.js("document.images.length") == 0
    assert desktop.js("document.querySelector('h1').textContent") == EVIL
    chip = "document.querySelector('[data-filter=policy] [data-index=\"2\"]').textContent"
    assert desktop.js(chip) == EVIL
    assert EVIL in desktop.js("document.querySelector('#breakdown .chart').textContent")
    assert EVIL in desktop.js("document.querySelector('#failed').textContent")


def test_the_overview_sorts_both_ways(desktop: Page) -> None:
    heads = "[...document.querySelectorAll('#overview thead button')]"
    index = desktop.js(f"{heads}.findIndex(b => b.textContent.startsWith('mean E2E'))")
    rows = "[...document.querySelectorAll('#overview tbody tr')]"
    values = f"{rows}.map(r => Number(r.cells[{index}].textContent.replace(',', '')))"
    for expected in ("ascending", "descending"):
        desktop.driver.find_element("css selector", f"#overview [data-sort='{index}']").click()
        head = f"document.querySelectorAll('#overview thead th')[{index}].getAttribute('aria-sort')"
        assert desktop.js(head) == expected
        found = desktop.js(values)
        assert found == sorted(found, reverse=expected == "descending")


def test_every_control_can_be_reached_and_named(desktop: Page) -> None:
    nameless = (
        "[...document.querySelectorAll('button, select, input, summary')].filter(e => "
        "!(e.textContent.trim() || e.labels?.length || e.ariaLabel)).length"
    )
    assert desktop.js(nameless) == 0
    unreachable = (
        "[...document.querySelectorAll('button, select, input')].filter(e => e.tabIndex < 0).length"
    )
    assert desktop.js(unreachable) == 0
    for chart in DRAWN:
        assert desktop.js(f"document.querySelector('#{chart} .chart').getAttribute('aria-label')")
        desktop.js(f"document.querySelector('#{chart} details').open = true")
        rows = f"document.querySelectorAll('#{chart} details tbody tr').length"
        desktop.driver.implicitly_wait(1)
        assert desktop.js(f"new Promise(done => setTimeout(() => done({rows}), 50))") > 0


def test_the_page_opens_with_the_answer_and_is_read_in_order(desktop: Page) -> None:
    levels = desktop.js("[...document.querySelectorAll('h1,h2,h3')].filter(e => e.offsetParent)"
                        ".map(e => [Number(e.tagName[1]), e.textContent])")  # fmt: skip
    assert levels[:2] == [[1, EVIL], [2, "The answer"]]
    steps = [after[0] - before[0] for before, after in pairwise(levels)]
    assert max(steps) <= 1  # no level is skipped
    for landmark in ("header", "main", "footer"):
        assert desktop.js(f"document.querySelectorAll('body > {landmark}').length") == 1
    desktop.js("[...document.querySelectorAll('details')].forEach(e => e.open = true)")
    nameless = "[...document.querySelectorAll('table')].filter(e => !e.caption?.textContent)"
    assert desktop.js(f"new Promise(done => setTimeout(() => done({nameless}.length), 80))") == 0


def test_the_keyboard_goes_down_the_page(desktop: Page) -> None:
    desktop.js("document.querySelector('.skip').focus()")  # to the charts, past the filters
    active, seen = "document.activeElement", list[float]()
    while desktop.js(f"{active}.tagName") != "BODY":
        assert desktop.js(f"getComputedStyle({active}).outlineStyle") != "none"
        seen.append(desktop.js(f"{active}.getBoundingClientRect().top + scrollY"))
        desktop.press("\ue004")  # Tab
    assert len(seen) > 40
    rises = [a - b for a, b in pairwise(seen[1:])]
    assert max(rises) < 160, rises  # back up within a card, as to maps side by side, no further


def test_every_table_can_be_had_as_csv(desktop: Page) -> None:
    desktop.js("[...document.querySelectorAll('details')].forEach(e => e.open = true)")
    desktop.js("new Promise(done => setTimeout(done, 80))")
    count = desktop.js("document.querySelectorAll('table').length")
    links: list[str] = desktop.js("[...document.querySelectorAll('a.csv')].map(e => e.href)")
    assert len(links) == count > 5
    tables = [list(csv.reader(unquote(link.partition(",")[2]).splitlines())) for link in links]
    assert all({len(row) for row in table} == {len(table[0])} for table in tables)
    overview = next(table for table in tables if table[0][0] == "Hardware" and len(table[0]) > 9)
    place = [head.startswith("mean E2E") for head in overview[0]].index(True)
    assert all(float(row[place]) > 0 for row in overview[1:])


def test_the_address_keeps_what_is_shown(desktop: Page) -> None:
    desktop.click("[data-filter=policy] [data-index='1']")
    desktop.choose("#metric", 4)
    desktop.choose("#focus-load", 2)
    kept = desktop.js("location.hash")
    assert ("policy=0.2.3" in kept, "metric=mean_ttft_ms" in kept) == (True, True)
    before = desktop.drawn()
    desktop.driver.refresh()
    desktop.wait_for_update(0)
    assert (desktop.drawn(), desktop.js("location.hash")) == (before, kept)
    assert "60 requests/s" in desktop.js("document.querySelector('#cdf h3').textContent")
    desktop.js("history.replaceState(null, '', '#policy=99.x&metric=none&at=7.7&slices=5')")
    desktop.driver.refresh()
    desktop.wait_for_update(0)
    assert desktop.js("location.hash") == ""  # nothing of it is on this page


def test_limits_are_drawn_and_what_is_left_out_is_said(desktop: Page) -> None:
    assert "SLO 200 ms" in desktop.js("document.querySelector('#cdf .plot').textContent")
    over_load = "document.querySelector('#over-load .plot').textContent"
    assert "SLO" not in desktop.js(over_load)  # there is no limit of the latency
    desktop.choose("#metric", 4)
    assert "SLO 200 ms" in desktop.js(over_load)
    left = "document.querySelector('#left-out').textContent"
    assert desktop.js(left) == ""
    desktop.click("[data-filter=policy] [data-index='0']")
    assert "no speculation is filtered out" in desktop.js(left)
    assert not desktop.js("document.querySelector('#speed-up').offsetParent")


def test_the_theme_can_be_switched(desktop: Page) -> None:
    ground = "getComputedStyle(document.body).backgroundColor"
    line = "getComputedStyle(document.querySelector('#cdf .mark-line path')).stroke"
    before = desktop.js(ground), desktop.js(line)
    desktop.driver.find_element("css selector", "#theme option[value=dark]").click()
    after = desktop.js(ground), desktop.js(line)
    assert all(old != new for old, new in zip(before, after, strict=True))
    desktop.driver.find_element("css selector", "#theme option[value=auto]").click()
    assert desktop.js(ground) == before[0]


def test_a_share_that_is_not_all_is_not_shown_as_all(desktop: Page) -> None:
    shares = {0.99: "99", 0.9896: "98.96", 0.9999: "99.99", 0.99999: "99.99", 1: "100", 0.5: "50"}
    assert {each: desktop.js(f"percent({each})") for each in shares} == {
        each: f"{text}\u00a0%" for each, text in shares.items()
    }


def test_what_is_most_of_the_means_over_time_is_not_called_most_of_all(desktop: Page) -> None:
    finding = desktop.js("document.querySelector('#timeline .finding').textContent")
    assert re.search(r"in use .*, in the mean of [\d.]+ s each\.", finding)


def test_the_page_of_a_single_case_has_its_numbers(study: Study, tmp_path: Path) -> None:
    whole = replace(study, points=study.finished)
    firsts = [f"{axis.field}={axis.labels[0]}" for axis in study.axes[:3]]
    single, _ = restricted(whole, firsts)
    write_page(single, tmp_path / "single.html")
    with browser(width=1440, height=900) as driver:
        page = Page(driver, tmp_path / "single.html")
        answer = page.js("document.getElementById('answer').textContent")
    assert "Output throughput" in answer
    assert "undecided whether it keeps up" in answer  # few requests


def test_the_answer_says_of_which_of_the_other_axes_values_it_is(
    study: Study, tmp_path: Path
) -> None:
    blocks = Axis("other", "block_size", "", "engine.block_size", ["16", "32", "64"])
    points = [
        replace(each, places=(*each.places, place)) for each in study.points for place in (1, 2)
    ]
    write_page(replace(study, axes=[*study.axes, blocks], points=points), tmp_path / "three.html")
    with browser(width=360, height=780) as driver:
        page = Page(driver, tmp_path / "three.html")
        answer = "document.querySelector('#answer .asked').textContent"
        # Of 16 no run has come to anything.
        assert page.js(answer).startswith("With block_size 32; the filters choose others.")
        page.driver.find_element("css selector", "#filters .fold").click()
        page.choose("[data-filter=block_size]", 2)
        assert page.js(answer).startswith("With block_size 64; the filters choose others.")


def test_of_a_load_where_nobody_surely_keeps_up_the_answer_says_so(
    study: Study, tmp_path: Path
) -> None:
    last = max(each.places[2] for each in study.finished)
    assert last
    points = [
        replace(each, metrics={**each.metrics, "overloaded": 0.0, "undecided": float(is_last)})
        for each in study.finished
        for is_last in [each.places[2] == last]
    ]
    write_page(replace(study, points=points), tmp_path / "undecided.html")
    with browser(width=1440, height=900) as driver:
        page = Page(driver, tmp_path / "undecided.html")
        answer = page.js("document.getElementById('answer').textContent")
    load = study.axes[2].labels[last]
    assert f"keeps up at every load but {load}" in answer
    assert "where that is undecided" in answer


@pytest.mark.parametrize(
    ("kept", "said"),
    [
        ([1, 0, 1], "99 % of the requests keep the SLO up to {0}"),
        ([0, 1, 1], "99 % of the requests keep the SLO at {1} and {2}, but not at lower loads"),
        ([0, 0, 0], "at none of these loads do 99 % of the requests keep the SLO"),
    ],
)
def test_limits_are_kept_up_to_the_first_load_at_which_they_are_not(
    study: Study, tmp_path: Path, kept: list[int], said: str
) -> None:
    loads = study.axes[2].labels
    points = [
        replace(
            each, metrics={**each.metrics, "request_throughput": 1.0, "request_goodput": goodput}
        )
        for each in study.finished
        for goodput in [float(kept[each.places[2] or 0])]
    ]
    write_page(replace(study, points=points), tmp_path / "kept.html")
    with browser(width=1440, height=900) as driver:
        page = Page(driver, tmp_path / "kept.html")
        answer = page.js("document.getElementById('answer').textContent")
    said = said.format(*(f"{load} requests/s" for load in loads))
    assert said in answer.replace("\u00a0", " ")


def test_a_bound_is_best_of_nothing_but_bounds(study: Study, tmp_path: Path) -> None:
    labels = ["off", "static:k=1", "oracle", "my_oracle:Mine"]
    axes = [study.axes[0], replace(study.axes[1], labels=labels), study.axes[2]]
    quick = {**dict.fromkeys(study.finished[0].metrics, 0.5), "overloaded": 0.0}
    bounds = [
        replace(each, places=(each.places[0], 2, *each.places[2:]), metrics=quick)
        for each in study.finished
    ]
    real = [each for each in study.finished if each.places[1] == 1]
    said = []
    for points in (bounds, [*real, *bounds]):
        write_page(replace(study, axes=axes, points=points), tmp_path / "bound.html")
        with browser(width=1440, height=900) as driver:
            page = Page(driver, tmp_path / "bound.html")
            texts = [
                page.js(f"document.getElementById('{name}').textContent")
                for name in ("answer", "crossover")
            ]
            said.append([text.replace("oracle (bound)", "a bound") for text in texts])
    (alone, _), (answer, winners) = said
    assert "best by mean E2E latency: a bound at every load" in alone
    assert "static:k=1 at every load" in answer
    assert "static:k=1" in winners
    assert "a bound" not in answer + winners
