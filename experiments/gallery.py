"""The gallery of published results: one page, made from the tables that the experiments keep.

    python experiments/gallery.py

Writes docs/gallery.md. Each experiment that reproduces something has a gallery.yaml: rows of paper,
figure, what, published (with its place in the paper), ours and why. `ours` is a template, and
`values` says which cells of the experiment's tables go into it. not-reproduced.yaml beside this
file has what is missing, with the reason.
"""

import csv
import re
import statistics
from pathlib import Path
from typing import Any

import yaml

HERE = Path(__file__).parent
PAGE = HERE.parent / "docs" / "gallery.md"
PAPERS = {
    "SmartSpec": "Liu et al. (2024), arXiv 2406.14066v2",
    "TurboSpec": "Liu et al. (2025), arXiv 2406.14066v3",
    "On-the-fly adaptation": "A Drop-in Solution for On-the-fly Adaptation of Speculative Decoding",
    "SuffixDecoding": "Oliaro et al. (2024), arXiv 2411.04975",
    "SSSD": "Marzollo et al. (2024), arXiv 2411.05894",
    "SpecDecode-Bench": "arXiv 2601.11580",
    "Medusa": "Cai et al. (2024), arXiv 2401.10774",
    "EAGLE-2": "Li et al. (2024), arXiv 2406.16858",
}
FIELDS = {"paper", "figure", "what", "published", "ours", "why", "values"}
OVER = {"min": min, "max": max, "mean": statistics.fmean}
INTRODUCTION = """# Gallery of published results

What the papers report of which specsim has the algorithms, and what comes out here. Numbers of ours
are read from the tables that each experiment keeps (`python experiments/gallery.py` writes this
page); published ones are those of the papers' text and tables. The linked page has the command, the
setting, all numbers, and what they rest on.
"""

Row = dict[str, Any]


def number(folder: Path, name: str, value: Row) -> float:
    """Return the cell, or the least, the most or the mean of some, that a value names."""
    place = f"{folder.name}/gallery.yaml: value '{name}'"
    with (folder / value["table"]).open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    wanted = {column: str(each) for column, each in value.get("where", {}).items()}
    found = [
        float(row[value["column"]])
        for row in rows
        if all(row[column] == each for column, each in wanted.items())
    ]
    over = value.get("over")
    if not found or (over is None and len(found) > 1):
        raise SystemExit(f"{place}: {len(found)} rows of {value['table']} have {wanted}")
    return float(OVER[over](found)) if over else found[0]


def entries(folder: Path) -> list[Row]:
    """Return the rows of an experiment, with its numbers put in."""
    path = folder / "gallery.yaml"
    if not path.exists():
        return []
    rows: list[Row] = yaml.safe_load(path.read_text())
    for row in rows:
        if set(row) != FIELDS or row["paper"] not in PAPERS:
            raise SystemExit(f"{folder.name}/gallery.yaml: {row.get('what')}: wants {FIELDS}, and "
                             f"a paper of {list(PAPERS)}")  # fmt: skip
        values = {name: number(folder, name, each) for name, each in row["values"].items()}
        row["published"] = row["published"].format(**values)
        row["ours"] = re.sub(r"(\d)%", r"\1 %", row["ours"].format(**values))
        row["folder"] = folder.name
    return rows


def page() -> str:
    folders = sorted(path for path in HERE.iterdir() if path.is_dir())
    rows = [row for folder in folders for row in entries(folder)]
    missing: list[Row] = yaml.safe_load((HERE / "not-reproduced.yaml").read_text())
    parts = [INTRODUCTION]
    for paper, source in PAPERS.items():
        parts.append(f"## {paper}\n\n{source}.\n")
        lines = [
            "| figure | what | published | ours | why they differ |",
            "|---|---|---|---|---|",
            *(
                f"| [{row['figure']}](../experiments/{row['folder']}) | {row['what']} | "
                f"{row['published']} | {row['ours']} | {row['why']} |"
                for row in rows
                if row["paper"] == paper
            ),
        ]
        parts.append("\n".join(lines) + "\n")
        left = [row for row in missing if row["paper"] == paper]
        if left:
            reasons = [f"- {row['figure']}: {row['reason']}" for row in left]
            parts.append("**Not reproduced**\n\n" + "\n".join(reasons) + "\n")
    return "\n".join(parts)


def main() -> None:
    PAGE.write_text(page(), encoding="utf-8")
    print(f"wrote {PAGE}")


if __name__ == "__main__":
    main()
