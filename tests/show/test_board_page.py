"""The board of controllers in a browser: it sorts by mouse and keyboard, from a file."""

import sys
from pathlib import Path
from types import ModuleType

import pytest
from browser import CHROMIUM, DRIVER, Page, browser
from conftest import ROOT, load_script

EVIL = "off</script><img src=x onerror=window.hacked=1>"
EXPERIMENTS = ROOT / "experiments"


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(EXPERIMENTS))
    monkeypatch.delitem(sys.modules, "readme", raising=False)
    found = load_script(EXPERIMENTS / "board_page.py")
    monkeypatch.delitem(sys.modules, "readme")
    return found


def test_the_page_has_every_controller_in_one_small_file(
    module: ModuleType, tmp_path: Path
) -> None:
    data = module.page_data()
    [header, *rows] = module.script("policy-scoreboard/tables").board()
    assert [row[0] for row in data["rows"]] == [row[0].strip("`") for row in rows]
    assert len(data["rows"][0]) == len(header)
    for own, theirs in zip(data["rows"], rows, strict=True):
        means = ["–" if each is None else each["mean"] for each in own[2:-2]]
        texts = [each.strip("*") for each in theirs[2:-2]]
        assert means == [each if each == "–" else float(each) for each in texts]
    module.write(tmp_path / "board.html", data)
    text = (tmp_path / "board.html").read_text()
    assert len(text) < 100_000
    assert "http://" not in text.replace("http://www.w3.org/2000/svg", "")
    assert "https://" not in text


@pytest.mark.extras
@pytest.mark.skipif(not (CHROMIUM and DRIVER), reason="needs chromium and chromedriver")
def test_the_board_sorts_by_every_column(module: ModuleType, tmp_path: Path) -> None:
    data = module.page_data()
    data["rows"][0][0] = EVIL
    module.write(tmp_path / "board.html", data)
    with browser(width=1440, height=900) as driver:
        page = Page(driver, tmp_path / "board.html")
        rows = "[...document.querySelectorAll('tbody tr')]"
        value = "(e => e.querySelector('[data-value]')?.dataset.value ?? e.textContent)"
        for index in range(len(data["rows"][0])):
            for falls in (False, True):
                page.click(f"[data-sort='{index}']")
                assert page.js(f"document.activeElement.dataset.sort === '{index}'")
                found = page.js(f"{rows}.map(r => {value}(r.cells[{index}]))")
                assert len(found) == len(data["rows"])
                stated = [each for each in found if index < 2 or each != "–"]
                assert stated == found[: len(stated)]  # what is not known comes last
                keys = stated if index < 2 else [float(each) for each in stated]
                assert keys == sorted(keys, reverse=falls)
        assert page.js(f"{rows}.some(r => r.cells[0].textContent === arguments[0])", EVIL)
        assert page.js("window.hacked ?? 0") == 0
        no_row_is_hidden = (
            "(e => e.scrollHeight <= e.clientHeight)(document.querySelector('.scroll'))"
        )
        assert page.js(no_row_is_hidden)
        assert not page.faint()
