import re
from collections.abc import Iterator
from statistics import fmean
from typing import NamedTuple

from readme import Row, Rows, read

RESULTS = "policy-scoreboard/results.csv"
ROBUSTNESS = "policy-scoreboard/robustness.csv"
BOUNDS = ("bayes", "bayes:confidences=false", "oracle")
GROUPS = ("head", "model", "lookup", "recorded")
HALVES = ("recorded", "held out", "chosen on")

BOARD = "policy-scoreboard/regrets.csv"
DECISIONS = "../benchmarks/policies.csv"
CASES = {"bandit": "bandit, ucb1", "bandit:algorithm=thompson": "bandit, thompson"}
"""Rows there that are not called as the policy is."""
PLACES = [
    f"{drafter}, {world}" for drafter in GROUPS[:3] for world in ("stationary", "changing")
] + ["recorded"]
SOURCES = {
    "joint": "specsim", "goodput_exact": "specsim", "draft_goodput": "specsim",
    "goodput": "SmartSpec", "confidence": "SmartSpec", "turbospec": "TurboSpec",
    "slo_aware": "AdaServe", "disco": "DISCO", "specdec_pp": "SpecDec++", "adaedl": "AdaEDL",
    "bandit": "BanditSpec", "ucbspec": "BanditSpec, as released", "step_controller": "on-the-fly",
    "window_opt": "on-the-fly", "q_learning": "on-the-fly", "schedule": "vLLM",
    "adaptive_verification": "vLLM", "adaptive_k": "vLLM", "ema_tiers": "SGLang",
    "throughput_tiers": "SGLang", "acceptance_gate": "TensorRT-LLM",
    "acceptance_rate_gate": "TensorRT-LLM", "off": "–", "static": "–",
    "nightjar": "Nightjar", "tapout": "TapOut", "dsde": "DSDE", "spec_serve": "SpecServe",
}  # fmt: skip


def group_of(row: Row) -> str:
    return "recorded" if row["half"] == "recorded" else row["drafter"]


def regret_by_drafter() -> Iterator[list[str]]:
    yield ["policy", *GROUPS]
    regrets: dict[str, dict[str, list[float]]] = {}
    for row in read(RESULTS):
        mine = regrets.setdefault(row["policy"], {}).setdefault(group_of(row), [])
        mine.append(float(row["regret_oracle_percent"]))
    by_mean = {name: fmean(map(fmean, found.values())) for name, found in regrets.items()}
    for name in sorted(by_mean, key=lambda name: by_mean[name]):
        found = regrets[name]
        cells = [
            f"{fmean(found[each]):.1f} ({max(found[each]):.0f})" if each in found else "–"
            for each in GROUPS
        ]
        yield [f"`{name}`", *cells]


class Standing(NamedTuple):
    """How a policy stands on the board."""

    policy: str
    source: str
    places: dict[str, Row]
    worst: float
    """Regret in its worst cell, percent."""
    decision: float
    """Microseconds."""


def standings() -> list[Standing]:
    """Return all policies of the board, the least mean regret first."""
    decisions = {row["policy"]: float(row["median_us"]) for row in read(DECISIONS)}
    rows: dict[str, Rows] = {}
    for row in read(BOARD):
        rows.setdefault(row["policy"], []).append(row)

    def mean(policy: str) -> float:
        return fmean(float(row["mean_percent"]) for row in rows[policy])

    found = []
    for policy in sorted(rows, key=mean):
        places = {row["group"]: row for row in rows[policy]}
        worst = max(float(row["worst_cell_percent"]) for row in rows[policy])
        kind = policy.partition(":")[0].partition(",")[0]
        decision = decisions[CASES.get(policy, kind)]
        found.append(Standing(policy, SOURCES[kind], places, worst, decision))
    return found


def board() -> Iterator[list[str]]:
    """Yield regrets against the best fixed k; bold: worse for certain, italic: better."""
    yield ["policy", "source", *PLACES, "worst cell", "decision, us"]
    for policy, source, places, worst, decision in standings():
        cells = [_regret(places[place]) if place in places else "–" for place in PLACES]
        yield [f"`{policy}`", source, *cells, f"{worst:+.0f}", f"{decision:.0f}"]


def _regret(row: Row) -> str:
    text = f"{float(row['mean_percent']):+.1f}"
    if float(row["p"]) >= 0.05:
        return text
    return f"**{text}**" if float(row["mean_percent"]) > 0 else f"*{text}*"


