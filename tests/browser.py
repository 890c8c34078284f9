"""A headless Chromium for tests, and what they ask of a page."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from shutil import which
from tempfile import TemporaryDirectory
from typing import Any

from selenium import webdriver
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.support.ui import WebDriverWait

CHROMIUM, DRIVER = which("chromium"), which("chromedriver")

_ARGUMENTS = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    "--disable-dev-shm-usage",
)


_FAINT = """
const pen = Object.assign(document.createElement('canvas'), {width: 1, height: 1})
  .getContext('2d', {willReadFrequently: true});
const over = (below, colour) => {
  pen.fillStyle = `rgb(${below})`; pen.fillRect(0, 0, 1, 1);
  pen.fillStyle = colour; pen.fillRect(0, 0, 1, 1);
  return [...pen.getImageData(0, 0, 1, 1).data].slice(0, 3);
};
const lightness = rgb => {
  const [r, g, b] = rgb.map(v => (v /= 255) <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
const behind = element => element
  ? over(behind(element.parentElement), getComputedStyle(element).backgroundColor)
  : [255, 255, 255];
const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT), found = [];
for (let node; (node = walker.nextNode());) {
  const element = node.parentElement, style = getComputedStyle(element);
  const isSvg = element instanceof SVGElement;
  if (!node.data.trim() || !element.checkVisibility() || element.closest('script, style')) continue;
  if (element.closest('#breakdown .mark-text')) continue;  // text on bars: by hand
  const below = behind(isSvg ? element.closest('svg').parentElement : element);
  const [a, b] = [lightness(over(below, isSvg ? style.fill : style.color)), lightness(below)];
  const contrast = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
  if (contrast < 4.5) found.push(`${contrast.toFixed(2)} ${element.tagName} ${node.data.trim()}`);
}
return found;
"""


@contextmanager
def browser(*, width: int, height: int, dark: bool = False) -> Iterator[webdriver.Chrome]:
    """Open a window of some size; below 600 pixels that of a phone."""
    options = Options()
    options.binary_location = CHROMIUM or ""
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    if width < 600:
        metrics = {"width": width, "height": height, "pixelRatio": 1}
        options.add_experimental_option("mobileEmulation", {"deviceMetrics": metrics})
    with TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        for argument in (*_ARGUMENTS, f"--window-size={width},{height}"):
            options.add_argument(argument)
        options.add_argument(f"--user-data-dir={profile}")
        driver = webdriver.Chrome(options=options, service=Service(DRIVER))
        try:
            scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
            driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
            yield driver
        finally:
            driver.quit()


class Page:
    """A report, or another page that counts how often it was drawn, in a browser."""

    def __init__(self, driver: webdriver.Chrome, at: Path | str, count: str = "updates") -> None:
        self.driver = driver
        self._count = f"Number(document.body.dataset.{count} ?? 0)"
        driver.get(at if isinstance(at, str) else at.resolve().as_uri())
        self.wait_for_update(0)

    def js(self, script: str, *arguments: object) -> Any:
        """Return what a piece of JavaScript returns."""
        return self.driver.execute_script(f"return {script}", *arguments)

    def wait_for_update(self, before: int) -> None:
        """Wait until all charts have been drawn more often than before."""
        WebDriverWait(self.driver, 60).until(lambda _: self.js(self._count) > before)

    def click(self, selector: str) -> None:
        """Press a button, by the keyboard, and wait for the charts."""
        before = self.js("Number(document.body.dataset.updates)")
        element = self.driver.find_element("css selector", selector)
        self.js("arguments[0].focus()", element)
        element.send_keys(" ")
        self.wait_for_update(before)

    def choose(self, selector: str, value: int) -> None:
        """Choose from a list, and wait for the charts."""
        before = self.js("Number(document.body.dataset.updates)")
        self.driver.find_element("css selector", f"{selector} option[value='{value}']").click()
        self.wait_for_update(before)

    def drawn(self) -> dict[str, int]:
        """Return the number of marks of each chart, as the page itself counts them."""
        cards = "[...document.querySelectorAll('[data-chart]')]"
        found: dict[str, int] = self.js(
            f"Object.fromEntries({cards}.map(e => [e.id, Number(e.dataset.drawn)]))"
        )
        return found

    def visible_marks(self, chart: str) -> int:
        """Return how many lines, bars or coloured cells of a chart have a size on the screen."""
        marks = "[role=graphics-symbol], .mark-line path, tbody tr, dd"
        return int(
            self.js(
                f"[...document.querySelectorAll('#{chart} .plot :is({marks})')].filter(e => "
                "{const b = e.getBoundingClientRect(); return b.width + b.height > 1}).length"
            )
        )

    def press(self, key: str) -> None:
        """Press a key wherever the focus is."""
        ActionChains(self.driver).send_keys(key).perform()

    def cut_off(self) -> list[str]:
        """Return the texts of charts that reach beyond their chart."""
        found: list[str] = self.js(
            "[...document.querySelectorAll('.chart svg text')].filter(e => {"
            "const a = e.getBoundingClientRect(), b = e.closest('svg').getBoundingClientRect();"
            "return a.width && (a.left < b.left - 1 || a.right > b.right + 1)})"
            ".map(e => e.textContent)"
        )
        return found

    def faint(self) -> list[str]:
        """Return the texts whose contrast to what lies behind them is below 4.5 (WCAG 2.2, AA)."""
        found: list[str] = self.driver.execute_script(_FAINT)
        return found

    def problems(self) -> list[str]:
        """Return what the console says, what was loaded, and JavaScript's words for nothing."""
        logged = [str(entry["message"]) for entry in self.driver.get_log("browser")]
        loaded: list[str] = self.js("performance.getEntriesByType('resource').map(e => e.name)")
        read: str = self.js("document.body.innerText")
        return [*logged, *loaded, *re.findall(r"\b(?:null|undefined|NaN)\b", read)]
