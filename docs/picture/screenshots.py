"""Take the pictures of the report page and of `specsim ui`: light, dark, and on a phone.

python docs/picture/screenshots.py RESULTS     # a folder that `specsim capacity --out` wrote
"""

import sys
from pathlib import Path
from threading import Thread

from PIL import Image

from specsim.run.experiment import Experiment
from specsim.show import ui
from specsim.show.report import load_study, write_page

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))
from browser import Page, browser

HERE = Path(__file__).parent
SIZES = {"light": (1280, 900, False), "dark": (1280, 900, True), "phone": (390, 844, False)}


def main(results: Path) -> None:
    """Write six pictures, of 200 colours each."""
    page = results / "report.html"
    write_page(load_study(results), page)
    example = Experiment.load(Path(ui.__file__).with_name("example.yaml"))
    with ui.listen(ui.Playground(example), 0) as server:
        server.answer(ui.Moved(rate=20))
        Thread(target=server.serve_forever, daemon=True).start()
        for what, at, drawn in (("report", page, "updates"), ("ui", server.url, "answers")):
            for name, (width, height, dark) in SIZES.items():
                path = HERE / f"{what}-{name}.png"
                with browser(width=width, height=height, dark=dark) as driver:
                    Page(driver, at, drawn)
                    driver.save_screenshot(str(path))
                Image.open(path).convert("RGB").quantize(200).save(path, optimize=True)
        server.shutdown()


main(Path(sys.argv[1]))
