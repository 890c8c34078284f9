"""Three hundred settings at random: where is `joint` behind no speculation, or behind another?

    python experiments/random-settings/run.py                  # all settings, all policies
    python experiments/random-settings/run.py "tuned on" joint # one half, these policies

The settings are those of settings.csv, drawn by draw.py. Every policy meets the same requests and
the same luck, in each of several replications. Writes results.csv; rows of settings or policies
that are not asked for stay as they are.
"""

import csv
import sys
from collections import defaultdict
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

from random_settings import Setting, settings

from specsim.api import Experiment, Policy, parse_policies
from specsim.policies import check_proposer, has_async_form
from specsim.run.simulate import simulate
from specsim.run.summary import Summary

RESULTS = Path(__file__).parent / "results.csv"
REPLICATIONS = 4
STATIC = (1, 2, 3, 5, 8)
RIVALS = ["goodput", "goodput_exact", "turbospec", "draft_goodput", "confidence", "ema_tiers",
          "adaptive_verification", "window_opt", "bandit:algorithm=thompson"]  # fmt: skip
Rows = dict[tuple[int, str], list[float]]


def policies_of(setting: Setting, wanted: list[str]) -> dict[str, Policy]:
    """Return those that its drafter and its scheduling allow."""
    lens = sorted({min(k, setting.longest) for k in STATIC})
    names = ["off", *(f"static:k={k}" for k in lens), *RIVALS, "joint"]
    proposer, found = setting.experiment(0).engine.speculative_config, {}
    assert proposer is not None
    for name, policy in parse_policies([n for n in names if n != "off"]).items():
        if wanted and name not in wanted:
            continue
        if setting.is_async and not has_async_form(policy):
            continue
        try:
            check_proposer(policy, proposer)
        except ValueError:
            continue
        found[name] = policy
    return found


def latency(setting: Setting, policy: Policy, seed: int, *, serves_all: bool = False) -> float:
    """Return the mean end-to-end latency, milliseconds."""
    experiment: Experiment = setting.experiment(seed).replace(policy=policy)
    if serves_all:
        engine = experiment.engine.model_copy(update={"drafter_serves_all": True})
        experiment = experiment.model_copy(update={"engine": engine})
    run = simulate(
        experiment, profile=setting.real(), believed=setting.believed(), keeps_steps=False
    )
    found: float = Summary(run).data["mean_e2el_ms"]
    return found


def known() -> Rows:
    """Return what results.csv has."""
    if not RESULTS.exists():
        return {}
    with RESULTS.open(newline="") as file:
        return {
            (int(row["setting"]), row["policy"]): [
                float(row[f"mean_e2el_ms_{n}"]) for n in range(REPLICATIONS)
            ]
            for row in csv.DictReader(file)
        }


def save(rows: Rows) -> None:
    columns = ["setting", "policy", *(f"mean_e2el_ms_{n}" for n in range(REPLICATIONS))]
    with RESULTS.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(columns)
        for (setting, policy), values in sorted(rows.items()):
            writer.writerow([setting, policy, *(f"{value:.6g}" for value in values)])


def behind(setting: Setting, rows: Rows) -> dict[str, Any]:
    """Return by how much `joint` is behind `off`, and behind the best of the others, percent."""
    mine = {
        policy: values for (number, policy), values in rows.items() if number == setting.setting
    }
    joint = mine.pop("joint")
    best = min(mine, key=lambda policy: fmean(mine[policy]))

    def over(policy: str) -> float:
        return 100.0 * (fmean(joint) / fmean(mine[policy]) - 1.0)

    return {"off": over("off"), "best": over(best), "name": best}


def summarise(rows: Rows) -> None:
    by_half = defaultdict(list)
    for setting in settings():
        if (setting.setting, "joint") in rows and (setting.setting, "off") in rows:
            by_half[setting.half].append((setting, behind(setting, rows)))
    for half, found in by_half.items():
        print(f"\n{half}: {len(found)} settings")
        for name, limit in (("off", 1.0), ("best", 2.0)):
            values = [each[name] for _, each in found]
            over = sum(value > limit for value in values)
            print(f"  behind {name}: over {limit} % in {over}, worst {max(values):.2f} %, "
                  f"mean {fmean(values):.2f} %")  # fmt: skip
            for setting, each in sorted(found, key=lambda pair: -pair[1][name])[:14]:
                place = setting._asdict()
                del place["half"], place["rate"]
                print(f"    {each[name]:6.2f} % {each['name']:24}", *place.values())


def measured(setting: Setting, wanted: list[str]) -> Rows:
    """Return what came of a setting under policies, or under all."""
    found = policies_of(setting, wanted)
    if not wanted or "off" in wanted:
        found["off"] = setting.experiment(0).policy
    return {
        (setting.setting, name): [
            latency(setting, policy, 1000 * seed + setting.setting) for seed in range(REPLICATIONS)
        ]
        for name, policy in found.items()
    }


def main(half: str, wanted: list[str]) -> None:
    rows = known()
    asked = [setting for setting in settings() if half in ("all", setting.half)]
    with ProcessPoolExecutor(2) as pool:
        for found in pool.map(partial(measured, wanted=wanted), asked):
            rows |= found
            save(rows)
    summarise(rows)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "all", sys.argv[2:])
