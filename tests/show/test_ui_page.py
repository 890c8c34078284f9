"""`specsim ui` in a browser: sliders move by the keyboard, and the answer follows."""

import re
from collections.abc import Iterator
from pathlib import Path
from threading import Thread

import pytest
from browser import CHROMIUM, DRIVER, Page, browser
from conftest import tiny_config
from selenium.webdriver.support.ui import WebDriverWait

from specsim.run.experiment import Experiment
from specsim.show.ui import Playground, UiServer, listen

pytestmark = [
    pytest.mark.extras,
    pytest.mark.skipif(not (CHROMIUM and DRIVER), reason="needs chromium and chromedriver"),
]

RIGHT, TAB, HOME, END = "\ue014", "\ue004", "\ue011", "\ue010"


@pytest.fixture(scope="module")
def page(server: UiServer) -> Iterator[Page]:
    with browser(width=1280, height=900) as driver:
        yield Page(driver, server.url, "answers")


def verdict(page: Page) -> str:
    return str(page.js("document.querySelector('#verdict').textContent"))


@pytest.mark.parametrize(
    ("width", "dark"), [(1280, False), (1280, True), (390, False), (390, True)]
)
def test_the_page_fits_and_can_be_read(server: UiServer, width: int, dark: bool) -> None:
    with browser(width=width, height=844, dark=dark) as driver:
        page = Page(driver, server.url, "answers")
        assert page.js("document.documentElement.scrollWidth <= innerWidth")
        assert page.faint() == []
        assert page.js("document.querySelectorAll('#charts svg').length") == 3
        levels = page.js("[...document.querySelectorAll('h1,h2')].map(e => e.textContent)")
        assert levels == [page.js("document.title.replace(' - specsim ui', '')"), "The answer",
                          "Move", "Latency and throughput"]  # fmt: skip
        assert all(server.url in problem for problem in page.problems())  # its own answers only


def test_a_slider_moves_the_answer_by_the_keyboard(page: Page) -> None:
    before, answers = verdict(page), page.js("document.body.dataset.answers")
    page.js("document.querySelector('#rate').focus()")
    for _ in range(60):
        page.press(RIGHT)
    page.wait_for_update(int(answers))
    WebDriverWait(page.driver, 20).until(lambda _: not page.js("document.body.className"))
    assert verdict(page) != before
    assert page.js("document.querySelector('#rate').getAttribute('aria-valuetext')") != ""
    page.press(TAB)
    assert page.js("document.activeElement.id") == "prompt"


def test_a_policy_is_called_by_its_name_alone(page: Page) -> None:
    options = page.js("[...document.querySelectorAll('#policy option')].map(e => e.textContent)")
    assert sorted(options) == ["goodput", "off", "static"]


def test_the_answer_is_said_in_the_words_of_a_plan(page: Page) -> None:
    assert re.search(
        r"Speculation makes answers (take )?\d+\.\d\d times as (fast|long) ", verdict(page)
    )
    note = page.js("document.querySelector('#note').textContent")
    assert re.search(r", \d+\.\d\d USD per hour, ", note)


def test_what_is_wrong_is_told_and_can_be_taken_back(page: Page) -> None:
    answers = int(page.js("document.body.dataset.answers"))
    page.js("moved.prompt = 9999, ask()")  # longer than the engine takes
    page.wait_for_update(answers)
    shown = "document.querySelector('#error').checkVisibility()"
    assert page.js(shown)
    assert "max_model_len" in page.js("document.querySelector('#error').textContent")
    price = "document.querySelector('#note').checkVisibility()"
    assert not page.js(price)  # of another answer
    page.driver.find_element("css selector", "#reset").click()
    page.wait_for_update(answers + 1)
    assert not page.js(shown)
    assert page.js(price)
    assert "SLO" in verdict(page)


def test_a_rate_of_sessions_is_called_so_until_lengths_are_moved() -> None:
    spread = {"mean": 20.0, "sigma": 0.1}
    lengths = {"kind": "sessions", "turns": {"mean": 2.0, "sigma": 0.0}}
    lengths |= dict.fromkeys(("first_prompt", "new_input", "output"), spread)
    workload = {**tiny_config()["workload"], "lengths": lengths}
    playground = Playground(Experiment.parse(tiny_config(workload=workload), "tiny"))
    rate = "document.querySelector('output[for=rate]').textContent"
    with listen(playground, 0) as found, browser(width=1280, height=900) as driver:
        Thread(target=found.serve_forever, daemon=True).start()
        page = Page(driver, found.url, "answers")
        assert page.js(rate).endswith("sessions/s")
        answers = int(page.js("document.body.dataset.answers"))
        page.js("document.querySelector('#prompt').focus()")
        page.press(RIGHT)
        page.wait_for_update(answers)
        assert page.js(rate).endswith("requests/s")
        found.shutdown()


def test_every_draft_length_can_be_reached(page: Page) -> None:
    page.js("document.querySelector('#k').focus()")
    ends = []
    for key in (HOME, END):
        page.press(key)
        ends.append(page.js("document.querySelector('#k').getAttribute('aria-valuetext')"))
    assert ends == ["1", "8"]


def test_the_experiment_can_be_downloaded(page: Page, tmp_path: Path) -> None:
    behaviour = {"behavior": "allow", "downloadPath": str(tmp_path)}
    page.driver.execute_cdp_cmd("Browser.setDownloadBehavior", behaviour)
    page.js("moved.rate = 7.5")
    page.driver.find_element("css selector", "#download").click()
    path = tmp_path / "experiment.yaml"
    WebDriverWait(page.driver, 20).until(lambda _: path.exists())
    assert Experiment.load(path).to_dict()["workload"]["arrivals"]["rate"] == 7.5
