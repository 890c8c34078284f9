"""The page of a plan in a browser, held to what audits of web pages ask."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
from browser import CHROMIUM, DRIVER, Page, browser
from planned import of_two_gpus, plan_of

from specsim.show.report import load_study, write_page
from specsim.study.plan import Plan
from specsim.study.plan.day import read_day
from specsim.study.plan.files import save_plan
from specsim.study.plan.words import headline

pytestmark = [
    pytest.mark.extras,
    pytest.mark.skipif(not (CHROMIUM and DRIVER), reason="needs chromium and chromedriver"),
]
MOST_BYTES = 1_500_000


def page_of(plan: Plan, folder: Path) -> Path:
    """Write what a plan writes, and return its page."""
    save_plan(plan, folder)
    path = folder / "report.html"
    write_page(load_study(folder), path)
    return path


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [1280, 360])
def test_the_page_passes_an_audit(tmp_path: Path, width: int, dark: bool) -> None:
    plan = of_two_gpus()
    plan = replace(plan, question=replace(plan.question, day=read_day("0:20,12:100")))
    path = page_of(plan, tmp_path)
    assert path.stat().st_size < MOST_BYTES
    with browser(width=width, height=800, dark=dark) as driver:
        page = Page(driver, path)
        assert page.js("location.protocol") == "file:"
        assert page.problems() == []
        assert page.js("document.documentElement.scrollWidth <= innerWidth")
        assert page.faint() == []
        assert page.cut_off() == []
        assert headline(plan.advice) in page.js("document.querySelector('#answer').textContent")
        assert page.js("document.documentElement.lang") == "en"
        assert page.js("!!document.querySelector('meta[name=viewport]') && document.title !== ''")
        assert page.js("document.querySelectorAll('h1').length") == 1
        tables = page.js(
            "[...document.querySelectorAll('#answer caption')].map(e => e.textContent)"
        )
        assert any("In the course of the day" in text for text in tables)


def test_on_paper_tables_have_rows_and_are_whole(tmp_path: Path) -> None:
    path = page_of(of_two_gpus(), tmp_path)
    with browser(width=720, height=1000) as driver:  # A4 without its margins
        driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
        page = Page(driver, path)
        assert page.js("getComputedStyle(document.querySelector('#answer tbody tr')).display") == (
            "table-row"
        )
        assert page.js("document.documentElement.scrollWidth <= innerWidth")
        hidden = "e => e.scrollHeight > e.clientHeight || e.scrollWidth > e.clientWidth"
        assert page.js(f"[...document.querySelectorAll('.scroll')].filter({hidden}).length") == 0


def test_loads_are_plain_numbers(tmp_path: Path) -> None:
    path = page_of(plan_of((26.0, 25.5, 27.0, 900.0), (90.0, 89.0, 91.0, 600.0)), tmp_path)
    with browser(width=360, height=800, dark=False) as driver:
        page = Page(driver, path)
        texts = page.js("[...document.querySelectorAll('svg text')].map(e => e.textContent)")
        assert "50" in texts
        assert [text for text in texts if "e+" in text] == []


def test_the_head_says_how_many_choices_in_the_readers_words(tmp_path: Path) -> None:
    path = page_of(plan_of((26.0, 25.5, 27.0, 900.0), (34.0, 33.5, 35.0, 600.0)), tmp_path)
    with browser(width=1280, height=800, dark=False) as driver:
        page = Page(driver, path)
        said = page.js("document.getElementById('subtitle').textContent")
        assert "loads: 2 choices of speculation · H100" in said
        words = page.js(
            "[...document.querySelectorAll('h2, h3, p, th, legend, label, button')]"
            ".map(e => e.textContent).join(' ')"
        )
        assert "Speculation" in words
        assert re.findall(r".{0,40}polic.{0,40}", words) == []


def test_what_the_answer_hangs_on_has_whole_labels_on_a_phone(tmp_path: Path) -> None:
    path = page_of(of_two_gpus(), tmp_path)
    with browser(width=360, height=800, dark=False) as driver:
        page = Page(driver, path)
        texts = page.js("[...document.querySelectorAll('svg text')].map(e => e.textContent)")
        assert "as asked" in texts
        assert [text for text in texts if text.endswith("…")] == []
