"""Charts: Vega-Lite specifications, used for pages and for files.

A page draws them with the Vega of ``vega/vega.js``, as SVG with the colours of its style sheet;
`save` uses vl-convert, an optional library. Specifications are plain dicts.

References: https://vega.github.io/vega-lite/docs/, version 6.
"""

import json
import re
import struct
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from specsim.core.atomic import PICTURE_MARK, new_file
from specsim.core.errors import ConfigError
from specsim.core.settings import load_mapping, with_values
from specsim.show import read_web

Spec = dict[str, Any]
Rows = list[dict[str, Any]]

SCHEMA = "https://vega.github.io/schema/vega-lite/v6.json"
_COLOUR = re.compile(r"--([\w-]+): light-dark\((#\w+), #\w+\)")


@cache
def print_colour(name: str) -> str:
    """Return a colour of the style sheets for paper, the light variant."""
    known: dict[str, str] = dict(_COLOUR.findall(read_web("base.css") + read_web("page.css")))
    return known[name]


@cache
def vega() -> str:
    """Return the script that draws charts on a page, as ``vegaCharts``, with its licences."""
    folder = Path(__file__).parent / "vega"
    licences, script = (
        (folder / name).read_text(encoding="utf-8") for name in ("LICENSES", "vega.js")
    )
    return f"/*\n{licences}*/\n{script}"


_THEME = load_mapping(Path(__file__).with_name("theme.yaml"), ConfigError)
_NAMED = ("ink", "muted", "line", "grid")


def theme(colour: Callable[[str], str]) -> Spec:
    """Return the theme of all charts; `colour` maps names of the style sheet to colours."""
    found: Spec = with_values(_THEME, {f"${name}": colour(name) for name in _NAMED})
    return found


def literal(value: object) -> str:
    """Return a value as a literal of Vega's expressions."""
    return json.dumps(value)


def number(expression: str) -> str:
    """Return an expression for a number in three digits, or whole from 100 on."""
    whole, few = f"format({expression}, ',.0f')", f"format({expression}, ',.3~r')"
    return f"(abs({expression}) >= 100 ? {whole} : {few})"


def calculate(**expressions: str) -> list[Spec]:
    """Return transforms that add fields."""
    return [{"calculate": text, "as": name} for name, text in expressions.items()]


def keep(condition: str) -> Spec:
    """Return the transform that keeps the rows for which an expression is true."""
    return {"filter": condition}


def quantity(field: str, title: Any = None, *, log: bool = False, **more: Any) -> Spec:
    """Return the encoding of a number."""
    scale = {"type": "log", "nice": False} if log else {"nice": True}
    if log:
        more.setdefault("axis", log_axis())
    return {
        "field": field, "type": "quantitative", "title": title,
        "scale": scale | more.pop("scale", {}), **more,
    }  # fmt: skip


def log_axis(**more: Any) -> Spec:
    """Return an axis that leaves the ticks at 4, 6, 7, 8 and 9 of a decade without a number."""
    digit = "round(1e6 * datum.value / pow(10, floor(log(datum.value) / LN10 + 1e-9))) / 1e6"
    text = f"indexof([4, 6, 7, 8, 9], {digit}) < 0 ? format(datum.value, ',~g') : ''"
    return {"labelExpr": text, **more}


def category(field: str, title: str | None = None, **more: Any) -> Spec:
    """Return the encoding of a category; without a `sort`, in the order of the rows."""
    return {"field": field, "type": "nominal", "title": title, "sort": None, **more}


def colour_of(field: str, names: Sequence[str], *, is_told: bool = True, **legend: Any) -> Spec:
    """Return the encoding that gives each of some names a colour, with a legend if `is_told`."""
    told = {"title": None, **legend} if is_told else None
    return category(field, legend=told, scale={"domain": list(names)})


def mark(kind: str, encoding: Spec | None = None, *transform: Spec, **look: Any) -> Spec:
    """Return a layer of marks."""
    return {
        "mark": {"type": kind, **look},
        **({"encoding": encoding} if encoding else {}),
        **({"transform": list(transform)} if transform else {}),
    }