def cell_by_cell() -> Iterator[list[str]]:
    columns = ("regret to the oracle (95 %)", "best other", "its regret", "behind", "`bayes`")
    yield ["drafter", "traffic, load", *columns, "ratio"]
    cells: dict[tuple[str, ...], Rows] = {}
    for row in read(RESULTS):
        place = (row["half"], row["drafter"], row["traffic"], row["load"])
        cells.setdefault(place, []).append(row)
    for place in sorted(cells, key=lambda place: HALVES.index(place[0])):
        rows = {row["policy"]: row for row in cells[place]}
        yield [*_place(*place), *_standing(rows)]


def _place(half: str, drafter: str, traffic: str, load: str) -> list[str]:
    return [drafter + (" *" if half == "chosen on" else ""), f"{traffic}, {load}"]


def _standing(rows: dict[str, Row]) -> list[str]:
    """Return how `joint` stands in a cell."""
    joint = rows["joint"]
    rivals = [row for name, row in rows.items() if name not in (*BOUNDS, "joint")]
    best = max(rivals, key=lambda row: float(row["speed_up"]))
    mine, low, high = (float(joint[f"regret_oracle_{each}"]) for each in ("percent", "low", "high"))
    behind = 100.0 * (float(best["speed_up"]) / float(joint["speed_up"]) - 1.0)
    bound = float(rows["bayes"]["regret_oracle_percent"]) if "bayes" in rows else None
    return [
        f"{mine:.1f} % ({low:.1f} to {high:.1f})",
        f"`{best['policy']}`",
        f"{float(best['regret_oracle_percent']):.1f} %",
        f"{behind:+.2f} %",
        "–" if bound is None else f"{bound:.1f} %",
        f"{mine / bound:.2f}" if bound else "–",
    ]


def selected() -> Iterator[list[str]]:
    """Yield the policies of docs/how-to/policies.md, in whole percent."""
    names = {"oracle", "bayes", "joint", "goodput_exact", "goodput", "confidence", "window_opt"}
    names |= {"acceptance_target", "draft_goodput", "turbospec", "step_controller", "static:k=3"}
    names |= {"static:k=5", "adaptive_verification", "random", "off"}
    yield ["policy", "EAGLE head", "draft model", "lookup", "recorded"]
    for name, *cells in regret_by_drafter():
        if name.strip("`") in names:
            yield [name, *(re.sub(r"^[\d.]+", _whole, cell) for cell in cells)]


def _whole(mean: re.Match[str]) -> str:
    return f"{float(mean[0]):.0f}"


def robustness_by_drafter() -> Iterator[list[str]]:
    over = ["behind `off` by over 1 %", "worst", "behind the best by over 1 %", "worst"]
    yield ["drafter", "settings", *over]
    for drafter in GROUPS[:3]:
        rows, cells = read(ROBUSTNESS, drafter=drafter), []
        for name in ("behind_off_percent", "behind_best_percent"):
            values = [float(row[name]) for row in rows]
            cells += [str(sum(value > 1.0 for value in values)), f"{max(values):+.2f} %"]
        yield [drafter, str(len(rows)), *cells]


def robustness_by_policy() -> Iterator[list[str]]:
    """Say how often each policy is behind `off`."""
    yield ["policy", "settings", "behind `off` by over 1 %", "worst"]
    rows = read(ROBUSTNESS)
    for policy in ("joint", "goodput", "goodput_exact", "draft_goodput"):
        behind = [100.0 * (float(row[f"{policy}_ms"]) / float(row["off_ms"]) - 1.0) for row in rows]
        over = str(sum(value > 1.0 for value in behind))
        yield [f"`{policy}`", str(len(rows)), over, f"{max(behind):+.1f} %"]


def worst_against_off() -> Iterator[list[str]]:
    yield [*_SETTING, "behind `off`"]
    for row in _worst("behind_off_percent"):
        yield [*_setting(row), f"{float(row['behind_off_percent']):+.2f} %"]


def worst_against_the_best() -> Iterator[list[str]]:
    yield [*_SETTING, "best", "behind it"]
    for row in _worst("behind_best_percent"):
        behind = f"{float(row['behind_best_percent']):+.2f} %"
        yield [*_setting(row), f"`{row['best_other']}`", behind]


_SETTING = ["setting", "drafter", "alpha", "requests/s", "order", "prompt, output"]
_VARIES = {"not": "one for all", "by request": "by request", "in regimes": "in regimes"}


def _worst(name: str) -> Rows:
    return sorted(read(ROBUSTNESS), key=lambda row: -float(row[name]))[:10]


def _setting(row: Row) -> list[str]:
    alpha = f"{row['alpha']}, {_VARIES[row['varies']]}"
    place = f"{row['prompt']}, {row['output']}"
    return [row["setting"], row["drafter"], alpha, row["rate"], row["order"], place]
