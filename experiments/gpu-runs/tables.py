import json
from collections.abc import Iterator
from itertools import groupby
from statistics import median
from typing import Any

from readme import HERE

Row = list[str]

METRICS = {  # as they are called on the page, and what was aimed at: median and worst
    "output_tok_s": ("tok/s", 0.03, 0.10),
    "tpot_or_itl_mean_ms": ("TPOT or ITL mean", 0.03, 0.10),
    "itl_p50_ms": ("ITL p50", 0.05, 0.15),
    "ttft_p50_ms": ("TTFT p50", 0.05, 0.20),
    "e2e_mean_ms": ("E2E mean", 0.03, 0.10),
    "engine_steps": ("engine steps", 0.03, 0.10),
}
SPEED_UPS = (0.03, 0.10)
BEST_LENGTH = 0.01


def errors() -> Iterator[Row]:
    """Of the rows that were held out, as built and as fitted."""
    yield ["server", "rows", "metric", "built", "fitted"]
    for server, found in _servers():
        held_out = found["errors"]["held_out"]
        first = [server, str(found["rows"]["held_out"])]
        for metric, built in held_out["before"].items():
            name, *targets = METRICS[metric]
            fitted = held_out["after"][metric]
            yield [*first, name, *(_pair(each, *targets) for each in (built, fitted))]
            first = ["", ""]


def speed_ups() -> Iterator[Row]:
    """Of speculation, and what the length costs that the profile calls best."""
    yield [
        *("server", "speed-ups", "error as built", "as fitted", "right sign"),
        "best length: slower by at most",
    ]
    for server, found in _servers():
        if not (found["speculation"] and found["speculation"]["before"]["speed_ups"]):
            continue
        built, fitted = (found["speculation"][when] for when in ("before", "after"))
        count, loads = built["speed_ups"], built["loads_with_a_choice"]
        was = built["right_sign"]
        signs = f"{fitted['right_sign']} of {count}"
        signs += f" ({was} as built)" if was != fitted["right_sign"] else ""
        slower = [_percent(each["best_k_slower_by"], BEST_LENGTH) for each in (built, fitted)]
        yield [
            *(server, str(count), _pair(built, *SPEED_UPS), _pair(fitted, *SPEED_UPS), signs),
            f"{slower[0]} % built, {slower[1]} % fitted, {loads} load{'s' * (loads > 1)}",
        ]


def parameters() -> Iterator[Row]:
    """Of the fits that were kept, with 95 % intervals."""
    servers = dict(_servers())
    yield ["parameter", *servers]
    fits = [{each["name"]: each for each in found["parameters"]} for found in servers.values()]
    for name in dict.fromkeys(name for fit in fits for name in fit):
        yield [f"`{name}`", *(_told(fit.get(name)) for fit in fits)]


TARGETS = {  # without a fit, for all rows: median and worst
    "tok/s": (("output_tok_s",), 0.06, 0.15),
    "TPOT or ITL mean": (("tpot_or_itl_mean_ms",), 0.06, 0.15),
    "TTFT p50": (("ttft_p50_ms", "ttft_mean_ms"), 0.12, 0.40),
    "E2E mean": (("e2e_mean_ms",), 0.06, 0.15),
}


def loads() -> Iterator[list[str]]:
    """Of all rows as built, load by load: median and worst, with the sign and the row of that."""
    yield ["server", "load", "rows", *TARGETS]
    last = ""
    for row in _loads():
        server, last = row["server"] if row["server"] != last else "", row["server"]
        yield [
            server,
            row["load"],
            str(row["rows"]),
            *(_of_load([row], *t, of="worst_in") for t in TARGETS.values()),
        ]


def servers() -> Iterator[list[str]]:
    """Of all rows as built: the loads' median, and the worst cell of any load, with that load."""
    yield ["server", "rows", *TARGETS]
    for server, rows in groupby(_loads(), key=lambda row: row["server"]):
        members = list(rows)
        cells = (_of_load(members, *target) for target in TARGETS.values())
        yield [server, str(sum(row["rows"] for row in members)), *cells]


def _loads() -> list[dict[str, Any]]:
    text = (HERE / "gpu-runs" / "results" / "loads.json").read_text(encoding="utf-8")
    return json.loads(text)


def _of_load(
    rows: list[dict[str, Any]], names: tuple[str, ...], middle: float, most: float, of: str = "load"
) -> str:
    found = [{**row, **row[name]} for row in rows for name in names if row.get(name)]
    if not found:
        return "–"
    own = max(found, key=lambda each: abs(each["worst"]))
    usual = _percent(median(each["median"] for each in found), middle)
    sign = "-" if own["worst"] < 0 else "+"
    return f"{usual} / {sign}{_percent(abs(own['worst']), most)} ({own[of]})"


def _servers() -> Iterator[tuple[str, dict[str, Any]]]:
    text = (HERE / "gpu-runs" / "results" / "errors.json").read_text(encoding="utf-8")
    yield from json.loads(text).items()


def _pair(found: dict[str, Any], median: float, worst: float) -> str:
    return f"{_percent(found['median_abs'], median)} / {_percent(found['worst_abs'], worst)}"


def _percent(share: float, most: float) -> str:
    text = f"{100 * share:.1f}"
    return f"**{text}**" if float(text) > 100 * most else text


def _told(found: dict[str, Any] | None) -> str:
    if found is None:
        return ""
    if not found["is_told"]:
        return "?"
    return f"{found['value']:.3g} ({found['low']:.3g} to {found['high']:.3g})"
