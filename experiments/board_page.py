"""The board of controllers as a page that sorts, in one file that loads nothing.

    python experiments/board_page.py [FILE]     # policy-scoreboard/board.html

Press a head to sort, or go to it with Tab and press Enter; point at a regret to see its bounds.
"""

import sys
from pathlib import Path
from typing import Any

from readme import HERE, Row, read, script

from specsim.show import read_web
from specsim.show.report import write_web_page

FOLDER = HERE / "policy-scoreboard"


def regret_of(row: Row | None) -> dict[str, float] | None:
    """Return a regret in percent and its bounds, rounded as in the README, and p."""
    if row is None:
        return None
    found = {name: round(float(row[f"{name}_percent"]), 1) for name in ("mean", "low", "high")}
    return {**found, "p": float(row["p"])}


def page_data() -> dict[str, Any]:
    """Return the board as plain values, as ``policy-scoreboard/board.js`` reads them."""
    tables = script("policy-scoreboard/tables")
    [made] = read("stamps.csv", experiment="policy-scoreboard")
    rows = []
    for policy, source, places, worst, decision in tables.standings():
        regrets = [regret_of(places.get(place)) for place in tables.PLACES]
        rows.append([policy, source, *regrets, worst, decision])
    made_by = f"specsim {made['version']}, commit {made['commit']}, {made['date']}"
    return {"places": tables.PLACES, "rows": rows, "made": made_by}


def write(path: Path, data: dict[str, Any]) -> None:
    own = (FOLDER / "board.js").read_text(encoding="utf-8")
    write_web_page("Board of controllers", data, read_web("dom.js") + own, path)


if __name__ == "__main__":
    target = Path(sys.argv[1]) if sys.argv[1:] else FOLDER / "board.html"
    write(target, page_data())
    print(target)
