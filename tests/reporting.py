"""A small sweep, run for real, for the tests of what is made from its folder."""

from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import yaml
from conftest import tiny_config

from specsim.study.sweep import LocalProcesses, Sweep, SweepFolder, run_sweep

POLICIES = ["off", "static:k=1", "static:k=3", "goodput"]
RATES = [5, 20, 60]


def slow_profile(folder: Path) -> str:
    """Write a profile whose steps take four times as long as one of the first GPU."""
    path = folder / "slow.yaml"
    path.write_text(
        yaml.safe_dump(
            {
                "model": "llama-3.1-8b",
                "gpu": "l40s",
                "provenance": {"engine": "none", "source": "a test", "date": "2026-01-01"},
                "target": {"kind": "linear", "alpha_ns": 5, "gamma_us": 60, "delta_ms": 20},
                "drafts": {
                    "eagle3": {
                        "latency": {"kind": "linear", "alpha_ns": 0, "gamma_us": 4, "delta_ms": 1}
                    }
                },
                "valid_range": {"context_tokens": 10**9, "batched_tokens": 10**9},
            }
        )
    )
    return str(path)


def sweep_folder(path: Path, axes: list[dict[str, list[Any]]], replications: int = 2) -> Path:
    """Run a sweep of tiny experiments in this process."""
    engine = {**tiny_config()["engine"], "async_scheduling": False}
    base = tiny_config(engine=engine, slo={"ttft_ms": 200, "tpot_ms": 30})
    sweep = Sweep.model_validate({"base": base, "axes": axes, "replications": replications})
    run_sweep(SweepFolder.create(path, sweep, resume=False), LocalProcesses(1))
    return path


def whole_sweep(path: Path) -> Path:
    """Run two kinds of hardware, four policies and three rates, twice."""
    slow = slow_profile(path.parent)
    axes: list[dict[str, list[Any]]] = [
        {"profile": ["h100/llama-3.1-8b", slow]},
        {"policy": POLICIES},
        {"workload.arrivals.rate": RATES},
    ]
    return sweep_folder(path, axes)


def copied(folder: Path, target: Path) -> Path:
    """Copy the points of a sweep, and what it was."""
    (target / "points").mkdir(parents=True)
    for path in [folder / "sweep.yaml", *(folder / "points").iterdir()]:
        (target / path.relative_to(folder)).write_bytes(path.read_bytes())
    return target


class Tags(HTMLParser):
    """Collects what a browser would make of a page: its elements, and its data."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.title = ""
        self.data = ""
        self._inside = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._inside = dict(attrs).get("id") or tag

    def handle_data(self, data: str) -> None:
        if self._inside == "data":
            self.data += data
        if self._inside == "title":
            self.title += data

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""
