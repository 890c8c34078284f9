"""The page: one HTML file that holds all it needs and may load nothing."""

import json
from base64 import b64encode
from hashlib import sha256
from html import escape
from pathlib import Path
from typing import Any

from plotly.offline import get_plotlyjs

from specsim.core.atomic import new_file
from specsim.core.version import __version__
from specsim.show.report.compact import page_data
from specsim.show.report.study import Study

__all__ = ["write_page"]

_WEB = Path(__file__).with_name("web")
_SCRIPTS = (
    *("dom", "study", "theme", "filters", "chart", "over_load", "maps", "cost", "capacity"),
    *("focus", "time", "overview", "findings", "provenance", "main"),
)
"""In the order in which they stand on the page."""


def write_page(study: Study, path: Path) -> None:
    """Write the page of a study.

    The same study gives the same bytes.

    Args:
        path: Replaced if it exists.

    Raises:
        ConfigError: It cannot be written to.
    """
    plotly, script = get_plotlyjs(), "\n".join(_read(f"{name}.js") for name in _SCRIPTS)
    parts = {
        "policy": escape(_security_policy(plotly, script)),
        "version": escape(__version__),
        "title": escape(f"{study.title} - specsim"),
        "name": escape(study.title),
        "style": _read("page.css"),
        "data": _embedded(page_data(study)),
        "plotly": plotly,
        "script": script,
    }
    # Split once, so that nothing a user wrote is taken for a placeholder.
    first, *rest = _read("page.html").split("{{")
    text = first
    for piece in rest:
        name, _, literal = piece.partition("}}")
        text += parts[name] + literal
    with new_file(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def _read(name: str) -> str:
    return (_WEB / name).read_text(encoding="utf-8")


def _embedded(data: dict[str, Any]) -> str:
    """Return JSON that cannot end the script element it stands in, nor open another."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _security_policy(*scripts: str) -> str:
    """Return a policy under which a browser runs these scripts and nothing else, and loads nothing.

    Source: W3C, "Content Security Policy Level 3", section 6.7.2.3.
    """
    digests = (b64encode(sha256(script.encode()).digest()).decode() for script in scripts)
    allowed = " ".join(f"'sha256-{digest}'" for digest in digests)
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; "
        "img-src data: blob:; base-uri 'none'; form-action 'none'"
    )
