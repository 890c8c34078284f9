"""Report: one self-contained page from the results folder of a sweep, a comparison or a run.

`load_study` reads whatever folder it is given into a `Study`; `write_page` makes the page. The
page's own files (HTML, CSS, JavaScript) lie in ``web/``.
"""

from specsim.show.report.folders import load_study
from specsim.show.report.page import write_page

__all__ = ["load_study", "write_page"]