def panels(by: str, names: Sequence[str], columns: int, spec: Spec, **resolve: str) -> Spec:
    """Return a chart repeated for each value of a field, in the order of `names`."""
    return {
        "facet": {**category(by, header={"title": None}), "sort": list(names)},
        "columns": columns,
        "spec": spec,
        "bounds": "flush",
        "spacing": {"row": 72, "column": 56 if resolve.get("y") else 26},
        "resolve": {"scale": resolve, "axis": {"x": "independent"}},
    }


def table(rows: Rows) -> Spec:
    """Return data that stand in a specification."""
    return {"data": {"values": rows}}


def line_panels(rows: Rows, labels: list[str], title: str, draw: Callable[[Spec], Spec]) -> Spec:
    """Return a panel for each value of ``panel``, with a line for each of ``label``."""
    place = {"x": quantity("x"), "y": quantity("y"), "color": colour_of("label", labels)}
    lines = draw({**place, "order": {"field": "i", "type": "quantitative"}})
    names = list(dict.fromkeys(row["panel"] for row in rows))
    spec = {**lines, "width": 330, "height": 210}
    chart = panels("panel", names, 2, spec, x="independent", y="independent")
    return {"title": title, **table(rows), **chart}


def distribution(values: NDArray[np.float64], **more: Any) -> Rows:
    """Return the empirical distribution of samples, ``x`` and share ``y``, without NaN."""
    known = np.sort(values[np.isfinite(values)])
    shares = np.linspace(0, 1, min(len(known), 400))
    if not len(known):
        return []
    columns = zip(np.quantile(known, shares).tolist(), shares.tolist(), strict=True)
    return [{"i": i, "x": x, "y": y, **more} for i, (x, y) in enumerate(columns)]


_FORMATS = (".png", ".svg", ".pdf")


def check_suffix(path: Path) -> None:
    """Raise a ConfigError unless a path ends in ``.png``, ``.svg`` or ``.pdf``."""
    if path.suffix not in _FORMATS:
        raise ConfigError(
            f"{path}: a plot must end in {', '.join(_FORMATS)}, not '{path.suffix}'; rename it"
        )


def save(spec: Mapping[str, Any], path: Path) -> None:
    """Draw a chart into a file, whole or not at all; a ConfigError if it cannot be written."""
    import vl_convert

    check_suffix(path)
    look = theme(print_colour) | {"background": "white"}
    whole = {"$schema": SCHEMA, "padding": 8, **spec, "config": look}
    with new_file(path) as temporary:
        if path.suffix == ".svg":
            text = vl_convert.vegalite_to_svg(whole)
            temporary.write_text(text.replace(">", ">\n", 1), encoding="utf-8")
        elif path.suffix == ".png":
            temporary.write_bytes(_marked_png(vl_convert.vegalite_to_png(whole, scale=1.6)))
        else:
            # One font only: several come in varying order, and files must be reproducible.
            light = json.dumps(whole).replace('Weight": "bold"', 'Weight": "normal"')
            temporary.write_bytes(_marked_pdf(vl_convert.vegalite_to_pdf(light)))


_REFERENCES = re.compile(rb"(?:^ */\w+ \d+ 0 R\n)+", re.M)


def _marked_pdf(picture: bytes) -> bytes:
    """Return a PDF with the program that made it, and reference lists in a fixed order."""
    text = _REFERENCES.sub(lambda found: b"".join(sorted(found[0].splitlines(True))), picture)
    return text + f"\n%{PICTURE_MARK}\n".encode()


_HEAD = 33  # bytes of a PNG's signature and its first chunk


def _marked_png(picture: bytes) -> bytes:
    """Return a PNG with the program that made it (PNG specification, 11.3.4.3 tEXt)."""
    text = b"tEXtSoftware\0" + PICTURE_MARK.encode()
    chunk = struct.pack(">I", len(text) - 4) + text + struct.pack(">I", crc32(text))
    return picture[:_HEAD] + chunk + picture[_HEAD:]
